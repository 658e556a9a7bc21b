"""Train the small decoder whose numbers the whole book shows, and keep them: python -m
bench.sentence

One block of width 8 with two heads, on sentences about six animals. Each animal has its preposition
and its place, so the model must find the animal, however far it is back, before it can say "in" or
"barn". What it computes for one sentence goes into tfmlib/assets/sentence.safetensors beside its
weights: the chapters draw these numbers.
"""
import json
import os
import random
from pathlib import Path

import torch
from torch import Tensor, nn

import tfmlib as tfm
from tfmlib.heads import attention_weights
from tfmlib.workbench import save_tensors

OUT = Path(__file__).resolve().parent.parent / "tfmlib/assets/sentence.safetensors"
PLACES = {"owl": ("in", "barn"), "fox": ("under", "tree"), "cat": ("on", "roof"),
          "frog": ("by", "pond"), "bat": ("in", "cave"), "hen": ("on", "nest")}
VERBS, ADJECTIVES = ("sleeps", "waits", "sings"), ("old", "grey", "small")
VOCABULARY = [".", "the", *PLACES, *VERBS, "in", "under", "on", "by",
              *(place for _, place in PLACES.values()), *ADJECTIVES, "that", "saw"]
SENTENCE, LONGER = ("the owl sleeps in the barn".split(),
                    "the old owl that saw the fox sleeps in the barn".split())
LENGTH, SEED, SEEDS = 12, 1, 12


def spoken(rng: random.Random) -> list[str]:
    "A sentence: two of five have an adjective, two of five a clause with another animal."
    animal, words = rng.choice([*PLACES]), ["the"]
    if rng.random() < .4: words.append(rng.choice(ADJECTIVES))
    words.append(animal)
    if rng.random() < .4: words += ["that", "saw", "the", rng.choice([*PLACES])]
    preposition, place = PLACES[animal]
    return [*words, rng.choice(VERBS), preposition, "the", place]


def rows(count: int, seed: int) -> Tensor:
    "Sentences as ids, each filled up with full stops."
    rng, number = random.Random(seed), VOCABULARY.index
    return torch.tensor([([*map(number, spoken(rng))] + [0] * LENGTH)[:LENGTH]
                         for _ in range(count)])


def trained(seed: int = SEED, steps: int = 1500) -> nn.Module:
    config = tfm.ModelConfig("decoder", len(VOCABULARY), d_model=8, n_layers=1, n_heads=2, d_ff=24,
                             max_len=16, rope_base=100., **tfm.MODERN)
    model = tfm.build(config, seed=seed)
    optimiser = tfm.AdamW(tfm.parameter_groups(model, .01),
                          tfm.WarmupCosine(2e-2, 50, steps), clip=1.)
    tfm.train(model, tfm.next_token_loss, tfm.epochs(rows(6000, 0), size=64), steps, optimiser)
    return model


@torch.no_grad()
def moments(model: nn.Module, words: list[str]) -> dict[str, Tensor]:
    "What the model computes for a sentence, step by step, without the batch axis."
    ids, seen = torch.tensor([[VOCABULARY.index(word) for word in words]]), {}
    block = model.stack.blocks[0]
    heads, up = block.attention.inner, block.feed_forward.inner
    watched = {"q_flat": heads.q_proj, "k_flat": heads.k_proj, "v_flat": heads.v_proj,
               "attended": heads.o_proj, "normed": block.attention.norm, "written": up,
               "middle": block.feed_forward.norm, "final": model.stack.norm}
    hooks = [module.register_forward_hook(lambda _, given, out, name=name: seen.update({name: out,
            f"into {name}": given[0]})) for name, module in watched.items()]
    hooks.append(heads.register_forward_hook(lambda _, given, out: seen.update(weights=out[1])))
    with attention_weights(): logits = model(ids)
    for hook in hooks: hook.remove()
    q, k, v = (seen[f"{name}_flat"].unflatten(-1, (2, 4)).transpose(1, 2) for name in "qkv")
    rotate = heads.attention_fn.encoding.rotate
    turned = [rotate(t, torch.arange(len(words)), len(words)) for t in (q, k)]
    told = {"ids": ids, "x": seen["into normed"], "normed": seen["normed"], "q": q, "k": k, "v": v,
            "rotated_q": turned[0], "rotated_k": turned[1],
            "scores": turned[0] @ turned[1].transpose(-2, -1) / 2, "weights": seen["weights"],
            "heads": seen["into attended"].unflatten(-1, (2, 4)).transpose(1, 2),
            "attended": seen["attended"], "between": seen["into middle"],
            "written": seen["written"], "out": seen["into final"], "logits": logits}
    return {name: t[0].contiguous() for name, t in told.items()}


def facts(model: nn.Module) -> list[float]:
    """Perplexity on sentences of another seed; then, for each head, the weight from sleeps to
    owl, from the last the to owl, and from it to in."""
    weights = moments(model, SENTENCE)["weights"]
    found = [tfm.perplexity(model, rows(500, 7)),
             *(float(weights[head, at, to]) for at, to in ((2, 1), (4, 1), (4, 3))
               for head in (0, 1))]
    return [round(x, 3) for x in found]


def main() -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")
    torch.set_num_threads(1)
    models = [trained(seed) for seed in range(SEEDS)]
    model = models[SEED]
    tensors = ({f"model.{name}": t.detach().contiguous() for name, t in model.state_dict().items()}
               | moments(model, SENTENCE) | {"longer": moments(model, LONGER)["weights"]})
    save_tensors(OUT, tensors, {"vocabulary": json.dumps(VOCABULARY), "words": json.dumps(SENTENCE),
                                "longer": json.dumps(LONGER),
                                "seeds": json.dumps([*map(facts, models)]),
                                "command": "python -m bench.sentence"})
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__": main()
