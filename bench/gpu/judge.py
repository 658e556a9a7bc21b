"""Which bars were met, from the rows alone."""
from collections.abc import Iterator
from importlib import import_module

from bench.gpu import STAGES
from bench.gpu.journal import Journal

# stages that should find everything in Triton's cache
PRECOMPILED = ("choose", "correct", "speed", "decode")
LONGEST = 16_384


def pairs(N: int, causal: bool, window: int) -> float:
    """Query-key pairs that are credited: all that are visible, and half of all without a window,
    as is usual."""
    if window and causal: return min(window, N) * N - min(window, N) * (min(window, N) - 1) / 2
    return N * N / 2 if causal else N * N


def flops(row: dict) -> float:
    "Operations with which a case is credited: what is computed a second time does not count."
    return (4 * row["B"] * row["H"] * pairs(row["N"], row["causal"] == "True", row["window"])
            * row["D"] * (2.5 if row["direction"] == "backward" else 1))


def speed(row: dict, who: str) -> float | None:
    "10¹² operations a second."
    return flops(row) / row[f"{who} ms"]["median"] / 1e9 if f"{who} ms" in row else None


def ratio(row: dict, who: str, whom: str) -> float | None:
    "How many times as fast one is as another."
    return (row[f"{whom} ms"]["median"] / row[f"{who} ms"]["median"] if {f"{who} ms", f"{whom} ms"}
            <= set(row) else None)


def current(journal: Journal, setting: str, stage: str) -> list[dict]:
    "The rows of a stage whose cases are still those that the configurations chosen by now ask for."
    if not journal.rows(stage): return []
    module = next((s.module for s in STAGES if s.name == stage), None)
    try: cases = import_module(module).cases(setting, journal)
    # its module cannot be imported: what there is
    except Exception: return journal.rows(stage)
    return [row for case in cases for row in journal.rows_of(stage, case)]


def least(values: list[float | None]) -> float | None:
    "The smallest; nothing if one of them is missing."
    return min(values) if values and None not in values else None


# width, direction, causal, at least so many times SDPA's flash, at least so many 10¹² operations a
# second
BARS = (
    (128, "forward", "False", 1.2, 450), (128, "forward", "True", 1.15, 400),
    (64, "forward", "False", None, 370), (64, "forward", "True", None, 330),
    (128, "backward", "False", .9, None), (128, "backward", "True", .85, None),
)


def bars(rows: dict[str, list[dict]],
         longest: int = LONGEST) -> Iterator[tuple[str, float, float | None, str]]:
    "(what, at least, found, unit) of each bar."
    sweep = {(r["D"], r["direction"], r["causal"]): r for r in rows["speed"] if r["case"] == "sweep"
             and r["N"] == longest}
    for width, direction, causal, times, most in BARS:
        row = sweep.get((width, direction, causal), {})
        name = f"{direction}, width {width}, {'causal' if causal == 'True' else 'full'}"
        if times: yield f"{name}: times SDPA's flash", times, ratio(row, "ours", "SDPA flash"), "×"
        if most: yield f"{name}: speed", most, speed(row, "ours"), "TFLOP/s"
        if direction == "forward" and width == 128:
            yield f"{name}: times SDPA's cuDNN (an aim)", .9, ratio(row, "ours", "SDPA cuDNN"), "×"
    swept = [r for r in rows["speed"] if r.get("direction") == "backward"]
    yield ("backward in one sweep, the worst case: times SDPA's cuDNN", .9,
           least([ratio(r, "ours, one sweep", "SDPA cuDNN") for r in swept
                  if r["case"] == "sweep"]), "×")
    yield ("backward in one sweep, the worst case: times the two kernels (an aim)", 1.,
           least([ratio(r, "ours, one sweep", "ours") for r in swept]), "×")
    beside = [[ratio(r, "ours", name.removesuffix(" ms")) for name in r
               if name.startswith("FlexAttention") and name.endswith(" ms")] for r in rows["flex"]]
    yield ("never behind FlexAttention: the worst case", 1.,
           least([min(found) for found in beside if found and None not in found]), "×")
    yield ("decoding: part of the copy's bandwidth, the worst case", .8,
           least([part_of_copy(r) for r in rows["decode"]]), "×")
    yield ("in pages: part of the speed without, the worst case", .95,
           least([ratio(r, "ours, in pages", "ours") for r in rows["decode"]]), "×")
    yield ("packed: part of the speed of the dense kernels, the worst case", .95,
           least([ratio(r, "ours, packed", "ours") for r in rows["speed"]
                  if r["case"] == "packed"]), "×")
    yield ("part of the roofline, forward, the worst case", .25,
           least([part_of_product(r) for r in rows["speed"] if r["case"] == "sweep"
                  and r["direction"] == "forward"]), "×")
    yield ("correct: rows that kept their bar", 1., sum(r["kept"] == "yes" for r in rows["correct"])
           / len(rows["correct"]) if rows["correct"] else None, "×")


def part_of_copy(row: dict) -> float | None:
    "Bytes a second beside those of a copy in the same rounds."
    if not {"ours ms", "copy ms"} <= set(row): return None
    return (row["bytes"] / row["ours ms"]["median"]
            / (row["bytes copied"] / row["copy ms"]["median"]))


def part_of_product(row: dict) -> float | None:
    """Operations a second beside those of the product of two matrices in the same rounds; at
    these lengths the products are the roof."""
    if not {"ours ms", "product ms"} <= set(row): return None
    return speed(row, "ours") / (2e-9 * row["square"] ** 3 / row["product ms"]["median"])


def judged(journal: Journal, setting: str) -> str:
    "The table of the bars, and what else one has to know of this run, as Markdown."
    rows = {stage: current(journal, setting, stage)
            for stage in ("correct", "speed", "decode", "flex")}
    lines = ["| bar | at least | found | met |", "|---|---|---|---|"]
    for what, bar, found, unit in bars(rows):
        met = ("not measured" if found is None else "yes" + (f", by {100 * (found / bar - 1):.0f} %"
                if found > bar else "") if found >= bar
               else f"no, by {100 * (1 - found / bar):.0f} %")
        lines.append(
            f"| {what} | {bar:g} {unit} | {'–' if found is None else f'{found:.4g} {unit}'} | "
            f"{met} |")
    call, end = journal.last("call"), journal.last("end")
    if end.get("call") != call.get("call"): end = {}
    lines += ["", f"Commit {call.get('commit')}, call {call.get('call')}, "
                  f"{call.get('card', {}).get('name', 'nvidia-smi did not answer')}, "
                  f"{call.get('date')}. "
              + ("Complete." if end.get("complete") else "Not complete; it lacks:")]
    lines += [f"- {lack}" for lack in end.get("missing", ["an end: the run was killed"])]
    late = {s: sum(e["compiled"] for e in journal.entries if e["what"] == "done" and e["stage"]
                   == s) for s in PRECOMPILED}
    if any(late.values()):
        lines.append("Kernels that had to be compiled after all: "
                     + ", ".join(f"{n} in {s}" for s, n in late.items() if n) + ".")
    if journal.lost: lines.append(f"{journal.lost} lines of the journal could not be read.")
    if journal.waiting:
        lines.append(f"{len(journal.waiting)} entries could not be written ({journal.trouble}).")
    return "\n".join(lines)
