"""The output that a layer gives by default, by PyTorch's fused attention, and the weights that
it gives when it is asked for them."""
import torch
from torch import Tensor

from tfmlib.heads import attention_weights

# a few steps of the number type
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    "Random numbers, which in a smaller type are the rounded ones."
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed),
                       dtype=torch.float64).to(dtype)


def tensors(shown) -> list[Tensor]:
    "All tensors of what a layer, a block, a stack or a model shows beside its output."
    if isinstance(shown, dict): shown = [*shown.values()]
    if isinstance(shown, list | tuple): return [t for each in shown for t in tensors(each)]
    return [] if shown is None else [shown]


def attended(layer, *args, **how):
    """The output of the default call, whose weights are not computed, and the weights of a call
    that is asked for them and gives the same output."""
    out, nothing = layer(*args, **how)
    assert not tensors(nothing), "weights that nobody has asked for"
    with attention_weights(): again, weights = layer(*args, **how)
    assert tensors(weights), "no weights where they are asked for"
    rounding = ROUNDING[out.dtype]
    torch.testing.assert_close(out, again, rtol=rounding, atol=rounding)
    return out, weights
