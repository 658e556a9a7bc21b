"""Chapter 22: the models that know 144 facts, looked into: what patching a state restores, what
probes read off beside their controls, and what is missed when a property is removed. Five models
whose first blocks look one word back, five that look everywhere."""
import torch
from torch import Tensor

from bench import over_seeds, ticked
from bench.block_facts import FAMILY, GIVEN, OBJECTS, Recall, answers, encode, right, taught, ways
from tfmlib.inside import captured, class_subspace, fit_probe, replaced

SEEDS, RIDGES, FOLDS, DRAWS = 5, (0.01, 0.1, 1.0), 6, 3


def partner(people: list[str], facts: dict, who: str, of: str) -> str:
    "Another person with neither name in common and a different answer."
    i = people.index(who)
    return next(p for p in people[i + 1:] + people[:i] if not set(p.split()) & set(who.split())
                and facts[p, of] != facts[who, of])


@torch.no_grad()
def restored(model: Recall, facts: dict, block: int) -> float:
    """How often a corrupted run gives the clean answer when the state at the family name after
    one block is replaced; all phrasings."""
    people = list(dict.fromkeys(who for who, _ in facts))
    clean = ways(facts)
    corrupted = [(partner(people, facts, who, of), of, i) for who, of, i in clean]
    (x, last, at), rows = encode(clean), torch.arange(len(clean))
    with captured(model.blocks[block]) as kept: model(x, last)
    def copy_in(state):
        state = state.clone()
        state[rows, at] = kept[0][rows, at]
        return state
    with replaced(model.blocks[block], copy_in): found = model(*encode(corrupted)[:2]).argmax(-1)
    return float((found == answers(clean, facts)).double().mean())


@torch.no_grad()
def name_states(model: Recall, facts: dict) -> Tensor:
    "States at the family name after the second block, for every question: (720, C)."
    x, last, at = encode(ways(facts))
    with captured(model.blocks[1]) as states: model(x, last)
    return states[0][torch.arange(len(x)), at].double()


def probed(h: Tensor, labels: Tensor, facts: dict, unseen: bool) -> float:
    "Accuracy of a probe for one label a person, the best of three penalties."
    asked, people = ways(facts), list(dict.fromkeys(who for who, _ in facts))
    person = torch.tensor([people.index(who) for who, *_ in asked])
    tests = ([person % FOLDS == fold for fold in range(FOLDS)] if unseen
             else [torch.tensor([i > 2 for *_, i in asked])])
    def at(ridge):
        return (sum(float((fit_probe(h[~t], labels[person[~t]], 10, ridge)(h[t])
                           == labels[person[t]]).double().mean()) for t in tests) / len(tests))
    return max(map(at, RIDGES))


@torch.no_grad()
def without(model: Recall, facts: dict, h: Tensor, labels: Tensor, of: str) -> float:
    """Accuracy on one relation when the directions of some labels are removed from the state at
    the family name."""
    people = list(dict.fromkeys(who for who, _ in facts))
    person = torch.tensor([people.index(who) for who, *_ in ways(facts)])
    basis, mean = class_subspace(h, labels[person]).float(), h.mean(0).float()
    asked = [q for q in ways(facts) if q[1] == of]
    at, rows = encode(asked)[2], torch.arange(len(asked))
    def remove(state):
        state = state.clone()
        state[rows, at] -= (state[rows, at] - mean) @ basis @ basis.T
        return state
    with replaced(model.blocks[1], remove): return right(model, asked, facts)


def measured(seed: int) -> list[dict]:
    "What one seed gives."
    rows = []
    for kind in ("restricted", "free"):
        model, facts, _ = taught(seed, free=kind == "free")
        rows += [{"part": "trace", "kind": kind, "block": b, "restored": restored(model, facts, b)}
                 for b in range(3)]
    model, facts, _ = taught(seed)
    torch.manual_seed(seed + 1000)
    untrained = Recall().requires_grad_(False)
    people = list(dict.fromkeys(who for who, _ in facts))
    known = {of: torch.tensor([OBJECTS[of].index(facts[who, of]) for who in people])
             for of in OBJECTS}
    drawn = [torch.randint(10, (len(people),),
                           generator=torch.Generator().manual_seed(100 * seed + s))
             for s in range(DRAWS)]
    for name, each in (("trained", model), ("untrained", untrained)):
        h = name_states(each, facts)
        for what, group in (("facts", known.values()), ("random labels", drawn)):
            for unseen in (False, True):
                found = [probed(h, labels, facts, unseen) for labels in group]
                rows.append({"part": "probe", "model": name, "labels": what, "people": "unseen"
                             if unseen else "seen", "right": sum(found) / len(found)})
    h = name_states(model, facts)
    removed = {"first names": [GIVEN.index(who.split()[0]) for who in people],
               "family names": [FAMILY.index(who.split()[1]) for who in people]}
    removed = ({name: [torch.tensor(labels)] for name, labels in removed.items()}
               | {of: [labels] for of, labels in known.items()} | {"random labels": drawn})
    for name, group in removed.items():
        for of in OBJECTS:
            found = [without(model, facts, h, labels, of) for labels in group]
            rows.append({"part": "remove", "removed": name, "asked": of,
                         "right": sum(found) / len(found)})
    return rows


def measure(seed: int) -> list[dict]:
    "The same rows, over the seeds."
    rows = []
    for same in zip(*[measured(s) for s in ticked(range(seed, seed + SEEDS), "seed")]):
        case = {k: v for k, v in same[0].items() if not isinstance(v, float)}
        rows.append(case | over_seeds([{k: v for k, v in row.items() if k not in case}
                                       for row in same]))
    return rows
