"""Chapter 21: text of four known topics, learned by a dense decoder, by experts with as many active
weights, and by a wide dense one; how loads are balanced and what it costs; what dropping costs; and
how much the choice of an expert depends on token, topic and position.

The text is a walk over 128 words, of which the next one depends on the last word and the topic:
each topic has its own successors for every word, so no word belongs to a topic. A topic lasts 16 to
64 words. Rates are tuned as in `expert_facts`. A row is a model, with three seeds; four models are
trained once more with twice the steps. Each run is kept in `build/experts`.
"""
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import climbed, over_seeds, size, ticked
from bench.expert_facts import kept
from tfmlib.checkpoints import MODERN, ModelConfig, build
from tfmlib.mixture_of_experts import (
    MixtureOfExperts,
    load_balancing_loss,
    mutual_information,
    tokens_per_expert,
)
from tfmlib.mixture_of_experts.balancing import capacity, keep_within_capacity, router_z_loss
from tfmlib.mixture_of_experts.models import hidden_and_routings
from tfmlib.workbench import AdamW, WarmupCosine, mix_seed, parameter_groups, seeded, train

SEEDS, PEAKS, WARM, STEPS, TRIED, LONGER, ROWS = (range(3), (.002, .004, .008), 50, 3000,
                                                  300, 6000, 16)
WORDS, TOPICS, NEXT, LENGTH, C, LAYERS, E = 128, 4, 4, 64, 32, 2, 8
DENSE = ModelConfig("decoder", WORDS, C, LAYERS, 2, LENGTH, d_ff=C, **MODERN)


def experts(k: int, routing: str) -> ModelConfig:
    "Experts whose active weights are those of the dense layer."
    return replace(DENSE, ffn="experts", options=dict(n_experts=E * k, n_used=k, expert_d_ff=C // k,
            routing=routing))


ONE, TWO = experts(1, "softmax, then top-k"), experts(2, "top-k, then softmax")
MODELS = {"dense": DENSE, "wide": replace(DENSE, d_ff=E * C), "1 of 8": ONE, "2 of 16": TWO,
          "2 of 16, biased": experts(2, "sigmoid, biased")}
BALANCE = {"none": (0., 0.), "loss .01": (.01, 0.), "loss .1": (.1, 0.),
           "loss .01, z .001": (.01, .001)}
# the first step of the biases; it decreases linearly to 0
BIAS = .005
# the row's name -> model, (balancing, z), capacity factor in training; "2 of 16, sigmoid" is the
# control of the bias, which is never updated
CASES = {
    "dense": ("dense", "none", None), "wide": ("wide", "none", None),
    **{f"{model}, {balance}": (model, balance, None) for model in ("1 of 8", "2 of 16")
       for balance in BALANCE},
    "2 of 16, sigmoid": ("2 of 16, biased", "none", None),
    "2 of 16, bias": ("2 of 16, biased", "none", None),
    **{f"1 of 8, capacity {factor:g}": ("1 of 8", "loss .01", factor) for factor in (1., 1.25, 2.)}}

# once more with twice the steps: does anything change?
LONG = "dense", "wide", "1 of 8, loss .01", "2 of 16, loss .01"


@lru_cache
def successors() -> Tensor:
    "The possible next words of each topic and word (TOPICS, WORDS, NEXT)."
    return torch.rand(TOPICS, WORDS, WORDS, generator=seeded(21)).topk(NEXT).indices


