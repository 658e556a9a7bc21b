"""Chapter 22: the model that knows 144 facts, which the chapter and its page in depth load:
python -m bench.recall writes tfmlib/assets/models/recall.safetensors."""
from pathlib import Path

from tfmlib.inside import fact_accuracy, train_recall
from tfmlib.workbench import own_tensors, save_tensors

OUT, SEED = Path(__file__).resolve().parent.parent / "tfmlib/assets/models/recall.safetensors", 0


def main(out: Path = OUT) -> None:
    model, facts, held_out = train_recall(SEED)
    right = fact_accuracy(model, held_out, facts)
    save_tensors(out, own_tensors(model.float()),
                 {"command": "python -m bench.recall", "seed": str(SEED),
                  "right, phrasings held out": f"{right:.3f}"})


if __name__ == "__main__":
    main()
