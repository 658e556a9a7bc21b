"""Turns the folder of a GPU run into records of the book: python -m bench --adopt FOLDER
[--partial]"""
import json
from pathlib import Path

from bench.gpu import RECORDS, SEED, STAGES
from bench.gpu.choose import chosen
from bench.gpu.journal import Journal
from bench.gpu.judge import current
from bench.gpu.kernels import named
from tfmlib.workbench import is_spread, parse_record

COMMAND = "make bench-gpu"


def measured(row: dict) -> bool:
    return any(isinstance(v, dict) and is_spread(v) for v in row.values())


def refused(journal: Journal) -> dict[tuple, dict[str, str]]:
    """By kernel, width and mask: the configurations that were not timed because of their first
    run, and the first reason."""
    found = {}
    def note(kernel, D, causal, who, why):
        found.setdefault((kernel, D, causal), {}).setdefault(who, why)
    for row in journal.rows("choose"):
        if row["case"] == "refused":
            note(row["kernel"], row["D"], row["causal"], *row["missing"].split(": ", 1))
    for case, why in journal.failures("choose"):
        if "first" in case:
            note(case["kernel"], case["D"], str(case["causal"]), named(case["configs"][0]), why)
    return found


def configurations(journal: Journal, setting: str) -> list[dict]:
    """The rows of `choose`: which configurations were timed, which of them were chosen in the
    end, and what is missing beside them."""
    rows, against = ([r for r in current(journal, setting, "choose") if r["case"]
                      == "configuration"], refused(journal))
    def missing(row):
        both = ([f"{who}: {why}" for who, why in against.get((row["kernel"], row["D"],
                row["causal"]), {}).items()] + [row["missing"]] * (row["missing"] != "nobody"))
        return "; ".join(both) or "nobody"
    return [row | {"missing": missing(row), "chosen": "yes" if row["config"] in chosen(journal,
            row["D"], row["causal"] == "True") else "no"} for row in rows]


def with_flex(rows: list[dict], flex: list[dict]) -> list[dict]:
    "The cases of `speed`, FlexAttention's fastest beside the others where it ran."
    def alike(a, b):
        return (a.get("case") == b["of"]
                and all(a.get(k) == b[k]
                        for k in ("direction", "N", "D", "B", "H", "G", "causal", "window")))
    joined = []
    for row in rows:
        names = {n: r for r in flex if alike(row, r) for n in r if n.startswith("FlexAttention")
                 and n.endswith(" ms")}
        best = min(names, key=lambda n: names[n][n]["median"], default=None)
        joined.append(row | ({f"FlexAttention{unit}": names[best][best.removesuffix(" ms") + unit]
                              for unit in (" ms", " MiB")} if best else {}))
    return joined


def rows_of(record: str, journal: Journal, setting: str) -> list[dict]:
    "What a record holds."
    found = {stage: current(journal, setting, stage) for stage in RECORDS[record]}
    if record == "flash_gpu":
        found |= {"choose": configurations(journal, setting),
                  "speed": with_flex(found["speed"], found["flex"])}
    return [{k: v for k, v in row.items() if k not in ("config", "blamed")}
            for rows in found.values() for row in rows if measured(row)]


def lacking(record: str, journal: Journal) -> list[str]:
    "What the last call says is missing of a record's stages."
    end, call = journal.last("end"), journal.last("call")
    if end.get("call") != call.get("call"): return ["the last call did not end"]
    return [text for text in end["missing"] if text.split(":")[0] in RECORDS[record]]


def record(name: str, journal: Journal) -> dict:
    "A record as it is kept."
    call, facts = journal.last("call"), journal.last("machine").get("circumstances", {})
    missing = lacking(name, journal)
    head = ({"name": name, "command": COMMAND, "seed": SEED} | facts
            | {"commit": call["commit"], "date": call["date"], "card": call["card"]})
    if call["card"].get("driver_version"): head["driver"] = call["card"]["driver_version"]
    return (head | {"complete": not missing, "missing": missing,
                    "rows": rows_of(name, journal, call["setting"])})


def adopt(folder: Path, target: Path, partial: bool = False) -> list[str]:
    """Write the records of a folder; one that is not complete is refused unless `partial`. Says
    what was done with each."""
    journal, said = Journal(folder / "rows.jsonl"), []
    if not journal.entries:
        raise ValueError(f"adopt: {folder} holds no run; expected a folder that `{COMMAND}` wrote")
    for name in RECORDS:
        made = record(name, journal)
        if made["missing"] and not partial:
            said.append(f"{name}: refused, it lacks {'; '.join(made['missing'])}"); continue
        if not made["rows"]: said.append(f"{name}: refused, nothing of it was measured"); continue
        parse_record(text := json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{name}.json").write_text(text)
        said.append(f"{name}: {len(made['rows'])} rows" + (f", without {'; '.join(made['missing'])}"
                if made["missing"] else ""))
    return said


assert {stage for stages in RECORDS.values() for stage in stages} <= {s.name for s in STAGES}
