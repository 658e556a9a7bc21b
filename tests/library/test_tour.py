"""The tour: its model is a Llama, sees nothing that comes later, knows the order of its tokens,
learns English, and is as short as it says."""
import ast
import json
import math
import re
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
import torch
from conftest import sweep
from test_real_models import real
from transformers import LlamaConfig, LlamaForCausalLM

from bench.tour import MODEL, RUN
from tfmlib.checkpoints import gguf_tokenizer
from tfmlib.workbench import book_text, load_tensors, read_gguf

READS = ("chapters/00_tour.ipynb",)
ROOT = Path(__file__).resolve().parents[2]
CELLS = {cell["id"]: "".join(cell["source"])
         for cell in json.loads(
             (ROOT / "chapters/00_tour.ipynb").read_text(encoding="utf-8"))["cells"]
         if cell["cell_type"] == "code"}
LLAMA = {"model.embed_tokens": "embedding", "model.norm": "norm", "model.layers": "blocks",
         "self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key",
         "self_attn.v_proj": "attention.value",
         "self_attn.o_proj": "attention.out", "mlp": "feed_forward", "_proj": "",
         "input_layernorm": "norm1", "post_attention_layernorm": "norm2"}


def page(*ids: str, **changes: tuple[str, str]) -> dict:
    """What the cells of the page define; a change is a piece of a cell that stands there once,
    and what takes its place."""
    names = {}
    for id in ids:
        source = CELLS[id]
        for cell, (old, new) in changes.items():
            if cell == id.replace("-", "_"):
                assert source.count(old) == 1, (id, old)
                source = source.replace(old, new)
        exec(compile(source, id, "exec"), names)
    return names


TOUR = page("imports", *MODEL)


def renamed(state: dict) -> dict:
    "Parameters of transformers' Llama under the names of the page."
    def one(name):
        for theirs, ours in LLAMA.items(): name = name.replace(theirs, ours)
        return name
    return {one(name): x for name, x in state.items() if name != "lm_head.weight"}


def test_the_model_is_short_and_uses_pytorch_only():
    lines = [line for id in MODEL for line in CELLS[id].splitlines() if line.strip()]
    assert len(lines) < 100 and max(map(len, lines)) <= 90
    imported = {n.module if isinstance(n, ast.ImportFrom) else a.name for id in (*MODEL, "train")
                for n in ast.walk(ast.parse(CELLS[id]))
                if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    assert imported == {"torch", "torch.nn.functional"}
    others = {n.module for source in CELLS.values() for n in ast.walk(ast.parse(source))
              if isinstance(n, ast.ImportFrom) and n.module.startswith("tfmlib")}
    assert others == {"tfmlib.workbench", "tfmlib.checkpoints"}, "what draws, and what reads files"
    used = {n.id for id in MODEL for n in ast.walk(ast.parse(CELLS[id]))
            if isinstance(n, ast.Name)} & TOUR.keys()
    assert not {name for name in used
                if str(getattr(TOUR[name], "__module__", "")).startswith("tfmlib")}


@torch.no_grad()
@pytest.mark.parametrize("heads, groups, width, hidden, base", sweep(
    [(4, 2, 32, 48, 10_000.), (6, 1, 48, 40, 100_000.), (2, 2, 16, 64, 500.),
     (9, 3, 72, 96, 100_000.)],
    (6, 1, 48, 40, 100_000.)))
def test_it_is_a_llama(heads, groups, width, hidden, base):
    torch.manual_seed(heads)
    theirs = LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=width,
                                          intermediate_size=hidden, num_hidden_layers=3,
                                          num_attention_heads=heads, num_key_value_heads=groups,
                                          rms_norm_eps=1e-5, tie_word_embeddings=True,
                                          rope_parameters={"rope_type": "default",
                                                  "rope_theta": base})).eval()
    for name, p in theirs.named_parameters():
        p.copy_(1 + .2 * torch.randn_like(p) if "norm" in name else .15 * torch.randn_like(p))
    ours = TOUR["Transformer"](61, width, 3, heads, groups, hidden, base)
    ours.load_state_dict(renamed(theirs.state_dict()))
    ids = torch.randint(61, (3, 40))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    loss = theirs(ids, labels=ids).loss
    torch.testing.assert_close(TOUR["loss_of"](ours, ids), loss, atol=1e-5, rtol=1e-5)
    written = theirs.generate(ids[:1], max_new_tokens=12, do_sample=False, pad_token_id=0,
                              eos_token_id=None)
    assert TOUR["write"](ours, ids[0], 12).tolist() == written[0].tolist()


