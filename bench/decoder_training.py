"""Chapter 10: two small decoders learn prose, one the workbench's, whose true entropy is known, one
this book's; three seeds each.

The curve is the loss on text that no step has seen. The models of seed 0 are those that the book
ships: `python -m bench decoder_training` writes them, with the first losses of their training, to
tfmlib/assets/models.
"""
import json
import math
from bisect import bisect
from collections import Counter
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import over_seeds, ticked
from tfmlib.checkpoints import MODEL_CONFIGS, build, save_model
from tfmlib.decoders import CausalLM, SamplingConfig, chunk, generate, next_token_loss
from tfmlib.tokens import book_tokenizer
from tfmlib.workbench import (
    AdamW,
    History,
    WarmupCosine,
    Writer,
    book_text,
    epochs,
    parameter_groups,
    prose,
    spread,
    stream,
    train,
)

SEEDS, STEPS, BATCH, LENGTH, PEAK, DECAY = 3, 600, 16, 128, 0.004, 0.1
WATCHED, SAMPLED, NEW, WINDOWS = (0, 10, 25, 50, 100, 200, 300, 400, 500, 600), (0, 50, 600), 48, 32
# characters of generated prose: so much that no step comes twice
PROSE, HELD_OUT = 4_100_000, 150_000
BEGINNINGS = {"prose": "\n\nThe king", "book": "\n\nA head"}
MODELS = Path(__file__).resolve().parent.parent / "tfmlib/assets/models"
COMMAND = "python -m bench decoder_training"


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    "The inner part: PyTorch's own attention, which saves time."
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True), None


# --- what is learnt, and what it could be predicted with ------------------------------------------

def sides(name: str) -> tuple[str, str]:
    """Text to learn and text to be tested on: other draws of the prose; of the book every tenth
    stretch of twenty paragraphs."""
    if name == "prose": return prose(PROSE, seed=0), prose(HELD_OUT, seed=1)
    paragraphs = book_text("v2")[0].split("\n\n")
    stretches = ["\n\n".join(paragraphs[i:i + 20]) + "\n\n" for i in range(0, len(paragraphs), 20)]
    return "".join(s for i, s in enumerate(stretches) if i % 10 != 9), "".join(stretches[9::10])


@lru_cache
def tokens(name: str) -> tuple[Tensor, Tensor, float]:
    "Both sides as tokens, and how many characters a token of the tested side has."
    tokenizer, (learnt, tested) = book_tokenizer(), sides(name)
    ids = torch.tensor(tokenizer.encode(tested))
    return torch.tensor(tokenizer.encode(learnt)), ids, len(tested) / len(ids)


class Reckoning(Writer):
    """A writer that knows how likely was what it wrote: −log p of the last paragraph, in nats.

    The grammar can be read back off its words, so that the text is as improbable as the choices
    that made it; but one cannot see whether a stem that returns was taken from the paragraph or
    drawn anew. `least` is told, `most` is not, and the truth is between."""
    def begin(self) -> None:
        self.least = self.most = 0.0
        self.seen, self.named = {kind: [] for kind in self.stems}, False
        # draws a tense, and a person that may never be named
        super().begin()
        self.person_nats, self.least, self.most = self.least, math.log(2), math.log(2)

    def count(self, p: float, unseen: float | None = None) -> None:
        """Something of probability p was written; of probability `unseen` to who does not see
        what was drawn anew."""
        self.least, self.most = (self.least - math.log(p),
                                 self.most - math.log(p if unseen is None else unseen))

    def stem(self, kind: str) -> str:
        used, seen, ranks = list(self.used[kind]), self.seen[kind], self.ranks[kind]
        stem = super().stem(kind)
        r = place(kind)[stem]
        new = (ranks[r] - (ranks[r - 1] if r else 0)) / ranks[-1]
        self.count(*(0.3 * said.count(stem) / len(said) + 0.7 * new if said else new
                     for said in (used, seen)))
        if stem not in seen: seen.append(stem)
        return stem

    def say(self, name: str) -> str:
        if name == "person" and not self.named:
            self.named, self.least, self.most = (True, self.least + self.person_nats,
                                                 self.most + self.person_nats)
        if name not in self.rules: return super().say(name)
        weights, ways = self.rules[name]
        i = bisect(weights, self.rng.random() * weights[-1])
        self.count((weights[i] - (weights[i - 1] if i else 0)) / weights[-1])
        return " ".join(map(self.say, ways[i]))

    def paragraph(self) -> str:
        text = super().paragraph()
        self.count(1 / 6)                                  # how many sentences
        return text


@lru_cache(None)
def place(kind: str) -> dict[str, int]:
    return {stem: r for r, stem in enumerate(Writer(stream(0)).stems[kind])}


def truth(size: int, seed: int) -> tuple[str, float, float]:
    """The text of `prose(size, seed)`, and the nats a character with which its writer predicts
    it: at least, at most."""
    writer, parts, least, most = Reckoning(stream(seed, "prose")), [], 0.0, 0.0
    while size > 0:
        parts.append(writer.paragraph())
        least, most, size = least + writer.least, most + writer.most, size - len(parts[-1])
    text = "".join(parts)
    return text, least / len(text), most / len(text)


