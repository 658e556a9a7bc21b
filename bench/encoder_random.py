"""Chapter 9: of the chosen tokens 80 % masked and 20 % replaced, none kept; measured as
`bench.encoder_objectives` measures the others, after them."""
from collections.abc import Iterator

from bench import over_seeds
from bench.encoder_objectives import LABELLED, SEEDS, STEPS, facts_of, judged, rates

KIND = "no kept words"


def measure(seed: int) -> Iterator[dict]:
    "The choice of a rate, then the loss and what few labels are worth."
    yield from (rows := rates(KIND, seed))
    peak = float(max(rows, key=lambda r: r["tagging"]["median"])["peak"])
    found = over_seeds([{"loss": losses[str(STEPS)]} | worth for losses, worth in
                        (judged(KIND, peak, seed + s) for s in SEEDS)])
    yield {"what": "worth", **facts_of(KIND), "peak": f"{peak:g}", "steps": STEPS,
           "labelled": LABELLED} | found
