"""The tensors of DeepSeek-V2 and V3 under this book's names, where all layers are dense: chapter
16 compares latent attention with `transformers`."""
from torch import Tensor, nn

ATTENTION = {"q_a_proj": "q_down.0", "q_a_layernorm": "q_down.1", "q_b_proj": "q_up",
             "q_proj": "q_up", "kv_a_proj_with_mqa": "kv_down",
             "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_up", "o_proj": "o_proj"}
LAYER = {f"self_attn.{theirs}": f"attention.inner.{ours}" for theirs, ours in ATTENTION.items()}
LAYER |= {f"mlp.{name}_proj": f"feed_forward.inner.{name}" for name in ("gate", "up", "down")}
LAYER |= {"input_layernorm": "attention.norm", "post_attention_layernorm": "feed_forward.norm"}
REST = {"model.embed_tokens": "embedding", "model.norm": "stack.norm", "lm_head": "lm_head"}


def latent_state(theirs: nn.Module) -> dict[str, Tensor]:
    "Their tensors under our names."
    names = {f"model.layers.{n}.{a}.weight": f"stack.blocks.{n}.{b}.weight"
             for n in range(theirs.config.num_hidden_layers) for a, b in LAYER.items()}
    names |= {f"{a}.weight": f"{b}.weight" for a, b in REST.items()}
    return {names[name]: t for name, t in theirs.state_dict().items()}
