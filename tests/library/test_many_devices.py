"""Chapter 15: each form of parallelism is the single-process step, sends what the formula says,
and never waits for ever."""
import hashlib
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import device_cases as cases
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import sweep

from tfmlib import many_devices as M
from tfmlib.accounting import NAMED_SHAPES, SavedTensors, total_parameters
from tfmlib.checkpoints import GPT2, MODEL_CONFIGS
from tfmlib.decoders import gpt2, llama, next_token_loss
from tfmlib.many_devices import ParallelSteps, parallel_moments
from tfmlib.many_devices.cluster import fresh_name
from tfmlib.many_devices.cluster_checkpoints import CheckpointReader
from tfmlib.many_devices.cluster_settings import TrainingRun, check_training, read_arguments
from tfmlib.many_devices.context import train_context_parallel
from tfmlib.many_devices.core import merge, saved_activations, schedule, simulate
from tfmlib.many_devices.data import train_data_parallel, train_sharded
from tfmlib.many_devices.local_processes import Processes, ProcessFailed, joined, perform
from tfmlib.many_devices.pipeline import bubble, most_kept, train_pipeline
from tfmlib.many_devices.recorder import Job, largest_difference, recording, train_alone, volume
from tfmlib.many_devices.tensor import train_tensor_parallel
from tfmlib.many_devices.torch_native import train_ddp, train_dtensor, train_fsdp, train_pipelining
from tfmlib.workbench import ASSETS, WarmupCosine

READS = ("chapters/15_", "chapters/depth/15_")
ROOT = Path(__file__).resolve().parents[2]
# seconds: only processes that hang take as long, however busy the machine is
PATIENCE = 1800
LLAMA = Job(MODEL_CONFIGS["toy Llama"].sized(48, 16, 4, 4, 32, n_kv_heads=4, d_ff=24))
UNTIED = Job(replace(LLAMA.config, tie_embeddings=False, n_kv_heads=2))
SMALL_GPT2 = Job(replace(LLAMA.config.sized(48, 16, 4, 4, 32, d_ff=24), **GPT2))
FORMS = {
    "data": (train_data_parallel,), "ZeRO-1": (train_sharded, 1), "ZeRO-2": (train_sharded, 2),
    "ZeRO-3": (train_sharded, 3),
    "tensor": (train_tensor_parallel,), "sequence": (train_tensor_parallel, True),
    "context": (train_context_parallel,), "context in one piece": (train_context_parallel, False),
    "GPipe": (train_pipeline, "gpipe", 4), "1F1B": (train_pipeline, "1f1b", 4),
    "1F1B, few": (train_pipeline, "1f1b", 2),
    "DDP": (train_ddp,), "FSDP2": (train_fsdp,), "DTensor": (train_dtensor,),
    "DTensor, each": (train_dtensor, False), "pipelining": (train_pipelining,),
    "pipelining, GPipe": (train_pipelining, "gpipe")}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def processes():
    with Processes(*cases.PRELOADED, join=recording) as started:
        started.run = partial(started.run, timeout=PATIENCE)
        yield started


@pytest.fixture(scope="module")
def alone(): return {job: train_alone(job) for job in (LLAMA, UNTIED, SMALL_GPT2)}


def expected(name: str, job: Job, p: int, sizes: dict[str, int]) -> list[dict]:
    "What the formulas say for each process."
    B, T = job.rows, job.length
    if name.startswith(("GPipe", "1F1B", "pipelining")):
        return M.pipeline_volumes(job.config, B, T, p, 8)
    known = M.parameter_volumes(sizes, p, 8) | M.activation_volumes(job.config, B, T, p, 8)
    known |= {"context in one piece": known["context"], "DDP": known["data"],
              "FSDP2": known["ZeRO-3"]}
    return [known[name]] * p


@pytest.mark.parametrize("name", sweep(FORMS, "ZeRO-2", "context in one piece", "1F1B, few"))
def test_each_form_is_the_single_process_step_and_sends_what_the_formula_says(
        name, processes, alone):
    "On two processes; the page in depth does the same on four."
    (function, *more), p = FORMS[name], 2
    results = processes.run(function, p, LLAMA, *more)
    assert largest_difference([r.value for r in results], alone[LLAMA]) < 1e-10
    assert all(len(r.value.loss) == LLAMA.steps for r in results)
    # embedding and logits are whole there; the page counts it
    if name.startswith("DTensor"): return
    sizes = {n: t.numel() for n, t in alone[LLAMA].parameters.items()}
    sent = [{k: n / LLAMA.steps for k, n in volume(r.log).items()} for r in results]
    # the order of its buckets, after the first step
    if name == "DDP": assert all(m.pop("broadcast") < 1000 for m in sent)
    assert sent == expected(name, LLAMA, p, sizes)


@pytest.mark.parametrize("name", sweep(["data", "ZeRO-2", "ZeRO-3", "1F1B", "FSDP2", "DTensor"],
                                       "ZeRO-3"))
