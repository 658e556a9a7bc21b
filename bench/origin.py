"""Where a record comes from: a digest of the code that made it, which no rebase loses, or a
commit, or the plain words that it is not kept."""
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))

import steps  # noqa: E402


def digest(module: str) -> str:
    """A digest of the code that `module` runs: its own, and that of what it imports from this
    project, and so on."""
    path = steps.module_file(module, ROOT)
    if path is None: raise ValueError(f"module: got {module!r}; expected a module of this project")
    lines = [f"{p.relative_to(ROOT).as_posix()} {hashlib.sha256(p.read_bytes()).hexdigest()}"
             for p in sorted(steps.closure([path], ROOT))]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()
