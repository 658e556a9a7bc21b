"""Sentences and verdicts that were wrong once, and what the pages say now."""
import json
import re

import pytest
from conftest import ROOT
from ledger_rules import entries

LAYERS = "depth/20_linear_and_state_space_layers"
NOW = [  # page, what it says, what must not come back
    ("depth/13_accounting", "Llama 4 Scout.*about 20,000", r"factor of about [1-9],"),
    ("depth/16_kv_cache", r"\(eager, batch 1\), the cache pays only for long",
     "On the GPU, the cache pays"),
    ("11_denoisers", "each task has a different leader", "different objective led"),
    ("depth/11_denoisers", "is a hint and no proof", "with every seed"),
    ("depth/09_encoders", "three of three seeds", "with every seed"),
    ("depth/09_encoders", "in runs of an eighth of the length", "^$"),
    ("20_linear_and_state_space", "no rule beats the sum", "smaller rate is a compromise"),
    (LAYERS, "chosen for each mixer in runs of 500 steps", "above the control's"),
    ("21_mixture_of_experts", "tuned for each model in runs of 300 steps", "^$"),
    ("depth/21_mixture_of_experts", "learning rates tuned in runs of 400 steps",
     "divide the tokens rather"),
    ("depth/21_mixture_of_experts", "OLMoE report highly specialised experts", "^$"),
    ("depth/07_block", "The verdict stays", "^$")]
CONDITION = {"long-contexts-are-brutal", "loss-falls-smoothly", "equal-arithmetic",
             "top-one-needs-softmax-first", "faster-chip-faster-text", "times-faster",
             "recurrent-not-parallel", "steps-in-parallel"}
VERDICTS = dict.fromkeys(CONDITION, "holds under a condition") | {
    "pre-norm-stable": "holds", "experts-lower-active-compute": "holds",
    "rope-extrapolates": "imprecise", "fitted-floor-is-entropy": "imprecise"}


@pytest.mark.parametrize("page, now, gone", NOW)
def test_a_sentence_that_was_wrong_has_not_come_back(page, now, gone):
    cells = json.loads((ROOT / f"chapters/{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    assert re.search(now, text, re.S) and not re.search(gone, text)


def test_verdicts_that_were_argued():
    found = {entry["id"]: entry["verdict"] for entry in entries(ROOT)}
    assert {id: found[id] for id in VERDICTS} == VERDICTS
