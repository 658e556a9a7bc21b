"""What the page's stand-in for PyTorch is compared with PyTorch on.

As a program it prints JSON, computed with the `torch` that is on its path: `cases` (values, types,
gradients, errors), or `verdicts STEM` (what the checkers of a practice page say to its stubs,
solutions and wrong answers).
"""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: F401 - the cases use it
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
DOUBLE, SINGLE, HALF, BRAIN = torch.float64, torch.float32, torch.float16, torch.bfloat16


def number(*shape: int, seed: int = 0, dtype=DOUBLE) -> Tensor:
    "Numbers between -2 and 2, none of them 0, and no two of them alike."
    n = math.prod(shape)
    at = [((7 * i + 3 * seed) % n + .35 + .01 * seed) / max(n, 1) for i in range(n)]
    return torch.tensor([4 * u - 2 for u in at], dtype=DOUBLE).reshape(shape).to(dtype)


# Each is an expression of a, b, c; their shapes follow. All are differentiated at a, b and c in 64
# bits, and computed in 32 and 16.
SMOOTH = [(line.partition(" :: ")[0].strip(), [tuple(map(int, s.split("x"))) if s else () for s in line.partition(" :: ")[2].split()]) for line in """
a + b :: 2x3 3
a - b :: 2x3 2x1
2 - a :: 2x3
a * b :: 2x3 3
a / b :: 2x3 3
1 / a :: 2x3
a ** 2 :: 2x3
a ** 3. :: 2x3
2 ** a :: 2x3
a.abs() ** b :: 2x3 3
a.abs().pow(-.5) :: 2x3
-a :: 3
+a :: 3
abs(a) :: 3
a.remainder(b) :: 4 4
torch.fmod(a, b) :: 4 4
torch.maximum(a, b) :: 2x3 3
torch.minimum(a, b) :: 2x3 3
torch.maximum(a, a.flip(0)) :: 5
torch.logaddexp(a, b) :: 2x3 3
torch.atan2(a, b) :: 2x3 3
torch.hypot(a, b) :: 2x3 3
torch.xlogy(a, b.abs()) :: 2x3 3
a.exp() :: 2x3
a.exp2() :: 2x3
a.expm1() :: 2x3
a.abs().log() :: 2x3
a.abs().log2() :: 2x3
a.abs().log10() :: 2x3
a.abs().log1p() :: 2x3
a.abs().sqrt() :: 2x3
a.abs().rsqrt() :: 2x3
a.reciprocal() :: 2x3
a.sin() + a.cos() :: 2x3
(a / 2).tan() :: 3
a.sinh() + a.cosh() :: 3
a.tanh() :: 2x3
(a / 3).atanh() :: 3
(a / 3).asin() + (a / 3).acos() + a.atan() :: 3
a.sigmoid() :: 3
F.silu(a) :: 3
a.erf() :: 3
F.softplus(a) + F.logsigmoid(a) :: 3
a.relu() :: 5
a.sign() + a.floor() + a.ceil() + a.trunc() + a.round() + a :: 3
a.square() :: 3
F.gelu(a) + F.gelu(a, approximate="tanh") :: 5
a.clamp(-1, 1) :: 5
a.clamp(min=b) :: 2x3 3
a.clamp(max=b) :: 2x3 3
a.clamp_min(0) + a.clamp_max(.5) :: 5
torch.where(a > b, a, b * 2) :: 2x3 3
torch.where(a > 0, a, 0.) :: 5
a.masked_fill(b > 0, -3.) :: 2x3 3
a.masked_fill(a > 0, c[0]) :: 2x3 2 2
a.nan_to_num(0., 1., -1.) :: 5
a.sum() :: 2x3
a.sum(0) :: 2x3
a.sum((0, 2), keepdim=True) :: 2x3x2
a.mean(-1) :: 2x3
a.mean() :: 2x3
a.prod() :: 5
a.prod(1) :: 2x3
(a * (a > 0)).prod() :: 3
a.var(-1) + a.var(-1, unbiased=False) :: 2x4
a.std(0, correction=0) + a.std() :: 3x4
a.norm() + a.norm(dim=1) + a.norm(1) :: 2x3
a.norm(3, -1, True) + torch.linalg.vector_norm(a, math.inf) :: 2x3
torch.linalg.norm(a) + torch.linalg.norm(a, dim=1).sum() :: 2x3
a.amax(1) - a.amin(0).sum() :: 3x4
a.max() - a.min() :: 3x4
a.max(1).values + a.min(-1, keepdim=True).values :: 3x4
a.softmax(-1) :: 2x3
torch.softmax(a, 0) :: 2x3
a.log_softmax(1) :: 2x3
a.logsumexp(1) + a.logsumexp((0, 1)) :: 2x3
a.cumsum(1) :: 2x3
a.cumprod(0) :: 4x2
a.cummax(1).values + a.cummin(1).values :: 2x4
a.logcumsumexp(1) :: 2x4
a.sort(1).values * b :: 2x4 4
a.sort(descending=True).values * b :: 2x4 4
a.topk(2).values * 3 :: 2x4
a.kthvalue(2).values + a.median(1).values :: 2x4
a.nansum(1) :: 2x3
a.trace() :: 3x4
a.view(3, 2) * b :: 2x3 3x2
a.reshape(-1) :: 2x3
a.T.reshape(6) * b :: 2x3 6
a.flatten(1) * b.ravel() :: 2x2x3 3x2
a.unflatten(1, (2, -1)) :: 2x6
a.expand(4, 2, 3) * b :: 2x1 4x2x3
a.expand_as(b) * b :: 3 2x3
a.permute(2, 0, 1) * 2 :: 2x3x4
a.transpose(0, 1) @ b :: 2x3 2x3
a.mT @ b.T :: 2x3 4x2
a.t() + b.movedim(0, 1) :: 2x3 2x3
a.unsqueeze(1) + b.squeeze(0) :: 2x3 1x4x3
a.squeeze() :: 1x2x1x3
a.diagonal() + a.diagonal(1).sum() :: 3x4
a.unfold(0, 3, 1) * b :: 6 3
a.narrow(1, 1, 2) :: 2x4
torch.cat([a, b], 1) :: 2x3 2x2
torch.stack([a, b], 1) :: 2x3 2x3
torch.stack([a, b]).unbind(1)[1] :: 2x3 2x3
a.split(2, 1)[1] + a.chunk(2, 1)[0] + a.tensor_split(2, 1)[1] :: 2x4
a.split([1, 3])[1] :: 4x2
a.select(1, 2) + a[:, 0] :: 2x4
a[1] :: 3x2
a[:, 1:3] * 2 :: 2x4
a[..., None, 0] :: 2x4
a[[0, 2, 0]] :: 3x2
a[:, torch.tensor([1, 1])] :: 3x2
a[a > 0] :: 3x4
a[torch.arange(3), torch.tensor([0, 1, 0])] :: 3x2
a[torch.tensor([[0], [2]]), torch.tensor([1, 0])] :: 3x2
a.flip(0, 1) * b :: 2x3 3
a.roll(1, 1) + a.roll((1, 1), (0, 1)) + a.roll(2) :: 2x3
a.repeat(2, 2) + b.repeat(2) :: 2x3 3
a.repeat_interleave(2, 0) :: 2x3
a.repeat_interleave(torch.tensor([1, 2]), 0) :: 2x3
a.index_select(1, torch.tensor([2, 0])) :: 2x3
a.masked_select(b > 0) :: 2x3 3
a.tril() + a.triu(1) * 2 :: 3x4
torch.diag(a) + torch.diag(b) + a.diag_embed() :: 3 3x3
a.gather(1, torch.tensor([[0, 0], [2, 1]])) :: 2x3
a.take_along_dim(torch.tensor([[1], [0]]), 1) :: 2x3
a.scatter(1, torch.tensor([[0], [2]]), b) :: 2x3 2x1
a.scatter(1, torch.tensor([[0], [2]]), 5.) :: 2x3
a.scatter_add(1, torch.tensor([[0, 0], [2, 2]]), b) :: 2x3 2x2
a.index_add(0, torch.tensor([0, 0, 1]), b) :: 2x3 3x3
a.index_add(0, torch.tensor([0, 0, 1]), b, alpha=2) :: 2x3 3x3
a.index_copy(0, torch.tensor([1]), b) :: 2x3 1x3
a.index_fill(1, torch.tensor([1]), 7.) :: 2x3
a.index_put((torch.tensor([0, 2]), torch.tensor(1)), b) :: 3x2 2
a.index_put((torch.tensor([[True, False], [True, True]]),), b) :: 2x2 3
torch.index_put(a, [torch.tensor([1, 0])], b[0], accumulate=True) :: 3x2 1
a.index_put((torch.tensor([0, 0, 1]),), b, accumulate=True) :: 2x3 3x3
F.pad(a, (1, 2)) + F.pad(a, (1, 2), value=3.) :: 2x3
F.pad(a, (-1, 1, 0, 2)) :: 2x3
a @ b :: 2x3 3x2
a @ b :: 3 3
a @ b :: 2x3 3
a @ b :: 3 3x2
a @ b :: 2x2x3 3x2
a @ b :: 2x1x2x3 4x3x2
a @ b :: 4x2x3 3
a.mm(b) + torch.mv(a, c).unsqueeze(1) :: 2x3 3x2 3
torch.bmm(a, b) :: 2x2x3 2x3x1
torch.dot(a, b) + torch.outer(a, b).sum() :: 3 3
torch.addmm(a, b, c) :: 2 2x3 3x2
torch.einsum("ij,jk->ik", a, b) :: 2x3 3x2
torch.einsum("bhtd,bhsd->bhts", a, b) :: 2x1x2x3 2x1x4x3
torch.einsum("i,j", a, b) :: 2 3
torch.einsum("...i,ij->...j", a, b) :: 2x2x3 3x2
torch.einsum("ij->j", a) :: 2x3
torch.einsum("ij,j,kj->ik", a, b, c) :: 2x3 3 2x3
torch.linalg.solve(a @ a.T + torch.eye(3).to(a), b) :: 3x3 3x2
torch.linalg.solve(a @ a.T + torch.eye(3).to(a), b) :: 3x3 3
torch.linalg.inv(a @ a.T + torch.eye(3).to(a)) :: 3x3
torch.linalg.solve_triangular(a + 3 * torch.eye(3).to(a), b, upper=False) :: 3x3 3x2
torch.linalg.solve_triangular(a + 3 * torch.eye(3).to(a), b, upper=True) :: 2x3x3 3x2
torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True) :: 3x3 2x3x2
F.linear(a, b, c) :: 2x3 4x3 4
F.layer_norm(a, (3,), b, c) :: 2x3 3 3
F.layer_norm(a, (2, 3)) :: 2x2x3
F.rms_norm(a, (3,), b, 1e-5) :: 2x3 3
F.normalize(a, dim=-1) + F.cosine_similarity(a, b, dim=-1).unsqueeze(1) :: 2x3 2x3
F.cross_entropy(a, torch.tensor([2, 0])) :: 2x3
F.cross_entropy(a, torch.tensor([2, -100]), label_smoothing=.1, reduction="sum") :: 2x3
F.cross_entropy(a, torch.tensor([[2, 0], [1, 1]]), reduction="none") :: 2x3x2
F.cross_entropy(a, b.softmax(1)) :: 2x3 2x3
F.nll_loss(a.log_softmax(1), torch.tensor([1, 2])) :: 2x3
F.binary_cross_entropy_with_logits(a, b.sigmoid()) :: 2x3 2x3
F.mse_loss(a, b) + F.l1_loss(a, b) :: 2x3 2x3
F.embedding(torch.tensor([[1, 0], [1, 1]]), a) :: 2x3
F.scaled_dot_product_attention(a, b, c) :: 2x3 4x3 4x2
F.scaled_dot_product_attention(a, b, c, is_causal=True) :: 1x3x2 1x3x2 1x3x2
F.scaled_dot_product_attention(a, b, c, torch.tensor([[True, False], [True, True]])) :: 2x3 2x3 2x2
torch.lstm_cell(a, (b, b * 2), c, c[:, :2])[1] :: 2x3 2x2 8x3
a.clone() + a.contiguous() + a.detach() :: 2x3
a.double() * b + a.float().to(b) :: 2x3 3
a.to(torch.bfloat16).double() :: 2x3
torch.special.xlogy(a, b.abs()) + torch.special.expit(a) :: 3 3
""".strip().splitlines() for line in [line]]  # noqa: E501

