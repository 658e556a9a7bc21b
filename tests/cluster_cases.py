"""What the tests of the cluster program run in several processes, and what torchrun starts: a
program that kills itself at random moments."""
import json
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


def stopped(step: int, *arguments: str):
    "Process 0 gets SIGTERM before a step; what it returned until all had stopped."
    from tfmlib.many_devices.cluster import train_on_cluster
    from tfmlib.many_devices.cluster_settings import read_arguments

    def watch(now: int) -> None:
        if now == step and dist.get_rank() == 0: os.kill(os.getpid(), signal.SIGTERM)
    return list(train_on_cluster(read_arguments(list(arguments)), watch))


def apart(folder: str, *arguments: str):
    "Each process has a disk of its own."
    from tfmlib.many_devices.cluster import train_losses
    from tfmlib.many_devices.cluster_settings import read_arguments
    before = os.getcwd()
    own = f"{folder}/disk-{dist.get_rank()}"
    os.makedirs(own, exist_ok=True)
    os.chdir(own)
    try: return train_losses(read_arguments([*arguments, "--checkpoint", "run"]))
    finally: os.chdir(before)


def trained(steps: int, *arguments: str):
    "A trainer with its first weights, after some steps."
    from tfmlib.many_devices.cluster_model import Trainer
    from tfmlib.many_devices.cluster_settings import read_arguments
    trainer = Trainer(read_arguments(list(arguments)))
    trainer.init_weights()
    for step in range(steps): trainer.step(step)
    return trainer


def batches(steps: int, *arguments: str):
    "This process's rows of some batches."
    trainer = trained(0, *arguments)
    return [trainer.batch(step) for step in range(steps)]


def memory(*arguments: str):
    """Bytes of this process's pieces by purpose; the most bytes alive while a model is made;
    those of its largest parameter, and of all."""
    from torch import nn

    from tfmlib.accounting import LiveMemory
    from tfmlib.many_devices.cluster_model import rank_bytes

    class Real(LiveMemory):
        """Counts what has memory: a tensor on the meta device has none, and that of a DTensor is
        its local tensor's."""
        def add(self, t):
            if t.device.type != "meta" and type(t) in (torch.Tensor, nn.Parameter): super().add(t)
    with Real(nn.Module()) as live: trainer = trained(0, *arguments)
    trainer.step(0)
    sizes = [w.numel() * w.element_size() for w in trainer.model.parameters()]
    return rank_bytes(trainer), max(n for n, _ in live.history), max(sizes), sum(sizes)


def operations(*arguments: str):
    "Which operations a step calls, and how often blocks were compiled."
    from torch.utils._python_dispatch import TorchDispatchMode

    from tfmlib.many_devices.cluster_model import Trainer  # noqa: F401
    names = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.append(operation.name())
            return operation(*args, **(kwargs or {}))
    trainer = trained(0, *arguments)
    with Names(): trainer.step(0)
    return names


def graphs(*arguments: str):
    "How many graphs torch.compile made for a model's blocks."
    import torch._dynamo as dynamo
    dynamo.reset()
    dynamo.utils.counters.clear()
    trained(2, *arguments)
    return (dynamo.utils.counters["stats"]["unique_graphs"],
            sum(dynamo.utils.counters["graph_break"].values()))


def kill_at_random(folder: str, attempt: int, times: int, rank: int, size: int):
    """In the first attempts, one process is killed within half a second of one of its first
    dozen steps or, in each fourth attempt, within three of its start. The steps to do, and what
    is called before each."""
    from tfmlib.many_devices.cluster_checkpoints import checkpoints
    draw, begun = random.Random(f"kill {attempt}"), []
    victim, at = draw.randrange(size), 0 if attempt % 4 == 3 else draw.randrange(1, 13)
    after = draw.uniform(0, .5 if at else 3)

    def kill() -> None:
        time.sleep(after)
        with open(f"{folder}/killed-{attempt:02}", "w") as file:
            file.write(
                f"process {victim}, {after:.2f} s after "
                f"{f'step {at} of this attempt began' if at else 'its start'}")
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(step: int = -1) -> None:
        if attempt < times and rank == victim and len(begun) == at:
            threading.Thread(target=kill, daemon=True).start()
        begun.append(step)
    begin()
    done = [int(path.name[5:]) for path in checkpoints(f"{folder}/run")]
    return str(10**6 if attempt < times else max(done, default=0) + 5), begin


def killed(folder: str, attempt: int, times: int, *arguments: str) -> None:
    """An attempt of a run in processes that have started already; process 0 writes what is
    reported of each step."""
    from tfmlib.many_devices.cluster import train_on_cluster
    from tfmlib.many_devices.cluster_settings import read_arguments
    steps, watch = kill_at_random(folder, attempt, times, dist.get_rank(), dist.get_world_size())
    for found in train_on_cluster(read_arguments([*arguments, "--checkpoint", f"{folder}/run",
                                                  "--steps", steps]), watch):
        if dist.get_rank() > 0: continue
        with open(f"{folder}/steps", "a") as file: file.write(json.dumps(found) + "\n")


# what torchrun starts: folder, times, and the program's arguments
if __name__ == "__main__":
    from tfmlib.many_devices import cluster
    torch.set_num_threads(1)
    own = (int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(sys.argv[2]), int(os.environ["RANK"]),
           int(os.environ["WORLD_SIZE"]))
    steps, watch = kill_at_random(sys.argv[1], *own)
    cluster.main([*sys.argv[3:], "--checkpoint", f"{sys.argv[1]}/run", "--steps", steps], watch)
    sys.stdout.flush()
    os._exit(0)
