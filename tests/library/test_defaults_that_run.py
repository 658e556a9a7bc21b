"""What runs unless another thing is asked for: fused attention, models that compile, PyTorch's
optimisers and loaders. Each equals what is written out."""
import copy
import math
import re
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attending import attended, draw
from conftest import often, sweep
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_cases import F64, batch, net, plain_loop, same, squared, weights

from bench.checkpoint_families import CASES, IDS, loud, ours_of
from tfmlib.attention import causal_mask, padding_mask
from tfmlib.checkpoints import (
    MODEL_CONFIGS,
    ModelConfig,
    PublishedModel,
    build,
    export_folder,
    load,
    load_model,
    save_model,
)
from tfmlib.decoders import generate, next_token_loss, perplexity
from tfmlib.encoders import BERT
from tfmlib.heads import (
    MultiHeadAttention,
    attention_weights,
    fused_attention,
    grouped_query_attention,
    mark_causal,
)
from tfmlib.kv_cache import (
    BlockPool,
    CachedAttention,
    CachedCausalLM,
    KVCache,
    NGramDraft,
    Request,
    Scheduler,
    generate_cached,
    generate_speculative,
)
from tfmlib.positions import LearnedEmbedding, RotaryEmbedding
from tfmlib.workbench import (
    AdamW,
    Checkpoint,
    NamedOptimiser,
    ParameterGroup,
    SimpleAdamW,
    StepOptions,
    WarmupCosine,
    debugging,
    epochs,
    evaluating,
    in_order,
    parameter_groups,
    recompute,
    seeded,
    sees_values,
    slope,
    train,
    validate,
)

pytestmark = pytest.mark.usefixtures("one_thread")
READER = ModelConfig("bert", 20, 16, 2, 2, 12, **BERT,
                     options={"heads": "masked-lm", "n_segments": 0})
BOTH = ModelConfig("encoder-decoder", 30, 16, 2, 2, source_vocab_size=20, d_ff=40)


@pytest.fixture(autouse=True)
def quiet(monkeypatch): monkeypatch.setenv("TQDM_DISABLE", "1")


def close(got, wanted, rounding=1e-12):
    torch.testing.assert_close(got, wanted, rtol=rounding, atol=rounding)


# --- attention ------------------------------------------------------------------------------------

def masked(kind, seed, B, H, T, S):
    "A mask of one kind, of which rows may see nothing."
    if kind == "none": return None
    if kind == "padding": return padding_mask(torch.arange(B) * S // max(1, B - 1), S)[:, None]
    if "causal" in kind:
        return mark_causal(causal_mask(T, S)) if "marked" in kind else causal_mask(T, S)
    shape = {"2-d": (T, S), "4-d": (B, H, T, S), "per head": (1, H, T, S), "rows": (T, 1),
        "3-d": (H, 1, S)}
    values = draw(seed, *shape[kind.split(", ")[1]])
    if kind.startswith("bool"): return values > 0
    return values.masked_fill(values > 1.2, -math.inf) if kind.endswith("hides") else values


MASKS = ["none", "causal", "marked causal", "padding",
         *(f"{kind}, {shape}" for kind in ("bool", "float") for shape in ("2-d", "4-d", "per head",
                 "rows", "3-d")), "float, 2-d, hides", "float, 4-d, hides"]


@st.composite
def problems(draw_):
    B, G, R, W, D = (draw_(st.integers(1, n)) for n in (3, 3, 3, 5, 5))
    T, S, seed, kind = (draw_(st.integers(0, 6)), draw_(st.integers(0, 6)),
                        draw_(st.integers(0, 2**31)), draw_(st.sampled_from(MASKS)))
    if draw_(st.booleans()): S = T
    return ((draw(seed, B, G * R, T, D), draw(seed + 1, B, G, S, D), draw(seed + 2, B, G, S, W)),
            masked(kind, seed + 3, B, G * R, T, S))


def with_gradients(attend, tensors, mask):
    "The output, and the gradients at queries, keys, values and a mask that is added."
    added = mask is not None and mask.is_floating_point()
    leaves = [t.clone().requires_grad_() for t in (*tensors, *[mask] * added)]
    out, _ = attend(*leaves[:3], leaves[3] if added else mask)
    if not out.requires_grad: return out, *map(torch.zeros_like, leaves)
    return out, *torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True,
        materialize_grads=True)


@settings(max_examples=often(400), deadline=None)
@given(problems())
def test_fused_is_explicit_forward_and_back(problem):
    close(with_gradients(fused_attention, *problem),
          with_gradients(grouped_query_attention, *problem))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype, eps", [(torch.float16, 2**-10), (torch.bfloat16, 2**-7)])
def test_fused_in_half_precision_rounds_once(dtype, eps, kind):
    "The result of 64 bits, from the same rounded numbers, to a step of the type or two."
    mask, tensors = (masked(kind, 3, 2, 4, 9, 9),
                     [t.to(dtype) for t in (draw(0, 2, 4, 9, 8), draw(1, 2, 2, 9, 8),
                                            draw(2, 2, 2, 9, 6))])
    if mask is not None and mask.is_floating_point(): mask = mask.to(dtype)
    (out, _), (exact, _) = (fused_attention(*tensors, mask),
                            grouped_query_attention(*(t.double() for t in tensors), mask))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=2 * eps, atol=2 * eps)