# Each writes in place into what autograd follows, and ends in the result.
WRITTEN = """
x = a * 1; x += b; x *= b; r = x
x = a * 1; x[0] = b; r = x * x
x = torch.zeros(2, 3, dtype=a.dtype); x[0] = b; x[1] = x[0] * 2; r = x
x = torch.zeros(2, 3, dtype=a.dtype); row = x[1]; row += b; r = x * a
x = a * 1; y = x.view(3, 2); y[1] = 5.; r = x * a
x = a * 1; y = x.T; x[0, 1] = 2.; r = y * 3
x = a * 1; x.T[1:].mul_(2); r = x
x = a * 1; x[:, [0, 2]] = b[:2]; r = x
x = a * 1; x[x > 0] = 1.; r = x * a
x = a * 1; x.masked_fill_(a > 0, 0.); x.clamp_(min=-1); r = x
x = a * 1; x.copy_(b); r = x + a
x = a * 1; x.zero_(); x.fill_(2.); r = x + a
x = a.exp(); y = x.detach(); r = x * y
x = a * 1; x.index_add_(0, torch.tensor([0]), b[None]); r = x
x = a * 1; x.index_put_((torch.tensor(1), torch.tensor([2, 0])), b[:2]); r = x * a
x = a * 1; x.scatter_(1, torch.tensor([[0], [1]]), 3.); r = x
x = a * 1; x.diagonal().add_(1.); r = x * x
x = a * 1; x.unsqueeze(0)[0, 1, 2] = b[0]; x -= 1; x /= 2; r = x
x = a * 1; x.add_(1); x.neg_(); x.exp_(); r = x
x = a * 1; x[0], x[1] = x[1].clone(), x[0].clone(); r = x * a
""".strip().splitlines()

