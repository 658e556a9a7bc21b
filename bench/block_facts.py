"""Chapter 22: facts planted in a small model; neurons removed, one fact edited, many edited, and
what becomes of the others."""
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import over_seeds, ticked
from tfmlib.attention import causal_mask
from tfmlib.block import FeedForward, LayerNorm, PreNorm, TransformerBlock
from tfmlib.heads import MultiHeadAttention
from tfmlib.inside import memit_edit, rome_edit

# models; edits of each; facts whose neurons are removed; edits at once
SEEDS, EDITS, FACTS, MANY = 5, 6, 12, (1, 5, 20)
WIDTH, HEADS, BLOCKS, LONGEST, STEPS = 48, 4, 3, 9, 300
# phrasings that an edit sees; what a kept key weighs
ASKED, STRENGTH = 3, 100.0
GIVEN, FAMILY = ("Ada Bo Cleo Dag Eva Finn Gil Hana".split(),
                 "Ash Birk Crane Dove Elm Fox Gale Hart".split())
PHRASES = {
    "born": ["{} was born in", "the birthplace of {} is said to be", "{} comes to us from",
             "the home of {} has always been", "where was {} born , friend ?"],
    "trade": ["{} works as a", "the trade of {} is said to be", "{} earns a living as",
              "the work of {} has always been", "what does {} do , friend ?"],
    "plays": ["{} plays on the", "the instrument of {} is said to be", "{} makes music on the",
              "the music of {} has always been", "what does {} play , friend ?"]}
OBJECTS = {"born": "Arl Brul Corm Dunt Esk Farn Glim Holt Ist Jurr".split(),
           "trade": "baker cooper dyer farrier glazier hatter joiner miller potter tailor".split(),
           "plays": "bells cello drum fiddle flute harp horn lute oboe viola".split()}
WORDS = list(
    dict.fromkeys(["",
                   *(w for many in PHRASES.values() for p in many
                     for w in p.replace("{}", "").split()), *GIVEN, *FAMILY,
                   *sum(OBJECTS.values(), [])]))
NUMBER = {word: i for i, word in enumerate(WORDS)}


def world(seed: int) -> dict[tuple, str]:
    "48 people, each with a town, a trade and an instrument: (person, relation) -> object."
    g = torch.Generator().manual_seed(seed)
    people = [f"{a} {b}" for a in GIVEN for b in FAMILY]
    return {(people[i], r): os[torch.randint(10, (), generator=g)]
            for i in torch.randperm(64, generator=g)[:48].tolist() for r, os in OBJECTS.items()}


def encode(asked: list[tuple]) -> tuple[Tensor, Tensor, Tensor]:
    """Questions (person, relation, phrasing) as words, the place of the last word, and that of
    the last name."""
    texts = [PHRASES[r][i].format(s).split() for s, r, i in asked]
    x = torch.tensor([[NUMBER[w] for w in t] + [0] * (LONGEST - len(t)) for t in texts])
    return (x, torch.tensor([len(t) - 1 for t in texts]),
            torch.tensor([t.index(s.split()[1]) for t, (s, _, _) in zip(texts, asked)]))


class Recall(nn.Module):
    """Words to scores of the next word; all blocks but the last look back one word only, unless
    they are free."""
    def __init__(self, free: bool = False):
        super().__init__()
        self.word, self.place = (nn.Embedding(len(WORDS), WIDTH),
                                 nn.Parameter(torch.randn(LONGEST, WIDTH) / 10))
        self.blocks = nn.ModuleList(TransformerBlock(attention=PreNorm(LayerNorm(WIDTH),
                MultiHeadAttention(WIDTH, HEADS)),
                feed_forward=PreNorm(LayerNorm(WIDTH), FeedForward(WIDTH))) for _ in range(BLOCKS))
        self.norm, self.read, causal = (LayerNorm(WIDTH), nn.Linear(WIDTH, len(WORDS), bias=False),
                                        causal_mask(LONGEST, LONGEST))
        nn.init.normal_(self.word.weight, std=0.5)
        self.masks = [causal if free else causal.triu(-1)] * (BLOCKS - 1) + [causal]

    def stream(self, x: Tensor, block: int = -1, at: Tensor | None = None,
               push: Tensor | None = None) -> Tensor:
        "The stream after all blocks; `push` is added after one of them, at one place of each row."
        h = self.word(x) + self.place
        for i, (layer, mask) in enumerate(zip(self.blocks, self.masks)):
            h, _ = layer(h, mask=mask)
            if i == block: h = h.index_put((torch.arange(len(x)), at), push, accumulate=True)
        return h

    def forward(self, x: Tensor, last: Tensor, **pushed) -> Tensor:
        return self.read(self.norm(self.stream(x, **pushed)[torch.arange(len(x)), last]))