q4, k2 = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)
WRONG = {
    "three heads": (q4, k2[:, :1].expand(-1, 3, -1, -1), k2), "no head": (q4, k2[:, :0], k2[:, :0]),
    "three axes": (q4[0], k2, k2), "values of three axes": (q4, k2, k2[0]),
    "heads of values": (q4, k2, k2[:, :1]),
    "width of keys": (q4, k2[..., :7], k2), "no width": (q4[..., :0], k2[..., :0], k2),
    "number of values": (q4, k2, k2[:, :, :4]), "batch of keys": (q4, k2[:1], k2[:1]),
    "batch of queries": (q4[:1], k2, k2),
    "types": (q4.double(), k2, k2), "type of values": (q4, k2, k2.bfloat16()),
    "whole numbers": (q4.long(), k2.long(), k2.long()),
    "mask": (q4, k2, k2, torch.ones(3, 4, dtype=torch.bool)),
    "mask of key heads": (q4, k2, k2, torch.ones(2, 2, 3, 5, dtype=torch.bool)),
    "mask of one axis": (q4, k2, k2, torch.ones(5)),
    "mask of whole numbers": (q4, k2, k2, torch.ones(3, 5, dtype=torch.long)),
    "causal, too large": (q4, q4, q4, mark_causal(causal_mask(4, 4)))}


@pytest.mark.parametrize("name", WRONG)
def test_fused_refuses_what_explicit_refuses(name):
    said = []
    for attend in (grouped_query_attention, fused_attention):
        with pytest.raises(ValueError, match="; expected ") as error: attend(*WRONG[name])
        said.append(str(error.value))
    assert said[0] == said[1] and re.match("(q|k|v|mask): ", said[0])


def layers():
    "Layers whose weights no other file of tests asks for, as functions of x (2, 5, 16)."
    torch.manual_seed(0)
    latent = build(ModelConfig("decoder", 9, 16, 1, 2, 8, attention="latent",
                               options={"kv_rank": 4, "rotary_dim": 4}, head_dim=8,
                               positions="partial rotary")).stack.blocks[0].attention.inner
    cached = MultiHeadAttention(16, 2, attention_fn=CachedAttention())
    return {"latent": latent,
            "cache": lambda x: cached(x, positions=torch.arange(5).expand(2, 5), length=5,
                                      cache=KVCache(9))}


@pytest.mark.parametrize("name", ["cache", "latent"])
def test_weights_come_back_within_the_block_and_nowhere_else(name):
    layer, x = layers()[name], torch.randn(2, 5, 16)
    weights = attended(layer, x)[1]
    close(weights.sum(-1), torch.ones(2, weights.shape[1], 5), 1e-5)
    with attention_weights():
        with attention_weights(): pass
        assert layer(x)[1] is not None
    with pytest.raises(ZeroDivisionError), attention_weights(): print(1 / 0)
    assert layer(x)[1] is None


@pytest.fixture
def asked(monkeypatch):
    "What PyTorch's function was asked for: (is_causal, has a mask)."
    seen, real = [], F.scaled_dot_product_attention

    def noted(q, k, v, mask=None, is_causal=False, **how):
        seen.append((is_causal, mask is not None))
        return real(q, k, v, mask, is_causal=is_causal, **how)
    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    return seen


CAUSAL, MASKED = (True, False), (False, True)
SAID = {  # a model, whether it is given padding -> what its attention says, block by block
    ("toy Llama", False): [CAUSAL] * 2, ("toy GPT-2", False): [CAUSAL] * 2,
    ("toy Llama", True): [MASKED] * 2,
    # two that read; two that write and look
    ("both", False): [MASKED] * 2 + [CAUSAL, MASKED] * 2}


@pytest.mark.parametrize("name, padded", SAID)
def test_models_say_that_their_mask_is_causal_where_it_is(asked, name, padded):
    "So a kernel can skip half of it."
    ids, real = torch.randint(3, 20, (2, 7)), torch.arange(7) < torch.tensor([[7], [4]])
    build(MODEL_CONFIGS.get(name, BOTH))(ids, *[real] * padded, *[ids] * (name == "both"))
    assert asked == SAID[name, padded]


def through_a_view(mask):
    mask.view(-1)[1] = True
    return mask


NO_LONGER = {"written to": lambda: mark_causal(causal_mask(3, 3)).fill_(True),
    "through a view": lambda: through_a_view(mark_causal(causal_mask(3, 3))),
    "turned": lambda: mark_causal(causal_mask(3, 3)).mT,
             "a copy, written to": lambda: mark_causal(causal_mask(3, 3)).clone().fill_(True),
             "written to, copied": lambda: copy.deepcopy(
                 mark_causal(causal_mask(3, 3)).fill_(True)),
             "written to before and after, copied": lambda: copy.deepcopy(
                 mark_causal(torch.ones(3, 3, dtype=torch.bool).tril_()).fill_(True)),
                 "not square": lambda: mark_causal(causal_mask(2, 3)),
             "more queries": lambda: mark_causal(causal_mask(3, 2)),
             "one by one": lambda: mark_causal(causal_mask(1, 1)),
             "one row": lambda: mark_causal(causal_mask(1, 3))}


def sized(mask):
    "Queries, keys and values for a mask; more of them where it is a single number."
    T, S = (3, 3) if mask.shape == (1, 1) else mask.shape
    return draw(0, 1, 2, T, 4), draw(1, 1, 2, S, 4), draw(2, 1, 2, S, 4)


