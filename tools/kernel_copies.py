"""A plugin of pytest for the notebooks: kernels are copies of one process that has imported
PyTorch, since each of fifty would import it anew for three seconds.

What is copied holds other people's packages only; the book's own are imported by each notebook, as
by a reader.
"""
import json
import os
import signal
import subprocess
import sys
import time

PARENT = """
import json, os, signal, sys
import anywidget, matplotlib, torch
from ipykernel.kernelapp import IPKernelApp
import ipykernel.ipkernel, IPython.core.completer

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


def copier():
    "What launches a kernel: it has the process copied, which it starts when the first is wanted."
    parent = None
    def launch(cmd, cwd=None, env=None, **_) -> Copy:
        nonlocal parent
        parent = (parent or subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, text=True))
        print(json.dumps({"cmd": cmd, "cwd": str(cwd or os.getcwd()),
                          "env": dict(env or os.environ)}), file=parent.stdin, flush=True)
        return Copy(int(parent.stdout.readline()))
    return launch


def pytest_configure(config):
    from jupyter_client.provisioning import local_provisioner
    if hasattr(os, "fork"): local_provisioner.launch_kernel = copier()
