"""Chapter 4: the time of `attention`, of its fused counterpart and of one matrix product of the
same size, against length."""
import torch
import torch.nn.functional as F

from bench import scaled, ticked
from tfmlib.attention import attention
from tfmlib.workbench import timed

LENGTHS, HEADS, WIDTH, REPEATS = (256, 512, 1024, 2048, 4096), 4, 64, 7


def calls(n: int, seed: int) -> dict:
    "What is timed at length n: two attentions, and one product as large as their scores."
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))
    return {"attend": lambda: attention(q, k, v), "fused": lambda: F.scaled_dot_product_attention(q,
            k, v), "product": lambda: q @ k.mT}


@torch.no_grad()
def measure(seed: int) -> list[dict]:
    "Milliseconds, forward only, on one thread."
    rows = []
    for n in ticked(LENGTHS, "length"):
        taken = timed(calls(n, seed), REPEATS)
        rows.append({"N": n, "H": HEADS, "D": WIDTH}
                    | {f"{name} ms": scaled(t, 1e3) for name, t in taken.items()})
    return rows