@pytest.mark.parametrize("job", [UNTIED, pytest.param(SMALL_GPT2, marks=pytest.mark.whole)],
                         ids=["untied, grouped heads", "GPT-2"])
def test_other_parts_of_the_model_too(name, job, processes, alone):
    function, *more = FORMS[name]
    assert (largest_difference([r.value for r in processes.run(function, 2, job, *more)],
                               alone[job]) < 1e-10)


def test_buckets_leave_before_the_backward_pass_ends(processes):
    events = processes.run(train_data_parallel, 2, LLAMA)[0].value.facts["events"]
    sent, end = [e for e in events if e.startswith("bucket")], events.index("backward ends")
    assert len(sent) > 2 and sum(e.startswith("bucket") for e in events[:end]) == len(sent)
    assert events.index("bucket 0") < len(events) / 3


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micros"), [(1, 1), (2, 2), (4, 4), (4, 8), (4, 2), (3, 7)])
def test_schedules(kind, stages, micros):
    times = simulate(kind, stages, micros)
    for s, actions in enumerate(times):
        assert [a[:2] for a in actions] == [a[:2] for a in schedule(kind, s, stages, micros)]
        assert (sorted(a.micro for a in actions if a.kind == "F")
                == sorted(a.micro for a in actions if a.kind == "B") == list(range(micros)))
        assert most_kept(actions) == (micros if kind == "gpipe" else min(micros, stages - s))
    assert abs(bubble(times) - (stages - 1) / (micros + stages - 1)) < 1e-12


def test_saved_activations_are_those_of_chapter_13_without_weights_that_a_step_makes():
    model, ids = LLAMA.model(), torch.arange(10).view(2, 5)
    def forward(): return next_token_loss(model, ids)[0]
    assert saved_activations(model, forward) == SavedTensors(model).bytes(forward) > 0
    layer, x = torch.nn.Linear(3, 4, bias=False), torch.ones(2, 3, requires_grad=True)
    def with_a_new_weight():
        layer.weight = torch.nn.Parameter(torch.ones(4, 3))
        layer(x)
    assert saved_activations(layer, with_a_new_weight) == x.nbytes


def test_merged_outputs_are_weighted_by_their_sums():
    sets = (10., 1.), (50., 3.)      # outputs, and sums of exponentials
    own, arrived = [(torch.tensor([[y]]), torch.tensor([s]).log()) for y, s in sets]
    output, lse = merge(own, arrived)
    torch.testing.assert_close((output, lse.exp()), (torch.tensor([[40.]]), torch.tensor([4.])))