@torch.no_grad()
def test_smollm2_gives_the_logits_of_transformers():
    facts, tensors = read_gguf(real("smollm2"))
    names = page("imports", *MODEL, "fill-code")
    ours = names["filled"](tensors)
    theirs = LlamaForCausalLM(LlamaConfig(vocab_size=49_152, hidden_size=576,
                                          intermediate_size=1536, num_hidden_layers=30,
                                          num_attention_heads=9, num_key_value_heads=3,
                                          rms_norm_eps=1e-5, tie_word_embeddings=True,
                                          rope_parameters={"rope_type": "default",
                                                  "rope_theta": 100_000.})).eval()
    state = ours.state_dict()
    assert renamed(theirs.state_dict()).keys() == state.keys()
    theirs.load_state_dict({name: state[[*renamed({name: 0}), "embedding.weight"][0]]
                            for name in theirs.state_dict()})
    ids = torch.tensor([gguf_tokenizer(facts).encode(book_text("v1")[0][:1500])[:200]])
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_the_pictures_show_the_numbers_of_the_small_model():
    """Logits, weights and the stream that are drawn are those of the page's own lines; so are
    the losses of the sentence."""
    names = page("imports", *MODEL, "tokens", "embedding-picture", "attention-picture",
                 "swiglu-picture", "stream-picture", "small-load", "small", "loss-show")
    small, ids, t, right = (names[name] for name in ("small", "ids", "t", "right"))
    torch.testing.assert_close(small(ids[None])[0], t["logits"], atol=1e-5, rtol=0)
    block, x = small.blocks[0], small.embedding(ids[None])
    between = x + block.attention(block.norm1(x))
    torch.testing.assert_close(block.attention.weights[0], t["weights"])
    for name, found in (("x", x), ("between", between),
                        ("written", block.feed_forward(block.norm2(between))), ("out", block(x))):
        torch.testing.assert_close(found[0], t[name])
    # the stream, what is added, the stream, what is added, the stream
    drawn = [values for _, values in names["parts"]]
    torch.testing.assert_close(drawn[0] + drawn[1], drawn[2])
    torch.testing.assert_close(drawn[2] + drawn[3], drawn[4])
    torch.testing.assert_close(drawn[4], t["out"])
    torch.testing.assert_close(names["loss_of"](small, ids[None]), -right.log().mean())
    assert abs(float(right[0]) - .1) < .03 and right[2:].min() > .99


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    made = TOUR["Transformer"](30, 24, 2, 4, 2, 40)
    with torch.no_grad():
        for p in made.parameters(): p.copy_(.4 * torch.randn_like(p) + (p.ndim == 1))
    return made


def test_it_samples_what_it_predicts(model):
    """Of many first tokens, each comes as often as its probability says; at temperature 0,
    always the most probable."""
    ids = torch.tensor([3, 8, 1])
    p = (model(ids[None])[0, -1] / 2.).softmax(-1).detach()
    drawn = Counter(int(TOUR["write"](model, ids, 1, 2., seed)[-1]) for seed in range(600))
    assert sum(abs(drawn[i] / 600 - float(p[i])) for i in range(30)) / 2 < .15
    assert (TOUR["write"](model, ids, 1)[-1] == p.argmax() and TOUR["write"](model, ids, 5, 1.,
            1).tolist() == TOUR["write"](model, ids, 5, 1., 1).tolist())


# --- it learns ------------------------------------------------------------------------------------

class Bigrams:
    """Pairs of neighbouring pieces in English that no model has seen, smoothed by how frequent
    each is."""
    def __init__(self, pieces: list[str], kinds: int):
        self.one, self.two, self.n, self.kinds = (Counter(pieces), Counter(zip(pieces, pieces[1:])),
                                                  len(pieces), kinds)

    def nats(self, pieces: list[str]) -> float:
        "The negative log-likelihood of a text, per piece."
        def p(a, b):
            return ((self.two[a, b] + 2 * (self.one[b] + .5) / (self.n + .5 * self.kinds))
                    / (self.one[a] + 2))
        return -sum(math.log(p(a, b)) for a, b in zip(pieces, pieces[1:])) / (len(pieces) - 1)


def text_and_english(names: dict) -> tuple[Bigrams, list[str]]:
    return (Bigrams(names["split"](names["decode"](names["held_out"].tolist())),
                    len(names["pieces"])), names["pieces"])


def mean_nats(english: Bigrams, names: dict, model, samples: int) -> float:
    "Of texts that the model writes."
    return mean(english.nats(names["split"](names["decode"](
        names["write"](model, names["start"], 60, .6, seed).tolist()))) for seed in range(samples))


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_a_short_training_it_writes_more_like_english(seed):
    "A twelfth of the page's steps: by more than a nat per word, on the mean of five samples."
    steps = int(re.search(r"steps, losses = (\d+)", CELLS["train"])[1])
    names = page(*RUN, before=("manual_seed(0)", f"manual_seed({seed})"),
                 train=(f"steps, losses = {steps}", f"steps, losses = {steps // 12}"))
    english, pieces = text_and_english(names)
    torch.manual_seed(seed)
    untrained = names["Transformer"](len(pieces), width=128, layers=4, heads=4,
                                     groups=2, hidden=320)
    before, after = (mean_nats(english, names, each, 5) for each in (untrained, names["model"]))
    assert after < before - 1


def test_the_model_that_was_trained_longer_is_the_same_and_better():
    names = page(*RUN[:-1])
    longer = names["Transformer"](len(names["pieces"]), width=128, layers=4, heads=4,
                                  groups=2, hidden=320)
    longer.load_state_dict(
        {k: x.float()
         for k, x in load_tensors(ROOT / "tfmlib/assets/models/tour.safetensors")[0].items()})
    english, _ = text_and_english(names)
    assert mean_nats(english, names, longer, 3) < mean_nats(english, names, names["model"], 3) - 2
    with torch.no_grad():
        assert float(names["loss_of"](longer, names["held_out"][:49 * 64].view(-1, 49))) < 4.6


def test_the_text_is_english_and_can_be_read_back():
    names = page("imports", *MODEL, "text")
    text = names["text"]
    assert (names["decode"](names["data"].tolist()) == text and len(text.encode()) < 1.5e6
            and text.isascii())
    assert (all(len(line.split()) <= 30 for line in text.splitlines())
            and len(names["pieces"]) < 2_100)
