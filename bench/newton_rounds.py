"""Chapter 1: Newton's method over the whole sequence beside the loop: rounds and time by length,
for cells that forget and cells that do not; time by width."""
import time
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, scaled, ticked
from tfmlib.recurrence import (
    DiagonalGRUCell,
    GRUCell,
    RecurrentCell,
    RecurrentLayer,
    RNNCell,
    first_symbol,
    joined_step,
    newton_states,
    recall_accuracy,
    unroll,
)
from tfmlib.workbench import prose, spread, timed

SEEDS, LENGTHS, WIDTHS, REPEATS, LAG = (3, (64, 128, 256, 512, 1024, 2048, 4096),
                                        (4, 8, 16, 32, 64), 5, 20)
TEXT, LATCH, CHAOS = ({"diagonal GRU, text": DiagonalGRUCell, "GRU, text": GRUCell},
                      "diagonal GRU, recall", "tanh, weights × 4")
LONGEST = {CHAOS: 1024}                                                    # beyond it, many minutes


@lru_cache
def text() -> tuple[Tensor, int]:
    "Generated prose as numbers of its characters, and how many different ones there are."
    written = prose(200_000, seed=1)
    known = {c: i for i, c in enumerate(sorted(set(written)))}
    return torch.tensor([known[c] for c in written]), len(known)


def on_text(kind: type, seed: int, steps: int = 400,
            T: int = 64) -> tuple[RecurrentCell, nn.Embedding, float]:
    """A cell of 16 features, trained to predict the next character, with its embedding; the mean
    loss of the last 50 steps."""
    torch.manual_seed(seed)
    (ids, V), g, losses = text(), torch.Generator().manual_seed(seed), []
    cell, embed, out = kind(16, 16), nn.Embedding(V, 16), nn.Linear(16, V)
    parameters = [*cell.parameters(), *embed.parameters(), *out.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(steps):
        rows = ids[torch.randint(len(ids) // 2, (32, 1), generator=g) + torch.arange(T + 1)]
        loss = F.cross_entropy(out(unroll(cell, embed(rows[:, :-1]))[0]).flatten(0, 1),
                               rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.)
        optimiser.step()
        losses.append(loss.item())
    return cell.double(), embed.double().requires_grad_(False), sum(losses[-50:]) / 50


def on_recall(seed: int) -> tuple[RecurrentCell, float]:
    "A cell of 16 features, trained to recall the first symbol after 20 others, and its accuracy."
    torch.manual_seed(seed)
    cell = DiagonalGRUCell(16, 16)
    # an update gate that starts open
    with torch.no_grad(): cell.bias_ih[16:32] = 2.
    accuracy = recall_accuracy(nn.Sequential(RecurrentLayer(cell), nn.Linear(16, 8)), LAG, seed,
                               steps=1_000, lr=0.01)
    return cell.double(), accuracy


def chaotic(seed: int) -> RecurrentCell:
    """A tanh cell of 8 features whose recurrent weights are normal, four times as large as a
    spectral radius of about 1 asks for."""
    torch.manual_seed(seed)
    cell = RNNCell(8, 8)
    with torch.no_grad():
        cell.weight_hh.copy_(4 / 8**0.5 * torch.randn(8, 8))
        cell.weight_ih.copy_(torch.eye(8))
        cell.bias_ih.zero_(), cell.bias_hh.zero_()
    return cell.double()


def made(seed: int) -> dict[str, tuple]:
    "Name -> a cell, what draws one sequence (1, T, I) for it, and what its training reached."
    g = torch.Generator().manual_seed(1_000 + seed)
    found = {}
    for name, kind in TEXT.items():
        cell, embed, loss = on_text(kind, seed)
        found[name] = cell, lambda T, embed=embed: embed(text()[0][-T:][None]), {"loss": loss}
    cell, accuracy = on_recall(seed)
    found[LATCH] = cell, lambda T: first_symbol(1, T - 1, g)[0].double(), {"accuracy": accuracy}
    found[CHAOS] = chaotic(seed), lambda T: torch.randn(1, T, 8, generator=g,
            dtype=torch.float64), {}
    return found


def solved(cell: RecurrentCell, x: Tensor) -> tuple[Tensor, int]:
    "The states by Newton's method, and its rounds."
    return newton_states(joined_step(cell), x, x.new_zeros(1, cell.hidden_size),
                         isinstance(cell, DiagonalGRUCell))


def calls(cell: RecurrentCell, x: Tensor) -> dict:
    """What is timed: a forward and a backward pass, by the loop and by Newton's method; of a GRU
    by PyTorch's layer too."""
    runs = {"loop": lambda: unroll(cell, x)[0], "Newton": lambda: solved(cell, x)[0]}
    if type(cell) is GRUCell:
        theirs = nn.GRU(cell.input_size, cell.hidden_size, batch_first=True, dtype=torch.float64)
        theirs.load_state_dict({f"{name}_l0": p for name, p in cell.state_dict().items()})
        runs["PyTorch's layer"] = lambda: theirs(x)[0]
    return {name: lambda run=run: run().sum().backward() for name, run in runs.items()}


def measure(seed: int):
    """Rounds by length over seeds, milliseconds of a training step of one sequence; milliseconds
    by width. One thread."""
    cells = [made(s) for s in range(seed, seed + SEEDS)]
    for name, T in ticked([(name, T) for name in cells[0] for T in LENGTHS
                           if T <= LONGEST.get(name, T)]):
        found = []
        for given in cells:
            cell, drawn, reached = given[name]
            x = drawn(T)
            with torch.no_grad(): (states, rounds), wanted = solved(cell, x), unroll(cell, x)[0]
            found.append({"rounds": float(rounds),
                          "largest difference": float((states - wanted).abs().max()), **reached})
        taken = timed(calls(cells[0][name][0], cells[0][name][1](T)), REPEATS if name in TEXT
                      else 1, time.process_time)
        yield {"cell": name, "T": T, "C": cell.hidden_size, **over_seeds(found),
               **{f"{what} ms": scaled(t, 1e3) for what, t in taken.items()}}
    for C in ticked(WIDTHS):
        torch.manual_seed(seed)
        x, row = torch.randn(1, 512, C, dtype=torch.float64), {}
        for what, kind in (("dense", GRUCell), ("diagonal", DiagonalGRUCell)):
            cell = kind(C, C).double()
            taken = timed({"Newton": lambda cell=cell, x=x: solved(cell, x)[0].sum().backward()}, 3,
                          time.process_time)
            row |= {f"{what} rounds": spread([solved(cell, x)[1]]),
                    f"{what} ms": scaled(taken["Newton"], 1e3)}
        yield {"width": C, "T": 512, **row}
