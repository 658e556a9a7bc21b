"""Training objectives that corrupt a text: span corruption, prefix LM, BART's noises and masked diffusion, with their losses and samplers."""

# %% imports-denoisers
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .alignment import BOS, EOS, PAD, shift_right
from .attention import causal_mask
from .block import check_sizes
from .decoders import CausalLM, SamplingConfig, check_inputs, sample
from .heads import grouped_query_attention
from .proof import need
from .tag_grammar import MASK, Corruption
from .transformer import ModelConfig

# %% check-text
def check_text(ids: Tensor, name: str = "ids", least: int = 1) -> None:
    "Refuse anything but the token ids of one text."
    fits = isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64
    was = f"{tuple(ids.shape)}, {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
    need(fits, name, was, "int64 token ids (T,)")
    need(len(ids) >= least, name, f"{len(ids)} tokens", f"at least {least}")


def check_rate(rate: float, name: str = "rate") -> None:
    "Refuse anything but a fraction of the tokens."
    fits = isinstance(rate, int | float) and 0 < rate < 1
    need(fits, name, repr(rate), "a number between 0 and 1")

# %% span-counts
def span_counts(
    length: int,          # T
    rate: float = .15,    # of the tokens that are noise
    mean: float = 3.,     # length of a span
) -> tuple[int, int]:     # noise tokens, spans
    "T5's rule: how many tokens are dropped, and in how many spans."
    need(isinstance(length, int) and length > 1, "length", repr(length),
         "at least 2: one token to keep, one to drop")
    check_rate(rate)
    need(mean >= 1, "mean", mean, "at least 1 token")
    n_noise = min(max(round(length * rate), 1), length - 1)
    n_spans = max(round(n_noise / mean), 1)
    return n_noise, min(n_spans, length - n_noise)   # a kept token before each span


def random_segments(
    total: int, n: int, generator: torch.Generator
) -> list[int]:  # n lengths of at least 1, which sum to `total`
    "Cut `total` tokens into `n` segments; every way of doing so is equally likely."
    check_sizes(total=total, n=n)
    need(n <= total, "n", n, f"at most {total}, since no segment is empty")
    drawn = torch.randperm(total - 1, generator=generator)[:n - 1].tolist()
    cuts = [0, *sorted(i + 1 for i in drawn), total]
    return [b - a for a, b in zip(cuts, cuts[1:])]

# %% span-mask
def span_mask(
    length: int,                 # T
    generator: torch.Generator,
    rate: float = .15,
    mean: float = 3.,
) -> Tensor:                     # (T,), True at noise
    "Random spans of noise, each after at least one token that is kept."
    n_noise, n_spans = span_counts(length, rate, mean)
    kept = random_segments(length - n_noise, n_spans, generator)
    noise = random_segments(n_noise, n_spans, generator)
    row = []
    for a, b in zip(kept, noise): row += [False] * a + [True] * b
    return torch.tensor(row)

# %% span-corruption
def span_corruption(
    ids: Tensor,               # a text (T,), without its end token
    mask: Tensor,              # (T,), True at tokens that are dropped
    sentinels: Sequence[int],  # ids of the sentinels, in the order of their use
    eos: int = EOS,
) -> tuple[Tensor, Tensor]:    # inputs and targets, each with `eos` at its end
    "The text with a sentinel for each span, and the spans, each after its sentinel."
    check_text(ids)
    fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == ids.shape
    need(fits and bool(mask.any()), "mask", mask, f"bool {tuple(ids.shape)}, at least one True")
    row = ids.tolist()
    clash = set(sentinels) & set(row)
    need(not clash, "ids", f"with sentinel {min(clash, default=None)}", "a text without any")
    inputs, targets, spans, before = [], [], 0, False
    for i, noise in zip(row, mask.tolist()):
        if noise and not before:                              # the first of a span
            need(spans < len(sentinels), "sentinels", spans, "one for each span, or more")
            inputs, targets = [*inputs, sentinels[spans]], [*targets, sentinels[spans]]
            spans += 1
        (targets if noise else inputs).append(i)
        before = noise
    return torch.tensor([*inputs, eos]), torch.tensor([*targets, eos])


