"""The book's models and its tokenizer in JavaScript: what the page computes is what PyTorch
computes."""
import base64
import json
import os
import re
import subprocess
import sys
import unicodedata
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from conftest import often, sweep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

READS = ("README.md", "chapters/00_tour.ipynb")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "extensions"), str(ROOT / "tools")]
import live  # noqa: E402
from formulas import node_binary  # noqa: E402

import tfmlib.decoders.core as decoders  # noqa: E402
from bench.tour import MODEL, cells  # noqa: E402
from tfmlib.checkpoints import load_model  # noqa: E402
from tfmlib.decoders import NextToken  # noqa: E402
from tfmlib.heads import SentenceHeads, attention_weights  # noqa: E402
from tfmlib.kv_cache import BothWays, CachedCausalLM, generate_cached  # noqa: E402
from tfmlib.tokens import BOOK_FILE, book_tokenizer, printable  # noqa: E402
from tfmlib.workbench import LIVE, LiveWriter, load_tensors, prose, save_tensors  # noqa: E402

MODELS = files("tfmlib") / "assets/models"
SHIPPED = ("prose", "book", "prose_draft", "answers", "questions", "thinking", "copying",
           "copying_one")


@pytest.fixture(scope="module")
def page():
    "Asks the page's scripts, in Node."
    with subprocess.Popen([node_binary(), ROOT / "tests/live_node.mjs"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, encoding="utf-8") as process:
        def ask(what, **told):
            process.stdin.write(json.dumps({"what": what} | told) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        yield ask
        process.stdin.close()


def test_every_shipped_decoder_is_tried():
    "The models of the book that are decoders, as their files say."
    configs = {path.name.removesuffix(".safetensors"): json.loads(
        load_tensors(path)[1].get("config", "{}")) for path in MODELS.iterdir()}
    assert ({name for name, config in configs.items() if config.get("kind") == "decoder"}
            == set(SHIPPED))


@pytest.mark.parametrize("name", sweep(SHIPPED, "prose", "thinking", "copying_one"))
def test_logits_and_weights_are_those_of_pytorch(name, page):
    model = load_model(name)
    longest = model.config.max_len
    for seed, length in ((0, longest), (1, 1), (2, longest // 2)):
        ids = torch.randint(model.config.vocab_size, (length,),
                            generator=torch.Generator().manual_seed(seed))
        said = page("logits", file=str(MODELS / f"{name}.safetensors"), ids=ids.tolist())["said"]
        with torch.no_grad(): logits = model(ids[None])[0]
        assert (torch.tensor(said["logits"]) - logits).abs().max() < 1e-4
        weights = attention_of(model, ids)
        for t, step in enumerate(said["weights"]):
            assert (torch.tensor(step) - weights[:, :, t, :t + 1]).abs().max() < 1e-5


def attention_of(model, ids):
    "The attention weights of every layer and head (L, H, T, T)."
    with torch.no_grad(), attention_weights():
        return torch.stack([w[0] for w in model.hidden_states(ids[None])[1]])


@torch.no_grad()
def in_16_bits(name: str) -> torch.nn.Module:
    "A model with the weights that the page loads."
    model = load_model(name)
    for p in model.parameters(): p.copy_(p.half())
    return model


@pytest.fixture(scope="module")
def rounded(): return in_16_bits("prose")


@pytest.mark.parametrize("name", sweep(SHIPPED, "prose"))
def test_greedy_text_is_identical(name, page, tmp_path):
    "Also with weights rounded to 16 bits, as the page loads them."
    state, facts = load_tensors(MODELS / f"{name}.safetensors")
    save_tensors(tmp_path / "half.safetensors", {k: v.half() for k, v in state.items()}, facts)
    for model, file in ((load_model(name), MODELS / f"{name}.safetensors"),
                        (in_16_bits(name), tmp_path / "half.safetensors")):
        ids = torch.randint(model.config.vocab_size, (1, 4),
                            generator=torch.Generator().manual_seed(12))
        text = decoders.generate(model, ids, model.config.max_len - 4)
        with torch.no_grad(): best = model(text[:, :-1])[0, 3:].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-3, "rounding could decide: take another seed"
        assert (page("greedy", file=str(file), ids=ids[0].tolist(), steps=text.shape[1] - 4)["said"]
                == text[0].tolist())


# characters that every Python, regex and Node know, whichever Unicode they were made for
OLD = unicodedata.ucd_3_2_0


def encoded(page, texts: list[str]) -> None:
    ours = book_tokenizer()
    for text, said in zip(texts, page("encode", file=str(BOOK_FILE), texts=texts)["said"],
                          strict=True):
        ids = ours.encode(text)
        assert said["ids"] == ids and said["back"] == text and said["size"] == len(ours), repr(text)
        assert said["shown"] == [printable(token) for token in ours.tokens(ids)]


def test_tokens_are_those_of_python(page):
    encoded(page, ["", " ", "  two  spaces \n\n and lines\t", "don't we'll I'D", "Grüße, 🦉🦉!",
                   "x = 3.14159; y_2", "日本語 текст عربى",
                   "a\u0301\u00a0b\u2003c\u3000d\ufeffe\x1cf\x85g",
                   (ROOT / "README.md").read_text(encoding="utf-8")[:3000]])


@settings(max_examples=often(60), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Cn")).filter(lambda c: OLD.category(c)
            != "Cn"), max_size=40), min_size=20, max_size=20))
def test_tokens_of_any_text_are_those_of_python(page, texts): encoded(page, texts)


def test_every_character_is_read_alike(page):
    "Between letters, where it matters whether it is a letter, a number or white space."
    every = [chr(c) for c in range(0x110000) if OLD.category(chr(c)) not in ("Cs", "Cn", "Co")]
    assert len(every) > 90_000
    encoded(page,
            ["".join(f"a{c}1" for c in every[i:i + 400])
             for i in range(0, len(every), 400)][::1 if os.environ.get("TFM_WHOLE") else 8])


def test_what_the_page_cannot_run_is_refused(page, tmp_path):
    file = str(MODELS / "copying.safetensors")
    assert "id: 48; expected 0 to 47" in page("logits", file=file, ids=[48])["error"]
    assert "cache: 48 tokens; expected fewer than 48" in page("logits", file=file,
            ids=[0] * 49)["error"]
    assert "kind: bert; expected decoder" in page("logits", file=str(MODELS / "masked.safetensors"),
                                                  ids=[0])["error"]
    state, facts = load_tensors(MODELS / "copying.safetensors")
    config = json.loads(facts["config"])
    for key, value in (("norm", "layernorm"), ("positions", "alibi"), ("ffn", "gelu")):
        save_tensors(tmp_path / f"{key}.safetensors", state,
                     facts | {"config": json.dumps(config | {key: value})})
        assert f"{key}: {value}" in page("logits", file=str(tmp_path / f"{key}.safetensors"),
                                         ids=[0])["error"]


TYPED = ["The king", "The king saw Oarvale, and the old ship.", "The king saw the old ship.",
         "", "Oarvale"]


def test_weights_of_a_text_that_is_edited_are_those_of_pytorch(page, rounded):
    "Every head, after each edit; what is still the same is not read again."
    texts = [book_tokenizer().encode("\n\n" + text) for text in TYPED]
    cached = whole = 0
    for n, said in enumerate(page("typed", file=str(LIVE / "prose.safetensors"),
                                  texts=texts)["said"]):
        ids, before = texts[n], texts[n - 1] if n else []
        same = next((i for i, (a, b) in enumerate(zip(ids, before)) if a != b),
                    min(len(ids), len(before)))
        cached, whole = cached + len(ids) - same, whole + (len(ids) if len(ids) > same else 0)
        assert (said["cached"], said["whole"]) == (cached, whole)
        weights = attention_of(rounded, torch.tensor(ids))
        assert len(said["weights"]) == len(ids)
        for t, step in enumerate(said["weights"]):
            assert (torch.tensor(step) - weights[:, :, t, :t + 1]).abs().max() < 1e-4


@pytest.mark.parametrize("n, new", sweep([(1, 20), (6, 20), (50, 20), (100, 28), (7, 1)],
                                         (1, 20), (50, 20)))
def test_both_ways_write_what_pytorch_writes(page, rounded, n, new):
    "Without and with a cache; the tokens of the passes are those of the formulas of chapter 16."
    ids = book_tokenizer().encode(prose(2000, seed=5))[:n]
    written = decoders.generate(rounded, torch.tensor([ids]), new)
    with torch.no_grad(): best = rounded(written[:, :-1])[0, n - 1:].topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "rounding could decide: take another text"
    assert torch.equal(written, generate_cached(CachedCausalLM(rounded), torch.tensor([ids]), new))
    for keep, passes in ((False, list(range(n, n + new))), (True, [n] + [1] * (new - 1))):
        said = page("written", file=str(LIVE / "prose.safetensors"), ids=ids, steps=new,
                    keep=keep)["said"]
        assert said == {"ids": written[0, n:].tolist(), "processed": passes, "timed": True}
        assert sum(passes) == (n + new - 1 if keep else new * n + new * (new - 1) // 2)


def test_what_chapter_5_says_of_the_heads_is_measured():
    "The example's weights, and the means over held-out prose and over names."
    made, kept = live.heads(), json.loads((LIVE / "heads.json").read_text(encoding="utf-8"))
    said = "run `python tools/live.py`"
    assert (made.keys() == kept.keys()
            and all(made[key] == kept[key] for key in made.keys()
                    - {"thousandths", "prose", "names"})), said
    def off(key, a, b):
        return max(abs(x - y) for p, q in zip(a[key], b[key], strict=True)
                   for x, y in zip(p, q, strict=True))
    for a, b in zip(made["thousandths"], kept["thousandths"], strict=True):
        for c, d in zip(a, b, strict=True):
            assert max(abs(x - y) for p, q in zip(c, d, strict=True)
                       for x, y in zip(p, q, strict=True)) <= 1, said
    assert made["prose"].keys() == kept["prose"].keys()
    for place, found in made["prose"].items():
        assert (off("weight", found, kept["prose"][place]) < .011 and found["queries"]
                == kept["prose"][place]["queries"]), said
    assert (off("thousandths", made["names"], kept["names"]) <= 1
            and abs(made["names"]["largest"] - kept["names"]["largest"]) <= 1), said
    assert f"MOST = {live.SHOWN}" in (LIVE.parent / "own_sentence.js").read_text(encoding="utf-8")


# --- the model of the tour ------------------------------------------------------------------------

@pytest.fixture(scope="module")
def tour():
    """What the tour's page defines, the model that it ships, and the same with the weights that
    a page loads."""
    code, names = cells(), {}
    for id in ("imports", *MODEL, "text"): exec(compile(code[id], id, "exec"), names)
    state, _ = load_tensors(MODELS / "tour.safetensors")
    loaded = live.from_8_bits(load_tensors(LIVE / "tour.safetensors")[0])
    under = {name: ".".join(live.PARTS.get(part, part) for part in name.split("."))
             for name in state}
    made = [names["Transformer"](len(names["pieces"]), width=128, layers=4, heads=4, groups=2,
                                 hidden=320) for _ in range(2)]
    for model, weights in zip(made, ({name: x.float() for name, x in state.items()},
                                     {name: loaded[theirs] for name, theirs in under.items()})):
        model.load_state_dict(weights)
    assert loaded.keys() == {*under.values()}
    return names, *made


@torch.no_grad()
@pytest.mark.parametrize("start, length", [(0, 48), (500, 128), (1000, 1)])
def test_the_page_computes_what_the_lines_of_the_tour_compute(page, tour, start, length):
    names, _, model = tour
    for ids in (names["held_out"][start:start + length],
                torch.randint(len(names["pieces"]), (length,),
                              generator=torch.Generator().manual_seed(length))):
        said = page("logits", file=str(LIVE / "tour.safetensors"), ids=ids.tolist())["said"]
        assert (torch.tensor(said["logits"]) - model(ids[None])[0]).abs().max() < 1e-4
        for t, step in enumerate(said["weights"]):
            for layer, block in zip(step, model.blocks, strict=True):
                assert ((torch.tensor(layer) - block.attention.weights[0, :, t, :t + 1]).abs().max()
                        < 1e-5)


@torch.no_grad()
def test_eight_bits_change_the_loss_by_less_than_the_tour_says(tour):
    names, exact, model = tour
    rows = names["held_out"][:len(names["held_out"]) // 49 * 49].view(-1, 49)
    losses = [float(names["loss_of"](each, rows)) for each in (exact, model)]
    assert abs(losses[1] - losses[0]) < .001 and losses[0] < 3.8
    said = next("".join(cell["source"])
                for cell in json.loads((ROOT / "chapters/00_tour.ipynb").read_text(
                    encoding="utf-8"))["cells"] if cell.get("id") == "live-lead")
    assert "8 bits" in said and "0.001" in said
    for x in (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)),
              torch.tensor([[0., 0.], [1., -2.]])):
        back = live.from_8_bits(live.in_8_bits({"x": x}))["x"]
        assert ((back - x).abs() <= x.abs().amax(-1, keepdim=True) * (.5 / 127 + 1e-3)).all()


def test_words_are_those_of_the_tour(page, tour):
    names, *_ = tour
    known = ["", "\nI am very glad to see you.", names["decode"](names["held_out"][:400].tolist()),
             "\n\n  'tis, Mr. Bennet's - and?"]
    for text, said in zip(known, page("words", file=str(LIVE / "tour.safetensors"),
                                      texts=known)["said"], strict=True):
        there = [piece for piece in names["split"](text) if piece in names["number"]]
        assert (said["ids"] == [names["number"][piece] for piece in there] and said["back"]
                == "".join(there) and said["size"] == len(names["pieces"]))
        assert (said["unknown"] == [*dict.fromkeys(piece for piece in names["split"](text)
                                                   if piece not in names["number"])])
        assert said["shown"] == [piece.replace(" ", "␣").replace("\n", "⏎") for piece in there]
    [said] = page("words", file=str(LIVE / "tour.safetensors"),
                  texts=["\nI am a heron 🦉, naïvely"])["said"]
    assert said["unknown"] == [" heron", "🦉", " na", "ï", "vely"] and said["back"] == "\nI am a ,"


def writer(**name) -> LiveWriter:
    facts = load_tensors(LIVE / "tour.safetensors")[1]
    return LiveWriter(prompts=["I am"], logits=[[*range(1984)]],
                      tokens=[piece.replace(" ", "␣").replace("\n", "⏎")
                              for piece in facts["pieces"].split("|")], lead="\n", octaves=-1.,
                      alt="Twelve tokens and their probabilities", **name)


@pytest.mark.whole
@pytest.mark.browser
def test_it_writes_in_a_notebook_without_a_network(browser, tour):
    """By keyboard; words that it does not know are named; what it shows is what the page's lines
    compute."""
    names, _, model = tour
    figure, context = (writer(name="tour"),
                       browser.new_context(offline=True, viewport={"width": 390, "height": 844},
                                           color_scheme="dark"))
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate(NOTEBOOK,
                  [str(figure._esm), figure.state(), base64.b64encode(figure._weights).decode()])
    assert page.locator(".tfm-duo input").count() == 2
    page.get_by_role("button", name="load the model (1.0 MB)").press("Enter")
    page.locator("textarea").fill("I am very glad to heron see")
    assert (page.locator("[role=status].tfm-unknown").text_content()
            == "Not in the vocabulary, so left out: heron.")
    ids = names["encode"]("\nI am very glad to see")
    assert ([chip.rsplit(" ", 1)[0] for chip in page.locator(".tfm-chip").all_text_contents()]
            == ["⏎", "I", "␣am", "␣very", "␣glad", "␣to", "␣see"])
    with torch.no_grad(): best = model(ids[None])[0, -1].softmax(-1).topk(12)
    rows = page.locator("tbody tr").all()[:12]
    assert ([row.locator("th").text_content() for row in rows]
            == [figure.tokens[i] for i in best.indices])
    for row, p in zip(rows, best.values):
        assert (abs(float(row.locator("td").first.text_content().removesuffix(" %")) - 100
                    * float(p)) < .06)
    assert (page.get_by_label("attention of").locator("option").first.text_content()
            == "layer 0, head 0")
    page.get_by_role("button", name="write 20 tokens").press("Enter")
    page.wait_for_function("document.querySelectorAll('.tfm-chip').length === 27")
    assert (page.locator("textarea").input_value().startswith("I am very glad to see")
            and page.locator(".tfm-unknown").text_content() == "" and errors == [])
    context.close()


# --- in the page ----------------------------------------------------------------------------------

@pytest.mark.parametrize("name", live.MODELS)
def test_what_a_page_loads_is_small_and_of_the_book(name, tmp_path):
    "The model's weights, rounded to 16 bits, the tour's to 8; at most 1 MB."
    live.write(tmp_path)
    (made, facts), (kept, told) = (load_tensors(folder / f"{name}.safetensors")
                                   for folder in (tmp_path, LIVE))
    assert (facts == told and made.keys() == kept.keys()
            and all(torch.equal(made[key], kept[key])
                    for key in made)), "run `python tools/live.py`"
    assert (LIVE / f"{name}.safetensors").stat().st_size <= 1e6


FIGURES = {
    "chapters/depth/10_decoders.html": ("next_token", lambda **name: NextToken(prompts=["so"],
            logits=[[*range(12)]], tokens=[*"abcdefghijkl"],
            alt="Twelve tokens and their probabilities", **name)),
    "chapters/depth/05_heads.html": ("own_sentence", lambda **name: SentenceHeads(text="so",
            tokens=["so"], thousandths=[[[[1000]]]], alt="One token and its weight", **name)),
    "chapters/16_kv_cache.html": ("both_ways", lambda **name: BothWays(text="so", without=[1],
            kept=[1], n=1, alt="One pass and its tokens", **name)),
}


@pytest.mark.parametrize("module, make", FIGURES.values(),
                         ids=[module for module, _ in FIGURES.values()])
def test_a_notebook_has_all_in_one_text(module, make):
    "A widget knows no files beside it: its modules are one text, its weights come from the kernel."
    figure = make(name="prose")
    assert (figure.module == module and "import " not in str(figure._esm).replace("import.meta", "")
            and str(figure._esm).count("class Decoder") == 1 and figure._esm.count("export ") == 1)
    assert (figure._weights == (LIVE / "prose.safetensors").read_bytes()
            and "merges" in figure._tokenizer)
    assert not {"_weights", "_tokenizer"} & figure.state().keys() and "<svg" in figure.picture()
    asked = set(re.findall(r'model\.get\("(\w+)"', str(figure._esm))) - {"_weights", "_tokenizer"}
    assert asked <= figure.state().keys()
    assert make()._weights is None


NOTEBOOK = """async ([text, state, weights]) => {             // what anywidget does with a module's text and a widget's values
  const heard = {};
  const model = { get: key => state[key], set(key, value) { state[key] = value;
  heard["change:" + key]?.(); }, on(event, f) { heard[event] = f; }, off() {}, save_changes() {} };
  state._weights = new DataView(Uint8Array.from(atob(weights), c => c.charCodeAt(0)).buffer);
  const { default: widget } = await import(URL.createObjectURL(new Blob([text], {
    type: "text/javascript" })));
  widget.render({ model, el: document.body.appendChild(document.createElement("div")) });
}"""  # noqa: E501


@pytest.mark.browser
@pytest.mark.parametrize("module, make",
                         [pytest.param(module, make, id=module, marks=[] if module == "next_token"
                                       else pytest.mark.whole)
                          for module, make in FIGURES.values()])
def test_a_notebook_needs_no_network(browser, module, make):
    "The model that the figure runs there is the one that it was given."
    figure, context = make(name="prose"), browser.new_context(offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.evaluate(NOTEBOOK, [str(figure._esm), figure.state() | {"_tokenizer": figure._tokenizer},
                             base64.b64encode(figure._weights).decode()])
    page.get_by_role("button", name="load the model (0.8 MB)").click()
    page.locator("textarea").fill("The king")
    tokens = {"next_token": ".tfm-chip", "own_sentence": ".tfm-token"}.get(module)
    if tokens: assert page.locator(tokens).count() == len(book_tokenizer().encode("The king"))
    else:
        assert f"The text has {len(book_tokenizer().encode('The king'))} tokens" in page.locator(
            ".tfm-readout").text_content()
    # nothing precedes the text here
    if module != "next_token":
        page.locator("textarea").fill("")
        assert "has no tokens yet." in page.locator(".tfm-readout").text_content()
        page.locator("textarea").fill("x")
    assert errors == [] and "no tokens" not in page.locator(".tfm-readout").text_content()
    context.close()
