"""What the recorded trainings of chapter 10 rest on: fair tasks, honest scores, a known entropy;
and that the shipped models can be made again."""
import json
import types

import pytest
import torch
from conftest import sweep

import bench.decoder_english as english
import bench.decoder_speed as speed
import bench.decoder_training as training
import bench.induction as induction
import bench.instructions as instructions
import bench.thinking as thinking
from tfmlib.checkpoints import load_model
from tfmlib.decoders import next_token_loss
from tfmlib.workbench import load_tensors, prose, seeded, train

FEW = 5
PARTS = ("decoder_training", "induction", "thinking", "instructions")


# --- the shipped models ---------------------------------------------------------------------------

def first_losses(name: str) -> list[float]:
    "The first losses of a training, made again."
    if name in ("prose", "book"):
        model, optimiser, batches = training.begun(name, 0)
        return train(model, next_token_loss, batches, FEW, optimiser, seed=0)["loss"].tolist()
    if name == "questions": return instructions.of_sheets(0, FEW)[1]["loss"].tolist()
    if name == "answers":
        return instructions.taught(load_model("questions"), "answer", 0, FEW)[1]["loss"].tolist()
    if name == "thinking": return thinking.learn("written steps", 0, FEW)[1]["loss"].tolist()
    return induction.learn({"copying_one": 1, "copying": 2}[name], 0, FEW)[1]["loss"].tolist()


SHIPPED = ["answers", "book", "copying", "copying_one", "prose", "questions", "thinking"]


@pytest.mark.parametrize("name", sweep(SHIPPED, "copying"))
def test_a_shipped_model_is_small_and_its_training_begins_as_it_did(name):
    assert (training.MODELS / f"{name}.safetensors").stat().st_size <= 2_000_000
    facts = load_model(name).facts
    assert facts["command"].startswith("python -m bench ")
    assert first_losses(name) == pytest.approx(json.loads(facts["curve"])[:FEW], rel=1e-3)


def test_no_model_is_shipped_that_is_not_tried():
    assert set(SHIPPED) <= {path.stem for path in training.MODELS.glob("*.safetensors")}
    made = {path.stem for path in training.MODELS.glob("*.safetensors")
            if load_tensors(path)[1]["command"].split()[-1] in PARTS}
    assert made == set(SHIPPED)


# --- prose, and what can be known of it -----------------------------------------------------------

def test_the_reckoning_writer_writes_the_same_prose_and_its_bounds_meet():
    text, least, most = training.truth(30_000, 5)
    assert text == prose(30_000, seed=5) and 0 < least <= most < least * 1.001


@pytest.mark.parametrize("name", sweep(["prose", "book"], "book"))
def test_nothing_that_is_tested_was_learnt(name):
    learnt, tested = training.sides(name)
    lines = {line for line in learnt.split("\n") if len(line) > 200}
    assert lines and not lines & {line for line in tested.split("\n") if len(line) > 200}


# --- copying --------------------------------------------------------------------------------------

def test_what_follows_can_be_known_and_only_where_said():
    x, period = induction.repeated(50, seeded(1))
    last = {}
    for row, p in zip(x.tolist(), period[:, 0].tolist()):
        last = {}
        for t in range(induction.LENGTH - 1):
            assert (row[t] in last) == (t >= p) == bool(induction.again(torch.tensor([[p]]))[0, t])
            if t >= p: assert row[last[row[t]] + 1] == row[t + 1]
            last[row[t]] = t


def test_neither_word_nor_place_nor_distance_says_what_follows():
    x, period = induction.repeated(4_000, seeded(2))
    assert period.unique().tolist() == list(range(induction.SHORT, induction.LONG + 1))
    t = 30
    # the word before; the word at any one distance
    for known in (x[:, t - 1], x[:, t - 14]):
        pairs = torch.zeros(induction.WORDS, induction.WORDS).index_put_((known, x[:, t]),
                torch.tensor(1.0), accumulate=True)
        assert float(pairs.max(1).values.sum() / len(x)) < 0.2


def test_a_head_that_looks_back_one_and_one_that_looks_behind_the_match_score_one():
    x, period = induction.repeated(6, seeded(4))
    T = induction.LENGTH - 1
    back = torch.eye(T).roll(-1, 1)                                    # row t looks at t − 1
    back[0] = torch.eye(T)[0]
    match = torch.zeros(6, T, T)
    for b, p in enumerate(period[:, 0].tolist()):
        for t in range(T): match[b, t, t - p + 1 if t >= p else 0] = 1

    class Looks(torch.nn.Module):
        config = types.SimpleNamespace(n_layers=0)
        def hidden_states(self, ids): return None, [torch.stack([back.expand(6, T, T), match], 1)]
    before, copies = induction.scores(Looks(), x, period)
    assert (before[0].tolist() == pytest.approx([1, 0], abs=0.05) and copies[0].tolist()
            == pytest.approx([0, 1], abs=1e-6))


def test_what_is_hidden_is_not_seen():
    model, (x, period) = induction.small(2, 0), induction.repeated(3, seeded(13))
    hidden = induction.at(period, -1)
    for b, p in enumerate(period[:, 0].tolist()):
        wanted = [(t, s) for t in range(induction.LENGTH - 1) for s in range(t) if s
                  and x[b, s - 1] == x[b, t]]
        assert [tuple(pair) for pair in hidden[b, 0].nonzero().tolist() if pair[1]] == wanted
        # the first word, which follows the last of the round
        assert bool(hidden[b, 0, p - 1, 0])
    whole = model(x[:, :-1])
    with torch.no_grad(), induction.looking(model), induction.blind(model, 1, hidden):
        weights = model.hidden_states(x[:, :-1])[1]
        assert (float((weights[1] * hidden).abs().max()) == 0
                < float((weights[0] * hidden).abs().max()))
        assert not torch.allclose(model(x[:, :-1]), whole)
    assert torch.equal(model(x[:, :-1]), whole)


