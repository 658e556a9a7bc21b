"""The training loop: its optimiser equals PyTorch's, its files are whole, and what is killed
resumes bit for bit."""
import math
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from safetensors.torch import save
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_cases import F64, batch, net, plain_loop, same, squared, weights

from tfmlib.workbench import (
    AdamW,
    Checkpoint,
    Diverged,
    ParameterGroup,
    SimpleAdamW,
    WarmupCosine,
    WarmupStableDecay,
    clip_gradients,
    epochs,
    load_tensors,
    mix_seed,
    optimisers,
    parameter_groups,
    processes,
    save_tensors,
    seeded,
    share,
    tensor_files,
    train,
    training,
)

ROOT = Path(__file__).resolve().parents[2]
# seconds until a process that should have ended is given up: a loaded machine is slow
PATIENCE = 600


@pytest.fixture(autouse=True, scope="module")
def quiet(one_thread):
    "No bars; one thread, as in the processes that are started: another number adds otherwise."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        yield


def adamw(model, **how):
    return AdamW(parameter_groups(model, 0.1),
                 **{"lr": WarmupCosine(0.01, 5, 60), "clip": 1.0} | how)


def train_only_out(model):
    train(model, squared, batch, 1, AdamW([ParameterGroup({"out.weight": model.out.weight})], 0.1))


def trained(steps, *kept, model=None, loss=squared, batch=batch, **how):
    "A model after these steps, and the history of it."
    model = model or net()
    return model, train(model, loss, batch, steps, adamw(model), *kept, **how)


# --- AdamW ----------------------------------------------------------------------------------------

def test_groups_leave_vectors_and_frozen_parameters_alone():
    model = net()
    model.out.weight.requires_grad_(False)
    decayed, free = parameter_groups(model, 0.2)
    assert (set(decayed.parameters) == {"body.0.weight", "head.weight"} and decayed.weight_decay
            == 0.2 and free.weight_decay == 0)
    assert all(p.ndim == 1 for p in free.parameters.values()) and "out.bias" in free.parameters


class Plain:
    "A rate without a __repr__: its text holds an address."
    def __init__(self, top): self.top = top
    def __call__(self, step): return self.top / (1 + step)


@dataclass
class Wrapped:
    "A dataclass whose text holds an address."
    inside: object
    def __call__(self, step): return self.inside(step)


@pytest.mark.parametrize("make", [lambda top: lambda step: top / (1 + step), Plain,
                                  lambda top: Wrapped(Plain(top)),
                                  lambda top: [top, 0.0].__getitem__])
def test_a_rate_is_known_by_its_values(tmp_path, make):
    "Made anew it is the same; with another number it is another, whatever its name."
    def go_on(steps, top):
        model = net()
        train(model, squared, batch, steps, adamw(model, lr=make(top)), Checkpoint(tmp_path / "c"))
    for steps in (1, 2): go_on(steps, 0.1)
    refuses("rate at step .* is 0.1.* there, 0.2.* here", go_on, 3, 0.2)


# --- clipping -------------------------------------------------------------------------------------

def with_gradients(*gradients):
    made = {f"p{i}": nn.Parameter(torch.zeros_like(g)) for i, g in enumerate(gradients)}
    for p, g in zip(made.values(), gradients): p.grad = g.clone()
    return made


