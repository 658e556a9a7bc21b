"""T5, mT5, BART and mBART under the names of their published weights, and how they write."""

__all__ = ['T5_ATTENTION', 'PUBLISHED_DENOISERS', 'T5_ACTIVATIONS', 'T5_VALUES', 'T5_KEYS', 'T5_FIXED', 'T5_FIELDS', 'BART_FIXED', 'BART_FIELDS', 'BART_VALUES', 'ScaleFreeAttention', 'build_scale_free', 'ScaledOutputEmbedding', 'NormedEmbedding', 'build_normed', 'init_t5', 't5_layer', 't5_names', 'read_t5', 'read_mt5', 'bart_names', 'read_bart', 'TargetTokens', 'read_target_tokens', 'end_at', 'write_greedily', 'write_with_beams', 'full_beam_search', 'best_of']

# %% imports-families
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .alignment import EOS
from .block import GatedFeedForward
from .encoder_families import ENCODER_ACTIVATIONS, OffsetLearnedEmbedding, with_bias
from .heads import MultiHeadAttention
from .pretrained import DECODER_PARTS, ENCODER_PARTS, FAMILIES, Family, TensorName
from .pretrained import layer_names, read_key, read_marian
from .proof import need
from .transformer import ACTIVATIONS, ATTENTIONS, EMBEDDINGS, FFNS, POSITIONS
from .transformer import Hypothesis, ModelConfig, Part, TokenEmbedding, Transformer
from .transformer import beam_search, build_embedding, build_embeddings, check_log_probs
from .transformer import check_search, check_token_ids, greedy_search, make_log_probs_fn

# %% scale-free
class ScaleFreeAttention(MultiHeadAttention):
    "Attention whose scores are not divided by √D."
    def project_q(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, H, T, D)
        q = super().project_q(x)
        return q * q.shape[-1]**.5             # undoes the division


def build_scale_free(config, layer: int, attention_fn: Callable) -> ScaleFreeAttention:
    "T5's attention."
    return ScaleFreeAttention(config.d_model, config.n_heads, config.n_kv_heads,
                              config.head_dim, bias=config.attention_bias,
                              attention_fn=attention_fn)


ATTENTIONS["scale-free"] = Part(build_scale_free)
FFNS.update({f"gated {name}": Part(lambda config, _, f=f: GatedFeedForward(
    config.d_model, config.d_ff, f, config.ffn_bias)) for name, f in ACTIVATIONS.items()})

# %% embeddings
class ScaledOutputEmbedding(TokenEmbedding):
    "A table whose logits are multiplied by 1/√C."
    def logits(self, h: Tensor) -> Tensor:  # (B, T, C) -> (B, T, V)
        return super().logits(h * h.shape[-1]**-.5)


class NormedEmbedding(TokenEmbedding):
    "A token embedding with a norm after the positions are added."
    def __init__(self, norm: nn.Module, *args):
        super().__init__(*args)
        self.norm = norm

    def forward(self, ids: Tensor, name: str = "ids") -> Tensor:  # (B, T) -> (B, T, C)
        check_token_ids(name, ids, len(self.weight), self.max_len)
        scaled = self.scale * F.embedding(ids, self.weight)
        return self.dropout(self.norm(self.positional_encoding.add(scaled)))


def build_normed(config: ModelConfig) -> tuple[NormedEmbedding, NormedEmbedding]:
    "One table for both sides; each has positions and a norm of its own."
    need(config.source_vocab_size is None, "source_vocab_size", config.source_vocab_size,
         "None: both sides share a table")
    source, target = (
        build_embedding(config, config.vocab_size, config.tie_embeddings or not causal,
                        causal, partial(NormedEmbedding, config.build_norm()))
        for causal in (False, True))
    source.weight, source.bias = target.weight, target.bias
    return source, target


EMBEDDINGS.update({
    "scaled output": Part(partial(build_embeddings, kind=ScaledOutputEmbedding)),
    "normed": Part(build_normed)})
POSITIONS["learned, from row 2"] = Part(lambda config, _: OffsetLearnedEmbedding(
    config.max_len, config.d_model, 2))

