"""Lens, hooks, probes and ablation on models small enough to compute by hand; `rome_edit` and
`memit_edit` against solvers that know nothing of their formulas."""
import math

import pytest
import torch
from attending import draw
from conftest import often
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bench.layer_features import fitted, least_squares
from tfmlib.heads import MultiHeadAttention
from tfmlib.inside import (
    Recall,
    SparseAutoencoder,
    Transcoder,
    ablated,
    answers,
    captured,
    class_subspace,
    draw_facts,
    encode,
    fact_accuracy,
    fit_probe,
    fraction_unexplained,
    induction_scores,
    logit_lens,
    matched_cosines,
    memit_edit,
    patched,
    pursued,
    questions,
    replaced,
    rome_edit,
    train_recall,
)
from tfmlib.workbench import shipped_weights

sizes = st.integers(1, 6)


@st.composite
def memories(draw_):
    "A matrix, kept keys that span all features, edits, and a strength."
    C, F_, n = draw_(sizes), draw_(sizes), draw_(sizes)
    seed, more = draw_(st.integers(0, 2**31)), draw_(st.integers(4, 30))
    # features of different sizes
    kept = draw(seed, F_ + more, F_) * draw(seed + 1, F_).abs().add(.2)
    return (draw(seed + 2, C, F_), kept, draw(seed + 3, n, F_), draw(seed + 4, n, C),
            draw_(st.floats(.01, 100)))


def second_moment(kept): return kept.T @ kept / len(kept)


@settings(max_examples=often(150), deadline=None)
@given(memories())
def test_one_edit_is_exact_of_rank_one_and_the_least_change_to_kept_answers(memory):
    W, kept, keys, values, _ = memory
    key, value, before = keys[0], values[0], W.clone()
    new = rome_edit(W, key, value, second_moment(kept))
    assert torch.equal(W, before)
    torch.testing.assert_close(new @ key, value, rtol=1e-8, atol=1e-8)
    assert torch.linalg.matrix_rank(new - W, rtol=1e-9) <= 1
    # all changes that fulfil the condition: one of them, plus anything on the keys at a right
    # angle; the best by least squares
    # (F - 1, F), orthogonal to key
    free = torch.linalg.svd(key[None])[2][1:]
    first = torch.outer(value - W @ key, key) / (key @ key)
    along = (torch.linalg.lstsq(kept @ free.T, -(kept @ first.T)).solution.T if len(free)
             else torch.zeros(len(W), 0, dtype=W.dtype))
    torch.testing.assert_close(new, W + first + along @ free, rtol=1e-6, atol=1e-7)


@settings(max_examples=often(150), deadline=None)
@given(memories())
def test_many_edits_are_the_least_squares_of_kept_and_edited(memory):
    W, kept, keys, values, strength = memory
    weight = math.sqrt(strength / len(kept))
    least = torch.linalg.lstsq(torch.cat([kept * weight, keys]),
                               torch.cat([kept @ W.T * weight, values])).solution.T
    torch.testing.assert_close(memit_edit(W, keys, values, second_moment(kept), strength), least,
                               rtol=1e-6, atol=1e-7)


def test_float32_stays_float32():
    W, kept = draw(0, 3, 4).float(), draw(1, 20, 4).float()
    assert rome_edit(W, kept[0], draw(2, 3).float(), second_moment(kept)).dtype == torch.float32
    assert (memit_edit(W, kept[:2], draw(2, 2, 3).float(), second_moment(kept), 1.).dtype
            == torch.float32)


W, KEY, VALUE, C = draw(0, 3, 4), draw(1, 4), draw(2, 3), second_moment(draw(3, 20, 4))
REFUSED = {
    "weight of three axes": (dict(weight=W[None]), "weight"),
    "key of the values' width": (dict(key=VALUE), r"key: \(3,\); expected \(4,\)"),
    "value of the keys' width": (dict(value=KEY), r"value: \(4,\); expected \(3,\)"),
    "a key as a row": (dict(key=KEY[None]), "key"),
    "a zero key": (dict(key=KEY * 0), "key: zero"),
    "a key of another type": (dict(key=KEY.float()), "key: torch.float32"),
    "a key that is not finite": (dict(key=KEY * math.inf), "key"),
    "a value that is not finite": (dict(value=VALUE * math.nan), "value"),
    "second moment of the values": (dict(second_moment=torch.eye(3).double()),
                                    r"second_moment: \(3, 3\)"),
    "second moment of another type": (dict(second_moment=C.float()), "second_moment"),
    "second moment not symmetric": (dict(second_moment=C + torch.triu(torch.ones(4, 4), 1)),
                                    "second_moment: not symmetric"),
    "second moment of too few keys": (dict(second_moment=second_moment(draw(4, 3, 4))),
                                      "second_moment: singular"),
    "second moment with a negative direction": (dict(second_moment=-C), "second_moment"),
    "half precision": (dict(weight=W.half(), key=KEY.half(), value=VALUE.half(),
                            second_moment=C.half()), "weight: torch.float16"),
    "no features": (dict(weight=W[:, :0], key=KEY[:0], second_moment=C[:0, :0]), "key"),
}


