"""Chapter 11: published encoder–decoders, family by family: how far their logits are from those of
`transformers`, what they write, and how many lines each takes there.

Tiny models with large random weights, norms and biases far from 1 and 0; what
tests/library/test_denoiser_families.py tests, it takes from here.
"""
import copy
import json
import logging
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers import __version__ as VERSION

from bench.checkpoint_families import their_lines
from tfmlib.checkpoints import from_pretrained
from tfmlib.denoisers.families import (
    full_beam_search,
    read_target_tokens,
    write_greedily,
    write_with_beams,
)
from tfmlib.workbench import spread

logging.getLogger("transformers").setLevel(logging.ERROR)
V = 61
# heads of C / H
T = dict(vocab_size=V, d_model=20, d_kv=4, d_ff=28, num_layers=2, num_heads=5,
         decoder_start_token_id=0)
W = (T | dict(d_model=24, d_kv=10, num_heads=3, num_decoder_layers=3,
              relative_attention_num_buckets=8, relative_attention_max_distance=20))
GATED = dict(feed_forward_proj="gated-gelu")
OWN = GATED | dict(tie_word_embeddings=False)
B = dict(vocab_size=V, d_model=20, encoder_layers=2, decoder_layers=2, encoder_attention_heads=5,
         decoder_attention_heads=5, encoder_ffn_dim=28, decoder_ffn_dim=28,
         max_position_embeddings=40)
UNEVEN = (B | dict(d_model=24, encoder_layers=1, decoder_layers=3, encoder_attention_heads=4,
                   decoder_attention_heads=6, encoder_ffn_dim=10, decoder_ffn_dim=36))
SCALED = dict(scale_embedding=True)
CASES = {
    "t5": ("t5", T), "t5, wide heads": ("t5", W),
    "t5, one head": ("t5", T | dict(num_heads=1, d_kv=6, num_layers=1)),
    "t5, narrow heads": ("t5", T | dict(d_kv=2, num_layers=3, num_decoder_layers=1)),
    "t5, four buckets": ("t5",
                         W | dict(relative_attention_num_buckets=4,
                                  relative_attention_max_distance=5)),
    "t5, other sizes": ("t5", T | dict(layer_norm_epsilon=.05, d_ff=7, d_kv=13,
                                       relative_attention_num_buckets=64,
                                       relative_attention_max_distance=40)),
    "t5, gelu": ("t5", T | dict(feed_forward_proj="gelu")), "t5, gated and tied": ("t5", W | GATED),
    "t5 v1.1": ("t5", T | OWN), "t5 v1.1, wide heads": ("t5", W | OWN),
    "t5 v1.1, one head": ("t5", T | OWN | dict(num_heads=1, d_kv=9, num_decoder_layers=1)),
    "t5 v1.1, silu": ("t5", W | OWN | dict(feed_forward_proj="gated-silu")),
    "t5 v1.1, gated relu": ("t5",
                            T | OWN | dict(feed_forward_proj="gated-relu", layer_norm_epsilon=.01)),
    "flan-t5's shape": ("t5", dict(vocab_size=V, d_model=32, d_kv=4, d_ff=64, num_layers=8,
                                   num_heads=6, decoder_start_token_id=0) | OWN),
    "mt5": ("mt5", T), "mt5, wide heads": ("mt5", W),
    "mt5, relu": ("mt5", W | dict(feed_forward_proj="relu", layer_norm_epsilon=.01)),
    "mt5, one head": ("mt5", T | dict(num_heads=1, d_kv=3, num_layers=3)),
    "bart": ("bart", B), "bart, scaled": ("bart", B | SCALED), "bart, uneven": ("bart", UNEVEN),
    "bart, uneven, scaled": ("bart", UNEVEN | SCALED | dict(activation_function="relu")),
    "bart, one head": ("bart", B | dict(encoder_attention_heads=1, decoder_attention_heads=1,
                                        activation_function="gelu_new")),
    "bart, a first token": ("bart", B | dict(forced_bos_token_id=0)),
    "mbart": ("mbart", B | SCALED), "mbart, not scaled": ("mbart", B),
    "mbart, uneven": ("mbart", UNEVEN | SCALED | dict(decoder_start_token_id=5)),
    "mbart, one head": ("mbart",
                        B | SCALED | dict(decoder_attention_heads=1, activation_function="silu")),
    "mbart, a language": ("mbart", UNEVEN | SCALED | dict(decoder_start_token_id=2,
            forced_bos_token_id=7, forced_eos_token_id=2)),
}


def has_own_output(kind: str, keys: dict) -> bool:
    return kind == "mt5" or keys.get("tie_word_embeddings") is False


def loud(kind: str, keys: dict, seed: int = 0) -> nn.Module:
    """A tiny random model: matrices of large spread, norms and biases far from 1 and 0; an
    output table of its own where published files have one."""
    torch.manual_seed(seed)
    # many layers amplify the last bits
    spread_ = .35 if keys.get("num_layers", 2) < 4 else .2
    theirs = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **copy.deepcopy(keys)),
                                               attn_implementation="eager").eval()
    # the library ties it in each new model
    if has_own_output(kind, keys):
        theirs.lm_head.weight = nn.Parameter(torch.empty_like(theirs.lm_head.weight))
    for name, p in [*theirs.named_parameters(),
                    ("final_logits_bias", getattr(theirs, "final_logits_bias", None))]:
        if p is None: continue
        if name == "shared.weight": nn.init.normal_(p, std=1.)
        elif "embed_positions" in name or "relative" in name: nn.init.normal_(p, std=.8)
        elif name.endswith("bias"): nn.init.normal_(p, std=.5)
        # T5 divides no score
        elif p.ndim > 1:
            nn.init.normal_(p, std=spread_ / keys["d_kv"] ** .5
                            if name.endswith("Attention.q.weight") else spread_)
        else: nn.init.normal_(p, mean=1., std=.5)
    return theirs


