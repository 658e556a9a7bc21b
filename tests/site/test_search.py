"""The search: what is defined is found first, what is claimed is found by its words, and nothing
else is fetched."""
import gzip
import json
import re
from urllib.parse import quote

import pytest
import rules
import yaml
from conftest import ROOT, sweep
from findable import spoken, words
from nbdev_cells import public_names
from pages import notebooks
from search import KINDS, coded, numbers, slug
from term_places import told

pytestmark = [pytest.mark.slow]
FIRST = {                                          # what is typed -> where the first hit leads
    "causal_mask": "04_attention.html#tfm-causal_mask",
    "causal mask": "04_attention.html#tfm-causal_mask",
    "rotary": "06_positions.html#tfm-RotaryEmbedding",
    "why the square root": "04_attention.html#why-the-square-root",
    "inverse square root": "depth/08_transformer.html#the-learning-rate",
    "RoPE": "06_positions.html#rotary-position-embedding",
    "rope": "06_positions.html#rotary-position-embedding",
    "rotary position embeddings": "06_positions.html#rotary-position-embedding",
    "softmax": "04_attention.html#the-formula", "LSTM": "01_recurrence.html#gates",
    "beam search": "depth/08_transformer.html#tfm-beam_search",
    "BPE": "03_tokens.html#what-are-the-units-of-a-text",
    "byte-pair encoding": "03_tokens.html#what-are-the-units-of-a-text",
    "top-p": "10_decoders.html#tfm-top_p",
    "nucleus sampling": "10_decoders.html#tfm-top_p", "layer norm": "07_block.html#tfm-LayerNorm",
    "LayerNorm": "07_block.html#tfm-LayerNorm",
    "layernorm": "07_block.html#tfm-LayerNorm",
    "layer normalisation": "07_block.html#tfm-LayerNorm",
    "FlashAttention": "17_flash_attention.html",
    "flash attention": "17_flash_attention.html", "perplexity": "10_decoders.html#tfm-perplexity",
    "label smoothing": "depth/08_transformer.html#training",
    "masks": "04_attention.html#masks-who-may-attend-to-whom",
    "multi-head attention": "05_heads.html#attention-with-several-heads",
    "attention": "04_attention.html#tfm-attention",
    "scaled dot-product attention": "04_attention.html#the-formula",
    "vanishing gradients": "01_recurrence.html#vanishing-and-exploding",
    "cross-entropy": "10_decoders.html#the-loss-by-hand",
    "swiglu": "07_block.html#tfm-SwiGLU", "grouped-query": "05_heads.html#fewer-keys-than-queries",
    "tokeniz": "03_tokens.html#tfm-Tokenizer",
    "positions": "06_positions.html",
    "warm-up": "depth/08_transformer.html#the-learning-rate",
    "ADAMW": "00_training.html#tfm-AdamW", "encoders": "09_encoders.html",
    "encoder": "02_alignment.html#through-one-vector",
    "score": "04_attention.html#a-soft-dictionary",
    "log-sum-exp": "17_flash_attention.html#the-backward-pass-without-the-matrix",
    "hidden state": "01_recurrence.html#one-cell",
    "bfloat16": "00_training.html#half-the-bits-where-it-is-safe",
    "masked-language modelling": "09_encoders.html#masked-language-modelling",
}


def hits(page, query: str) -> list[tuple[str, str]]:
    "What a search lists, in order: (address within chapters/, or within the book; words shown)."
    page.goto(f"search.html?q={quote(query)}")
    page.wait_for_function("document.querySelector('#search-results').children.length")
    found = page.eval_on_selector_all("#search-results li", "all => all.map(e => "
                                                            "[e.querySelector('a').getAttribute('href'), e.innerText])")  # noqa: E501
    return [(href.removeprefix("chapters/"), text) for href, text in found]


@pytest.fixture(scope="module")
def page(browser, served):
    context = browser.new_context(base_url=served)
    yield context.new_page()
    context.close()


@pytest.fixture
def search_page(page):
    "The page of the search, its script loaded."
    page.goto("search.html")
    page.wait_for_function("typeof search === 'function'")
    return page


