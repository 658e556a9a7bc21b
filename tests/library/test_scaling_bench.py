"""What the measurements of chapter 14 rest on: a known entropy, exact budgets, runs that survive
being cut off; and all parts, tiny."""
import importlib
import json
import math
from collections import Counter

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
from bench.__main__ import RECORDS
from bench.decoder_training import Reckoning
from bench.gpu import scaling as ladder
from tfmlib.workbench import Writer, parse_record, train

LISTS = "corpus", "paragraphs", "vocabulary"
SHARED = scaling.VOCAB, scaling.TOKENIZED, scaling.TESTED


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


def test_more_tokens_than_there_are_are_refused(tiny):
    with pytest.raises(ValueError, match="budget"): scaling.Order(1e9, 0)


# --- networks -------------------------------------------------------------------------------------

def test_sizes_are_counted(tiny):
    V, C = scaling.corpus()["V"], 48
    found = scaling.sizes(C)
    assert (found["N"] == scaling.LAYERS * (12 * C**2 + 2 * C) + C and found["N all"]
            - found["N"] == V * C)


def test_at_the_base_width_both_parametrisations_are_one(tiny):
    x = torch.randint(1, 50, (2, 7))
    models = [scaling.made(scaling.BASE, 3, way) for way in ("standard", "maximal update")]
    torch.testing.assert_close(*(model(x) for model in models))
    for model in models:
        optimiser = scaling.optimiser_of(model, 0.01)
        scaling.loss(model, *scaling.batch_of(list(x)))[0].backward()
        optimiser.step()
    torch.testing.assert_close(*(model(x) for model in models))


def test_only_in_the_standard_parametrisation_do_steps_change_the_logits_the_more_the_wider_the_network(tiny):  # noqa: E501
    "The mean change of a logit after some steps."
    def change(C: int, way: str) -> float:
        model, rows = (scaling.made(C, 0, way),
                       scaling.batch_of(list(scaling.paragraphs("learnt")[:4])))
        before = model(rows[0]).detach()
        optimiser = scaling.optimiser_of(model, 0.002)
        for _ in range(3):
            total, count = scaling.loss(model, *rows)
            model.zero_grad()
            (total / count).backward()
            optimiser.step()
        return float((model(rows[0]).detach() - before).abs().mean())
    growth = {way: change(128, way) / change(16, way) for way in ("standard", "maximal update")}
    assert growth["maximal update"] < 1.2 < 1.8 < growth["standard"]


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


def test_a_search_says_whether_it_has_ended():
    assert (scaling_sweep.bracketed({1.: 3., 2.: 2., 4.: math.inf})
            and not scaling_sweep.bracketed({1.: 3., 2.: 2., 4.: 1.}))


def test_seeds_count_once(tiny):
    done = ([({"C": 8, "D": 400, "seed": s}, {"N": 10, "curve": [[200, 9.], [400 + s, 3. + s]]})
             for s in (0, 2)] + [({"C": 16, "D": 400}, {"N": 40, "curve": [[400, 2.]]})])
    x, loss = scaling_sweep.seed_means(done)
    assert x.tolist() == [[10, 401], [40, 400]] and loss.tolist() == [4, 2]


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


def test_a_search_goes_on_beyond_the_end_at_which_the_best_lies():
    assert (scaling_sweep.tried(4., {}) == [2., 4., 8.]
            and scaling_sweep.tried(4., {2.: 3., 4.: 2., 8.: 1.}) == [2., 4., 8., 16.])
    assert (scaling_sweep.tried(4., {2.: 1., 4.: 2., 8.: 3.}) == [2., 4., 8., 1.]
            and scaling_sweep.tried(4., {2.: 2., 4.: 1., 8.: 3.}) == [2., 4., 8.])


def test_the_ladder_goes_on_with_the_tokens_and_the_test_of_the_sweep():
    s = ladder.SETTINGS["full"]
    assert (s.vocabulary, s.tokenized, s.tested) == SHARED and s.first > 2
    assert s.paragraphs * 110 > max(s.budgets)


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
def test_the_sweep_measures_what_it_says(swept):
    runs = [row for row in swept if row["what"] == "run"]
    assert ({(row["C"], row["D"]) for row in runs}
            == {(C, D) for C in SETTINGS["WIDTHS"] for D in SETTINGS["BUDGETS"]})
    assert ([row["loss"]["n"] for row in runs if row["C"] == 8] == [2, 2, 1]
            and [(row["C"], row["D"]) for row in runs if row["largest"]] == [(16, 1_600)])
    assert ({row["what"] for row in swept} == {"entropy", "rate", "best rate", "rate law",
                                               "prediction", "run"})
    assert ({(row["from"], row["floor"]) for row in swept if row["what"] == "prediction"}
            == {(a, b) for a in ("all smaller runs", "widths up to 12")
                for b in ("fitted", "known", "zero")})
    facts = json.loads((RECORDS / "attention_cost.json").read_text()) | {"name": "scaling_sweep"}
    assert len(parse_record(json.dumps(facts | {"rows": swept})).rows) == len(swept)


def test_the_largest_runs_are_predicted_before_they_are_made(swept):
    order = [json.loads(line)["case"] for line in scaling_sweep.RUNS.path.read_text().splitlines()]
    [predicted] = [i for i, c in enumerate(order) if "prediction of" in c]
    assert ([i > predicted for i, c in enumerate(order) if c.get("C") == 16 and c.get("D")
             == 1_600] == [True])


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


def test_a_whole_answer_is_right_where_all_its_tokens_are():
    class Cheat(torch.nn.Module):
        "Knows the answer but for its last token."
        def forward(self, ids):
            (x,) = scaling_emergence.rows(scaling_emergence.TESTED, 0, 0)
            logits = (torch.nn.functional.one_hot(x[:, 1:], scaling_emergence.SYMBOLS
                                                  + 1).double() * 9)
            logits[:, -1] = 0
            return logits
    found = scaling_emergence.scores(Cheat().eval(), 0)
    assert (found["first 8"] == 1 and found["first 12"] < 0.2 and found["right"]
            == pytest.approx(11 / 12, abs=0.02))


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


@pytest.mark.whole
def test_every_recipe_has_as_many_candidates_and_one_trunk_for_all_lengths(optimised):
    rows = list(optimised.measure(0))
    recipes = {(*recipe, length) for recipe in optimised.RATES for length in optimised.LENGTHS}
    for what, count in (("search", 2), ("end", 1)):
        assert (Counter((row["optimiser"], row["schedule"], row["length"]) for row in rows
                        if row["what"] == what) == dict.fromkeys(recipes, count))
    for optimiser in ("AdamW", "Muon"):
        assert (len({row["rate"] for row in rows if row["what"] == "end"
                     and (row["optimiser"], row["schedule"]) == (optimiser, "WSD")}) == 1)
    facts = (json.loads((RECORDS / "attention_cost.json").read_text())
             | {"name": "scaling_optimisers"})
    assert len(parse_record(json.dumps(facts | {"rows": rows})).rows) == len(rows)


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
