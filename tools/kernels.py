"""Compile every shipped configuration of the kernels for GPUs that are not here: python tools/kernels.py [--write] [--show]

Triton lowers a kernel without a GPU, and brings the assembler that counts registers, spills and shared memory. The host code
of `tfmlib.flash_kernels` is called on tensors without storage, and each of its launches becomes a compilation: what is
checked is what would be launched. tfmlib/assets/kernels.json keeps what was found, each row under a hash of its sources: a
row whose hash fits is believed, but for a sample; every other is compiled anew. `--write` compiles all of them and keeps it.
"""
import argparse
import ast
import contextlib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TABLE, SOURCE = ROOT / "tfmlib/assets/kernels.json", ROOT / "tfmlib/flash_kernels.py"
SHARED = {90: 227 * 1024, 80: 163 * 1024}              # bytes of shared memory that one program may have, by compute capability
SAMPLE = 3                                             # believed rows that are compiled all the same
LENGTH, HEADS, WINDOW = 4096, 4, 1024                  # of the tensors without storage
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"causal": True, "window": WINDOW}}
COUNTED = ("registers", "spills", "shared", "warps", "wgmma", "mma")


# --- compiling ------------------------------------------------------------------------------------------------------

class Absent:
    "Stands for the driver of a GPU that is not here."
    def __init__(self, chip: int):
        from triton.backends.compiler import GPUTarget
        self.chip, self.target = chip, GPUTarget("cuda", chip, 32)

    def get_current_device(self) -> int: return self.chip
    def get_current_stream(self, device: int) -> int: return 0
    def get_current_target(self): return self.target