@settings(max_examples=often(60), deadline=None)
@given(seed=st.integers(0, 10**6), limit=st.floats(1e-3, 1e3), scale=st.floats(1e-4, 1e4),
       sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_clip_is_pytorchs(seed, limit, scale, sizes):
    gradients = [scale * torch.randn(n, dtype=F64, generator=seeded(seed, i))
                 for i, n in enumerate(sizes)]
    ours, theirs = with_gradients(*gradients), with_gradients(*gradients)
    length = clip_gradients(ours, limit)
    torch.testing.assert_close(length, nn.utils.clip_grad_norm_(theirs.values(), limit).item())
    for name in ours: torch.testing.assert_close(ours[name].grad, theirs[name].grad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_clip_names_what_is_not_finite(bad):
    p = with_gradients(torch.ones(2), torch.tensor([1.0, bad]))
    with pytest.raises(Diverged, match="p1"): clip_gradients(p, 1.0)
    assert torch.equal(p["p0"].grad, torch.ones(2))


@pytest.mark.parametrize("size", [1e20, 0.1, 1e-30])
def test_clip_measures_what_float32_cannot_square(size):
    "And leaves a short gradient as it was."
    given_ = torch.tensor([3 * size, 4 * size])
    p = with_gradients(given_)
    assert clip_gradients(p, 1.0) == pytest.approx(5 * size)
    torch.testing.assert_close(p["p0"].grad, torch.tensor([0.6, 0.8]) if size > 1 else given_,
                               rtol=1.3e-6 if size > 1 else 0, atol=1e-5 if size > 1 else 0)
    p["p0"].grad = None
    assert clip_gradients(p, 1.0) == 0


def test_means_that_would_overflow_are_refused():
    "Else the mean of the squares would be infinite, and the parameter would never move again."
    p = with_gradients(torch.tensor([1e20, 0.0]))
    with pytest.raises(Diverged, match="square"): AdamW([ParameterGroup(p)], 0.1).step()
    assert torch.equal(p["p0"], torch.zeros(2))
    AdamW([ParameterGroup(p)], 0.1, clip=1.0).step()
    assert p["p0"][0].item() == pytest.approx(-0.1)


# --- the schedule ---------------------------------------------------------------------------------

@settings(max_examples=often(100), deadline=None)
@given(peak=st.floats(1e-6, 1), warmup=st.integers(0, 50), rest=st.integers(1, 500),
       share_=st.floats(0, 1))
def test_schedule_ends_and_limits(peak, warmup, rest, share_):
    schedule = WarmupCosine(peak, warmup, warmup + rest, share_ * peak)
    rates = [schedule(step) for step in range(warmup + rest + 5)]
    assert rates[0] > 0 and rates[warmup] == pytest.approx(peak) == pytest.approx(max(rates))
    assert rates[-5:] == pytest.approx([share_ * peak] * 5)
    assert rates[:warmup + 1] == sorted(rates[:warmup + 1])
    assert all(a >= b - 1e-12 for a, b in zip(rates[warmup:], rates[warmup + 1:]))
    jump = max(abs(a - b) for a, b in zip(rates, rates[1:]))
    assert jump <= peak * max(1 / (warmup + 1), math.pi / 2 / rest) + 1e-9, "it has no jumps"


@pytest.mark.parametrize("shape, fall",
                         [("sqrt", [8, 4, 2.343, 1.072, 0]), ("linear", [8, 6, 4, 2, 0])])
def test_a_stable_rate_falls_only_in_its_decay(shape, fall):
    schedule = WarmupStableDecay(8, 3, 12, decay=4, shape=shape)
    assert [schedule(n) for n in range(8)] == [2, 4, 6, 8, 8, 8, 8, 8]
    assert ([schedule(n) for n in range(8, 13)] == pytest.approx(fall, abs=1e-3)
            and schedule(1_000) == 0)
    above = WarmupStableDecay(8, 3, 12, 2, decay=4, shape=shape)
    assert [above(n) for n in range(8, 13)] == pytest.approx([2 + 0.75 * x for x in fall], abs=1e-3)
    # without a decay
    assert [WarmupStableDecay(8, 3, 12, shape=shape)(n) for n in (11, 12)] == [8, 0]


# --- what is a function of the step ---------------------------------------------------------------

def test_seeds_are_unrelated():
    seen = {mix_seed(*numbers) for numbers in [(0,), (0, 0), (0, 1), (1, 0), (1,), (11,),
                                               (1, 1), (0, 0, 0)]}
    assert len(seen) == 8
    with pytest.raises(TypeError): mix_seed(0.1)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 30), size=st.integers(1, 30), seed=st.integers(0, 99))