def test_messages_of_a_step_by_hand():
    """Activations, keys and values have two bytes a number; a stage has 126 / 16 layers, or 58 /
    16 with experts."""
    llama = M.predict_step(NAMED_SHAPES["Llama 3.1 405B"], M.Cluster(989e12, 450e9, 50e9, 8),
                           M.Plan(8, 8, 16, 16, micros=16), 128, 131_072)
    assert llama["bubble"] == pytest.approx(llama["arithmetic"] * 15 / 16)
    tokens = 128 * 131_072 // 8 // 16                            # of a rank
    assert llama["tensor"] == pytest.approx(126 / 16 * 4 * 2 * 7 / 8 * 2 * tokens * 16_384 / 450e9)
    # one key–value head of width 128
    assert llama["context"] == pytest.approx(126 / 16 * 2 * 15 * 2 * 2 * tokens * 128 / 50e9)
    deepseek = M.predict_step(NAMED_SHAPES["DeepSeek-V3"], M.Cluster(989e12, 160e9, 50e9, 8),
                              M.Plan(128, 1, 16, micros=120, expert=64), 15_360, 4096)
    assert (deepseek["experts"]
            == pytest.approx(58 / 16 * 4 * 8 * 63 / 64 * 2 * (15_360 * 4096 // 128) * 7168 / 50e9))


def test_the_gradients_of_experts_are_summed_over_their_copies_alone():
    shape, cluster = NAMED_SHAPES["DeepSeek-V3"], M.Cluster(989e12, 160e9, 50e9, 8)
    def seconds(expert):
        return M.predict_step(shape, cluster, M.Plan(128, 1, 16, micros=120, expert=expert), 15_360,
                              4096)["gradients and weights"]
    experts = 58 * 256 * 3 * 7168 * 2048                         # layers, experts, matrices, widths
    rest = total_parameters(shape) - experts
    for expert in (1, 64, 128):
        sent = 6 / 16 * (rest * 127 / 128 + experts / expert * (1 - expert / 128))
        assert seconds(expert) == pytest.approx(sent / 50e9)


LLAMA_405B, ITS_PLAN = (NAMED_SHAPES["Llama 3.1 405B"],
                        {"data": 64, "tensor": 8, "pipeline": 16, "micros": 32})


def predicted(B=2048, S=8192, shape="Llama 3.1 405B", **plan):
    "A step with this plan, or with a part of it changed."
    plan = M.Plan(**{"data": 64, "tensor": 8, "pipeline": 16, "micros": 32} | plan)
    return M.predict_step(NAMED_SHAPES[shape], M.Cluster(989e12, 450e9, 50e9, 8), plan, B, S)


SIZES = [
    ("tensor: 16; expected at most 8", lambda: predicted(tensor=16)),
    ("expert: 64; expected 1", lambda: predicted(expert=64)),
    ("B: 2047; expected a multiple of 2048", lambda: predicted(B=2047)),
    ("S: 8192; expected a multiple of 3", lambda: predicted(context=3)),
    ("pipeline: 127; expected at most 126", lambda: predicted(pipeline=127)),
    ("expert: 3; expected a divisor of 128", lambda: predicted(
        128, 4096, "DeepSeek-V3", data=128, tensor=1, pipeline=1, micros=1, expert=3)),
    ("tensor", lambda: M.Plan(1, 0)), ("peak", lambda: M.Cluster(0, 1e11, 1e10, 8)),
    ("outside", lambda: M.Cluster(1e15, 1e11, -1, 8)),
    ("per_node", lambda: M.Cluster(1e15, 1e11, 1e10, 0)),
    ("config", lambda: M.activation_volumes(SMALL_GPT2.config, 8, 16, 4, 8)),
    ("T: 18", lambda: M.activation_volumes(LLAMA.config, 8, 18, 4, 8)),
    ("T", lambda: M.activation_volumes(LLAMA.config, 8, 0, 4, 8)),
    ("p: 0", lambda: M.parameter_volumes({"w": 8}, 0, 8)),
    ("held", lambda: list(M.ring_steps(torch.ones(2, 3)))),
    ("stages: 0", lambda: simulate("1f1b", 0, 4)),
    ("micros: 2.5", lambda: simulate("1f1b", 2, 2.5)),
    ("backward: 0", lambda: simulate("1f1b", 2, 2, backward=0)),
]


@pytest.mark.parametrize(("said", "call"), SIZES)
def test_sizes_that_do_not_fit_are_refused(said, call):
    with pytest.raises(ValueError, match=said): call()


# --- the runs of an exercise ----------------------------------------------------------------------

@pytest.fixture(scope="module")
def wrong(processes):
    "The outcomes of a wrong run on four ranks."
    return lambda letter, steps=1: [r.value for r in processes.run(cases.wrong_run, 4, letter,
            replace(LLAMA, steps=steps))]


def apart(outcomes, name: str) -> bool:
    "Do any two of the ranks that hold a parameter hold different values?"
    held = [o.parameters[name] for o in outcomes if name in o.parameters]
    return len(held) > 1 and any(not torch.equal(held[0], other) for other in held[1:])


def test_what_went_wrong_is_what_these_mistakes_do(wrong, alone):
    right = alone[LLAMA]
    assert (f"{right.loss[0]:.3f} {right.length[0]:.3f} {right.length[0] / 4:.3f}"
            == "4.132 1.594 0.399")
    runs = {letter: wrong(letter) for letter in "ABCE"}
    assert all(o.loss[0] == pytest.approx(right.loss[0], abs=1e-10) for outcomes in runs.values()
               for o in outcomes)
    assert all(o.length[0] == pytest.approx(right.length[0] / 4, abs=1e-10) for o in runs["A"])
    copies = [n for n, axis in runs["B"][0].cut.items() if axis is None]
    assert len(copies) == 9 and all("norm" in n and apart(runs["B"], n) for n in copies)
    assert (apart(runs["C"], "embedding.weight")
            and not any(apart(runs["C"], n) for n in right.parameters if n != "embedding.weight"))
    gain = [o.length[0] - right.length[0] for o in runs["E"]]
    assert min(gain) == max(gain) > 1e-3 and not any(apart(runs["E"], n) for n in copies)
    assert (1e-10 < largest_difference([replace(o, length=right.length[:1]) for o in runs["E"]],
                                       train_alone(replace(LLAMA, steps=1))) < 1e-2)


def test_ranks_that_never_communicate_drift_apart(wrong):
    outcomes = wrong("D")
    assert len({o.loss[0] for o in outcomes}) == len({o.length[0] for o in outcomes}) == 4
    assert all(apart(outcomes, n) for n in outcomes[0].parameters)


# --- the figure -----------------------------------------------------------------------------------

MOMENTS = parallel_moments()


def test_moments_are_whole():
    "Every rank is told of in every step, and what is sent goes from one rank to another."
    for form, moments in MOMENTS.items():
        for said, holds, does, sends in moments:
            assert said.endswith(".") and len(holds) == len(does) == 4, form
            assert (set(does) <= {"hold", "compute", "send", "wait"}
                    and all({a, b} < set(range(4)) and a != b for a, b, *_ in sends)), form
            assert "wait" not in does or not any("send" == d for d in does), form


@pytest.mark.parametrize(("form", "sent"), [("ring all-reduce", 24), ("data parallel", 24),
                                            ("ZeRO-3", 36), ("tensor parallel", 24),
                                            ("ring attention, zigzag", 12), ("GPipe", 24),
                                            ("1F1B", 24)])
def test_messages_of_a_form(form, sent):
    assert sum(times for m in MOMENTS[form] for *_, times in m.sends) == sent


OVERLAPS = """svg => {
  const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBBox()]), [, , w,
    h] = svg.getAttribute("viewBox").split(" ").map(Number);
  const over = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y + 2 < b.y + b.height &&
    b.y + 2 < a.y + a.height;
  const pairs = boxes.flatMap(([s, a], i) => boxes.slice(i + 1).filter(([, b]) => over(a,
    b)).map(([t]) => [s, t]));
  const frames = [...svg.querySelectorAll("rect")].map(r => r.getBBox()), inside = (a,
    b) => a.x >= b.x && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height;
  return pairs.concat(boxes.filter(([, a]) => a.x < 0 || a.y < 0 || a.x + a.width > w ||
    a.y + a.height > h || (a.y > frames[0].y && !frames.some(f => inside(a, f)))));
}"""


@pytest.fixture(scope="module")
def steps(browser, tmp_path_factory):
    "The figure on a page of its own."
    from serve import server
    folder = tmp_path_factory.mktemp("steps")
    for path in Path(str(ASSETS)).glob("*.*"):
        if path.suffix in (".js", ".css"): shutil.copy(path, folder)
    figure = ParallelSteps("Four ranks, and what each of them holds", names=list(MOMENTS),
                           moments=[[list(m) for m in moments]
                                    for moments in MOMENTS.values()]).figure().html
    (folder / "page.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="stylesheet" '
        f'href="figures.css">{figure}<script type="module" src="mount.js"></script>',
        encoding="utf-8")
    httpd = server(folder)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    page = browser.new_context(viewport={"width": 390, "height": 800},
                               reduced_motion="reduce").new_page()
    wrong = []
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.goto(f"http://127.0.0.1:{httpd.server_port}/page.html")
    page.wait_for_selector("figure[data-live]")
    yield page
    assert wrong == []
    httpd.shutdown()


@pytest.mark.whole
@pytest.mark.browser
def test_every_step_of_every_form_by_keyboard(steps):
    """What is drawn is what Python says, no words cover each other, and a form can be chosen in
    the middle of another."""
    svg, slider = steps.locator("svg.tfm-ranks"), steps.locator("input[type=range]")
    for form, moments in MOMENTS.items():
        steps.get_by_label("show").select_option(form)
        assert (steps.get_by_label("show").input_value() == form and slider.get_attribute("max")
                == str(len(moments)))
        slider.focus()
        waits = sum(m.does.count("wait") for m in moments)
        for n, m in enumerate(moments):
            label, sent = (svg.get_attribute("aria-label"),
                           sum(times for before in moments[:n + 1] for *_, times in before.sends))
            assert (label.startswith(f"{form}, step {n + 1} of {len(moments)}: {m.sentence}")
                    and slider.get_attribute("aria-valuetext")
                    == f"{n + 1} of {len(moments)}: {m.sentence}")
            assert (all(", ".join(held) in label for held in m.holds)
                    and all(f"Rank {a} sends {what} to rank {b}." in label
                            for a, b, what, _ in m.sends))
            assert (svg.locator("path.tfm-sent").count() == len(m.sends)
                    and [svg.locator(f"rect.tfm-{what}").count() for what in ("wait", "send")]
                    == [m.does.count("wait"), m.does.count("send")])
            assert (svg.locator(".tfm-held").all_text_contents()
                    == [h for held in m.holds for h in held])
            said = (
                f"Messages so far: {sent}. Ranks waiting now: {m.does.count('wait')}; in the whole "
                f"run, {waits} of {4 * len(moments)} rank-steps.")
            assert (steps.locator(".tfm-readout").inner_text() == said and svg.evaluate(OVERLAPS)
                    == []), (form, n)
            steps.keyboard.press("ArrowRight")
        assert slider.input_value() == str(len(moments))


# --- bad input ------------------------------------------------------------------------------------

BAD = {
    "heads": (train_tensor_parallel, replace(LLAMA, config=replace(LLAMA.config, n_kv_heads=2)), (),
              "n_kv_heads: 2; expected a multiple of 4"),
    "vocabulary": (train_tensor_parallel,
                   replace(LLAMA, config=replace(LLAMA.config, vocab_size=50)), (),
                   "vocab_size: 50; expected a multiple of 4"),
    "tokens": (train_tensor_parallel, replace(LLAMA, length=14), (True,),
               "length: 14; expected a multiple of 4"),
    "layers": (train_pipeline, replace(LLAMA, config=replace(LLAMA.config, n_layers=3)), (),
               "n_layers: 3; expected a multiple of 4"),
    "microbatches": (train_pipeline, LLAMA, ("1f1b", 3), "micros: 3; expected a divisor of 8"),
    "rows": (train_data_parallel, replace(LLAMA, rows=6), (),
             "batch: got 6 rows, expected a multiple of 4"),
    "chunks": (train_context_parallel, replace(LLAMA, length=12), (),
               "length: 12; expected a multiple of 8"),
    "stage": (train_sharded, LLAMA, (4,), "stage: 4; expected 1, 2 or 3")}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name_in_every_process(name, processes):
    function, job, more, said = BAD[name]
    with pytest.raises(ProcessFailed) as caught: processes.run(function, 4, job, *more)
    assert sorted(caught.value.errors) == [0, 1, 2, 3]
    assert all(e.startswith(f"ValueError: {said}")
               for e in caught.value.errors.values()), caught.value.errors


@pytest.mark.parametrize("shape, said", [
    (lambda: gpt2(48, 16, 1, 4, 32), "inner: a layer with a bias in q_proj"),
    (lambda: llama(48, 12, 1, 3, 32), "n_heads: 3; expected a multiple of 2")])
def test_a_layer_that_ranks_cannot_divide_is_refused(shape, said):
    "Its bias kept every head's numbers, and that of the output was added by each rank."
    ring = SimpleNamespace(rank=0, size=2)
    with pytest.raises(ValueError, match=said):
        M.TensorParallel(ring, shape().stack.blocks[0].attention.inner)


# --- faults ---------------------------------------------------------------------------------------

def test_what_is_no_ordinary_exception(processes):
    with pytest.raises(ProcessFailed) as caught: processes.run(cases.interrupt, 2)
    assert caught.value.errors == dict.fromkeys((0, 1), "KeyboardInterrupt: enough")
    assert all(worker.is_alive() for worker in processes.workers)


def test_processes_that_disagree(processes):
    with pytest.raises(ProcessFailed) as caught:
        processes.run(cases.checked_mismatch, 2, timeout=10)
    assert (set(caught.value.errors.values()) == {"ValueError: x: (4,) in process 0, (5,) in "
                                                  "process 1; expected the same value in every "
                                                  "process"})
    with pytest.raises(ProcessFailed): processes.run(cases.mismatch, 2, timeout=5)


def test_a_process_that_dies(processes):
    with pytest.raises(ProcessFailed) as caught: processes.run(cases.die, 2, timeout=60)
    assert caught.value.errors[1] == "ended with exit code -9" and 0 in caught.value.errors
    processes.run(cases.summed, 2)                               # the next call works again


@pytest.mark.whole
def test_a_process_that_died_between_two_calls_and_one_that_hangs(processes):
    processes.run(cases.summed, 2)
    processes.workers[1].kill()
    processes.workers[1].join()
    # both were started again
    with pytest.raises(ProcessFailed) as caught: processes.run(cases.hang, 2, timeout=5)
    assert (caught.value.errors == {0: "waited 5 s for another process in all_reduce",
                                    1: "gave no answer in time and was stopped"})


def test_a_refusal_leaves_the_processes_as_they_are(processes):
    processes.run(cases.summed, 4)
    before = [worker.pid for worker in processes.workers]
    for _ in range(15):
        with pytest.raises(ProcessFailed) as caught: processes.run(cases.refuse, 4)
        assert caught.value.errors == dict.fromkeys(range(4), "ValueError: no")
    assert [worker.pid for worker in processes.workers] == before


def test_nobody_begins_before_all_have_come(monkeypatch, tmp_path):
    calls = []
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: calls.append(name))
    with joined(0, 2, str(tmp_path / "store"), 9.): calls.append("work")
    assert calls == ["init_process_group", "barrier", "work", "destroy_process_group"]


def test_what_broke_on_the_way_into_a_group_is_told_apart(monkeypatch):
    """PyTorch counts the groups that were begun: a process that never entered would meet the
    others under another name from then on."""
    for join, kind in ((Mock(side_effect=RuntimeError("closed by peer")), "broken"),
                       (lambda *_: nullcontext(), "error")):
        assert perform(cases.refuse, (), 0, 1, "", 9., join)[0] == kind


@pytest.mark.whole
def test_processes_whose_group_broke_are_started_anew(processes):
    processes.run(cases.summed, 2)
    before = processes.workers[0].pid
    with pytest.raises(ProcessFailed): processes.run(cases.both_wait, 2, timeout=3)
    processes.run(cases.summed, 2)
    assert processes.workers[0].pid != before


def test_arguments_of_processes(processes):
    for size, timeout, name in ((0, 1., "size"), (2, 0., "timeout")):
        with pytest.raises(ValueError, match=name): processes.run(cases.hang, size, timeout=timeout)


# --- the program ----------------------------------------------------------------------------------

COMMON = ["--model", "toy Llama", "--rows", "8", "--length", "16", "--dtype", "float64", "--peak",
          "0.01", "--warmup", "1", "--clip", "0.5", "--every", "2", "--timeout", "60"]
FAULTY = str(ROOT / "tests/device_cases.py")


def started(command: list[str], limit: float = 240) -> subprocess.CompletedProcess:
    """A command, and its end: what takes longer than `limit` seconds is ended with all that it
    started."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
                               start_new_session=True)
    try: out, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(
            f"{command[2:]} took more than {limit} s: {process.communicate()}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def torchrun(n: int, *arguments: str, program=("-m", "tfmlib.many_devices.cluster"),
             restarts: int = 0) -> subprocess.CompletedProcess:
    "The program as the page starts it, on n processes of this machine."
    return started(["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}",
                    f"--max-restarts={restarts}", *program, *COMMON, *arguments])


def printed(done: subprocess.CompletedProcess) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def far(a: list[dict], b: list[dict]) -> float:
    assert [x["step"] for x in a] == [y["step"] for y in b]
    return max(abs(x[k] - y[k]) for x, y in zip(a, b) for k in ("loss", "length"))


@pytest.fixture(scope="module")
def here(processes):
    "The same training in processes that have started already: what process 0 returns."
    return lambda n, *arguments: processes.run(cases.on_cluster, n, *COMMON, *arguments)[0].value


@pytest.fixture(scope="module")
def one(here): return here(1, "--steps", "6")


def test_the_program_is_the_training_of_chapter_10(one):
    alone = train_alone(Job(MODEL_CONFIGS["toy Llama"], 6, 8, 16, .5,
                            rate=WarmupCosine(.01, 1, 1000)))
    assert max(abs(a - b["loss"]) for a, b in zip(alone.loss, one, strict=True)) < 1e-10
    assert max(abs(a - b["length"]) for a, b in zip(alone.length, one, strict=True)) < 1e-10


@pytest.mark.parametrize("division", sweep(
    ["--shard 4", "--replicate 2 --shard 2", "--shard 2 --tensor 2"], "--shard 2 --tensor 2"))
def test_however_it_is_divided(division, here, one):
    assert far(here(4, "--steps", "6", *division.split()), one) < 1e-10


@pytest.mark.whole
def test_the_other_parts_of_a_model_too(here):
    gpt = "--steps", "4", "--model", "toy GPT-2"
    assert far(here(4, *gpt, "--shard", "2", "--tensor", "2"), here(1, *gpt)) < 1e-10


@pytest.mark.parametrize("division", sweep(["", "--replicate 2", "--tensor 2"], "--tensor 2"))
@pytest.mark.parametrize(("numbers", "near"), sweep([((), 1e-5), (("--bf16",), .05)],
                                                    (("--bf16",), .05)))
def test_in_fewer_bits_too(numbers, near, division, here, one):
    found = here(2, "--steps", "2", "--dtype", "float32", *numbers, *division.split())
    assert 0 < far(found, one[:2]) < near


def test_a_checkpoint_resumes_on_another_number_of_processes(tmp_path, here, one):
    keep = ["--checkpoint", str(tmp_path)]
    found = (here(4, "--steps", "2", *keep, "--shard", "2", "--tensor", "2")
             + here(2, "--steps", "4", *keep) + here(1, "--steps", "6", *keep))
    assert far(found, one) < 1e-10
    assert (sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004",
            "step-00000006"])


@pytest.mark.whole
def test_a_process_that_dies_and_one_that_hangs(tmp_path, here, one):
    """Four processes save; on two, one dies, all start again from the last checkpoint, and one
    hangs; from the last checkpoint, the run ends bit for bit as if nothing had happened."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    begun = here(4, "--steps", "2", "--checkpoint", str(broken), "--shard", "2", "--tensor", "2")
    shutil.copytree(broken, whole)
    rest = here(2, "--steps", "6", "--checkpoint", str(whole))
    assert far(begun + rest, one) < 1e-10 and [x["step"] for x in rest] == [2, 3, 4, 5]
    done = torchrun(2, "--steps", "6", "--checkpoint", str(broken), "--timeout", "10",
                    program=(FAULTY, "die 3", "hang 5"), restarts=1)
    # each step is reported at once; step 3 died, and the last checkpoint was after step 1
    assert printed(done) == rest[:1] + rest[:3]
    assert done.returncode and "exitcode: -9" in done.stderr
    assert "step 5: waited for another process, which has ended or hangs (timeout 10 s); the last checkpoint is complete" in done.stderr  # noqa: E501
    assert here(2, "--steps", "6", "--checkpoint", str(broken)) == rest[2:]


def test_what_died_while_it_was_written_is_no_checkpoint(tmp_path, here):
    keep = ["--checkpoint", str(tmp_path)]
    here(2, "--steps", "4", *keep)
    torn = tmp_path / "step-00000006.part"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert [x["step"] for x in here(2, "--steps", "6", *keep)] == [4, 5]
    assert (sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004",
            "step-00000006"])


def test_every_attempt_meets_under_a_name_of_its_own():
    "Three ranks on one store, twice; a rank that asked and died, and one that never comes."
    store, names = dist.HashStore(), []
    store.set_timeout(timedelta(seconds=30))
    store.set("asks/2", "a process that died before it had an answer")
    for _ in range(2):
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda rank: fresh_name(store, rank, 3, 30.), range(3)))
        assert len(set(found)) == 1
        names += found[:1]
    assert names[0] != names[1]
    with pytest.raises(TimeoutError, match=r"ranks \[1\] to begin"):
        fresh_name(dist.HashStore(), 0, 2, .2)


