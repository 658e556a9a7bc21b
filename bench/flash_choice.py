"""Which configuration of each kernel is fastest on this machine: every one is tried in another process, so that one that hangs, fails or spoils the GPU costs its time limit and no more."""
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from tfmlib.proof import spread

WAYS = ("descriptors", "pointers", "specialised")


@lru_cache(maxsize=1)
def prepared(D: int, causal: bool, seed: int, setting) -> tuple:
    "Tensors for one width, and what the plainest configuration makes of them: output, log-sum-exp, gradients."
    from tfmlib import flash_kernels as kernels
    g, H, N = torch.Generator(setting.device).manual_seed(seed), max(1, setting.width // D), setting.tokens
    q, k, v, dout = (torch.randn(1, H, N, D, generator=g, device=setting.device).to(setting.dtype) for _ in range(4))
    plain = {kernel: kernels.fitting(kernel, q, causal, ("pointers",))[0] for kernel in ("forward", "dkdv", "dq")}
    out, lse = kernels.forward(q, k, v, causal=causal, config=plain["forward"])
    grads = kernels.backward((q, k, v, out, lse), dout, causal=causal, configs=(plain["dkdv"], plain["dq"]))
    return q, k, v, dout, out, lse, *grads


def answer(config: tuple, D: int, causal: bool, seed: int, setting) -> tuple[list[float], str]:
    "Milliseconds of several runs of one kernel, and what speaks against it."
    from tfmlib import flash_kernels as kernels
    config = kernels.Config(*config)
    q, k, v, dout, out, lse, *grads = prepared(D, causal, seed, setting)
    limits, scale, delta = kernels.band(q.shape[2], k.shape[2], causal, None), kernels.scaled(q, None), kernels.deltas(out, dout)
    right = {"forward": [lse, out], "dkdv": grads[1:], "dq": grads[:1]}[config.kernel]
    given = [torch.full_like(x, math.nan) for x in right]                   # what is not written shows
    inputs, others = ([q, k, v], []) if config.kernel == "forward" else ([q, k, v, dout], [lse, delta])
    took = kernels.trial(config, inputs, [*others, *given], limits, scale)
    if not took: return [], "does not run here, or spills"
    off = [float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in zip(given, right)]
    if all(x < 0.02 for x in off): return took, ""                          # not a number is not less
    return [], f"differs from the pointers by {', '.join(f'{x:.2g}' for x in off)} of the largest number"


def serve(pipe: Connection, seed: int, setting) -> None:
    "In the other process: answer until nothing more is asked."
    while (asked := pipe.recv()) is not None:
        try: pipe.send(answer(*asked, seed, setting))
        except Exception as error: pipe.send(([], f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"))


class Elsewhere:
    "The other process, begun anew when it had to be ended."
    def __init__(self, seed: int, setting, serve=serve): self.seed, self.setting, self.serve, self.process = seed, setting, serve, None

    def begin(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self.serve, args=(theirs, self.seed, self.setting), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        if self.process is not None: self.process.kill(); self.process.join()
        self.process = None

    def ask(self, config, D: int, causal: bool) -> tuple[list[float], str]:
        "What one configuration takes there; waits no longer than allowed."
        allowed = self.setting.patience * (1 if self.process else 2)           # the first answer has a process to start
        if self.process is None: self.begin()
        try:
            self.pipe.send((tuple(config), D, causal))
            if self.pipe.poll(allowed): return self.pipe.recv()
            reason = f"no answer in {self.setting.patience:g} seconds"
        except (EOFError, OSError): reason = "its process died"
        self.end()
        return [], reason


def choose_here(setting, seed: int) -> Iterator[dict]:
    "Try what fits, prefer the fastest from now on, and give a row for each that ran."
    from tfmlib import flash_kernels as kernels
    other, start, hung = Elsewhere(seed, setting), time.monotonic(), set()
    try:
        for D in setting.widths:
            for causal in (False, True):
                q = torch.empty(1, 1, 1, D, dtype=setting.dtype, device=setting.device)
                for kernel in ("forward", "dkdv", "dq"):
                    if time.monotonic() - start > setting.choosing: return
                    rows = kernels.fitting(kernel, q, causal, WAYS)
                    rows, answers = list(dict.fromkeys(c for c in rows if c.width == rows[0].width)), {}
                    for c in rows:
                        answers[c] = ([], f"others {c.way} did not end") if (kernel, c.way) in hung else other.ask(c, D, causal)
                        if answers[c][1].startswith("no answer"): hung.add((kernel, c.way))      # it would cost its limit again
                    yield from chosen(kernels, answers, D, causal)
    finally: other.end()


def chosen(kernels, answers: dict, D: int, causal: bool) -> list[dict]:
    "Prefer the fastest of these, and say what all of them took."
    ran = {c: spread(took) for c, (took, _) in answers.items() if took}
    if not ran: return []
    best = min(ran, key=lambda c: ran[c]["median"])
    kernels.prefer(best, D, causal)
    out = "; ".join(f"{c.way} {c.rows}×{c.cols}, {c.warps} warps, {c.stages} stages: {why}" for c, (took, why) in answers.items() if not took) or "nobody"
    return [{"case": "configuration", "kernel": c.kernel, "way": c.way, "D": D, "causal": str(causal), "rows": c.rows, "cols": c.cols, "warps": c.warps,
             "stages": c.stages, "chosen": "yes" if c == best else "no", "missing": out, "ms": took} for c, took in ran.items()]
