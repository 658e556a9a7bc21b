"""The program for clusters: the same losses however it runs, every sample once, nothing lost but
the steps since the last save."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import cluster_cases as cases
import numpy as np
import pytest
import torch
from conftest import sweep
from device_cases import PRELOADED, on_cluster
from refusing import refuses
from test_many_devices import COMMON, PATIENCE, ROOT, far, invert, printed, started

from tfmlib.accounting import shapes_of, total_parameters, training_flops, training_memory
from tfmlib.checkpoints import MODEL_CONFIGS, build, load
from tfmlib.heads import fused_attention
from tfmlib.many_devices import cluster
from tfmlib.many_devices.cluster import Speed
from tfmlib.many_devices.cluster_checkpoints import checkpoints
from tfmlib.many_devices.cluster_data import TokenShards, permuted, sample_of, write_tokens
from tfmlib.many_devices.cluster_export import export_checkpoint, export_main, load_trained
from tfmlib.many_devices.cluster_model import attention_for, check_first_weights, init_in_pieces
from tfmlib.many_devices.cluster_settings import TrainingRun, check_training, read_arguments
from tfmlib.many_devices.local_processes import Processes, ProcessFailed

READS = ("chapters/15_", "chapters/depth/15_")
pytestmark = pytest.mark.usefixtures("one_thread")
TOY = MODEL_CONFIGS["toy Llama"]


@pytest.fixture(scope="module")
def processes():
    with Processes(*PRELOADED) as started:
        started.run = partial(started.run, timeout=PATIENCE)
        yield started


@pytest.fixture(scope="module")
def here(processes):
    "The training in processes that have started already: what process 0 returns."
    return lambda n, *arguments: processes.run(on_cluster, n, *COMMON, *arguments)[0].value


@pytest.fixture(scope="module")
def one(here): return here(1, "--steps", "6")


# --- the same losses, however it runs -------------------------------------------------------------

@pytest.mark.parametrize("how", [
    (2, "--replicate", "2", "--parts", "2", "--compile", "aot_eager", "--recompute"),
    (4, "--replicate", "2", "--parts", "2"),
    pytest.param((4, "--replicate", "2", "--parts", "2", "--compile", "aot_eager", "--recompute"),
        marks=pytest.mark.whole),
    (4, "--shard", "2", "--tensor", "2", "--recompute"),
    pytest.param((2, "--compile", "eager"), marks=pytest.mark.whole),
    pytest.param((4, "--recompute", "--parts", "2"), marks=pytest.mark.whole),
    pytest.param((4, "--shard", "2", "--tensor", "2", "--compile", "aot_eager"),
        marks=pytest.mark.whole),
    pytest.param((1, "--parts", "8"), marks=pytest.mark.whole),
    pytest.param((2, "--compile", "inductor"), marks=pytest.mark.whole)],
                         ids=lambda how: " ".join(map(str, how)))
def test_the_same_losses_however_it_runs(how, here, one):
    n, *arguments = how
    assert far(here(n, "--steps", "3", *arguments), one[:3]) < 1e-10


def test_blocks_are_one_graph(processes):
    """Blocks of one shape share a graph, without a break; a second one comes from the pass that
    is repeated."""
    (made, breaks), = (r.value for r in processes.run(cases.graphs, 1, *COMMON, "--compile",
            "aot_eager"))
    assert made == 1 and breaks == 0


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.whole), ("--recompute",)])
def test_attention_is_fused_and_causal(more, processes):
    "The flash kernel, once for each layer, or twice if it is repeated; no softmax of scores."
    names = processes.run(cases.operations, 2, *COMMON, *more)[0].value
    assert (sum("flash_attention_for_cpu" in n and "backward" not in n for n in names)
            == TOY.n_layers * (2 if more else 1))
    assert not any("softmax" in n for n in names)


def test_which_attention_a_model_gets():
    assert attention_for(TOY) is not fused_attention
    for odd in (replace(TOY, positions="alibi"), replace(TOY, positions="relative")):
        assert attention_for(odd) is fused_attention


# --- a model that no process holds whole ----------------------------------------------------------

@pytest.mark.parametrize("positions",
                         ["none", "sinusoidal", "learned", "relative", "alibi", "rotary"])
@pytest.mark.parametrize("parts",
    [{"norm": "layernorm", "attention_bias": True, "ffn": "gelu", "ffn_bias": True}, {}])
def test_first_weights_in_pieces_are_those_of_chapter_10(positions, parts):
    config = replace(TOY, positions=positions, **parts)
    with torch.device("meta"): empty = build(config)
    check_first_weights(empty)
    made, whole = empty.to_empty(device="cpu"), dict(build(config, seed=3).named_parameters())
    for w in made.parameters(): w.detach().fill_(torch.nan)
    init_in_pieces(made, 3)
    assert [name for name, w in made.named_parameters()
        if not torch.equal(w, whole.pop(name))] == [] == [*whole]


def test_a_model_with_other_first_weights_is_refused():
    with torch.device("meta"): model = build(TOY)
    model.stack.blocks[0].register_buffer("decay", torch.ones(2))
    refuses("model: has stack.blocks.0.decay; expected matrices, biases, and norms",
        check_first_weights, model)


DEEP = {"like": "toy Llama", "vocab_size": 64, "d_model": 64, "n_layers": 16, "d_ff": 96}


@pytest.fixture
def deep(tmp_path):
    (tmp_path / "deep.json").write_text(json.dumps({"model": DEEP, "dtype": "float32"}))
    return str(tmp_path / "deep.json")


@pytest.mark.parametrize("division",
    sweep(["1", "2", "4", "4 --replicate 2", "4 --shard 2 --tensor 2"], "4 --shard 2 --tensor 2"))
def test_memory_of_a_rank_is_what_the_formula_says(division, deep, processes):
    """Chapter 13's 16 bytes a parameter, divided; tensor parallelism divides the matrices of
    blocks alone. Nothing as large as the model exists while it is made."""
    n, *arguments = division.split()
    n, run = int(n), read_arguments(["--config", deep, *arguments])
    shard = check_training(run, run.config(), n)
    shape = shapes_of(run.config())[0]
    expected = training_memory(shape, 1, 2)
    cut = (4 * sum(w.numel() for name, w in build(run.config()).named_parameters() if w.ndim == 2
                   and name.startswith("stack")))
    share = Fraction(cut // run.tensor + 4 * total_parameters(shape) - cut,
                     4 * total_parameters(shape) * shard)
    for held, most, largest, whole in (r.value for r in processes.run(cases.memory, n, "--config",
            deep, "--rows", "8", "--length", "16", *arguments)):
        assert (held == {name: expected[name] * share for name in held} and whole
                == expected["weights"])
        assert most <= 3 * whole * share + 4 * largest
        if n == 4 and run.replicate == 1: assert most < whole


# --- data -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 4097])
def test_a_permutation_without_a_table(count):
    orders = [[permuted(i, count, seed, epoch) for i in range(count)]
              for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count > 7:
        assert len({tuple(order) for order in orders}) == 3 and orders[0] != sorted(orders[0])


def test_places_are_spread_evenly():
    "Where number 0 lands under 4,000 seeds, in ten parts; how far neighbours land from each other."
    lands = np.array([[permuted(i, 1000, seed) for i in (0, 1)] for seed in range(4000)])
    counts = np.bincount(lands[:, 0] // 100, minlength=10)
    # chi-squared with 9 degrees of freedom: p = 0.001
    assert ((counts - 400) ** 2 / 400).sum() < 27.9
    assert abs(np.abs(lands[:, 0] - lands[:, 1]).mean() - 1001 / 3) < 20


@pytest.fixture
def tokens(tmp_path):
    """61 samples of 16 + 1 tokens, in files of 8, 8, … samples and some tokens that are left
    over; sample n begins with token n."""
    ids = torch.zeros(61 * 16 + 1, dtype=torch.int64)
    ids[::16] = torch.arange(62)
    folder = tmp_path / "tokens"
    folder.mkdir()
    for n in range(0, 61, 8):
        np.save(folder / f"{n:03}.npy",
                ids[16 * n:16 * min(n + 8, 61) + 1].numpy().astype(np.uint16))
    return str(folder)


def test_samples_of_files(tokens, tmp_path):
    data = TokenShards(tokens, 16, 2048)
    assert (len(data) == 61 and [int(data[n][0]) for n in range(61)] == list(range(61))
            and all(len(data[n]) == 17 and int(data[n][-1]) == n + 1 for n in range(61)))
    assert all(isinstance(s, np.memmap) for s in data.shards)
    write_tokens(tmp_path / "written", list(range(300)), size=101)
    again = TokenShards(tmp_path / "written", 10, 300)
    assert (len(again) == 10 + 10 + 9 and again[10].tolist() == list(range(101, 112))
            and again.shards[0].dtype == np.uint16)


def test_every_sample_once_in_an_epoch_on_any_number_of_processes(tokens, processes):
    "Three epochs and a piece of the fourth, in batches of 8 that do not divide 61."
    arguments = *COMMON, "--tokens", tokens
    seen = {n: [torch.cat(rows)
                for rows in zip(*(r.value for r in processes.run(cases.batches, n, 24,
                        *arguments)))] for n in (1, 2, 4)}
    assert all(torch.equal(a, b) for n in (2, 4) for a, b in zip(seen[1], seen[n], strict=True))
    shown = torch.cat(seen[1])[:, 0].tolist()
    epochs = [shown[61 * k:61 * (k + 1)] for k in range(3)]
    assert (all(sorted(epoch) == list(range(61)) for epoch in epochs) and epochs[0] != epochs[1]
            and len({*shown[183:]}) == 9)
    assert shown == [sample_of(step, row, 8, 61, 0) for step in range(24) for row in range(8)]


def test_a_run_on_files_resumes_at_the_sample(tokens, tmp_path, here):
    data = "--tokens", tokens
    whole, keep = here(1, "--steps", "6", *data), ["--checkpoint", str(tmp_path / "run")]
    assert (far(here(4, "--steps", "2", *data, *keep) + here(1, "--steps", "4", *data, *keep)
                + here(2, "--steps", "6", *data, *keep), whole) < 1e-10)
    (Path(tokens) / "000.npy").unlink()
    with pytest.raises(ProcessFailed, match="checkpoint: samples is 61 there, 53 here"):
        here(1, "--steps", "8", *data, *keep)


WRONG_TOKENS = {"none": "a file, or a folder with files that end in .npy",
                "floats": "tokens, a.npy: float32, (100,); expected whole numbers",
                "square": "tokens, a.npy: int64, (10, 10)",
                "short": "tokens: 9 in",
                "large": "tokens, a.npy: from 0 to 99 after token 80; expected from 0 to 49",
                "pickle": "Python objects in dtype"}


@pytest.mark.parametrize("fault", WRONG_TOKENS)
def test_tokens_that_do_not_fit(fault, tmp_path):
    ids = {"none": None, "floats": np.ones(100, np.float32), "square": np.ones((10, 10), int),
           "short": np.arange(9), "large": np.where(np.arange(100) > 90, 99, 0),
           "pickle": np.array([{}] * 100, dtype=object)}[fault]
    if ids is not None: np.save(tmp_path / "a.npy", ids)
    refuses(re.escape(WRONG_TOKENS[fault]),
        lambda: [data[n] for data in [TokenShards(tmp_path, 16, 50)] for n in range(len(data))])


def test_ids_that_cannot_be_written(tmp_path):
    for ids, said in ([-1, 2], "ids: -1"), ([], "at least one"), ([[1]], "whole numbers"), ([.5],
            "whole numbers"):
        refuses(said, write_tokens, tmp_path, ids)


# --- settings in a file ---------------------------------------------------------------------------

def test_a_file_and_the_command_line(tmp_path):
    toml, js = tmp_path / "run.toml", tmp_path / "run.json"
    toml.write_text(
        'rows = 64\npeak = 1\nbf16 = true\nsteps = 7\n[model]\nlike = "Llama 3 8B"\nn_layers = '
        '80\nd_model = 8192\nn_heads = 64\nd_ff = 28672\n')
    js.write_text(json.dumps({"rows": 64, "peak": 1, "bf16": True, "steps": 7,
                              "model": {"like": "Llama 3 8B", "n_layers": 80, "d_model": 8192,
                                        "n_heads": 64, "d_ff": 28672}}))
    runs = [read_arguments(["--config", str(file), "--steps", "9", "--no-bf16"])
            for file in (toml, js)]
    assert (runs[0] == runs[1]
            == TrainingRun(model=replace(MODEL_CONFIGS["Llama 3 8B"], n_layers=80, d_model=8192,
                                         n_heads=64, d_ff=28672), rows=64, peak=1., steps=9))
    assert total_parameters(shapes_of(runs[0].config())[0]) == 70_553_706_496
    assert (type(runs[0].peak) is float and runs[0].fixed()["model.n_layers"] == "80"
            and "model" not in runs[0].fixed())


def test_the_file_of_the_page_fits_sixteen_processes(tmp_path):
    cells = json.loads((ROOT / "chapters/depth/15_many_devices_cluster.ipynb").read_text(
        encoding="utf-8"))["cells"]
    text, = (t.split("```")[0] for c in cells if c["cell_type"] == "markdown"
             for t in "".join(c["source"]).split("```toml\n")[1:])
    (tmp_path / "run.toml").write_text(text)
    run = read_arguments(["--config", str(tmp_path / "run.toml")])
    assert (check_training(run, run.config(), 16) == 16 and run.until == run.steps
            and round(total_parameters(shapes_of(run.config())[0]) / 1e9) == 35)


OWN = {"vocab_size": 64, "d_model": 8, "n_layers": 1, "n_heads": 2, "max_len": 16}
WRONG_SETTINGS = {
    'row = 8': "row in {}: 8; expected one of model, tokens, steps",
    'rows = "8"': "rows in {}: '8'; expected a whole number",
    "rows = true": "rows in {}: True; expected a whole number",
    "peak = true": "peak in {}: True; expected a number",
    "bf16 = 1": "bf16 in {}: 1; expected true or false",
    "rows = 8.5": "rows in {}: 8.5; expected a whole number",
    "rows = [8]": "rows in {}: [8]; expected a whole number",
    "rows = ": "config: {}: Invalid value", "model = 3": "model in {}: 3; expected text",
    "[model]\nlayers = 3": "model.layers in {}: 3; expected one of like, kind, vocab_size",
    '[model]\nlike = "base"': "model.like in {}: 'base'; expected one of GPT-2 small",
    '[model]\nlike = "toy Llama"\nn_heads = 0': "model in {}: n_heads: 0; expected a whole number "
                                                "of at least 1",
    '[model]\nlike = "toy Llama"\nnorm = "batch"': "model in {}: norm: got 'batch', expected one "
                                                   "of layernorm",
    "[model]\nvocab_size = 8": "model.d_model in {}: absent; expected a size, or `like`, one of "
                               "GPT-2 small",
    '[model]\nkind = "encoder"': "model.kind in {}: 'encoder'; expected 'decoder'"}


@pytest.mark.parametrize("text", WRONG_SETTINGS)
def test_a_file_of_settings_is_refused_by_the_key(text, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(text)
    refuses(re.escape(WRONG_SETTINGS[text].format(file)),
        lambda: build(read_arguments(["--config", str(file)]).config()))


def test_files_that_hold_no_settings(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    for name, said in ("none.toml", "No such file"), ("run.yaml", "ends in .toml"), ("list.json",
            "list; expected keys and values"), ("odd.toml", "expected a TOML file"):
        refuses(said, read_arguments, ["--config", str(tmp_path / name)])


@pytest.mark.parametrize(("more", "said"), [
    ({"parts": 3}, "parts: 3; expected a divisor of 8"),
    ({"parts": 0}, "parts: 0; expected a number above 0"),
    ({"keep": -1}, "keep: -1; expected a number of at least 0"),
    ({"report": -1}, "report: -1"), ({"flops": -1.}, "flops: -1.0"),
    ({"compile": "fast"}, "compile: 'fast'; expected a back-end of torch.compile: ")])
def test_settings_that_do_not_fit(more, said):
    refuses(f"^{re.escape(said)}", check_training, TrainingRun(**more), TOY, 4)


def test_a_model_of_ones_own_trains_and_resumes(tmp_path, processes):
    file = tmp_path / "run.toml"
    def train(n: int, steps: int, layers: int):
        table = "".join(f"{name} = {value}\n"
                        for name, value in (OWN | {"n_layers": layers}).items())
        file.write_text(
            f'steps = {steps}\nrows = 8\nlength = 16\ncheckpoint = '
            f'"{tmp_path / "run"}"\n[model]\n{table}')
        return processes.run(on_cluster, n, "--config", str(file))[0].value
    assert [x["step"] for x in train(1, 2, 1) + train(2, 4, 1)] == [0, 1, 2, 3]
    with pytest.raises(ProcessFailed, match="checkpoint: model.n_layers is 1 there, 2 here"):
        train(1, 6, 2)
    assert load_trained(tmp_path / "run").config.d_model == 8


# --- speed ----------------------------------------------------------------------------------------

def test_speed_and_utilisation_are_reported_each_interval(here):
    found = here(2, "--steps", "7", "--report", "3", "--flops", "1e12")
    at = {x["step"]: x for x in found if "tokens_per_second" in x}
    assert sorted(at) == [2, 5] and all(x["tokens_per_second"] > 0 for x in at.values())
    work = training_flops(shapes_of(TOY)[0], 8, 16)
    for x in at.values():
        assert (x["utilisation"]
                == pytest.approx(x["tokens_per_second"] / (8 * 16) * work / 2e12, rel=.02))
    assert not any("tokens_per_second" in x for x in here(1, "--steps", "3", "--report", "0"))


def test_an_interval_by_hand(monkeypatch):
    now = iter([10., 11., 13., 14.])
    monkeypatch.setattr("tfmlib.many_devices.cluster.time.perf_counter", lambda: next(now))
    monkeypatch.setattr("tfmlib.many_devices.cluster.dist.get_world_size", lambda: 4)
    run = TrainingRun(rows=8, length=16, report=2, flops=1e9)
    speed = Speed(run)
    found = [speed(step) for step in range(4)]
    work = training_flops(shapes_of(TOY)[0], 8, 16)
    assert (found[0] == found[2] == {} and found[1] == {"tokens_per_second": 128,
            "utilisation": work / 4e9} and found[3]["tokens_per_second"] == round(128 / 1.5))


# --- checkpoints ----------------------------------------------------------------------------------

def test_saves_in_the_background_are_those_of_the_moment(tmp_path, here, one):
    """Training goes on while they are written, bit for bit the same; each resumes as one that
    was waited for."""
    now, later = tmp_path / "now", tmp_path / "later"
    often = ["--steps", "6", "--every", "1"]
    assert (here(2, *often, "--checkpoint", str(now)) == here(2, *often, "--checkpoint", str(later),
            "--background"))
    for a, b in zip(checkpoints(now), checkpoints(later), strict=True):
        assert (a.name == b.name and [p.name for p in sorted(a.iterdir())]
                == [p.name for p in sorted(b.iterdir())])
        for (name, x), (_, y) in zip(load_trained(a).named_parameters(),
                                     load_trained(b).named_parameters(), strict=True):
            assert torch.equal(x, y), (a.name, name)
    for folder in checkpoints(later)[3:]: shutil.rmtree(folder)
    assert (here(2, *often, "--checkpoint", str(later), "--background")
            == here(2, "--steps", "6")[3:])


WAYS = pytest.param((), marks=pytest.mark.whole), ("--background",)               # of saving


@pytest.mark.parametrize("more", WAYS)
def test_the_newest_are_kept(more, tmp_path, here):
    here(2, "--steps", "6", "--every", "1", "--keep", "2", "--checkpoint", str(tmp_path), *more)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000005", "step-00000006"]


def test_what_stops_the_writing_in_the_background_is_said(tmp_path, here):
    (tmp_path / "file").write_text("")
    with pytest.raises(ProcessFailed) as caught:
        here(2, "--steps", "3", "--background", "--every", "1", "--checkpoint",
             str(tmp_path / "file" / "run"))
    assert all("OSError: checkpoint: process 0 could not use " in e and "NotADirectoryError" in e
               for e in caught.value.errors.values()), caught.value.errors


@pytest.mark.parametrize("more", WAYS)
def test_a_folder_that_is_not_shared_is_refused(more, tmp_path, processes):
    with pytest.raises(ProcessFailed) as caught:
        processes.run(cases.apart, 2, str(tmp_path), *COMMON, "--steps", "2", *more)
    assert all(e.startswith("ValueError: checkpoint: ")
               and e.endswith("expected a folder that all nodes share") and "No such file" in e
               for e in caught.value.errors.values()), caught.value.errors
    assert not [*tmp_path.glob("disk-*/run/step-*2")]
    (tmp_path / "disk-1/run/step-00000002").mkdir(parents=True, exist_ok=True)
    with pytest.raises(ProcessFailed, match="checkpoint: run has other checkpoints for other "
                                            "processes; expected a folder that all nodes share"):
        processes.run(cases.apart, 2, str(tmp_path), *COMMON, "--steps", "2", *more)


@pytest.mark.parametrize("more", WAYS)
def test_sigterm_in_one_process_saves_and_ends_all(more, tmp_path, processes, here, one):
    keep = ["--checkpoint", str(tmp_path), "--every", "100"]
    found = [r.value for r in processes.run(cases.stopped, 2, 2, *COMMON, "--steps", "6",
                                            *keep, *more)]
    assert ([len(f) for f in found] == [3, 3] and [p.name for p in checkpoints(tmp_path)]
            == ["step-00000003"])
    assert far(found[0] + here(1, "--steps", "6", *keep), one) < 1e-10


@pytest.mark.whole
def test_sigterm_to_torchrun(tmp_path):
    "It passes the signal on; the program saves, says so, and ends well."
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               "-m", "tfmlib.many_devices.cluster", *COMMON,
               "--steps", "100000", "--every", "100000", "--checkpoint", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          cwd=ROOT,
                          env=os.environ
                          | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}) as process:
        for _ in range(5): process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=120)
    last = json.loads(out.splitlines()[-1])["step"]
    assert (f"stopped by SIGTERM after step {last}" in said
            and [p.name for p in checkpoints(tmp_path)] == [f"step-{last + 1:08}"])


def test_random_tokens_are_not_trained_on_in_silence(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "train_on_cluster", lambda run, watch: [])
    for given, count in (([], 1), (["--tokens", "ids.npy"], 0)):
        cluster.main(given)
        assert capsys.readouterr().err.count("no --tokens: training on RANDOM tokens") == count


# --- a folder of Hugging Face's library -----------------------------------------------------------

@pytest.mark.parametrize(("model", "family"), [("toy Llama", "llama"), ("toy GPT-2", "gpt2")])
def test_a_checkpoint_becomes_a_hugging_face_folder(model, family, tmp_path, here):
    run, folder = tmp_path / "run", tmp_path / "folder"
    here(4, "--steps", "2", "--shard", "2", "--tensor", "2", "--dtype", "float32", "--model", model,
         "--checkpoint", str(run))
    export_main([str(run), str(folder), "--family", family])
    ours, ids = load_trained(run), torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected = ours(ids)
        torch.testing.assert_close(load(folder).model(ids), expected)
        transformers = pytest.importorskip("transformers")
        torch.testing.assert_close(transformers.AutoModelForCausalLM.from_pretrained(folder)(
            ids).logits, expected, atol=1e-5, rtol=1e-4)
    export_checkpoint(run / "step-00000002", tmp_path / "half", family, dtype="bfloat16")
    half = load(tmp_path / "half").model
    assert {t.dtype for t in half.parameters()} == {torch.bfloat16}
    wide = load(tmp_path / "half", dtype=torch.float32, device="cpu").model
    torch.testing.assert_close(wide(ids), half.float()(ids))
    assert {t.device.type for t in load(folder, device="meta").model.parameters()} == {"meta"}


def test_what_cannot_be_converted(tmp_path, here):
    here(1, "--steps", "2", "--checkpoint", str(tmp_path / "run"))
    for path, family, said in ((tmp_path / "run", "bert", "'bert'; expected config.json"),
                               (tmp_path / "none", "llama",
                                "none; expected a folder with a checkpoint"),
                               (tmp_path / "step-00000007", "llama", "expected a folder with")):
        refuses(said, export_checkpoint, path, tmp_path / "folder", family)
    invert(tmp_path / "run" / "step-00000002" / "__0_0.distcp")
    refuses(r"checkpoint: damaged: step-00000002 \(__0_0.distcp\)", export_checkpoint,
        tmp_path / "run" / "step-00000002", tmp_path / "folder", "llama")
    assert not (tmp_path / "folder").exists()


def test_a_checkpoint_of_an_older_version(tmp_path, here):
    "Before models could come from a table, no file described them."
    here(1, "--steps", "2", "--checkpoint", str(tmp_path))
    expected, [folder] = load_trained(tmp_path).state_dict(), checkpoints(tmp_path)
    (folder / "model.json").unlink()
    seal = json.loads((folder / "digests.json").read_text())
    (folder / "digests.json").write_text(
        json.dumps({name: digest for name, digest in seal.items() if name != "model.json"}))
    again = load_trained(tmp_path).state_dict()
    assert all(torch.equal(again[n], t) for n, t in expected.items())
    assert [x["step"] for x in here(2, "--steps", "3", "--checkpoint", str(tmp_path))] == [2]


# --- kill -9 at random moments --------------------------------------------------------------------

OFTEN, RARELY = ("--every", "1"), ("--every", "3", "--background")


def check_killed(folder: Path, found: list[dict], kills: int, lost: int, expected) -> None:
    """Nothing is lost but the step in flight, or those since the last save, and every loss is
    that of a run that nothing happened to."""
    killed = sorted(p.read_text() for p in folder.glob("killed-*"))
    whole = expected(1 + max(x["step"] for x in found))
    again = [a["step"] + 1 - b["step"] for a, b in zip(found, found[1:]) if b["step"]
             != a["step"] + 1]
    print(f"{len(killed)} kills, {len(whole)} steps; done again: {again}")
    assert (len(killed) == kills and all(x == whole[x["step"]] for x in found)
            and {x["step"] for x in found} == set(range(len(whole))))
    assert all(0 < n <= lost for n in again), again
    assert not [*(folder / "run").glob("*.part")] and len(checkpoints(folder / "run")) <= 3


@pytest.mark.parametrize(("kills", "more", "lost"),
                         [(2, OFTEN, 1), pytest.param(20, RARELY, 6, marks=pytest.mark.whole)])
def test_killed_at_random_moments(kills, more, lost, tmp_path, processes, here):
    "One of two processes; all start again, and at last five steps more are done."
    arguments = [*COMMON, *more, "--keep", "3", "--report", "0"]
    for attempt in range(kills + 1):
        with pytest.raises(ProcessFailed,
                           match="exit code -9") if attempt < kills else nullcontext():
            processes.run(cases.killed, 2, str(tmp_path), attempt, kills, *arguments)
    found = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    check_killed(tmp_path, found, kills, lost,
                 lambda steps: here(2, *arguments, "--steps", str(steps)))


@pytest.mark.whole
@pytest.mark.parametrize(("kills", "more", "lost"), [(20, OFTEN, 1), (5, RARELY, 6)])
def test_torchrun_starts_all_again(kills, more, lost, tmp_path, here):
    arguments = [*COMMON, *more, "--keep", "3", "--report", "0"]
    done = started(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                    f"--max-restarts={kills}", str(ROOT / "tests/cluster_cases.py"), str(tmp_path),
                    str(kills), *arguments], limit=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    check_killed(tmp_path, printed(done), kills, lost,
                 lambda steps: here(2, *arguments, "--steps", str(steps)))
