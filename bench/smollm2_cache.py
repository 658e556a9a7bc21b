"""Chapter 16: SmolLM2 (python -m tfmlib fetch smollm2) without and with a cache, on one thread,
in its processor time: a text of 40 tokens, and one more token after longer ones."""
import time
from collections.abc import Iterator

import torch

from tfmlib.checkpoints.gguf_models import load_gguf
from tfmlib.decoders import generate
from tfmlib.kv_cache import CachedCausalLM, generate_cached
from tfmlib.workbench import ASSETS, fetch_model, timed

REPEATS = 3
START, TOKENS, LENGTHS = "It is a truth universally acknowledged,", 40, (64, 256, 1024)


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    """The text, written by both loops in turn; then one more token after the beginning of the
    novels' file."""
    published = load_gguf(fetch_model("smollm2"))
    model, tokenizer = published.model.eval(), published.tokenizer
    cached, ids = CachedCausalLM(model), torch.tensor([tokenizer.encode(START)])
    written = {}
    def write(way, loop, reader): written[way] = loop(reader, ids, TOKENS)
    took = timed({"without": lambda: write("without", generate, model),
                  "with": lambda: write("with", generate_cached, cached)}, REPEATS,
                 time.process_time)
    yield {"case": "text", "prompt": ids.shape[1], "tokens": TOKENS,
           "same": torch.equal(*written.values()),
           **{f"{way} seconds": taken for way, taken in took.items()}}
    text = torch.tensor(
        [tokenizer.encode(
            (ASSETS / "text/novels.txt").read_text(
                encoding="utf-8")[:6 * LENGTHS[-1]])[:LENGTHS[-1] + 1]])
    for S in LENGTHS:
        cache = cached.new_cache()
        cached.hidden_states(text[:, :S], cache)
        def step(S=S, cache=cache):
            cached.next_logits(text[:, S:S + 1], cache)
            cache.drop(1)
        whole = text[:, :S + 1]
        took = timed(
            {"without": lambda whole=whole: model.logits(model.hidden_states(whole)[0][:, -1:]),
             "with": step}, REPEATS, time.process_time)
        layer = cache.layers[0]
        yield {"case": "step", "S": S, "tokens": 1, "bytes": len(cache.layers)
               * (layer.k[:, :, :S].nbytes + layer.v[:, :, :S].nbytes),
               **{f"{way} seconds": taken for way, taken in took.items()}}
