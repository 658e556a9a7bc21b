"""What the tests of chapter 15 run in several processes; they are started afresh and import it
from here."""
import importlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor

# imported once, and not in every process; the first who asks decides for all of a worker's files
PRELOADED = "tfmlib.many_devices.cluster", "torch._dynamo", "torch._inductor.compile_fx"


def summed():
    "Processes that agree."
    dist.all_reduce(torch.ones(4))


def die():
    "Process 1 is killed while process 0 waits for it."
    if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def interrupt():
    "What is raised is no Exception."
    raise KeyboardInterrupt("enough")


def refuse():
    "Every process refuses at once."
    raise ValueError("no")


def both_wait():
    "Each process waits for a message of the other one."
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def hang():
    "Process 1 never comes."
    if dist.get_rank() == 1: time.sleep(300)
    dist.all_reduce(torch.ones(4))


def mismatch():
    "Processes that disagree about a shape."
    dist.all_reduce(torch.ones(4 + 4096 * dist.get_rank()))


def checked_mismatch():
    "The same, asked beforehand."
    from tfmlib.many_devices.recorder import agree
    agree("x", (4 + dist.get_rank(),))


def wrong_run(letter: str, job):
    "A run of the exercise *What went wrong?*, with its mistake."
    from contextlib import ExitStack
    from unittest.mock import patch

    from tfmlib.many_devices import data as data_parallel
    from tfmlib.many_devices import pipeline
    from tfmlib.many_devices import tensor as tensor_parallel
    finish, all_reduce, clip = (data_parallel.Buckets.finish, dist.all_reduce,
                                tensor_parallel.clip_together)

    def divided(buckets):
        finish(buckets)
        for p in buckets.bucket_of: p.grad /= dist.get_world_size()
    function, *more = {"A": (data_parallel.train_data_parallel,),
                       "B": (tensor_parallel.train_tensor_parallel, True),
                       "C": (pipeline.train_pipeline,),
                       "D": (data_parallel.train_data_parallel,),
                       "E": (tensor_parallel.train_tensor_parallel,)}[letter]
    mistakes = {"A": [(data_parallel.Buckets, "finish", divided)],
                "B": [(dist, "all_reduce", lambda x, *how: None if x.ndim == 1
                       else all_reduce(x, *how))],
                "C": [(dist, "all_reduce", lambda x, group=None: all_reduce(x) if group is None
                       else None)],
                "D": [(data_parallel, "total", Tensor.detach),
                      (data_parallel.Buckets, "launch", lambda buckets, i: None)],
                "E": [(tensor_parallel, "clip_together",
                       lambda pieces, copies, limit: clip(pieces, lambda name: 1, limit))]}[letter]
    with ExitStack() as stack:
        for mistake in mistakes: stack.enter_context(patch.object(*mistake))
        return function(job, *more)


WIDE = "toy Llama, wide"


def on_cluster(*arguments: str):
    "The program's training in a process that is there already, compiled as in a new one."
    from dataclasses import replace

    import torch

    from tfmlib.checkpoints import MODEL_CONFIGS
    from tfmlib.many_devices.cluster import read_arguments, train_on_cluster
    wide = {WIDE: replace(MODEL_CONFIGS["toy Llama"], d_model=128)}
    MODEL_CONFIGS.update(wide)
    torch.compiler.reset()
    try: return list(train_on_cluster(read_arguments(list(arguments))))
    finally: del MODEL_CONFIGS[WIDE]


# what torchrun starts: `die 3` kills process 1 at step 3 of the first attempt; the next word is for
# the second
if __name__ == "__main__":
    from tfmlib.many_devices import cluster

    faults, arguments = sys.argv[1:3], sys.argv[3:]
    kind, at = faults[int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))].split()

    def fault(step: int) -> None:
        if step != int(at) or os.environ["RANK"] != "1": return
        if kind == "die": os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang": time.sleep(300)
    torch.set_num_threads(1)
    cluster.main(arguments, fault)
    sys.stdout.flush()
    os._exit(0)


def with_all_parts(function, *arguments):
    "A form of parallelism in a process that knows every part."
    for module in ("checkpoints.core", "linear_and_state_space.hybrid", "mixture_of_experts.core"):
        importlib.import_module(f"tfmlib.{module}")
    importlib.import_module("tfmlib.mixture_of_experts.families")
    return function(*arguments)
