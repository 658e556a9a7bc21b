"""What the measurements of chapter 14 rest on: a known entropy, exact budgets, runs that survive
being cut off; and all parts, tiny."""
import importlib
import json
import math

import pytest
import torch

from bench import (
    scaling,
    scaling_emergence,
    scaling_optimisers,
    scaling_repeats,
    scaling_schedule,
    scaling_sweep,
)
from bench.decoder_training import Reckoning
from bench.gpu import scaling as ladder
from tfmlib.workbench import Writer, train

LISTS = "corpus", "paragraphs", "vocabulary"
@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    "A corpus of a few paragraphs, and room for its runs."
    room = tmp_path_factory.mktemp("scaling")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CACHE": room / "cache", "RUNS": room / "runs", "VOCAB": 320,
                            "TOKENIZED": 400, "LEARNT": 120, "TESTED": 8, "ROWS": 2, "POOL": 3,
                            "WORKERS": 1}.items():
            patch.setattr(scaling, name, value)
        for name in LISTS: getattr(scaling, name).cache_clear()
        yield patch, room
        for name in LISTS: getattr(scaling, name).cache_clear()


# --- text and batches -----------------------------------------------------------------------------

def test_a_short_lexicon_is_reckoned_as_it_is_written(tiny):
    known, plain = (scaling.writer(kind, 5) for kind in (Reckoning, Writer))
    assert [known.paragraph() for _ in range(20)] == [plain.paragraph() for _ in range(20)]
    assert len(plain.stems["noun"]) == 1_200 and 0 < known.least <= known.most < known.least * 1.01
    rows, nats = scaling.written(Reckoning, 1, 8)
    assert torch.equal(scaling.corpus()["tested"].long(), torch.tensor(sum(rows, [])))
    assert (scaling.corpus()["entropy"] == pytest.approx(nats / sum(map(len, rows))) and 1
            < scaling.corpus()["entropy"] < 3)


def test_a_batch_is_read_from_its_first_token_and_padding_does_not_count(tiny):
    x, y = scaling.batch_of([torch.tensor([5, 6, 7]), torch.tensor([8])])
    assert x.tolist() == [[0, 5, 6], [0, 8, 0]] and y.tolist() == [[5, 6, 7], [8, -1, -1]]
    class Even(torch.nn.Module):
        def forward(self, ids): return torch.zeros(*ids.shape, 500)
    total, count = scaling.loss(Even(), x, y)
    assert (int(count) == 4 and float(total) == pytest.approx(4 * math.log(500))
            and scaling.tested(Even()) == pytest.approx(math.log(500)))


@pytest.mark.parametrize("unique", [None, 700])
def test_an_order_reads_each_paragraph_as_often_as_it_says(tiny, unique):
    order = scaling.Order(2_400, 1, unique)
    read = [tuple(row[row >= 0].tolist()) for step in range(order.steps) for row in order(step)[1]]
    times = [read.count(row) for row in set(read)]
    assert sum(map(len, read)) == order.tokens() and len(read) == 2 * order.steps
    assert (times == [1] * len(read) if unique is None else max(times) - min(times) <= 1
            and min(times) >= 2 and len(times) == order.known)
    assert ((unique is not None or order.tokens() == pytest.approx(2_400, rel=0.2))
            and order.tokens(4) < order.tokens())
    assert all(torch.equal(a, b) for step in range(order.steps)
               for a, b in zip(order(step), scaling.Order(2_400, 1, unique)(step)))
    assert any(a.shape != b.shape or not torch.equal(a, b) for step in range(order.steps)
               for a, b in zip(order(step)[1:], scaling.Order(2_400, 2, unique)(step)[1:]))


# --- networks -------------------------------------------------------------------------------------

def test_at_the_base_width_both_parametrisations_are_one(tiny):
    x = torch.randint(1, 50, (2, 7))
    models = [scaling.made(scaling.BASE, 3, way) for way in ("standard", "maximal update")]
    torch.testing.assert_close(*(model(x) for model in models))
    for model in models:
        optimiser = scaling.optimiser_of(model, 0.01)
        scaling.loss(model, *scaling.batch_of(list(x)))[0].backward()
        optimiser.step()
    torch.testing.assert_close(*(model(x) for model in models))


def test_rates_follow_their_schedule():
    rate = scaling.schedule("cosine", 1., 100)
    assert (max(map(rate, range(100))) == pytest.approx(1, abs=0.01) and rate(100)
            == pytest.approx(0.1) and rate(0) < 0.3)
    assert {scaling.schedule("constant", 1., 100)(step) for step in range(5, 100)} == {1.}
    assert (scaling.schedule("cosine", 1., 100, 50)(25) < 0.6
            and scaling.schedule("cosine", 1., 100, 400)(99) < 0.3)
    with pytest.raises(ValueError, match="kind"): scaling.schedule("linear", 1., 10)


