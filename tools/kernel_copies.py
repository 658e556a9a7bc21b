"""A plugin of pytest for the notebooks: kernels are copies of one process that has imported
PyTorch, its compiler and transformers, since each of eighty would import them anew for two to
seven seconds.

What is copied holds other people's packages only; the book's own are imported by each notebook, as
by a reader. The compiler imports Triton, which chapter 18 wants to import itself, to choose its
interpreter: its notebooks are copies of another process.
"""
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

LIBRARIES = "torch._dynamo", "transformers.modeling_utils"  # the first: for torch.optim, too

PARENT = """
import gc, importlib, json, os, signal, sys
import anywidget, matplotlib.backends.backend_svg, torch
from ipykernel.kernelapp import IPKernelApp
import ipykernel.ipkernel, IPython.core.completer

for name in sys.argv[1:]: importlib.import_module(name)
gc.collect()
gc.freeze()                                                          # copies need not look through all that
signal.signal(signal.SIGCHLD, signal.SIG_IGN)                       # nobody waits for a kernel that has ended
for line in sys.stdin:
    told = json.loads(line)
    if pid := os.fork():
        os.setpgid(pid, pid)                                         # a group of its own, to which signals are sent
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    sys.argv = told["cmd"][2:]
    try: IPKernelApp.launch_instance(sys.argv[1:])
    finally:
        sys.stdout.flush()
        os._exit(0)                                                  # without a look through all that was imported
"""  # noqa: E501


class Copy:
    """A kernel's process, as jupyter_client sees it: a child of the process that was copied, not of
    this one."""
    stdin = stdout = stderr = None

    def __init__(self, pid: int): self.pid = pid

    def poll(self) -> int | None:
        try: os.kill(self.pid, 0)
        except ProcessLookupError: return 0

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > end: raise subprocess.TimeoutExpired("kernel", timeout)
            time.sleep(.01)
        return 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None: os.kill(self.pid, number)

    def terminate(self) -> None: self.send_signal(signal.SIGTERM)

    def kill(self) -> None: self.send_signal(signal.SIGKILL)


def copier(libraries: Callable = lambda: ()):
    """What launches a kernel: it has the process copied that has imported these libraries, which it
    starts when the first is wanted."""
    parents = {}
    def launch(cmd, cwd=None, env=None, **_) -> Copy:
        names = libraries()
        if names not in parents:
            parents[names] = subprocess.Popen([sys.executable, "-c", PARENT, *names], text=True,
                                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        parent = parents[names]
        print(json.dumps({"cmd": cmd, "cwd": str(cwd or os.getcwd()),
                          "env": dict(env or os.environ)}), file=parent.stdin, flush=True)
        return Copy(int(parent.stdout.readline()))
    return launch


class Needed:
    "What the notebook whose cell comes next may find imported."
    path = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item) -> None: self.path = item.path

    def __call__(self) -> tuple[str, ...]:
        return () if "triton" in self.path.read_text(encoding="utf-8") else LIBRARIES


def pytest_configure(config):
    from jupyter_client.provisioning import local_provisioner
    if not hasattr(os, "fork"): return
    needed = Needed()
    config.pluginmanager.register(needed, "libraries of kernels")
    local_provisioner.launch_kernel = copier(needed)