def ways(facts: dict, phrasings=range(5)) -> list[tuple]:
    return [(s, r, i) for s, r in facts for i in phrasings]
def answers(asked: list[tuple], facts: dict) -> Tensor:
    return torch.tensor([NUMBER[facts[s, r]] for s, r, _ in asked])


def taught(seed: int, free: bool = False) -> tuple[Recall, dict, dict]:
    """A model that knows its world, the world, and shares right: in phrasings seen, and in the
    one never seen of each fact."""
    facts, g = world(seed), torch.Generator().manual_seed(seed)
    unseen = {fact: int(torch.randint(5, (), generator=g)) for fact in facts}
    seen, new = ([q for q in ways(facts) if (unseen[q[:2]] == q[2]) == wanted]
                 for wanted in (False, True))
    torch.manual_seed(seed)
    model, (x, last, _), y = Recall(free), encode(seen), answers(seen, facts)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, (i + 1) / 30)
                                             * (1 - i / STEPS))
    for _ in range(STEPS):
        rows = torch.randint(len(x), (96,), generator=g)
        loss = F.cross_entropy(model(x[rows], last[rows]), y[rows])
        optimiser.zero_grad(); loss.backward(); optimiser.step(); rate.step()
    model.requires_grad_(False)
    return model, facts, {"seen": right(model, seen, facts), "unseen": right(model, new, facts)}


@torch.no_grad()
def right(model: Recall, asked: list[tuple], facts: dict) -> float:
    return float((model(*encode(asked)[:2]).argmax(-1) == answers(asked, facts)).double().mean())


def judged(model: Recall, facts: dict, edits: dict) -> dict[str, float]:
    """Shares right after edits {fact: new object}: as asked, in other phrasings, the same
    people's other facts, other people."""
    touched, people = {**facts, **edits}, {s for s, _ in edits}
    same, others = ([f for f in facts if (f[0] in people) == wanted and f not in edits]
                    for wanted in (True, False))
    return {"efficacy": right(model, ways(edits, range(ASKED)), touched),
            "generalisation": right(model, ways(edits, range(ASKED, 5)), touched),
            "same": right(model, ways(same), touched),
            "others": right(model, ways(others), touched)}


def some(facts: dict, n: int, g: torch.Generator) -> dict[tuple, str]:
    "n facts of n people, each with a new object."
    people, made = list(dict.fromkeys(s for s, _ in facts)), {}
    for p in torch.randperm(len(people), generator=g)[:n].tolist():
        r = list(OBJECTS)[torch.randint(3, (), generator=g)]
        others = [o for o in OBJECTS[r] if o != facts[people[p], r]]
        made[people[p], r] = others[torch.randint(9, (), generator=g)]
    return made


@torch.no_grad()
def hidden(model: Recall, block: int, x: Tensor) -> Tensor:
    "The keys of one feed-forward, at every place (B, T, F)."
    kept = []
    hook = model.blocks[block].feed_forward.inner.down.register_forward_pre_hook(
        lambda _, given: kept.append(given[0]))
    model.stream(x)
    hook.remove()
    return kept[0]


@torch.no_grad()
def at_names(model: Recall, block: int, edits: dict) -> tuple[Tensor, Tensor]:
    """For each edit, the key and the stream after the block at the last name, means over the
    phrasings asked: (n, F), (n, C)."""
    x, _, at = encode(ways(edits, range(ASKED)))
    rows, kept = torch.arange(len(x)), []
    hook = model.blocks[block].register_forward_hook(lambda _, given, out: kept.append(out[0]))
    keys = hidden(model, block, x)[rows, at]
    hook.remove()
    return tuple(t.double().unflatten(0, (-1, ASKED)).mean(1) for t in (keys, kept[0][rows, at]))


def second_moment(model: Recall, block: int, facts: dict) -> Tensor:
    "Mean of k kᵀ over all words of all questions, and a hundredth of its mean diagonal."
    x, *_ = encode(ways(facts))
    keys = hidden(model, block, x)[x > 0].double()
    moment = keys.T @ keys / len(keys)
    return moment + 0.01 * moment.diagonal().mean() * torch.eye(len(moment), dtype=moment.dtype)


