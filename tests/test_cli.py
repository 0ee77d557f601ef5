# SPDX-License-Identifier: Apache-2.0
"""The `calrt` command: text and JSON of each subcommand, exit codes, errors, examples."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import calrt
from calrt.cli import main, make_parser
from calrt.cli.output import EXIT_CODES
from calrt.perf import row_fault
from test_conformance_defects import driver

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_EVIDENCE", str(tmp_path_factory.mktemp("evidence")))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process: exit code, stdout, stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # help
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def document(cli: Run, *words: str | Path, code: int = 0) -> Any:
    """The one JSON document that a command with --json prints, and nothing else."""
    got, out, err = cli(*words, "--json")
    assert (got, err) == (code, "")
    return json.loads(out)


# ---- devices, caps ------------------------------------------------------------------------------


def test_devices(cli: Run) -> None:
    rows = {row["device"]: row for row in document(cli, "devices")["devices"]}
    assert rows.keys() >= {"cpu", "null"}
    assert rows["cpu"]["device_class"] == "cpu-ref"
    code, out, _ = cli("devices")
    assert code == 0
    assert re.search(r"^cpu +cpu \(cpu-ref\), 1 chip, .* driver \d", out, re.M)


def test_a_driver_that_dies_takes_no_other_out_of_the_list(
    cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = Path(driver("broken_missing"))  # its library traps at the first call
    (tmp_path / trap.name).symlink_to(trap)
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(tmp_path))
    rows = {row["device"]: row for row in document(cli, "devices")["devices"]}
    assert re.search(r"DEVICE_LOST .* killed by signal 4 ", rows["broken_missing"]["error"])
    assert rows["cpu"]["device_class"] == "cpu-ref"


def test_caps_is_a_table_with_a_column_for_hardware(cli: Run) -> None:
    code, out, _ = cli("caps", "-dev", "null")
    assert code == 0
    head, *rows = out.splitlines()
    assert re.split(r"  +", head) == [
        "capability",
        "value",
        "level",
        "subject",
        "source",
        "CalRT 0.7.6 hardware",
    ]
    with calrt.open("null") as device:
        assert len(rows) == len(device.caps) > 0
    assert all(row.endswith("no figure") for row in rows)
    assert re.search(r"^cancel +0 +C0 +null +null: .*no figure$", out, re.M)


def test_caps_as_json(cli: Run) -> None:
    found = document(cli, "caps", "-dev", "cpu")
    assert found["device"] == "cpu"
    assert {frozenset(cap) for cap in found["caps"]} == {
        frozenset(("name", "level", "value", "subject", "source", "hardware"))
    }
    assert {(cap["level"], cap["subject"], cap["hardware"]) for cap in found["caps"]} == {(0, "cpu", None)}


def test_caps_of_a_model(cli: Run) -> None:
    assert document(cli, "caps", "-m", "preset:tiny") == document(cli, "caps")


# ---- run ----------------------------------------------------------------------------------------

SHORT = ("-m", "preset:tiny", "-t", "1", "-n", "5", "--seed", "3")


def test_run_continues_a_prompt(cli: Run) -> None:
    found = document(cli, "run", *SHORT, "-p", "ka lo")
    assert (found["device"], found["model"], found["prompt"]) == ("cpu", "preset:tiny", "ka lo")
    assert found["text"]
    code, out, err = cli("run", *SHORT, "-p", "ka lo")
    assert (code, out) == (0, found["text"] + "\n")
    assert "loading: done" in err


def test_run_of_random_requests_ends_with_a_balance(cli: Run) -> None:
    words = ("run", "-m", "preset:tiny", "-t", "1", "-n", "8", "--requests", "30", "--seed", "5")
    found = document(cli, *words)
    assert found["balanced"]
    assert found["imbalances"] == found["failures"] == []
    assert found["free_lanes"] == found["lanes"] == 4
    assert found["reserved_cells"] == found["jobs_in_flight"] == 0
    assert sum(found["finishes"].values()) == found["requests"] == 30
    assert found["finishes"]["cancelled"] > 0
    assert document(cli, *words)["tokens_sha256"] == found["tokens_sha256"]
    assert document(cli, *words[:-1], "6")["tokens_sha256"] != found["tokens_sha256"]
    code, out, err = cli(*words)
    assert code == 0
    assert out.splitlines()[-1] == "balanced"
    assert "4 of 4 lanes free, 0 cells reserved" in out
    assert "running (30 requests)" in err


MOCKS = ("tiny", "bare")


@pytest.mark.parametrize("preset", MOCKS)
def test_random_requests_get_the_right_answers_whatever_the_schedule(preset: str, cli: Run) -> None:
    if "mock" not in calrt.drivers():
        pytest.skip("the driver mock is not built")
    words = ("run", "-dev", f"mock:{preset}", "-m", f"preset:{preset}", "--requests", "12", "-n", "6")
    first, again = document(cli, *words), document(cli, *words)
    assert first["balanced"]
    assert again["tokens_sha256"] == first["tokens_sha256"]


def test_a_run_that_does_not_balance_fails(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kv:
        asked = 0

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def snapshot(self, lane: int) -> dict[str, Any]:
            Kv.asked += 1  # each of the four lanes at the begin and at the end
            reserved = 7 if (Kv.asked - 1) % 8 >= 4 else 0
            return {"state": "RESERVED", "length": 0, "reserved": reserved, "job_seq": 0}

    real = calrt.Model.kv.func  # type: ignore[attr-defined]
    monkeypatch.setattr(calrt.Model, "kv", property(lambda model: Kv(real(model))))
    words = ("run", "-m", "preset:tiny", "-t", "1", "-n", "2", "--requests", "2")
    found = document(cli, *words, code=1)
    assert (found["balanced"], found["reserved_cells"]) == (False, 28)
    assert found["imbalances"] == ["28 cells are reserved"]
    code, out, _ = cli(*words)
    assert code == 1
    assert [line.split() for line in out.splitlines()[-5:]] == [
        ["imbalance:", "28", "cells", "are", "reserved"],
        ["NOT", "balanced", "begin", "end", "difference"],
        ["free", "lanes", "4", "4", "+0"],
        ["reserved", "cells", "0", "28", "+28"],
        ["jobs", "in", "flight", "0", "0", "+0"],
    ]


def test_a_request_that_fails_is_told_as_an_error(null_package: Path) -> None:
    from calrt.workload import plan, run

    with calrt.open("null", layers="fault:submit status=EXECUTION_FAILED native=77 nth=2") as device:
        model = device.load(null_package, lanes=2, cells=64)
        outcome = run(model, plan(model, 4, 1, max_tokens=4))
        assert not outcome.balanced
        assert len(outcome.failures) == 1
        assert "EXECUTION_FAILED (calrt 24, native 77): " in outcome.failures[0]
        assert "(24, 77" not in outcome.failures[0]
        assert outcome.begin == {"free_lanes": 2, "reserved_cells": 0, "jobs_in_flight": 0}


# ---- bench --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names", "unit"),
    [
        (("copy", "-dev", "null", "--sizes", "64,4096"), ["copy.h2d.host", "copy.d2h.host"] * 2, "us"),
        (("bf16", "--sizes", "1000"), ["bf16.from_f32", "bf16.to_f32"], "elem/s"),
        (("submit",), ["submit.graph.decode_b1", "submit.slot.decode_b1"], "us"),
    ],
)
def test_bench(words: tuple[str, ...], names: list[str], unit: str, cli: Run, tmp_path: Path) -> None:
    out_file = tmp_path / "rows.jsonl"
    found = document(cli, "bench", *words, "--rounds", "2", "--out", out_file)
    assert found["schema"] == "calrt.perf/1"
    assert [row["name"] for row in found["rows"]] == names
    assert [row_fault(row) for row in found["rows"]] == [None] * len(names)
    assert {row["unit"] for row in found["rows"]} == {unit}
    assert all(row["limit"] > 0 and row["load"] >= 0 for row in found["rows"])
    assert [json.loads(line)["kind"] for line in out_file.read_text().splitlines()] == [
        "run",
        *["bench"] * len(names),
        "end",
    ]
    code, out, err = cli("bench", *words, "--rounds", "1")
    assert code == 0
    assert re.split(r"  +", out.splitlines()[0])[2:] == ["value", "limit or peer", "unit", "ratio", "load"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == names
    assert "measuring: done" in err


def test_a_device_that_works_has_no_limit_of_submit(cli: Run) -> None:
    rows = document(cli, "bench", "submit", "-dev", "cpu", "--rounds", "1")["rows"]
    assert [(row["limit"], row["ratio"]) for row in rows] == [(None, None)] * 2


# ---- exit codes, errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run",), 2, "-m/--model"),
        (("run", "-m", "preset:tiny", "-n", "0"), 2, "-n/--predict: 0 is outside 1.."),
        (("run", "-m", "preset:tiny", "-n", "many"), 2, "-n/--predict: 'many' is no whole number"),
        (("run", "-m", "preset:tiny", "--temp", "-1"), 2, "--temp: -1 is not a finite number of 0 or more"),
        (("run", "-m", "preset:tiny", "--temp", "nan"), 2, "--temp: nan"),
        (("run", "-m", "preset:tiny", "--seed", "-1"), 2, "--seed: -1 is outside 0..4294967295"),
        (("run", "-m", "preset:tiny", "--requests", "0"), 2, "--requests: 0 is outside 1.."),
        (("run", "-m", "preset:tiny", "--requests", "2", "-p", "x"), 2, "-p/--prompt"),
        (("run", "-m", "preset:tiny", "--compute", "f16"), 2, "--compute: invalid choice: 'f16'"),
        (("run", "-m", "preset:tiny", "-c", "63"), 1, "cells=63"),
        (("run", "-m", "preset:huge"), 1, "there is no preset 'huge'"),
        (("run", "-m", "no/such.gguf"), 1, "no such GGUF file"),
        (("caps", "-dev", "nowhere"), 1, "there is no driver 'nowhere'"),
        (("caps", "--evidence", "no/such"), 1, "evidence: no/such does not exist"),
        (("bench", "copy", "--sizes", "8,x"), 2, "--sizes: 'x' is no whole number"),
        (("bench", "bf16", "--rounds", "0"), 2, "--rounds: 0 is outside 1..1000"),
        (("bench", "warp"), 2, "'warp'"),
        (("bench", "bf16", "--out", "no/such/rows.jsonl"), 1, "no/such/rows.jsonl"),
        (("bench",), 2, "WHAT"),
        (("model",), 2, "ACTION"),
        (("model", "fetch", "gpt9"), 2, "gpt9"),
        (("devices", "--bogus"), 2, "--bogus; see calrt devices -h"),
        (("bench", "copy", "--bogus"), 2, "--bogus; see calrt bench copy -h"),
        (("--bogus",), 2, "see calrt -h"),
        (("run", "-m", "preset:tiny", "--temp", "1e300"), 2, "--temp: 1e300 is more than 1e+30"),
        (("run", "-m", "preset:tiny", "-dev", "mock", "-t", "2"), 2, "-t/--threads: of the cpu device alone"),
        (("caps", "--evidence", ""), 2, "--evidence: an empty path"),
        (("bench", "copy", "--out", ""), 2, "--out: an empty path"),
        (("warp",), 2, "'warp'"),
        (("conformance", "null", "--timeout", "1e99"), 2, "--timeout: 1e99 is more than 1e+06"),
    ],
)
def test_an_error_is_one_line_that_names_the_option(
    words: tuple[str, ...], code: int, says: str, cli: Run
) -> None:
    got, out, err = cli(*words)
    assert (got, out) == (code, "")
    line = err.splitlines()[-1]
    assert line.startswith("calrt: ")
    assert says in line
    assert code == 1 or len(err.splitlines()) == 1
    found = document(cli, *words, code=code)
    assert found.keys() == {"error"}
    assert found["error"]["exit_code"] == code
    assert says in found["error"]["message"]


def test_what_is_no_regular_file_is_not_read(cli: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it would be to wait for a writer
    for file in (pipe, Path("/dev/zero")):
        for words in (
            ("caps", "--evidence", file),
            ("run", "-m", file),
            ("run", "-m", file, "--compute", "f32"),
            ("caps", "-dev", file),
        ):
            code, out, err = cli(*words)
            assert (code, out) == (1, "")
            assert len(err.splitlines()) == 1
    with pytest.raises(calrt.InvalidArgumentError, match="a folder, a pipe or a device"):
        calrt.open("null", layers="replay:/dev/full")
    hole = tmp_path / "hole"
    with open(hole, "wb") as made:
        made.truncate(1 << 36)
    with pytest.raises(calrt.InvalidArgumentError, match="was not written by the record layer"):
        calrt.open("null", layers=f"replay:{hole}")
    with pytest.raises(calrt.InvalidArgumentError, match="an empty path"):
        calrt.open("null", evidence="")


def test_control_characters_are_shown_and_not_obeyed(cli: Run) -> None:
    from calrt.cli.run import _SHOWN

    assert "a\0\x1b[31m\tb\n\x7f".translate(_SHOWN) == "a\u2400\u241b[31m\tb\n\u2421"
    assert "\x9b31m \u202e".translate(_SHOWN) == "\ufffd31m \ufffd"
    _, out, _ = cli("run", "-m", "preset:tiny", "-dev", "null", "-n", "4")
    assert not [letter for letter in out if unicodedata.category(letter) == "Cc" and letter not in "\t\n"]


def test_an_error_of_the_runtime_keeps_its_fields_in_json(cli: Run) -> None:
    error = document(cli, "caps", "-dev", "nowhere", code=1)["error"]
    assert (error["status"], error["code"], error["recovery"]) == ("INVALID_ARGUMENT", 1, "fix_call")


def test_without_a_command_there_is_help(cli: Run) -> None:
    code, out, err = cli()
    assert (code, out) == (2, "")
    assert "calrt run" in err
    assert cli("--version") == (0, f"calrt {calrt.__version__}\n", "")


def spawn(*words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "calrt", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )


@pytest.fixture
def interrupted() -> Iterator[tuple[int, str, str]]:
    """A run that gets SIGINT once it has begun to answer."""
    words = ("run", "-m", "preset:tiny", "-t", "1", "-n", "100000000", "--requests", "1000000", "--json")
    process = spawn(*words, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        yield process.returncode, out, err
    finally:
        process.kill()


def test_an_interrupt_is_130(interrupted: tuple[int, str, str]) -> None:
    code, out, err = interrupted
    assert code == 130, err
    assert json.loads(out)["error"] == {"message": "interrupted", "exit_code": 130}


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "calrt", "caps"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "words",
    [("caps",), ("caps", "--json"), ("caps", "-dev", "nowhere", "--json"), ("serve", "--version")],
    ids=" ".join,
)
def test_a_full_disk_is_one_line(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "calrt", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert [line[:7] for line in done.stderr.splitlines()] == ["calrt: "]


def test_without_a_stdout_there_is_no_traceback() -> None:
    command = ["sh", "-c", 'exec "$0" -m calrt caps >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_stays_one_when_closing_fails(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(device: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise calrt.WaitTimeoutError("a job has not ended")

    monkeypatch.setattr(calrt.Device, "caps", property(interrupted))
    code, _, err = cli("caps")
    assert (code, err) == (130, "calrt: interrupted\n")


# ---- help ---------------------------------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser, name: str = "calrt") -> Iterator[tuple[str, Any]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from parsers(child, f"{name} {word}")


COMMANDS = {name: parser for name, parser in parsers(make_parser()) if name != "calrt serve"}
LEAVES = sorted(name for name, parser in COMMANDS.items() if parser.get_default("command") is not None)


def test_the_commands() -> None:
    assert {name.split()[1] for name in LEAVES} == {
        "devices",
        "caps",
        "run",
        "bench",
        "conformance",
        "probe",
        "report",
        "model",
    }


@pytest.mark.parametrize("name", LEAVES)
def test_each_command_has_json_and_a_help_with_examples_and_exit_codes(name: str, cli: Run) -> None:
    code, out, err = cli(*name.split()[1:], "-h")
    assert (code, err) == (0, "")
    for due in ("--json", "examples:", f"  {name}", "exit codes:", "130"):
        assert due in out, due


def test_the_page_lists_each_command_and_each_exit_code() -> None:
    page = (Path(__file__).parent.parent / "docs" / "cli.md").read_text()
    assert [name for name in LEAVES if f"`{name}" not in page] == []
    assert re.findall(r"^\| (\d+) \|", page, re.M) == re.findall(r"^  (\d+)  ", EXIT_CODES, re.M)


def test_the_page_has_each_variable_that_is_read() -> None:
    root = Path(__file__).parent.parent
    sources = [*(root / "python/calrt").rglob("*.py"), *(root / "csrc").rglob("*.cpp")]
    text = "".join(path.read_text() for path in sources if "tests" not in path.relative_to(root).parts)
    read = set(re.findall(r'(?:getenv|environ\.get|read)\(\s*"(CALRT_[A-Z_]+)"', text))
    table = (root / "docs/cli.md").read_text().partition("## The environment")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(CALRT_[A-Z_]+)`", table)) == read


def examples(text: str) -> list[str]:
    lines = text.partition("examples:")[2].splitlines()
    found = (re.match(r"  (calrt .*?)(?:  +\S.*)?$", line) for line in lines)
    return [match[1] for match in found if match]


ALL_EXAMPLES = sorted({line for parser in COMMANDS.values() for line in examples(parser.epilog or "")})
_SLOW = re.compile(r"smollm2|conformance|serve|bench (copy|bf16|submit)( -dev cpu)?$")
_ELSEWHERE = re.compile(r" calrt076| DIR|/path/|/models/| run\.jsonl|--replay ")  # not every machine has it


def test_every_example_is_a_command_line_that_parses() -> None:
    assert len(ALL_EXAMPLES) > 12
    for line in ALL_EXAMPLES:
        words = shlex.split(line)[1:]
        if words[0] != "serve":
            assert callable(make_parser().parse_args(words).command), line


CHEAP = [line for line in ALL_EXAMPLES if not _SLOW.search(line) and not _ELSEWHERE.search(line)]


@pytest.mark.parametrize("line", CHEAP)
def test_cheap_examples_run(line: str, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where some leave a file
    if "-dev mock" in line and "mock" not in calrt.drivers():
        pytest.skip("the driver mock is not built")
    code, out, err = cli(*shlex.split(line)[1:])
    assert (code, bool(out)) == (0, True), err
    if "--json" in line:
        json.loads(out)
