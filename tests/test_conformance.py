# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on drivers that conform, and what `calrt conformance` says."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

import calrt
from calrt import conformance, evidence
from calrt.cli import main
from calrt.cli.output import UsageError

RULES_INC = Path(__file__).parent.parent / "csrc/conformance/rules.inc"
DOCS = Path(__file__).parent.parent / "docs/conformance.md"
GROUPS = [
    "ENTRY",
    "ERR",
    "INFO",
    "BUF",
    "LOAD",
    "BIND",
    "JOB",
    "TIME",
    "CANCEL",
    "KV",
    "DATA",
    "TRACE",
    "POLL",
]

# What each is opened with, and how many checks are at least to say something: a kit that skips passes, too.
CONFORMING = [
    ("null", {}, 90),
    ("cpu", {"threads": "1"}, 120),
    ("mock:tiny", {"clock": "virtual"}, 130),
    ("mock:tiny", {}, 120),
    ("mock:tiny", {"completion": "wait"}, 115),
    ("mock:bare", {"clock": "virtual"}, 105),
    ("mock:bare", {}, 95),
    ("mock:dual-chip", {"clock": "virtual"}, 130),
    ("mock:qwen3-30b-a3b", {"clock": "virtual"}, 120),
]


@pytest.mark.parametrize(
    ("spec", "options", "least"),
    CONFORMING,
    ids=[f"{spec}-{'-'.join(options.values())}".rstrip("-") for spec, options, _ in CONFORMING],
)
def test_no_false_alarm(spec: str, options: dict[str, str], least: int) -> None:
    report = conformance.run(spec, options=options)
    assert report.broken == []
    assert report.conforms
    assert sum(check.verdict in ("pass", "known") for check in report.checks) >= least


def test_what_null_cannot_is_declared() -> None:
    report = conformance.run("null")
    known = {check.rule for check in report.checks if check.verdict == "known"}
    assert known == {"LOAD-04", "JOB-03", "JOB-04", "JOB-05", "JOB-08", "JOB-23", "JOB-24", "DATA-01"}


def test_every_rule_has_a_check_and_a_text_in_the_docs() -> None:
    rules = conformance.rules()
    assert [rule.id for rule in rules] == re.findall(
        r'^CONFORMANCE_RULE\("([A-Z]+-\d\d)"', RULES_INC.read_text(), re.M
    )
    assert list(dict.fromkeys(rule.id.split("-")[0] for rule in rules)) == GROUPS
    report = conformance.run("mock:tiny", options={"clock": "virtual"})
    tested = {check.check.split("/")[0] for check in report.checks}
    assert tested == {rule.id for rule in rules}
    page = DOCS.read_text()
    for rule in rules:
        assert f"| `{rule.id}` | {rule.text} |" in page, "tools/conformance_rules.py --write"


def test_capabilities_are_those_of_drivers() -> None:
    with calrt.open("mock") as device:
        names = {cap.name for cap in device.caps}
    assert {rule.capability for rule in conformance.rules()} - {""} <= names


def test_only_and_options() -> None:
    report = conformance.run("cpu", only=["JOB-10", "BUF-05/overflow", "TIME"])
    assert {check.check.split("-")[0] for check in report.checks} == {"JOB", "BUF", "TIME"}
    assert {"JOB-10", "BUF-05/overflow"} < {check.check for check in report.checks}
    with pytest.raises(UsageError, match="NOSUCH"):
        conformance.run("cpu", only=["NOSUCH"])
    with pytest.raises(UsageError, match="no_such_option"):
        conformance.run("cpu", options={"no_such_option": "1"})
    with pytest.raises(UsageError, match="no driver 'nosuch'"):
        conformance.run("nosuch")


