"""Which configuration of each kernel is fastest on this machine, among those whose results are
right.

A kernel whose warps wait for one another may never return, so each specialised one and each in
Gluon first runs once, with every mask, alone. Then all configurations of a kernel are timed one
after the other; each must give what the plainest one gives.
"""
import math
from collections.abc import Iterator
from functools import lru_cache

import torch

from bench.gpu.kernels import ALONE, candidates, load, named
from bench.gpu.settings import SETTINGS
from tfmlib.workbench import spread

KERNELS = ("forward", "dkdv", "dq", "sweep")


def masks(setting) -> tuple: return (False, 0), (True, 0), (True, setting.window)


def firsts(setting, found) -> Iterator[dict]:
    """Every configuration that may hang with every mask that it takes, at a length that tiles
    divide and at one that none does."""
    for D in setting.widths:
        for causal, window in masks(setting):
            for N in (setting.tokens, setting.ragged):
                for kernel in KERNELS:
                    for config in candidates(setting, found, kernel, D, causal):
                        if config[1] in ALONE and usable(config, window):
                            yield {"first": True, "kernel": kernel, "way": config[1],
                                   "configs": [config], "N": N, "D": D, "causal": causal,
                                   "window": window}


def cases(name: str, found) -> list[dict]:
    """The first runs, then a case for each kernel, width and mask, without those whose first run
    failed."""
    setting = SETTINGS[name]
    first = list(firsts(setting, found))
    failed = [config for case, _ in found.failures("choose") if "first" in case
              for config in case["configs"]]
    failed += [config for row in found.rows("choose") if row["case"] == "refused"
               for config in row["configs"]]
    def timed(kernel, D, causal):
        return [c for c in candidates(setting, found, kernel, D, causal) if c not in failed]
    return first + [{"kernel": kernel, "configs": timed(kernel, D, causal), "N": setting.tokens,
                     "D": D, "causal": causal, "window": 0}
                    for D in setting.widths for causal in (False, True) for kernel in KERNELS]


def usable(config: list, window: int) -> bool:
    "Does this configuration take such a window? The kernel in Gluon has none."
    return not (config[1] == "gluon" and window)


def chosen(found, D: int, causal: bool, window: int = 0) -> list[list]:
    """The configurations that later stages use: of each kernel the fastest that takes this mask
    and that no row of `correct` speaks against."""
    wrong = [config for row in found.rows("correct") for config in row["blamed"]]
    rows = [r for r in found.rows("choose") if r["case"] == "configuration"
            and (r["D"], r["causal"]) == (D, str(causal)) and r["config"] not in wrong
            and usable(r["config"], window)]
    best = {kernel: min((r for r in rows if r["kernel"] == kernel), key=lambda r: r["ms"]["median"],
                        default=None) for kernel in KERNELS}
    return [row["config"] for row in best.values() if row]


@lru_cache(maxsize=1)
def prepared(N: int, D: int, causal: bool, window: int, setting) -> tuple:
    """Tensors for one width, and what the plainest configuration makes of them: output,
    log-sum-exp, gradients."""
    kernels = load()
    g, H = torch.Generator(setting.device).manual_seed(0), max(1, setting.width // D)
    q, k, v, dout = (torch.randn(1, H, N, D, generator=g, device=setting.device).to(setting.dtype)
                     for _ in range(4))
    plain = {kernel: kernels.fitting(kernel, q, causal, ("pointers",))[0]
             for kernel in KERNELS[:3]}
    told = {"causal": causal, "window": window or None}
    out, lse = kernels.forward(q, k, v, **told, config=plain["forward"])
    grads = kernels.backward((q, k, v, out, lse), dout, **told,
                             configs=(plain["dkdv"], plain["dq"]))
    return q, k, v, dout, out, lse, *grads


def answer(config: list, case: dict, setting, repeats: int) -> tuple[list[float], str]:
    "Milliseconds of several runs of one kernel, and what speaks against it."
    kernels = load()
    config = kernels.Config(*config)
    q, k, v, dout, out, lse, *grads = prepared(case["N"], case["D"], case["causal"],
                                               case["window"], setting)
    limits, scale, delta = (kernels.band(q.shape[2], k.shape[2], case["causal"], case["window"]
                                         or None), kernels.scaled(q, None),
                            kernels.deltas(out, dout))
    dq, dk, dv = grads
    right = {"forward": [lse, out], "dkdv": [dk, dv], "dq": [dq],
             "sweep": [dk, dv, dq.float()]}[config.kernel]
    # what is not written shows
    given = [torch.full_like(x, math.nan) for x in right]
    inputs, others = (([q, k, v], []) if config.kernel == "forward"
                      else ([q, k, v, dout], [lse, delta]))
    took = kernels.trial(config, inputs, [*others, *given], limits, scale, repeats)
    # an error that stays with the process must not look like a refusal
    if setting.device == "cuda": torch.cuda.synchronize()
    if not took: return [], "does not run here, or spills"
    if not all(map(math.isfinite, took)): return [], "its time is not a number"
    off = [float((a.float() - b.float()).abs().max() / b.float().abs().max())
           for a, b in zip(given, right)]
    # not a number is not less
    if all(x < 0.02 for x in off): return took, ""
    return ([], f"differs from the pointers by {', '.join(f'{x:.2g}' for x in off)} of the largest "
                "number")


def measure(name: str, case: dict, without: dict, say) -> Iterator[dict]:
    "A row for each configuration that ran; what speaks against the others."
    setting, ran, against = SETTINGS[name], {}, dict(without)
    prepared(case["N"], case["D"], case["causal"], case["window"], setting)
    for config in case["configs"]:
        if (who := named(config)) in against: continue
        # alone, its end is its case's
        if "first" not in case: say(who)
        took, why = answer(config, case, setting, 1 if "first" in case else 7)
        if took: ran[who] = config, spread(took)
        else: against[who] = why
    say()
    missing = "; ".join(f"{who}: {why}" for who, why in against.items()) or "nobody"
    shape = {"D": case["D"], "causal": str(case["causal"])}
    if not ran:
        yield {"case": "refused" if "first" in case else "nothing", "kernel": case["kernel"],
               **shape, "configs": case["configs"], "missing": missing}
    for config, ms in ran.values():
        kernel, way, _, _, _, rows, cols, warps, stages = config
        yield {"case": "first run" if "first" in case else "configuration", "kernel": kernel,
               "way": way, **shape, "rows": rows, "cols": cols, "warps": warps,
               "stages": stages, "config": config, "missing": missing, "ms": ms}
