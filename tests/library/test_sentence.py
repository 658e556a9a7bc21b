"""The sentence of the whole book: its numbers are those of the library's decoder, and of a
forward pass that uses nothing of it."""
import numpy as np
import pytest
import torch

import tfmlib as tfm
from bench import sentence as made
from tfmlib.workbench import load_sentence


@pytest.fixture(scope="module")
def model():
    config = tfm.ModelConfig("decoder", 26, d_model=8, n_layers=1, n_heads=2, d_ff=24, max_len=16,
                             rope_base=100., **tfm.MODERN)
    model = tfm.build(config)
    model.load_state_dict(load_sentence().model())
    return model.eval()


def test_the_librarys_decoder_computes_what_is_kept(model):
    kept = load_sentence()
    assert kept.words == made.SENTENCE and kept.vocabulary == made.VOCABULARY
    assert kept.longer == made.LONGER
    torch.testing.assert_close(made.moments(model, kept.longer)["weights"], kept.tensors["longer"],
                               atol=1e-5, rtol=1e-5)
    for name, t in made.moments(model, kept.words).items():
        torch.testing.assert_close(t, kept.tensors[name], atol=1e-5, rtol=1e-5)


def test_a_forward_pass_without_the_library():
    """Embedding, norm, two heads with rotated pairs, residual, gated feed-forward, norm, logits:
    in NumPy."""
    kept = load_sentence()
    w = {name: t.double().numpy() for name, t in kept.model().items()}
    told = {name: t.double().numpy() for name, t in kept.tensors.items()}
    T, D = 6, 4
    find = lambda *parts: next(v for name, v in w.items() if all(p in name for p in parts))
    norm = lambda x, g: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g
    def turn(x):
        angle = np.arange(T)[:, None] * 100. ** -(np.arange(0, D, 2) / D)
        # a pair is a number of each half
        one, two = x[..., :D // 2], x[..., D // 2:]
        return np.concatenate([one * np.cos(angle) - two * np.sin(angle), two * np.cos(angle) + one
                               * np.sin(angle)], -1)
    x = find("embedding")[told["ids"].astype(int)]
    np.testing.assert_allclose(x, told["x"], atol=1e-7)
    n = norm(x, find("blocks.0.attention.norm"))
    q, k, v = ((n @ find(f"{name}_proj").T).reshape(T, 2, D).transpose(1, 0, 2) for name in "qkv")
    np.testing.assert_allclose(turn(q), told["rotated_q"], atol=1e-5)
    scores = turn(q) @ turn(k).transpose(0, 2, 1) / D**.5
    np.testing.assert_allclose(scores, told["scores"], atol=1e-5)
    e = np.exp(scores) * np.tril(np.ones((T, T)))
    weights = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, told["weights"], atol=1e-6)
    x = x + (weights @ v).transpose(1, 0, 2).reshape(T, 8) @ find("o_proj").T
    n = norm(x, find("feed_forward.norm"))
    gate = n @ find("gate").T
    x = x + (gate / (1 + np.exp(-gate)) * (n @ find("up.weight").T)) @ find("down").T
    logits = norm(x, w["stack.norm.weight"]) @ (w["lm_head.weight"] if "lm_head.weight" in w
                                                else find("embedding")).T
    np.testing.assert_allclose(logits, told["logits"], atol=1e-4)
    assert [kept.vocabulary[i] for i in told["logits"].argmax(-1)[2:]] == ["in", "the", "barn", "."]


def test_the_animal_is_found_however_far_it_is(model):
    for animal, (preposition, place) in made.PLACES.items():
        for words in (["the", animal, "waits"],
                      ["the", "old", animal, "that", "saw", "the", "hen", "sings"]):
            for expected in (preposition, "the", place):
                ids = torch.tensor([[made.VOCABULARY.index(word) for word in words]])
                assert made.VOCABULARY[int(model(ids)[0, -1].argmax())] == expected, words
                words = [*words, expected]


@pytest.mark.whole
def test_it_can_be_trained_again(model):
    again = made.trained()
    rows = made.rows(500, 7)
    assert tfm.perplexity(again, rows) == pytest.approx(tfm.perplexity(model, rows), rel=.01)
