"""Chapter 10: a training step of GPT-2's kind against Hugging Face's model of the same shape and
weights, in turn, by what attends.

Loss and optimiser are the same for all, this book's; so are weights and tokens at the start.
Dropout is off.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import rates, ticked
from tfmlib.attention import attention
from tfmlib.checkpoints import MODEL_CONFIGS, build, to_pretrained
from tfmlib.decoders import CausalLM, next_token_loss
from tfmlib.flash_attention import blockwise_attention
from tfmlib.workbench import AdamW, advance, parameter_groups, timed

VOCAB, WIDTH, LAYERS, HEADS, TOKENS, LENGTHS, REPEATS = 2048, 256, 4, 4, 2048, (128, 512, 2048), 7


def matrix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    "Chapter 4's attention, whose matrix of weights stands in memory."
    return attention(q, k, v, mask)


def tiles(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    "Chapter 17's; the mask is the causal one."
    return blockwise_attention(q, k, v, causal=True)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    "PyTorch's; the mask is the causal one."
    return F.scaled_dot_product_attention(q, k, v, is_causal=True), None


class Theirs(nn.Module):
    "Hugging Face's GPT-2 with the weights of one of ours: tokens to scores."
    def __init__(self, ours: CausalLM):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # not needed by the other parts
        s = ours.config
        config = GPT2Config(vocab_size=s.vocab_size, n_positions=s.max_len, n_embd=s.d_model,
                            n_layer=s.n_layers, n_head=s.n_heads,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
                            eos_token_id=0, attn_implementation="sdpa")
        self.model = GPT2LMHeadModel(config)
        self.model.load_state_dict(to_pretrained(ours, "gpt2"))

    def forward(self, ids: Tensor) -> Tensor: return self.model(ids, use_cache=False).logits


def models(length: int, seed: int) -> dict[str, nn.Module]:
    "The same weights four times."
    shape = MODEL_CONFIGS["GPT-2 small"].sized(VOCAB, WIDTH, LAYERS, HEADS, length)
    ours = {name: build(shape, part, seed) for name, part in (("fused", fused), ("tiles", tiles),
            ("matrix", matrix))}
    return ours | {"Hugging Face": Theirs(ours["fused"])}


def steps(length: int, seed: int) -> dict:
    "A step of training for each, always on the same tokens."
    ids = torch.randint(VOCAB, (TOKENS // length, length + 1),
                        generator=torch.Generator().manual_seed(seed))
    def step(model):
        optimiser = AdamW(parameter_groups(model), 1e-4, clip=1.0)
        return lambda: advance(model, next_token_loss, (ids,), optimiser)
    return {name: step(model) for name, model in models(length, seed).items()}


def measure(seed: int) -> list[dict]:
    "Tokens a second of a whole step, on one thread."
    made = []
    for length in ticked(LENGTHS, "length"):
        taken = timed(steps(length, seed), REPEATS)
        made.append({"T": length, "B": TOKENS // length, "C": WIDTH, "L": LAYERS, "H": HEADS}
                    | {name: rates(seconds, TOKENS) for name, seconds in taken.items()})
        print(length, {name: round(row["median"]) for name, row in made[-1].items()
                       if isinstance(row, dict)}, flush=True)
    return made