# --- runs that are kept ---------------------------------------------------------------------------

def test_only_missing_runs_are_made_and_a_line_that_was_cut_off_is_made_again(tiny):
    runs, made = scaling.Runs("kept"), []
    def run(c): made.append(c["n"]); return {"twice": 2 * c["n"]}
    cases = [{"n": n} for n in (3, 1, 2)]
    assert runs.complete(cases[:2], run) == [{"twice": 6}, {"twice": 2}] and made == [3, 1]
    assert (runs.complete(cases, run) == [{"twice": 6}, {"twice": 2}, {"twice": 4}] and made
            == [3, 1, 2])
    text = runs.path.read_text()
    assert all(json.loads(line)["machine"]
               for line in text.splitlines()), "a kept run says where it was made"
    # a part of a line that ends with a brace
    runs.path.write_text(text + text.splitlines()[0].split(', "found"')[0])
    assert len(runs.found()) == 3
    runs.path.write_text(text[:-9])
    assert (len(runs.found()) == 2 and runs.complete(cases, run)[2] == {"twice": 4} and made
            == [3, 1, 2, 2])
    assert len(runs.found()) == 3 and not scaling.Runs("kept", "other code").found()


def test_a_run_that_fails_does_not_take_the_finished_ones_with_it(tiny):
    runs = scaling.Runs("failing")
    def run(c): return {"n": 1 // c["n"]}
    with pytest.raises(ZeroDivisionError): runs.complete([{"n": 1}, {"n": 0}], run)
    assert len(runs.found()) == 1


def test_a_run_that_diverges_has_an_infinite_loss(tiny, monkeypatch):
    def train(*args, **kwargs): raise scaling.Diverged("the loss is inf")
    monkeypatch.setattr(scaling, "train", train)
    found = scaling.run(scaling.case(8, 400, 0, 9.))
    assert ([loss for _, loss in found["curve"]] == [math.inf]
            and json.loads(json.dumps(found)) == found)


def test_comments_do_not_change_the_code_and_constants_do():
    a, b, c = (scaling.code_digest(text)
               for text in ('"x"\nA = 1  # y\ndef f():\n    "z"\n    return A\n',
                            '"other"\nA   = 1\ndef f(): return A\n', "A = 2\ndef f(): return A\n"))
    assert a == b != c
    assert (scaling.code_digest("def f(x: int = 1): return [x]")
            == "c6c88d4cd05f"), "another Python, or another machine, would not find the runs"


def test_committed_runs_belong_to_the_code():
    """A change of a benchmark that changes what is computed makes its kept runs void: this says
    so before they are lost."""
    for path in sorted((scaling.Path(scaling.__file__).parent / "runs").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert ({row["code"] for row in rows}
                == {importlib.import_module(f"bench.{path.stem}").RUNS.code}), path.name


def test_a_minimum_between_rates():
    rates = [0.001, 0.002, 0.004, 0.008]
    assert (scaling.log_minimum(rates, [(math.log(r) - math.log(0.003))**2 for r in rates])
            == pytest.approx(0.003))
    assert (scaling.log_minimum(rates, [3, 2, 1, math.inf]) == 0.004 and scaling.log_minimum(rates,
            [1, 2, 3, 4]) == 0.001 and scaling.log_minimum(rates, [1, 1, 1, 1]) == 0.001)


def test_the_ladder_reads_a_paragraph_once(tiny):
    lengths = torch.arange(1, 41)
    read = ladder.order(lengths, ladder.SETTINGS["rehearsal"], 9, 0)
    assert (read.shape == (9, 2) and len(set(read.flatten().tolist())) == 18
            and not torch.equal(read, ladder.order(lengths, ladder.SETTINGS["rehearsal"], 9, 1)))
    with pytest.raises(ValueError, match="^D: "):
        ladder.order(lengths, ladder.SETTINGS["rehearsal"], 21, 0)


# --- the parts, tiny ------------------------------------------------------------------------------

SETTINGS = {
    "WIDTHS": (8, 12, 16), "BUDGETS": (400, 800, 1_600), "LONGEST": {16: 1_600}, "SEEDS": 2,
    "SEEDED": 8, "SEEDED_BUDGET": 800, "PREDICTED": {(16, 1_600)}, "NARROW": 12,
    "MICROSECONDS": {8: 1, 12: 2, 16: 3}, "ROUNDS": 1,
    "TUNED": {"standard": ((8, 400, 0.01), (16, 400, 0.01), (8, 800, 0.01)),
              "maximal update": ((8, 400, 0.01),)}}


@pytest.fixture(scope="module")
def swept(tiny):
    "The rows of a tiny sweep."
    patch, room = tiny
    for name, value in SETTINGS.items(): patch.setattr(scaling_sweep, name, value)
    for part in (scaling_sweep, scaling_schedule, scaling_repeats, scaling_emergence):
        patch.setattr(part.RUNS, "path", room / f"{part.__name__}.jsonl")
    return list(scaling_sweep.measure(0))


@pytest.mark.whole
def test_the_largest_runs_are_predicted_before_they_are_made(swept):
    order = [json.loads(line)["case"] for line in scaling_sweep.RUNS.path.read_text().splitlines()]
    [predicted] = [i for i, c in enumerate(order) if "prediction of" in c]
    assert ([i > predicted for i, c in enumerate(order) if c.get("C") == 16 and c.get("D")
             == 1_600] == [True])


@pytest.mark.whole
def test_a_second_measurement_makes_nothing_and_gives_the_same(swept, monkeypatch):
    monkeypatch.setattr(scaling, "computed", lambda cases, run, workers: iter(())
                        if not cases else 1 / 0)
    assert list(scaling_sweep.measure(0)) == swept


@pytest.mark.whole
def test_the_other_parts_measure(swept, monkeypatch):
    for module, settings in ((scaling_schedule,
                              {"WIDTHS": (8, 12), "LONG": 1_600, "WARM": 200, "WARMED": (400,)}),
                             (scaling_repeats,
                              {"WIDTHS": (8,), "UNIQUE": (400,), "EPOCHS": (2, 4), "MOST": 1_600}),
                             (scaling_emergence,
                              {"WIDTHS": (4, 8), "SEEDS": 2, "LENGTH": 3, "ROWS": 4, "STEPS": 21,
                               "WATCHED": (10,), "TESTED": 6})):
        for name, value in settings.items(): monkeypatch.setattr(module, name, value)
    rows = list(scaling_schedule.measure(0))
    assert ({row["schedule"] for row in rows} == {"matched cosine", "longer cosine", "constant",
                                                  "fixed warm-up"})
    assert (sum(row["schedule"] == "longer cosine" for row in rows) == 4
            and sum(row["schedule"] == "constant" for row in rows) == 6)
    rows = list(scaling_repeats.measure(0))
    assert (sorted(row["epochs"] for row in rows) == [1, 1, 1, 2, 4]
            and {row["unique"] for row in rows if row["epochs"] > 1} == {400})
    # a record takes no bare decimals
    assert all(type(row["epochs"]) is int for row in rows)
    rows = list(scaling_emergence.measure(0))
    assert ([(row["C"], row["step"]) for row in rows] == [(4, 10), (4, 21), (8, 10), (8, 21)]
            and {"nats", "right", "first 1", "first 2", "first 3"} < rows[0].keys())


OPTIMISED = {"WIDTH": 8, "LENGTHS": (10, 20), "WARM": 2, "EACH": 2,
             "RATES": dict.fromkeys(scaling_optimisers.RATES, (0.004, 0.008)), "SEEDS": 2}


@pytest.fixture
def optimised(tiny, monkeypatch, tmp_path):
    "The comparison of optimisers, tiny."
    for name, value in OPTIMISED.items(): monkeypatch.setattr(scaling_optimisers, name, value)
    monkeypatch.setattr(scaling_optimisers, "TOKENS",
                        scaling.ROWS * float(scaling.corpus()["learnt lengths"].double().mean()))
    monkeypatch.setattr(scaling_optimisers.RUNS, "path", tmp_path / "scaling_optimisers.jsonl")
    return scaling_optimisers


@pytest.mark.parametrize("optimiser", ["AdamW", "Muon"])
def test_a_decay_from_a_trunk_is_the_run_of_its_length(optimised, optimiser):
    "A branch copies weights and state, and leaves the trunk as it was."
    both = optimised.run(optimised.case(optimiser, "WSD", 20, 0.008, 0))
    assert (both["steps"] == 16 + 2 + 4 and [*both["ends"]] == ["10", "20"] and [*both["trunk"]]
            == ["8", "16"])
    order = scaling.Order(20 * optimised.TOKENS, 0)
    for length in (10, 20):
        model = scaling.made(8, 0, layers=optimised.LAYERS)
        train(model, scaling.loss, order, length,
              optimised.optimiser_of(model, optimiser, optimised.decayed(length, 0.008)), seed=0)
        assert both["ends"][str(length)] == round(scaling.tested(model), 6)
