"""Write the models that a page can load, in 16 bits, to tfmlib/assets/live: python tools/live.py"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfmlib.pretrained import load_tensors, save_tensors  # noqa: E402

MODELS = ("prose",)


def write(folder: Path) -> None:
    "The book's models in 16 bits, in a folder."
    for name in MODELS:
        state, facts = load_tensors(ROOT / f"tfmlib/assets/models/{name}.safetensors")
        kept = {key: facts[key] for key in ("config", "command", "text", "tokenizer") if key in facts}
        save_tensors(folder / f"{name}.safetensors", {key: value.half() for key, value in state.items()}, kept)


if __name__ == "__main__": write(ROOT / "tfmlib/assets/live")