def restore(
    inputs: Tensor, targets: Tensor, sentinels: Sequence[int], eos: int = EOS
) -> Tensor:  # (T,)
    "The text from the two sides of span corruption; each sentinel is replaced by its span."
    check_text(inputs, "inputs")
    check_text(targets, "targets")
    spans, current = {}, None
    for i in targets.tolist():
        if i == eos: break
        if i in sentinels: spans[i] = current = []
        else:
            need(current is not None, "targets", targets.tolist(), "a sentinel first")
            current.append(i)
    row = []
    for i in inputs.tolist():
        if i == eos: break
        row += spans.get(i, []) if i in sentinels else [i]
    return torch.tensor(row, dtype=torch.int64)

# %% bart-tokens
def chosen_tokens(ids: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    "(T,), True at a random fraction of the tokens: round(rate · T) of them."
    check_text(ids)
    check_rate(rate)
    order = torch.randperm(len(ids), generator=generator)
    return order < round(rate * len(ids))


def token_masking(ids: Tensor, generator: torch.Generator, rate: float = .15) -> Tensor:
    "Random tokens become MASK."
    return ids.masked_fill(chosen_tokens(ids, rate, generator), MASK)


def token_deletion(ids: Tensor, generator: torch.Generator, rate: float = .15) -> Tensor:
    "Random tokens are left out; where, the model must find out."
    return ids[~chosen_tokens(ids, rate, generator)]

# %% bart-infilling
def infilling_lengths(
    budget: int, generator: torch.Generator, mean: float = 3.
) -> list[int]:  # lengths of spans, 0 allowed, which sum to `budget`
    "Poisson lengths until the budget is spent; the last is cut to fit."
    found, left = [], budget
    while left > 0:
        drawn = torch.poisson(torch.tensor(mean), generator=generator)
        found.append(min(int(drawn), left))
        left -= found[-1]
    order = torch.randperm(len(found), generator=generator).tolist()
    return [found[i] for i in order]                          # the cut one anywhere


def text_infilling(
    ids: Tensor,                 # (T,)
    generator: torch.Generator,
    rate: float = .3,            # of the tokens that are dropped
    mean: float = 3.,            # length of a span
) -> Tensor:
    "Random spans become one MASK each; an empty span inserts one."
    check_text(ids)
    check_rate(rate)
    lengths, kept = infilling_lengths(round(rate * len(ids)), generator, mean), ids.tolist()
    n_slots = len(ids) - sum(lengths) + len(lengths)          # kept tokens and spans
    places = set(torch.randperm(n_slots, generator=generator)[:len(lengths)].tolist())
    row, at, left = [], 0, list(lengths)
    for slot in range(n_slots):
        if slot in places: row, at = [*row, MASK], at + left.pop()
        else: row, at = [*row, kept[at]], at + 1
    return torch.tensor(row)

# %% bart-order
def split_sentences(ids: Tensor, stop: int) -> list[Tensor]:
    "The text cut after each full stop."
    check_text(ids)
    ends = (ids == stop).nonzero()[:, 0].tolist()
    edges = sorted({0, *(end + 1 for end in ends), len(ids)})
    return [ids[a:b] for a, b in zip(edges, edges[1:])]


def sentence_permutation(ids: Tensor, generator: torch.Generator, stop: int) -> Tensor:
    "The sentences in random order."
    sentences = split_sentences(ids, stop)
    order = torch.randperm(len(sentences), generator=generator).tolist()
    return torch.cat([sentences[i] for i in order])


def document_rotation(ids: Tensor, generator: torch.Generator) -> Tensor:
    "The text begins at a random token; what was before it comes last."
    check_text(ids)
    start = int(torch.randint(len(ids), (1,), generator=generator))
    return ids.roll(-start)


def compose(*noises: Callable) -> Callable:  # each (ids, generator) -> ids
    "One noise after the other."
    def noise(ids: Tensor, generator: torch.Generator) -> Tensor:
        for each in noises: ids = each(ids, generator)
        return ids
    return noise

# %% example
@dataclass(frozen=True)
class Example:
    "What a model reads and what it predicts; every objective turns a text into one."
    inputs: Tensor   # (S,)
    targets: Tensor  # (T,)
    weights: Tensor  # (T,): of each target in the loss; 0: it does not count


def plain_example(inputs: Tensor, targets: Tensor) -> Example:
    "All targets count alike."
    return Example(inputs, targets, torch.ones(len(targets)))


def collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    "A batch: inputs (B, S), targets (B, T), weights (B, T), padded at the end."
    need(len(examples) > 0, "examples", "none", "at least one")
    columns = zip(*((e.inputs, e.targets, e.weights) for e in examples))
    return tuple(pad_sequence(list(rows), True, PAD) for rows in columns)


def framed(ids: Tensor, first: bool = True, last: bool = True) -> Tensor:
    "The text with BOS before it and EOS after it."
    check_text(ids)
    return F.pad(F.pad(ids, (int(first), 0), value=BOS), (0, int(last)), value=EOS)

# %% generative-objectives
def causal_lm(ids: Tensor, generator: torch.Generator) -> Example:
    "Causal LM: nothing is given but BOS; the whole text is predicted."
    return plain_example(ids.new_tensor([BOS]), framed(ids, first=False))


def prefix_lm(ids: Tensor, generator: torch.Generator) -> Example:
    "Prefix LM: a random beginning is given, the rest is predicted."
    check_text(ids, least=2)
    cut = int(torch.randint(1, len(ids), (1,), generator=generator))
    return plain_example(framed(ids[:cut], last=False), framed(ids[cut:], first=False))


@dataclass(frozen=True)
class SpanCorruption:
    "T5's objective: a sentinel for each dropped span; the spans are predicted."
    sentinels: Sequence[int]
    rate: float = .15
    mean: float = 3.

    def __call__(self, ids: Tensor, generator: torch.Generator) -> Example:
        mask = span_mask(len(ids), generator, self.rate, self.mean)
        return plain_example(*span_corruption(ids, mask, self.sentinels))


@dataclass(frozen=True)
class Denoising:
    "BART's objective: a corrupted text is given, the whole text is predicted."
    noise: Callable  # (ids, generator) -> ids

    def __call__(self, ids: Tensor, generator: torch.Generator) -> Example:
        noisy = self.noise(ids, generator)
        return plain_example(F.pad(noisy, (0, 1), value=EOS), framed(ids, first=False))

# %% masked-objectives
@dataclass(frozen=True)
class MaskedLM:
    "BERT's objective: the text with some tokens corrupted; those are predicted."
    vocab_size: int  # random tokens are below it
    corruption: Corruption = Corruption()

    def __call__(self, ids: Tensor, generator: torch.Generator) -> Example:
        row = framed(ids)
        seen, chosen = self.corruption(row[None], self.vocab_size, generator)
        return Example(seen[0], row, chosen[0].float())


@dataclass(frozen=True)
class MaskedDiffusion:
    "The masked loss at every rate: rate t is drawn evenly, and weighs its losses 1 / t."
    least: float = .01  # rate, which bounds the weight

    def __call__(self, ids: Tensor, generator: torch.Generator) -> Example:
        row = framed(ids)
        t = float(torch.rand((), generator=generator).clamp(min=self.least))
        hidden = (torch.rand(len(row), generator=generator) < t) & (row != BOS)
        return Example(row.masked_fill(hidden, MASK), row, hidden / t)

# %% prefix-mask
def prefix_mask(
    prefix: Tensor,  # (B,): tokens at the start of each row that all may see
    T: int,
) -> Tensor:         # (B, 1, T, T), True where query t may attend to key s
    "Causal, but for the prefix, which is seen by every position."
    fits = isinstance(prefix, Tensor) and prefix.ndim == 1 and prefix.dtype == torch.int64
    fits = fits and bool(((0 <= prefix) & (prefix <= T)).all())
    need(fits, "prefix", prefix, f"int64 (B,), from 0 to {T}")
    given = torch.arange(T, device=prefix.device) < prefix[:, None]          # (B, T)
    return causal_mask(T, T, prefix.device) | given[:, None, None]


class PrefixLM(CausalLM):
    """A decoder whose rows begin with a prefix that is read in both directions.

    With no prefix it is a causal LM; with nothing but prefix, an encoder.
    """
    def __init__(self, config: ModelConfig, attention_fn: Callable = grouped_query_attention,
                 seed: int = 0):
        need(config.positions != "relative", "positions", repr(config.positions),
             "an encoding for both directions; a decoder's relative bias has one")
        super().__init__(config, attention_fn, seed)

    def hidden_states(self, ids: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, list]:
        "The output of the stack (B, T, C), and each block's weights."
        check_inputs(ids, self.config.max_len)
        prefix = torch.zeros_like(ids[:, 0]) if prefix is None else prefix
        need(len(prefix) == len(ids), "prefix", tuple(prefix.shape), f"({len(ids)},), one a row")
        x, shown = self.stack(self.embed(ids), mask=prefix_mask(prefix, ids.shape[1]))
        return x, [block["attention"] for block in shown]

    def forward(self, ids: Tensor, prefix: Tensor | None = None) -> Tensor:  # (B, T, V)
        "The logits after each token; see `hidden_states`."
        return self.logits(self.hidden_states(ids, prefix)[0])

# %% losses
def lengths_of(ids: Tensor) -> Tensor:  # (B, T) -> (B,)
    "How many tokens each row has before its padding."
    return (ids != PAD).sum(1)


def join(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    "Each row's inputs and then its targets (B, N), and where its targets begin (B,)."
    S, T = lengths_of(inputs), lengths_of(targets)
    need(bool((S > 0).all()), "inputs", "an empty row", "at least one token, such as BOS")
    at = torch.arange(int((S + T).max()), device=inputs.device).expand(len(S), -1)  # (B, N)
    rows = torch.cat([inputs, F.pad(targets, (0, 1), value=PAD)], 1)
    after = inputs.shape[1] + (at - S[:, None]).clamp(0, targets.shape[1])
    return rows.gather(1, at.where(at < S[:, None], after)), S


def target_logits(logits: Tensor, begin: Tensor, T: int) -> Tensor:  # (B, N, V) -> (B, T, V)
    "Of a joined row, the logits that predict its targets."
    at = (begin[:, None] - 1 + torch.arange(T)).clamp(max=logits.shape[1] - 1)    # (B, T)
    return logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1]))