# Types, shapes, memory and numbers that no gradient belongs to; the last ones are errors: their
# kind must be the same.
PLAIN = """
torch.tensor([1, 2]) + 1.5
torch.tensor([1, 2]) / 2
torch.tensor([7, -7]) // 2
torch.tensor([7, -7]) % 3
torch.tensor([1, 2], dtype=torch.int8) + torch.tensor(300)
torch.tensor([1.]) + torch.tensor(1., dtype=torch.float64)
torch.tensor(1.) + torch.tensor([1.], dtype=torch.float64)
torch.tensor([1.], dtype=torch.bfloat16) + torch.tensor([1.], dtype=torch.float16)
torch.tensor([1.], dtype=torch.float16) * 3.00001
torch.tensor([True, False]) + torch.tensor([1], dtype=torch.uint8)
torch.tensor([1], dtype=torch.uint8) - torch.tensor([2], dtype=torch.uint8)
torch.tensor([3, 4]) ** 2
torch.tensor([1], dtype=torch.uint8) + 300
torch.tensor([100], dtype=torch.int8) * 3
torch.tensor([True, False]).sum()
torch.tensor([1, 2], dtype=torch.int32).sum()
torch.tensor([1, 2], dtype=torch.int32).cumsum(0)
torch.tensor([1, 2, 3]).prod()
torch.ones(3, dtype=torch.float16).mean()
(torch.ones(5000, dtype=torch.bfloat16) / 3).sum()
(torch.ones(5000, dtype=torch.float16) / 3).cumsum(0)[-1]
torch.arange(5)
torch.arange(1, 2, .25)
torch.arange(5, 0, -2)
torch.linspace(0, 1, 5)
torch.eye(2, 3)
torch.full((2,), 7)
torch.full((2,), True)
torch.tensor([])
torch.tensor([[1, 2.5], [True, 3]])
torch.tensor(5).softmax(0, dtype=torch.float32)
torch.tensor(-math.inf).softmax(0)
torch.zeros(2, 0).sum(1)
torch.zeros(0, 3).mean(0)
torch.tensor([1., math.nan, -math.inf]).nan_to_num()
torch.tensor([2., 1., 2.]).argmax()
torch.tensor([2., 1., 1.]).argmin()
torch.tensor([torch.equal(torch.ones(2), torch.ones(2)), torch.ones(2).equal(torch.ones(1)), torch.allclose(torch.ones(2), torch.ones(2) + 1e-7)])
torch.tensor([[2., 1.], [2., 3.]]).argmax(0)
torch.tensor([3., 1., 3., 2.]).argsort(stable=True)
torch.tensor([3, 1, 2]).argsort(descending=True)
torch.tensor([3., math.nan, 1.]).sort().values
torch.tensor([3., math.nan, 1.]).max()
torch.tensor([[1., 5.], [3., 4.]]).topk(1, 0).indices
torch.tensor([[True, False], [True, True]]).all(1)
torch.tensor([[True, False], [False, False]]).any(1)
torch.tensor([0, 2, 2]).bincount(minlength=5)
torch.tensor([0, 2, 2]).bincount(torch.tensor([.5, 1., 2.]))
torch.tensor([3, 1, 3]).unique()
torch.tensor([3, 1, 3]).unique(return_inverse=True, return_counts=True)[1]
torch.searchsorted(torch.tensor([1, 3, 5]), torch.tensor([0, 3, 6]))
torch.searchsorted(torch.tensor([1, 3, 5]), torch.tensor([0, 3, 6]), right=True)
torch.tensor([1., 2., 4.]).quantile(.25)
torch.tensor([[0, 1], [2, 0]]).nonzero()
torch.tensor([[0, 1], [2, 0]]).count_nonzero()
torch.where(torch.tensor([0, 1, 1]).bool())[0]
torch.isin(torch.tensor([1, 2, 3]), torch.tensor([3, 1]))
torch.isclose(torch.tensor([1., 2.]), torch.tensor([1., 2.1]))
torch.tensor([1., math.inf, math.nan]).isfinite() ^ torch.tensor([1., math.inf, math.nan]).isinf()
torch.tensor([1., math.nan]).isnan().logical_not() & torch.tensor([True, True])
torch.tensor([1, 0]).logical_or(torch.tensor([0, 0])).logical_xor(torch.tensor([True, True])).logical_and(torch.tensor([1, 1]))
~torch.tensor([5, -1])
torch.tensor([1, 2]) << 3 >> 1 | 1
torch.tensor([1.5, 2.5, -.5]).round()
torch.tensor([1.2345]).round(decimals=2)
torch.tensor([1., -2.]).long().bool()
torch.tensor([3.7, -3.7]).int()
torch.tensor([16256], dtype=torch.int16).view(torch.bfloat16)
torch.tensor([1.], dtype=torch.bfloat16).view(torch.int16)
torch.tensor([1.], dtype=torch.float32).view(torch.int32)
torch.tensor([.1, 1 / 3, 65504.]).bfloat16()
torch.tensor([.1, 1 / 3, 70000.]).half()
F.one_hot(torch.tensor([0, 2]), 4)
torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")[1]
torch.linalg.eigvals(torch.tensor([[2., 1.], [0., 3.]])).abs().sort().values
torch.linalg.eigvalsh(torch.tensor([[2., 1.], [1., 3.]]))
torch.linalg.svdvals(torch.tensor([[2., 1.], [0., 3.]]))
torch.linalg.matrix_norm(torch.tensor([[2., 1.], [0., 3.]]), 2)
torch.linalg.matrix_rank(torch.tensor([[2., 1.], [4., 2.]]))
torch.linalg.matrix_power(torch.tensor([[2., 1.], [0., 3.]]), 3)
torch.linalg.det(torch.tensor([[2., 1.], [0., 3.]]))
torch.linalg.cholesky(torch.tensor([[2., 1.], [1., 3.]]))
torch.linalg.qr(torch.tensor([[2., 1.], [1., 3.]])).R.abs()
torch.linalg.eigh(torch.tensor([[2., 1.], [1., 3.]])).eigenvalues
torch.linalg.svd(torch.tensor([[2., 1.], [1., 3.]])).S
torch.linalg.lstsq(torch.tensor([[2., 1.], [1., 3.], [0., 1.]]), torch.tensor([[1.], [2.], [3.]])).solution
torch.linalg.pinv(torch.tensor([[2., 1.], [1., 3.], [0., 1.]]))
torch.tensor(torch.finfo(torch.float16).max) + torch.finfo(torch.bfloat16).eps
torch.tensor([torch.finfo(torch.bfloat16).max, torch.finfo(torch.float32).tiny, torch.finfo(torch.bfloat16).tiny], dtype=torch.float64)
torch.tensor([torch.iinfo(torch.int16).max, torch.iinfo(torch.uint8).min])
torch.tensor(torch.zeros(2, 3).T.stride() + torch.zeros(2, 3)[:, 1:].stride())
torch.tensor([torch.zeros(2, 3).T.is_contiguous(), torch.zeros(4)[::2].is_contiguous(), torch.zeros(2, 3)[1].is_contiguous()])
torch.tensor([torch.zeros(4, 3)[1:].untyped_storage().nbytes(), torch.zeros(2).bfloat16().untyped_storage().nbytes(), torch.zeros(3)[2:].storage_offset()])
torch.tensor(list(torch.empty(3, 4, device="meta").shape) + [torch.empty(10**6, 10**6, device="meta").numel()])
torch.zeros(2, 3).new_zeros(2) + torch.ones_like(torch.zeros(2)) + torch.zeros(1).new_tensor([1., 2.]) + torch.zeros(1).new_full((2,), 3.)
torch.empty_like(torch.zeros(2)).fill_(1) + torch.zeros(2).new_ones(2) + torch.zeros_like(torch.ones(2)) + torch.full_like(torch.zeros(2), 4) + torch.zeros(1).new_empty(2).zero_()
torch.as_tensor([1, 2]) + torch.from_numpy(torch.tensor([1, 2]).numpy())
torch.floor_divide(torch.tensor([5.5]), 2) + torch.tensor([-1.]).positive()
torch.tensor([1, 2]).ne(2) | torch.tensor([1, 2]).eq(2) | (torch.tensor([1, 2]) <= 1) | (torch.tensor([1, 2]) >= 1) | (torch.tensor([1, 2]) < 1)
torch.rand_like(torch.zeros(3), generator=None).shape.numel() + torch.randn_like(torch.zeros(3)).sum() * 0
torch.arange(-800., 800.).view(40, 40) @ torch.arange(1600.).view(40, 40)
torch.arange(-800., 800.).view(2, 20, 40) @ torch.arange(1600.).view(1, 40, 40).mT
torch.zeros(2, 3) + torch.zeros(2)
torch.zeros(2, 3) @ torch.zeros(2, 3)
torch.zeros(2, dtype=torch.float64) @ torch.zeros(2)
torch.zeros(2, 3).view(4)
torch.zeros(2, 3).T.view(6)
torch.zeros(2, 0).view(-1, 0)
torch.zeros(2, 3)[2]
torch.zeros(2, 3)[0, 0, 0]
torch.zeros(2)[torch.tensor([.5])]
torch.zeros(3)[::-1]
torch.zeros(3).index_put((torch.tensor([3]),), torch.tensor(1.))
torch.zeros(3).index_put((torch.tensor([0]),), torch.tensor(1.).double())
torch.zeros(3).index_put((torch.tensor([0, 1]),), torch.zeros(3))
torch.zeros(3).index_put((torch.tensor([.5]),), torch.tensor(1.))
torch.zeros(3).index_put((torch.tensor([0]),), 1.)
torch.zeros(3).index_put(([0],), torch.tensor(1.))
torch.zeros(3).index_put(torch.tensor([0]), torch.tensor(1.))
torch.cat([torch.zeros(2, 3), torch.zeros(2, 2)])
torch.stack([torch.zeros(2), torch.zeros(3)])
torch.zeros(2, 3).sum(2)
torch.tensor([1, 2]).mean()
torch.tensor([1, 2]).softmax(0)
torch.tensor([1]) / 0 // torch.tensor([0])
torch.tensor([1]) // torch.tensor([0])
torch.tensor([2]) ** -1
torch.tensor([[1, 2], [3]])
torch.tensor(300, dtype=torch.uint8)
torch.zeros(0).max()
bool(torch.zeros(2))
torch.zeros(2).item()
len(torch.tensor(1.))
torch.zeros(2, 3).expand(3, 3)
torch.zeros(2).masked_fill(torch.ones(2), 0)
torch.zeros(2, dtype=torch.float16).masked_fill(torch.ones(2).bool(), -1e9)
torch.zeros(2).gather(0, torch.tensor([2]))
torch.zeros(2, 3).permute(0, 0)
torch.zeros(2).requires_grad_().numpy()
torch.zeros(2).long().requires_grad_()
torch.zeros(2).requires_grad_().add_(1)
torch.zeros(2).requires_grad_()[0].add_(1)
torch.zeros(1).expand(3).add_(1)
torch.zeros(2).add_(torch.zeros(3, 2))
torch.zeros(2).long().add_(.5)
(torch.zeros(2).requires_grad_() * 2).backward()
torch.autograd.grad(torch.zeros(1).sum(), torch.zeros(1).requires_grad_())
torch.autograd.grad(torch.zeros(1).requires_grad_().sum(), torch.zeros(1).requires_grad_())
F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
F.layer_norm(torch.zeros(2, 3), (2,))
torch.linalg.solve(torch.zeros(2, 2), torch.zeros(2))
torch.linalg.inv(torch.zeros(2, 2))
torch.linalg.solve_triangular(torch.zeros(2, 3), torch.zeros(2, 1), upper=True)
torch.linalg.solve_triangular(torch.zeros(2, 2), torch.ones(2, 1), upper=True)
torch.linalg.cholesky(-torch.eye(2))
torch.multinomial(torch.tensor([-1., 2.]), 1)
""".strip().splitlines()  # noqa: E501