@pytest.mark.parametrize("name", NO_LONGER)
@pytest.mark.parametrize("inference", [False, True])
def test_what_is_no_longer_the_causal_mask_is_not_taken_for_it(name, inference):
    with torch.inference_mode(inference):
        mask = NO_LONGER[name]()
        tensors = sized(mask)
        close(fused_attention(*tensors, mask)[0], grouped_query_attention(*tensors, mask)[0])


# --- models ---------------------------------------------------------------------------------------

TURNED = "llama, turned"                                             # it is given positions
MODELS = {"llama": (MODEL_CONFIGS["toy Llama"], 1), TURNED: (MODEL_CONFIGS["toy Llama"], 1),
    "gpt2": (MODEL_CONFIGS["toy GPT-2"], 1), "bert": (READER, 1), "both": (BOTH, 2)}


def made(name): return build(MODELS[name][0], seed=3).double().eval()


TOKENS = IDS[:, :9] % 17 + 3


PLACES = torch.arange(9).flip(0)


def answer(model, name, ids=TOKENS):
    out = model(*(ids,) * MODELS[name][1],
        **{"positions": PLACES[:ids.shape[1]]} if name == TURNED else {})
    return (out[0] if isinstance(out, tuple) else next(iter(out.values()))
            if isinstance(out, dict) else out)


def gradients(model, name):
    answer(model, name).sin().sum().backward()
    return {key: p.grad for key, p in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_trained_after_it_has_run_without_gradients(name):
    "What it keeps from one call for the next, such as rotations, was made in inference mode."
    model = made(name)
    with torch.inference_mode(): first = answer(model, name)
    with torch.no_grad(): close(answer(model, name), first.clone())
    close(gradients(model, name), gradients(made(name), name))
    with torch.inference_mode(): close(answer(model, name, TOKENS.clone()), first)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_has_run_is_copied(name, inference):
    model = made(name)
    with torch.inference_mode(inference): answer(model, name)
    twin = copy.deepcopy(model)
    close(answer(twin, name), answer(model, name))
    with torch.no_grad():
        for p in twin.parameters(): p.zero_()
    assert (answer(twin, name) == 0).all() and (answer(model, name) != 0).any()


@pytest.mark.parametrize("inference", [False, True])
def test_rotations_are_those_of_the_positions_that_are_there_now(inference):
    "Also where the same tensor has been written to, and where the rule is another one."
    with torch.inference_mode(inference):
        how, t, places = RotaryEmbedding(8), draw(0, 1, 2, 3, 8), torch.arange(3)
        for change in (lambda: None, lambda: places.add_(4), lambda: setattr(how, "base", 50.)):
            change()
            wanted = RotaryEmbedding(8, how.base).rotate(t, places)
            for rotate in (how.rotate_known, how.rotate_padded) * 2:
                close(rotate(t, places, 9), wanted)


def test_rotations_are_looked_up_once_for_all_layers(monkeypatch):
    "Queries and keys of every layer share them, and the next call takes those of the last."
    model, read = made("llama"), Mock(wraps=RotaryEmbedding.read_table)
    monkeypatch.setattr(RotaryEmbedding, "read_table", lambda *args: read(*args))
    for ids, count in ((TOKENS, 1), (TOKENS, 1), (TOKENS[:, :4], 2)):
        model(ids)
        assert read.call_count == count


# of each family the first
FIRST = {kind: name for name, (kind, _) in reversed(CASES.items())}


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, backend: str = "eager"):
    return torch.compile(model, fullgraph=True, backend=backend)


@pytest.mark.parametrize("name", sweep(FIRST.values(), FIRST["gpt2"], FIRST["gptj"]))
@torch.no_grad()
def test_a_family_compiles_as_one_graph(name, fresh):
    model = ours_of(loud(*CASES[name])).eval()
    graph = compiled(model)
    for T in (11, 7):
        wanted = model(IDS[:, :T])
        assert float((graph(IDS[:, :T]) - wanted).abs().max()) < 1e-5 * max(1,
            float(wanted.abs().max()))


@pytest.mark.parametrize("name", sweep(
    ["llama 3.1", "gemma3_text", "gpt2", "bloom", "llama, dynamic", "llama, LongRoPE"],
    "llama 3.1", "llama, dynamic"))
@torch.no_grad()
def test_padding_compiles_too(name, fresh):
    "As one graph, unless frequencies depend on the largest position: then it is cut, and right."
    model = ours_of(loud(*CASES[name])).eval()
    whole = not {"dynamic", "LongRoPE"} & {*name.split(", ")}
    graph = torch.compile(model, fullgraph=whole, backend="eager")
    real = torch.ones_like(IDS[:, :14], dtype=torch.bool)
    real[:, :3], real[0, 3] = False, False
    for T in (14, 9):
        at = {"padding_mask": real[:, :T]}
        wanted = model(IDS[:, :T], **at)
        close(graph(IDS[:, :T], **at)[at["padding_mask"]], wanted[at["padding_mask"]])
        at = {"positions": torch.arange(3, 3 + T).expand(len(IDS), -1)}
        close(graph(IDS[:, :T], **at), model(IDS[:, :T], **at))


