"""Chapter 22: SmolLM2-135M's residual stream after block 14, rewritten as k directions of a
dictionary: a top-k sparse autoencoder, PCA and a random dictionary of the same k; what is left
unexplained, and the model's loss when the reconstruction replaces the stream. States far longer
than the median are left out. Ten features of each dictionary, at ranks fixed before looking, with
the tokens that they answer to most.

It needs the model's file: python -m tfmlib fetch smollm2. Some nine minutes of one core; a run that
was cut off goes on where it ended.
"""
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from inspect import getsource
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor

from bench import over_seeds, ticked
from tfmlib.attention import causal_mask
from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.decoders import CausalLM, cross_entropy
from tfmlib.inside import (
    SparseAutoencoder,
    fit_features,
    fraction_unexplained,
    pursued,
)
from tfmlib.workbench import ASSETS, fetch_model, seeded, spread

DEVICE = "cpu"
SEED = 0
# rows of 256 tokens from each text; the last of them are held out
TEXTS, ROWS, HELD_OUT, T = ("novels", "v2"), 64, 3, 256
# left out: states more than FAR times as long as the median
BLOCK, FAR, WIDTH, KEPT, SEEDS = 14, 10, 4 * 576, (32, 8), 2
RATES, SHORT, STEPS, BATCH = (1e-3, 2e-3, 4e-3), 200, 1200, 256
# features by how often they are active; contexts of each; for the count
RANKS, SHOWN, TOP = range(0, 1000, 100), 5, 20


def remembered(name: str, make: Callable):
    "What `make` gives, kept in a temporary folder under a digest of the code; made once."
    code = sha256("".join([Path(__file__).read_text(encoding="utf-8"),
                           *map(getsource,
                                (SparseAutoencoder, fit_features,
                                 pursued))]).encode()).hexdigest()[:12]
    path = Path(gettempdir()) / f"tfm_features_{code}" / f"{name.replace(' ', '_')}.pt"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        torch.save(make(), part := path.with_suffix(".part"))
        part.rename(path)
    return torch.load(path)


def rows_of_text(tokenizer) -> tuple[Tensor, Tensor]:
    "Tokens to train on and held-out ones, of both texts (N, T)."
    found = []
    for name in TEXTS:
        text = (ASSETS / f"text/{name}.txt").read_text(encoding="utf-8")[:8 * ROWS * T]
        found.append(torch.tensor(tokenizer.encode(text)[:ROWS * T]).view(ROWS, T))
    return (torch.cat([rows[:-HELD_OUT] for rows in found]),
            torch.cat([rows[-HELD_OUT:] for rows in found]))


def blocks(model: CausalLM, x: Tensor, first: int, last: int) -> Tensor:
    "The stream (B, T, C) after these blocks."
    mask = causal_mask(x.shape[1], x.shape[1])
    for block in model.stack.blocks[first:last]: x, _ = block(x, mask=mask)
    return x


def read(model: CausalLM, ids: Tensor) -> Tensor:
    "The stream after the block (N, T, C)."
    return torch.cat([blocks(model, model.embed(rows), 0, BLOCK + 1)
                      for rows in ticked(ids.split(6), "batch")])


def loss(model: CausalLM, x: Tensor, ids: Tensor) -> float:
    "The mean loss of what follows each token but the first, from the stream after the block."
    out = [cross_entropy(
        model.logits(
            model.stack.norm(blocks(model, part, BLOCK + 1, len(model.stack.blocks))[:, 1:-1])),
        rows[:, 2:])
           for part, rows in zip(x.split(6), ids.split(6))]
    return float(torch.cat(out).mean())


class Scaled:
    """Vectors without their mean, in units of their root mean square. Those far longer than the
    median are kept out: a few of them would hold most of the variance."""
    def __init__(self, x: Tensor):
        self.limit = FAR * float(x.norm(dim=-1).median())
        inside = x[self.kept(x)]
        self.mean = inside.mean(0)
        self.size = float((inside - self.mean).square().mean().sqrt())
    def kept(self, x: Tensor) -> Tensor: return x.norm(dim=-1) <= self.limit
    def __call__(self, x: Tensor) -> Tensor: return (x[self.kept(x)] - self.mean) / self.size
    def back(self, x: Tensor, like: Tensor) -> Tensor:
        """A reconstruction put back in place of the vectors that were kept; the others pass
        unchanged."""
        kept = self.kept(like)
        return like.masked_scatter(kept[..., None], self.size * x + self.mean)


