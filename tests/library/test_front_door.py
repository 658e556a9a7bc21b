"""`import tfmlib`: its tour runs as it is written, its names are there, and they cost little."""
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch

import tfmlib
from tfmlib.__main__ import COMMANDS, SIZES, create_parser, main
from tfmlib.checkpoints import PublishedModel
from tfmlib.many_devices import write_tokens
from tfmlib.workbench import book_text

PAGE = json.loads((Path(__file__).resolve().parents[2] / "chapters/00_library.ipynb").read_text(
    encoding="utf-8"))
LINES = [line.replace("python ", f"{sys.executable} ") for cell in PAGE["cells"]
         if cell["cell_type"] == "markdown"
         for block in re.findall(r"```sh\n(.*?)```", "".join(cell["source"]), re.S)
         for line in block.splitlines()]
NOTEBOOK = ("matplotlib", "IPython", "ipywidgets", "anywidget", "traitlets", "sacrebleu")
TOUCH = """
import json, sys, time
begun = time.process_time()
import torch, numpy
start = time.process_time()
import tfmlib
for name in tfmlib.__all__: getattr(tfmlib, name)
print(json.dumps([time.process_time() - start, start - begun, [m for m in sys.modules if m.partition('.')[0] in set(sys.argv[1:])]]))
"""  # noqa: E501


def test_the_tour_runs_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(line for line in tfmlib.__doc__.splitlines() if line.startswith("    "))
    names = {"text": book_text("v1")[0][:20_000]}
    exec(textwrap.dedent(code), names)
    written = capsys.readouterr().out
    assert (tmp_path / "folder/config.json").is_file() and written.strip()
    assert (names["tfm"].perplexity(names["model"], names["rows"][:4])
            < len(names["tokenizer"].vocab) / 4), "it has learned something"


def test_the_door_is_small_and_leads_where_it_says():
    assert len(tfmlib.__all__) == len(set(tfmlib.__all__)) <= 36
    assert all(name in dir(tfmlib) and getattr(tfmlib, name) is not None for name in tfmlib.__all__)
    assert not {*tfmlib.__all__} & {m.group(1) for m in re.finditer(r"'(\w+)'",
            str(sorted(p.name for p in __import__('pathlib').Path(tfmlib.__file__).parent.iterdir()
                       if p.is_dir())))}, "a name would hide a chapter"