@lru_cache
def corpus(part: int, n: int) -> tuple[Tensor, Tensor]:
    "Rows of words and of their topics, (n, LENGTH + 1) each."
    g, after = seeded(21, part), successors()
    total = n * (LENGTH + 1)
    lengths = torch.randint(16, 65, (total // 16,), generator=g)
    topics = torch.randint(TOPICS, (len(lengths),), generator=g).repeat_interleave(lengths)[:total]
    # probabilities of the four successors: 0.55, 0.25, 0.15, 0.05
    ranks = torch.bucketize(torch.rand(total, generator=g), torch.tensor([.55, .8, .95])).tolist()
    table, word, words = after.tolist(), 0, []
    for topic, rank in zip(topics.tolist(), ranks):
        word = table[topic][word][rank]
        words.append(word)
    return torch.tensor(words).view(n, -1), topics.view(n, -1)


def limit(model: nn.Module, factor: float | None) -> None:
    "Give each layer's routing a capacity."
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            routing = (module.router.routing if not hasattr(module.router.routing, "limited")
                       else module.router.routing.limited)
            if factor is None: module.router.routing = routing
            else:
                module.router.routing = partial(limited, routing, factor)
                module.router.routing.limited = routing


def limited(routing, factor: float, logits: Tensor):
    "What is left of a routing at this capacity."
    made = routing(logits)
    return keep_within_capacity(made, capacity(len(made.token), logits.shape[1], factor))


def loss_of(model: nn.Module, ids: Tensor, rate: float, weights: tuple[float, float]) -> Tensor:
    """Cross-entropy of every next word, and the penalties; biases take a step of this rate.
    Loads are those before any token is dropped."""
    x, routings = hidden_and_routings(model, ids[:, :-1])
    loss = F.cross_entropy(model.logits(x).flatten(0, 1), ids[:, 1:].flatten())
    balance, z = weights
    layers = [m.router.routing for m in model.modules() if isinstance(m, MixtureOfExperts)]
    routings = [rule.limited(r.logits) if hasattr(rule, "limited") else r
                for rule, r in zip(layers, routings)]
    if balance:
        loss = loss + balance * sum(load_balancing_loss(r) for r in routings) / len(routings)
    if z: loss = loss + z * sum(router_z_loss(r.logits) for r in routings) / len(routings)
    for rule, routing in zip(layers, routings):
        if rate and hasattr(rule, "update"): rule.update(tokens_per_expert(routing), rate)
    return loss


def trained(case: str, peak: float, seed: int, steps: int) -> nn.Module:
    name, balance, factor = CASES[case]
    model, (words, _) = build(MODELS[name], seed=seed), corpus(0, 8000)
    limit(model, factor)
    def batch(step: int) -> tuple[Tensor, float]:
        rate = BIAS * (1 - step / steps) if case == "2 of 16, bias" else 0.
        return (words[torch.randint(len(words), (ROWS,), generator=seeded(mix_seed(seed, step)))],
                rate)
    optimiser = AdamW(parameter_groups(model, .01), WarmupCosine(peak, WARM, steps), clip=1.)
    train(model, partial(loss_of, weights=BALANCE[balance]), batch, steps, optimiser, seed=seed)
    return model


def given_token(chosen: Tensor, topic: Tensor, word: Tensor) -> Tensor:
    """The information of the topic about the expert if the word is known: I(expert; topic and
    word) − I(expert; word)."""
    return mutual_information(chosen, topic * WORDS + word) - mutual_information(chosen, word)


@torch.no_grad()
def judged(case: str, model: nn.Module, part: int) -> dict[str, float]:
    "The loss on texts of their own, without dropping; loads; what experts depend on, by layer."
    model.eval()
    words, topics = corpus(part, 1000)
    factor, found = CASES[case][2], {}
    for name, each in (("loss", None), ("loss, dropping", factor)):
        if name == "loss" or each is not None:
            limit(model, each)
            parts = [hidden_and_routings(model, rows[:, :-1]) for rows in words.split(ROWS)]
            pieces = [F.cross_entropy(model.logits(x).flatten(0, 1), rows[:, 1:].flatten())
                      * len(rows) for (x, _), rows in zip(parts, words.split(ROWS))]
            found[name] = float(sum(pieces) / len(words))
            if each is not None:
                found["dropped"] = (1 - sum(len(r.token) for _, rs in parts for r in rs)
                                    / (LAYERS * words[:, 1:].numel()))
            else: kept_parts = parts
    limit(model, None)
    word, topic = words[:, :-1].flatten(), topics[:, :-1].flatten()
    position = torch.arange(LENGTH).repeat(len(words))
    shuffle = torch.randperm(len(word), generator=seeded(3))
    for layer in range(len(kept_parts[0][1])):
        routings = [rs[layer] for _, rs in kept_parts]
        load = sum(tokens_per_expert(r) for r in routings).float()
        k = len(routings[0].token) // len(routings[0].logits)
        chosen = torch.cat([r.expert.view(-1, k)[:, 0] for r in routings])
        entropy = mutual_information(chosen, chosen).clamp(min=1e-9)
        at = f", layer {layer + 1}"
        found |= {f"busiest{at}": float(load.max() / load.mean()),
                  f"below a tenth{at}": float((load < .1 * load.mean()).sum())}
        for name, value in (("word", mutual_information(chosen, word)),
                            ("topic", mutual_information(chosen, topic)),
                            ("position", mutual_information(chosen, position)),
                            ("topic given word", given_token(chosen, topic, word)),
                            ("topic given word, shuffled",
                             given_token(chosen, topic[shuffle], word)),
                            ("word, shuffled", mutual_information(chosen, word[shuffle])),
                            ("position, shuffled", mutual_information(chosen, position[shuffle]))):
            found[f"tells, {name}{at}"] = float(value / entropy)
    return found


def row(case: str, seed: int) -> dict:
    "One model and way of balancing: choose the rate, then three seeds."
    def tried(peak: float) -> float:
        return kept(f"text-{case}-{seed}-{TRIED}-{peak:g}",
                    lambda: judged(case, trained(case, peak, seed + 100, TRIED), 1))["loss"]
    peak, _ = climbed(tried, PEAKS)
    found = [kept(f"text-{case}-{seed + s}-{STEPS}-{peak:g}",
                  lambda s=s: judged(case, trained(case, peak, seed + s, STEPS), 2)) for s in SEEDS]
    row = ({"case": case, "peak": f"{peak:g}", "steps": STEPS,
            "parameters": size(build(MODELS[CASES[case][0]]))} | over_seeds(found))
    if case in LONG:
        row["twice the steps"] = f"{kept(f'text-{case}-{seed}-{LONGER}-{peak:g}', lambda: judged(case, trained(case, peak, seed, LONGER), 2))['loss']:.3f}"  # noqa: E501
    return row


def measure(seed: int) -> Iterator[dict]:
    "Every model, and every way of balancing."
    for case in ticked([*CASES]): yield row(case, seed)
