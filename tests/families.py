"""What the tests of several chapters ask of model families."""
import copy
import json
from collections.abc import Callable, Iterable

import torch
from refusing import refuses
from transformers import MarianConfig, MarianMTModel

from bench.checkpoint_families import IDS, loud
from tfmlib.alignment import BOS, EOS, PAD
from tfmlib.checkpoints import from_pretrained, to_pretrained

MARIAN = dict(vocab_size=40, d_model=12, encoder_layers=2, decoder_layers=1,
              encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=24,
              decoder_ffn_dim=10, max_position_embeddings=64, pad_token_id=PAD,
              decoder_start_token_id=BOS, eos_token_id=EOS, forced_eos_token_id=None,
              scale_embedding=True)


def marian(kind: type = MarianMTModel, seed: int = 0, **choice) -> torch.nn.Module:
    "A random Marian."
    torch.manual_seed(seed)
    theirs = kind(MarianConfig(**MARIAN | choice)).eval()
    for name, p in theirs.named_parameters():
        if "positions" not in name: torch.nn.init.normal_(p, std=.3)
    if kind is MarianMTModel: torch.nn.init.normal_(theirs.final_logits_bias, std=.3)
    return theirs


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