def test_touching_every_name_needs_no_notebook_and_little_time():
    """At most 0.3 seconds of the processor on top of PyTorch, which takes about 1.8 itself: a sixth
    of it where everything is slower.

    As a user has it, who imports for the second time: bytecode is kept, whatever the machine's
    environment says. The best of four, of which the first may still compile; what a notebook needs
    is not imported.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    runs = []
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", TOUCH, *NOTEBOOK], env=environment,
                              capture_output=True, text=True, check=True)
        taken, torch, loaded = json.loads(done.stdout)
        assert loaded == []
        runs.append(taken / max(.3, torch / 6))
        if runs[-1] < 1: return
    raise AssertionError(runs)


# --- the command line -----------------------------------------------------------------------------

@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(tfmlib.__file__).parents[1]))
    (tmp_path / "text.txt").write_text(" ".join(book_text("v1")[0].split())[:20_000],
                                       encoding="utf-8")
    return tmp_path


def test_the_commands_of_the_page_run_one_after_the_other(texts, capsys):
    """As they are written there, each in a process of its own (in the ordinary proof the first, and
    the others in this one); what is fetched or installed is left out."""
    for n, line in enumerate(line for line in LINES
                             if "-m tfmlib " in line and " fetch " not in line):
        if n == 0 or os.environ.get("TFM_WHOLE"):
            done = subprocess.run(line, shell=True, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
            out, err = done.stdout, done.stderr
        else:
            main(shlex.split(line)[3:])
            out, err = capsys.readouterr()
        assert not err and out.strip(), (line, err)
    assert ((texts / "folder/config.json").is_file() and sum("-m tfmlib " in line for line in LINES)
            == len(COMMANDS))


@pytest.mark.whole
def test_two_processes_train_as_the_page_says(texts):
    [line] = [line for line in LINES if line.startswith("torchrun")]
    [export] = [line for line in LINES if "cluster_export" in line]
    write_tokens("ids", [*(texts / "text.txt").read_bytes()])
    done = subprocess.run(
        f"{Path(sys.executable).with_name('torchrun')}{line.removeprefix('torchrun')}", shell=True,
        capture_output=True, text=True)
    assert (done.returncode == 0 and json.loads(done.stdout.strip().splitlines()[-1])["step"]
            == 4), done.stderr
    assert "RANDOM" not in done.stderr
    subprocess.run(export, shell=True, check=True)
    assert torch.isfinite(tfmlib.load("folder").model(torch.arange(9)[None])).all()


def test_a_loaded_model_is_trained_further_and_exported_again(tmp_path):
    config = tfmlib.ModelConfig("decoder", 40, 16, 1, 2, 32, **tfmlib.MODERN)
    tfmlib.export_folder(tmp_path / "a", tfmlib.build(config, seed=0), "llama")
    model, rows = tfmlib.load(tmp_path / "a").model, torch.arange(40).view(4, 10)
    before = tfmlib.perplexity(model, rows)
    tfmlib.train(model, tfmlib.next_token_loss, tfmlib.epochs(rows, size=4), 5,
                 tfmlib.AdamW(tfmlib.parameter_groups(model), 1e-2))
    tfmlib.export_folder(tmp_path / "b", model, "llama")
    after = tfmlib.perplexity(tfmlib.load(tmp_path / "b").model, rows)
    assert after < before and after == tfmlib.perplexity(model.eval(), rows)


SMALL = "train text.txt run --steps 4 --width 16 --layers 1 --heads 2 --kv-heads 1 --length 16 --max-len 32 --rows 4 --vocab-size 260 --every 2".split()  # noqa: E501


def said(words, capsys):
    "What a command ends with."
    with pytest.raises(SystemExit) as ended: main(words)
    return str(ended.value.code) + capsys.readouterr().err


@pytest.fixture
def run(texts):
    "A folder in which a model has been trained."
    main(SMALL)
    return texts / "run"


def complains(words, part, capsys):
    "A command is refused in one line, which begins with its name and says what `part` describes."
    heard = said(words, capsys)
    assert heard.startswith(f"python -m tfmlib {words[0]}: ") and re.search(part, heard), heard
    assert "Traceback" not in heard, heard


def test_an_encoder_writes_nothing(texts, capsys):
    (texts / "enc").mkdir()
    encoder = tfmlib.build(tfmlib.ModelConfig("encoder", 20, 16, 1, 2, max_len=8))
    tfmlib.save_model("enc/model.safetensors", encoder)
    tfmlib.save_tokenizer(tfmlib.Tokenizer(), "enc/tokenizer.json")
    assert "it is no decoder" in said(["generate", "enc", "a"], capsys)


def test_a_run_that_was_interrupted_ends_with_the_same_weights(texts, monkeypatch, capsys):
    main(SMALL)
    whole = tfmlib.load_model("run/model.safetensors").state_dict()
    assert "perplexity" in capsys.readouterr().out
    again = [word.replace("run", "second") for word in SMALL]
    monkeypatch.setattr(tfmlib, "next_token_loss",
                        Mock(wraps=tfmlib.next_token_loss,
                             side_effect=[DEFAULT] * 3 + [KeyboardInterrupt]), raising=False)
    assert "the same command continues" in said(again, capsys)
    monkeypatch.delattr(tfmlib, "next_token_loss")
    main(again)
    second = tfmlib.load_model("second/model.safetensors").state_dict()
    assert second.keys() == whole.keys() and all(second[name].equal(t) for name, t in whole.items())
    assert "rate" in said([*SMALL, "--rate", "1"], capsys), "a run is not continued as another"


@pytest.mark.parametrize("option", [*SIZES, "rate", "dropout"])
def test_a_number_that_cannot_be_is_refused_in_one_line(texts, capsys, option):
    if option == "seed": return main([*SMALL, "--seed", "-1"])
    complains([*SMALL, f"--{option}", "-1"], "got|expected", capsys)


def test_what_is_no_model_no_text_and_no_device_is_named(texts, run, capsys):
    (texts / "bytes").write_bytes(b"caf\xe9")
    (texts / "short").write_text("short")
    (texts / "empty").mkdir()
    (texts / "begun").mkdir()
    (texts / "begun/training").write_bytes(b"")
    for words, part in ((["tokenizer", "bytes", "x"], "text: bytes: byte 3 is not UTF-8"),
                        (["tokenizer", "none", "x"], "none"),
                        (["train", "short", "run"], "text: got"),
                        ([*SMALL, "--device", "tpu9"], "device: got 'tpu9'"),
                        (["generate", "nowhere", "a"], "model: there is no file or folder nowhere"),
                        (["generate", "empty", "a"], "model: empty is neither"),
                        (["generate", "short", "a"], "model: short is neither"),
                        (["export", "empty", "x"], "model: empty is neither"),
                        (["generate", "begun", "a"], "model: begun is not trained to its end")):
        complains(words, part, capsys)
    for more, part in ((["--temperature", "-1"], "top-p: temperature: -1.0"),
                       (["--top-p", "2"], "top_p: 2.0"), (["--top-k", "0"], "top_k: 0"),
                       (["--chat"], "chat: run has no chat template"),
                       (["--tokens", "-3"], "max_new_tokens")):
        assert part in said(["generate", "run", "The", *more], capsys)
    assert "text: ''" in said(["generate", "run", ""], capsys)
    assert ("family" in said(["export", "run", "x", "--family", "gpt5"], capsys)
            and not (texts / "x").exists())


def test_without_a_command_it_says_what_there_is(capsys):
    with pytest.raises(SystemExit) as ended: main([])
    said = capsys.readouterr().out
    assert not ended.value.code and all(name in said for name in COMMANDS)


def test_every_option_is_described():
    [commands] = [action.choices for action in create_parser()._actions if action.choices]
    assert list(commands) == list(COMMANDS)
    for name, parser in commands.items():
        for action in parser._actions:
            assert len((action.help or "").split()) > 1, f"{name} {action.dest}"


def test_a_run_is_continued_only_as_itself(texts, run, capsys):
    """Another text, tokenizer, length or size of a batch is refused by its name, and what the
    run has is left as it was."""
    held = {path.name: path.read_bytes() for path in run.iterdir()}
    (texts / "other.txt").write_text("another text " * 500)
    main("tokenizer other.txt other.json --vocab-size 260".split())
    more = [word.replace("text.txt", "other.txt") for word in SMALL]
    for words, part in ((more, "text"),
                        ([*SMALL, "--tokenizer", "other.json"],
                         "tokenizer: other.json is not that of run"),
                        ([*SMALL, "--length", "8"], "length"),
                        ([*SMALL, "--rows", "2"], "rows"), ([*SMALL, "--seed", "5"], "seed"),
                        ([*SMALL, "--width", "32"], "")):
        complains(words, part, capsys)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == held
    main(SMALL)


def test_a_folder_is_exported_as_its_own_family(texts, run, capsys):
    main("export run folder".split())
    main("export folder again".split())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        assert (texts / "again" / name).read_bytes() == (texts / "folder" / name).read_bytes()
    assert "family" in said("export folder other --family gpt2".split(), capsys)


def test_a_chat_template_is_found_beside_a_model(texts, run, monkeypatch, capsys):
    main("export run folder".split())
    path = texts / "folder/tokenizer_config.json"
    content = json.loads(path.read_text())
    path.write_text(
        json.dumps(content | {"chat_template": "{{ messages[0].content }}{{ eos_token }}:",
                              "eos_token": "!"}))
    write = Mock(return_value="answer")
    monkeypatch.setattr(PublishedModel, "write", write)
    main(["generate", "folder", "why", "--chat"])
    (texts / "folder/chat_template.jinja").write_text("[{{ messages[0].content }}]")
    main(["generate", "folder", "why", "--chat"])
    assert [call.args[0] for call in write.call_args_list] == ["why!:", "[why]"]
    assert capsys.readouterr().out.endswith("answer\nanswer\n")
