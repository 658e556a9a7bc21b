"""PyTorch's random numbers: the Mersenne Twister, and what is made of its words.

A number in 32 bits takes 24 bits of one word; one in 64 bits takes 53 bits of two. Normal
numbers come by Box and Muller, sixteen at a time if there are sixteen.
"""
import math
from contextlib import contextmanager

import numpy as np

from ._absent import absent
from ._modes import operation
from ._tensor import Tensor, made, sizes
from ._types import REAL, float32, float64, int64

WORD = np.uint64(32)


class Generator:
    "A source of random words."
    def __init__(self, device="cpu"): self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> "Generator":
        self._seed, self._next = int(seed), None
        self._words = np.random.RandomState(self._seed % 2**32)._bit_generator
        return self

    def initial_seed(self) -> int: return self._seed
    def get_state(self): return self._words.state, self._seed, self._next

    def set_state(self, state) -> "Generator":
        self._words.state, self._seed, self._next = state
        return self

    def words(self, n: int) -> np.ndarray:
        return np.asarray(self._words.random_raw(n), dtype=np.uint64).reshape(n)

    def long_words(self, n: int) -> np.ndarray:
        pairs = self.words(2 * n).reshape(n, 2)
        return (pairs[:, 0] << WORD) | pairs[:, 1]

    def uniform(self, n: int, d) -> np.ndarray:
        "Numbers between 0 and 1, below 1."
        if d is float64: return (self.long_words(n) & np.uint64(2**53 - 1)) * 2.0**-53
        bits = {"float16": 11, "bfloat16": 8}.get(d.name, 24)
        kept = self.words(n) & np.uint64(2**bits - 1)
        return kept.astype(np.float32) * np.float32(2.0**-bits)

    def normal(self, n: int, d) -> np.ndarray:
        "Numbers of the normal distribution."
        if n < 16: return np.array([self.one_normal() for _ in range(n)])
        found = self.uniform(n, d)
        whole = n - n % 16
        found[:whole] = box_muller(found[:whole])
        if n % 16: found[n - 16:] = box_muller(self.uniform(16, d))
        return found

    def one_normal(self) -> float:
        if self._next is not None:
            found, self._next = self._next, None
            return found
        u, v = self.uniform(2, float64)
        radius, angle = math.sqrt(-2 * math.log1p(-v)), 2 * math.pi * u
        self._next = radius * math.sin(angle)
        return radius * math.cos(angle)


def box_muller(uniform: np.ndarray) -> np.ndarray:
    "Sixteen normal numbers from sixteen uniform ones, and so on."
    rows = uniform.reshape(-1, 2, 8)
    radius = np.sqrt(-2 * np.log(1 - rows[:, 0]))
    angle = rows[:, 1] * uniform.dtype.type(2 * math.pi)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)


default_generator = Generator()


def manual_seed(seed): return default_generator.manual_seed(seed)
def initial_seed(): return default_generator.initial_seed()
def seed(): raise absent("torch.seed()")


@contextmanager
def fork_rng(devices=None, enabled=True):
    "What is drawn inside changes nothing outside."
    before = default_generator.get_state()
    try: yield
    finally:
        if enabled: default_generator.set_state(before)


def drawn(how, size, generator, d, requires_grad=False) -> Tensor:
    "A tensor of random numbers."
    shape = sizes(size)
    if d.kind != REAL: raise RuntimeError(f"not implemented for {d}")
    found = getattr(generator or default_generator, how)(math.prod(shape), d)
    out = made(found.reshape(shape), d)
    return out.requires_grad_() if requires_grad else out


@operation()
def rand(*size, generator=None, dtype=None, device=None, requires_grad=False):
    return drawn("uniform", size, generator, dtype or float32, requires_grad)


@operation()
def randn(*size, generator=None, dtype=None, device=None, requires_grad=False):
    return drawn("normal", size, generator, dtype or float32, requires_grad)


@operation()
def rand_like(input, dtype=None, device=None, generator=None):
    return drawn("uniform", (input.shape,), generator, dtype or input.dtype)


@operation()
def randn_like(input, dtype=None, device=None, generator=None):
    return drawn("normal", (input.shape,), generator, dtype or input.dtype)


@operation()
def randint(low, high=None, size=None, generator=None, dtype=None, device=None):
    "Integers from low up to, but not including, high."
    if size is None: low, high, size = 0, low, high
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got "
                           f"from={low} >= to={high}")
    g, shape, room = generator or default_generator, sizes((size,)), high - low
    n = math.prod(shape)
    words = g.long_words(n) if room >= 2**32 else g.words(n)
    found = (words % np.uint64(room)).astype(np.int64) + low
    return made(found.reshape(shape), dtype or int64)


@operation()
def randperm(n, generator=None, dtype=None, device=None):
    "The integers below n in random order."
    order = list(range(n))
    words = (generator or default_generator).words(max(n - 1, 0)).tolist()
    for i, word in enumerate(words):
        j = i + word % (n - i)
        order[i], order[j] = order[j], order[i]
    return made(np.array(order, dtype=np.int64), dtype or int64)


@operation()
def multinomial(input, num_samples, replacement=False, generator=None):
    "Indices drawn by their probabilities, without putting them back."
    if replacement: raise absent("torch.multinomial(replacement=True)")
    p = input._a
    if not (p >= 0).all() or not np.isfinite(p).all():
        raise RuntimeError(
            "probability tensor contains either `inf`, `nan` or element < 0"
        )
    if (p.sum(-1) <= 0).any():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if num_samples > p.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without "
                           "replacement")
    source = generator or default_generator
    waits = -np.log1p(-source.uniform(p.size, float64)).reshape(p.shape)
    ranks = p / waits.astype(p.dtype)
    found = np.argsort(-ranks, axis=-1, kind="stable")[..., :num_samples]
    return made(found, int64)
