"""What the recorded comparison of chapter 8 rests on: models of equal size, the same batches,
sentences kept apart; and the shipped model."""
import copy
import json

import pytest
import torch

import bench.gpu.translators as gpu
import bench.translators as part
import bench.translators_time as times
import bench.translators_wide as wide
from bench import size, translation
from bench.lstm import attentive, one_vector
from tfmlib.alignment import PAD, Seq2Seq, greedy_decode, shift_right
from tfmlib.block import LayerNorm
from tfmlib.checkpoints import count_parameters, load_model
from tfmlib.workbench import held_out


@pytest.mark.parametrize("lstm", [one_vector, attentive])
def test_an_lstm_at_once_says_what_it_says_word_by_word(lstm):
    torch.manual_seed(0)
    model, x, y = lstm(9, 11, 6), torch.randint(4, 9, (3, 5)), torch.randint(4, 11, (3, 7))
    x[0, 3:] = PAD
    (once, looks), (steps, each) = (model(x, shift_right(y)),
                                    Seq2Seq.forward(model, x, shift_right(y)))
    torch.testing.assert_close(once, steps)
    assert (looks is None) == (each is None) == (lstm is one_vector)
    if looks is not None:
        torch.testing.assert_close(looks, each)
        assert not looks[0, :, 3:].any() and torch.allclose(looks.sum(-1), torch.ones(3, 7))
    # padding changes nothing
    torch.testing.assert_close(model(x[:1, :3], shift_right(y[:1]))[0], once[:1])
    assert torch.equal(greedy_decode(model, x, 4)[:, 0], once[:, 0].argmax(-1))


def test_the_models_have_as_many_parameters():
    sizes = {kind: size(part.made(kind, width)) for kind, width in part.widths().items()}
    equal = sizes.pop("transformer")
    assert equal == sum(count_parameters(part.SHAPE).values())
    assert all(equal <= n < 1.05 * equal for n in sizes.values())
    assert all(size(part.made(kind, part.widths()[kind] - 2)) < equal for kind in sizes)


def test_the_sentences_are_kept_apart():
    learnt, chosen, tested = ({p.source for p in some} for some in (part.KNOWN, part.chosen_on(),
            part.tested_on()))
    assert (len(chosen) == 500 and not learnt & chosen and not learnt & tested
            and not chosen & tested)
    assert all(map(held_out, tested)) and not any(map(held_out, chosen))
    assert max(map(len, learnt | chosen | tested)) == part.LONGEST


def test_a_batch_is_the_same_for_all_and_loses_no_word():
    batch, again = part.batches(1), part.batches(1)
    for step in (0, 130):
        for t, same in zip(batch(step), again(step)):
            assert torch.equal(t, same) and (t != PAD).any(0).all() and len(t) == translation.ROWS
    assert (part.words_seen(1, 2) == sum(int((t != PAD).sum()) for step in (0, 1)
                                         for t in batch(step)))


def test_what_is_fused_is_the_books():
    x, y = part.tensors(part.KNOWN[:4])
    model = part.made("transformer", part.SHAPE.d_model).eval()
    pairs = [(model, part.attending(copy.deepcopy(model), part.grouped_query_attention))]
    for plain in (wide.made(kind, 48, 0).eval() for kind in wide.KINDS[1:]):
        pairs.append((times.with_fused_norms(copy.deepcopy(plain)), plain))
        assert not any(isinstance(m, LayerNorm) for m in pairs[-1][0].modules())
    for fused, books in pairs:
        torch.testing.assert_close(fused(x, shift_right(y))[0], books(x, shift_right(y))[0],
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.whole
def test_the_experiment_runs_to_its_end(monkeypatch):
    small = {"EQUAL": 2, "TRIED": 1,
             "UNTIL": {kind: 2 + (kind != "transformer") for kind in part.UNTIL},
             "STOPS": (1, 2, 3), "SEEDS": (0,), "PEAKS": (.001, .002),
             "NEW": part.NEW[:16], "BANDS": ((3, 8), (9, 20)), "chosen_on": lambda: part.KNOWN[:8],
             "tested_on": lambda: part.NEW[:8], "MARGIN": 1}
    for name, value in small.items(): monkeypatch.setattr(part, name, value)
    rows = part.measure(0)
    curves = {(r["model"], r["steps"]): r for r in rows if r["what"] == "curve"}
    assert (set(curves) == {(kind, n) for kind in part.UNTIL for n in (1, 2, 3) if kind
                            != "transformer" or n < 3})
    # after equal steps, the same words
    assert len({json.dumps(curves[kind, 2]["words"]) for kind in part.UNTIL}) == 1
    assert (sum(r["what"] == "rate" for r in rows) == 6 and sum(r["what"] == "length" for r in rows)
            == 3 * 2 * 3)
    heads = [name for r in rows if r["what"] == "length" and r["model"] == "transformer"
             for name in r if name.startswith("AER")]
    assert (set(heads) == {f"AER, layer {i}, {what}" for i in (1, 2)
                           for what in ("mean", *(f"head {h}" for h in range(1, 5)))})


@pytest.mark.whole
def test_the_wider_comparison_runs_to_its_end(monkeypatch):
    for name, value in {"TRIED": 1, "STEPS": 2, "STOPS": (1, 2), "SEEDS": (0,),
                        "PEAKS": (.001, .002), "TESTS": 8}.items():
        monkeypatch.setattr(wide, name, value)
    monkeypatch.setattr(wide, "sentences",
                        lambda task: {"train": part.KNOWN[:64], "choice": part.KNOWN[:8],
                                      "test": part.NEW[:8]})
    for case in wide.CASES[:2]:
        for kind in wide.KINDS:
            rows, again = (wide.compared((case, kind)), case == wide.CASES[0] or kind
                           == wide.KINDS[0])
            curves = ["curve"] * 2 + ["runner-up"] * 2 * again
            assert ([r["what"] for r in rows] == ["rate", "rate", *curves]
                    and {(r["task"], r["width"], r["model"]) for r in rows} == {(*case, kind)})
            equal = wide.size(wide.made(wide.KINDS[-1], case[1], 0))
            assert abs(rows[0]["parameters"] / equal - 1) < .05


def test_on_a_gpu_the_models_see_the_source_and_not_the_future():
    setting, (x, y) = gpu.Setting("cpu", torch.float32, 16, 2, 1, 1, ()), torch.randn(2, 1, 5, 64)
    for model, width in gpu.models(setting, 0).values():
        model, before, after = model.eval(), y[..., :width], y[..., :width].clone()
        after[:, 3:] += 1
        out, moved = model(x[..., :width], before), model(x[..., :width], after)
        torch.testing.assert_close(out[:, :3], moved[:, :3])
        assert (out - model(2 * x[..., :width], before)).abs().max() > 1e-4


def test_the_shipped_model_is_what_its_command_makes():
    model = load_model("translator")
    facts = model.facts
    assert model.config == part.SHAPE and facts["command"] == "python -m bench.translators"
    assert part.MODEL.stat().st_size < 2_000_000
    told = json.loads(facts["losses"])
    _, history = part.learn("transformer", float(facts["peak"]), int(facts["seed"]), 8)
    assert history["loss"].tolist() == pytest.approx(told[:8], abs=.02)
