"""Chapter 22: does the copying circuit appear sooner if its first half is given? Two layers of
attention are trained as in the part `induction`: with nothing given; with one head of the first
layer clamped to the previous token, or, as a control, to the token two back; with two heads clamped
to the previous token and to the token itself, or, as a control, to the tokens two and three
back."""
import torch
from torch import Tensor

from bench import over_seeds, ticked
from bench.decoder_training import fused
from bench.induction import BATCH, EVERY, RATE, SEEDS, STEPS, TESTED, repeated, right, small
from tfmlib.decoders import CausalLM, next_token_loss
from tfmlib.positions import PositionalAttention
from tfmlib.workbench import AdamW, WarmupCosine, parameter_groups, seeded, train

GIVEN = {"nothing": (), "one back": (1,), "two back": (2,), "one back and itself": (1, 0),
         "two and three back": (2, 3), "two and four back": (2, 4)}


def clamped(back: tuple[int, ...]):
    """Attention whose first heads return the value of the token so many positions back (the
    first one where there is none)."""
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        out, _ = fused(q, k, v, mask)
        moved = [torch.cat([v[:, h:h + 1, :1].expand(-1, -1, n, -1),
                            v[:, h:h + 1, :v.shape[2] - n]], 2) for h, n in enumerate(back)]
        return torch.cat([*moved, out[:, len(back):]], 1), None
    return attend


def model_with(back: tuple[int, ...], seed: int) -> CausalLM:
    "Two layers; the first heads of the first are clamped, one for each number in `back`."
    model = small(2, seed)
    if back:
        heads = model.stack.blocks[0].attention.inner
        heads.attention_fn = PositionalAttention(heads.attention_fn.encoding, clamped(back))
    return model


def learn(back: tuple[int, ...], seed: int) -> list[float]:
    "How often the answer is right where it can be known, every EVERY steps."
    model, found, test = model_with(back, seed), [], repeated(TESTED, seeded(seed, 1))

    def watch(step: int) -> None:
        if step % EVERY: return
        model.eval()
        found.append(right(model, *test))

    watch(0)
    train(model, next_token_loss, lambda step: (repeated(BATCH, seeded(seed, 0, step))[0],), STEPS,
          AdamW(parameter_groups(model, 0.01), WarmupCosine(RATE, STEPS // 20, STEPS), clip=1.0),
          watch=watch, seed=seed)
    return found


def measure(seed: int) -> list[dict]:
    "Five kinds, five seeds, the way there."
    rows = []
    for given, back in ticked(GIVEN.items()):
        runs = [learn(back, seed + s) for s in range(SEEDS)]
        rows += [{"given": given, "step": i * EVERY}
                 | over_seeds([{"right": point} for point in points])
                 for i, points in enumerate(zip(*runs))]
    return rows
