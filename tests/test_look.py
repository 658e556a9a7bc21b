"""Formulas and the pages' frame, as files: KaTeX's version, bad formulas, and what a page must not load."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

katex = pytest.importorskip("sphinxcontrib.katex")
ROOT = Path(__file__).resolve().parents[1]
SERVED = ROOT / "extensions/theme/static/tfm"


def test_katex_style_fits_its_script():
    "The style sheet and fonts are those of the KaTeX that sets the formulas."
    style = (SERVED / "katex/katex.css").read_text()
    script = (Path(katex.__file__).parent / "katex.min.js").read_text()
    assert re.search(r'content:"([\d.]+)"', style)[1] == katex.katex_version
    assert f'version:"{katex.katex_version}"' in script
    fonts = set(re.findall(r"url\(fonts/([^)]+)\)", style))
    assert fonts == {p.name for p in (SERVED / "katex/fonts").iterdir()} and len(fonts) == 20


def sphinx(folder: Path, text: str) -> subprocess.CompletedProcess:
    "Build one page with the book's formula extension."
    (folder / "index.md").write_text(text)
    (folder / "conf.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'extensions')!r})\nextensions = ['myst_parser', 'formulas']\n"
                                    "html_math_renderer = 'katex'\nmyst_enable_extensions = ['dollarmath', 'amsmath']\n")
    return subprocess.run([sys.executable, "-m", "sphinx", "-q", folder, folder / "out"], capture_output=True, text=True, timeout=600, env={"PATH": ""})


@pytest.mark.parametrize("bad", [r"$\frac{1}{$", r"$$ \undefinedmacro{x} $$", r"$é$"])
def test_bad_formula_fails_the_build(tmp_path, bad):
    "Even without -W, and the log says where."
    done = sphinx(tmp_path, f"# Page\n\nA formula: {bad}\n")
    assert done.returncode != 0 and "KaTeX cannot set this formula" in done.stderr and "index.md:3" in done.stderr


def test_formulas_are_set_and_numbered(tmp_path):
    "Finished HTML with MathML inside, one number each, no script."
    done = sphinx(tmp_path, "# Page\n\n$a^2$ and {eq}`law`\n\n$$ E = mc^2 $$ (law)\n\n\\begin{align}\nx &= 1\n\\end{align}\n")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out/index.html").read_text()
    assert page.count('class="katex-html"') == 3 and page.count("<math") == 3 and "eqn-num" not in page and "cdn" not in page
    assert len(re.findall(r'class="eqno">\(\d\)', page)) == 2 and 'href="#equation-law">(1)' in page.replace('class="reference internal" ', "")


def test_pages_load_only_the_book_itself(book):
    "No page names a script, style sheet, font or image of another host; nothing of the stock theme's weight is published."
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preload|icon)"[^>]+href="(?:https?:)?//|url\(["\']?(?:https?:)?//|@import')
    files = [p for kind in ("*.html", "*.css") for p in Path(book).rglob(kind)]
    assert len(files) > 5
    assert not [str(p.relative_to(book)) for p in files if loads.search(p.read_text())]
    names = {p.name for p in Path(book).rglob("_static/**/*")}
    assert not names & {"fontawesome.js", "bootstrap.js", "thebe.js", "clipboard.min.js"} and "book.css" in names
