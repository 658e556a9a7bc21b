"""The library that the chapters of The Executable Transformer write: its front door.

    import tfmlib as tfm

    tokenizer = tfm.train_tokenizer(text, 400)
    rows = tfm.chunk(tokenizer.encode(text), 64)                    # (N, 64)
    config = tfm.ModelConfig("decoder", len(tokenizer.vocab), d_model=64, n_layers=2, n_heads=4, max_len=128, **tfm.MODERN)
    model = tfm.build(config, seed=0)

    optimiser = tfm.AdamW(tfm.parameter_groups(model), lr=tfm.WarmupCosine(peak=3e-3, warmup=10, steps=60))
    tfm.train(model, tfm.next_token_loss, tfm.epochs(rows, size=8), 60, optimiser, tfm.Checkpoint("run", every=30))
    tfm.save_model("model.safetensors", model)

    tfm.export_folder("folder", model, "llama", tokenizer)          # for transformers, vLLM, llama.cpp
    published = tfm.load("folder")                                  # or a folder from Hugging Face's hub
    print(published.write("The owl", max_new_tokens=20))

`tfm.load_gguf(tfm.fetch_model("smollm2"))` is a real model. Everything else is in the package of its chapter, such as
`tfmlib.heads` for chapter 5, and in `tfmlib.workbench`.
"""

__version__ = "0.1.0"


def offer(package: str, modules: dict[str, str]) -> tuple:
    "What a package needs to import each of its modules when a name of it is first asked for; modules: module -> its names."
    from importlib import import_module
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str):
        if name not in homes: raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)
    return get, lambda: sorted(homes), [*homes]


__getattr__, __dir__, __all__ = offer(__name__, {      # the front door; the rest is in the chapters' packages
    "tokens": "Tokenizer train_tokenizer load_tokenizer save_tokenizer",
    "transformer": "ModelConfig build save_model load_model",
    "decoders": "MODERN CausalLM SamplingConfig chunk next_token_loss perplexity generate",
    "kv_cache": "CachedCausalLM generate_cached Scheduler Request",
    "workbench": "train epochs AdamW WarmupCosine Checkpoint parameter_groups",
    "checkpoints": "load load_gguf export_folder chat_text fetch_model",
})