def test_epochs(rows, size, seed):
    if size > rows: return refuses("size", epochs, torch.arange(rows), size=size)
    draw, per = (epochs(torch.arange(rows), torch.arange(rows) * 10, size=size, seed=seed),
                 rows // size)
    for epoch in (0, 3):
        parts = [draw(epoch * per + i) for i in range(per)]
        chosen = torch.cat([x for x, _ in parts])
        assert len(set(chosen.tolist())) == per * size
        assert torch.equal(torch.cat([y for _, y in parts]), 10 * chosen)
    late, early = draw(7), draw(0)
    assert (torch.equal(draw(7)[0], late[0])
            and torch.equal(draw(0)[0], early[0])), "a function of the step, in any order"


def test_epochs_order_changes():
    draw = epochs(torch.arange(50), size=50)
    assert not torch.equal(draw(0)[0], draw(1)[0])


# --- files ----------------------------------------------------------------------------------------

STRANGE = {"bf16": torch.ones(3, dtype=torch.bfloat16), "none": torch.zeros(0, 2),
           "point": torch.tensor(2.5, dtype=F64), "turned": torch.arange(6.0).view(2, 3).T,
           "yes": torch.tensor([True, False]), "nan": torch.tensor([math.nan, -0.0]),
           "count": torch.tensor(7)}


def test_files_keep_every_bit(tmp_path):
    save_tensors(tmp_path / "new" / "a.safetensors", STRANGE, {"who": "ü"})
    got, facts = load_tensors(tmp_path / "new" / "a.safetensors")
    assert facts == {"who": "ü"} and got.keys() == STRANGE.keys()
    for name, t in STRANGE.items():
        assert (got[name].dtype == t.dtype
                and torch.equal(got[name].contiguous().view(-1).view(torch.uint8),
                                t.contiguous().view(-1).view(torch.uint8)))
    assert ([p.name for p in (tmp_path / "new").iterdir()]
            == ["a.safetensors"]), "nothing is left beside it"


def test_no_pickle():
    source = Path(training.__file__).read_text()
    assert not any(word in source for word in ("pickle", "torch.save", "torch.load",
                                               "broadcast_object", "gather_object", "marshal"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    save_tensors(path, {"x": torch.arange(20.0), "y": torch.ones(3)}, {"a": "1"})
    return path.read_bytes()


@settings(max_examples=often(60), deadline=None)
@given(data=st.data())
def test_damage_is_found_and_named(whole, tmp_path_factory, data):
    "Cut at any place, or any one bit flipped."
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    if data.draw(st.booleans()): content = whole[:data.draw(st.integers(0, len(whole) - 1))]
    else:
        place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        content = whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1:]
    path.write_bytes(content)
    refuses("damaged.safetensors", load_tensors, path)


def test_other_files_are_refused_by_name(tmp_path):
    for name, content in {"empty": b"", "text": b"hello, this is not a checkpoint",
                          "zip": b"PK\x03\x04" + bytes(100),
                          "foreign": save({"x": torch.ones(1)})}.items():
        (tmp_path / name).write_bytes(content)
        refuses(name, load_tensors, tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nowhere"): load_tensors(tmp_path / "nowhere")


# --- the loop -------------------------------------------------------------------------------------

def test_the_loop_is_the_plain_loop():
    "The same weights as a loop written out with PyTorch's parts."
    (model, history), plain = trained(30, seed=5), net()
    groups = [{"params": [*g.parameters.values()], "weight_decay": g.weight_decay}
              for g in parameter_groups(plain, 0.1)]
    wanted, losses = plain_loop(plain, torch.optim.AdamW(groups), 30, WarmupCosine(0.01, 5, 60),
                                1.0, seed=5)
    torch.testing.assert_close(weights(model), wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(history["loss"], torch.tensor(losses, dtype=F64))
    assert history.steps("loss").tolist() == list(range(30)) and not model.training


def test_steps_are_a_place_to_arrive_at():
    model = net()
    optimiser = adamw(model)
    for steps in (1, 7, 7, 20): train(model, squared, batch, steps, optimiser)
    assert same(weights(model), weights(trained(20)[0]))
    refuses("steps: got 19", train, model, squared, batch, 19, optimiser)


def test_sum_and_count_is_the_mean():
    counted, _ = trained(10, loss=lambda model, x, y: ((model(x) - y).square().sum(), y.numel()))
    torch.testing.assert_close(weights(counted), weights(trained(10)[0]), rtol=1e-9, atol=1e-12)


def test_watch_joins_the_history():
    model, modes = net(), []
    def measure(step):
        model.eval()
        modes.append(step)
        return {"held out": step / 2, "step": step} if step % 4 == 0 else None
    _, history = trained(10, model=model, watch=measure)
    assert modes == list(range(1, 11)) and history["held out"].tolist() == [2, 4]
    assert history["step"].tolist() == history.steps("held out").tolist() == [4, 8]
    assert same(weights(model), weights(trained(10)[0])), "evaluation mode does not leak"
    with pytest.raises(KeyError, match="held out"): history["nothing"]


@pytest.mark.parametrize("where, said",
                         [("loss", "loss is nan"),
                          ("gradient", "gradient's length is nan.*out.weight")])
def test_divergence_stops_before_the_weights(where, said):
    "And before the batch statistics."
    model, seen, kept = net(), [], {}
    def bad(model, x, y):
        if seen.append(1) or len(seen) < 4: return squared(model, x, y)
        kept.update(weights(model))
        if where == "loss": return squared(model, x, y) * math.nan
        # finite, with a gradient that is not
        return squared(model, x, y) + (model.out.weight * 0).sum().sqrt()
    with pytest.raises(Diverged, match="step 3: the " + said): trained(10, model=model, loss=bad)
    assert same(kept, weights(model))


# --- stopped and resumed --------------------------------------------------------------------------

def test_resumed_is_undisturbed(tmp_path):
    "Interrupted at every step in turn, each time in a new model with another start."
    kept, how = Checkpoint(tmp_path / "c", every=3), dict(seed=2, watch=lambda step: {"w": step})
    through, expected = trained(20, **how)
    for stop in range(1, 20):
        with suppress(KeyboardInterrupt):
            # the first three are lost with their model
            trained(20, kept, model=net(seed=stop if stop > 3 else 0),
                    batch=lambda step, stop=stop: cut_off() if step == stop else batch(step), **how)
    model, got = trained(20, kept, model=net(seed=99), **how)
    assert same(weights(model), weights(through)) and got.points == expected.points


def test_finished_does_nothing(tmp_path):
    "It asks for no batch, and writes no file."
    kept = Checkpoint(tmp_path / "c")
    model, history = trained(5, kept)
    written, before = kept.path.stat().st_mtime_ns, kept.path.read_bytes()
    again, got = trained(5, kept, model=net(seed=1), batch={}.__getitem__)
    assert same(weights(model), weights(again)) and got.points == history.points
    assert kept.path.read_bytes() == before and kept.path.stat().st_mtime_ns == written
    refuses("steps: got 4, expected at least 5", trained, 4, kept)


@pytest.mark.parametrize("change, names", [
    (dict(width=9), ["model.body.0.weight", "(9, 4) here", "(8, 4) there"]),
    (dict(dtype=torch.float32), ["model.body.0.weight", "torch.float32 (8, 4) here",
                                 "torch.float64 (8, 4) there"]),
    (dict(lr=0.02), ["rate is WarmupCosine(peak=0.01", "0.02 here"]),
    (dict(betas=(0.8, 0.99)), ["betas is (0.9, 0.999) there, (0.8, 0.99) here"]),
    (dict(seed=1), ["seed is 0 there, 1 here"]),
    (dict(config={"text": "v2"}), ["config.text is v1 there, v2 here"]),
    (dict(config={}), ["config.text is v1 there, absent here"]),
])
def test_another_training_is_refused_by_name(tmp_path, change, names):
    path, model = tmp_path / "mine.safetensors", net()
    train(model, squared, batch, 2, adamw(model), Checkpoint(path, config={"text": "v1"}))
    other = net(seed=4, **{k: v for k, v in change.items() if k in ("width", "dtype")})
    optimiser, before = (adamw(other, **{k: v for k, v in change.items() if k in ("lr", "betas")}),
                         weights(other))
    for name in ["mine.safetensors", *names]:
        refuses(re.escape(name), train, other, squared, batch, 4, optimiser,
                Checkpoint(path, config=change.get("config", {"text": "v1"})),
                seed=change.get("seed", 0))
    assert same(weights(other), before), "a refused model is not touched"


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    kept = Checkpoint(tmp_path / "c")
    model, _ = trained(2, kept)
    assert not [name for name in load_tensors(kept.path)[0] if "again" in name]
    again, _ = trained(2, kept, model=net(seed=1))
    assert again.again.weight is again.head.weight
    assert torch.equal(again.head.weight, model.head.weight)


# --- kill -9 --------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent('''
    import os, signal, sys, time
    sys.path[:0] = [{root!r}, {root!r} + "/tests", {tests!r}]
    import torch
    torch.set_num_threads(1)
    from test_training import Checkpoint, adamw, batch, net, squared, train
    from tfmlib.workbench import tensor_files
    where, at, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    def die(): os.kill(os.getpid(), signal.SIGKILL)
    if where == "slow":                             # killed from outside; it never passes step `at`, however late the kill comes
        plain = batch
        def batch(step):
            print(step, flush=True)
            time.sleep(3600 if step >= at else 0.01)
            return plain(step)
    if where in ("half", "flush", "rename", "renamed"):     # killed by itself, inside the writing number `at`
        count, real = [0], dict(save_file=tensor_files.save_file, flush=tensor_files.flush, replace=os.replace)
        def save_file(tensors, beside, facts):
            count[0] += 1
            real["save_file"](tensors, beside, facts)
            if where == "half" and count[0] == at: os.truncate(beside, os.path.getsize(beside) // 2); die()
        def flush(place):
            if where == "flush" and count[0] == at: die()
            if where == "renamed" and count[0] == at and os.path.isdir(place): die()
            real["flush"](place)
        def replace(a, b):
            if where == "rename" and count[0] == at: die()
            real["replace"](a, b)
        tensor_files.save_file, tensor_files.flush, os.replace = save_file, flush, replace
    model = net(seed=int(where != "first"))         # only the very first start is the right one: later weights come from the file
    train(model, squared, batch, 60, adamw(model), Checkpoint(path, every=4))
''').format(root=str(ROOT), tests=str(ROOT / "tests/library"))  # noqa: E501


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    "Sixty steps that nobody touched: the file, and a copy of it as it was at step 4."
    folder = tmp_path_factory.mktemp("undisturbed")
    for name, steps in (("begun", 4), ("done", 60)): trained(steps, Checkpoint(folder / name, 4))
    return folder


def started(folder, program, *words):
    "A process that runs this program, on one thread."
    (folder / "program.py").write_text(program)
    return subprocess.Popen([sys.executable, str(folder / "program.py"), *map(str, words)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def equals(path, other):
    (a, facts_a), (b, facts_b) = load_tensors(path), load_tensors(other)
    return same(a, b) and facts_a == facts_b


@pytest.mark.slow
@pytest.mark.parametrize("where", sweep(["half", "flush", "rename", "renamed"], "rename"))
def test_killed_while_writing(undisturbed, tmp_path, where):
    (tmp_path / "c").write_bytes((undisturbed / "begun").read_bytes())
    assert started(tmp_path, PROGRAM, where, 3, tmp_path / "c").wait(PATIENCE) == -signal.SIGKILL
    assert (int(load_tensors(tmp_path / "c")[0]["optimiser.done"])
            == (16 if where == "renamed" else 12)), "the old file or the new, whole"
    model = net(seed=1)
    train(model, squared, batch, 60, adamw(model), Checkpoint(tmp_path / "c", every=4))
    assert equals(tmp_path / "c", undisturbed / "done")
    left = list(tmp_path.glob("*.part"))
    assert len(left) == (where != "renamed"), "what was killed could not clear up"
    for each in (each for part in left for each in (part, *part.iterdir())):
        os.utime(each, (time.time() - 7200,) * 2)
    save_tensors(tmp_path / "c", *load_tensors(tmp_path / "c"))
    assert not list(tmp_path.glob("*.part")), "but a writing clears up what is older than an hour"


@pytest.mark.whole
def test_killed_at_random_moments(undisturbed, tmp_path):
    """kill -9 from outside, three times, then to the end: weights, means and history are those
    of an undisturbed run."""
    (tmp_path / "c").write_bytes((undisturbed / "begun").read_bytes())
    moments, reached = random.Random(time.time_ns()), [4]
    for last in (20, 40, 59):
        process, step = (started(tmp_path, PROGRAM, "slow", last, tmp_path / "c"),
                         moments.randrange(last - 15, last))
        assert any(int(line) >= step for line in process.stdout), process.stderr.read()
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        reached.append(int(load_tensors(tmp_path / "c")[0]["optimiser.done"]))
        assert reached[-1] >= step - step % 4, "what was saved before the kill is there"
    assert reached == sorted(reached)
    process = started(tmp_path, PROGRAM, "slow", 1_000, tmp_path / "c")
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    assert equals(tmp_path / "c", undisturbed / "done"), f"killed at {reached}"


# --- many processes -------------------------------------------------------------------------------

TOGETHER = textwrap.dedent('''
    import os, sys
    sys.path.insert(0, {root!r})
    import torch
    from torch import nn
    from tfmlib.workbench import AdamW, Checkpoint, WarmupCosine, parameter_groups, seeded, train, world
    torch.set_num_threads(1)
    folder, steps = sys.argv[1], int(sys.argv[2])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.rare, self.never = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(4, 1), nn.Linear(4, 1)
        def forward(self, x):
            y = self.b(torch.tanh(self.a(x)))
            return y + self.rare(x) if x[0, 0] > 0.5 else y      # a part that not every process uses

    def batch(step):
        x = torch.randn(8, 4, dtype=torch.float64, generator=seeded(3, step))
        x[:, 0] = float(step % 3 == 0) * torch.tensor([1., 1, 1, 1, 0, 0, 0, 0])   # only the first half, only now and then
        keep = torch.rand(8, 1, generator=seeded(4, step)) < 0.4
        keep[0] = True                                             # the second half may be empty, the whole may not
        return x, x.sum(1, keepdim=True).sin(), keep

    def counted(model, x, y, keep):                                # halves of unequal weight: a sum and a count
        halves = torch.cat([model(part) for part in x.split(4)])
        return ((halves - y).square() * keep).sum(), keep.sum()

    torch.manual_seed(int(os.environ.get("RANK", 0)))              # the processes start apart; process 0 decides
    model = Model().double()
    train(model, counted, batch, steps, AdamW(parameter_groups(model), WarmupCosine(0.05, 3, 20), clip=0.5), Checkpoint(folder + "/c", every=5))
''').format(root=str(ROOT))  # noqa: E501


def together(folder, processes, steps=20):
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(TOGETHER)
    how = ([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            str(processes)] if processes > 1 else [sys.executable])
    done = subprocess.run([*how, folder / "program.py", folder, str(steps)], capture_output=True,
                          text=True, timeout=PATIENCE,
                          env={k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"}
                          | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return load_tensors(folder / "c")[0], done.stderr


@pytest.mark.whole
def test_two_processes_equal_one_and_continue_what_it_began(tmp_path):
    one, _ = together(tmp_path / "one", 1)
    two, shown = together(tmp_path / "two", 2)
    together(tmp_path / "mixed", 1, steps=10)
    for other in (two, together(tmp_path / "mixed", 2)[0]):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert (two["optimiser.moves.rare.bias"] == 7 and two["optimiser.moves.never.bias"] == 0
            and two["optimiser.moves.a.bias"] == 20)
    assert shown.count("0/20 [00:00<?") == 1 and "20/20" in shown, "one bar, of process 0"


def test_shares_make_the_batch():
    x, y = batch(0)
    xs, ys, words = zip(*[share((x, y, "a word"), rank, 3) for rank in range(3)])
    assert torch.equal(torch.cat(xs), x) and torch.equal(torch.cat(ys), y)
    assert set(words) == {"a word"}


def test_what_needs_no_gradient_needs_no_group():
    model = net()
    for name, p in model.named_parameters(): p.requires_grad_(name == "out.weight")
    train_only_out(model)


def test_an_expanded_buffer_is_refused_before_it_is_saved(tmp_path):
    def masked(made, **how):
        model = net()
        model.register_buffer("mask", made, **how)
        return model
    expanded, path = torch.ones(1).expand(4), tmp_path / "c"
    refuses(r"\['model.mask'\] share memory between", trained, 1, Checkpoint(path),
            model=masked(expanded))
    assert not path.exists()
    for model in (masked(expanded.clone()), masked(expanded, persistent=False)):
        path.unlink(missing_ok=True)
        for steps in (1, 2): train(model, squared, batch, steps, adamw(model), Checkpoint(path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_weights_stay_in_single_precision(tmp_path):
    place = processes.device()
    model, seen = net(dtype=torch.float32).to(place), []
    def watched(model, x, y):
        seen.append(model.out(torch.ones(1, 8, device=x.device)).dtype)
        return squared(model, x.float(), y.float())
    train(model, watched, batch, 5, adamw(model))
    assert (all(p.dtype == torch.float32 and p.is_cuda for p in model.parameters())
            and math.isfinite(model.out.bias.item()))
    assert (set(seen) == {torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False)
                          else torch.float32})


# --- a step is all or nothing ---------------------------------------------------------------------

def cut_off(): raise KeyboardInterrupt
def ctrl_c(): signal.raise_signal(signal.SIGINT)


class Pressed(TorchDispatchMode):
    "What happens before PyTorch's operations from number `at` on, `times` times in all."
    def __init__(self, at, times=1, happens=cut_off):
        super().__init__()
        self.at, self.times, self.happens, self.calls = at, times, happens, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.calls += 1
        if self.at < self.calls <= self.at + self.times: self.happens()
        return operation(*args, **(kwargs or {}))


def everything(model, optimiser):
    return {name: t.clone() for name, t in training.state(model, optimiser).items()}


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize("happens, times", [(cut_off, 1), (ctrl_c, 2), (ctrl_c, 3)])
def test_a_step_that_is_cut_off_anywhere_is_taken_once(heard, happens, times):
    "At every operation of the second of three steps, again while it is taken back: no bit differs."
    model = net()
    optimiser = adamw(model)
    train(model, squared, batch, 3, optimiser)
    expected, at, cut = everything(model, optimiser), 0, True
    handler = signal.getsignal(signal.SIGINT)
    while cut:
        model = net()
        optimiser = adamw(model)
        train(model, squared, batch, 1, optimiser)
        presses = 0
        with Pressed(at, times, happens) as counter:
            while True:
                try:
                    train(model, squared, batch, 2, optimiser)
                    break
                except KeyboardInterrupt: presses += 1
        cut, at = counter.calls > at, at + 1
        assert presses <= times and (presses or not cut), f"Ctrl-C at operation {at} was swallowed"
        assert signal.getsignal(signal.SIGINT) is handler
        train(model, squared, batch, 3, optimiser)
        assert same(everything(model, optimiser), expected), f"cut off at operation {at}"
    assert at > 150


@pytest.mark.parametrize("kind, least", [(SimpleAdamW, 30), (AdamW, 12)])
def test_the_optimiser_alone_is_all_or_nothing(kind, least):
    """A loop of one's own that catches Ctrl-C and calls `step` again: nothing is clipped or
    moved twice. Fused, a step has fewer operations."""
    def made():
        torch.manual_seed(0)
        ps = {name: nn.Parameter(torch.randn(3, dtype=F64)) for name in "ab"}
        for p in ps.values(): p.grad = torch.randn(3, dtype=F64) * 9
        return (ps, kind([ParameterGroup({"a": ps["a"]}, 0.1), ParameterGroup({"b": ps["b"]})],
                         0.1, clip=1.0))
    (ps, optimiser), at, cut = made(), 0, True
    optimiser.step()
    expected = {name: p.detach().clone() for name, p in ps.items()} | optimiser.state()
    while cut:
        ps, optimiser = made()
        with suppress(KeyboardInterrupt), Pressed(at) as counter:
            optimiser.step()
            assert counter.calls <= at, f"Ctrl-C at operation {at} was swallowed"
        cut, at = counter.calls > at, at + 1
        if not int(optimiser.done): optimiser.step()
        assert same({name: p.detach() for name, p in ps.items()} | optimiser.state(),
                    expected), f"cut off at operation {at}"
    assert at > least


PRESSED = textwrap.dedent('''
    import signal, sys
    sys.path[:0] = [{root!r}, {root!r} + "/tests", {tests!r}]
    import torch
    signal.signal(signal.SIGINT, signal.default_int_handler)     # who starts this in the background may have it ignored
    torch.set_num_threads(1)
    from test_training import adamw, batch, net, squared, train, training
    model, steps, pressed = net(), 0, 0
    optimiser = adamw(model)
    print("started", flush=True)
    while steps < 300:
        try:
            train(model, squared, batch, 300, optimiser)
            steps = 300
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt: pressed += 1
    training.save_tensors(sys.argv[1], training.state(model, optimiser), dict(pressed=str(pressed)))
''').format(root=str(ROOT), tests=str(ROOT / "tests/library"))  # noqa: E501


@pytest.mark.whole
@pytest.mark.slow
def test_ctrl_c_again_and_again(tmp_path):
    "SIGINT from outside, at random moments; the program goes on each time."
    process = started(tmp_path, PRESSED, tmp_path / "c")
    assert process.stdout.readline() == "started\n"
    moments = random.Random(0)
    for _ in range(60):
        time.sleep(moments.uniform(0.002, 0.03))
        if process.poll() is None: process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0, process.stderr.read()
    got, facts = load_tensors(tmp_path / "c")
    model = net()
    optimiser = adamw(model)
    train(model, squared, batch, 300, optimiser)
    assert same(got, everything(model, optimiser)) and int(facts["pressed"]) >= 3, facts


@pytest.fixture
def heard():
    "Ctrl-C is heard, though who starts the tests in the background may have it ignored."
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_until_values_are_replaced(heard):
    old, new = torch.zeros(2), torch.ones(2)
    handler = signal.getsignal(signal.SIGINT)
    changes = [(old, new), (old[:1], new[:1] * 2)]
    with pytest.raises(KeyboardInterrupt), Pressed(0, 99, ctrl_c) as seen:
        optimisers.overwrite(changes)
    assert old.tolist() == [2, 1] and seen.calls >= 2
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("press", ["in the loss", "in the optimiser", "in watch", "while saving"])
def test_ctrl_c_in_a_training_loses_no_finished_step(tmp_path, heard, monkeypatch, press):
    """Long before the first checkpoint is due: it is written, and a new process goes on bit for
    bit, with its history."""
    def watch(step): return {"w": step}
    def pressed(place, function):
        def called(*given):
            if place == press and int(optimiser.done) == 5 and not kept.path.exists(): ctrl_c()
            return function(*given)
        return called
    through, expected = trained(9, watch=watch)
    kept, model, handler = (Checkpoint(tmp_path / "c", every=5 if press == "while saving" else 100),
                            net(), signal.getsignal(signal.SIGINT))
    optimiser = adamw(model)
    monkeypatch.setattr(AdamW, "_step", pressed("in the optimiser", AdamW._step))
    monkeypatch.setattr(training, "save_tensors", pressed("while saving", training.save_tensors))
    with pytest.raises(KeyboardInterrupt):
        train(model, pressed("in the loss", squared), batch, 9, optimiser, kept,
              pressed("in watch", watch))
    assert signal.getsignal(signal.SIGINT) is handler
    assert (int(load_tensors(kept.path)[0]["optimiser.done"])
            == (6 if press == "in the optimiser" else 5))
    again, got = trained(9, kept, model=net(seed=1), watch=watch)
    assert same(weights(again), weights(through)) and got.points == expected.points


def test_a_watch_that_is_cut_off_is_not_saved(tmp_path):
    "Its measurement would be missing from the history for ever."
    with pytest.raises(KeyboardInterrupt):
        trained(9, Checkpoint(tmp_path / "c", every=2),
                watch=Mock(side_effect=[{"w": 1}, {"w": 2}, KeyboardInterrupt]))
    assert int(load_tensors(tmp_path / "c")[0]["optimiser.done"]) == 2


# --- many writers, one path -----------------------------------------------------------------------

WRITER = textwrap.dedent('''
    import sys
    sys.path.insert(0, {root!r})
    import torch
    from tfmlib.workbench import load_tensors, save_tensors
    torch.set_num_threads(1)
    path, number = sys.argv[1], int(sys.argv[2])
    print("started", flush=True)
    sys.stdin.readline()
    for i in range(60):
        save_tensors(path, dict(x=torch.full((20_000,), 100. * number + i)), dict(who=f"{{number}} {{i}}"))
        tensors, facts = load_tensors(path)
        who, turn = map(int, facts["who"].split())
        assert (tensors["x"] == 100. * who + turn).all() and len(tensors["x"]) == 20_000
''').format(root=str(ROOT))  # noqa: E501


@pytest.mark.whole
def test_processes_that_share_a_path_do_not_disturb_each_other(tmp_path):
    """Four of them save and load at once: each load gives a file that one of them wrote, whole;
    nothing is left beside it."""
    path = tmp_path / "kept" / "c"
    those = [started(tmp_path, WRITER, path, number) for number in range(4)]
    for process in those: assert process.stdout.readline() == "started\n"
    for process in those: print(file=process.stdin, flush=True)
    for process in those: assert process.wait(300) == 0, process.stderr.read()
    assert ([p.name for p in path.parent.iterdir()] == ["c"]
            and load_tensors(path)[1]["who"].endswith(" 59"))


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["save_file", "flush"])
def test_a_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch,
        where, error):
    save_tensors(tmp_path / "c", {"x": torch.ones(2)}, {})
    def fails(*args):
        (next(tmp_path.glob("*.part")) / ".tmpA1b2").write_bytes(b"half")     # as safetensors does
        raise error
    monkeypatch.setattr(tensor_files, where, fails)
    with pytest.raises(type(error)): save_tensors(tmp_path / "c", {"x": torch.zeros(2)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert load_tensors(tmp_path / "c")[0]["x"].tolist() == [1, 1]


# --- refusals by name -----------------------------------------------------------------------------

def made(**how):
    return AdamW(**{"groups": [ParameterGroup({"p": nn.Parameter(torch.ones(2))})],
                    "lr": 0.1} | how)


ONE, X = nn.Parameter(torch.ones(2)), torch.ones(4, 4, dtype=F64)
NO_NUMBERS = [math.nan, "1", None, True, [1.0], 1j]
REFUSED = {
    "eps": [lambda x=x: made(eps=x) for x in [*NO_NUMBERS, -1, 0, math.inf]],
    "lr": [lambda x=x: made(lr=x) for x in [*NO_NUMBERS, -0.1, math.inf]]
    + [lambda x=x: made(lr=lambda step: x).step() for x in [*NO_NUMBERS, -0.1, math.inf]],
    "clip": [lambda x=x: made(clip=x) for x in [*NO_NUMBERS, -1, 0, -math.inf]],
    "max_norm": [lambda x=x: clip_gradients({}, x) for x in [*NO_NUMBERS, -1, 0]],
    "parameters": [lambda x=x: clip_gradients(x, 1.0) for x in ([], None, torch.ones(1))]
    + [lambda x=x: ParameterGroup(x)
       for x in ([], None, {"p": 5}, {5: torch.ones(1)}, {"p": torch.ones(1).int()})],
    "betas": [lambda x=x: made(betas=x) for x in (0.9, None, (0.9,), (0.9, 0.9, 0.9), "ab",
                                                  {0.1: 0.2},
                                                  *[(0.9, y) for y in [*NO_NUMBERS, -0.1, 1, 2]],
                                                  *[(y, 0.9) for y in [*NO_NUMBERS, -0.1, 1, 2]])],
    "weight_decay": [lambda x=x: ParameterGroup({}, x) for x in [*NO_NUMBERS, -1, math.inf]]
    + [lambda x=x: parameter_groups(nn.Linear(2, 2), x) for x in [*NO_NUMBERS, -1]],
    "groups": [lambda x=x: made(groups=x)
               for x in (None, 5, {}, [], [5], [None], {"p": torch.ones(1)}, nn.Linear(2, 2),
                         [ParameterGroup({"a": ONE}), ParameterGroup({"b": ONE})])],
    "decay": [lambda x=x: WarmupStableDecay(8, 3, 12, decay=x) for x in (10, -1, 1.5)],
    "shape": [lambda x=x: WarmupStableDecay(8, 3, 12, shape=x) for x in ("cosine", None)],
    "peak": [lambda x=x: WarmupCosine(x, 1, 10) for x in [*NO_NUMBERS, -1, math.inf]],
    "floor": [lambda x=x: WarmupCosine(1, 1, 10, x) for x in [*NO_NUMBERS, -1, math.inf, 2]],
    "warmup": [lambda x=x: WarmupCosine(1, x, 10) for x in [*NO_NUMBERS, -1, 2.5, 10]],
    "steps": [lambda x=x: WarmupCosine(1, 1, x) for x in [*NO_NUMBERS, 10.0, math.inf]]
    + [lambda x=x: train(net(), squared, batch, x, None) for x in [*NO_NUMBERS, -1, 2.0]],
    "size": [lambda x=x: epochs(torch.arange(6), size=x)
             for x in [*NO_NUMBERS, 2.5, 2.0, 0, -1, 7, math.inf]],
    "seed": [lambda x=x: epochs(torch.arange(6), size=2, seed=x) for x in [*NO_NUMBERS, 0.5]]
    + [lambda x=x: train(net(), squared, batch, 1, None, seed=x) for x in [*NO_NUMBERS, 0.5]],
    "step": [lambda x=x: epochs(torch.arange(6), size=2)(x) for x in [*NO_NUMBERS, 0.5, -1]],
    "data": [lambda x=x: epochs(*x, size=1) for x in ((), (torch.tensor(1.0),),
            (torch.arange(2), torch.tensor(1)), (torch.arange(2), torch.arange(3)), ([1, 2],),
            (None,), (5,))],
    "every": [lambda x=x: Checkpoint("c", x) for x in [*NO_NUMBERS, 0, -1, 2.5]],
    "path": [lambda x=x: Checkpoint(x) for x in (None, 5, ["c"], b"c")],
    "config": [lambda x=x: Checkpoint("c", config=x) for x in (None, 5, ["c"])],
    "model": [lambda: train(None, squared, batch, 1, made())],
    "optimiser": [lambda make=make: train(net(), squared, batch, 1, make(net()))
                  for make in (adamw, lambda model: torch.optim.AdamW(model.parameters()))],
    "checkpoint": [lambda x=x: train(net(), squared, batch, 1, made(), x)
                   for x in ("c", Path("c"), 5)],
    "loss": [lambda x=x: trained(1, loss=x) for x in (None, lambda m, x, y: m(x) - y)]
          + [lambda x=x: trained(1, loss=lambda *_: x)
             for x in (None, 0.5, [torch.ones(()), 1], (torch.ones(()), 1, 2), (0.5, 1))],
    "batch": [lambda: trained(1, batch=batch(0)), lambda: share(batch(0), 0, 5)]
           + [lambda x=x: trained(1, batch=lambda step: x)
              for x in (None, {"x": X}, (X, {"y": X}), (X, [X]), (X, (X,)), (X, torch.tensor(1.0)),
                        (torch.ones(3, 4), torch.ones(2, 1)))],
    "watch": [lambda: trained(1, watch=5)]
           + [lambda x=x: trained(1, watch=lambda step: x)
              for x in ({"loss": 1}, {"rate": 1}, {"length": 1}, 0.5, 0, [1])],
}


OTHER_GROUPS = {  # what is said of groups that do not fit
    r"a list of ParameterGroup, as `parameter_groups": [
        lambda: AdamW(nn.Linear(2, 2).parameters(), 1e-3),
        lambda: AdamW([*nn.Linear(2, 2).parameters()], 1e-3)],
    r"^groups: \['p'\] stand in more than one group": [
        lambda: AdamW([ParameterGroup({"p": nn.Parameter(torch.ones(1))}, decay)
                       for decay in (0., 1.)], 0.1)],
    r"optimiser: \['body.0.weight'.* are trained by no group; expected each in one, or requires_grad_":  # noqa: E501
        [lambda: train_only_out(net())]}


@pytest.mark.parametrize("said, calls", [
    *((rf"(?s)^{name}: .*expected", calls) for name, calls in REFUSED.items()),
    *OTHER_GROUPS.items()], ids=[*REFUSED, *"123"])
def test_what_does_not_fit_is_refused_by_name(said, calls):
    for call in calls: refuses(said, call)