BROKEN = {"written to after it was used": "x = a * 1; y = x * x; x += 1; y.sum().backward()",
          "the result written to": "y = a.exp(); y += 1; y.sum().backward()",
          "twice": "y = (a * a).sum(); y.backward(); y.backward()",
          "kept for twice": "y = (a * a).sum(); y.backward(retain_graph=True); y.backward()",
          "the result of one in place, written to": "x = a * 1; x.relu_(); x.exp_(); "
                                                    "x.sum().backward()",
          "a sum may be written to": "x = a * 1; y = x + x; x += 1; y.sum().backward()",
          "a part of an unbound one": "x = a * 1; x.unbind()[0].add_(1)",
          "a view made without a graph": "x = a * 1\nwith torch.no_grad(): y = x[0]\ny += 1",
          "copied while it is followed": "import copy; copy.deepcopy(a * 1)"}


def listed(x) -> list:
    "A result as JSON keeps it."
    if not isinstance(x, Tensor): return ["not a tensor", str(x)]
    x = x.detach()
    return [str(x.dtype), list(x.shape), x.double().flatten().tolist() if not x.is_complex()
            else "complex"]


def attempted(make) -> list:
    "A result, or the kind of its error."
    try: return listed(make())
    except Exception as error:
        return ["error",
                *sorted({c.__name__ for c in type(error).__mro__} & {"RuntimeError", "IndexError",
                        "TypeError", "ValueError"})]


