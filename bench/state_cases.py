"""Chapter 20: tiny configurations of the families without attention: what its tests compare with
`transformers`."""
import tfmlib.linear_and_state_space.families  # noqa: F401 — registers the families
from bench.checkpoint_families import ENDS

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