def config_of(theirs) -> dict: return json.loads(theirs.config.to_json_string(use_diff=False))


def ours_of(theirs) -> nn.Module: return from_pretrained(theirs.state_dict(), config_of(theirs))


def batch(config: dict, rows: int = 4, S: int = 23, T_: int = 17,
          seed: int = 0) -> tuple[Tensor, Tensor]:
    "Sources and shifted targets of ordinary words."
    g, pad = torch.Generator().manual_seed(seed), config["pad_token_id"]
    x, y = (torch.randint(3, V, (rows, n), generator=g) for n in (S, T_))
    start = config.get("decoder_start_token_id")
    y[:, 0] = pad if start is None else start
    return x, y


def sides(n: int, rows: int = 4) -> dict[str, Tensor]:
    "Padding masks (rows, n): none, on the right, on the left, on both sides, and a hole."
    column, cut = torch.arange(n), (torch.arange(rows) * (n - 1) // rows)[:, None]
    ones = torch.ones(rows, n, dtype=torch.bool)
    return {"none": ones, "right": column < n - cut, "left": column >= cut,
            "both": (column >= cut // 2) & (column < n - cut // 2), "hole": (column < 3)
            | (column >= 3 + cut // 2)}


@torch.no_grad()
def apart(ours, theirs, source: str = "right", target: str = "none", S: int = 23, T_: int = 17,
          seed: int = 0) -> tuple[float, float]:
    "The largest difference between logits at real target tokens, and the size of the logits."
    config = config_of(theirs)
    x, y = batch(config, S=S, T_=T_, seed=seed)
    here, there = sides(S)[source], sides(T_)[target]
    x, y = (x.masked_fill(~here, config["pad_token_id"]),
            y.masked_fill(~there, config["pad_token_id"]))
    wanted = theirs(input_ids=x, attention_mask=here.long(), decoder_input_ids=y,
                    decoder_attention_mask=there.long(), use_cache=False).logits
    got, _ = ours(x, y, here, there)
    # and without masks, where ids tell
    plain = ours(x, y)[0] if source in ("none", "right") else None
    if plain is not None and target in ("none", "right"):
        got = torch.where((plain - got).abs()[there].max() < 1e-4, got, torch.nan)
    return float((got - wanted)[there].abs().max()), float(wanted[there].std())


PADDED = [("none", "none"), ("right", "none"), ("right", "right"), ("left", "none"),
          ("left", "left"), ("both", "both"), ("hole", "hole")]


def prepared(theirs, x: Tensor, mask: Tensor, length: int, **settings) -> list[list[int]]:
    "What the library's model writes, without the first token and without padding after the end."
    out = theirs.generate(input_ids=x, attention_mask=mask.long(), max_new_tokens=length,
                          do_sample=False, use_cache=False, **settings)[:, 1:]
    return [cut(row, theirs.config.eos_token_id) for row in out.tolist()]


def cut(ids, eos: int) -> list[int]:
    "A text up to its end token."
    ids = [*ids]
    return ids[:ids.index(eos) + 1] if eos in ids else ids


def written(theirs, ours, seed: int = 0, length: int = 9) -> dict[str, bool]:
    """Does our model write what theirs does: greedily from sources padded on either side, with a
    beam of 1 to 4?"""
    config = config_of(theirs)
    tokens, found = read_target_tokens(config), {}
    for side in ("right", "left"):
        x, here = batch(config, seed=seed)[0], sides(23)[side]
        x = x.masked_fill(~here, tokens.pad)
        got = [cut(row, tokens.eos) for row in write_greedily(ours, x, tokens, length,
                here).tolist()]
        found[f"greedy, {side}"] = got == prepared(theirs, x, here, length, num_beams=1)
    x, ones = x[:1], here[:1] | True
    for size, power, first in ((2, 1., False), (3, 0., False), (4, .6, True), (4, 2., False)):
        wanted = prepared(theirs, x, ones, length, num_beams=size, length_penalty=power,
                          early_stopping=first)
        got = write_with_beams(ours, x, tokens, length, size, full_beam_search, power=power,
                               first=first)
        found[f"beam, {size}, {power:g}, {first}"] = [[*got]] == wanted
    return found


def measure(seed: int) -> Iterator[dict]:
    """For each family: the largest difference of a logit in each of its cases, over three seeds
    and seven paddings."""
    for family in dict.fromkeys(kind for kind, _ in CASES.values()):
        gaps, sizes, same = [], [], []
        for kind, keys in CASES.values():
            if kind != family: continue
            for draw in range(seed, seed + 3):
                theirs = loud(kind, keys, draw)
                ours = ours_of(theirs)
                for source, target in PADDED:
                    gap, size = apart(ours, theirs, source, target, seed=draw)
                    gaps.append(gap)
                    sizes.append(size)
                same += written(theirs, ours, draw).values()
        yield {"family": family, "cases": len(gaps), "largest": spread([max(gaps)]),
               "difference": spread(gaps), "logit": spread(sizes), "texts": len(same),
               "equal texts": spread([sum(same)]),
               "transformers": VERSION,
               **{f"lines, {kind}": n for kind, n in their_lines(theirs).items()}}
