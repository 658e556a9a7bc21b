"""`import tfmlib`: its tour runs as it is written, its names are there, and they cost little."""
import json
import os
import re
import subprocess
import sys
import textwrap

import tfmlib
from tfmlib.workbench import book_text

NOTEBOOK = ("matplotlib", "IPython", "ipywidgets", "anywidget", "traitlets", "sacrebleu")
TOUCH = """
import json, sys, time
begun = time.process_time()
import torch, numpy
start = time.process_time()
import tfmlib
for name in tfmlib.__all__: getattr(tfmlib, name)
print(json.dumps([time.process_time() - start, start - begun, [m for m in sys.modules if m.partition('.')[0] in set(sys.argv[1:])]]))
"""


def test_the_tour_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(line for line in tfmlib.__doc__.splitlines() if line.startswith("    "))
    names = {"text": book_text("v1")[0][:20_000]}
    exec(textwrap.dedent(code), names)
    written = capsys.readouterr().out
    assert (tmp_path / "folder/config.json").is_file() and written.strip()
    assert names["tfm"].perplexity(names["model"], names["rows"][:4]) < len(names["tokenizer"].vocab) / 4, "it has learned something"


def test_the_door_is_small_and_leads_where_it_says():
    assert len(tfmlib.__all__) == len(set(tfmlib.__all__)) <= 30
    assert all(name in dir(tfmlib) and getattr(tfmlib, name) is not None for name in tfmlib.__all__)
    assert not {*tfmlib.__all__} & {m.group(1) for m in re.finditer(r"'(\w+)'", str(sorted(p.name for p in __import__('pathlib').Path(tfmlib.__file__).parent.iterdir() if p.is_dir())))}, "a name would hide a chapter"


def test_touching_every_name_needs_no_notebook_and_little_time(tmp_path):
    """At most 0.3 seconds of the processor on top of PyTorch, which takes about 1.8 itself: a sixth of it where everything is slower.

    As a user has it, who imports for the second time: bytecode is kept (in a folder of the test's, whatever the machine's
    environment says). The best of three; what a notebook needs is not imported.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    run = [sys.executable, "-c", TOUCH, *NOTEBOOK]
    subprocess.run(run, env=environment, capture_output=True, check=True)
    runs = [json.loads(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert [loaded for *_, loaded in runs] == [[]] * 3
    assert min(taken / max(.3, torch / 6) for taken, torch, _ in runs) < 1, runs