# %% init-t5
@torch.no_grad()
def init_t5(model: Transformer, seed: int = 0) -> None:
    "Draw the weights of an encoder–decoder as T5 did; its queries are √D times smaller."
    generator, C = torch.Generator().manual_seed(seed), model.config.d_model
    D = model.config.head_dim or C // model.config.n_heads
    for name, p in model.named_parameters():
        if p.ndim == 1: continue                     # norms and biases stay as they are
        spread = p.shape[1]**-.5                     # of (out, in): 1/√in
        if name.endswith("embedding.weight"): spread = 1.
        if "encoding" in name: spread = C**-.5       # of the relative bias
        if "q_proj" in name: spread = (C * D)**-.5
        p.copy_(spread * torch.randn(p.shape, generator=generator))

# %% t5-names
T5_ATTENTION = {name: f"inner.{name}_proj" for name in "qkvo"}


def t5_layer(side: str, l: int, gated: bool) -> Iterator[TensorName]:
    "The tensors of one block: its sub-layers are numbered."
    cross = {"cross": "EncDecAttention"} if side == "decoder" else {}
    kinds = {"attention": "SelfAttention", **cross, "feed_forward": "DenseReluDense"}
    feed_forward = {"wi": "inner.up", "wo": "inner.down"}
    if gated: feed_forward = {"wi_0": "inner.gate", "wi_1": "inner.up", "wo": "inner.down"}
    for n, (own, kind) in enumerate(kinds.items()):
        parts = feed_forward if own == "feed_forward" else T5_ATTENTION
        named = {f"{kind}.{part}": ours for part, ours in parts.items()}
        yield from layer_names(f"{side}.block.{l}.layer.{n}", f"{side}.blocks.{l}.{own}",
                               named | {"layer_norm": "norm"})


def t5_names(config: ModelConfig) -> Iterator[TensorName]:
    "The tensors of Hugging Face's T5: one table of offsets for a stack, in its first block."
    table, bias = ("source_embedding.weight",), "SelfAttention.relative_attention_bias.weight"
    own = ("source_embedding.lm_head.weight",)
    yield TensorName("shared.weight", table)
    layers = config.n_encoder_layers or config.n_layers, config.n_layers
    for side, count in zip(("encoder", "decoder"), layers):
        yield TensorName(f"{side}.embed_tokens.weight", table)
        yield TensorName(f"{side}.block.0.layer.0.{bias}", (
            f"{side}.blocks.0.attention.inner.attention_fn.encoding.weight",))
        for l in range(count): yield from t5_layer(side, l, config.ffn.startswith("gated"))
        yield TensorName(f"{side}.final_layer_norm.weight", (f"{side}.norm.weight",))
    yield TensorName("lm_head.weight", table if config.tie_embeddings else own)

# %% t5-rows
TIED = {"tie_embeddings": True, "options.embeddings": "scaled output"}
UNTIED = {"tie_embeddings": False, "options.embeddings": "shared"}
T5_ACTIVATIONS = {
    **{theirs: ours for theirs, ours in ENCODER_ACTIVATIONS.items()},
    **{f"gated-{theirs}": f"gated {ours}" for theirs, ours in ENCODER_ACTIVATIONS.items()},
    "gated-gelu": "gated gelu_tanh"}             # what this name means in T5
T5_FIXED = {
    "kind": "encoder-decoder", "source_vocab_size": None, "n_kv_heads": None,
    "norm": "rmsnorm", "norm_position": "pre", "attention": "scale-free",
    "positions": "relative", "attention_bias": False, "ffn_bias": False,
    "embedding_scale": 1., "options.logits_bias": False, "options.encoder_heads": None,
    "options.encoder_d_ff": None}
T5_FIELDS = {
    "vocab_size": "vocab_size", "d_model": "d_model", "d_kv": "head_dim", "d_ff": "d_ff",
    "num_layers": "n_encoder_layers", "num_decoder_layers": "n_layers",
    "num_heads": "n_heads", "layer_norm_epsilon": "norm_eps",
    "relative_attention_num_buckets": "options.n_buckets",
    "relative_attention_max_distance": "options.max_distance",
    "pad_token_id": "options.pad"}
T5_DEFAULTS = {"n_layers": None, "options.n_buckets": 32, "options.max_distance": 128,
               "options.pad": 0}
T5_KEYS = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act",  # follow from others
           "dropout_rate", "initializer_factor", "n_positions", "output_past",  # change nothing
           "num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
T5_CODE = {"is_encoder_decoder": (True,), "is_decoder": (False,)}
RENAMED = {"num_hidden_layers": "num_layers", "hidden_size": "d_model",
           "num_attention_heads": "num_heads", "head_dim": "d_kv"}
UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def check_same(config: Mapping, names: Mapping[str, str]) -> None:
    "Refuse a key that says something else than the key that it repeats."
    for key, own in names.items():
        fitting = (None, config.get(own))
        need(config.get(key) in fitting, key, repr(config.get(key)),
             f"{config.get(own)!r}, as {own}")


def read_mt5(config: Mapping, default: str = "gated-gelu") -> dict:
    "What keys of T5 and mT5 say together."
    check_same(config, RENAMED)
    given = config.get("feed_forward_proj", default)
    name = "gelu_new" if given == "gated-gelu" else given.removeprefix("gated-")
    implied = {"is_gated_act": given.startswith("gated-"), "dense_act_fn": name}
    for key, fitting in implied.items():
        was = config.get(key)
        need(was in (None, fitting), key, repr(was), f"{fitting!r}, as feed_forward_proj")
    n, far = (config.get(f"relative_attention_{key}") or default for key, default in
              (("num_buckets", 32), ("max_distance", 128)))
    need(n % 4 == 0, "relative_attention_num_buckets", n, "a multiple of 4")
    need(far > n // 2, "relative_attention_max_distance", far,
         f"more than {n // 2}, the distances with a bucket of their own")
    return {"n_layers": config.get("num_decoder_layers") or config["num_layers"]}


def read_t5(config: Mapping) -> dict:
    "The same, and which output: newer files say so in a key of its own."
    made, tied = read_mt5(config, "relu"), config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs")
    fits = scaled is None or type(scaled) is bool and (tied or not scaled)
    need(fits, "scale_decoder_outputs", repr(scaled),
         "True or False" if tied else "False, as tie_word_embeddings")
    return made | (UNTIED if scaled is False else {})


def t5_family(stem: str, read: Callable, default: str, fixed: Mapping, tied: Mapping | tuple,
              older: tuple = ()) -> Family:
    "The row of T5 or of mT5; `default` is the feed-forward layer where no key names it."
    architectures = *([name] for name in older), [f"{stem}ForConditionalGeneration"]
    layers = {name: {"ffn": T5_ACTIVATIONS[name]} for name in (default, *T5_ACTIVATIONS)}
    return Family(
        t5_names, T5_FIXED | dict(fixed), T5_FIELDS,
        T5_CODE | {"feed_forward_proj": layers, "tie_word_embeddings": tied,
                   "architectures": (None, [], *architectures)},
        T5_DEFAULTS, read, T5_KEYS, UNUSED)


FAMILIES.update({
    "t5": t5_family("T5", read_t5, "relu", {}, {True: TIED, False: UNTIED},
                    ("T5WithLMHeadModel",)),
    "mt5": t5_family("MT5", read_mt5, "gated-gelu", UNTIED, (True, False))})

# %% bart
def bart_names(config: ModelConfig) -> Iterator[TensorName]:
    "The tensors of Hugging Face's BART and mBART."
    table, layers = ("source_embedding.weight",), (
        config.n_encoder_layers or config.n_layers, config.n_layers)
    yield TensorName("model.shared.weight", table)
    yield TensorName("final_logits_bias", ("source_embedding.bias",), as_row=True)
    sides = zip(("encoder", "decoder"), ("source", "target"), layers,
                (ENCODER_PARTS, DECODER_PARTS))
    for side, ours, count, parts in sides:
        theirs, own = f"model.{side}", f"{ours}_embedding"
        yield TensorName(f"{theirs}.embed_tokens.weight", table)
        yield TensorName(f"{theirs}.embed_positions.weight",
                         (f"{own}.positional_encoding.weight",))
        yield from with_bias(theirs, own, {"layernorm_embedding": "norm"})
        for l in range(count):
            yield from with_bias(f"{theirs}.layers.{l}", f"{side}.blocks.{l}", parts)
        if config.part("norm_position").final_norm:
            yield from with_bias(theirs, side, {"layer_norm": "norm"})
    yield TensorName("lm_head.weight", table)


def read_bart(config: Mapping) -> dict:
    "An encoder of other sizes; keys that repeat others."
    check_same(config, {"num_hidden_layers": "encoder_layers", "hidden_size": "d_model",
                        "num_attention_heads": "encoder_attention_heads"})
    return read_marian(config)


MARIAN = FAMILIES["marian"]
BART_FIXED = MARIAN.fixed | {"positions": "learned, from row 2",
                             "options.embeddings": "normed"}