def weighted_nll(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    "The sum of the negative log-probabilities, each times its weight."
    need(weights.shape == targets.shape, "weights", tuple(weights.shape),
         f"{tuple(targets.shape)}, as targets")
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()

# %% readings
def encoder_decoder_logits(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    "The encoder reads the inputs; the decoder predicts the targets, given those before."
    return model(inputs, shift_right(targets))[0]


def causal_logits(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    "One decoder reads inputs and targets, all of them causally."
    ids, begin = join(inputs, targets)
    return target_logits(model(ids), begin, targets.shape[1])


def prefix_logits(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    "One decoder reads inputs and targets; the inputs in both directions."
    ids, begin = join(inputs, targets)
    return target_logits(model(ids, begin), begin, targets.shape[1])


def masked_logits(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    "Each target is predicted at its own position, from the whole of the inputs."
    need(inputs.shape == targets.shape, "targets", tuple(targets.shape),
         f"{tuple(inputs.shape)}, one for each input")
    return model(inputs, lengths_of(inputs))

# %% objective
@dataclass(frozen=True)
class Objective:
    "A way to make examples of texts, and a way in which a model reads them."
    example: Callable           # (ids (T,), generator) -> Example
    logits: Callable            # (model, inputs, targets) -> (B, T, V)
    every_token: bool = False   # is the loss a mean over all targets, or the counted ones?

    def batch(self, texts: Sequence[Tensor], generator: torch.Generator) -> tuple:
        "Inputs, targets and weights."
        return collate([self.example(ids, generator) for ids in texts])

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor,
             weights: Tensor) -> tuple[Tensor, Tensor]:
        "The sum of the weighted losses, and the number that it is to be divided by."
        nll = weighted_nll(self.logits(model, inputs, targets), targets, weights)
        return nll, (targets != PAD if self.every_token else weights > 0).sum()


def objectives(vocab_size: int, sentinels: Sequence[int], stop: int) -> dict[str, Objective]:
    "The objectives of this chapter, each with the architecture of its paper."
    bart = compose(text_infilling, lambda ids, g: sentence_permutation(ids, g, stop))
    return {
        "causal LM": Objective(causal_lm, causal_logits),
        "prefix LM": Objective(prefix_lm, prefix_logits),
        "masked LM": Objective(MaskedLM(vocab_size), masked_logits),
        "span corruption": Objective(SpanCorruption(sentinels), encoder_decoder_logits),
        "BART": Objective(Denoising(bart), encoder_decoder_logits),
        "masked diffusion": Objective(MaskedDiffusion(), masked_logits, every_token=True),
    }

# %% diffusion-bound
@torch.no_grad()
def diffusion_bound(
    predict: Callable,           # ids (B, T) in which MASK hides some -> logits (B, T, V)
    ids: Tensor,                 # texts of one length (B, T)
    generator: torch.Generator,
    draws: int = 16,             # more: less scatter
) -> Tensor:                     # (B,): at least -log p of each text, on average
    """An upper bound on the negative log-probability of texts, in nats.

    Of k tokens hidden at random, k even over 1 … T, the mean loss times T.
    """
    check_sizes(draws=draws)
    B, T = ids.shape
    total = torch.zeros(B)
    for _ in range(draws):
        k = torch.randint(1, T + 1, (B, 1), generator=generator)
        hidden = torch.rand(B, T, generator=generator).argsort(1).argsort(1) < k
        logits = predict(ids.masked_fill(hidden, MASK))
        nll = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")  # (B, T)
        total += T * (nll * hidden).sum(1) / k[:, 0]
    return total / draws

# %% unmask
def at_random(logits: Tensor, generator: torch.Generator) -> Tensor:
    "The order of unmasking is drawn."
    return torch.rand(logits.shape[:-1], generator=generator)


def by_confidence(logits: Tensor, generator: torch.Generator) -> Tensor:
    "The position whose most likely token is most probable comes first."
    return logits.softmax(-1).amax(-1)


@torch.no_grad()
def unmask(
    predict: Callable,          # ids (B, T) -> logits (B, T, V)
    ids: Tensor,                # (B, T), with MASK at the positions to write
    steps: int,                 # calls of `predict`
    generator: torch.Generator,
    order: Callable = at_random,              # (logits, generator) -> scores (B, T)
    sampling: SamplingConfig | None = None,   # None: the most likely token
) -> Tensor:                    # (B, T)
    "Write a text in any order: at each step, equally many of the masks become tokens."
    check_sizes(steps=steps)
    ids = ids.clone()
    need(bool((ids == MASK).any()), "ids", "no MASK", "at least one position to write")
    for left in range(steps, 0, -1):
        hidden = ids == MASK                                               # (B, T)
        n = (hidden.sum(1, keepdim=True) / left).ceil()                    # (B, 1)
        never = ids.new_tensor([PAD, MASK])                                # written
        logits = predict(ids).index_fill(-1, never, -math.inf)             # (B, T, V)
        scores = order(logits, generator).masked_fill(~hidden, -math.inf)
        now = hidden & (scores.argsort(1, descending=True).argsort(1) < n)
        new = logits.argmax(-1)
        if sampling is not None:
            drawn = sample(sampling(logits.flatten(0, 1), ids.flatten()[:, None]), generator)
            new = drawn.view_as(ids)
        ids = new.where(now, ids)
    return ids
