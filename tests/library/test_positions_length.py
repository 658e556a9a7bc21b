"""What the recorded comparison of chapter 6 rests on: the same characters predicted at every
length, the same beginning for all, text never seen."""
import pytest
import torch

from bench.positions_length import (
    LAST,
    LENGTHS,
    METHODS,
    RULES,
    TRAINED,
    Model,
    fresh,
    loss,
    ruled,
    texts,
    windows,
)


@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_every_length_predicts_the_same_characters(length):
    x = torch.arange(2_000)
    assert torch.equal(windows(x, length, 7)[:, -LAST - 1:],
                       windows(x, LENGTHS[-1], 7)[:, -LAST - 1:])


def test_the_loss_is_that_of_the_last_characters():
    model, x = fresh("ALiBi", 0), torch.randint(texts()[2], (2, 41))
    scores = model(x[:, :-1])[:, 8:].log_softmax(-1)
    torch.testing.assert_close(loss(model, x, LAST), -scores.gather(-1, x[:, 9:, None]).mean())


@pytest.mark.parametrize("method", METHODS)
def test_all_begin_with_the_same_weights(method):
    def shared(model: Model):
        return {name: t for name, t in model.state_dict().items() if "encoding." not in name}
    ours, none = shared(fresh(method, 1)), shared(fresh("none", 1))
    assert ours.keys() == none.keys() and all(torch.equal(ours[name], none[name]) for name in none)


def test_no_window_of_the_test_was_learnt():
    learnt, new, _ = ("".join(map(chr, t.tolist())) if torch.is_tensor(t) else t for t in texts())
    seen = {learnt[i:i + TRAINED] for i in range(len(learnt) - TRAINED)}
    assert not any(new[i:i + TRAINED] in seen for i in range(0, len(new) - TRAINED, 16))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_changes_a_copy(rule):
    model, x = fresh("RoPE", 0), torch.randint(texts()[2], (1, 128))
    before = model(x)
    other = ruled(model, RULES[rule])
    assert torch.equal(model(x), before) and torch.equal(other(x), before) == (rule == "none")
