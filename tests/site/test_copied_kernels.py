"""A kernel that is a copy of a process is a kernel like any other: its folder, environment,
interrupt and end."""
import os
import time
from types import SimpleNamespace

import kernel_copies
import pages
import pytest
from conftest import ROOT
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner

pytestmark = pytest.mark.slow


def test_only_those_that_choose_how_triton_runs_find_it_not_imported():
    needed, found = kernel_copies.Needed(), {}
    for path in pages.notebook_files(ROOT / "chapters"):
        needed.pytest_runtest_setup(SimpleNamespace(path=path))
        found[path] = needed()
    assert {path.stem[:2] for path, libraries in found.items() if not libraries} >= {"18"}
    assert found[ROOT / "chapters/10_decoders.ipynb"] == kernel_copies.LIBRARIES


LAUNCH = kernel_copies.copier()


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    monkeypatch.setattr(local_provisioner, "launch_kernel", LAUNCH)
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path), env=os.environ | {"TFM_HERE": "yes"})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=180)
    yield manager, client
    client.stop_channels()
    pid = manager.provisioner.process.pid
    manager.shutdown_kernel()
    with pytest.raises(ProcessLookupError): os.kill(pid, 0)


def said(client, code: str) -> str:
    "What a cell prints, or the name of its error."
    found = []
    client.execute_interactive(code, timeout=180,
                               output_hook=lambda m: found.append(m["content"].get("text")
                                       or m["content"].get("ename", "")))
    return "".join(found).strip()


def test_it_runs_where_and_as_it_was_told(kernel, tmp_path):
    _, client = kernel
    assert (said(client, "import os, sys; print(os.getcwd(), os.environ['TFM_HERE'], [m for m in "
                         "sys.modules if m.startswith('tfmlib')])") == f"{tmp_path} yes []")
    assert (said(client, "import torch; print(torch.ones(2).sum().item(), __name__)")
            == "2.0 __main__")


def test_it_can_be_interrupted(kernel):
    manager, client = kernel
    client.execute("import time\nprint('begun')\ntime.sleep(600)")
    while client.get_iopub_msg(timeout=180)["content"].get("text") != "begun\n": pass
    start = time.monotonic()
    manager.interrupt_kernel()
    # a slow kernel was asked twice whether it is ready
    while (reply := client.get_shell_msg(timeout=180))["msg_type"] != "execute_reply": pass
    assert reply["content"]["ename"] == "KeyboardInterrupt" and time.monotonic() - start < 120


def test_a_dead_one_is_seen(kernel):
    manager, client = kernel
    client.execute("import os; os._exit(1)")
    while manager.is_alive(): time.sleep(.01)
