"The few layers that the exercises use: they hold weights, and PyTorch's names for them."
from .. import _make as make
from .._absent import absent, refuser
from .._modes import operation
from .._tensor import MetaTensor, Tensor, UnsetTensor
from .._types import float32
from . import functional

__getattr__ = refuser("torch.nn")


@operation("empty")
def unset(*size, dtype=None, device=None) -> Tensor:
    "A weight without numbers: PyTorch's random ones are not in the page."
    kind = MetaTensor if make.device_of(device).type == "meta" else UnsetTensor
    return kind(size, dtype or float32)


class Module:
    "A layer: its weights and its inner layers are attributes."
    def __call__(self, *args, **kwargs): return self.forward(*args, **kwargs)
    def forward(self, *args, **kwargs): raise absent(f"{type(self).__name__}.forward")

    def named_parameters(self, prefix: str = ""):
        for name, value in vars(self).items():
            if isinstance(value, Tensor): yield prefix + name, value
        for name, value in vars(self).items():
            if isinstance(value, Module): yield from value.named_parameters(f"{prefix}{name}.")

    def parameters(self): return (value for _, value in self.named_parameters())
    def state_dict(self): return dict(self.named_parameters())
    def eval(self): return self
    def train(self, mode=True): return self

    def load_state_dict(self, weights):
        "Other weights, by their names."
        if set(weights) != set(self.state_dict()):
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}")
        for name, value in weights.items(): self.replace(name, value)

    def replace(self, name: str, value: Tensor) -> Tensor:
        "Put a weight in the place of another one, which is returned."
        *path, last = name.split(".")
        inner = self
        for word in path: inner = vars(inner)[word]
        before = vars(inner)[last]
        if before.shape != value.shape:
            raise RuntimeError(f"size mismatch for {name}: copying a param with shape "
                               f"{value.shape}, the shape in current model is {before.shape}")
        setattr(inner, last, value)
        return before
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        raise absent(f"torch.nn.Module.{name}")


class Linear(Module):
    "A weight and a bias."
    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        given = {"dtype": dtype, "device": device}
        self.weight = unset(out_features, in_features, **given)
        self.bias = unset(out_features, **given) if bias else None

    def forward(self, x): return functional.linear(x, self.weight, self.bias)


class LayerNorm(Module):
    "Weight and bias of a normalization."
    def __init__(self, size, eps=1e-5, dtype=None):
        self.weight, self.bias = unset(size, dtype=dtype), unset(size, dtype=dtype)
        self.eps = eps

    def forward(self, x):
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class _SelfAttention(Module):
    "The weights of self-attention, queries, keys and values in one matrix."
    def __init__(self, size, dtype=None):
        self.in_proj_weight = unset(3 * size, size, dtype=dtype)
        self.in_proj_bias = unset(3 * size, dtype=dtype)
        self.out_proj = Linear(size, size, dtype=dtype)


class TransformerEncoderLayer(Module):
    "PyTorch's layer of an encoder, without dropout, batch first."
    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1,
                 batch_first=False, norm_first=False, device=None, dtype=None):
        if dropout or not batch_first:
            raise absent("torch.nn.TransformerEncoderLayer with dropout or batch second")
        self._heads, self._norm_first = nhead, norm_first
        self.self_attn = _SelfAttention(d_model, dtype)
        self.linear1 = Linear(d_model, dim_feedforward, dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, dtype=dtype)
        self.norm1, self.norm2 = LayerNorm(d_model, dtype=dtype), LayerNorm(d_model, dtype=dtype)

    def forward(self, x, mask=None):
        if self._norm_first:
            x = x + self._attend(self.norm1(x), mask)
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x, mask))
        return self.norm2(x + self._feed(x))

    def _attend(self, x, mask):
        own = self.self_attn
        return functional.multi_head_attention(
            x, own.in_proj_weight, own.in_proj_bias, own.out_proj.weight,
            own.out_proj.bias, self._heads, mask)

    def _feed(self, x): return self.linear2(functional.relu(self.linear1(x)))
