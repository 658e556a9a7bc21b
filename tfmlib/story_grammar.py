"""Short stories whose truth is known: who has the thing, and where; the best possible reader of what a gap hides; three tasks."""

# %% imports-story
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from .alignment import BOS, EOS, PAD
from .block import check_sizes
from .proof import need
from .tag_grammar import MASK
from .training import seeded
from .transformer import check_token_ids

# %% story-words
PEOPLE = {"ben": "he", "tom": "he", "mia": "she", "eva": "she"}
THINGS, LOOKS = "lamp ring drum coin".split(), "old new red big".split()
PLACES = {  # what people do there
    "river": "swims fishes rests".split(),
    "market": "trades sings eats".split(),
    "barn": "works sleeps eats".split(),
    "hill": "climbs rests sings".split(),
}
WEATHER = "the sun shines .", "the wind blows .", "the rain falls ."
STOPS = 0., 0., 0., .4, .5, 1.  # chance that a story ends after so many events

# %% story-world
@dataclass(frozen=True)
class World:
    "What is true at one moment of a story."
    holder: str
    thing: str
    place: str

    def openings(self) -> list[tuple[float, str, "World"]]:
        "The first sentences that this world may have."
        a, p = self, .5 / len(LOOKS)
        return [(p, f"{a.holder} has the {look} {a.thing} at the {a.place} .", a)
                for look in LOOKS] + [
                (p, f"at the {a.place} {a.holder} has the {look} {a.thing} .", a)
                for look in LOOKS]

    def summary(self) -> str:
        "What the condensed story says."
        return f"{self.holder} has the {self.thing} at the {self.place} ."

# %% story-events
def holder_events(world: World) -> list[tuple[float, str, World]]:
    "The holder, by name or by pronoun, gives, walks, or does what is done there."
    who, thing, place = world.holder, world.thing, world.place
    found = []
    for subject in (who, PEOPLE[who]):
        found += [(.45, f"{subject} gives the {thing} to {other} .",
                   World(other, thing, place)) for other in PEOPLE if other != who]
        found += [(.35, f"{subject} walks to the {there} .", World(who, thing, there))
                  for there in PLACES if there != place]
        found += [(.2, f"{subject} {does} .", world) for does in PLACES[place]]
    return [(p / 6, text, after) for p, text, after in found]


def other_events(world: World) -> list[tuple[float, str, World]]:
    "Somebody else takes the thing, or does what is done there."
    who, thing, place, found = world.holder, world.thing, world.place, []
    for other in PEOPLE:
        if other == who: continue
        took = World(other, thing, place)
        found += [(.6, f"{other} takes the {thing} from {who} .", took)]
        found += [(.4 / 3, f"{other} {does} .", world) for does in PLACES[place]]
    return [(p / 3, text, after) for p, text, after in found]


def events(world: World) -> list[tuple[float, str, World]]:
    "Every sentence that may come next: its probability, its words, the world after it."
    weather = [(1 / len(WEATHER), text, world) for text in WEATHER]
    parts = (.6, holder_events(world)), (.3, other_events(world)), (.1, weather)
    return [(share * p, text, after) for share, rows in parts for p, text, after in rows]

# %% story-vocabulary
N_SENTINELS = 12
QUESTIONS = "question first last who where what ?".split()  # words of instructions
STORY_WORDS = ["[PAD]", "[BOS]", "[EOS]", "[MASK]", ".", "the", "has", "at", "to", "from"]
STORY_WORDS += ["gives", "takes", "walks", "he", "she", *PEOPLE, *THINGS, *LOOKS, *PLACES]
STORY_WORDS += sorted({does for there in PLACES.values() for does in there})
STORY_WORDS += [word for text in WEATHER for word in text.split()[1:3]]
N_WORDS = len(STORY_WORDS)      # words of stories, after four special tokens
STORY_WORDS += [*QUESTIONS, *(f"<{i}>" for i in range(N_SENTINELS))]
SENTINELS = [*range(len(STORY_WORDS) - N_SENTINELS, len(STORY_WORDS))]
STOP = STORY_WORDS.index(".")


def story_ids(text: str) -> list[int]:
    "The ids of a text."
    words = text.split()
    unknown = [word for word in words if word not in STORY_WORDS]
    need(not unknown, "text", repr(text), "words of STORY_WORDS, with spaces between")
    return [STORY_WORDS.index(word) for word in words]


def story_text(ids: Tensor | list[int]) -> str:
    "The words with these ids; padding is left out."
    row = ids.tolist() if isinstance(ids, Tensor) else ids
    return " ".join(STORY_WORDS[i] for i in row if i != PAD)