MANY_REFUSED = {
    "one key without its axis": (dict(keys=KEY), r"keys: \(4,\); expected \(n, F\)"),
    "fewer values than keys": (dict(values=VALUE[None]), r"values: \(1, 3\); expected \(2, 3\)"),
    "keys of another width": (dict(keys=draw(0, 2, 3)), "keys"),
    "no edits": (dict(keys=draw(0, 0, 4), values=draw(0, 0, 3)), "keys"),
    "a number for a key": (dict(keys=torch.tensor(1.).double()), "keys"),
    "strength zero": (dict(strength=0), "strength: 0"),
    "strength negative": (dict(strength=-1.), "strength"),
    "strength not a number": (dict(strength=math.nan), "strength"),
    "second moment singular": (dict(second_moment=torch.zeros(4, 4).double()),
                               "second_moment: singular"),
}
ONE = {"weight": W, "key": KEY, "value": VALUE, "second_moment": C}
SEVERAL = {"weight": W, "keys": draw(5, 2, 4), "values": draw(6, 2, 3), "second_moment": C,
           "strength": 1.}
PROBE = {"states": draw(0, 6, 3), "labels": torch.arange(6) % 2, "n_classes": 2}
CALLS = [
    *[(said, lambda change=change: rome_edit(**ONE | change)) for change, said in REFUSED.values()],
    *[(said, lambda change=change: memit_edit(**SEVERAL | change))
      for change, said in MANY_REFUSED.values()],
    *[(said, lambda change=change: fit_probe(**PROBE | change)) for said, change in (
        ("labels", dict(labels=torch.zeros(4).long())), ("labels", dict(states=draw(0, 2, 3, 4))),
        ("ridge: 0", dict(ridge=0)))],
    ("kind: 'median'", lambda: ablated(MultiHeadAttention(4, 2), [0], "median").__enter__()),
    *[("k: ", lambda k=k: SparseAutoencoder(4, 9, k)) for k in (0, 10)],
    ("found: ", lambda: matched_cosines(torch.ones(1, 2), torch.eye(2))),
]


@pytest.mark.parametrize("said, call", CALLS)
def test_what_does_not_fit_is_refused_by_name(said, call):
    with pytest.raises(ValueError, match=said): call()


# --- reading and replacing states -----------------------------------------------------------------

class Pair(nn.Module):
    "A module that returns two things, as attention does."
    def forward(self, x): return x + 1, "weights"


def hooks(*modules: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)


def test_the_lens_is_norm_then_output_matrix():
    state, W = draw(0, 2, 3, 4), draw(1, 7, 4)
    norm = nn.LayerNorm(4).double()
    torch.testing.assert_close(logit_lens(state, norm, lambda x: x @ W.T), norm(state) @ W.T)


def test_captured_records_outputs_or_inputs_at_every_call_and_leaves_no_hook():
    first, second, x = nn.Linear(2, 2).double(), Pair(), draw(0, 3, 2)
    with captured(first, second) as outputs, captured(second, inputs=True) as inputs:
        for _ in range(2): second(first(x))
    y = first(x)
    torch.testing.assert_close(outputs + inputs, [y, y + 1, y, y + 1, y, y])
    assert hooks(first, second) == 0 and len(outputs) == 4


def test_replaced_changes_the_first_part_of_the_output_while_open():
    pair, plain, x = Pair(), nn.Identity(), draw(0, 3, 2)
    with replaced(pair, lambda out: 2 * out), replaced(plain, lambda out: -out):
        found, weights = pair(x)
        torch.testing.assert_close(found, 2 * (x + 1))
        torch.testing.assert_close(plain(x), -x)
        assert weights == "weights"
    torch.testing.assert_close(pair(x)[0], x + 1)
    assert hooks(pair, plain) == 0


