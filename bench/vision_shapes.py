"""Chapter 9: vision transformers and a small CNN of equally many operations on images of shapes, by
the number of training images.

Every model has the same steps and the same three candidates for its peak rate, tried for each
number of images with the first seed; the candidate with the best accuracy on images that are kept
for this choice is then run with further seeds. Those that have learned from the most images are
also tested on larger images: on a larger field with shapes of the same size, and on everything
enlarged. With augmentation, each image is mirrored or not and moved by up to two pixels.
"""
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, size
from bench.scaling import CODE, Runs, code_digest
from tfmlib.encoders.vision import SHAPES, SmallCNN, VisionTransformer, draw_shapes, resized, vit
from tfmlib.transformer import random_seed
from tfmlib.workbench import (
    AdamW,
    Diverged,
    WarmupCosine,
    epochs,
    parameter_groups,
    seeded,
    spread,
    train,
)

DEVICE = "cpu"
SEED = 0
PIXELS, PATCH, WIDTH, LAYERS, HEADS, LARGER, RADIUS = 16, 4, 32, 2, 4, 24, (3.5, 6.)
STEPS, WARM, BATCH, DECAY, HELD, TESTED, MOST = 200, 20, 32, 0.05, 500, 1_000, 6_400


def made(kind: str, seed: int) -> nn.Module:
    "A model before its first step."
    with random_seed(seed):
        if kind == "CNN": return SmallCNN(len(SHAPES))
        positions, first = ("learned", True) if kind == "class token" else (kind, False)
        return vit((1, PIXELS, PIXELS), PATCH, WIDTH, LAYERS, HEADS, len(SHAPES), positions, first)


def moved(images: Tensor, seed: int, step: int, far: int = 2) -> Tensor:
    "Each image mirrored or not, and moved by up to `far` pixels."
    g = seeded(seed, step)
    flipped = torch.where(torch.rand(len(images), 1, 1, 1, generator=g) < 0.5,
                          images.flip(3), images)
    wide, by = (F.pad(flipped, [far] * 4),
                torch.randint(2 * far + 1, (len(images), 2), generator=g).tolist())
    return torch.stack([image[:, i:i + images.shape[2], j:j + images.shape[3]]
                        for image, (i, j) in zip(wide, by)])


def batches(c: dict) -> Callable:
    "Step -> images and labels."
    plain = epochs(*draw_shapes(c["images"], PIXELS, 10 * c["seed"] + 1), size=BATCH,
                   seed=c["seed"])
    if not c["augmented"]: return plain
    def batch(step: int) -> tuple[Tensor, Tensor]:
        images, labels = plain(step)
        return moved(images, c["seed"], step), labels
    return batch


@torch.no_grad()
def accuracy(model: nn.Module, n: int, pixels: int, seed: int, radius: tuple = RADIUS) -> float:
    "The part of new images that is classified correctly."
    model.eval()
    images, labels = draw_shapes(n, pixels, seed, radius)
    if isinstance(model, VisionTransformer) and pixels != PIXELS:
        model = resized(model, pixels // PATCH, pixels // PATCH)
    return round(float((torch.cat([model(part) for part in images.split(100)]).argmax(1)
                        == labels).double().mean()), 4)


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def run(c: dict) -> dict:
    """Train one model; its accuracy on images for the choice of the rate and for the test, and
    on larger ones."""
    torch.set_num_threads(1)
    model, began, seed = made(c["kind"], c["seed"]), time.process_time(), c["seed"]
    optimiser = AdamW(parameter_groups(model, DECAY), WarmupCosine(c["rate"], WARM, STEPS), clip=1.)
    try: train(model, loss, batches(c), STEPS, optimiser, seed=seed)
    except Diverged: return {"held": 0., "tested": 0.}
    found = {"held": accuracy(model, HELD, PIXELS, 10 * seed + 2),
             "tested": accuracy(model, TESTED, PIXELS, 10 * seed + 3)}
    if c["images"] == MOST and not c["augmented"]:
        found |= {"larger field": accuracy(model, TESTED, LARGER, 10 * seed + 3),
                  "enlarged": accuracy(model, TESTED, LARGER, 10 * seed + 3,
                                       tuple(1.5 * r for r in RADIUS))}
    return found | {"seconds": round(time.process_time() - began, 1), "parameters": size(model)}


# --- what is run: a kept run depends only on its case and on the code above this line -------------

SEEDS, RATES = 3, (0.002, 0.006, 0.018)
PLAN = [(kind, images, False) for images in (400, MOST, 1_600, 100)
        for kind in ("CNN", "learned", "rotary")]
PLAN += ([(kind, 400, True) for kind in ("CNN", "learned", "rotary")]
         + [("class token", MOST, False)])
RUNS = Runs("vision_shapes",
            CODE + code_digest(Path(__file__).read_text(encoding="utf-8").partition(
                "# --- what is run")[0]))


def complete(kind: str, images: int, augmented: bool, rates, seeds) -> list[dict]:
    cases = [{"kind": kind, "images": images, "augmented": augmented, "rate": rate, "seed": seed}
             for rate in rates for seed in seeds]
    return RUNS.complete(cases, run, prepare=lambda: None, workers=1)


def measure(seed: int) -> Iterator[dict]:
    "For each model and number of images the search, then the best rate with all seeds."
    for kind, images, augmented in PLAN:
        about = {"kind": kind, "images": images, "augmented": augmented}
        tried = dict(zip(RATES, complete(kind, images, augmented, RATES, [seed]), strict=True))
        yield from (about | {"what": "search", "rate": f"{rate:g}", "held": spread([found["held"]])}
                    for rate, found in tried.items())
        rate = max(tried, key=lambda rate: tried[rate]["held"])
        runs = complete(kind, images, augmented, [rate], [seed + n for n in range(SEEDS)])
        names = [name for name in ("tested", "larger field", "enlarged") if name in runs[0]]
        yield (about | {"what": "end", "rate": f"{rate:g}", "parameters": runs[0]["parameters"]}
               | over_seeds([{name: found[name] for name in names} for found in runs]))
