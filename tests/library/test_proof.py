"""The tools that keep the pages honest, tried on what could fool them."""
import io
import json
import math
import re
import signal
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tfmlib.workbench import (
    Checker,
    ClaimError,
    Mismatch,
    checkers,
    claim,
    claims,
    compared,
    evidence,
    expect,
    gives,
    glue,
    parse_record,
    portable,
    refusal,
    spread,
    timed,
    verdict_of,
)
from tfmlib.workbench import peers as peers_module
from tfmlib.workbench import records as records_module


@pytest.mark.parametrize("yes, no, instead, verdict", [
    ({"a": True}, {}, None, "holds"), ({"a": True}, {"b": True}, None, "holds under a condition"),
    ({}, {"b": True}, True, "imprecise"), ({}, {"b": True}, None, "wrong")])
def test_verdicts(yes, no, instead, verdict):
    assert verdict_of(yes, no, instead) == verdict


def test_booleans_of_any_library_are_evidence():
    assert (evidence({"a": True, "b": np.bool_(True), "c": torch.tensor(False)}, "x")
            == {"a": True, "b": True, "c": False})


def test_claim_box_escapes_and_says_the_same_in_text_and_html():
    made = claim("decimal-sum", true_when={"a < b": True}, false_when=[True], measured="`x` & y")
    bundle = made._repr_mimebundle_()
    assert "a &lt; b" in bundle["text/html"] and "<code>x</code> &amp; y" in bundle["text/html"]
    assert ("for: a < b" in bundle["text/plain"]
            and bundle["application/vnd.tfmlib.claim+json"]["false_when"]
            == {"false_when[0]": True})
    json.dumps(bundle)


def test_refusal_fails_when_nothing_is_refused():
    with pytest.raises(AssertionError, match="accepted what it should refuse"): refusal(len, [])
    assert refusal(int, "x").startswith("ValueError: ")


@pytest.mark.parametrize("got, wanted", [
    (math.nan, math.nan), (torch.tensor([1, 2]), [1., 2.]), (1 + 1e-8, 1.0), (np.float32(1), 1),
    (-math.inf, -math.inf), (1e98, 1e98), (np.array([1., 1.]), np.array([1., 1.]))])
def test_expect_accepts(got, wanted):
    expect(got, wanted)


class Odd:
    "An attempt that makes trouble when it is looked at."
    def __getattr__(self, name): raise RuntimeError(name)
    def __call__(self, x): raise Worse()


class Worse(Exception):
    def __str__(self): raise KeyError("no words")


def leave(x): raise SystemExit(0)
def deep(x): return deep(x)


checker = Checker("double")


@checker.property("it doubles", (np.array([1., 2.]),))
def _(attempt, x): expect(attempt(x), np.array([2., 4.]))


@pytest.mark.parametrize("attempt", [None, 3, dict, pytest.param(Odd(), id="odd"), leave, deep,
                                     lambda: 1, lambda x: None, lambda x: "22", lambda x: x])
def test_a_checker_never_raises(attempt):
    result = checker(attempt)
    assert not result.passed and result.failed == "it doubles" and "\n" not in result.why


def empty(x): raise NotImplementedError("one line")


class Empty:
    def __call__(self, x): return x
    def forward(self, x): raise NotImplementedError("one line")


def relays(x): return empty(x)


def in_words(x): raise NotImplementedError


@pytest.mark.parametrize("attempt, written",
                         [(empty, False), (in_words, False), (Empty, False), (relays, True),
                          (torch.nn.Module, True), (lambda x: 1 / 0, True)])
def test_an_empty_answer_is_not_called_wrong(attempt, written):
    """It fails, but says neither ✗ nor what was tried; an error of the same kind from elsewhere
    is one of the answer's."""
    checker = Checker("double")
    @checker.property("it doubles", (1.,))
    def _(attempt, x):
        expect((attempt().forward if isinstance(attempt, type) else attempt)(x), 2 * x)
    result = checker.examine(attempt)
    assert not result.passed and result.failed == "it doubles" and result.written == written
    assert result.text().startswith("✗ double: not yet\n" if written
                                    else "– double: nothing is written yet\n")