def sloped(code: str, shapes: list, dtype) -> list:
    "The value of an expression, and its gradients."
    leaves = [number(*s, seed=n + 1, dtype=dtype).requires_grad_() for n, s in enumerate(shapes)]
    y = eval(code, globals() | dict(zip("abc", leaves)))
    weights = number(*y.shape, seed=5).to(y.dtype)
    grads = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
    return [listed(y), *(None if g is None else listed(g) for g in grads)]


def written(code: str) -> list:
    a, b = number(2, 3, seed=1).requires_grad_(), number(3, seed=2).requires_grad_()
    names = {"torch": torch, "a": a, "b": b}
    exec(code, names)
    grads = torch.autograd.grad((names["r"] * number(*names["r"].shape, seed=5)).sum(), (a, b),
                                allow_unused=True)
    return [listed(names["r"]), *(None if g is None or not g.any() else listed(g) for g in grads)]


def drawn() -> dict:
    "Random numbers of some seeds."
    found = {}
    for seed in (0, 7, 123_456_789_012):
        for n in (1, 3, 15, 16, 17, 40):
            for d in (SINGLE, DOUBLE):
                for draw in (torch.rand, torch.randn):
                    found[f"{draw.__name__} {seed} {n} {d}"] = listed(draw(n,
                            generator=seeded(seed), dtype=d))
            found[f"randint {seed} {n}"] = listed(torch.randint(3, 1000, (n,),
                    generator=seeded(seed)))
            found[f"randperm {seed} {n}"] = listed(torch.randperm(n, generator=seeded(seed)))
        one = seeded(seed)
        for n, draw in enumerate((lambda g: torch.randn(3, generator=g),
                                  lambda g: torch.rand(2, generator=g),
                                  lambda g: torch.randn(1, generator=g),
                                  lambda g: torch.randint(2**40, (2,), generator=g),
                                  lambda g: torch.multinomial(torch.tensor([.1, .2, .3, .4]), 2,
                                          generator=g),
                                  lambda g: torch.rand(2, 2,
                                          generator=g).half())): found[
                                              f"in turn {seed} {n}"] = listed(draw(one))
    torch.manual_seed(5)
    found["default"] = listed(torch.rand(3))
    with torch.random.fork_rng(devices=[]): torch.rand(9)
    return found | {"after a fork": listed(torch.rand(3))}


