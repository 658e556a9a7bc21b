"""Train the model of the tour for longer, with the cells of the page, and keep it: python -m
bench.tour

The page trains for a minute; this takes several times as many steps of the same kind, and writes
the weights, in 16 bits, into tfmlib/assets/models/tour.safetensors. `python -m bench.tour --text
FOLDER` writes the page's text again, from the novels as the R package janeaustenr has them (one
file each, in FOLDER).
"""
import json
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

import torch

from tfmlib.workbench import save_tensors

ROOT = Path(__file__).resolve().parent.parent
OUT, TEXT = ROOT / "tfmlib/assets/models/tour.safetensors", ROOT / "tfmlib/assets/text/novels.txt"
MODEL = ("torch", "norm-code", "rotate-code", "mask-code", "attention-code", "swiglu-code",
         "block-code", "model-code", "loss-code", "write-code")
RUN = ("imports", *MODEL, "text", "text-glue", "before", "train")              # what trains it
TIMES, WORDS, LONGEST = 2, 2000, 30
PIECE = re.compile(r" ?[A-Za-z]+(?:'[a-z]+)?|[^A-Za-z]")
MARKS = {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": " - ",
         "--": " - ", "_": ""}
ENDS = re.compile(r'(?:(?<=[.!?])|(?<=[.!?]"))(?<!Mr\.)(?<!Mrs\.)\s+(?=["A-Z])')


def cells() -> dict[str, str]:
    "The code of the page, by the ids of its cells."
    page = json.loads((ROOT / "chapters/00_tour.ipynb").read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in page["cells"]
            if cell["cell_type"] == "code"}


def trained(times: float) -> torch.nn.Module:
    "The model of the page after so many times its steps."
    code, names = cells(), {}
    code["train"] = re.sub(r"steps, losses = (\d+)",
                           lambda m: f"steps, losses = {round(times * int(m[1]))}", code["train"])
    for id in RUN: exec(compile(code[id], id, "exec"), names)
    return names["model"]


def sentences(novel: str) -> list[str]:
    "The sentences of a novel, with plain marks."
    for mark, plain in MARKS.items(): novel = novel.replace(mark, plain)
    novel = re.sub(r"(?m)^(CHAPTER|Chapter|VOLUME|Volume).*$", "",
                   novel.encode("ascii", "ignore").decode())
    found = [s.strip() for part in re.split(r"\n\s*\n", novel)
             for s in ENDS.split(re.sub(r"\s+", " ", part))]
    return [s.replace('"', "") if s.count('"') % 2 else s for s in found]


def simple(novels: list[str]) -> str:
    """Sentences that are whole and not long and use only frequent words, in blocks of twenty
    that are shuffled."""
    every = [s for novel in novels for s in sentences(novel)]
    whole = [s for s in every if re.fullmatch(r"[A-Z\"].*[.!?]\"?", s)
             and not re.search(r"[0-9()\[\]:*/]", s) and 3 <= len(s.split()) <= LONGEST]
    frequent = {piece for piece, _ in Counter(p for s in whole
                                              for p in PIECE.findall("\n" + s)).most_common(WORDS)}
    kept = [s for s in whole if frequent.issuperset(PIECE.findall("\n" + s))]
    blocks = [kept[i:i + 20] for i in range(0, len(kept), 20)]
    random.Random(0).shuffle(blocks)
    return "\n".join(s for block in blocks for s in block) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--text"]:
        TEXT.write_text(
            simple([p.read_text(encoding="utf-8") for p in sorted(Path(sys.argv[2]).iterdir())]),
            encoding="utf-8")
        return
    os.environ.setdefault("TQDM_DISABLE", "1")
    torch.set_num_threads(1)
    state = {name: x.detach().half().contiguous()
             for name, x in trained(TIMES).state_dict().items()}
    save_tensors(OUT, state,
                 {"command": "python -m bench.tour", "steps": f"{TIMES} times the page's"})
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__": main()
