"""Right answers in other styles than the book's: a checker asks for what the statement says, and
not for a way of writing it."""
import importlib
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from conftest import sweep

READS = ("chapters/practice/",)
ROOT = Path(__file__).resolve().parents[2]


# --- 1: recurrence
def lstm_step(x, h, c, W, U, b):
    C = h.shape[1]
    z = torch.einsum("bi,gi->bg", x, W) + torch.einsum("bc,gc->bg", h, U) + b
    write, keep, show = (torch.sigmoid(z[:, k * C:(k + 1) * C]) for k in (0, 1, 3))
    memory = keep * c + write * torch.tanh(z[:, 2 * C:3 * C])
    return [show * torch.tanh(memory), memory]


def newton_round(u, x, guess):
    start = torch.zeros(1, len(u), dtype=x.dtype)
    taken = (x + u * torch.vstack((start, guess))[:-1]).tanh()
    slopes, delta, out = u - u * taken.square(), start[0], []
    for slope, f, g in zip(slopes, taken, guess, strict=True):
        delta = slope * delta + (f - g)
        out.append(g + delta)
    return torch.vstack(out)


# --- 2: alignment
def additive_scores(s, h, W, U, v):
    return torch.einsum("bsa,a->bs",
                        torch.tanh(torch.einsum("ac,bc->ba", W, s).unsqueeze(1)
                                   + torch.einsum("ac,bsc->bsa", U, h)), v)
def effective_number(weights): return torch.special.entr(weights).sum(-1).exp()


# --- 3: tokens
def count_pairs(words, times):
    table = {}
    for word, n in zip(words, times):
        for left, right in itertools.pairwise(word):
            table[left, right] = table.get((left, right), 0) + n
    return {pair: n for pair, n in table.items() if n}


def join_pair(ids, pair, new):
    rest, out = list(reversed(ids)), []
    while rest:
        first = rest.pop()
        if rest and (first, rest[-1]) == tuple(pair): first = [rest.pop(), new][1]
        out += [first]
    return out


# --- 4: attention
def safe_softmax(scores, dim):
    if scores.numel() == 0: return torch.empty_like(scores)
    wide = scores.double()
    top = wide.max(dim, keepdim=True).values
    e = torch.where(top == -math.inf, 0., torch.exp(wide - torch.where(top == -math.inf, 0., top)))
    total = e.sum(dim, keepdim=True)
    return torch.where(total == 0, 0., e / torch.where(total == 0, 1., total)).to(scores.dtype)


def sink_weights(scores, sink):
    rest = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sink)
    return (scores - rest).exp()


def look_mask(lengths, T, S, causal):
    s, t = torch.meshgrid(torch.arange(S), torch.arange(T), indexing="xy")
    seen = s < lengths.view(-1, 1, 1)
    return (seen & (s - t <= S - T) if causal else seen).unsqueeze(1)


