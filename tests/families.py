"""What the tests of several chapters ask of model families."""
import copy
import json
from collections.abc import Callable, Iterable

import torch
from refusing import refuses

from bench.checkpoint_families import IDS, loud
from tfmlib.checkpoints import from_pretrained, to_pretrained


def other_values(value) -> list:
    "Further values of a key of a configuration."
    if type(value) is bool: return [not value]
    if type(value) in (int, float): return [value + 1, 2 * value]
    return [True, 2, .5] if value is None else []


def in_sixteen_bits(kind: str, sizes: dict, state: Callable[[torch.nn.Module], dict]) -> None:
    """In bfloat16 our logits are as far from those of 32 bits as theirs are, on average over
    three models."""
    off = usual = 0.
    for seed in range(3):
        wide = loud(kind, sizes, seed)
        theirs = copy.deepcopy(wide).bfloat16()
        ours = from_pretrained(state(theirs), json.loads(theirs.config.to_json_string()))
        with torch.no_grad():
            exact, own, got = (wide.bfloat16().float()(IDS).logits,
                               theirs(IDS).logits.float(), ours(IDS))
        assert got.dtype == torch.bfloat16
        off, usual = (off + float((got.float() - exact).square().mean().sqrt()),
                      usual + float((own - exact).square().mean().sqrt()))
    assert off < 1.5 * usual, (off, usual)


def of_no_other(kind: str, model: torch.nn.Module, families: Iterable[str]) -> None:
    "A model is refused under the name of every other family."
    for family in set(families) - {kind}:
        refuses(f"^(family: {family}|max_len)", to_pretrained, model, family)
