"""A worker of the GPU run: takes one case after another from its input, says which contestant it
begins, and gives rows.

It keeps its first output for what it has to say, in lines of JSON; what libraries print goes where
its errors go. After any exception it ends: a CUDA error stays with a process.
"""
import ctypes
import importlib
import json
import os
import signal
import sys


def bound_to_parent(parent: int) -> None:
    "End with the process that started this one, also if that is killed and this one hangs."
    try: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except AttributeError: return                                   # only Linux has it
    if os.getppid() != parent: os._exit(1)


def circumstances() -> dict:
    "What a record says of this machine; only where the stage has imported PyTorch."
    if "torch" not in sys.modules: return {}
    from tfmlib.workbench import circumstances
    return circumstances("unknown")


def compiled() -> int:
    "How many kernels were compiled here since last asked, and not found in Triton's cache."
    kernels = sys.modules.get("bench.gpu.kernels")
    return kernels.misses() if kernels else 0


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


def main() -> None:
    module, setting, parent = sys.argv[1:]
    bound_to_parent(int(parent))
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    def tell(**told) -> None: print(json.dumps(told, allow_nan=False), file=messages, flush=True)
    def say(contestant: str | None = None, timing: bool = False) -> None:
        tell(contestant=contestant, timing=timing)
    try:
        measure = importlib.import_module(module).measure
        tell(ready=circumstances())
        for line in sys.stdin:
            asked = json.loads(line)
            for row in measure(setting, asked["case"], asked["without"], say): tell(row=row)
            tell(done=True, compiled=compiled())
    except BaseException as error:
        tell(failed=reason(error))
        messages.close()
        # no clean-up, which may hang on a GPU that is in error
        os._exit(1)


if __name__ == "__main__":
    main()
