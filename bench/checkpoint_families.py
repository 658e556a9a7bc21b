"""Chapter 12: published decoders, family by family: how far their logits are from those of
`transformers`, and how many lines each takes there.

Tiny models with large random weights, norms and biases far from 1 and 0; what
tests/library/test_checkpoints.py tests, it takes from here.
"""
import ast
import copy
import inspect
import io
import json
import logging
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import __version__ as VERSION

from tfmlib.checkpoints import from_pretrained
from tfmlib.workbench import spread

logging.getLogger("transformers").setLevel(logging.ERROR)
ENDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
T = dict(vocab_size=61, hidden_size=20, intermediate_size=28, num_hidden_layers=3,
         num_attention_heads=5, num_key_value_heads=1, max_position_embeddings=48, **ENDS)
# heads of 6
E = T | dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2)
# heads wider than C / H
W = E | dict(head_dim=10)
N = {key: value for key, value in E.items() if key != "num_key_value_heads"}
G = dict(vocab_size=61, n_embd=24, n_layer=3, n_head=4, n_positions=48, **ENDS)
F = {key: value for key, value in N.items() if key != "intermediate_size"}


def rope(kind="default", theta=1e4, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


TRAINED = dict(factor=4., original_max_position_embeddings=12)
LONG = rope("longrope", short_factor=[1., 1.5, 2.], long_factor=[2., 4., 7.],
            original_max_position_embeddings=12)
NEO = dict(vocab_size=61, hidden_size=24, num_layers=3, num_heads=4, max_position_embeddings=48,
           window_size=5, attention_types=[[["global", "local"], 1], [["local"], 1]], **ENDS)
OPT = dict(vocab_size=61, hidden_size=24, ffn_dim=28, num_hidden_layers=3, num_attention_heads=4,
           max_position_embeddings=48, word_embed_proj_dim=24, **ENDS)
BLOOM, MPT = (dict(vocab_size=61, hidden_size=24, n_layer=3, n_head=6, **ENDS),
              dict(vocab_size=61, d_model=24, n_heads=6, n_layers=3, max_seq_len=48, **ENDS))
SCALES = dict(embedding_multiplier=3., attention_multiplier=.3, logits_scaling=.5,
              residual_multiplier=.7)
GEMMA = W | dict(query_pre_attn_scalar=7, sliding_window=6)
CASES = {
    "openai-gpt": ("openai-gpt", G),
    "openai-gpt, relu": ("openai-gpt", G | dict(afn="relu", layer_norm_epsilon=.01)),
    "openai-gpt, untied": ("openai-gpt", G | dict(tie_word_embeddings=False)),
    "gpt2": ("gpt2", G), "gpt2, untied": ("gpt2", G | dict(tie_word_embeddings=False, n_inner=28)),
    "gpt_neo": ("gpt_neo", NEO),
    "gpt_neo, global": ("gpt_neo",
                        NEO | dict(attention_types=[[["global"], 3]], intermediate_size=28,
                                   activation_function="relu")),
    "gptj": ("gptj", G | dict(rotary_dim=4)),
    "gptj, all features": ("gptj", G | dict(rotary_dim=6, n_inner=28)),
    "gpt_neox": ("gpt_neox", N | rope(partial_rotary_factor=.7)),
    "gpt_neox, one after the other": ("gpt_neox", N | rope(partial_rotary_factor=.4)
                                      | dict(use_parallel_residual=False, attention_bias=False,
                                             tie_word_embeddings=True)),
    "gpt_neox, all features": ("gpt_neox", N | rope(theta=500., partial_rotary_factor=1.)
                               | dict(hidden_act="gelu_new", layer_norm_eps=.01)),
    "gpt_neox, linear": ("gpt_neox", N | rope("linear", factor=3., partial_rotary_factor=.7)),
    "opt": ("opt", OPT),
    "opt, post-norm, projected": ("opt",
                                  OPT | dict(do_layer_norm_before=False, word_embed_proj_dim=10)),
    "opt, projected, untied": ("opt",
                               OPT | dict(word_embed_proj_dim=10, tie_word_embeddings=False)),
    "opt, no bias": ("opt", OPT | dict(enable_bias=False, activation_function="gelu")),
    "bloom": ("bloom", BLOOM), "bloom, power of two": ("bloom", BLOOM | dict(n_head=4)),
    "mpt": ("mpt", MPT), "mpt, power of two": ("mpt", MPT | dict(n_heads=4)),
    "mpt, clipped": ("mpt", MPT | dict(attn_config=dict(clip_qkv=.8, softmax_scale=.3))),
    "falcon 7B": ("falcon", F), "falcon 7B, two norms in sequence": ("falcon",
            F | dict(parallel_attn=False, bias=True)),
    "falcon 40B": ("falcon", F | dict(new_decoder_architecture=True, num_kv_heads=2)),
    "falcon 11B": ("falcon", F | dict(new_decoder_architecture=True, num_kv_heads=2,
                                      num_ln_in_parallel_attn=1, ffn_hidden_size=28)),
    "falcon RW, ALiBi": ("falcon", F | dict(alibi=True, multi_query=False, parallel_attn=False,
                                            bias=True, tie_word_embeddings=False)),
    "falcon, all key heads": ("falcon", F | dict(multi_query=False, activation="relu")),
    "llama": ("llama", T), "llama, tied": ("llama", E | dict(tie_word_embeddings=True)),
    "llama, wide heads": ("llama", W),
    "llama, biases": ("llama", E | dict(attention_bias=True, mlp_bias=True, hidden_act="gelu")),
    "llama, linear": ("llama", E | rope("linear", factor=4.)),
    "llama, dynamic": ("llama", E | dict(max_position_embeddings=12) | rope("dynamic", factor=4.)),
    "llama 3.1": ("llama", E | rope("llama3", 5e5, low_freq_factor=1., high_freq_factor=4.,
                                    **TRAINED)),
    "llama, YaRN": ("llama", E | rope("yarn", **TRAINED)),
    "llama, YaRN, all keys": ("llama", W | rope("yarn", beta_fast=8., beta_slow=2., mscale=.7,
                                                mscale_all_dim=.4, truncate=False, **TRAINED)),
    "llama, YaRN, factor": ("llama", W | rope("yarn", attention_factor=1.3, **TRAINED)),
    "llama, LongRoPE": ("llama", E | LONG),
    "mistral": ("mistral", T | dict(sliding_window=5)),
    "mistral, no window": ("mistral", W | dict(sliding_window=None)),
    "qwen2": ("qwen2", T),
    "qwen2, windows": ("qwen2", E | dict(use_sliding_window=True, sliding_window=5,
                                         max_window_layers=1)),
    "qwen2, YaRN, tied": ("qwen2", E | rope("yarn", **TRAINED) | dict(tie_word_embeddings=True)),
    "seed_oss": ("seed_oss", W),
    "qwen3": ("qwen3", W),
    "qwen3, one key head": ("qwen3",
                            W | dict(num_key_value_heads=1, attention_bias=True,
                                     tie_word_embeddings=True)),
    "gemma": ("gemma", W),
    "gemma, one key head": ("gemma",
                            W | dict(num_key_value_heads=1, hidden_act="gelu",
                                     attention_bias=True)),
    "gemma2": ("gemma2", GEMMA | dict(attn_logit_softcapping=2., final_logit_softcapping=8.)),
    "gemma2, no caps": ("gemma2",
                        GEMMA | dict(attn_logit_softcapping=None, final_logit_softcapping=None,
                                     num_key_value_heads=1)),
    "gemma3_text": ("gemma3_text",
                    GEMMA | dict(layer_types=["sliding_attention", "full_attention",
                                              "sliding_attention"])),
    "gemma3_text, two bases": ("gemma3_text",
                               GEMMA | dict(sliding_window_pattern=2, rope_parameters={
        "sliding_attention": dict(rope_type="default", rope_theta=50.),
                                   "full_attention": dict(rope_type="linear", rope_theta=1e5,
                                           factor=3.)})),
    "phi3": ("phi3", T),
    "phi3, partial": ("phi3", E | rope(partial_rotary_factor=.7) | dict(sliding_window=6)),
    "phi3, LongRoPE": ("phi3",
                       E | dict(rope_parameters=dict(LONG["rope_parameters"],
                               original_max_position_embeddings=None),
                                original_max_position_embeddings=12)),
    "phi": ("phi", E | rope(partial_rotary_factor=.7)),
    "phi, one key head": ("phi", T | rope(partial_rotary_factor=1.)
                          | dict(tie_word_embeddings=False)),
    "olmo2": ("olmo2", T),
    "olmo2, biases": ("olmo2", E | dict(attention_bias=True, tie_word_embeddings=True)),
    "granite": ("granite", E | SCALES),
    "granite, biases": ("granite", T | SCALES | dict(attention_bias=True, mlp_bias=True,
            tie_word_embeddings=True)),
    "smollm3": ("smollm3", E | dict(no_rope_layer_interval=2)),
    "smollm3, windows": ("smollm3", T | dict(no_rope_layers=[1, 0, 0], use_sliding_window=True,
                                             sliding_window=5)),
    "cohere": ("cohere", E | dict(logit_scale=.7)),
    "cohere, norms": ("cohere", W | dict(logit_scale=.7, use_qk_norm=True)),
    "cohere, biases": ("cohere",
                       T | dict(attention_bias=True, logit_scale=1.5, tie_word_embeddings=False)),
}


def loud(kind, sizes, seed=0, experts="eager"):
    "A tiny random model: matrices of large spread, norms, biases and sinks far from 1 and 0."
    torch.manual_seed(seed)
    # their eager Falcon adds ALiBi twice
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **copy.deepcopy(sizes)),
                                              attn_implementation="sdpa" if kind == "falcon"
                                              else "eager", experts_implementation=experts).eval()
    offset = 0. if kind.startswith("gemma") else 1.
    for name, p in theirs.named_parameters():
        # decays of all sizes
        if name.endswith("A_log"): torch.nn.init.normal_(p, mean=-1., std=.7)
        elif p.ndim > 1: torch.nn.init.normal_(p, std=.35)
        elif name.endswith(("bias", "sinks")): torch.nn.init.normal_(p, std=.5)
        else: torch.nn.init.normal_(p, mean=offset, std=.5)
    for name, b in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"): torch.nn.init.normal_(b, std=.3)
    return theirs