def test_a_compiled_model_is_saved_resumed_exported_and_cached_as_the_model_itself(fresh, tmp_path):
    model = build(MODEL_CONFIGS["toy Llama"].sized(60, 16, 2, 4, 40), seed=3).eval()
    graph, ids = compiled(model), torch.arange(24).reshape(3, 8)
    save_model(tmp_path / "a.safetensors", graph)
    close(load_model(tmp_path / "a.safetensors")(ids), model(ids))
    export_folder(tmp_path / "folder", graph, "llama")
    close(load(tmp_path / "folder").model(ids), model(ids))
    assert torch.equal(generate_cached(CachedCausalLM(graph), ids, 6), generate(model, ids, 6))
    batches = epochs(ids, size=3)

    def steps(model, until, **where):
        train(model, next_token_loss, batches, until, AdamW(parameter_groups(model), 1e-2), **where)
        return model
    kept = dict(checkpoint=Checkpoint(tmp_path / "training"))
    steps(graph, 2, **kept)
    resumed = steps(build(model.config, seed=5), 4, **kept)     # in a model that is not compiled
    undisturbed = steps(build(model.config, seed=3), 4)
    close([*resumed.parameters()], [*undisturbed.parameters()])


def test_where_a_model_is_used_its_dropout_is_off_and_its_layers_stay_as_they_were():
    model = build(MODEL_CONFIGS["toy Llama"].sized(60, 16, 2, 4, 40, dropout=.5), seed=3)
    cached, ids = CachedCausalLM(model), torch.arange(24).reshape(3, 8)
    model.stack.blocks[1].eval()                             # one layer is not being trained
    modes = [layer.training for layer in model.modules()]
    assert len({*modes}) == 2
    quiet = copy.deepcopy(model).eval()
    for _ in range(2):
        assert torch.equal(generate(model, ids, 9), generate(quiet, ids, 9))
        assert torch.equal(generate_cached(cached, ids, 9), generate(quiet, ids, 9))
        assert perplexity(model, ids) == perplexity(quiet, ids)
        found = generate_speculative(cached, NGramDraft(60), ids[:1], 9)
        assert torch.equal(found.ids, generate(quiet, ids[:1], 9))
        request = Request(ids[0].tolist(), 9)
        Scheduler(cached, BlockPool(8, 4), 2).run([request])
        assert request.new == found.ids[0, 8:].tolist()
    assert [layer.training for layer in model.modules()] == modes and cached.training
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(layer.training for layer in model.modules())
        assert not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert [layer.training for layer in model.modules()] == modes and torch.is_grad_enabled()


def test_a_training_that_is_stopped_leaves_the_model_in_evaluation_mode():
    model = matrices()
    with pytest.raises(KeyboardInterrupt):
        trained(model, 3, log=Mock(side_effect=KeyboardInterrupt))
    assert not model.training


