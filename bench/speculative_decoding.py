"""Chapter 16: speculative decoding of the small decoder of prose, with drafts of a smaller one,
which is trained here, and with n-gram drafts.

The draft has one narrow layer and learns the same prose with the same tokenizer; `python -m bench
speculative_decoding` writes it to tfmlib/assets/models. For each prompt: tokens per pass of the
target, the share of drafted tokens that were accepted, and the processor's time relative to
decoding without drafts, on one thread. Prompts are stretches of held-out prose.
"""
import itertools
import time
from collections.abc import Iterator

import torch

from bench.decoder_training import BATCH, DECAY, LENGTH, MODELS, PEAK, fused, tokens
from bench.decoder_training import nats as nats_of
from tfmlib.checkpoints import MODEL_CONFIGS, build, load_model, save_model
from tfmlib.decoders import CausalLM, SamplingConfig, chunk, next_token_loss
from tfmlib.kv_cache import CachedCausalLM, generate_cached
from tfmlib.kv_cache.speculative import ModelDraft, NGramDraft, generate_speculative
from tfmlib.tokens import book_tokenizer
from tfmlib.workbench import AdamW, WarmupCosine, epochs, parameter_groups, spread, train

STEPS, PROMPTS, BEGUN, NEW, DRAFTED = 600, 24, 32, 80, (1, 2, 4, 8)
COMMAND = "python -m bench speculative_decoding"
CONFIG = MODEL_CONFIGS["toy Llama"].sized(2048, 48, 1, 2, 128)
WAYS = {"greedy": None, "sampled": SamplingConfig()}


def ship_draft(seed: int) -> CausalLM:
    "Train the draft, and write it."
    model = build(CONFIG, attention_fn=fused, seed=seed)
    optimiser = AdamW(parameter_groups(model, DECAY), WarmupCosine(PEAK, STEPS // 20, STEPS),
                      betas=(0.9, 0.95), clip=1.0)
    train(model, next_token_loss, epochs(chunk(tokens("prose")[0], LENGTH + 1), size=BATCH,
                                         seed=seed), STEPS, optimiser, seed=seed)
    save_model(MODELS / "prose_draft.safetensors", model, command=COMMAND, text="prose",
               seed=str(seed), steps=str(STEPS), tokenizer=book_tokenizer().source)
    return load_model("prose_draft")


def took(call, *given) -> tuple[float, object]:
    "The processor's seconds for a call, and what it returned."
    start = time.process_time()
    found = call(*given)
    return time.process_time() - start, found


def measure(seed: int) -> Iterator[dict]:
    "The losses of both models, then every way to write and to draft."
    held_out = tokens("prose")[1]
    small, large = ship_draft(seed).eval(), load_model("prose").eval()
    windows = held_out.unfold(0, LENGTH + 1, LENGTH // 2)
    sizes = {name: sum(p.numel() for p in model.parameters())
             for name, model in (("draft", small), ("target", large))}
    yield {"case": "models"} | {f"{name} parameters": n for name, n in sizes.items()} | {
        f"{name} nats": spread([nats_of(model, windows, LENGTH // 2)])
        for name, model in (("draft", small), ("target", large))}
    target = CachedCausalLM(large)
    prompts = [held_out[None, n:n + BEGUN] for n in torch.linspace(0, len(held_out) - LENGTH,
            PROMPTS).long()]
    for way, draft, K in itertools.product(WAYS, ("small model", "bigram"), DRAFTED):
        rows, usual = [], []
        for n, prompt in enumerate(prompts):
            usual.append(took(generate_cached, target, prompt, NEW, WAYS[way], n)[0])
            made = (ModelDraft(CachedCausalLM(small), WAYS[way]) if draft == "small model"
                    else NGramDraft(2048, 2))
            rows.append(took(generate_speculative, target, made, prompt, NEW, K, WAYS[way], n))
        passes = [NEW / len(found.drafted) for _, found in rows]
        share = [sum(found.accepted) / max(1, sum(found.drafted)) for _, found in rows]
        yield {"case": "drafts", "way": way, "draft": draft, "K": K,
               "tokens per pass": spread(passes), "accepted": spread(share),
               "relative time": spread(seconds / plain for (seconds, _), plain in zip(rows, usual))}