# --- 5: heads
def split_heads(x, heads):
    B, T, C = x.shape
    if C % heads != 0: raise ValueError("heads")
    return x.as_strided((B, heads, T, C // heads),
                        (x.stride(0), C // heads * x.stride(2), x.stride(1), x.stride(2)),
                        x.storage_offset())


def pool_heads(w, heads, groups):
    if heads % groups != 0: raise ValueError("groups")
    return torch.cat([torch.stack(group.chunk(heads // groups)).mean(0)
                      for group in w.chunk(groups)])


# --- 6: positions
def sinusoids(places, width, base):
    if width % 2: raise ValueError("width")
    wheel = torch.polar(torch.ones(()).double(), places.double().unsqueeze(-1)
                        / base ** (torch.arange(width // 2).double() * 2 / width))
    return torch.stack([wheel.imag, wheel.real], dim=-1).flatten(start_dim=-2)


def ntk_base(width, base, s):
    if width <= 2: raise ValueError("width")
    return math.exp(math.log(base) + width / (width - 2) * math.log(s))


# --- 7: the block
def layer_norm(x, weight, bias, eps):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, (x - mean) * torch.rsqrt(variance + eps), weight)


def growth(start, gains, order):
    step = {"pre": lambda m, a: m + a * a, "post": lambda m, a: 1., "bare": lambda m, a: a * a,
            "plain": lambda m, a: m * (1 + a * a)}
    if order not in step: raise ValueError("order")
    return list(itertools.accumulate(gains, step[order], initial=start))


# --- 8: the transformer
def label_smoothed_loss(scores, y, smoothing):
    scores, y = scores[y != 0], y[y != 0]
    if len(y) == 0: raise ValueError("y")
    loss = scores.logsumexp(-1) - scores[torch.arange(len(y)), y]
    return (loss.mean() if smoothing == 0
            else ((1 - smoothing) * loss + smoothing
                  * (scores.logsumexp(-1, keepdim=True) - scores).mean(-1)).mean())


def ranked(found, alpha, end):
    ended, torn = ([(w, p * (6 / (5 + len(w))) ** alpha) for w, p in found if (w[-1] == end)
                    == flag] for flag in (True, False))
    return sorted(ended, key=lambda pair: -pair[1]) + sorted(torn, key=lambda pair: -pair[1])


# --- 10: decoders
def nucleus(logits, p):
    keep = torch.zeros(logits.shape, dtype=torch.bool)
    for b, (row, scores) in enumerate(zip(torch.softmax(logits.double(), -1).tolist(),
                                          logits.tolist())):
        total = 0.
        for i in sorted(range(len(row)), key=scores.__getitem__, reverse=True):
            if math.isinf(scores[i]) or (p < 1 and total > 0 and total / p >= 1 - 1e-12): break
            keep[b, i], total = True, total + row[i]
    return keep


# --- 17: FlashAttention
def merge_answers(out_a, lse_a, out_b, lse_b):
    none = torch.maximum(lse_a, lse_b) == -math.inf
    both = torch.stack([torch.where(none, 0., lse) for lse in (lse_a, lse_b)])
    mixed = torch.einsum("s...,s...w->...w", both.softmax(0), torch.stack([out_a, out_b]))
    return torch.where(none[..., None], 0., mixed), torch.where(none, -math.inf, both.logsumexp(0))


def causal_tiles(T, S, rows, cols):
    blocks = {(i, j): [s <= t + S - T for t in range(i * rows, min(T, i * rows + rows))
                       for s in range(j * cols, min(S, j * cols + cols))]
              for i in range(math.ceil(T / rows)) for j in range(math.ceil(S / cols))}
    return {at: not all(seen) for at, seen in blocks.items() if any(seen)}


# --- 18: FlashAttention on a GPU
def backward_flops(N, D, rows, cols, causal):
    tiles = sum(not causal or j * cols < min(N, (i + 1) * rows)
                for i, j in itertools.product(range(math.ceil(N / rows)),
                                              range(math.ceil(N / cols))))
    return [(10 * N * N * D) >> bool(causal), 2 * 7 * rows * cols * D * tiles]


# --- 9: encoders
def pool(h, padding_mask):
    if (~padding_mask).all(-1).any(): raise ValueError("padding_mask: a row of padding only")
    return (torch.stack([row[kept].mean(0) for row, kept in zip(h, padding_mask)]) if len(h)
            else h[:, 0])


# --- 11: denoisers
def two_sides(ids, mask, first):
    runs = [(dropped, [i for i, _ in run])
            for dropped, run in itertools.groupby(zip(ids.tolist(), mask.tolist()),
                                                  key=lambda pair: pair[1])]
    names = iter(range(first, first - len(ids) - 1, -1))
    both = [[next(names), *run] if dropped else run for dropped, run in runs]
    inputs = [piece[:1] if dropped else piece for (dropped, _), piece in zip(runs, both)]
    targets = [piece for (dropped, _), piece in zip(runs, both) if dropped] + [[next(names)]]
    return [torch.tensor(sum(pieces, []), dtype=ids.dtype) for pieces in (inputs, targets)]


def exact_bound(losses):
    T, total = losses.size(1), losses.new_zeros(())
    for row in range(1, 2**T):
        at = [i for i in range(T) if row // 2**i % 2]
        total = (total + math.exp(math.lgamma(len(at)) + math.lgamma(T - len(at) + 1)
                                  - math.lgamma(T + 1)) * losses[row, at].sum())
    return total


# --- 12: checkpoints
def unfused(whole, n_heads, n_kv_heads):
    width, each = len(whole) // (n_heads + 2 * n_kv_heads), n_heads // n_kv_heads
    heads = [whole[at:at + width] for at in range(0, len(whole), width)]
    queries = [head for n, head in enumerate(heads) if n % (each + 2) < each]
    return (torch.cat(queries), torch.cat(heads[each::each + 2]),
            torch.cat(heads[each + 1::each + 2]))


# --- 13: accounting
def crossing(ops, weights, cache, peak, bandwidth):
    if ops * bandwidth <= cache * peak: return None
    low, high = 1, weights * peak
    while low < high:
        B = (low + high) // 2
        if B * ops * bandwidth >= (weights + B * cache) * peak: high = B
        else: low = B + 1
    return low


def kept_names(ops, weights):
    found = []
    for op in ops:
        needed = {"silu": op[1][:1], "softmax": (op[2],), "matmul": op[1],
                  "mul": op[1]}.get(op[0], ())
        found += [name for name in dict.fromkeys(needed) if name not in weights
                  and name not in found]
    found.sort()
    return found


# --- 14: scaling laws
def power_fit(x, y):
    import numpy
    slope, level = numpy.polyfit(numpy.log(x), numpy.log(y), 1)
    return [slope, numpy.exp(level)]


def valley(N, loss):
    import numpy
    u = numpy.log(N)
    r, q, _ = numpy.polyfit(u - u.mean(), loss, 2)
    vertex = numpy.exp(u.mean() - q / r / 2) if r > 0 else numpy.inf
    return torch.tensor(vertex) if min(N) < vertex < max(N) else None


def plan_runs(budget):
    "Many cheap runs at three corners, a few large ones."
    runs = [(20_000_000, 20_000_000.)] * 2 + [[2e7, 1.6e10]] * 2 + [(7.5e7, 3.5e8)] * 11
    rest = budget - sum(6 * N * D for N, D in runs)
    return (runs + [((share * rest / 6 / ratio)**.5, (share * rest / 6 * ratio)**.5)
                    for share, ratio in ((.25, 1), (.25, 1.5), (.25, 3), (.1, 5), (.15, 8))])


# --- 15: many devices
def zigzag(length, rank, p):
    n, rest = divmod(length, 2 * p)
    if rest: raise ValueError("length: it does not divide")
    chunks = torch.arange(length).view(2 * p, n)
    return chunks[[rank, -1 - rank]].flatten().tolist()


# --- 16: the KV cache
def mask_of(queries, keys, window, n_sinks):
    rows = []
    for q in queries:
        seen = set(range(q + 1))
        if window is not None: seen -= set(range(n_sinks, q - window + 1))
        rows.append([key in seen for key in keys])
    return rows


# --- 19: sparse attention
def block_kinds(mask, rows, cols):
    tiles = [[{seen for row in mask[a:a + rows] for seen in row[b:b + cols]}
              for b in range(0, len(mask[0]), cols)] for a in range(0, len(mask), rows)]
    return tuple([[n for n, seen in enumerate(of_rows) if seen == wanted] for of_rows in tiles]
                 for wanted in ({True, False}, {True}))


# --- 20: linear attention and state spaces
def delta_writes(k, v, beta, state):
    found = []
    for key, value, rate in zip(k, v, beta):
        found.append(rate * (value - key @ state))
        state = state + torch.outer(key, found[-1])
    return torch.stack(found)


def combine(A1, B1, A2, B2):
    left, write = (A2 @ torch.cat([A1, B1], 1)).split([len(A1), B1.shape[1]], 1)
    return [left.clone(), write + B2]
# --- 21: mixture of experts
def router_gradient(p, s, k, renormalise):
    z = torch.tensor(p, dtype=torch.float64).log().requires_grad_()
    weights, chosen = z.softmax(0).topk(k)
    if renormalise: weights = weights / weights.sum()
    (weights @ torch.tensor(s, dtype=torch.float64)[chosen]).backward()
    return z.grad.tolist()


def dropped(choices, most):
    out, queue = ([], sorted((rank, token, expert) for token, row in enumerate(choices)
                             for rank, expert in enumerate(row)))
    for expert in {e for *_, e in queue}:
        out += [(token, expert) for _, token, e in queue if e == expert][most:]
    return sorted(out)


# --- 22: inside a trained model
def neurons(x, up, up_bias, down):
    activation = torch.nn.functional.gelu(torch.nn.functional.linear(x, up, up_bias))
    each = torch.einsum("tf,cf->tfc", activation, down)
    return [each, each.square().sum(-1).max(1).indices]


def edit_several(weight, keys, values, second_moment):
    half = torch.linalg.cholesky(second_moment)
    white = torch.linalg.solve_triangular(half, keys.T, upper=False)
    change = (values.T - weight @ keys.T) @ torch.linalg.pinv(white)
    return weight + torch.linalg.solve_triangular(half.T, change.T, upper=True).T


RIGHT = {
    "recurrence": (lstm_step, newton_round), "alignment": (additive_scores, effective_number),
    "tokens": (count_pairs, join_pair), "attention": (safe_softmax, sink_weights, look_mask),
    "heads": (split_heads, pool_heads), "positions": (sinusoids, ntk_base),
    "block": (layer_norm, growth), "transformer": (label_smoothed_loss, ranked),
    "encoders": (pool,), "decoders": (nucleus,), "denoisers": (two_sides, exact_bound),
    "checkpoints": (unfused,), "accounting": (crossing, kept_names),
    "scaling_laws": (power_fit, valley, plan_runs), "many_devices": (zigzag,),
    "kv_cache": (mask_of,), "flash_attention": (merge_answers, causal_tiles),
    "flash_attention_gpu": (backward_flops,), "sparse": (block_kinds,),
    "linear_and_state_space": (delta_writes, combine),
    "mixture_of_experts": (router_gradient, dropped), "inside": (neurons, edit_several),
}


STYLES = [(page, answer) for page, answers in RIGHT.items() for answer in answers]


@pytest.mark.parametrize(("page", "answer"), sweep(STYLES, *STYLES[::5]),
                         ids=lambda x: getattr(x, "__name__", x))
def test_a_right_answer_in_another_style_is_accepted(page, answer):
    result = getattr(importlib.import_module(f"tfmlib.practice.{page}"),
                     f"check_{answer.__name__}").examine(answer)
    assert result.passed, result.text()


def test_no_page_is_left_out():
    from kills import pages
    assert {path.stem[3:] for path in pages()} == set(RIGHT)


def test_the_families_of_checkpoints_12_are_those_that_accept():
    """The checker of `family_of` does without the library: what it knows of the six
    configurations is what the library says of them."""
    import tfmlib.checkpoints.families  # noqa: F401 — adds the families to the table
    from tfmlib.checkpoints import config_from_pretrained
    from tfmlib.checkpoints.published import PUBLISHED_CONFIGS
    from tfmlib.practice import checkpoints

    def accepts(kind, config):
        try: return bool(config_from_pretrained(config | {"model_type": kind}))
        except ValueError: return False
    kinds = sorted({config["model_type"] for config in PUBLISHED_CONFIGS.values()})
    page = json.loads((ROOT / "chapters/practice/12_checkpoints.ipynb").read_text(encoding="utf-8"))
    statement = next("".join(cell["source"]) for cell in page["cells"] if cell["id"] == "which")
    shown = json.loads(re.search(r"```json\n(.*?)\n```", statement, re.S)[1])
    assert ({name: [kind for kind in kinds if accepts(kind, config)]
             for name, config in shown.items()} == checkpoints._ACCEPT)
    assert sorted(checkpoints._TYPES) == kinds
