"""Chapter 21: tiny configurations of the families with experts, and the tensors of their models as
published files hold them: what its page and tests compare with `transformers`."""
import json
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

import tfmlib.mixture_of_experts.families  # noqa: F401 — registers the families
from bench.checkpoint_families import ENDS, rope
from tfmlib.checkpoints import from_pretrained

T = dict(vocab_size=61, hidden_size=24, intermediate_size=28, num_hidden_layers=3,
         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=48, **ENDS)
MIXTRAL = T | dict(num_local_experts=5, num_experts_per_tok=2)
QWEN = T | dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=10)
QWEN2 = QWEN | dict(shared_expert_intermediate_size=14)
DEEP = T | dict(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_rope_head_dim=4,
                qk_nope_head_dim=6, v_head_dim=7, moe_intermediate_size=10,
                n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
                first_k_dense_replace=1)
V3 = DEEP | dict(n_group=4, topk_group=2, routed_scaling_factor=2.5)
# smaller, rounding alone gives differences of 1e-3
NEXT = (QWEN2 | dict(head_dim=16, full_attention_interval=3, linear_num_key_heads=2,
                     linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=10,
                     rms_norm_eps=.01))
OSS = T | dict(head_dim=10, num_local_experts=5, num_experts_per_tok=2, sliding_window=6)
OSS_ROPE = rope("yarn", 150_000., factor=4., original_max_position_embeddings=12, beta_fast=32.,
                beta_slow=1., truncate=False)
YARN = rope("yarn", factor=4., original_max_position_embeddings=12, mscale=.7, mscale_all_dim=.9)
EXPERT_CASES = {
    "mixtral": ("mixtral", MIXTRAL), "mixtral, window, one expert": ("mixtral",
            MIXTRAL | dict(sliding_window=5, num_experts_per_tok=1, tie_word_embeddings=True)),
    "qwen2_moe": ("qwen2_moe", QWEN2), "qwen2_moe, some layers dense": ("qwen2_moe",
            QWEN2 | dict(norm_topk_prob=True, decoder_sparse_step=2, qkv_bias=False)),
    "qwen3_moe": ("qwen3_moe", QWEN | dict(head_dim=10, norm_topk_prob=True)),
    "qwen3_moe, one layer dense": ("qwen3_moe",
                                   QWEN | dict(mlp_only_layers=[1], attention_bias=True)),
    "deepseek_v2": ("deepseek_v2", DEEP),
    "deepseek_v2, groups": ("deepseek_v2", DEEP | YARN | dict(topk_method="group_limited_greedy",
            n_group=4, topk_group=2, routed_scaling_factor=3., q_lora_rank=None)),
    "deepseek_v3": ("deepseek_v3", V3),
    "deepseek_v3, YaRN": ("deepseek_v3", V3 | YARN | dict(n_group=2, topk_group=1,
            num_experts_per_tok=4, rope_interleave=False, first_k_dense_replace=0)),
    "gpt_oss": ("gpt_oss", OSS | OSS_ROPE),
    "gpt_oss, plain rotation": ("gpt_oss", OSS | rope(theta=500.)
                                | dict(layer_types=["full_attention", "sliding_attention",
                                                    "sliding_attention"], attention_bias=False)),
    "qwen3_next": ("qwen3_next", NEXT), "qwen3_next, other layers": ("qwen3_next",
            NEXT | rope(theta=500., partial_rotary_factor=.4)
            | dict(layer_types=["full_attention", "linear_attention", "full_attention"],
                   attention_bias=True,
        num_key_value_heads=1, mlp_only_layers=[1], norm_topk_prob=False, linear_num_key_heads=4,
                   linear_conv_kernel_dim=3, rms_norm_eps=1e-4, tie_word_embeddings=True)),
}


def published_state(theirs: nn.Module) -> dict[str, Tensor]:
    "The tensors as `transformers` writes them into a file: one for each matrix of each expert."
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def expert_model_of(theirs: nn.Module) -> nn.Module:
    "The same model in this book's parts."
    return from_pretrained(published_state(theirs), json.loads(theirs.config.to_json_string()))
