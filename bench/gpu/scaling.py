"""Chapter 14 on a GPU: the ladder goes on: wider decoders, more tokens, the same text and test as
the CPU's sweep, one rate transferred by width.

The prose is written by as many processes as there are cores, then lies on the GPU, a row for each
paragraph. All runs are in the maximal-update parametrisation: the rate was found at small widths;
at the smaller budget its double and its half are tried, too. What the sweep's law predicts for
these runs is compared in the chapter. Unlike the other stages it needs the book's own packages
(PyYAML, regex, sacreBLEU, safetensors, tqdm, traitlets); so they are imported only when a case
begins, and where one is missing, the case fails with its name.
"""
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType

import torch
from torch import Tensor, nn

from bench import size
from tfmlib.workbench import spread


@dataclass(frozen=True)
class Setting:
    "What is trained, and on what."
    device: str
    widths: tuple[int, ...]
    budgets: tuple[int, ...]               # tokens
    tried: int                             # tokens of the runs with other rates
    paragraphs: int                        # to learn from
    rate: float                            # of the base width
    writers: int = 16                      # so many texts, however many cores there are
    rows: int = 64                         # paragraphs in a step
    pool: int = 32                         # steps whose paragraphs are sorted by length together
    # seed of the first process that writes; the sweep's texts have seeds 0 to 2
    first: int = 100
    vocabulary: int = 1024                 # these three as in bench/scaling.py
    tokenized: int = 4_000
    tested: int = 600


SETTINGS = {
    "full": Setting("cuda", (256, 512, 1024), (8_000_000, 16_000_000, 32_000_000), 4_000_000,
                    300_000, 0.016),
    "rehearsal": Setting("cpu", (16, 32), (1_000,), 500, 40, 0.008, writers=2, rows=2, pool=2,
                         vocabulary=300, tokenized=300, tested=4),
}


def cases(name: str, found) -> list[dict]:
    s = SETTINGS[name]
    tried = [{"C": C, "D": s.tried, "rate": factor * s.rate} for factor in (0.5, 1., 2.)
             for C in s.widths]
    return ([{"case": "text"}]
            + [{"case": "run"} | run for run in tried
               + [{"C": C, "D": D, "rate": s.rate} for D in s.budgets for C in s.widths]])


def shared(s: Setting) -> ModuleType:
    """bench.scaling as this setting needs it, in this process: the sweep's tokenizer and test,
    and nothing to learn from."""
    from bench import scaling
    scaling.LEARNT, scaling.VOCAB, scaling.TOKENIZED, scaling.TESTED = (1, s.vocabulary,
            s.tokenized, s.tested)
    return scaling


def part(s: Setting, number: int, n: int) -> Tensor:
    "Paragraphs of one process, padded with −1 (n, longest)."
    from tfmlib.workbench import Writer
    torch.set_num_threads(1)
    rows, _ = shared(s).written(Writer, s.first + number, n)
    return nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.int16) for row in rows],
                                     batch_first=True, padding_value=-1)


@lru_cache
def text(s: Setting) -> Tensor:
    "All paragraphs (paragraphs, longest), from the temporary folder or written now."
    from tfmlib.workbench import replacing
    path = (Path(gettempdir())
            / f"tfm_ladder_{shared(s).CODE}_{s.paragraphs}_{s.vocabulary}_{s.tokenized}.pt")
    if not path.exists():
        counts = [s.paragraphs // s.writers + (i < s.paragraphs % s.writers)
                  for i in range(s.writers)]
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            parts = list(pool.map(part, [s] * s.writers, range(s.writers), counts))
        longest = max(p.shape[1] for p in parts)
        with replacing(path) as beside:
            torch.save(torch.cat([nn.functional.pad(p, (0, longest - p.shape[1]), value=-1)
                                  for p in parts]), beside)
    return torch.load(path).to(s.device)


def order(lengths: Tensor, s: Setting, steps: int, seed: int) -> Tensor:  # (steps, rows)
    "Which paragraphs each step reads: each at most once, those of similar length together."
    from tfmlib.workbench import seeded
    if steps * s.rows > len(lengths):
        raise ValueError(
            f"D: {steps} steps of {s.rows} paragraphs, expected at most {len(lengths)} paragraphs")
    chosen, g, found = (torch.randperm(len(lengths), generator=seeded(seed, 14))[:steps * s.rows],
                        seeded(seed, 15), [])
    for pool in chosen.split(s.pool * s.rows):
        batches = pool[lengths[pool].argsort(stable=True)].view(-1, s.rows)
        found.append(batches[torch.randperm(len(batches), generator=g)])
    return torch.cat(found)


def run(s: Setting, case: dict) -> dict:
    "Train one network; its loss on the sweep's test."
    from tfmlib.workbench import precision
    scaling, learnt = shared(s), text(s)
    lengths = (learnt >= 0).sum(1).cpu()
    steps = max(2, round(case["D"] / (s.rows * float(lengths.double().mean()))))
    batches, model = (order(lengths, s, steps, 0),
                      scaling.made(case["C"], 0, "maximal update").to(s.device))
    factors, rate = (scaling.optimiser_of(model, 1.).factors,
                     scaling.schedule("cosine", case["rate"], steps))
    groups = {}
    for name, p in model.named_parameters():
        groups.setdefault((factors.get(name, 1.), scaling.DECAY if p.ndim > 1 else 0.),
                          []).append(p)
    optimiser = torch.optim.AdamW([{"params": ps, "factor": factor, "weight_decay": decay}
                                   for (factor, decay), ps in groups.items()], lr=1.,
                                  betas=(0.9, 0.95))
    model.train()
    began = time.perf_counter()
    for step, rows in enumerate(batches):
        for group in optimiser.param_groups: group["lr"] = group["factor"] * rate(step)
        y = learnt[rows.to(s.device), :int(lengths[rows].max())].long()
        x = nn.functional.pad(y[:, :-1].clamp(min=0), (1, 0))
        with precision(y.device): total, count = scaling.loss(model, x, y)
        optimiser.zero_grad()
        (total / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimiser.step()
    loss, took = scaling.tested(model), time.perf_counter() - began
    if not math.isfinite(loss): raise FloatingPointError(f"the loss is {loss}")
    return {"case": "run", "C": case["C"], "N": size(model.stack), "N all": size(model),
            "D": case["D"], "tokens": int(lengths[batches].sum()), "steps": steps,
            "rows": s.rows, "peak": f"{case['rate']:g}", "loss": spread([loss]),
            "ms a step": spread([1e3 * took / steps])}


def measure(name: str, case: dict, without: dict, say: Callable) -> Iterator[dict]:
    "The text's entropy, or one run."
    s = SETTINGS[name]
    if case["case"] == "run": yield run(s, case)
    else:
        scaling = shared(s)
        yield {"case": "text", "paragraphs": len(text(s)), "V": scaling.corpus()["V"],
               "loss": spread([scaling.corpus()["entropy"]])}