def facts(made, log: str) -> dict[str, int]:
    "What the assembler and the assembly say of one compiled kernel."
    used, spilt, ptx = re.search(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes spill (?:stores|loads)", log), made.asm["ptx"]
    if not used: raise RuntimeError(f"the assembler said nothing of registers: {log!r}")
    return {"registers": int(used[1]), "spills": sum(map(int, spilt)), "shared": made.metadata.shared, "warps": made.metadata.num_warps,
            "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)), "mma": len(re.findall(r"\bmma\.sync", ptx))}


@contextlib.contextmanager
def launches_compile(chip: int):
    "Inside, a launch compiles for `chip` and runs nothing; what each kernel came to is kept under its name."
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction
    found, run = {}, JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()) as log: made = run(self, *args, grid=grid, warmup=True, **kwargs)
        found[self.fn.__name__] = facts(made, log.getvalue())

    driver.set_active(Absent(chip))
    JITFunction.run = compiled
    try:
        with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.compilation.scope(), knobs.nvidia.scope():
            knobs.cache.dir, knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = cache, True, True
            yield found
    finally: JITFunction.run = run


def compiled(row: dict, module: str = "tfmlib.flash_kernels") -> dict:
    "The row with what its kernel comes to, or with the reason why it does not compile."
    import torch
    kernels = importlib.import_module(module)
    config, told = kernels.Config(**row["config"]), MASKS[row["mask"]]
    dtype = getattr(torch, row.get("type", {32: "float32", 16: "bfloat16"}[config.bits]))
    q, k, v = (torch.empty(1, HEADS, LENGTH, config.width, dtype=dtype, device="meta") for _ in range(3))
    limits, scale = kernels.band(LENGTH, LENGTH, told.get("causal", False), told.get("window")), kernels.scaled(q, None)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    like = {"forward": [q, k, v, lse, q], "dkdv": [q, k, v, q, lse, lse, k, v], "dq": [q, k, v, q, lse, lse, q]}
    try:
        with launches_compile(row["chip"]) as found: kernels.start(config, like[config.kernel], limits, scale)
    except Exception as error: return row | {"fails": f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"}
    [counted] = found.values()
    return row | counted


# --- the table ------------------------------------------------------------------------------------------------------

def essence(source: str, roots: tuple[str, ...] = ("start", "band", "scaled")) -> str:
    "The code that a launch depends on: what these functions need of the module, without comments, docstrings and order."
    named: dict[str, list] = {}
    for node in ast.parse(source).body:
        bound = [*getattr(node, "targets", []), *filter(None, [getattr(node, "target", None), node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None])]
        names = {name.id for target in bound for name in ast.walk(target) if isinstance(name, ast.Name)}      # x = …, x |= …, x[1] = …, x.update(…)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = {node.name}
            if ast.get_docstring(node) is not None: node.body = node.body[1:]
        for name in names: named.setdefault(name, []).append(node)
    needed, new = set(), set(roots)
    while new:
        needed |= new
        new = {name.id for known in new & named.keys() for node in named[known] for name in ast.walk(node) if isinstance(name, ast.Name)} - needed
    return "\n".join(ast.dump(node) for known in sorted(needed & named.keys()) for node in named[known])


def stamp(row: dict, source: str, version: str) -> str:
    "The hash under which a row is kept: of the kernels' code, of the configuration, of Triton's version."
    said = json.dumps([row["config"], row["chip"], row["mask"], essence(source), version], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def asked(configs: list, source: str, version: str) -> list[dict]:
    "What the table should hold: every configuration for every chip; with every mask, if it is the first of its kind and runs there."
    rows, seen = [], set()
    for config in configs:
        kind = (config.kernel, config.way, config.width, config.bits)
        for chip in SHARED:
            masks = MASKS if kind not in seen and config.bits == 16 else ("full", "causal") if config.bits == 16 else ("causal",)
            if not runs({"config": config._asdict(), "chip": chip}): masks = ("causal",)
            rows += [{"config": config._asdict(), "chip": chip, "mask": mask} for mask in masks if config.causal in (None, mask != "full")]
        seen.add(kind)
    return [row | {"stamp": stamp(row, source, version)} for row in rows]


def runs(row: dict) -> bool:
    "Is this configuration ever started on this chip?"
    return row["config"]["way"] == "pointers" or row["chip"] >= 90


def required(row: dict) -> bool:
    "Must this row be free of spills and use the tensor cores? Elsewhere both are reported."
    config = row["config"]
    return runs(row) and config["bits"] == 16 and config["width"] in (64, 128) and (config["kernel"] != "dkdv" or row["mask"] != "window")


def named(row: dict) -> str:
    "A row in words."
    c = row["config"]
    return f"{c['kernel']}, {c['way']}, width {c['width']}, {c['bits']} bits, {c['rows']}×{c['cols']}, {c['warps']} warps, {c['stages']} stages, {row['mask']}, sm_{row['chip']}"


def faults(row: dict) -> list[str]:
    "What is wrong with a row of the table."
    if "fails" in row: return [f"{named(row)}: does not compile, {row['fails']}"] if runs(row) else []
    made = []
    if runs(row) and row["shared"] > SHARED[row["chip"]]: made.append(f"{named(row)}: {row['shared']} bytes of shared memory; at most {SHARED[row['chip']]}")
    if required(row) and row["spills"]: made.append(f"{named(row)}: {row['spills']} bytes spilt; expected none")
    if required(row) and not row["wgmma" if row["chip"] >= 90 else "mma"]: made.append(f"{named(row)}: no tensor-core instructions")
    return made


def compile_all(rows: list[dict]) -> list[dict]:
    "Compile rows in fresh processes, as many at a time as there are cores; without the interpreter."
    if not rows: return []
    os.environ.pop("TRITON_INTERPRET", None)
    with ProcessPoolExecutor(min(len(rows), os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(compiled, rows))


def judged(rows: list[dict], kept: dict[str, dict], compile_them=compile_all, seed: int | None = None) -> tuple[list[dict], list[str]]:
    "The table's rows, believed or compiled anew, and everything that is wrong: with a row, or with what was kept of it."
    known = [row for row in rows if row["stamp"] in kept]
    again = random.Random(seed).sample(known, min(SAMPLE, len(known)))
    found = {row["stamp"]: row for row in compile_them([row for row in rows if row["stamp"] not in kept] + again)}
    wrong = [f"{named(row)}: kept as {kept[row['stamp']]}, compiled to {found[row['stamp']]}" for row in again if kept[row["stamp"]] != found[row["stamp"]]]
    whole = [found.get(row["stamp"]) or kept[row["stamp"]] for row in rows]
    return whole, wrong + [fault for row in whole for fault in faults(row)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="compile everything and keep it")
    parser.add_argument("--show", action="store_true", help="print every row")
    given = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    import triton

    from tfmlib.flash_kernels import CONFIGS
    rows = asked(CONFIGS, SOURCE.read_text(encoding="utf-8"), triton.__version__)
    kept = {} if given.write or not TABLE.is_file() else {row["stamp"]: row for row in json.loads(TABLE.read_text())["rows"]}
    whole, wrong = judged(rows, kept)
    if given.show:
        for row in whole: print(f"{named(row):90}", row.get("fails") or "  ".join(f"{name} {row[name]}" for name in COUNTED))
    if given.write: TABLE.write_text(json.dumps({"triton": triton.__version__, "rows": whole}, indent=1) + "\n")
    fresh = sum(row["stamp"] not in kept for row in rows)
    print(f"{len(CONFIGS)} configurations, {len(rows)} rows: {fresh} compiled, {min(SAMPLE, len(rows) - fresh)} of the others compiled again")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