def test_a_rate_that_no_checkpoint_keeps_is_refused_where_there_is_one(tmp_path):
    model = matrices()
    inner = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.optim.lr_scheduler.LinearLR(inner, .1, 1., 4)
    trained(model, 2, inner)
    refuses("^optimiser: got one with a torch.optim.lr_scheduler", trained, model, 2, inner,
            Checkpoint(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_batches_to_validate_on_may_be_single_tensors():
    model = build(MODEL_CONFIGS["toy Llama"].sized(60, 16, 2, 4, 40), seed=3)
    ids = torch.arange(24).reshape(3, 8)
    found = [validate(model, next_token_loss, batches, 1)(1)["validation"]
             for batches in ([ids], [(ids,)], [[ids]], DataLoader(ids, batch_size=3))]
    assert len({*found}) == 1
    assert found[0] == pytest.approx(math.log(perplexity(model, ids)), rel=1e-5)


LLAMA = build(MODEL_CONFIGS["toy Llama"].sized(60, 16, 2, 4, 40)).eval()
FEW = torch.arange(8).reshape(1, 8)
PUBLISHED = PublishedModel(LLAMA, {})
OF_A_KIND = [
    ("^model: got PublishedModel, expected a module .*`model`",
     lambda: generate(PUBLISHED, FEW, 3)),
    ("^model: got PublishedModel", lambda: perplexity(PUBLISHED, FEW)),
    ("^model: PublishedModel", lambda: save_model("a.safetensors", PUBLISHED)),
    ("^model: got Published", lambda: parameter_groups(PUBLISHED)),
    ("^model: Linear; expected a decoder", lambda: generate(nn.Linear(2, 2), FEW, 3)),
    ("^sampling: got 0.7, expected a SamplingConfig", lambda: generate(LLAMA, FEW, 3, .7)),
    ("^ids: list; expected a tensor", lambda: generate(LLAMA, [1, 2], 3)),
    ("^ids: list; expected a tensor", lambda: LLAMA([1, 2])),
    *[("^eos: ", lambda eos=eos: generate(LLAMA, FEW, 3, eos=eos))
      for eos in ("x", 1.5, [], [1, "2"], True, torch.tensor([.5]))],
    ("^config: 'toy Llama'; expected a ModelConfig", lambda: build("toy Llama")),
    ("^attention_fn: 0; expected a function", lambda: build(LLAMA.config, 0)),
    ("^n_heads: 7; expected a divisor of d_model, 16",
     lambda: replace(LLAMA.config, n_heads=7, n_kv_heads=None)),
]


@pytest.mark.parametrize("said, call", OF_A_KIND)
def test_what_is_of_another_kind_is_refused_by_name(said, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(said, call)


def test_end_tokens_may_be_numbers_of_any_library():
    wanted = generate(LLAMA, FEW, 6, eos=int(generate(LLAMA, FEW, 3)[0, 10]))
    assert wanted.shape[1] < 14
    end = int(wanted[0, -1])
    for eos in (np.int64(end), torch.tensor(end), torch.tensor([end]), np.array([end]), (end,)):
        assert torch.equal(generate(LLAMA, FEW, 6, eos=eos), wanted)
        assert Request([1], 3, eos=eos, new=[end]).finished
        assert not Request([1], 3, eos=eos, new=[end + 1]).finished


@pytest.mark.parametrize("backend", sweep(["eager", "inductor"], "eager"))
def test_a_model_is_compiled_with_its_gradients(fresh, backend):
    model = made("llama")
    graph = compiled(copy.deepcopy(model), backend)
    close([*gradients(graph, "llama").values()], [*gradients(model, "llama").values()])
    with torch.no_grad(): close(graph(TOKENS[:, :5]), model(TOKENS[:, :5]))


@pytest.mark.parametrize("wrong", [-1, 5000])
def test_ids_that_are_no_tokens_are_refused_by_name(wrong):
    ids = torch.tensor([[3, 4, wrong]])
    said = f"from {min(3, wrong)} to {max(4, wrong)}; expected "
    for name in MODELS: refuses(f"^(ids|x): {said}", answer, made(name), name, ids)
    refuses(f"^positions: {said}", LearnedEmbedding(9, 4).add, torch.zeros(1, 3, 4), ids)


def test_values_are_seen_on_a_cpu_and_elsewhere_when_debugging():
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    assert sees_values(here) and not sees_values(there)
    with debugging(): assert sees_values(here) and sees_values(there)
    with pytest.raises(ZeroDivisionError), debugging(): print(1 / 0)
    assert sees_values(here) and not sees_values(there)


def test_the_builder_takes_pytorchs_norms():
    for config, norm in (("toy Llama", nn.RMSNorm), ("toy GPT-2", nn.LayerNorm)):
        assert sum(type(part) is norm for part in build(MODEL_CONFIGS[config]).modules()) == 5


# --- optimisers -----------------------------------------------------------------------------------

matrices = partial(net, bias=False)


def by_rows():
    "What gives the same for each row, whatever the others are."
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def counted(model, x, y):
    "Of the rows some count: in each part another number."
    kept = (x[:, :1] > 0).double()
    return ((model(x) - y).square() * kept).sum(), kept.sum()


def trained(model, steps, optimiser=None, kept=None, batches=batch, **how):
    "The history of a short training."
    return train(model, squared, batches, steps, optimiser or AdamW(parameter_groups(model), .01),
        kept, **how)


def resumed(tmp_path, stops, make, **how):
    "A training that stops a few times: the model that goes on last, and its whole history."
    for steps in stops:
        model = matrices(steps - stops[0])
        found = trained(model, steps, make(model), Checkpoint(tmp_path / "c"), **how)
    return model, found


def check_resumed(tmp_path, stops, make, **how):
    "Stopping changes nothing, to the bit; the weights in the end."
    through = matrices()
    wanted = trained(through, stops[-1], make(through), **how)
    model, found = resumed(tmp_path, stops, make, **how)
    assert same(weights(model), weights(through))
    assert found.points == wanted.points
    return weights(through)


SHAPES = ((5, 3), (4,), (2, 2), ())


def slopes_of(seed, step):
    "Gradients, of which one is missing now and then."
    return [None if (step + i) % 4 == 1
        else torch.randn(shape, dtype=F64, generator=seeded(seed, step, i)) for i,
        shape in enumerate(SHAPES)]


def three(rate, betas, eps, decay, clip, seed):
    "The formula, the fused function, and PyTorch's class, on parameters of the same values."
    triple = [[nn.Parameter(torch.randn(shape, dtype=F64, generator=seeded(seed, n)))
               for n, shape in enumerate(SHAPES)] for _ in range(3)]
    def groups(ps):
        return [ParameterGroup({"a": ps[0], "b": ps[1]}, decay), ParameterGroup({"c": ps[2]}),
                ParameterGroup({"d": ps[3]}, decay)]
    own = [kind(groups(ps), rate, betas, eps, clip)
           for kind, ps in zip((SimpleAdamW, AdamW), triple)]
    theirs = torch.optim.AdamW([{"params": [triple[2][n] for n in (0, 1, 3)],
                                 "weight_decay": decay},
                                {"params": triple[2][2:3], "weight_decay": 0.}], rate, betas, eps)
    return triple, [*own, theirs]


def numbers(rates, betas, eps, clips):
    return st.tuples(rates, betas, eps, st.floats(0, .5), st.sampled_from(clips))


USUAL = numbers(st.floats(1e-4, .1), st.tuples(st.floats(0, .95), st.floats(.9, .999)),
                st.sampled_from([1e-8, 1e-4]), [.3, 2., math.inf])
# with other means a step is an old gradient over a new one, which may be near 0: the last bits grow
# without bound
ANY = numbers(st.floats(1e-5, .3),
              st.tuples(st.floats(0, .99), st.floats(0, .9999)).filter(lambda b: b[0]**2 <= b[1]),
              st.floats(1e-10, 1e-3), [.1, 1., 30., math.inf])


@pytest.mark.parametrize("which, steps, scales, rounding", [
    (USUAL, 12, [1.], dict(rtol=1e-12, atol=1e-12)),
    (ANY, 40, [1e-6, 1., 1e4], dict(rtol=1e-10, atol=1e-11))], ids=["usual", "any"])
@settings(max_examples=often(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_adamw_is_the_formula_and_pytorchs(which, steps, scales, rounding, data, seed):
    "Many steps, two groups, clipping, and parameters that have no gradient now and then."
    given_, scale = data.draw(which), data.draw(st.sampled_from(scales))
    triple, (simple, fused, theirs) = three(*given_, seed)
    for step in range(steps):
        slopes = [g if g is None else scale * g for g in slopes_of(seed, step)]
        for parameters in triple:
            for p, g in zip(parameters, slopes): p.grad = g if g is None else g.clone()
        if given_[-1] < math.inf: nn.utils.clip_grad_norm_(triple[2], given_[-1])
        told = simple.step(), fused.step()
        theirs.step()
        assert told[0] == told[1]
        # the means are fed with the shorter gradient; what stands in .grad stays
        assert all(p.grad is g is None or torch.equal(p.grad, g)
                   for ours in triple[:2] for p, g in zip(ours, slopes))
    for ours in triple[:2]: torch.testing.assert_close(ours, triple[2], **rounding)
    torch.testing.assert_close(fused.state(), simple.state(), **rounding)


def plain(t): return t


def turned(t): return t.mT.contiguous().mT


@pytest.mark.parametrize("kind", [AdamW, SimpleAdamW])
@pytest.mark.parametrize("how", [(turned, turned, plain), (turned, plain, plain),
                                 (plain, turned, plain), (plain, turned, turned)])
def test_parameters_and_gradients_may_lie_in_memory_as_they_like(kind, how):
    "Turned, in another order than their gradients, or moved after the optimiser was made."
    def after(turn, turn_gradient, later):
        p = nn.Parameter(turn(draw(0, 4, 3)))
        optimiser = kind([ParameterGroup({"p": p})], .1)
        p.data = later(p.data)
        for step in range(3):
            p.grad = turn_gradient(draw(step + 1, 4, 3))
            optimiser.step()
        return p
    close(after(*how), after(plain, plain, plain))


@pytest.mark.parametrize("kinds", [(AdamW, SimpleAdamW), (SimpleAdamW, AdamW)])
def test_its_state_is_saved_and_resumed_bit_for_bit(kinds, tmp_path):
    "And each reads what the other has written."
    def made_by(kind):
        return lambda model: kind(parameter_groups(model), WarmupCosine(.01, 5, 60), clip=1.)
    wanted, other = check_resumed(tmp_path, (1, 5, 12), made_by(kinds[0])), matrices(9)
    trained(other, 12, made_by(kinds[1])(other), Checkpoint(tmp_path / "c"))
    assert same(weights(other), wanted)


OPTIMISERS = {"SGD": lambda p: torch.optim.SGD(p, .1), "momentum": lambda p: torch.optim.SGD(p, .1,
        .9, nesterov=True, weight_decay=.1), "dampening": lambda p: torch.optim.SGD(p, .1, .9,
                dampening=.5), "Adam": lambda p: torch.optim.Adam(p, .01, amsgrad=True),
              "Adagrad": lambda p: torch.optim.Adagrad(p, .1, lr_decay=.1,
                      initial_accumulator_value=.3), "RMSprop": lambda p: torch.optim.RMSprop(p,
                              .01, momentum=.9, centered=True),
              "NAdam": lambda p: torch.optim.NAdam(p, .01),
              "ASGD": lambda p: torch.optim.ASGD(p, .01, t0=3),
              "Rprop": lambda p: torch.optim.Rprop(p, .01)}
if hasattr(torch.optim, "Muon"): OPTIMISERS["Muon"] = lambda p: torch.optim.Muon(p, .01)


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("wrapped", [lambda model, inner: inner, NamedOptimiser])
def test_an_optimiser_of_pytorch_goes_its_own_path(name, wrapped):
    "The same bits, whether it is handed over as it is or with a name."
    make, plain, model = OPTIMISERS[name], matrices(), matrices()
    trained(model, 9, wrapped(model, make(model.parameters())))
    assert same(weights(model), plain_loop(plain, make(plain.parameters()), 9)[0])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_of_pytorch_is_resumed_bit_for_bit(name, tmp_path):
    check_resumed(tmp_path, (2, 5, 9), lambda model: OPTIMISERS[name](model.parameters()))


def test_an_optimiser_of_pytorch_with_schedule_and_clipping():
    rate, plain, model = WarmupCosine(.1, 3, 9), matrices(), matrices()
    make = OPTIMISERS["momentum"]
    wanted = plain_loop(plain, make(plain.parameters()), 9, rate, .01)[0]
    history = trained(model, 9, NamedOptimiser(model, make(model.parameters()), rate, .01))
    close(weights(model), wanted, 1e-10)
    assert (history["rate"].tolist() == pytest.approx([rate(step) for step in range(9)])
            and min(history["length"]) > .01)


def test_wrapping_changes_neither_weights_nor_gradients_nor_a_state_that_is_there():
    model = matrices()
    inner = OPTIMISERS["Adam"](model.parameters())
    plain_loop(model, inner, 3)
    before, state, slopes = (weights(model), copy.deepcopy(inner.state_dict()["state"]),
                             [p.grad.clone() for p in model.parameters()])
    named = NamedOptimiser(model, inner)
    assert same(weights(model), before)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), slopes))
    assert all(same(kept, state[index]) for index, kept in inner.state_dict()["state"].items())
    assert ({"done", "exp_avg.head.weight", "step.body.0.weight"} <= named.state().keys()
            and len(named.state()) == 1 + 3 * 4)


OTHERS = {"lr is 0.1 there, 0.2 here": lambda p: torch.optim.SGD(p, .2, .9, nesterov=True,
    weight_decay=.1), "optimiser": OPTIMISERS["Adam"]}


@pytest.mark.parametrize("said", OTHERS)
def test_another_optimiser_is_refused_by_name(tmp_path, said):
    resumed(tmp_path, (2,), lambda model: OPTIMISERS["momentum"](model.parameters()))
    refuses(said, resumed, tmp_path, (3,), lambda model: OTHERS[said](model.parameters()))


# --- the loop -------------------------------------------------------------------------------------

@pytest.mark.parametrize("loss",
                         [squared, counted,
                          lambda model, x, y: (counted(model, x, y)[0],
                                               int(counted(model, x, y)[1]))])
@pytest.mark.parametrize("parts", [2, 4, 12])
def test_parts_give_the_gradient_of_the_whole(loss, parts):
    "A mean, or a sum and a count that differs from part to part."
    whole, model = by_rows(), by_rows()
    assert (slope(model, loss, batch(0), StepOptions(parts=parts))
            == pytest.approx(slope(whole, loss, batch(0)), rel=1e-12))
    close([p.grad for p in model.parameters()], [p.grad for p in whole.parameters()])
    one, two = by_rows(), by_rows()
    for each, n in ((one, 1), (two, parts)):
        train(each, loss, batch, 5, AdamW(parameter_groups(each), .01, clip=1.), parts=n)
    close([*one.parameters()], [*two.parameters()])


def test_parts_are_read_one_after_the_other():
    model, seen = by_rows(), Mock(side_effect=squared)
    train(model, seen, batch, 2, AdamW(parameter_groups(model), .01), parts=4)
    assert [len(call.args[1]) for call in seen.call_args_list] == [3] * 8


def test_products_in_sixteen_bits():
    def run(**how):
        model = by_rows().float()
        return (model, train(model, lambda model, x, y: squared(model, x.float(), y.float()), batch,
                             20, AdamW(parameter_groups(model), .03), **how)["loss"])
    (wide, losses), (half, rounded), (_, same) = (run(), run(dtype=torch.bfloat16),
                                                  run(dtype=torch.float32))
    assert torch.equal(losses, same) and not torch.equal(losses, rounded)
    torch.testing.assert_close(rounded, losses, rtol=.05, atol=.01)
    assert all(p.dtype == torch.float32 for p in half.parameters()) and rounded[-1] < rounded[0]
    assert any(not torch.equal(p, q) for p, q in zip(half.parameters(), wide.parameters()))


def test_a_count_is_exact_also_where_products_have_sixteen_bits():
    "1001 does not fit into bfloat16, in which a loss may come out."
    def loss(model, x): return (model(x).sum() * 0 + 2000).bfloat16(), len(x)
    assert (slope(nn.Linear(4, 1), loss, (torch.ones(1001, 4),))
            == pytest.approx(2000 / 1001, rel=1e-6))


ROWS = tuple(torch.cat(t) for t in zip(*(batch(step) for step in range(5))))


def loader(**how): return DataLoader(TensorDataset(*ROWS), 12, **how)


BATCHES = {"a list": lambda: [batch(step) for step in range(5)],
           "a list of lists": lambda: [list(batch(step)) for step in range(5)], "a loader": loader,
           "a loader that shuffles": lambda: loader(shuffle=True,
                                                    generator=torch.Generator().manual_seed(4)),
           "a generator": lambda: (batch(step) for step in range(20))}


@pytest.mark.parametrize("name", BATCHES)
def test_what_yields_batches_is_trained_on_and_resumed(name, tmp_path):
    "With dropout, whose numbers belong to the step, and over the ends of epochs."
    def run(model, steps, kept=None): return trained(model, steps, None, kept, BATCHES[name]())
    before, through = torch.get_rng_state(), matrices()
    wanted = run(through, 13)
    assert torch.equal(torch.get_rng_state(), before), "other numbers are left alone"
    if "list" in name:
        assert trained(matrices(), 13, batches=lambda step: batch(step % 5)).points == wanted.points
    for steps in (1, 4, 7, 13):
        got = run(model := matrices(steps - 1), steps, Checkpoint(tmp_path / "c"))
    assert same(weights(model), weights(through))
    assert got.points == wanted.points


def test_batches_in_order():
    ask = in_order([torch.tensor([n]) for n in range(3)])
    assert ([int(ask(step)[0]) for step in (0, 1, 2, 3, 7, 8, 2, 2, 0)]
            == [0, 1, 2, 0, 1, 2, 2, 2, 0])
    assert (all(isinstance(ask(step), tuple) for step in range(4))
            and torch.equal(in_order(loader())(6)[0], ROWS[0][12:24]))


# --- tools ----------------------------------------------------------------------------------------

def test_validation_is_the_mean_over_all_rows_in_evaluation_mode():
    model, plain, batches = matrices(), matrices(), [batch(100), tuple(t[:5] for t in batch(101))]
    def total(model, x, y): return (model(x) - y).square().sum(), len(y)
    history = trained(model, 6, watch=validate(model, total, batches, every=3))
    assert history.steps("validation").tolist() == [3, 6]
    with torch.no_grad(): wanted = squared(model, *(torch.cat(t) for t in zip(*batches)))
    assert float(history["validation"][-1]) == pytest.approx(float(wanted), rel=1e-12)
    trained(plain, 6)
    assert same(weights(plain), weights(model))
    watch = validate(model.train(), squared, (each for each in batches), every=1)
    assert watch(1) == watch(2) and model.training, "a generator is read once"
    assert (validate(model, squared, loader(), 1)(1)["validation"] > 0
            and validate(model, squared, batches, 2)(1) is None)


def named(model, inner=None, **how):
    return NamedOptimiser(model, inner or OPTIMISERS["Adam"](model.parameters()), **how)


EMPTY = DataLoader(TensorDataset(ROWS[0][:0]))
REFUSED = [  # what is done with a model, and what is said
    *((lambda m, how=how: trained(m, 1, **how), said) for said, how in {
        "^parts: got 5, expected a divisor of 12, the rows": dict(parts=5),
        "^parts: got 0": dict(parts=0), "^parts: got 1.5": dict(parts=1.5), "^log: ": dict(log=3),
        "^dtype: got torch.float16, expected torch.bfloat16": dict(dtype=torch.float16),
        "^dtype: got torch.float64": dict(dtype=F64),
        "^dtype: got bfloat16": dict(dtype="bfloat16"),
        "^optimiser: ": dict(optimiser="SGD"),
        r"^batch: .*expected a batch for step 0": dict(batches=[]),
        r"^batch: ends after 0.*expected a batch for step 0": dict(batches=()),
        "^batch: ends .*expected a batch for step 0": dict(batches=EMPTY),
        "^batch: .*3.*expected a function of the step": dict(batches=3),
        "^batch: .*None.*expected a function of the step": dict(batches=None)}.items()),
    (lambda m: named(m, OPTIMISERS["Adam"](matrices().parameters())),
        "^(inner|optimiser): .* parameters of shape"), (lambda m: named(m, 3), "^inner: "),
        (lambda m: named(m, lr=.1), "^lr: "), (lambda m: named(m, clip=0.), "^clip: "),
    (lambda m: trained(m, 1, OPTIMISERS["Adam"]([m.out.weight])),
        r"^optimiser: \['body.0.weight', 'head.weight'\] are trained by no group"),
    (lambda m: validate(m, squared, batches=[]), "^batches: got none"),
    (lambda m: NamedOptimiser(m, torch.optim.LBFGS(m.parameters())), "^optimiser: got LBFGS"),
    (lambda m: Checkpoint("."), r"^path: \. is a folder"),
    (lambda m: parameter_groups([*m.parameters()]), "^model: got"),
    (lambda m: validate(m, squared, [batch(0)], every=0), "^every: ")]


@pytest.mark.parametrize("call, said", REFUSED)
def test_what_does_not_fit_is_refused_by_name_before_the_first_step(call, said):
    model = matrices()
    before = weights(model)
    refuses(said, call, model)
    assert same(weights(model), before)


def test_a_generator_that_is_used_up_is_refused_by_name():
    refuses("^batch: .*expected a batch for step 3", trained, matrices(), 4,
        batches=(batch(step) for step in range(3)))


def test_a_log_is_told_what_each_step_measured(tmp_path):
    log = Mock()
    for steps in (3, 5):
        history = trained(matrices(), steps, None, Checkpoint(tmp_path / "c"), log=log,
                          watch=lambda step: {"twice": 2 * step} if step % 2 == 0 else None)
    told = dict(call.args for call in log.call_args_list)
    assert [*told] == [1, 2, 3, 4, 5] and log.call_count == 5
    assert [values.get("twice") for values in told.values()] == [None, 4, None, 8, None]
    for name in ("loss", "rate", "length"):
        assert history[name].tolist() == [values[name] for values in told.values()]


DROPPING = replace(MODEL_CONFIGS["toy Llama"], dropout=.2, n_layers=3, vocab_size=40)
SHORT = IDS[:, :20] % 40


def learning(recomputes: bool):
    """A model in training that has read; its loss, its gradients, and how many bytes it kept for
    them."""
    model, kept = build(DROPPING, seed=3).double().train(), []
    if recomputes: recompute(model.stack)
    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t,
                                                  lambda t: t):
        loss = model(SHORT).logsumexp(-1).square().mean()
    loss.backward()
    return (model, float(loss.detach()),
            {name: p.grad for name, p in model.named_parameters()}, sum(kept))


def test_blocks_that_recompute_give_the_same_gradients_and_keep_less():
    (model, loss, slopes, kept), (other, again, gradients, fewer) = learning(False), learning(True)
    assert loss == again and fewer < kept / 3
    close(gradients, slopes)
    assert model.state_dict().keys() == other.state_dict().keys()
    with torch.no_grad(): close(other.eval()(SHORT), model.eval()(SHORT))
    with attention_weights():
        assert [tuple(w.shape) for w in other.hidden_states(SHORT)[1]] == [(3, 4, 20, 20)] * 3


def test_a_copy_of_what_recomputes_has_parameters_of_its_own():
    model, *_ = learning(True)
    twin, before = copy.deepcopy(model).eval(), model.eval()(SHORT)
    close(twin(SHORT), before)
    with torch.no_grad():
        for p in model.parameters(): p.mul_(2)
    close(twin(SHORT), before)
    twin.train()(SHORT).sum().backward()
    assert all(p.grad is not None and p.grad is not q.grad
               for p, q in zip(twin.parameters(), model.parameters()))


def test_a_bias_is_not_rounded_under_autocast():
    "A large bias on scores of 32 bits, as ALiBi's at a distance."
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    bias = -torch.arange(9.)[None, None, None].expand(1, 1, 9, 9) / 7 - 1000
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = fused_attention(q, k, v, bias)[0], grouped_query_attention(q, k, v, bias)[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