def refitted(x: Tensor, directions: Tensor, k: int) -> Tensor:
    """The reconstruction from the directions that matching pursuit chooses, with the best
    amounts of them."""
    # (N, k, C)
    chosen = directions[pursued(x, directions, k).abs().topk(k, -1).indices]
    gram = chosen @ chosen.mT + 1e-4 * torch.eye(k)
    return (torch.linalg.solve(gram, chosen @ x[..., None]).mT @ chosen)[:, 0]


def principal(x: Tensor) -> Tensor:
    "The principal components of centred vectors, as rows, the largest first."
    return torch.linalg.eigh(x.T @ x).eigenvectors.flip(1).T


def largest(codes: Tensor, k: int) -> Tensor:
    "The k largest entries of each row; the rest are zero."
    kept = codes.abs().topk(k, -1).indices
    return torch.zeros_like(codes).scatter(-1, kept, codes.gather(-1, kept))


def tuned(name: str, fitted: Callable, x: Tensor) -> list[dict]:
    """The rates that were tried, short trainings first: a grid whose end is best goes on; then
    its best and the half of it at full length. Least unexplained wins, on the last tenth."""
    cut = len(x) // 10
    def at(rate: float, steps: int) -> float:
        return fraction_unexplained(x[-cut:], fitted(x[:-cut], steps, rate, 0)(x[-cut:]))
    def kept(rate: float, steps: int) -> float:
        return remembered(f"{name} rate {rate:g}" + f" {steps}" * (steps != SHORT),
                          lambda: at(rate, steps))
    found = {rate: kept(rate, SHORT) for rate in ticked(RATES, "rate")}
    while (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        beyond = best / 2 if best == min(found) else 2 * best
        found[beyond] = kept(beyond, SHORT)
    whole = {rate: kept(rate, STEPS) for rate in (best, best / 2)}
    chosen = min(whole, key=whole.__getitem__)
    return [{"steps": steps, "rate": rate, "chosen": steps == STEPS and rate == chosen,
             "unexplained": spread([unexplained])}
            for steps, tried in ((SHORT, found), (STEPS, whole))
            for rate, unexplained in tried.items()]


def context(ids: Tensor, row: int, position: int, tokenizer) -> str:
    "The token in brackets, after the six before it."
    before = tokenizer.decode(ids[row, max(0, position - 6):position].tolist())
    return f"{before}[{tokenizer.decode([int(ids[row, position])])}]".replace("\n", "⏎")


def described(codes: Tensor, ids: Tensor, kept: Tensor,
              tokenizer) -> tuple[list[dict], list[float]]:
    """Features at fixed ranks of how often they are active, with contexts; for all active ones,
    how often the tokens of the highest activations are the same."""
    often = (codes > 0).sum(0)
    tokens, order = ids[kept], often.argsort(descending=True, stable=True)
    places, same = kept.nonzero().tolist(), []
    for feature in order[often[order] >= TOP].tolist():
        top = codes[:, feature].topk(TOP).indices
        same.append(Counter(tokens[top].tolist()).most_common(1)[0][1] / TOP)
    found = []
    for rank in RANKS:
        feature = int(order[rank])
        contexts = [context(ids, *places[i], tokenizer)
                    for i in codes[:, feature].topk(SHOWN).indices.tolist()]
        found.append({"rank": rank, "active": spread([int(often[feature]) / len(codes)]),
                      "contexts": contexts})
    return found, same


def features(x: Tensor, ids: Tensor, kept: Tensor, tokenizer, autoencoder: SparseAutoencoder,
             components: Tensor, dictionary: Tensor) -> Iterator[dict]:
    """Features of the autoencoder, of the principal components with either sign, and of a random
    dictionary: 32 at most for each token."""
    signed = torch.cat([components, -components])
    makers = {"sparse autoencoder": autoencoder.encode,
              "PCA, largest k": lambda part: largest((part @ signed.T).relu(), 32),
              "random": lambda part: largest((part @ dictionary.T).relu(), 32)}
    for name, encode in makers.items():
        rows, same = remembered(f"features {name}",
                                lambda encode=encode: described(
                                    torch.cat([encode(part) for part in x.split(4096)]), ids,
                                    kept, tokenizer))
        yield {"part": "same token", "dictionary": name, "features": len(same),
               "proportion": spread(same)}
        for row in rows: yield {"part": "feature", "dictionary": name, **row}


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    "Reconstructions of the stream, and the features."
    published = load_gguf(fetch_model("smollm2"))
    model, tokenizer = published.model, published.tokenizer
    ids, held = rows_of_text(tokenizer)
    stream, stream_held = (remembered("states", lambda: read(model, ids)),
                           remembered("held-out states", lambda: read(model, held)))
    scale = Scaled(stream)
    x, test = scale(stream), scale(stream_held)
    whole, mean = remembered("losses",
                             lambda: [loss(model, x, held)
                                      for x in (stream_held,
                                                scale.back(torch.zeros_like(test), stream_held))])
    norms, out = stream.norm(dim=-1), ~scale.kept(stream)
    energy = norms[:, 1:].square()
    components = principal(x)
    share = (x @ components.T).square().mean(0)
    yield {"part": "model", "block": BLOCK, "tokens": x.shape[0], "held out": test.shape[0],
           "loss": spread([whole]), "loss with the mean": spread([mean]),
           "left out": int(out.sum()), "left out, not first": int(out[:, 1:].sum()),
           "held out, left out": int((~scale.kept(stream_held)).sum()),
           "norm of those left out": spread((norms[out] / norms.median()).tolist()),
           "squared norm of those not first": spread(
               [float((energy * out[:, 1:]).sum() / energy.sum())]),
           "first component": spread([float(share[0] / share.sum())]),
           "components of nine tenths": spread(
               [int((share.cumsum(0) / share.sum() < 0.9).sum()) + 1])}
    def judged(reconstruction: Tensor) -> dict[str, float]:
        lost = loss(model, scale.back(reconstruction, stream_held), held)
        return {"unexplained": fraction_unexplained(test, reconstruction), "loss": lost,
                "recovered": (mean - lost) / (mean - whole)}
    def sparse(k: int) -> Callable:
        def fitted(x: Tensor, steps: int, rate: float, number: int) -> SparseAutoencoder:
            torch.manual_seed(seed + number)
            with torch.enable_grad():
                return fit_features(SparseAutoencoder(576, WIDTH, k), x, x, steps, rate, BATCH,
                                    seed + number)
        return fitted
    tried = tuned("autoencoder", sparse(32), x)
    (rate,) = (each["rate"] for each in tried if each["chosen"])
    for each in tried: yield {"part": "rates", **each, "rate": f"{each['rate']:g}"}
    dictionary = torch.nn.functional.normalize(torch.randn(WIDTH, 576,
            generator=seeded(seed)), dim=-1)
    def trained(k: int, number: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        autoencoder = sparse(k)(x, STEPS, rate, number)
        codes = autoencoder.encode(test)
        chosen = refitted(test - autoencoder.bias, autoencoder.directions, k) + autoencoder.bias
        return judged(autoencoder(test)) | {
            "refitted unexplained": fraction_unexplained(test, chosen),
                                            "never active": float(((codes > 0).sum(0)
                                                    == 0).double().mean())}, autoencoder.state_dict()  # noqa: E501
    for k in ticked(KEPT, "k"):
        made = [remembered(f"autoencoder {k} {number}",
                           lambda k=k, number=number: trained(k, number))
                for number in range(SEEDS)]
        yield {"part": "stream", "k": k, "dictionary": "sparse autoencoder",
               **over_seeds([found for found, _ in made])}
        others = {"PCA, first k": lambda k=k: test @ components[:k].T @ components[:k],
                  "PCA, largest k": lambda k=k: largest(test @ components.T, k) @ components,
                  "random": lambda k=k: refitted(test, dictionary, k)}
        for name, reconstruct in others.items():
            yield {"part": "stream", "k": k, "dictionary": name,
                   **over_seeds(
                       [remembered(f"{name} {k}", lambda made=reconstruct: judged(made()))])}
        first_one = SparseAutoencoder(576, WIDTH, k)
        first_one.load_state_dict(made[0][1])
        if k == 32:
            yield from features(x, ids, ~out, tokenizer, first_one, components, dictionary)