# --- what the program refuses ---------------------------------------------------------------------

REFUSED = {("--rows", "6", "--shard", "4"): "rows: 6; expected a multiple of 4",
           ("--tensor", "4"): "n_kv_heads: 2; expected a multiple of 4",
           ("--replicate", "3"): "replicate, tensor: 3, 1; expected a product that divides 4",
           ("--shard", "3"): "shard: 3; expected 4",
           ("--length", "1000"): "length: 1000; expected at most 128",
           ("--model", "toy"): "model: 'toy'; expected one of",
           ("--every", "0"): "every: 0; expected a number above 0",
           ("--steps", "-1"): "steps: -1; expected a number above 0",
           ("--clip", "0"): "clip: 0.0; expected a number above 0",
           ("--dtype", "int64"): "dtype: 'int64'; expected one of float32, float64"}


def refused(here, n: int, *arguments: str) -> list[str]:
    "What every process said."
    with pytest.raises(ProcessFailed) as caught: here(n, *arguments)
    assert sorted(caught.value.errors) == list(range(n))
    return list(caught.value.errors.values())


@pytest.mark.parametrize("arguments", REFUSED)
def test_the_program_refuses_what_does_not_fit_in_every_process(arguments, here):
    assert all(e.startswith(f"ValueError: {REFUSED[arguments]}")
               for e in refused(here, 4, "--steps", "1", *arguments))


