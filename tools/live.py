"""Write what a page can load to tfmlib/assets/live: models in 16 bits, that of the tour in 8,
and the heads of one on an example and on held-out prose: python tools/live.py"""
import json
import re
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.tour import PIECE  # noqa: E402
from tfmlib.checkpoints import load_model  # noqa: E402
from tfmlib.heads import attention_weights  # noqa: E402
from tfmlib.tokens import book_tokenizer, printable  # noqa: E402
from tfmlib.workbench import load_tensors, prose, save_tensors  # noqa: E402

MODELS = ("prose", "tour")
# The tour's model, as its page makes it, in the words of chapter 10: its size, and the names of its
# parts
TOUR = {"kind": "decoder", "vocab_size": 1984, "d_model": 128, "n_layers": 4, "n_heads": 4,
        "n_kv_heads": 2, "d_ff": 320, "max_len": 128, "norm": "rmsnorm", "norm_position": "pre",
        "positions": "rotary",
        "ffn": "swiglu", "ffn_bias": False, "embedding_scale": 1}
PARTS = {"blocks": "stack.blocks", "norm": "stack.norm", "norm1": "attention.norm",
         "norm2": "feed_forward.norm", "attention": "attention.inner",
         "feed_forward": "feed_forward.inner", "query": "q_proj",
         "key": "k_proj", "value": "v_proj", "out": "o_proj"}
LEAD, EXAMPLE = "\n\n", "The old king was in the city. The old king wanted his ship."
SHOWN = 32                                       # tokens that the figure of chapter 5 shows


def write(folder: Path) -> None:
    "The book's models in 16 bits, that of the tour in 8, in a folder."
    for name in MODELS:
        if name == "tour":
            save_tensors(folder / "tour.safetensors", *tour_in_8_bits())
            continue
        state, facts = load_tensors(ROOT / f"tfmlib/assets/models/{name}.safetensors")
        kept = {key: facts[key]
                for key in ("config", "command", "text", "tokenizer") if key in facts}
        save_tensors(folder / f"{name}.safetensors",
                     {key: value.half() for key, value in state.items()}, kept)