def counted(name: str) -> dict[str, float]:
    """What counting gives, in nats a token: tokens alone, and pairs, the better the more often
    their first was seen."""
    learnt, tested, _ = tokens(name)
    size = int(max(learnt.max(), tested.max())) + 1
    single = (torch.bincount(learnt, minlength=size) + 0.1).double()
    single /= single.sum()
    pairs, first = (Counter(zip(learnt.tolist(), learnt[1:].tolist())),
                    torch.bincount(learnt[:-1], minlength=size).double())
    a, b = tested[:-1], tested[1:]
    both = torch.tensor([pairs[pair] for pair in zip(a.tolist(), b.tolist())]).double()
    smoothed = [float(-((both + k * single[b]) / (first[a] + k)).log().mean())
                for k in (1, 3, 10, 30, 100)]
    return {"tokens": float(-single[b].log().mean()), "pairs": min(smoothed)}


# --- learning -------------------------------------------------------------------------------------

@torch.no_grad()
def nats(model: CausalLM, x: Tensor, last: int = LENGTH) -> float:
    "Nats a token, of the last ones of each window (n, LENGTH + 1)."
    counted = torch.arange(x.shape[1]) >= x.shape[1] - last
    found = [next_token_loss(model, part, counted.expand(part.shape)) for part in x.split(16)]
    return float(sum(total for total, _ in found) / sum(count for _, count in found))


def begun(name: str, seed: int) -> tuple[CausalLM, AdamW, object]:
    "A model before its first step, its optimiser, and its batches."
    model = build(MODEL_CONFIGS["toy Llama"], attention_fn=fused, seed=seed)
    optimiser = AdamW(parameter_groups(model, DECAY), WarmupCosine(PEAK, STEPS // 20, STEPS),
                      betas=(0.9, 0.95), clip=1.0)
    return model, optimiser, epochs(chunk(tokens(name)[0], LENGTH + 1), size=BATCH, seed=seed)


def written(model: CausalLM, name: str) -> str:
    "What the model writes after the beginning, with draws that are always the same."
    tokenizer = book_tokenizer()
    ids = torch.tensor([tokenizer.encode(BEGINNINGS[name])])
    return tokenizer.decode(generate(model, ids, NEW, SamplingConfig(temperature=0.8, top_p=0.95),
                                     seed=1)[0]).strip()


def learn(name: str, seed: int) -> tuple[CausalLM, History, list[dict], list[str]]:
    "A trained model, its history, what was measured on the way, and what it wrote then."
    model, optimiser, batches = begun(name, seed)
    learnt, ids, _ = tokens(name)
    new, known = (chunk(t, LENGTH + 1) for t in (ids, learnt))
    new, known = (t[torch.linspace(0, len(t) - 1, WINDOWS).long()] for t in (new, known))
    found, texts = [], []

    def watch(step: int) -> None:
        if step not in WATCHED: return
        model.eval()
        found.append({"held-out": nats(model, new), "learnt": nats(model, known)})
        texts.append(written(model, name) if step in SAMPLED else "")
        print(name, seed, step, {key: round(value, 3) for key, value in found[-1].items()},
              texts[-1][:100], flush=True)

    watch(0)
    history = train(model, next_token_loss, batches, STEPS, optimiser, watch=watch, seed=seed)
    return model, history, found, texts


def whole(model: CausalLM, name: str) -> dict[str, float]:
    "On the whole held-out text, each token with at least half a window before it."
    _, ids, characters = tokens(name)
    each = nats(model, ids.unfold(0, LENGTH + 1, LENGTH // 2), LENGTH // 2)
    return {"nats a token": each, "nats a character": each / characters}


def ship(model: CausalLM, history: History, name: str, seed: int) -> Path:
    "Write a model with what made it."
    path = MODELS / f"{name}.safetensors"
    curve = json.dumps([round(loss, 5) for loss in history["loss"][:20].tolist()])
    save_model(path, model, command=COMMAND, text=name, seed=str(seed), steps=str(STEPS),
               tokenizer=book_tokenizer().source, curve=curve)
    return path


def measure(seed: int) -> list[dict]:
    """Both texts: what counting gives, what can be known, the curve of three seeds with what the
    first one writes, the end."""
    made = []
    for name in ("prose", "book"):
        base, (_, _, characters) = counted(name), tokens(name)
        for what, each in base.items():
            made.append({"text": name, "model": what} | {"nats a token": spread([each]),
                    "nats a character": spread([each / characters])})
        if name == "prose":
            _, least, most = truth(HELD_OUT, 1)
            for what, each in (("least", least), ("most", most)):
                made.append({"text": name, "model": what}
                            | {"nats a token": spread([each * characters]),
                               "nats a character": spread([each])})
        runs = [learn(name, seed + s) for s in ticked(range(SEEDS), "seed")]
        ship(*runs[0][:2], name, seed)
        made.append({"text": name, "model": "decoder"}
                    | over_seeds([whole(model, name) for model, *_ in runs]))
        for i, step in enumerate(WATCHED):
            said = {"written": runs[0][3][i]} if step in SAMPLED else {}
            made.append({"text": name, "model": "decoder", "step": step} | said
                        | over_seeds([found[i] for _, _, found, _ in runs]))
    return made
