"""Chapter 1: a chain of T dependent steps beside one matrix product of the same operations; and what a batch adds."""
import torch
from torch import Tensor, nn

from tfmlib.proof import timed

DEVICE = "cpu"
SEED = 0
LENGTHS, BATCHES, WIDTH, REPEATS = (64, 128, 256, 512, 1024), (1, 4, 16, 64), 256, 9


def chain(W: Tensor, h: Tensor, T: int) -> Tensor:
    "T matrix-vector products, each of which needs the one before."
    for _ in range(T): h = W @ h
    return h


def scaled(seconds: dict, by: float) -> dict:
    "A spread in another unit."
    return {name: value if name == "n" else by * value for name, value in seconds.items()}


def rate(seconds: dict, count: int) -> dict:
    "Things a second, from a spread of seconds."
    return {"median": count / seconds["median"], "q10": count / seconds["q90"], "q90": count / seconds["q10"], "n": seconds["n"]}


@torch.no_grad()
def measure(seed: int) -> list[dict]:
    "Milliseconds by length; steps a second of a recurrent layer by batch. One thread."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    W, h = torch.randn(WIDTH, WIDTH) / WIDTH**0.5, torch.randn(WIDTH)
    rows = []
    for T in LENGTHS:
        X = torch.randn(T, WIDTH)
        taken = timed({"chain": lambda T=T: chain(W, h, T), "product": lambda X=X: X @ W.T}, REPEATS)
        rows.append({"T": T, "C": WIDTH, "FLOPs": 2 * T * WIDTH**2} | {f"{name} ms": scaled(t, 1e3) for name, t in taken.items()})
    layer = nn.RNN(WIDTH, WIDTH, batch_first=True)
    inputs = {B: torch.randn(B, 256, WIDTH) for B in BATCHES}
    taken = timed({B: lambda x=x: layer(x) for B, x in inputs.items()}, REPEATS)
    rows += [{"B": B, "T": 256, "C": WIDTH, "tokens a second": rate(t, 256 * B)} for B, t in taken.items()]
    torch.set_num_threads(threads)
    return rows