def test_a_result_is_true_if_the_attempt_is_right():
    "So that `assert check(attempt)` means what it says, in a script too."
    check = Checker("three")
    with pytest.raises(ValueError, match="^three: the checker has no property"): check(lambda x: 3)
    for odd in (3, "ab", [1]):
        with pytest.raises(ValueError, match="^cases: got .*expected a tuple"):
            check.property("is three", odd)

    @check.property("is three", (1,), (2,))
    def is_three(attempt, x):
        if attempt(x) != 3: raise Mismatch("no")
    assert check(lambda x: 3) and not check(lambda x: x)


def test_a_checker_sees_an_argument_changed_and_says_that_first():
    def both(x): x *= 3; return x
    assert checker(lambda x: 2 * x).passed
    assert "changed in place" in checker(both).why


def test_differences_that_four_digits_hide_are_shown():
    with pytest.raises(Mismatch,
                       match=r"it, at \[0\], is 0.500002; expected 0.5 \(off by less than 1e-05\)"):
        expect(torch.tensor([0.500002], dtype=torch.float64),
               torch.tensor([0.5], dtype=torch.float64))
    with pytest.raises(Mismatch, match="it is 0.500002; expected 0.5 "): expect(0.500002, 0.5)
    with pytest.raises(Mismatch,
                       match="right in its first digits only, off by less than 1e-08; expected more"):  # noqa: E501
        expect(torch.ones(2).double() + 3e-9, torch.ones(2), tol=1e-12)
    with pytest.raises(Mismatch, match=r"at \[70\], is 1; expected 0"):
        expect(torch.arange(99) == 70, torch.zeros(99))
    # a distance that has no size
    for wrong in (math.nan, math.inf):
        with pytest.raises(Mismatch, match="some of the numbers are not finite"):
            expect(torch.full((65,), wrong), torch.zeros(65))


SAID = [(lambda: expect([0.5], torch.tensor([0.5]))),
        (lambda: expect(torch.arange(99), torch.arange(99) - 1)), (lambda: expect(1 + 1e-5, 1.)),
        (lambda: expect(torch.full((2, 2), math.nan), torch.full((2, 2), math.inf))),
        (lambda: gives([np.int64(3)], [3])),
        (lambda: gives([[1, (2, np.int64(3))]], [[1, (2, 3)]])),
        (lambda: gives([*range(99)], [*range(98), 0])), (lambda: gives("a" * 999, "a" * 998 + "b")),
        (lambda: gives((True,), (1,)))]


@pytest.mark.parametrize("check", SAID, ids=range(len(SAID)))
def test_nothing_is_expected_to_be_what_it_is(check):
    with pytest.raises(Mismatch) as found: check()
    seen, right = re.search(r" is (.*); expected (.*)$", str(found.value), re.S).groups()
    assert seen != right.removesuffix(" (off by less than 1e-05)") and len(str(found.value)) < 400


def test_the_ledger_is_read_without_the_fast_loader_too(monkeypatch):
    loaders = []
    monkeypatch.setattr(yaml, "load", lambda text, loader: loaders.append(loader) or [])
    claims.ledger.__wrapped__()
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    claims.ledger.__wrapped__()
    assert loaders[1] is yaml.SafeLoader
    assert issubclass(loaders[0], yaml.constructor.SafeConstructor)


def test_what_is_long_is_shortened():
    for value in ([0] * 9_999, ("a",) * 9_999, "a" * 9_999, b"a" * 9_999,
                  {i: i for i in range(9_999)}, torch.zeros(9_999), [["a" * 9_999]]):
        assert len(checkers.short(value)) < 120 and "999" in checkers.short(value)
    assert checkers.short([1, 2.5, "a"]) == "[1, 2.5, 'a']"