# %% story-automaton
class StoryGrammar:
    """A writer of stories: a finite automaton, whose state is known from the words so far.

    A state is the number of events, the world, and the words of the sentence so far.
    """
    def __init__(self):
        self.number, mass = {(): 0, "end": 1}, defaultdict(float)
        worlds = [World(who, thing, there) for who in PEOPLE for thing in THINGS
                  for there in PLACES]
        for world in worlds:
            for p, text, after in world.openings():
                self.add((), p / len(worlds), text, (0, after), mass)
        for done in range(len(STOPS)):
            for world in worlds:
                start, stop = (done, world), STOPS[done]
                if stop: self.add(start, stop, "[EOS]", "end", mass)
                for p, text, after in events(world) * (stop < 1):
                    self.add(start, (1 - stop) * p, text, (done + 1, after), mass)
        S, V = len(self.number), len(STORY_WORDS)
        self.p = torch.zeros(S, V, dtype=torch.float64)         # of each word (S, V)
        self.after = torch.ones(S, V, dtype=torch.int64)        # the state after it
        self.p[1, PAD] = 1.                                     # nothing after the end
        for (a, word, b), total in mass.items():
            self.p[a, word], self.after[a, word] = total, b
        self.p /= self.p.sum(1, keepdim=True).clamp(min=1e-300)
        self.worlds = {i: s[1] for s, i in self.number.items() if len(s) == 2}

    def add(self, start, p: float, text: str, after, mass: dict) -> None:
        "Add a sentence that leads from one state to another."
        state, ids = start, story_ids(text)
        for n, word in enumerate(ids, 1):
            to = after if n == len(ids) else (start, *ids[:n], "...")
            a, b = (self.number.setdefault(s, len(self.number)) for s in (state, to))
            mass[a, word, b] += p
            state = to

    def sample(self, n: int, seed: int) -> Tensor:  # (n, longest), padded after EOS
        "Random stories."
        check_sizes(n=n)
        g, state, words = seeded(seed), torch.zeros(n, dtype=torch.int64), []
        while not words or bool((words[-1] > PAD).any()):
            words.append(torch.multinomial(self.p[state], 1, generator=g)[:, 0])
            state = self.after[state, words[-1]]
        return torch.stack(words[:-1], 1)

    def states(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T + 1)
        "The state before each word, and after the last."
        check_token_ids("ids", ids, len(STORY_WORDS))
        state = [torch.zeros_like(ids[:, 0])]
        for word in ids.unbind(1): state.append(self.after[state[-1], word])
        return torch.stack(state, 1)

    def next_words(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        "The true probability of each word at each position, given those before it."
        return self.p[self.states(ids)[:, :-1]]

    def final_world(self, ids: Tensor) -> World:  # a whole story (T,)
        "What is true at the end of a story."
        row = ids[:int((ids != EOS).cumprod(0).sum())][None]
        state = int(self.states(row)[0, -1])
        need(state in self.worlds, "ids", repr(story_text(ids)), "a story of whole sentences")
        return self.worlds[state]

# %% story-posterior
def expand(grammar: StoryGrammar, states: Tensor, word: int) -> tuple[Tensor, ...]:
    "The steps from some states: index of the state, word, state after it, probability."
    if word == MASK: start, words = grammar.p[states].nonzero(as_tuple=True)
    else:
        start = grammar.p[states, word].nonzero()[:, 0]
        words = torch.full_like(start, word)
    return start, words, grammar.after[states[start], words], grammar.p[states[start], words]


def fill_probabilities(
    grammar: StoryGrammar,
    seen: Tensor,              # a story (T,) in which MASK hides words
) -> tuple[Tensor, float]:     # (T, V), and the log-probability of what is seen
    "The exact probability of each word at each position, given all that is seen."
    check_token_ids("seen", seen[None], len(STORY_WORDS))
    states, before, steps = torch.zeros(1, dtype=torch.int64), torch.ones(1).double(), []
    for word in seen.tolist():
        start, words, after, p = expand(grammar, states, word)
        states, to = after.unique(return_inverse=True)                  # paths that meet
        steps.append((start, words, to, before[start] * p, p, len(before)))
        before = torch.zeros(len(states)).double().index_add(0, to, steps[-1][3])
    total = float(before.sum())
    need(total > 0, "seen", repr(story_text(seen)), "a text that the grammar can write")
    found, after = torch.zeros(len(seen), len(STORY_WORDS)).double(), torch.ones(len(states)).double()
    for t in range(len(seen) - 1, -1, -1):
        start, words, to, forward, p, n = steps[t]
        found[t].index_add_(0, words, forward * after[to] / total)
        after = torch.zeros(n).double().index_add(0, start, p * after[to])
    return found, float(torch.tensor(total).log())

# %% story-tasks
@dataclass(frozen=True)
class Question:
    "One case of a task: what is given on the left and on the right, and the answer."
    left: list[int]
    right: list[int] | None  # None: nothing is said about what follows
    answer: list[int]


def split_story(story: Tensor) -> list[list[int]]:  # (T,)
    "The sentences of a story; the last one ends with EOS."
    rows, row = [], []
    for i in story.tolist():
        if i == PAD: break
        row.append(i)
        if i == STOP: rows, row = [*rows, row], []
    return rows[:-1] + [rows[-1] + row]


def write_on(story: Tensor, g: torch.Generator, n: int = 8) -> Question:
    "The first two sentences are given; the next words are asked for."
    first, second, *rest = split_story(story)
    return Question(first + second, None, sum(rest, [])[:n])


def fill_in(story: Tensor, g: torch.Generator, n: int = 4) -> Question:
    "A few words after the first sentence are hidden; both sides are given."
    ids = sum(split_story(story), [])
    first = ids.index(STOP) + 1
    a = int(torch.randint(first, len(ids) - n, (1,), generator=g))  # EOS is never hidden
    return Question(ids[:a], ids[a + n:], ids[a:a + n])


def condense(story: Tensor, grammar: StoryGrammar) -> Question:
    "The whole story is given; who has the thing, and where, is asked for."
    ids = sum(split_story(story), [])
    return Question(ids, [], story_ids(grammar.final_world(story).summary()))