def in_8_bits(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each row of a matrix as whole numbers from −127 to 127 and what they are multiplied by,
    which has 16 bits, like the vectors."""
    made = {}
    for name, x in state.items():
        if x.ndim < 2:
            made[name] = x.half()
            continue
        scale = (x.float().abs().amax(-1) / 127).half()
        made |= {name: (x.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8),
                 f"{name}.scale": scale}
    return made


def from_8_bits(made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    "The numbers that `in_8_bits` stands for, as a page computes them."
    return {name: x.float() * made[f"{name}.scale"].float()[:, None] if x.dtype == torch.int8
            else x.float() for name, x in made.items() if not name.endswith(".scale")}


def tour_in_8_bits() -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    "The model that the tour ships, under the names of chapter 10, and its tokens."
    state, facts = load_tensors(ROOT / "tfmlib/assets/models/tour.safetensors")
    pieces = sorted(
        set(PIECE.findall((ROOT / "tfmlib/assets/text/novels.txt").read_text(encoding="utf-8"))))
    if any("|" in piece for piece in pieces):
        raise ValueError("pieces: got one with a |, which is expected to part them")
    named = {".".join(PARTS.get(part, part) for part in name.split(".")): x
             for name, x in state.items()}
    return (in_8_bits(named), {"config": json.dumps(TOUR), "command": facts["command"],
                               "pieces": "|".join(pieces)})


def rounded(name: str) -> torch.nn.Module:
    "A model of the book with the weights that a page loads."
    model = load_model(name).eval()
    with torch.no_grad():
        for p in model.parameters(): p.copy_(p.half())
    return model


def attention_of(model, ids) -> torch.Tensor:
    "The attention weights of every layer and head (L, H, T, T)."
    with torch.no_grad(), attention_weights():
        return torch.stack([w[0] for w in model.hidden_states(torch.as_tensor(ids)[None])[1]])


def copies(ids: list[int], t: int) -> list[int]: return [s for s in range(t) if ids[s] == ids[t]]


def places(ids: list[int], tokens: list[str]) -> dict[str, list[tuple[int, list[int]]]]:
    "For each kind of place, the queries after the first that have some there, with their keys."
    of = {
        "itself": lambda t: [t], "the token before": lambda t: [t - 1],
        "the first token": lambda t: [0], "earlier copies": lambda t: copies(ids, t),
        "full stops": lambda t: [s for s in range(t) if tokens[s] == "."],
        "commas": lambda t: [s for s in range(t) if tokens[s] == ","],
    }
    return {place: [(t, keys) for t in range(1, len(ids)) if (keys := find(t))]
            for place, find in of.items()}


def measured(model, texts: list[str]) -> dict:
    """For each kind of place, the mean weight (L, H) that queries give to it, and what equal
    weights would give."""
    tokenizer, sums = book_tokenizer(), {}
    for text in texts:
        ids = tokenizer.encode(LEAD + text)[:SHOWN]
        weights = attention_of(model, ids)
        for place, chosen in places(ids,
                                    [printable(token) for token in tokenizer.tokens(ids)]).items():
            total, equal, n = sums.get(place, (0, 0, 0))
            for t, keys in chosen:
                total, equal, n = (total + weights[:, :, t, keys].sum(-1),
                                   equal + len(keys) / (t + 1), n + 1)
            sums[place] = total, equal, n
    return {place: {"weight": [[round(float(w), 2) for w in row] for row in total / n],
                    "equal": round(equal / n, 2), "queries": n}
                    for place, (total, equal, n) in sums.items()}


def of_names(model, text: str) -> dict:
    """What the tokens of a name get from those of the same name later in the sentence, over the
    names of a text."""
    tokenizer, weights, equal, largest, n = book_tokenizer(), 0, 0, 0, 0
    names = sorted({*re.findall(r"(?<=[a-z,] )[A-Z]\w+ [A-Z]\w+", text)})
    for name in names:
        before = tokenizer.encode(LEAD + f"{name} wanted the ship. The old king saw")
        ids = before + tokenizer.encode(f" {name}")
        found = attention_of(model, ids)
        for t in range(len(before), len(ids)):
            if not (keys := copies(ids, t)): continue
            best = found[:, :, t].argmax(-1)
            weights, equal, n = (weights + found[:, :, t, keys].sum(-1),
                                 equal + len(keys) / (t + 1), n + 1)
            largest = largest + torch.isin(best, torch.tensor(keys)).int()
    return {"names": len(names), "queries": n, "equal": round(equal / n, 3),
            "thousandths": (weights / n * 1000).round().int().tolist(),
            "largest": int(largest.max())}


def heads(name: str = "prose") -> dict:
    """What the figure of chapter 5 shows of a model's heads before it is loaded, and what its text
    says about them."""
    model, tokenizer = rounded(name), book_tokenizer()
    ids = tokenizer.encode(LEAD + EXAMPLE)
    weights = (1000 * attention_of(model, ids)).round().int().tolist()
    paragraphs = [p for p in prose(20_000, 1).split("\n\n") if p]
    return {"lead": LEAD, "text": EXAMPLE,
            "tokens": [printable(token) for token in tokenizer.tokens(ids)],
            "thousandths": [[[row[:t + 1] for t, row in enumerate(head)] for head in layer]
                            for layer in weights],
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": int(model.facts["steps"]), "paragraphs": len(paragraphs),
            "prose": measured(model, paragraphs),
            "names": of_names(model, prose(20_000, 1))}


if __name__ == "__main__":
    write(ROOT / "tfmlib/assets/live")
    (ROOT / "tfmlib/assets/live/heads.json").write_text(json.dumps(heads(), ensure_ascii=False,
            separators=(",", ":")) + "\n", encoding="utf-8")