def test_the_commands_of_the_page_are_not_refused():
    cells = json.loads((ROOT / "chapters/depth/15_many_devices_cluster.ipynb").read_text(
        encoding="utf-8"))["cells"]
    block, _ = (b.split("```")[0] for c in cells if c["cell_type"] == "markdown"
                for b in "".join(c["source"]).split("```bash\n")[1:])
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    assert [c[0] for c in commands] == ["python", "torchrun", "torchrun"]
    for command in commands:
        of = dict(zip(command, command[1:]))
        run = read_arguments(command[command.index("tfmlib.many_devices.cluster") + 1:])
        assert (check_training(run, MODEL_CONFIGS[run.model], int(of.get("--nnodes", 1))
                               * int(of.get("--nproc-per-node", 1))) > 0)


@pytest.mark.whole
def test_torchrun_shows_it_for_every_process():
    done = torchrun(2, "--steps", "1", "--rows", "7")
    assert (done.returncode and done.stderr.count("ValueError: rows: 7; expected a multiple of 2")
            >= 2)


def rewrite(saved: Path, **facts: str) -> None:
    "Change what a checkpoint says of its training, and the digest of that."
    saved.write_text(json.dumps(json.loads(saved.read_text()) | facts))
    seal = saved.with_name("digests.json")
    seal.write_text(json.dumps(json.loads(seal.read_text())
                               | {saved.name: hashlib.sha256(saved.read_bytes()).hexdigest()}))