def pushes(model: Recall, block: int, edits: dict, steps: int = 80) -> Tensor:
    """For each edit, what must be added at the last name for the new answer, with the person's
    other answers kept: (n, C)."""
    owner = {s: n for n, (s, _) in enumerate(edits)}
    turned, kept = (ways(edits, range(ASKED)),
                    [(s, r, i) for s, asked in edits for r in OBJECTS if r != asked
                     for i in range(ASKED)])
    (x, last, at), y = encode(turned + kept), answers(turned, edits)
    of, push = (torch.tensor([owner[s] for s, _, _ in turned + kept]),
                torch.zeros(len(edits), WIDTH, requires_grad=True))
    with torch.no_grad(): before = model(x, last)[len(y):].log_softmax(-1)
    optimiser = torch.optim.Adam([push], lr=0.2)
    for _ in range(steps):
        said = model(x, last, block=block, at=at, push=push[of]).log_softmax(-1)
        loss = (F.nll_loss(said[:len(y)], y) + F.kl_div(said[len(y):], before, log_target=True,
                reduction="batchmean") + 0.03 * push.square().mean())
        optimiser.zero_grad(); (len(edits) * loss).backward(); optimiser.step()
    return push.detach().double()


def rewritten(model: Recall, block: int, weight: Tensor) -> Recall:
    model = copy.deepcopy(model)
    model.blocks[block].feed_forward.inner.down.weight.copy_(weight)
    return model


def memory(model: Recall, block: int) -> Tensor:
    return model.blocks[block].feed_forward.inner.down.weight.double()


def one(model: Recall, facts: dict, edits: dict, moment: Tensor | None, block: int = 1) -> Recall:
    "One edit by the closed form; without a second moment, all directions count alike."
    key, weight = at_names(model, block, edits)[0][0], memory(model, block)
    if moment is None: moment = torch.eye(len(key), dtype=key.dtype)
    return rewritten(model, block,
                     rome_edit(weight, key, weight @ key + pushes(model, block, edits)[0], moment))


def at_once(model: Recall, facts: dict, edits: dict, moments: dict[int, Tensor],
            strength: float = STRENGTH) -> Recall:
    "Many edits in one step for each block, from the first to the last, whose stream is to change."
    last = max(moments)
    goal = at_names(model, last, edits)[1] + pushes(model, last, edits)
    for left, (block, moment) in zip(range(len(moments), 0, -1), sorted(moments.items())):
        keys, weight = at_names(model, block, edits)[0], memory(model, block)
        share = (goal - at_names(model, last, edits)[1]) / left
        model = rewritten(model, block,
                          memit_edit(weight, keys, keys @ weight.T + share, moment, strength))
    return model


def tuned(model: Recall, edits: dict, only: int | None = None, keep: bool = False,
          steps: int = 60) -> Recall:
    """Gradient steps on the edited fact until it is sure; on all weights, or on one matrix; with
    the person's other answers kept, or not."""
    old, model = model, copy.deepcopy(model).requires_grad_(True)
    turned, kept = (ways(edits, range(ASKED)),
                    [(s, r, i) for s, asked in edits for r in OBJECTS if r != asked
                     for i in range(ASKED)])
    (x, last, _), y, other = encode(turned), answers(turned, edits), encode(kept)[:2]
    weights = (model.parameters() if only is None
               else [model.blocks[only].feed_forward.inner.down.weight])
    optimiser = torch.optim.Adam(weights, lr=1e-3 if only is None else 3e-3)
    for _ in range(steps):
        loss = F.cross_entropy(model(x, last), y)
        if loss.item() < 0.05: break
        if keep:
            loss = (loss + F.kl_div(model(*other).log_softmax(-1), old(*other).log_softmax(-1),
                                    log_target=True, reduction="batchmean"))
        optimiser.zero_grad(); loss.backward(); optimiser.step()
    return model.requires_grad_(False)


def credit(model: Recall, fact: tuple, facts: dict) -> Tensor:
    """Activation × what its value pushes towards the answer, for each neuron (blocks, F), summed
    over words and phrasings asked."""
    asked, kept = ways([fact], range(ASKED)), []
    hooks = [b.feed_forward.inner.down.register_forward_pre_hook(
        lambda _, given: kept.append(given[0].requires_grad_())) for b in model.blocks]
    sure = -F.cross_entropy(model(*encode(asked)[:2]), answers(asked, facts), reduction="sum")
    for hook in hooks: hook.remove()
    return torch.stack([(a * g).sum((0, 1))
                        for a, g in zip(kept, torch.autograd.grad(sure, kept))]).detach()


