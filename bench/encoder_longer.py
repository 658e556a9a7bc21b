"""Chapter 9: three objectives of `bench.encoder_objectives` once more, for four times as long, at the rates chosen there: does their order hold?

The encoders are kept in `build/encoders`, where `bench.encoder_uses` finds them; the first masked LM is the model that comes with the book.
"""
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

import bench.encoder_objectives as short
from bench import over_seeds, ticked
from tfmlib.pretrained import own_tensors, save_model
from tfmlib.proof import load_record
from tfmlib.training import load_tensors, save_tensors

DEVICE = "cpu"
SEED = 0
KINDS = "masked LM", "causal LM", "all [MASK]"
STEPS, WORKERS = 12_000, 2
STOPS = (300, 1_000, 3_000, 6_000, 9_000, 12_000)
ROOT = Path(__file__).resolve().parent.parent
KEPT, SHIPPED = ROOT / "build/encoders", ROOT / "tfmlib/assets/models/masked.safetensors"


@cache
def peak(kind: str) -> float:
    "The rate that was best for this objective."
    return float(next(r["peak"] for r in load_record("encoder_objectives").rows if r["what"] == "worth" and r["objective"] == kind))


def trained(kind: str, seed: int) -> tuple[nn.Module, dict]:
    "An encoder, from the folder if it is there, and its losses."
    path, model = KEPT / f"{kind.replace(' ', '_')}-{seed}.safetensors", short.made(kind, seed)
    if path.is_file():
        state, facts = load_tensors(path)
        with torch.no_grad():
            for name, p in model.named_parameters(): p.copy_(state[name])
        return model.eval(), json.loads(facts["losses"])
    steps = short.steps_of(kind, STEPS)
    stops, test = [s for s in STOPS if s < steps] + [steps], short.corrupted(kind, SEED, -2, short.TESTS)
    def watch(model, step): return {"own": short.own_loss(kind, model, test)} if step in stops else None
    model, history = short.pretrained(kind, peak(kind), seed, steps, watch)
    losses = {str(stop): float(history["own"][i]) for i, stop in enumerate(stops)}
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"steps": str(steps), "peak": f"{peak(kind):g}", "seed": str(seed), "losses": json.dumps(losses)}
    save_tensors(path, own_tensors(model), facts)
    if (kind, seed) == (KINDS[0], SEED): save_model(SHIPPED, model, command="python -m bench encoder_longer", **facts)
    return model, losses


def judged(kind: str, seed: int) -> tuple[dict, dict]:
    "Losses on the way, and what the encoder is worth with few labels."
    torch.set_num_threads(1)
    model, losses = trained(kind, seed)
    return losses, {task: short.worth(kind, model, task, seed) for task in short.TASKS}


def measure(seed: int) -> Iterator[dict]:
    "Every objective, every seed."
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        cases = list(product(KINDS, [seed + s for s in short.SEEDS]))
        found = pool.map(judged, *zip(*cases))
        for kind in ticked(KINDS, "objective"):
            runs, facts = [next(found) for _ in short.SEEDS], {"objective": kind, "peak": f"{peak(kind):g}"}
            for stop in runs[0][0]: yield {"what": "curve", **facts, "steps": int(stop)} | over_seeds([{"loss": losses[stop]} for losses, _ in runs])
            yield {"what": "worth", **facts, "steps": int(max(runs[0][0], key=int)), "labelled": short.LABELLED} | over_seeds([worth for _, worth in runs])