# --- thinking -------------------------------------------------------------------------------------

def test_the_steps_are_those_of_the_operations():
    question, digits = thinking.problems(40, seeded(6))
    for row, steps in zip(question.tolist(), digits.tolist()):
        d = row[0]
        for sign, wanted in zip(row[1:], steps):
            name = thinking.SIGNS[sign]
            d = (d if name == "–" else (d + int(name[1:])) % 5 if name[0] == "+"
                 else d * int(name[1:]) % 5)
            assert d == wanted


@pytest.mark.parametrize("way", thinking.WAYS)
def test_the_answer_is_last_and_only_its_own_tokens_count(way):
    question, digits = thinking.problems(5, seeded(8))
    tokens, own = thinking.row(question, digits, way)
    assert (torch.equal(tokens[:, -1], digits[:, -1]) and not own[:, :thinking.SLOTS + 2].any()
            and own[:, -1].all())
    assert int(own[0].sum()) == (thinking.SLOTS + 3 if way == "written steps" else 1)


def test_no_written_step_is_given_away():
    "What is read before the answer does not depend on it."
    model, (question, digits) = (thinking.learn("written steps", 0, 0)[0],
                                 thinking.problems(5, seeded(9)))
    said = thinking.answered(model, question, "written steps")
    assert (torch.equal(said[:, :thinking.SLOTS + 1], question) and said.shape
            == thinking.row(question, digits, "written steps")[0].shape)
    again = thinking.answered(model, question, "written steps")
    assert torch.equal(said, again)


# --- instructions ---------------------------------------------------------------------------------

def test_no_tested_question_is_taught_and_the_answers_are_right():
    taught, kept = (instructions.questions(3_000, seeded(10)),
                    instructions.questions(3_000, seeded(11), tested=True))
    assert (len(taught) == len(kept) == 3_000 and not {*map(tuple, taught.tolist())}
            & {*map(tuple, kept.tolist())})
    done = {"copy": list, "reverse": lambda d: d[::-1], "sort": sorted}
    for (what, *digits), answer in zip(kept[:300].tolist(),
                                       instructions.answers(kept[:300]).tolist()):
        assert answer == done[instructions.SIGNS[what]](digits)


# --- the parts, tiny ------------------------------------------------------------------------------

@pytest.mark.whole
def test_the_parts_measure(monkeypatch, tmp_path):
    for module in (training, induction, thinking, instructions):
        monkeypatch.setattr(module, "MODELS", tmp_path)
    for name, value in {"STEPS": 2, "SEEDS": 2, "WATCHED": (0, 2), "SAMPLED": (2,), "NEW": 4,
                        "WINDOWS": 2, "BATCH": 2, "PROSE": 30_000, "HELD_OUT": 3_000}.items():
        monkeypatch.setattr(training, name, value)
    training.tokens.cache_clear()
    rows = training.measure(0)
    training.tokens.cache_clear()
    assert ({(r["text"], r["model"]) for r in rows}
            == {("prose", m) for m in ("tokens", "pairs", "least", "most", "decoder")}
            | {("book", m) for m in ("tokens", "pairs", "decoder")})
    assert ([r["step"] for r in rows if "step" in r] == [0, 2, 0, 2]
            and sum("written" in r for r in rows) == 2)
    for module, settings in ((induction, {"STEPS": 4, "SEEDS": 2, "EVERY": 4, "TESTED": 6}),
                             (thinking, {"STEPS": 4, "SEEDS": 2, "TESTED": 6, "BATCH": 3}),
                             (instructions,
                              {"STEPS": 25, "SHEETS": 25, "SEEDS": 2, "TESTED": 6, "BATCH": 3,
                               "WATCHED": (0, 25)})):
        for name, value in settings.items(): monkeypatch.setattr(module, name, value)
        assert all(any(isinstance(v, dict) for v in row.values()) for row in module.measure(0))
    assert sorted(p.stem for p in tmp_path.iterdir()) == SHIPPED


def test_all_four_are_the_same_model_and_are_timed(monkeypatch):
    pytest.importorskip("transformers")
    for name, value in {"VOCAB": 40, "WIDTH": 16, "LAYERS": 2, "HEADS": 2, "TOKENS": 32,
                        "LENGTHS": (16,), "REPEATS": 1}.items():
        monkeypatch.setattr(speed, name, value)
    losses = {name: step()["loss"] for name, step in speed.steps(16, 0).items()}
    assert max(losses.values()) - min(losses.values()) < 1e-5
    again = {name: [step()["loss"] for _ in range(3)][-1]
             for name, step in speed.steps(16, 0).items()}
    assert (max(again.values()) - min(again.values()) < 1e-5 and max(again.values())
            < min(losses.values()))
    [row] = speed.measure(0)
    assert {"fused", "tiles", "matrix", "Hugging Face"} < row.keys()


# --- English --------------------------------------------------------------------------------------

def test_a_table_that_backs_off_gives_probabilities_and_gains_from_context():
    """With all weight on the shorter context nothing is left but chance; the plain one is worse
    the more it asks for."""
    found = english.backing_off(2, 30)
    assert found[2] < found[1] < found[0] < english.math.log(len(english.words()[0]))
    assert abs(english.plain(0) - found[0]) < .02 and english.plain(2) > english.plain(1)
    assert abs(english.backing_off(1, 1e9)[1] - english.math.log(len(english.words()[0]))) < 1e-2