def test_an_argument_near_a_whole_number_is_told_from_it():
    assert ([checkers.argument(x) for x in (1 - 1e-9, 1., 0.9, 1e-12, -math.inf, 2.00001)]
            == ["1 - 1e-09", "1", "0.9", "1e-12", "-inf", "2 + 1e-05"])


def test_the_checkers_own_error_is_not_the_learners():
    picky = Checker("pair")

    @picky.property("it gives a pair", (1,))
    def _(attempt, x): expect(attempt(x)[1] + 1, 2.)
    assert "what it returned cannot be used (TypeError" in picky(lambda x: None).why
    assert ("it raised ZeroDivisionError" in picky(lambda x: 1 / 0).why
            and "it raised ValueError" in picky(lambda x: (lambda y: int("x"))(x)).why)


def endless(x):
    while True:
        try: x += 1
        except Exception: pass


def test_what_has_no_end_is_stopped():
    quick, rang = Checker("end", seconds=0.2), []

    @quick.property("it ends", (0.9999999,))
    def _(attempt, x): attempt(x)
    before = signal.signal(signal.SIGPROF, lambda *_: rang.append(1))
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.6)
        assert (quick(endless).why
                == "it had no end after 0.2 s of the processor's time (with 1 - 1e-07)")
        assert signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL and not rang
        start = time.process_time()
        while not rang and time.process_time() < start + 5: pass
        # an alarm that was set before still rings
        assert rang
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    # no alarm there, and no error
    with ThreadPoolExecutor() as pool:
        assert pool.submit(quick.examine, lambda x: x).result().passed


