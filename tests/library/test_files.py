"""Files of models: GGUF and WordPiece against the libraries that write them; what is cut off or
unknown is refused by name."""
import json
import shutil
import struct
import subprocess
import unicodedata

import pytest
import tokenizers
import torch
from refusing import refuses

from tfmlib.workbench import (
    ASSETS,
    FileBytes,
    WordPieceTokenizer,
    cleaned,
    gguf_files,
    lowered,
    read_gguf,
    word_pieces,
    wordpiece,
    words_of,
)

FORMATS = {f.name: f for f in gguf_files.FORMATS.values()}


def text(words: str) -> bytes: return struct.pack("<Q", len(words.encode())) + words.encode()


def fact(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def gguf(facts: list[bytes], tensors: list[tuple[str, list, int, bytes]], version: int = 3,
         step: int = 32) -> bytes:
    "A file, as the format says."
    header, body = (b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(facts))
                    + b"".join(facts), b"")
    for name, shape, kind, data in tensors:
        header += (text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1],
                                            kind, len(body)))
        body += data + bytes(-len(data) % step)
    return header + bytes(-len(header) % step) + body


def written(tmp_path, content: bytes):
    (tmp_path / "a.gguf").write_bytes(content)
    return tmp_path / "a.gguf"


def test_facts_of_every_type(tmp_path):
    facts = [fact("u8", 0, b"\xff"), fact("i8", 1, b"\xff"), fact("u16", 2, b"\xff\xff"),
             fact("i16", 3, b"\xff\xff"), fact("u32", 4, b"\1\0\0\0"), fact("i32", 5, b"\xff" * 4),
             fact("f32", 6, struct.pack("<f", .5)), fact("yes", 7, b"\1"),
             fact("word", 8, text("größe")), fact("u64", 10, struct.pack("<Q", 2**63)),
             fact("i64", 11, b"\xff" * 8),
             fact("f64", 12, struct.pack("<d", .1)),
             fact("list", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
             fact("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
             fact("lists", 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQB", 0, 1, 7)
                  + struct.pack("<IQ", 0, 0))]
    found, tensors = read_gguf(written(tmp_path, gguf(facts, [])))
    assert tensors == {} and found == {"u8": 255, "i8": -1, "u16": 65535, "i16": -1, "u32": 1,
                                       "i32": -1, "f32": .5, "yes": True, "word": "größe",
                                       "u64": 2**63, "i64": -1, "f64": .1,
                                       "list": [1, -2, 3], "words": ["a", ""], "lists": [[7], []]}


@pytest.mark.parametrize("name, kind", [("F32", 0), ("F16", 1), ("BF16", 30), ("Q4_0", 2),
                                        ("Q4_1", 3), ("Q8_0", 8)])
def test_every_format_is_read_as_gguf_reads_it(tmp_path, name, kind):
    "Random bytes: the library's own reader gives the same numbers, bit for bit."
    form, g = FORMATS[name], torch.Generator().manual_seed(kind)
    data = torch.randint(256, (6 * 64 // form.numbers, form.size), generator=g, dtype=torch.uint8)
    if form.numbers == 32: data[:, 1] &= 0x3b                          # a finite scale
    if name == "Q4_1": data[:, 3] &= 0x3b
    if form.numbers == 1: data[:, -1] &= 0x3b
    _, tensors = read_gguf(written(tmp_path,
                                   gguf([],
                                        [("first", [1], 0, bytes(4)),
                                         ("x", [6, 64], kind, bytes(data.flatten().tolist()))])))
    found = tensors["x"].read()
    assert found.shape == (6, 64) and found.dtype == torch.float32 and found.isfinite().all()
    theirs = pytest.importorskip("gguf")
    reader = theirs.GGUFReader(tmp_path / "a.gguf")
    right = torch.from_numpy(theirs.dequantize(reader.tensors[1].data,
                                               reader.tensors[1].tensor_type).astype(
                                                   "float32")).reshape(6, 64)
    assert torch.equal(found, right)


def test_blocks_by_hand():
    "The values are written out here, so that they are checked without the library, too."
    low_high = (torch.tensor([[*range(16)]], dtype=torch.uint8) + 16
                * torch.tensor([[*range(15, -1, -1)]], dtype=torch.uint8))
    nibbles = torch.tensor([[*range(16), *range(15, -1, -1)]]).float()
    half = torch.tensor([[0., .5]]).half().view(torch.uint8)           # 0, then a half
    assert torch.equal(gguf_files.q4_0(torch.cat([half[:, 2:], low_high], 1)), .5 * (nibbles - 8))
    assert torch.equal(
        gguf_files.q4_1(torch.cat([half[:, 2:], torch.tensor([[-1.]]).half().view(torch.uint8),
                                   low_high], 1)), .5 * nibbles - 1)
    signed = torch.arange(-16, 16).to(torch.int8)[None]
    assert torch.equal(gguf_files.q8_0(torch.cat([half[:, 2:], signed.view(torch.uint8)], 1)),
                       .5 * signed.float())


def test_another_alignment_and_the_second_version(tmp_path):
    data = struct.pack("<2f", 3, 4)
    facts = [fact("general.alignment", 4, struct.pack("<I", 64))]
    _, tensors = read_gguf(written(tmp_path,
                                   gguf(facts,
                                        [("a", [2], 0, data), ("b", [2, 1], 0, data)], 2, 64)))
    assert (tensors["b"].begin % 64 == 0 and tensors["b"].read().tolist() == [[3], [4]]
            and tensors["a"].read().tolist() == [3, 4])


TOY = gguf([fact("words", 9, struct.pack("<IQ", 8, 2) + text("one") + text("two"))],
           [("x", [2, 32], 3, bytes(40)), ("y", [3], 0, bytes(12))])


def test_whatever_is_cut_off_is_refused(tmp_path):
    "At every byte, up to the last one of a tensor."
    read_gguf(written(tmp_path, TOY[:-20]))                             # only padding is missing
    for end in range(len(TOY) - 20):
        refuses(r"^(file|path|x|y): ", read_gguf, written(tmp_path, TOY[:end]))


@pytest.mark.parametrize("content, message", [   # ids are short
    (b"PK\3\4" + bytes(100), "path: "), (gguf([], [], version=1), "version: 1"),
    (gguf([], [], version=4), "version: 4"),
    (gguf([fact("a", 13, b"")], []), "file: a value of type 13"),
    (gguf([], [("w", [256], 14, bytes(210))]), "w: got 'Q6_K'"),
    (gguf([], [("w", [256], 99, bytes(210))]), "w: got 99"),
    (gguf([], [("w", [33], 8, bytes(68))]), "w: rows of "),
    (b"", "path: "), (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "file: "),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "file: ")], ids=range(10))
def test_what_is_not_read_is_refused_by_name(tmp_path, content, message):
    refuses(f"^{message}", read_gguf, written(tmp_path, content))


# --- WordPiece ------------------------------------------------------------------------------------

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
         *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'()-",
         *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"), "the", "##ing", "play", "東",
         "##er", "e", "owl"]
IDS = {name: i for i, name in enumerate(dict.fromkeys(NAMES))}


def content(**changes) -> dict:
    special = [{"id": IDS[n], "content": n, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for n in NAMES[:5]]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
            "normalizer": {"type": "BertNormalizer", "clean_text": True,
                           "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                                          {"Sequence": {"id": "A", "type_id": 0}},
                                          {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                                        {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {n: {"id": n, "ids": [IDS[n]], "tokens": [n]}
                                                  for n in ("[CLS]", "[SEP]")}},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": IDS}} | changes


TEXTS = ["The owl's playing!", "Thé ÉLÈVE  played\tin\n東京.", "a" * 100 + " " + "a" * 101,
         "x[MASK]y [mask] [CLS]", "it isn't , they 've ; ' quoted '", "", " ", "İstanbul ΣΑΣ ß ﬁ",
         "a\u200bb\x0bc\x85d\u00a0e\ufffdf",
         "3.14 (9-5)", "naïve café Å", "\U0001f600 smile", "中a文", "가각"]


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_is_that_of_tokenizers(lower):
    described = content(normalizer=content()["normalizer"] | {"lowercase": lower})
    ours, theirs = (WordPieceTokenizer(described),
                    tokenizers.Tokenizer.from_str(json.dumps(described)))
    assert len(ours) == theirs.get_vocab_size()
    for each in TEXTS:
        for special in (True, False):
            assert (ours.encode(each, special)
                    == theirs.encode(each, add_special_tokens=special).ids), each
        ids = ours.encode(each)
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), each


def test_every_character_that_has_kept_its_class_is_normalised_as_there():
    """Of all characters, those whose class has changed since the tables of `tokenizers` were
    made may differ: they are few, and none has its class since Unicode 3.2."""
    norm, pre = (getattr(tokenizers.Tokenizer.from_str(json.dumps(content())), part)
                 for part in ("normalizer", "pre_tokenizer"))

    def same(text: str) -> bool:
        return (words_of(lowered(wordpiece.HAN.sub(r" \1 ", cleaned(text))))
                == [w for w, _ in pre.pre_tokenize_str(norm.normalize_str(text))])
    characters = [*map(chr, [*range(1, 0xd800), *range(0xe000, 0x20000)])]
    # 64 at once, and one by one where these differ
    rows = [characters[i:i + 64] for i in range(0, len(characters), 64)]
    differ = [c for row in rows if not same(" ".join(f"a{c}b" for c in row))
              for c in row if not same(f"a{c}b")]
    old = [c for c in differ if unicodedata.ucd_3_2_0.category(c)
           == unicodedata.category(c) != "Cn"]
    assert len(differ) < 1_000 and not old, [hex(ord(c)) for c in old]


def test_the_longest_piece_is_taken_and_never_given_back():
    assert word_pieces("abc", dict.fromkeys(["ab", "a", "##bc"], 0)) is None
    assert (word_pieces("abc", dict.fromkeys(["ab", "a", "##bc", "##c"], 0)) == ["ab", "##c"]
            and word_pieces("", {}) == [])


@pytest.mark.parametrize("changes, message", [
    ({"model": content()["model"] | {"type": "BPE"}}, "model.type: 'BPE'"),
    ({"normalizer": {"type": "NFC"}}, "normalizer.type: 'NFC'"),
    ({"normalizer": None}, "normalizer.type: None"),
    ({"normalizer": content()["normalizer"] | {"clean_text": False}},
     "normalizer.clean_text: False"),
    ({"normalizer": content()["normalizer"] | {"strip_accents": False}},
     "normalizer.strip_accents: False"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer.type: 'Whitespace'"),
    ({"post_processor": {"type": "RobertaProcessing"}},
     "post_processor.type: 'RobertaProcessing'")])
def test_a_tokenizer_that_works_otherwise_is_refused(changes, message):
    refuses(f"^{message}", WordPieceTokenizer, content(**changes))


def test_what_is_no_text_or_no_id_is_refused():
    tokenizer = WordPieceTokenizer(content())
    refuses("^text: ", tokenizer.encode, ["a"])
    refuses("^ids: ", tokenizer.decode, [10_000])


# --- the figure of a file's bytes -----------------------------------------------------------------

HEADER = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
FILE = struct.pack("<Q", len(HEADER)) + HEADER + bytes.fromhex("803f 0040 4040 80bf 003f 0000")


def test_the_figure_reads_as_torch_does(tmp_path):
    "In both types and from every byte, on the page and in Python."
    if shutil.which("node") is None: pytest.skip("needs node")
    cases = [(kind, start) for kind in ("BF16", "F16") for start in range(67)]
    (tmp_path / "bytes.mjs").write_text((ASSETS / "file_bytes.js").read_text())
    (tmp_path / "run.mjs").write_text(
        'import { number } from "./bytes.mjs"; import fs from "fs"; const [content, cases] = '
        'JSON.parse(fs.readFileSync(0));'
                                      "console.log(JSON.stringify(cases.map(([kind, start]) => [0, "
                                      "2, 4, 6, 8, 10].map(n => String(number(content[start + n], "
                                      "content[start + n + 1], kind))))));")
    found = json.loads(subprocess.run(["node", str(tmp_path / "run.mjs")],
                                      input=json.dumps([[*FILE], cases]), capture_output=True,
                                      text=True, check=True).stdout)
    for (kind, start), read in zip(cases, found, strict=True):
        want = torch.frombuffer(bytearray(FILE[start:start + 12]),
                                dtype={"BF16": torch.bfloat16, "F16": torch.float16}[kind]).double()
        made = FileBytes("the bytes of a file", content=[*FILE], head=66, kind=kind, start=start)
        for numbers in (torch.tensor([float(x.replace("Infinity", "inf")) for x in read]).double(),
                        torch.from_numpy(made.numbers())):
            torch.testing.assert_close(numbers, want, rtol=1e-6, atol=0, equal_nan=True)


def test_the_still_picture_shows_what_is_read():
    made = FileBytes("the bytes of a file", content=[*FILE], head=66, start=65)
    assert (made.told()
            == "Bytes 65 to 76 as BF16: −1.15e-38, 5.79e-39, 3, −5.88e-39, 1.75e-38, 5.79e-39.".replace("e-", "e−"))  # noqa: E501
    assert (made.picture().count("<rect") == 78 + 12 and ">128</text>" in made.picture()
            and "w</text>" in made.picture())
    assert f'<p class="tfm-readout">{made.told()}</p>' in made.figure().html