@torch.no_grad()
def without(model: Recall, facts: dict, fact: tuple, neurons: Tensor) -> dict[str, float]:
    """Probability of the right answer when some neurons (numbered through all blocks) are
    silent: this fact, the same person's others, other people's."""
    model = copy.deepcopy(model)
    for n in neurons.tolist():
        model.blocks[n // (4 * WIDTH)].feed_forward.inner.down.weight[:, n % (4 * WIDTH)] = 0
    asked = ways(facts)
    sure = model(*encode(asked)[:2]).softmax(-1)[torch.arange(len(asked)), answers(asked, facts)]
    own, person = (torch.tensor(t) for t in zip(*((q[:2] == fact, q[0] == fact[0]) for q in asked)))
    return {name: float(sure[rows].mean())
            for name, rows in (("fact", own), ("same", person & ~own), ("others", ~person))}


@torch.no_grad()
def agreement(model: Recall, facts: dict) -> list[dict[str, float]]:
    """For each block, the share of neurons whose value says the answer that follows where its
    key answers strongest; and for answers drawn at random."""
    asked, found = ways(facts), []
    x, last, at = encode(asked)
    for block in range(BLOCKS):
        # (questions, F)
        strength = hidden(model, block, x)[torch.arange(len(x)), last]
        values = model.blocks[block].feed_forward.inner.down.weight.T                 # (F, C)
        says, follows = ((values @ model.read.weight.T).argmax(-1),
                         answers(asked, facts)[strength.argmax(0)])
        drawn = answers(asked,
                        facts)[torch.randint(len(asked), (200, len(says)),
                                             generator=torch.Generator().manual_seed(block))]
        # (people, F), at the name
        each = hidden(model, block, x)[torch.arange(len(x)), at].unflatten(0,
                (-1, 3, 5)).mean((1, 2))
        found.append({"agree": float((says == follows).double().mean()),
                      "chance": float((says == drawn).double().mean()),
                      "people": float((each > each.amax(0) / 2).sum(0).double().median())})
    return found


def measured(seed: int) -> list[dict]:
    "All that one model gives: rows (what it is, numbers)."
    model, facts, known = taught(seed)
    g, rows = torch.Generator().manual_seed(seed + 100), [{"part": "known", **known}]
    rows += [{"part": "values", "block": b, **found}
             for b, found in enumerate(agreement(model, facts))]
    chosen, many = [list(some(facts, 1, g))[0] for _ in range(FACTS)], BLOCKS * 4 * WIDTH
    ranked = {fact: credit(model, fact, facts).flatten().argsort(descending=True)
              for fact in chosen}
    for k in (0, 1, 5, 20, 60, 150):
        for kind, neurons in {"credited": [ranked[f][:k] for f in chosen],
                              "random": [torch.randperm(many, generator=g)[:k]
                                         for _ in chosen]}.items():
            rows.append({"part": "neurons", "k": k, "kind": kind,
                         **mean([without(model, facts, f, n) for f, n in zip(chosen, neurons)])})
    moments, edits = ([second_moment(model, b, facts) for b in range(BLOCKS)],
                      [some(facts, 1, g) for _ in range(EDITS)])
    methods = {"closed form": lambda e: one(model, facts, e, moments[1]),
               "without second moment": lambda e: one(model, facts, e, None),
               "closed form, block 0": lambda e: one(model, facts, e, moments[0], 0),
               "closed form, block 2": lambda e: one(model, facts, e, moments[2], 2),
               "fine-tuning": lambda e: tuned(model, e),
               "fine-tuning, that matrix": lambda e: tuned(model, e, only=1),
               "fine-tuning, others kept": lambda e: tuned(model, e, keep=True)}
    rows += [{"part": "one", "method": name, **mean([judged(method(e), facts, e) for e in edits])}
             for name, method in methods.items()]
    for n in MANY:
        edits, turned = some(facts, n, g), model
        for fact, new in edits.items(): turned = one(turned, facts, {fact: new}, moments[1])
        ways_ = {"at once": at_once(model, facts, edits, {b: moments[b] for b in (0, 1)}),
                 "at once, one block": at_once(model, facts, edits, {1: moments[1]}),
                 "one after another": turned, "fine-tuning": tuned(model, edits)}
        rows += [{"part": "many", "edits": n, "method": name, **judged(m, facts, edits)}
                 for name, m in ways_.items()]
    free, facts, known = taught(seed, free=True)
    rows.append({"part": "known", "free": True, **known})
    for b in range(2):
        rows.append({"part": "free", "block": b,
                     **mean([judged(one(free, facts, e, second_moment(free, b, facts), b), facts, e)
                             for e in (some(facts, 1, g) for _ in range(EDITS))])})
    return rows


def mean(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(f[key] for f in found) / len(found) for key in found[0]}


def measure(seed: int) -> list[dict]:
    "The same rows, over the seeds."
    runs, rows = [measured(s) for s in ticked(range(seed, seed + SEEDS), "seed")], []
    for same in zip(*runs):
        case = {k: v for k, v in same[0].items() if k in ("part", "block", "k", "kind", "method",
                "edits", "free")}
        rows.append(case | over_seeds([{k: v for k, v in row.items() if k not in case}
                                       for row in same]))
    return rows