@pytest.fixture(scope="module")
def index(book) -> dict:
    text = (book / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("search(").removesuffix(")\n"))


@pytest.mark.browser
@pytest.mark.parametrize("query", sweep(FIRST, *list(FIRST)[::7]))
def test_definition_comes_first(page, query):
    assert hits(page, query)[0][0] == FIRST[query]


@pytest.mark.browser
@pytest.mark.parametrize("query", ["√D", "square root"])
def test_a_section_is_found_beside_a_term(page, query):
    assert "04_attention.html#why-the-square-root" in [where for where, _ in hits(page, query)[:3]]


@pytest.mark.browser
@pytest.mark.whole
def test_every_public_name_is_found_first_where_it_is_defined(search_page):
    "In the chapter that exports it; a name that several chapters export, in any of them."
    where, books = {}, rules.cells(ROOT)
    for module, owner in rules.owners(books).items():
        # a page in depth that only reads
        if not any(cell.exported for cell in books[owner]): continue
        source = (ROOT / f"tfmlib/{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        for name in public_names(source):
            if name != "__all__": where.setdefault(name, set()).add(f"{owner}.html#tfm-{name}")
    assert len(where) > 400
    first = search_page.evaluate(
        "names => names.map(n => { const [e] = search.results(n); return "
        "`${e.page[0]}.html#${e.anchor}`; })", list(where))
    assert [(n, f) for n, f in zip(where, first, strict=True) if f not in where[n]] == []


@pytest.mark.browser
@pytest.mark.whole
def test_every_term_is_found_first_where_it_is_defined(search_page, index):
    """As the glossary spells it, without the words in brackets; a name of the library spelt
    alike, or the word's second meaning, may come before it."""
    terms = [(re.sub(r"\s*\([^)]*\)$", "", spelt), index["pages"][at][0])
             for kind, at, _, title, _, *also in index["entries"] if KINDS[kind] == "term"
             for spelt in (title, *also)]
    assert len(terms) > 400
    found = search_page.evaluate(
        "all => all.map(query => search.results(query).slice(0, 2).map(e => e.page[0]))",
        [term for term, _ in terms])
    assert ([(term, own, pages) for (term, own), pages in zip(terms, found, strict=True)
             if own not in pages] == [])


@pytest.mark.browser
@pytest.mark.parametrize("query, where, heading", [
    ("why divide by sqrt", "04_attention", "Why the square root"),
    ("sofmax", "04_attention", "softmax"), ("layernrom", "07_block", "LayerNorm"),
    ("kv cahce", "16_kv_cache", "KV cache"),
    ("how is the memory of a training step counted", "13_accounting",
     "The memory of a training step")])
def test_common_words_are_left_out_and_misspelt_ones_are_understood(search_page, query, where,
                                                                        heading):
    found = search_page.evaluate(
        "query => search.results(query).slice(0, 5).map(e => [e.page[0], e.title])", query)
    assert any(where in place and heading in title for place, title in found), found
    search_page.locator(".tfm-search-page input").fill(query)
    search_page.keyboard.press("Enter")
    search_page.wait_for_selector("#search-results li")
    said = search_page.locator("#search-results > p").inner_text()
    assert (", for " in said) == (query in ("sofmax", "layernrom", "kv cahce")), said


@pytest.mark.browser
def test_anchors_made_of_titles_are_made_alike(search_page, index):
    """Which headings leave out their anchor is decided here, and what it was is computed in the
    script."""
    left_out = [(title, index["pages"][at][0]) for _, at, anchor, title, *_ in index["entries"]
                if anchor == 0][::40]
    assert len(left_out) > 15
    found = search_page.evaluate(
        "all => all.map(([title, at]) => search.results(title.replace(/^[\\d.]+ · /, '')).find(e "
        "=> e.title === title && e.page[0] === at && !e.anchor?.startsWith('tfm-'))?.anchor)",
        left_out)
    assert found == [slug(title) for title, _ in left_out]


@pytest.mark.browser
@pytest.mark.whole
def test_every_claim_is_a_hit_of_its_own(search_page, book):
    "Its words bring it among the first, with the anchor of the box that settles it."
    entries = yaml.safe_load((ROOT / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"))
    asked = [" ".join(sorted(set(words(e["statement"])), key=lambda w: (len(w), w))[-4:])
             for e in entries]
    found = search_page.evaluate(
        "all => all.map(q => search.results(q).slice(0, 8).map(e => [e.kind, e.page[0], e.anchor]))", asked)  # noqa: E501
    for entry, query, places in zip(entries, asked, found, strict=True):
        own = next((p for p in places if p[0] == "claim" and p[2] in (f"claim-{entry['id']}",
                f"ledger-{entry['id']}")), None)
        assert own, (entry["id"], query, places)
        assert f'id="{own[2]}"' in (book / f"{own[1]}.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_printing_leaves_folds_as_they_are(page):
    "Chapter 10 had 62 sheets when printing opened them all."
    page.goto("chapters/10_decoders.html")
    opened = page.locator("details[open]").count()
    assert page.locator("details:not([open])").count() > 5
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details[open]").count() == opened
    page.emulate_media(media="screen")


def test_search_from_a_page_by_keyboard(page):
    """One key to the field, words, Enter; what is listed says what it is and where; the link
    leads there, and nothing else was fetched."""
    fetched = []
    page.goto("index.html")
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "tfm-q"
    page.evaluate("document.activeElement.blur()")
    page.on("request", lambda r: fetched.append(r.url.rsplit("/", 1)[1]))
    page.keyboard.type("/variance of the scores")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li")
    assert ("q=variance" in page.url
            and {f.split("?")[0] for f in fetched
                 if not f.endswith(("css", "css?v", "woff2", "svg"))}
            >= {"search.html", "searchindex.js"})
    assert not [f for f in fetched if f.split("?")[0].endswith(".html")
                and not f.startswith("search.html")]
    item = page.locator("#search-results li").first
    assert (item.inner_text().startswith("Holds under a condition. The variance stays at 1 if the ")
            and "Commonly said: " in item.inner_text())
    assert "claim in 4 · Attention, in depth" in item.inner_text()
    item.locator("a").click()
    page.locator("#claim-variance-one:target").wait_for()
    assert page.url.endswith("depth/04_attention.html#claim-variance-one")


@pytest.mark.browser
def test_search_for_nothing_and_for_what_is_not_there(page):
    page.goto("search.html?q=")
    assert page.locator("#search-results li").count() == 0
    page.goto("search.html?q=" + quote("<b>zygomorphic</b> xylophone"))
    page.wait_for_function("document.querySelector('#search-results').children.length")
    assert ("Nothing found" in page.locator("#search-results").inner_text()
            and page.locator("#search-results b").count() == 0)


@pytest.mark.browser
def test_script_and_build_know_the_same_kinds(search_page):
    assert tuple(search_page.evaluate("search.kinds")) == KINDS


@pytest.mark.browser
def test_script_and_build_cut_words_alike(search_page, index):
    "The words under which the build files a text are those that the script looks for."
    texts = ([e[3] for e in index["entries"]] + ["√D", "math.sqrt(D)", "QKᵀ / √D", "naïve Zürich",
                                                 "layer_norm LayerNorm RMSNorm", "top-p’s",
                                                 "W_q² x₁", "a_b_c_d_e", "end-to-end a_b_c_d"])
    assert search_page.evaluate("all => all.map(search.words)", texts) == [words(t) for t in texts]


@pytest.mark.parametrize("steps", [[0], [31, 32, 1023, 1024, 0, 5], [3 * 2**20 + 2, 1]])
def test_numbers_are_read_as_they_were_written(steps):
    assert numbers("".join(map(coded, steps))) == steps


@pytest.mark.parametrize(("tags", "found"),
                         [(["cell"], "seen alt printed"),
                          (["cell", "tag_hide-input"], "alt printed")])
def test_folded_code_is_not_said(tags, found):
    "The code of a folded cell is left out; what it shows is not."
    from docutils import nodes
    cell = nodes.container("", classes=tags)
    for kind, child in (("cell_input", nodes.literal_block("", "seen")),
                        ("cell_output", nodes.paragraph("", "alt"))):
        cell += nodes.container("", child, classes=[kind])
    assert " ".join(spoken(nodes.section("", cell, nodes.paragraph("", "printed")))) == found


def test_index_is_small(book, index):
    "What the search page loads, on the wire; and it holds claims, names and terms."
    assert len(gzip.compress((book / "searchindex.js").read_bytes(), 6)) <= 300 * 1024
    kinds = [e[0] for e in index["entries"]]
    claims = yaml.safe_load((ROOT / "tfmlib/assets/claims.yml").read_text(encoding="utf-8"))
    assert (kinds.count(KINDS.index("claim")) == len(claims) and kinds.count(1) > 400
            and kinds.count(2) > 150)


def test_links_of_the_index_lead_somewhere(book, index):
    anchors = {}
    for kind, number, anchor, title, *_ in index["entries"]:
        name, anchor = (index["pages"][number][0], f"tfm-{title}" if KINDS[kind] == "name"
                        else slug(title) if anchor == 0 else anchor)
        if name not in anchors:
            anchors[name] = set(re.findall(r'\bid="([^"]+)"',
                                           (book / f"{name}.html").read_text(encoding="utf-8")))
        assert not anchor or anchor in anchors[name], (name, anchor, title)


def test_every_place_that_is_told_is_on_a_page_of_the_book(index):
    places = yaml.safe_load((ROOT / "extensions/defined.yml").read_text(encoding="utf-8"))
    assert ({f"chapters/{place.split('#')[0]}" for place in places.values()}
            <= {page for page, _ in index["pages"]})


def test_solutions_are_not_given_away(index):
    "The words of solutions and wrong answers on practice pages are in no text of theirs."
    cells = [(bool({"mutant", "solution"} & set(c["metadata"].get("tags", ()))),
              "".join(c["source"]))
             for c in notebooks(ROOT)["chapters/practice/04_attention"]["cells"]]
    shown = "".join(text for hides, text in cells if not hides)
    hidden = {words(n)[-1] for hides, text in cells if hides for n in public_names(text)
              if 1 <= n.count("_") < 4 and n not in shown}
    page, at = [p for p, _ in index["pages"]].index("chapters/practice/04_attention"), 0
    said = {w for w, steps in zip(index["words"].split(" "), map(numbers, index["said"].split(" ")),
                                  strict=True)
            if page in {index["entries"][at := at + step // 3 if k else step // 3][1]
                        for k, step in enumerate(steps)}}
    assert len(said) > 200 and len(hidden) > 10 and not hidden & said


# --- the parts ------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, found", [
    ("causal_mask", ["causal", "mask", "causalmask"]),
    ("LayerNorm", ["layer", "norm", "layernorm"]), ("RMSNorm", ["rms", "norm", "rmsnorm"]),
    ("top-p", ["top", "p", "topp"]),
    ("1/√D", ["1", "√", "d", "√d"]), (r"\sqrt{D}", ["√", "d"]), ("the square roots", ["the", "√"]),
    ("a_b_c_d_e", list("abcde")), ("Zürich", ["zurich"]), ("LSTM", ["lstm"]),
    ("rsqrt sqrtm squares", ["rsqrt", "sqrtm", "squares"])])
def test_words(text, found):
    assert words(text) == found


def test_places_that_are_told_are_checked(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("term_places.log.warning", lambda *a, **k: said.append(a[0] % a[1:]))
    (tmp_path / "defined.yml").write_text(
        "gate: 01_a#gates\nlost: 01_a#nowhere\nelsewhere: 99_z#x\n")
    found = [{"page": "chapters/01_a", "anchor": "gates"}]
    assert (told(tmp_path / "defined.yml", found) == {"gate": ("chapters/01_a", "gates"),
            "lost": ("chapters/01_a", "nowhere")})
    assert len(said) == 1 and "chapters/01_a#nowhere" in said[0] and "«lost»" in said[0]