def invert(path: Path) -> None:
    "Four bytes in the middle of a file."
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at:at + 4] = (255 - b for b in content[at:at + 4])
    path.write_bytes(content)


DAMAGES = {"__1_0.distcp": (invert, lambda p: p.write_bytes(p.read_bytes()[:-9]), Path.unlink),
           "training.json": (Path.unlink,), ".metadata": (invert, lambda p: p.write_bytes(b"")),
           "digests.json": (Path.unlink, lambda p: p.write_text("[1]"))}


@pytest.mark.parametrize(("name", "damage"),
                         sweep([(n, k) for n, ds in DAMAGES.items() for k in range(len(ds))],
                               ("__1_0.distcp", 0)))
def test_a_damaged_checkpoint_is_passed_over_and_replaced(name, damage, tmp_path, here):
    keep = ["--checkpoint", str(tmp_path)]
    whole = here(2, "--steps", "6", *keep, "--every", "2")
    DAMAGES[name][damage](tmp_path / "step-00000006" / name)
    # from step 4, and written again
    assert here(2, "--steps", "6", *keep, "--every", "2") == whole[4:]
    assert here(2, "--steps", "6", *keep) == []
    for folder in tmp_path.iterdir(): DAMAGES[name][damage](folder / name)
    said = refused(here, 2, "--steps", "6", *keep)
    assert all(e.startswith(
        f"ValueError: checkpoint: damaged: step-00000006 ({name}); step-00000004")
               for e in said), said