BART_VALUES = MARIAN.values | {
    "activation_function": {name: {"ffn": own} for name, own in ENCODER_ACTIVATIONS.items()},
    "static_position_embeddings": (False,), "normalize_embedding": (True,),
    "extra_pos_embeddings": (2,), "do_blenderbot_90_layernorm": (False,)}
BART_KEYS = (*MARIAN.read_keys, "hidden_size", "num_attention_heads", "save_step",
             "output_past", "force_bos_token_to_be_generated")


def bart_family(stem: str, place: str) -> Family:
    "The row of BART, with norms after each sub-layer, or of mBART, with norms before."
    before, architecture = place == "pre", [f"{stem}ForConditionalGeneration"]
    code = {"architectures": (None, [], architecture), "normalize_before": (before,),
            "add_final_layer_norm": (before,)}
    return Family(bart_names, BART_FIXED | {"norm_position": place}, MARIAN.fields,
                  BART_VALUES | code, {}, read_bart, BART_KEYS,
                  ("model.encoder.version", "model.decoder.version"))


FAMILIES.update({"bart": bart_family("Bart", "post"), "mbart": bart_family("MBart", "pre")})

# %% published
def t5_shape(V: int, C: int, L: int, H: int, F: int, D: int = 64, **more) -> dict:
    "A configuration of T5 by its sizes."
    return {"model_type": "t5", "vocab_size": V, "d_model": C, "num_layers": L,
            "num_heads": H, "d_ff": F, "d_kv": D, "layer_norm_epsilon": 1e-6,
            "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0} | more


def bart_shape(V: int, C: int, L: int, H: int, F: int, **more) -> dict:
    "A configuration of BART by its sizes."
    stacks = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in
              (("layers", L), ("attention_heads", H), ("ffn_dim", F))}
    return {"model_type": "bart", "vocab_size": V, "d_model": C, "pad_token_id": 1,
            "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
            "max_position_embeddings": 1024} | stacks | more


GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
PUBLISHED_DENOISERS = {  # model -> its config.json, as far as it matters
    "T5 small": t5_shape(32128, 512, 6, 8, 2048),
    "T5 base": t5_shape(32128, 768, 12, 12, 3072),
    "T5 11B": t5_shape(32128, 1024, 24, 128, 65536, 128),
    "T5 v1.1 small, FLAN-T5 small": t5_shape(32128, 512, 8, 6, 1024, **GATED),
    "T5 v1.1 XXL, FLAN-T5 XXL": t5_shape(32128, 4096, 24, 64, 10240, **GATED),
    "mT5 small": t5_shape(250112, 512, 8, 6, 1024, model_type="mt5", **GATED),
    "BART base": bart_shape(50265, 768, 6, 12, 3072, forced_eos_token_id=2),
    "BART large": bart_shape(50265, 1024, 12, 16, 4096, forced_eos_token_id=2),
    "mBART large": bart_shape(250027, 1024, 12, 16, 4096, model_type="mbart",
                              scale_embedding=True, decoder_start_token_id=None)}

# %% target-tokens
class TargetTokens(NamedTuple):
    "The tokens with which the targets of a published model begin and end."
    start: tuple[int, ...]   # what all targets begin with; the first is never counted
    eos: int
    pad: int
    last: int | None = None  # the last token of a target that is cut off


def read_target_tokens(config: Mapping) -> TargetTokens:
    "The special tokens that a configuration names."
    def token(*keys):
        found = next((config[key] for key in keys if config.get(key) is not None), None)
        fits = found is None or type(found) is int and found >= 0
        need(fits, keys[0], repr(found), "the id of a token")
        return found
    start, eos = token("decoder_start_token_id", "bos_token_id"), token("eos_token_id")
    need(start is not None, "decoder_start_token_id", "None", "the id of a token")
    need(eos is not None, "eos_token_id", "None", "the id of a token")
    forced, pad = token("forced_bos_token_id"), token("pad_token_id", "eos_token_id")
    if config.get("force_bos_token_to_be_generated") and forced is None:
        forced = token("bos_token_id")
    begin = (start,) if forced is None else (start, forced)
    return TargetTokens(begin, eos, pad, token("forced_eos_token_id"))