def test_spread_and_timed():
    assert spread([3]) == {"median": 3.0, "n": 1}, "one run has no quantiles"
    assert spread(range(11)) == {"median": 5.0, "q10": 1.0, "q90": 9.0, "n": 11}
    assert spread([0., 10.]) == {"median": 5.0, "q10": 1.0, "q90": 9.0, "n": 2}
    ran = []
    took = timed({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 3)
    assert "".join(ran) == "abababab" and took["a"]["n"] == 3


whole = {"name": "n", "command": "c", "device": "d", "driver": "1", "versions": {"torch": "2"},
         "commit": "abc", "date": "2026-01-01", "seed": 0,
         "rows": [{"N": 1, "ms": spread([1.0])}]}


NAN, INF = math.nan, math.inf
ONCE = spread([1.0])
REFUSED = [
    # claims
    *[(ClaimError, None, lambda yes=yes, no=no: verdict_of(yes, no)) for yes, no in (
        ({"a": False}, {}), ({}, {"a": False}), ({"a": True, "b": False}, {}),
        ({"a": True}, {"b": False}), ({}, {}))],
    *[(ClaimError, "^instead: ", lambda given=given: verdict_of(*given)) for given in (
        ({}, {"b": True}, False), ({"a": True}, {}, True), ({"a": True}, {"b": True}, True))],
    *[(TypeError, "expected a boolean", lambda x=x: evidence([x], "true_when")) for x in (
        0.3, 1, 0, None, "yes", torch.tensor([True]), np.array([True, False]), torch.tensor(1))],
    (ClaimError, "the cell finds «holds», the ledger says",
     lambda: claim("decimal-sum", true_when=[True])),
    (ClaimError, "not in the ledger", lambda: claim("no-such-claim", true_when=[True])),
    (TypeError, "^text: 3", lambda: glue("n", 3)),
    # checkers
    (ValueError, "^cases: ", lambda: Checker("x").property("y")),
    *[(Mismatch, None, lambda got=got, wanted=wanted: expect(got, wanted)) for got, wanted in (
        (NAN, 1.0), (1.0, NAN), (torch.tensor([1., NAN]), torch.ones(2)),
        (torch.ones(2), torch.ones(1, 2)), (torch.ones(1), 1.0), (None, 1.0), ("1", 1.0),
        ([1.0], 1.0), (torch.tensor(1 + 2j), torch.tensor(1.)), (INF, -INF), (1 + 1e-5, 1.0))],
    *[(Mismatch, None, lambda given=given: expect(*given)) for given in (       # in 64 bits
        (1e99, 1e98, 1e-6), (INF, 1e98, 1e-6), (1 + 1e-9, 1., 1e-12),
        (np.array([1., 1 + 1e-9]), [1., 1.], 1e-12))],
    # records
    *[(ValueError, "^values: ", lambda x=x: spread(x)) for x in ([], [NAN])],
    (ValueError, "^repeats: 0", lambda: timed({}, 0)),
    *[(ValueError, f"lacks {field}", lambda field=field: parse_record(
        json.dumps({k: v for k, v in whole.items() if k != field})))
      for field in records_module.RECORD_FIELDS],
    *[(ValueError, "row 0", lambda row=row: parse_record(json.dumps(whole | {"rows": [row]})))
      for row in (
        {"N": 1}, {"N": 1, "ms": 3.0}, {"N": 1, "ms": {"median": 1}},
        {"N": 1, "ms": ONCE, "gb": 0.5}, {"ms": {"median": None, "n": 1}},
        {"ms": {"median": 1, "n": 0}}, {"ms": {"median": 1, "q10": 1, "q90": 1, "n": 1}},
        {"ms": {"median": 1, "n": 2}}, {"ms": {"median": INF, "q10": 1, "q90": 1, "n": 2}})],
    # what another machine may not get
    *[(ValueError, "^value", lambda x=x: portable(x)) for x in (
        1 / 3, 7.1234567e-07, NAN, INF, np.float64(1 / 3), np.bool_(True), torch.tensor(True),
        {"a": [1, {"b": 0.1 + 0.2}]}, {1, 2})],
]


@pytest.mark.parametrize("error, said, call", REFUSED)
def test_what_could_fool_a_tool_is_refused(error, said, call):
    with pytest.raises(error, match=said): call()


def test_circumstances_fill_a_record():
    made = records_module.circumstances("abc")
    assert set(made) == {"device", "driver", "versions", "commit", "date"} and all(made.values())


@pytest.mark.parametrize("case", [[3., 1.], {"x": [3., 1.]}, (torch.tensor([3., 1.]),)])
def test_arguments_inside_lists_and_mappings_are_watched(case):
    watcher = Checker("keep")

    @watcher.property("it returns nothing", (case,))
    def _(attempt, value): attempt(value)

    def write(value):
        inner = value["x"] if isinstance(value, dict) else value
        (inner[0].zero_() if isinstance(inner, tuple) else inner.sort())
    assert watcher(lambda value: None).passed and "changed in place" in watcher(write).why


def quantiles_of_one(value) -> list[dict]:
    """The spreads, at any depth, of a single measurement that claim quantiles, or have more
    numbers than measurements."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    bad = (isinstance(value, dict) and (value.get("n") == 1 and {"q10", "q90"} & value.keys()
                                        or isinstance(value.get("each"), list)
                                        and len(value["each"]) != value.get("n")))
    return [value] * bool(bad) + [found for one in inner for found in quantiles_of_one(one)]


def test_no_record_has_quantiles_of_a_single_run():
    paths = sorted((Path(records_module.__file__).parents[1] / "assets/records").glob("*.json"))
    assert len(paths) > 60
    assert ({path.stem: found for path in paths
             if (found := quantiles_of_one(json.loads(path.read_text(encoding="utf-8"))))} == {})
    assert (
        len(quantiles_of_one(
            {"rows": [{"ms": {"median": 1, "n": 1, "q10": 1},
                       "at": [{"median": 2, "n": 2, "each": [1]}, {"median": 1, "n": 1}]}]})) == 2)


def test_a_record_that_is_missing_is_named_and_one_that_is_broken_is_an_error(monkeypatch):
    missing = records_module.recorded("nobody", lambda record: record.source)
    assert "nobody" in repr(missing) and "make bench-gpu" in missing._repr_html_()
    assert records_module.recorded("attention_cost", lambda record: record.name) == "attention_cost"
    monkeypatch.setattr(records_module, "load_record",
                        lambda name: records_module.parse_record("{}"))
    with pytest.raises(ValueError, match="lacks"):
        records_module.recorded("attention_cost", lambda record: record.name)


MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"


@pytest.mark.parametrize("smi, module, driver",
                         [("570.1\n570.1\n", None, "570.1"), (None, MODULE, "570.86.15"),
                          ("", MODULE, "570.86.15"), (None, None, "unknown"),
                          (None, "nothing", "unknown")])
def test_a_gpu_says_its_driver_where_anybody_knows_it(monkeypatch, smi, module, driver):
    "A machine may have neither nvidia-smi nor the kernel module's file, and still be measured."
    def run(*_, **__):
        if smi is None: raise FileNotFoundError
        return types.SimpleNamespace(stdout=smi)
    def opened(*_):
        if module is None: raise FileNotFoundError
        return io.StringIO(module)
    monkeypatch.setattr(records_module.subprocess, "run", run)
    monkeypatch.setattr(records_module, "open", opened, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert ({key: records_module.circumstances("abc")[key]
             for key in ("device", "driver", "commit")} == {"device": "a GPU", "driver": driver,
                     "commit": "abc"})


def test_a_record_says_what_it_lacks():
    row = {"ms": spread([1.0])}
    assert parse_record(json.dumps(whole | {"rows": [row]})).missing == []
    assert (parse_record(json.dumps(whole | {"rows": [row], "complete": False,
                                             "missing": ["speed: 3 of 44 cases"]})).missing
            == ["speed: 3 of 44 cases"])


# --- comparisons with other libraries -------------------------------------------------------------

@pytest.fixture
def records(tmp_path, monkeypatch):
    """An empty package folder, with one result on record, and a peer that can be imported:
    `peer_lib` 1.2."""
    (tmp_path / "assets").mkdir()
    file = tmp_path / "assets/compared.json"
    file.write_text('{"known": {"with": "peer_lib 1.0", "value": {"alike": true, "n": 3}}}')
    monkeypatch.setattr(peers_module, "files", lambda package: tmp_path)
    peer = types.ModuleType("peer_lib")
    peer.__version__, peer.answer = "1.2", 3
    monkeypatch.setitem(sys.modules, "peer_lib", peer)
    (tmp_path / "broken_lib.py").write_text("import absent_lib")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TFM_PEERS", raising=False)
    return file


def agrees(): return {"alike": True, "n": import_module("peer_lib").answer}
def needs_absent(): return import_module("absent_lib").answer


def needs_newer():
    from peer_lib import newer
    return newer


def misspells_our_import():
    from tfmlib.workbench import portabel
    return portabel


def fails(): raise RuntimeError("inside")


def test_a_comparison_that_can_be_made_is_made_and_must_agree(records, capsys):
    before = records.read_text()
    for peers in ("optional", "required"):
        assert (compared("known", "peer_lib", "ours with theirs", agrees, peers)
                == {"alike": True, "n": 3})
        for other in (lambda: {"alike": True, "n": 4}, lambda: {"alike": 1, "n": 3},
                      lambda: {"n": 3, "alike": True}):
            with pytest.raises(ClaimError, match=r"^known: compared here with peer_lib 1.2: .* on "
                                                 r"record, with peer_lib 1.0"):
                compared("known", "peer_lib", "ours with theirs", other, peers)
    assert records.read_text() == before and capsys.readouterr().out == ""


@pytest.mark.parametrize("packages, compute, line", [
    ("absent_lib", needs_absent,
     "absent_lib is not installed, so this cell does not compare ours with theirs."),
    ("peer_lib absent_lib", fails, "absent_lib is not installed, so"),
    ("peer_lib broken_lib", fails,
     "broken_lib cannot be imported (No module named 'absent_lib'), so"),
    ("broken_lib peer_lib", fails,
     "broken_lib cannot be imported (No module named 'absent_lib'), so"),
    ("peer_lib", needs_newer,
     "peer_lib 1.2 does not have what this cell needs (cannot import name 'newer'"),
    ("peer_lib", lambda: import_module("peer_lib").newer,
     "peer_lib 1.2 does not have what this cell needs (module 'peer_lib' has no attribute 'newer')"),  # noqa: E501
    ("peer_lib", lambda: import_module("peer_lib.newer"),
     "peer_lib 1.2 does not have what this cell needs (No module named 'peer_lib.newer'")])
def test_one_that_cannot_be_made_says_so_in_one_line_and_the_record_takes_its_place(records, capsys,
        packages, compute, line):
    assert compared("known", packages, "ours with theirs", compute) == {"alike": True, "n": 3}
    said = capsys.readouterr().out
    assert (said.startswith(line)
            and said.endswith("It uses the result recorded with peer_lib 1.0.\n")
            and said.count("\n") == 1)
    for peers in ("required", "record"):
        with pytest.raises((ImportError, AttributeError)):
            compared("known", packages, "ours with theirs", compute, peers)


@pytest.mark.parametrize("compute, error", [
    (fails, RuntimeError), (lambda: import_module("torhc"), ModuleNotFoundError),
    (lambda: peers_module.portabel, AttributeError), (misspells_our_import, ImportError),
    (lambda: {"n": 1 / 3}, ValueError)])
def test_an_error_inside_a_comparison_surfaces(records, compute, error):
    with pytest.raises(error):
        compared("known", "peer_lib", "ours with theirs", compute, "optional")


def test_the_environment_says_whether_peers_are_required(records, monkeypatch, capsys):
    monkeypatch.setenv("TFM_PEERS", "required")
    with pytest.raises(ModuleNotFoundError):
        compared("known", "absent_lib", "ours with theirs", needs_absent)
    monkeypatch.setenv("TFM_PEERS", "sometimes")
    with pytest.raises(ValueError,
                       match="^TFM_PEERS: 'sometimes'; expected optional or required or record"):
        compared("known", "peer_lib", "it", agrees)


def test_a_result_is_recorded_only_when_asked(records):
    for peers in ("optional", "required"):
        with pytest.raises(ValueError, match="^key: 'new'"):
            compared("new", "peer_lib", "ours with theirs", agrees, peers)
    compared("new", "peer_lib", "ours with theirs", lambda: ("é", 1), "record")
    compared("known", "peer_lib", "ours with theirs", lambda: {"n": 4}, "record")
    assert (records.read_text().splitlines()[1:-1]
            == ['"known": {"with": "peer_lib 1.2", "value": {"n": 4}},',
                '"new": {"with": "peer_lib 1.2", "value": ["é", 1]}'])
    assert compared("new", "absent_lib", "ours with theirs", needs_absent) == ["é", 1]


def test_a_portable_result_is_what_json_gives_back():
    value = {"a": (1, 2.5, None), 3: {"below 1e-6": True}, "s": "x", "n": 123456., "m": 10**12}
    assert (json.loads(json.dumps(portable(value))) == portable(value)
            == {"a": [1, 2.5, None], "3": {"below 1e-6": True}, "s": "x", "n": 123456.,
                "m": 10**12})


def test_a_comparison_does_not_move_the_generator(records):
    "What is drawn after it is the same whether or not it was made."
    torch.manual_seed(0)
    without = torch.rand(3)
    torch.manual_seed(0)
    compared("known", "peer_lib", "ours with theirs", lambda: agrees()
             if torch.manual_seed(torch.randint(9, ()).item()) else None)
    assert torch.equal(torch.rand(3), without)
