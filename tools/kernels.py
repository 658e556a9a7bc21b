"""Compile every shipped configuration of the kernels for GPUs that are not here:
python tools/kernels.py [--write] [--show]

Triton lowers a kernel without a GPU, and brings the assembler that counts registers, spills and
shared memory. The host code of `tfmlib.flash_attention_gpu.kernels`, and of the modules beside it,
is called on tensors without storage, and each of its launches becomes a compilation: what is
checked is what would be launched. tfmlib/assets/kernels.json keeps what was found, for each of two
versions of Triton, each row under a hash of its sources: a row whose hash fits is believed, but for
a sample; every other is compiled anew. Another version than the installed one lies in a folder of
its own, which `--triton` names:
pip install --no-deps --target FOLDER triton==3.6.0
"""
import argparse
import ast
import contextlib
import functools
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TABLE = ROOT / "tfmlib/assets/kernels.json"
# no two define the same name
SOURCES = [ROOT / f"tfmlib/flash_attention_gpu/{name}.py"
           for name in ("config", "kernels", "one_sweep", "varlen", "gluon", "gluon_backward")]
# the host code of a kernel, or of a way; of the others `start`
ROOTS = {"decode": "decode", "gluon": "start_gluon", "sweep gluon": "start_sweep"} | dict.fromkeys(
    ("varlen", "varlen dkdv", "varlen dq"), "start_packed")
VERSIONS = ("3.7.1", "3.6.0")  # of Triton: the locked one, and the one that many GPU machines carry
# bytes of shared memory that one program may have, by compute capability
SHARED = {90: 227 * 1024, 80: 163 * 1024}
SAMPLE = 3  # believed rows that are compiled all the same
HEADS, WINDOW = 4, 1024                                # of the tensors without storage
# the second is a multiple of nothing; there two query heads share a key head
LENGTHS = {"even": 4096, "ragged": 4001}
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"causal": True, "window": WINDOW}}
COUNTED = ("registers", "spills", "shared", "warps", "wgmma", "mma", "serial")


# --- compiling ------------------------------------------------------------------------------------

class Absent:
    "Stands for the driver of a GPU that is not here."
    def __init__(self, chip: int):
        from triton.backends.compiler import GPUTarget
        self.chip, self.target = chip, GPUTarget("cuda", chip, 32)

    def get_current_device(self) -> int: return self.chip
    def get_current_stream(self, device: int) -> int: return 0
    def get_current_target(self): return self.target


def facts(made, log: str) -> dict[str, int]:
    """What the assembler and the assembly say of one compiled kernel; serial: matrix instructions
    wait for one another (warning C7515)."""
    used, spilled, ptx = (re.search(r"Used (\d+) registers", log),
                          re.findall(r"(\d+) bytes spill (?:stores|loads)", log), made.asm["ptx"])
    if not used: raise RuntimeError(f"the assembler said nothing of registers: {log!r}")
    return {"registers": int(used[1]), "spills": sum(map(int, spilled)),
            "shared": made.metadata.shared, "warps": made.metadata.num_warps,
            "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)),
            "mma": len(re.findall(r"\bmma\.sync", ptx)), "serial": int("serialized" in log)
            } | ({"between": between(machine_code(made.asm["cubin"]))}
                 if made.metadata.name == "forward_gluon" else {})


def machine_code(cubin: bytes) -> str:
    """What the GPU runs, by the disassembler that Triton ships (whose own reader of it stops before
    the end)."""
    from triton import knobs
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([knobs.nvidia.nvdisasm.path, "-c", file.name], capture_output=True,
                              text=True, check=True).stdout


def between(sass: str) -> int:
    """The fewest exponentials that a step of the machine code has while a product is running: after
    the wait for all products but one, and before that for all.

    The order in the source does not decide that, since the assembler moves instructions. 0 also if
    the turn is not given to the other consumer before the first wait, or the keys not given back
    directly after it.
    """
    letters = {"HGMMA": "m", "SYNCS.ARRIVE": "a", "MUFU.EX2": "e",
               "WARPGROUP.DEPBAR.LE gsb0, 0x1": "1", "WARPGROUP.DEPBAR.LE gsb0, 0x0": "0"}
    order = "".join(letters[found] for found in re.findall("|".join(map(re.escape, letters)), sass))
    steps = re.findall(r"m([^m]*)1([^m01]*)0", order)
    if not steps or len(steps) < order.count("1"): return 0
    return min(after.count("e") if before == "a" and after.startswith("a") else 0
               for before, after in steps)