@pytest.mark.whole
def test_the_program_says_from_which_checkpoint_it_resumes(tmp_path, here):
    keep = ["--checkpoint", str(tmp_path)]
    here(1, "--steps", "2", *keep, "--every", "1")
    invert(tmp_path / "step-00000002" / "__0_0.distcp")
    done = started(["-m", "tfmlib.many_devices.cluster", *COMMON, "--steps", "2", *keep])
    assert [x["step"] for x in printed(done)] == [1]
    assert done.stderr.count("Warning") == 1
    assert "checkpoint: damaged: step-00000002 (__0_0.distcp); training resumes from step-00000001" in done.stderr  # noqa: E501


def test_what_stops_the_writing_is_said_in_a_line(tmp_path, here):
    "A folder that cannot be made, as a full disk, ends in PyTorch's frames of all processes."
    (tmp_path / "file").write_text("")
    said = refused(here, 2, "--steps", "1", "--checkpoint", str(tmp_path / "file" / "run"))
    assert all(e.startswith("OSError: checkpoint: process 0 could not use ")
               and "NotADirectoryError" in e and e.endswith("earlier ones are complete")
               for e in said), said


def test_every_option_is_described(capsys):
    with pytest.raises(SystemExit): read_arguments(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for f in fields(TrainingRun): assert f"{f.metadata['help']} (default:" in shown, f.name


@pytest.mark.parametrize("model",
                         [name for name, config in MODEL_CONFIGS.items() if config.kind
                          != "decoder"])
def test_a_model_that_is_no_decoder_is_refused_and_not_offered(model, here):
    said, = refused(here, 1, "--steps", "1", "--model", model)
    assert (said.startswith(f"ValueError: model: {model!r}; expected one of GPT-2 small")
            and "base" not in said.split("expected")[1])


def test_the_checkpoint_of_another_training_is_refused_in_every_process(tmp_path, here):
    keep = ["--checkpoint", str(tmp_path)]
    here(1, "--steps", "2", *keep)
    other = "--steps", "4", *keep, "--model", "toy GPT-2"
    assert all(e.startswith("ValueError: checkpoint: model is toy Llama there, toy GPT-2 here")
               for e in refused(here, 2, *other))
    saved = tmp_path / "step-00000002" / "training.json"
    rewrite(saved, model="toy GPT-2")
    assert all(e.startswith("ValueError: checkpoint: mean.") and "absent" in e
               for e in refused(here, 2, *other))


def test_a_checkpoint_of_another_shape_is_refused_in_every_process(tmp_path, here):
    keep = ["--checkpoint", str(tmp_path)]
    here(1, "--steps", "2", *keep)
    saved = tmp_path / "step-00000002" / "training.json"
    rewrite(saved, model=cases.WIDE)
    said = refused(here, 2, "--steps", "4", *keep, "--model", cases.WIDE)
    assert all(e.startswith(
        "ValueError: checkpoint: mean.embedding.weight is (2048, 96) there, (2048, 128) here;")
               for e in said), said


class Spy:
    "An object whose pickle makes a folder when it is read."
    def __init__(self, folder): self.folder = folder
    def __reduce__(self): return os.mkdir, (str(self.folder),)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_pickle_of_a_checkpoint_runs_nothing(tmp_path):
    written, made = tmp_path / "checkpoint", tmp_path / "made"
    written.mkdir()
    dcp.save({"x": torch.arange(3.)}, checkpoint_id=written, no_dist=True)
    assert CheckpointReader(written).read_metadata().state_dict_metadata["x"].size == (3,)
    (written / ".metadata").write_bytes(pickle.dumps(Spy(made)))
    with pytest.raises(ValueError, match=r"checkpoint: (posix|nt)\.mkdir in \.metadata; expected "
                                         r"only names of torch"):
        CheckpointReader(written).read_metadata()
    assert not made.exists()
    with pytest.raises(AttributeError): dcp.FileSystemReader(written).read_metadata()
    assert made.exists()                                         # PyTorch's own reader ran it


def test_a_file_of_tokens_runs_nothing(tmp_path, here):
    torch.save(torch.arange(1000) % 50, tmp_path / "ids.pt")
    assert len(here(1, "--steps", "2", "--tokens", str(tmp_path / "ids.pt"))) == 2
    torch.save(Spy(tmp_path / "made"), tmp_path / "ids.pt")
    with pytest.raises(ProcessFailed, match="UnpicklingError"):
        here(1, "--steps", "2", "--tokens", str(tmp_path / "ids.pt"))
    assert not (tmp_path / "made").exists()