def seeded(seed: int) -> torch.Generator: return torch.Generator().manual_seed(seed)


def cases() -> dict:
    "Everything, by its name."
    found = {}
    for code, shapes in SMOOTH:
        try: found[f"{code} at {shapes}"] = sloped(code, shapes, DOUBLE)
        except Exception as error: found[f"{code} at {shapes}"] = ["error", repr(error)]
        for d in (SINGLE, BRAIN):
            leaves = {name: number(*s, seed=n + 1, dtype=d)
                      for n, (name, s) in enumerate(zip("abc", shapes))}
            if "linalg" not in code or d is SINGLE:
                found[f"{code} at {shapes} in {d}"] = attempted(
                    lambda code=code, leaves=leaves: eval(code, globals() | leaves))
    for code in WRITTEN:
        try: found[code] = written(code)
        except Exception as error: found[code] = ["error", repr(error)]
    found |= {code: attempted(lambda code=code: eval(code, globals() | {})) for code in PLAIN}
    for name, code in BROKEN.items():
        found[name] = attempted(lambda code=code: exec(code,
                {"torch": torch, "a": number(2, 3).requires_grad_()}))
    return found | drawn()


def verdicts(stem: str) -> dict:
    "What the checkers say on a page, and what each answer asked of the stand-in that it lacks."
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    import kills
    import nbformat
    from torch import _absent

    from tfmlib.workbench import Checker
    lacking, examine = {}, Checker.examine

    def listening(self, attempt):
        _absent.seen.clear()
        result = examine(self, attempt)
        if _absent.seen: lacking[result.attempt] = sorted(set(_absent.seen))
        return result
    Checker.examine = listening
    path = ROOT / f"chapters/practice/{stem}.ipynb"
    nb = nbformat.read(path, as_version=4)
    results, errors, _ = kills.run(nb)
    return {"page": kills.gathered(path, nb, results, errors), "lacking": lacking}


if __name__ == "__main__":
    json.dump(cases() if sys.argv[1] == "cases" else verdicts(sys.argv[2]), sys.stdout)
