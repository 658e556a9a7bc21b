"""Chapter 22: which heads of SmolLM2-135M copy what followed? Random tokens, twice; each head's
weight on the token after the previous occurrence of the current one; and the loss on both copies
without the heads of the highest scores, or without as many others.

It needs the model's file: python -m tfmlib fetch smollm2.
"""
from collections.abc import Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from bench import ticked
from tfmlib.decoders import CausalLM, cross_entropy, llama
from tfmlib.heads import attention_weights
from tfmlib.inside import ablated, induction_scores
from tfmlib.positions import PositionalAttention, RotaryEmbedding
from tfmlib.workbench import fetch_model, read_gguf, seeded, spread

# batches of rows; each row is 50 random tokens, twice
BATCHES, ROWS, PERIOD = 3, 4, 50
# heads removed; sets of others in each batch; their score is below OTHER
REMOVED, DRAWS, OTHER = (0, 1, 2, 4, 8), 3, 0.1
# the first ids are marks of chats and files
SPECIAL, VOCABULARY, BLOCKS, HEADS = 17, 49_152, 30, 9
NAMES = {"token_embd": "embedding", "blk": "stack.blocks", "output_norm": "stack.norm",
         "attn_norm": "attention.norm", "attn_q": "attention.inner.q_proj",
         "attn_k": "attention.inner.k_proj", "attn_v": "attention.inner.v_proj",
         "attn_output": "attention.inner.o_proj", "ffn_norm": "feed_forward.norm",
         "ffn_gate": "feed_forward.inner.gate", "ffn_up": "feed_forward.inner.up",
         "ffn_down": "feed_forward.inner.down"}


def smollm() -> CausalLM:
    "The published weights in chapter 10's class."
    _, tensors = read_gguf(fetch_model("smollm2"))
    with torch.device("meta"): model = llama(VOCABULARY, 576, BLOCKS, HEADS, 2048, 3, 1536)
    model.load_state_dict({".".join(NAMES.get(part, part) for part in name.split(".")): x.read()
                           for name, x in tensors.items()}, assign=True)
    rotary = PositionalAttention(RotaryEmbedding(64, 100_000., interleaved=True))
    for block in model.stack.blocks: block.attention.inner.attention_fn = rotary
    return model.eval()


def twice(seed: int) -> Tensor:  # (ROWS, 2 · PERIOD)
    "Rows of random tokens, each followed by itself."
    return torch.randint(SPECIAL, VOCABULARY, (ROWS, PERIOD), generator=seeded(seed)).repeat(1, 2)


def apart(model: CausalLM, ids: Tensor, heads: list[tuple[int, int]]) -> dict[str, float]:
    """The mean loss on the first and on the second copy, with these heads (block, head) at their
    mean output."""
    with ExitStack() as opened:
        for layer in {layer for layer, _ in heads}:
            opened.enter_context(ablated(model.stack.blocks[layer].attention.inner,
                                         [h for each, h in heads if each == layer]))
        lost = cross_entropy(model(ids[:, :-1]), ids[:, 1:])
    return {"first copy": float(lost[:, :PERIOD - 1].mean()),
            "second copy": float(lost[:, PERIOD:].mean())}


@torch.no_grad()
def measure(seed: int) -> Iterator[dict]:
    "Scores of all heads; then the losses without some."
    model, batches = smollm(), [twice(1000 * seed + batch) for batch in range(BATCHES)]
    with attention_weights():
        scores = torch.stack([induction_scores(model.hidden_states(ids[:, :-1])[1], PERIOD)
                              for ids in ticked(batches, "batch")])
    for layer in range(BLOCKS):
        yield {"part": "scores", "block": layer,
               **{f"head {h}": spread(scores[:, layer, h].tolist()) for h in range(HEADS)}}
    mean = scores.mean(0)
    order = [divmod(int(i), HEADS) for i in mean.flatten().argsort(descending=True)]
    blocks = {layer for layer, _ in order[:max(REMOVED)]}
    others = [(layer, h) for layer, h in order if layer in blocks and mean[layer, h] < OTHER]
    for count in ticked(REMOVED, "count"):
        kinds = {"highest score": [[order[:count]]] * BATCHES}
        if count:
            kinds["others"] = [
                [[others[i] for i in torch.randperm(len(others),
                                                    generator=seeded(batch, draw))[:count].tolist()]
                                      for draw in range(DRAWS)] for batch in range(BATCHES)]
        for kind, sets in kinds.items():
            found = [apart(model, ids, heads) for ids, drawn in zip(batches, sets)
                     for heads in drawn]
            yield {"part": "removed", "kind": kind, "heads": count,
                   **{key: spread([f[key] for f in found]) for key in found[0]}}