@pytest.mark.parametrize("open_one", [lambda m: captured(m), lambda m: replaced(m, torch.neg)])
def test_hooks_go_when_the_model_fails(open_one):
    module = nn.Identity()
    with pytest.raises(KeyError), open_one(module): raise KeyError
    assert hooks(module) == 0


# --- ablation -------------------------------------------------------------------------------------

def heads_written(attention: MultiHeadAttention, x) -> torch.Tensor:
    "What the heads hand to the output matrix, (B, T, H, D)."
    with captured(attention.o_proj, inputs=True) as z: attention(x)
    return z[0].unflatten(-1, (attention.n_heads, -1))


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
@pytest.mark.parametrize("heads", [[1], [0, 2], []])
def test_ablation_replaces_these_heads_and_no_others(kind, heads):
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(12, 3).double(), draw(0, 4, 5, 12)
    with torch.no_grad():
        z = heads_written(attention, x)
        wanted = z.clone()
        for h in heads:
            for b in range(4):
                wanted[b, :, h] = {"zero": 0 * z[b, :, h],
                                   "mean": sum(z[i, t, h] for i in range(4) for t in range(5)) / 20,
                                   "resample": z[b - 1, :, h]}[kind]
        with ablated(attention, heads, kind), captured(attention) as out: attention(x)
        torch.testing.assert_close(out[0], attention.o_proj(wanted.flatten(-2)))
        # afterwards it is the model of before
        torch.testing.assert_close(heads_written(attention, x), z)
    assert hooks(attention.o_proj) == 0


# --- probes ---------------------------------------------------------------------------------------

def test_a_probe_is_ridge_regression_on_one_hot_labels():
    "Against a least-squares solver on the data with the penalty as further rows."
    states, labels = draw(0, 30, 4), torch.arange(30) % 3
    z, target = states - states.mean(0), nn.functional.one_hot(labels, 3).double()
    # squared: ridge times rows times mean variance
    penalty = (0.5 * 30 * z.square().mean()) ** 0.5
    rows = torch.cat([z, penalty * torch.eye(4).double()])
    W_ = torch.linalg.lstsq(rows,
                            torch.cat([target - target.mean(0),
                                       torch.zeros(4, 3).double()])).solution
    assert torch.equal(fit_probe(states, labels, 3, ridge=0.5)(states),
                       (z @ W_ + target.mean(0)).argmax(-1))


def test_class_subspace_holds_the_differences_of_the_means():
    labels, states = torch.arange(60) % 4, draw(0, 60, 7)
    basis = class_subspace(states, labels)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3).double())
    means = torch.stack([states[labels == c].mean(0) for c in range(4)])
    between = means - means[0]
    torch.testing.assert_close(between @ basis @ basis.T, between)


# --- patches and scores ---------------------------------------------------------------------------

@pytest.mark.parametrize("position", [1, [0, 2]])
def test_a_patch_copies_rows_of_the_clean_run_and_no_others(position):
    torch.manual_seed(0)
    first, second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    clean, corrupted = draw(1, 2, 5, 3), draw(2, 2, 5, 3)
    def model(x, scale): return second(first(x)) * scale
    mixed = corrupted.clone()
    # the first layer acts on each row alone
    mixed[:, position] = clean[:, position]
    torch.testing.assert_close(patched(model, first, position, (clean, 9), (corrupted, 2)),
                               model(mixed, 2).detach())
    torch.testing.assert_close(patched(model, first, position, (corrupted, 1), (corrupted, 2)),
                               model(corrupted, 2).detach())
    assert not first._forward_hooks


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(2, 7), st.integers(0, 2**31))
def test_the_induction_score_is_the_mean_weight_on_what_followed(L, H, period, seed):
    T, B = 2 * period - 1, 2
    weights = [draw(seed + layer, B, H, T, T).softmax(-1) for layer in range(L)]
    found = induction_scores(weights, period)
    assert found.shape == (L, H)
    for layer, head in ((0, 0), (L - 1, H - 1)):
        rows = [weights[layer][b, head, t, t - period + 1] for b in range(B)
                for t in range(period, T)]
        torch.testing.assert_close(found[layer, head], torch.stack(rows).mean())


# --- the model that knows facts -------------------------------------------------------------------