def end_at(log_probs_fn: Callable, length: int, last: int | None) -> Callable:
    "The same function, except that a prefix of this length goes on with `last` only."
    def forced_fn(y: Tensor) -> Tensor:  # (n, t) -> (n, V)
        log_probs = log_probs_fn(y)
        if last is None or y.shape[1] < length: return log_probs
        return torch.full_like(log_probs, -torch.inf).index_fill(
            1, torch.tensor(last, device=y.device), 0.)
    return forced_fn

# %% writing
def write_greedily(
    model: Transformer,
    x: Tensor,                           # sources (B, S)
    tokens: TargetTokens,
    max_len: int,                        # most tokens to generate, forced ones included
    padding_mask: Tensor | None = None,  # (B, S), if sources are not padded at the end
) -> Tensor:                             # (B, up to `max_len`), without the first token
    "Let a model write a target for each source, one most likely token after another."
    need(max_len >= len(tokens.start), "max_len", max_len, f"at least {len(tokens.start)}")
    log_probs_fn = make_log_probs_fn(model, x, padding_mask)
    start = torch.tensor([tokens.start], device=x.device).expand(len(x), -1)
    out = greedy_search(end_at(log_probs_fn, max_len, tokens.last), start,
                        max_len + 1 - len(tokens.start), tokens.eos, tokens.pad)
    return torch.cat([start[:, 1:], out], 1)


def write_with_beams(
    model: Transformer,
    x: Tensor,                       # one source (1, S)
    tokens: TargetTokens,
    max_len: int,                    # most tokens to generate, forced ones included
    beam_size: int = 4,              # K
    search: Callable = beam_search,  # or `full_beam_search`
    **settings,                      # of the search
) -> tuple[int, ...]:                # without the first token
    "Let a model write a target with beam search."
    need(len(x) == 1, "x", f"{len(x)} sources", "one: each has beams of its own")
    need(max_len >= len(tokens.start), "max_len", max_len, f"at least {len(tokens.start)}")
    log_probs_fn = end_at(make_log_probs_fn(model, x), max_len, tokens.last)
    start = torch.tensor(tokens.start, device=x.device)
    found = search(log_probs_fn, start, max_len + 1 - len(start), beam_size,
                   eos=tokens.eos, **settings)
    return tokens.start[1:] + found[0].ids

# %% full-beams
def best_of(found: list[Hypothesis], n: int) -> list[Hypothesis]:
    "The `n` with the highest scores, the best first."
    return sorted(found, key=lambda h: h.score, reverse=True)[:n]


@torch.no_grad()
def full_beam_search(
    log_probs_fn: Callable,       # prefixes (n, t) -> log-probabilities of next token (n, V)
    start: Tensor,                # the prefix that all begin with (t,)
    max_len: int,                 # most tokens to generate, the end token included
    beam_size: int = 4,           # K: prefixes that go on, beside K that have ended
    power: float = 1.,            # scores are divided by length ** power
    eos: int = EOS,
    first: bool = False,          # stop at the first K that have ended?
) -> list[Hypothesis]:            # the best first
    "Beam search in which ended hypotheses leave the beam and new ones take their place."
    check_search(start, 1, max_len=max_len, beam_size=beam_size)
    prefixes, sums, found = start[None], torch.zeros(1, dtype=torch.float64), []
    sums = sums.to(start.device)
    for n in range(1, max_len + 1):
        sums = sums[:, None] + check_log_probs(log_probs_fn(prefixes), len(prefixes))
        best, V = sums.flatten().topk(min(2 * beam_size, sums.numel())), sums.shape[1]
        possible = best.values > -torch.inf
        sums, chosen = best.values[possible], best.indices[possible]
        prefixes = torch.cat([prefixes[chosen // V], chosen[:, None] % V], 1)
        ended = prefixes[:, -1] == eos
        closed = ended | (n == max_len)                    # at the end, all are judged
        for i in closed[:beam_size].nonzero()[:, 0].tolist():
            ids, s = tuple(prefixes[i, len(start):].tolist()), float(sums[i])
            found.append(Hypothesis(ids, s, s / n**power, bool(ended[i])))
        found = best_of(found, beam_size)
        prefixes, sums = prefixes[~ended][:beam_size], sums[~ended][:beam_size]
        if not len(prefixes): break
        hopeless = first or found and float(sums[0]) / n**power <= found[-1].score
        if len(found) == beam_size and hopeless: break
    need(found, "log_probs_fn", "gives every next token probability 0",
         "a token that can follow")
    return found