def test_without_a_package_the_rest_is_tested(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        conformance.run("cpu", package=tmp_path)


def test_a_preset_is_made_for_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    named = conformance.run("mock:bare", package="preset:bare", only=["ENTRY"])
    assert named.package == conformance.run("mock:bare", only=["ENTRY"]).package
    with calrt.open("null") as device:
        loaded = device.package("preset:bare").directory
    assert conformance.run("null", package="preset:bare", only=["ENTRY"]).package == loaded
    for words, says in (
        (
            ("null", "--package", "preset:nosuch"),
            "--package preset:nosuch: there is no preset 'nosuch'",
        ),
        (("mock:bare", "--package", "preset:tiny"), "this one is mock:bare: load preset:bare"),
    ):
        assert main(["conformance", *words]) == 2
        assert says in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    arguments = ["conformance", "mock:tiny", "--option", "clock=virtual", "--json", "--record", str(file)]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["conforms"] is True
    assert document["driver"] == "mock"
    assert document["device"]["device_class"] == "mock-tiny"
    assert sum(document["counts"].values()) == len(document["checks"])
    recorded = evidence.Evidence.read(file)
    assert recorded.driver == "mock"
    assert recorded.capabilities["kv_read"] == evidence.Verdict("pass", ("KV-09",))
    assert recorded.capabilities["cancel"].verdict == "pass"

    assert main(["conformance", "null"]) == 0
    text = capsys.readouterr().out
    assert "DATA-01: null computes nothing" in text
    assert text.endswith("it conforms\n")

    assert main(["conformance", "--list"]) == 0
    assert capsys.readouterr().out.startswith("ENTRY-01 ")
    assert main(["conformance", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rules"]) == len(conformance.rules())


def test_a_record_that_cannot_be_written_does_not_cost_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: evidence.Evidence, path: str) -> None:
        raise OSError(28, "No space left on device", f"{path}.part")

    monkeypatch.setattr(evidence.Evidence, "write", full)
    words = ["conformance", "null", "--record", str(tmp_path / "x.json")]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out.endswith("it conforms\n")
    assert err == f"calrt: --record {tmp_path / 'x.json'}: No space left on device\n"
    assert main([*words, "--json"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (err, document["conforms"], document["error"]["exit_code"]) == ("", True, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nosuch"],
        ["cpu", "--only", "X"],
        ["cpu", "--option", "x"],
        ["cpu", "--only", "JOB", "--record", "x"],
        ["null", "--record", ""],
    ],
    ids=["nothing", "driver", "only", "option", "record", "no-path"],
)
def test_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("calrt: ")


def program(tmp_path: Path, body: str) -> list[str]:
    """A stand-in for the child that does what `body` says, in shell."""
    path = tmp_path / "child"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return [str(path)]


BEGIN = """echo '{"begin":"JOB-01","rule":"JOB-01"}'\n"""
PASS = """echo '{"check":"JOB-01","rule":"JOB-01","verdict":"pass","why":"","seconds":0.1}'\n"""
END = """echo '{"end":0}'\n"""
HANGS = 2.0  # seconds: on a loaded machine, too, a shell has begun by then


def test_a_crash_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    checks: list[conformance.Check] = []
    words = program(tmp_path, f"{BEGIN}kill -{int(signal.SIGSEGV)} $$")
    assert not conformance._run_child(words, 30, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("JOB-01", "fail")]
    assert "SIGSEGV" in checks[0].why


def test_a_crash_after_the_verdict_is_a_finding(tmp_path: Path) -> None:
    checks: list[conformance.Check] = []
    words = program(tmp_path, f"{BEGIN}{PASS}kill -{int(signal.SIGABRT)} $$")
    assert not conformance._run_child(words, 30, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("JOB-01", "fail")]
    assert "SIGABRT, when it was closed" in checks[0].why


@pytest.mark.parametrize("code", [0, 1, 2, 3])
@pytest.mark.parametrize(("done", "why"), [("", "exit code"), (PASS, "when it was closed")])
def test_a_driver_that_ends_the_process_does_not_pass(tmp_path: Path, code: int, done: str, why: str) -> None:
    checks: list[conformance.Check] = []
    words = program(tmp_path, f"{BEGIN}{done}exit {code}")
    assert not conformance._run_child(words, 30, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("JOB-01", "fail")]
    assert f"exit code {code}" in checks[0].why
    assert why in checks[0].why


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_driver_that_ends_the_process_at_once_does_not_pass(tmp_path: Path, code: int) -> None:
    checks: list[conformance.Check] = []
    assert not conformance._run_child(program(tmp_path, f"exit {code}"), 30, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("ENTRY-01", "fail")]


def test_a_hang_is_a_finding(tmp_path: Path) -> None:
    checks: list[conformance.Check] = []
    words = program(tmp_path, f"{BEGIN}exec sleep 60")
    assert not conformance._run_child(words, HANGS, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("JOB-01", "fail")]
    assert "did not come back" in checks[0].why


def test_a_driver_that_prints_without_end_hangs(tmp_path: Path) -> None:
    checks: list[conformance.Check] = []
    words = program(tmp_path, f"{BEGIN}exec yes tick")
    assert not conformance._run_child(words, HANGS, checks, lambda check, done: None)
    assert [(check.check, check.verdict) for check in checks] == [("JOB-01", "fail")]
    assert "did not come back" in checks[0].why


def test_what_a_driver_prints_is_no_finding(tmp_path: Path) -> None:
    checks: list[conformance.Check] = []
    said = [*("[1]", "{", '{"check":1}', '{"begin":2}', "[" * 100_000), "bye"]
    begin, *middle, end = (f"echo '{text}'\n" for text in ("hello", *said))
    words = program(tmp_path, f"{begin}{BEGIN}{''.join(middle)}{PASS}{END}{end}")
    assert conformance._run_child(words, 30, checks, lambda check, done: None)
    assert [check.verdict for check in checks] == ["pass"]