def test_questions_are_encoded_with_the_positions_of_the_last_word_and_the_name():
    x, last, name = encode([("Ada Gale", "born", 0), ("Bo Elm", "trade", 1)])
    assert (x.shape == (2, 9) and last.tolist() == [4, 8] and name.tolist() == [1, 4]
            and (x > 0).sum(1).tolist() == [5, 9])
    facts = draw_facts(torch.Generator().manual_seed(0))
    assert (len(facts) == 144 and len(questions(facts)) == 720
            and answers(questions(facts), facts).shape == (720,))


def test_a_training_begins_as_it_did_and_the_shipped_model_knows_its_facts():
    model, facts, held_out = train_recall(steps=2)
    again, *_ = train_recall(steps=2)
    assert (all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
            and next(model.parameters()).dtype == torch.float64)
    shipped = shipped_weights(Recall(), "recall")
    assert (len(held_out) == 144 and fact_accuracy(shipped, questions(facts), facts) > .99
            and fact_accuracy(shipped, held_out, facts) > .95)


# --- the figure -----------------------------------------------------------------------------------

@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 9))
def test_a_sparse_code_has_at_most_k_entries_and_unit_rows_make_the_sum(k, seed):
    torch.manual_seed(seed)
    model, x = SparseAutoencoder(5, 12, k), torch.randn(40, 5)
    with torch.no_grad(): model.decoder.mul_(3.)
    codes = model.encode(x)
    assert (codes >= 0).all() and (codes.count_nonzero(-1) <= k).all()
    torch.testing.assert_close(model.directions.norm(dim=-1), torch.ones(12))
    torch.testing.assert_close(model(x), codes @ model.directions + model.bias)
    scores = model.encoder(x - model.bias).relu()
    torch.testing.assert_close(codes.sum(-1),
                               scores.sort(-1, descending=True).values[:, :k].sum(-1))


def test_a_transcoder_reads_its_input_as_it_is():
    torch.manual_seed(0)
    model, x = Transcoder(4, 9, 2), torch.randn(10, 4)
    with torch.no_grad(): model.bias.add_(5.)
    torch.testing.assert_close(model.scores(x), model.encoder(x))


def test_least_squares_of_codes_finds_a_linear_map_or_falls_back_to_the_mean():
    z = draw(0, 60, 3)
    y = z @ (true := draw(1, 3, 2)) + 5
    weight, constant = least_squares(z, y, 0.)
    torch.testing.assert_close(weight, true)
    torch.testing.assert_close(constant, torch.full((2,), 5., dtype=torch.float64))
    weight, constant = least_squares(z, y, 1e15)
    torch.testing.assert_close(z @ weight + constant, y.mean(0).expand_as(y))
    # without noise the weakest penalty is best; from noise alone, the strongest
    assert fitted(z, y)[2] == 1. and fitted(z, draw(2, 60, 2))[2] > 1.


def test_the_unexplained_fraction_is_one_for_the_mean_and_adds_up_over_features():
    x = draw(0, 30, 4) * torch.tensor([1., 5., 1., 1.]) + 7
    assert (abs(fraction_unexplained(x, x.mean(0).expand_as(x)) - 1) < 1e-12
            and fraction_unexplained(x, x) == 0)
    half = x.clone()
    half[:, 1] = x[:, 1].mean()
    assert abs(fraction_unexplained(x, half) - float(x.var(0)[1] / x.var(0).sum())) < 1e-12


def test_matched_cosines_use_no_direction_twice():
    true, found = torch.eye(2), torch.tensor([[0., -2.], [3., 0.], [1., 1.]])
    torch.testing.assert_close(matched_cosines(found, true), torch.tensor([1., 2**-0.5]))
    torch.testing.assert_close(matched_cosines(torch.tensor([[1., 0.], [-1., 0.]]),
                                               torch.tensor([[1., 0.], [4., 3.]])),
                               torch.tensor([1., -.8]))


def test_pursuit_of_all_of_a_basis_is_exact_and_its_error_never_grows():
    x, basis = draw(1, 20, 6), torch.linalg.qr(draw(2, 6, 6)).Q
    torch.testing.assert_close(pursued(x, basis, 6) @ basis, x)
    directions = torch.nn.functional.normalize(draw(3, 15, 6), dim=-1)
    left = [(x - pursued(x, directions, k) @ directions).norm() for k in range(1, 9)]
    assert all(b < a for a, b in zip(left, left[1:]))