@contextlib.contextmanager
def launches_compile(chip: int):
    """Inside, a launch compiles for `chip` and runs nothing; what each kernel came to is kept under
    its name."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction
    found, run = {}, JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs):
        self.device_caches.clear()  # what this process compiled before would be silent
        with contextlib.redirect_stdout(io.StringIO()) as log:
            made = run(self, *args, grid=grid, warmup=True, **kwargs)
        found[self.fn.__name__] = facts(made, log.getvalue())

    driver.set_active(Absent(chip))
    JITFunction.run = compiled
    try:
        with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.compilation.scope(), knobs.nvidia.scope():  # noqa: E501
            knobs.cache.dir, knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = (
                cache, True, True)
            yield found
    finally: JITFunction.run = run


def launch_decoding(kernels, row: dict) -> None:
    """The same for few queries: of caches that lie in one piece; ragged, of caches in pages, each
    of its own length."""
    import torch
    config, told, N = kernels.Config(**row["config"]), MASKS[row["mask"]], LENGTHS[row["lengths"]]
    q = torch.empty(2, 8, config.rows // 4, config.width,
                    dtype={32: torch.float32, 16: torch.bfloat16}[config.bits], device="meta")
    shape, places = (2, 2, N, config.width), (None, None)
    if N % 2:
        shape, places = ((600, 2, 16, config.width),
                         tuple(torch.empty(2, *more, dtype=torch.int32, device="meta")
                               for more in ((), (N // 16,))))
    k, v = (q.new_empty(shape) for _ in range(2))
    kernels.decode(q, k, v,
                   kernels.band(q.shape[2], N, told.get("causal", False), told.get("window")),
                   kernels.scaled(q, None), places, config, 32)


def launch_packed(kernels, row: dict) -> None:
    "The same for packed sequences; ragged, two query heads share a key head."
    import torch

    from tfmlib.flash_attention_gpu.varlen import start_packed
    config, N = kernels.Config(**row["config"]), LENGTHS[row["lengths"]]
    dtype, offsets = ({32: torch.float32, 16: torch.bfloat16}[config.bits],
                      torch.empty(9, dtype=torch.int32, device="meta"))
    q, k, v = (torch.empty(1, h, N, config.width, dtype=dtype, device="meta")
               for h in (HEADS, *2 * [HEADS // (1 + N % 2)]))
    lse = q.new_empty(q.shape[1:3], dtype=torch.float32)
    others = {"varlen": [lse, q], "varlen dkdv": [q, lse, lse, q, q], "varlen dq": [q, lse, lse, q]}
    start_packed(config, [q, k, v, *others[config.kernel]], (offsets, offsets), (N, N),
                 row["mask"] == "causal", kernels.scaled(q, None))


def launch(kernels, row: dict) -> None:
    "Call the host code of a row's kernel on tensors without storage."
    import torch
    if row["config"]["kernel"] == "decode": return launch_decoding(kernels, row)
    if row["config"]["kernel"].startswith("varlen"): return launch_packed(kernels, row)
    config, told, N = (kernels.Config(**row["config"]), MASKS[row["mask"]],
                       LENGTHS[row.get("lengths", "even")])
    dtype = getattr(torch, row.get("type", {32: "float32", 16: "bfloat16"}[config.bits]))
    H, G = HEADS, HEADS // (2 if N % 2 else 1)
    # there the mask is needed in more than one tile of keys
    S = N + 77 * (config.way == "gluon" and N % 2)
    q, k, v = (torch.empty(1, h, n, config.width, dtype=dtype, device="meta")
               for h, n in ((H, N), (G, S), (G, S)))
    limits, scale = (kernels.band(N, S, told.get("causal", False), told.get("window")),
                     kernels.scaled(q, None))
    lse, room = q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(q.shape)
    like = {"forward": [q, k, v, lse, q], "dkdv": [q, k, v, q, lse, lse, room, room],
            "dq": [q, k, v, q, lse, lse, q],
            "sweep": [q, k, v, q, lse, lse, room, room, q.new_empty(q.shape, dtype=lse.dtype)]}
    kernels.launch(config, like[config.kernel], limits, scale)


def compiled(row: dict, module: str = "tfmlib.flash_attention_gpu.kernels") -> dict:
    "The row with what its kernel comes to, or with the reason why it does not compile."
    try:
        with launches_compile(row["chip"]) as found: launch(importlib.import_module(module), row)
    except Exception as error:
        return row | {"fails": f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"}
    counts = [*COUNTED, *(["between"] if overlaps(row) else [])]
    return row | {name: (sum if name == "spills"
                         else max)(counted[name] for counted in found.values()) for name in counts}


def compile_all(rows: list[dict]) -> list[dict]:
    """Compile rows in fresh processes, as many at a time as there are cores for this one; without
    the interpreter."""
    if not rows: return []
    os.environ.pop("TRITON_INTERPRET", None)
    with ProcessPoolExecutor(min(len(rows), len(os.sched_getaffinity(0))),
                             mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(compiled, rows))


def with_triton(folder: str, *command: str, **told) -> str:
    "What a command of Python prints that finds the Triton of a folder first."
    env = os.environ | {"PYTHONPATH": os.pathsep.join([folder,
                                                       *filter(None,
                                                               [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True,
                          **told)
    if done.returncode:
        raise RuntimeError(
            f"triton: {folder} failed; expected a folder with Triton in it: {done.stderr[-2000:]}")
    return done.stdout


def elsewhere(folder: str, rows: list[dict]) -> list[dict]:
    "Compile rows with the Triton of a folder."
    return json.loads(with_triton(folder, str(Path(__file__).resolve()), "--rows",
                                  input=json.dumps(rows)))


# --- the table ------------------------------------------------------------------------------------

@functools.cache
def essence(source: str, roots: tuple[str, ...] = ("start", "band", "scaled")) -> str:
    """The code that a launch depends on: what these functions need of the module, without comments,
    docstrings and order."""
    named: dict[str, list] = {}
    for node in ast.parse(source).body:
        bound = [*getattr(node, "targets", []),
                 *filter(None, [getattr(node, "target", None),
                                node.value.func if isinstance(node, ast.Expr)
                                and isinstance(node.value, ast.Call) else None])]
        # x = …, x |= …, x[1] = …, x.update(…)
        names = {name.id for target in bound
                 for name in ast.walk(target) if isinstance(name, ast.Name)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = {node.name}
            if ast.get_docstring(node) is not None: node.body = node.body[1:]
        for name in names: named.setdefault(name, []).append(node)
    needed, new = set(), set(roots)
    while new:
        needed |= new
        new = {name.id for known in new & named.keys() for node in named[known]
               for name in ast.walk(node) if isinstance(name, ast.Name)} - needed
    return "\n".join(ast.dump(node) for known in sorted(needed & named.keys())
                     for node in named[known])


def stamp(row: dict, source: str, version: str) -> str:
    """The hash under which a row is kept: of the kernels' code, of the configuration, of Triton's
    version."""
    kernel, way = row["config"]["kernel"], row["config"]["way"]
    own = ROOTS.get(f"{kernel} {way}") or ROOTS.get(kernel) or ROOTS.get(way) or "start"
    roots = (own, "band", "scaled")
    said = json.dumps([row["config"], row["chip"], row["mask"], row["lengths"],
                       essence(source, roots), version], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def asked(configs: list, source: str, version: str) -> list[dict]:
    """What the table should hold for a version: every configuration on every chip that runs it;
    with every mask and both lengths where `required`.

    Of the version that is not locked less is asked: of a kind's first row the cases that have
    spilled, of its others the hardest.
    """
    rows, seen = [], set()
    for config in configs:
        kind = (config.kernel, config.way, config.width, config.bits)
        for chip in SHARED:
            cases = [{"config": config._asdict(), "chip": chip, "mask": mask, "lengths": lengths}
                     for mask in MASKS for lengths in LENGTHS]
            fewer = ([("window", "ragged")] if kind in seen
                     else [("full", "ragged"), ("causal", "even"), ("causal", "ragged"),
                           ("window", "ragged")])
            if version == VERSIONS[1]:
                cases = [row for row in cases if not required(row)
                         or (row["mask"], row["lengths"]) in fewer]
            # which they do not have
            if config.kernel.startswith("varlen") or config.way == "gluon":
                cases = [row for row in cases if row["mask"] != "window"]
            rows += [row for row in cases if runs(row)
                     and (required(row) or row["mask"] == "causal" and row["lengths"] == "even")]
        seen.add(kind)
    return [row | {"triton": version, "stamp": stamp(row, source, version)} for row in rows]


def runs(row: dict) -> bool:
    "Is this configuration ever started on this chip?"
    return row["config"]["way"] == "pointers" or row["chip"] >= 90


def overlaps(row: dict) -> bool:
    "Are its exponentials counted that run beside a product? Of the forward pass in Gluon."
    return (row["config"]["kernel"], row["config"]["way"]) == ("forward", "gluon")


def required(row: dict) -> bool:
    "Must this row be free of spills and use the tensor cores? Elsewhere both are reported."
    config = row["config"]
    return runs(row) and config["bits"] == 16 and config["width"] in (64, 128)


def named(row: dict) -> str:
    "A row in words."
    c = row["config"]
    return (
        f"{c['kernel']}, {c['way']}, width {c['width']}, {c['bits']} bits, "
        f"{c['rows']}×{c['cols']}, {c['warps']} warps, {c['stages']} stages, "
            f"{row['mask']}, {row.get('lengths', 'even')}, sm_{row['chip']}, Triton "
            f"{row.get('triton', 'installed')}")


def faults(row: dict) -> list[str]:
    "What is wrong with a row of the table."
    if "fails" in row:
        return [f"{named(row)}: does not compile, {row['fails']}"] if runs(row) else []
    made = []
    if runs(row) and row["shared"] > SHARED[row["chip"]]:
        made.append(
            f"{named(row)}: {row['shared']} bytes of shared memory; at most {SHARED[row['chip']]}")
    if required(row) and row["spills"]:
        made.append(f"{named(row)}: {row['spills']} bytes spilled; expected none")
    if required(row) and row["serial"]:
        made.append(f"{named(row)}: its matrix instructions wait for one another (C7515)")
    # a thread has half a row of scores of two queries, and two corrections
    every = row["config"]["cols"] // 2 + 2
    if overlaps(row) and row["between"] < every:
        made.append(
            f"{named(row)}: {row['between']} exponentials while a product is running; expected all "
            f"{every}")
    # 16 rows are too few for wgmma
    units = (row["mma"] if row["chip"] < 90 else row["wgmma"] + row["mma"]
             * (row["config"]["kernel"] == "decode"))
    if required(row) and not units: made.append(f"{named(row)}: no tensor-core instructions")
    return made


def judged(rows: list[dict], kept: dict[str, dict], compile_them=compile_all,
           seed: int | None = None) -> tuple[list[dict], list[str]]:
    """The table's rows, believed or compiled anew, and everything that is wrong: with a row, or
    with what was kept of it."""
    known = [row for row in rows if row["stamp"] in kept]
    again = random.Random(seed).sample(known, min(SAMPLE, len(known)))
    found = {row["stamp"]: row
             for row in compile_them([row for row in rows if row["stamp"] not in kept] + again)}
    wrong = [f"{named(row)}: kept as {kept[row['stamp']]}, compiled to {found[row['stamp']]}"
             for row in again if kept[row["stamp"]] != found[row["stamp"]]]
    whole = [found.get(row["stamp"]) or kept[row["stamp"]] for row in rows]
    return whole, wrong + [fault for row in whole for fault in faults(row)]


def believed(rows: list[dict], kept: dict[str, dict]) -> tuple[list[dict], list[str]]:
    """The same for a version that cannot be asked here: what is kept of it, and what is wrong with
    that."""
    whole = [kept[row["stamp"]] for row in rows if row["stamp"] in kept]
    missing = [f"{named(row)}: not in the table; compile it with --triton"
               for row in rows if row["stamp"] not in kept]
    return whole, missing + [fault for row in whole for fault in faults(row)]


def written(rows: list[dict]) -> str:
    "The table as a file: one row, one line."
    return '{"rows": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n"


def compilers(folder: str | None) -> dict[str, Callable]:
    "Versions of Triton that can be asked here, and who compiles with them."
    import triton
    found: dict[str, Callable] = {triton.__version__: compile_all}
    if folder:
        found[with_triton(folder, "-c",
                          "import triton; print(triton.__version__)").strip()] = functools.partial(
                              elsewhere, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is compiled")
    parser.add_argument("--anew", action="store_true", help="believe nothing that is kept")
    parser.add_argument("--show", action="store_true", help="print every row")
    parser.add_argument("--triton", metavar="FOLDER", help="another Triton, which is asked as well")
    parser.add_argument("--rows", action="store_true",
                        help="compile the rows that come in, and print them")
    given = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    if given.rows: return print(json.dumps(compile_all(json.load(sys.stdin))))
    from tfmlib.flash_attention_gpu.kernels import CONFIGS, DECODING
    from tfmlib.flash_attention_gpu.varlen import VARLEN
    configs, source = (CONFIGS + DECODING + VARLEN,
                       "\n".join(file.read_text(encoding="utf-8") for file in SOURCES))
    asking, table, wrong = compilers(given.triton), [], []
    kept = ({} if given.anew or not TABLE.is_file()
            else {row["stamp"]: row for row in json.loads(TABLE.read_text())["rows"]})
    for version in dict.fromkeys((*VERSIONS, *asking)):
        rows = asked(configs, source, version)
        # whoever installs a newer one: a few rows, and nothing is kept
        if version not in VERSIONS: rows = random.sample(rows, SAMPLE)
        whole, faulty = (judged(rows, kept, asking[version]) if version in asking
                         else believed(rows, kept))
        wrong += faulty
        if version in VERSIONS: table += whole
        if given.show:
            for row in whole:
                print(f"{named(row):120}", row.get("fails")
                      or "  ".join(f"{name} {row[name]}"
                                   for name in [*COUNTED, "between"] if name in row))
        fresh = sum(row["stamp"] not in kept for row in rows) if version in asking else 0
        print(
            f"Triton {version}: {len(configs)} configurations, {len(rows)} rows: {fresh} compiled, "
            f"{min(SAMPLE, len(rows) - fresh) if version in asking else 0} of the others compiled again")  # noqa: E501
    if given.write: TABLE.write_text(written(table), encoding="utf-8")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
