"""Measure what the book keeps on record: python -m bench [PART ...]; on a GPU python -m bench --gpu
--out FOLDER [STAGE ...]

A part is a module of this package with `measure(seed) -> rows`, each row a dict with the shape of
its case and a spread (`tfmlib.workbench.spread`) for each quantity. Its record goes to
tfmlib/assets/records/; if `measure` yields row after row, the record is written after each, and a
run that is cut off keeps what it has. The repository's root must be on PYTHONPATH. Runs that
bench/runs keeps are aggregated, not trained again; the record says so. What a GPU measures is one
run of many stages (bench/gpu): it needs torch, numpy and triton, and fills a folder, which `--adopt
FOLDER` makes into records.
"""
import argparse
import importlib
import json
import re
import sys
from pathlib import Path

from bench import SEED, gpu
from bench.gpu.run import commit
from bench.origin import digest

KEPT = Path(__file__).resolve().parent / "runs"
RECORDS = Path(__file__).resolve().parent.parent / "tfmlib/assets/records"


def parts(device: str) -> list[str]:
    "The names of the records that are measured on `device`."
    if device == "gpu": return list(gpu.RECORDS)
    sources = {path.stem: path.read_text(encoding="utf-8")
               for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
    # read, not imported
    return [name for name, text in sources.items() if re.search(r"^def measure\(", text, re.M)]


def kept(name: str) -> int:
    """How many runs of a part are kept: lines of bench/runs/PART.jsonl, which `measure` reads
    instead of training them again."""
    path = KEPT / f"{name}.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0


def record(name: str, folder: Path = RECORDS) -> Path:
    """Run one part, on one thread, and write its record; what lacks its circumstances or its
    spread is refused."""
    import torch

    from tfmlib.workbench import circumstances, parse_record
    part = importlib.import_module(f"bench.{name}")
    before = kept(name)
    # of the tree that is measured
    facts, threads = circumstances(commit()), torch.get_num_threads()
    torch.set_num_threads(1)
    path, head, found = (folder / f"{name}.json",
                         {"name": name, "command": "make bench", "seed": SEED,
                          "code": digest(part.__name__), **facts}, [])
    def keep() -> None:
        if now := kept(name):
            head["runs"] = (
                f"aggregated from kept runs, bench/runs/{name}.jsonl: {now - before} trained now, "
                f"{before} before")
        parse_record(text := json.dumps(head | {"rows": found}, indent=1) + "\n")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    try:
        measured = part.measure(SEED)
        if isinstance(measured, list): found += measured; keep()
        else:
            for row in measured: found.append(row); keep()
    finally: torch.set_num_threads(threads)
    return path


def table(path: Path) -> str:
    "The record as lines of text, medians only."
    rows = json.loads(path.read_text())["rows"]
    return "\n".join("  ".join(f"{k}={v['median']:.4g}" if isinstance(v, dict) else f"{k}={v}"
                               for k, v in row.items()) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART",
                        help="records to measure; with --gpu stages of the run; by default all")
    run = parser.add_argument_group("on a GPU")
    run.add_argument("--gpu", action="store_true", help="run the stages of bench/gpu")
    run.add_argument("--out", metavar="FOLDER",
                     help="where its rows go; a folder with rows is continued")
    run.add_argument("--commit", metavar="ID",
                     help="the commit that is measured, where there is no git (or TFM_COMMIT)")
    run.add_argument("--seconds", type=float, default=gpu.CALL,
                     help="after which the call ends by itself")
    run.add_argument("--rehearse", action="store_true",
                     help="tiny sizes, in Triton's interpreter, without a GPU")
    run.add_argument("--adopt", metavar="FOLDER", help="make records of a run's folder")
    run.add_argument("--partial", action="store_true",
                     help="of what there is, also if it is not complete")
    given = parser.parse_args()
    if given.adopt:
        from bench.gpu.adopt import adopt
        said = adopt(Path(given.adopt), RECORDS, given.partial)
        print("\n".join(said))
        sys.exit(any(": refused" in line for line in said))
    if given.gpu:
        if not given.out: parser.error("--gpu needs --out FOLDER")
        from bench.gpu.run import main as run_stages
        sys.exit(run_stages(given))
    known = parts("cpu")
    if unknown := set(given.parts) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {known}")
    chosen = given.parts or known
    for i, name in enumerate(chosen, 1):
        print(f"{name} ({i} of {len(chosen)}) …", flush=True)
        path = record(name)
        print(f"{name} → {path}\n{table(path)}", flush=True)


if __name__ == "__main__":
    main()
