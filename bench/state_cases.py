"""Chapter 20: tiny random models of the families without attention: what its tests compare with
`transformers`."""
import copy
import json
import logging

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import tfmlib.linear_and_state_space.families  # noqa: F401 — registers the families
from bench.checkpoint_families import ENDS
from tfmlib.checkpoints import from_pretrained

logging.getLogger("transformers").setLevel(logging.ERROR)
T = dict(vocab_size=61, hidden_size=24, num_hidden_layers=3, state_size=5, **ENDS)
MAMBA, MAMBA2 = (T | dict(time_step_rank=3),
                 T | dict(num_heads=6, head_dim=8, n_groups=2, chunk_size=8))
STATE_CASES = {
    "mamba": ("mamba", MAMBA),
    "mamba, untied, wide": ("mamba", T | dict(expand=3, conv_kernel=2, tie_word_embeddings=False,
                                              layer_norm_epsilon=.01)),
    "mamba, no bias": ("mamba", MAMBA | dict(use_conv_bias=False, residual_in_fp32=False)),
    "mamba2": ("mamba2", MAMBA2),
    "mamba2, tied, one group": ("mamba2", MAMBA2 | dict(n_groups=1, tie_word_embeddings=True,
            layer_norm_epsilon=.01, conv_kernel=3)),
    "mamba2, no bias": ("mamba2", MAMBA2 | dict(use_conv_bias=False, num_heads=9, n_groups=3,
                                                expand=3, residual_in_fp32=False)),
}


def loud_states(kind: str, sizes: dict, seed: int = 0) -> nn.Module:
    """A tiny random model: matrices of large spread, norms, biases and skips far from 1 and 0,
    decays of all sizes."""
    torch.manual_seed(seed)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind,
            **copy.deepcopy(sizes))).eval()
    for name, p in theirs.named_parameters():
        if name.endswith("A_log"): torch.nn.init.normal_(p, mean=-1., std=.7)
        elif p.ndim > 1: torch.nn.init.normal_(p, std=.35)
        elif name.endswith("bias"): torch.nn.init.normal_(p, std=.5)
        else: torch.nn.init.normal_(p, mean=1., std=.5)
    return theirs


def state_model_of(theirs: nn.Module) -> nn.Module:
    "The same model in this book's parts."
    return from_pretrained(theirs.state_dict(), json.loads(theirs.config.to_json_string()))