IDS = torch.randint(61, (3, 33), generator=torch.Generator().manual_seed(0))
REAL = torch.arange(33) >= torch.tensor([0, 4, 21])[:, None]


def ours_of(theirs):
    return from_pretrained(theirs.state_dict(), json.loads(theirs.config.to_json_string()))


@torch.no_grad()
def apart(ours, theirs, ids=IDS, real=None) -> tuple[float, float]:
    "The largest difference between logits at real tokens, and the size of the logits."
    given = {}
    if real is not None:
        given["attention_mask"] = real.long()
        if "position_ids" in inspect.signature(theirs.forward).parameters:
            given["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    wanted, got = theirs(ids, **given, use_cache=False).logits, ours(ids, real)
    there = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    return float((got - wanted)[there].abs().max()), float(wanted[there].abs().max())


def lines_of_code(text: str) -> int:
    "Lines that hold code: no blank ones, no comments, no docstrings."
    tree, silent = (ast.parse(text), {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE,
                                      tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})
    holds = {n for token in tokenize.generate_tokens(io.StringIO(text).readline)
             if token.type not in silent for n in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)):
            holds -= {*range(node.lineno, node.end_lineno + 1)}
    return len(holds)


def their_lines(model: torch.nn.Module) -> dict[str, int]:
    """The size of the files that hold this family in `transformers`: generated from a shorter
    one, in some."""
    path = Path(sys.modules[type(model).__module__].__file__)
    shorter = path.with_name(path.name.replace("modeling_", "modular_"))
    return {kind: lines_of_code(file.read_text(encoding="utf-8"))
            for kind, file in (("model", path), ("modular", shorter)) if file.is_file()}


def measure(seed: int) -> Iterator[dict]:
    """For each family: the largest difference of a logit in each of its cases, over three seeds
    and four shapes."""
    for family in dict.fromkeys(kind for kind, _ in CASES.values()):
        gaps, sizes = [], []
        for kind, keys in CASES.values():
            if kind != family: continue
            for draw in range(seed, seed + 3):
                theirs = loud(kind, keys, draw)
                ours = ours_of(theirs)
                for length, real in ((33, None), (33, REAL), (11, None), (1, None)):
                    gap, size = apart(ours, theirs, IDS[:, :length], real)
                    gaps.append(gap)
                    sizes.append(size)
        yield {"family": family, "cases": len(gaps), "largest": spread([max(gaps)]),
               "difference": spread(gaps), "logit": spread(sizes), "transformers": VERSION,
               **{f"lines, {kind}": n for kind, n in their_lines(theirs).items()}}
