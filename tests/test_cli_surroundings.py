# SPDX-License-Identifier: Apache-2.0
"""The command line where something is missing around it: a stream, a home folder, a character."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import calrt
from calrt.cli import main
from calrt.evidence import collect
from calrt.report.redact import Redactor
from fresh_python import CEILING

RECORDED = ["probe", "golden", "-dev", "mock", "--steps", "2"]


def calrt_with(shell: str, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`calrt WORDS` with the redirections of `shell`."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "calrt", *words],
        capture_output=True,
        timeout=CEILING,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    "words",
    [RECORDED, ["bench", "ab", "--rounds", "1", "--steps", "2"], ["conformance", "null", "--only", "ENTRY"]],
    ids=lambda words: words[0],
)
def test_a_closed_stderr_costs_its_lines_alone(words: list[str]) -> None:
    done = calrt_with("2>&-", *words, "--json")
    assert done.returncode == 0, done.stdout
    assert "error" not in json.loads(done.stdout)


def test_an_error_does_not_go_to_stdout_in_place_of_a_closed_stderr() -> None:
    done = calrt_with("2>&-", "caps", "-dev", "nosuch")
    assert (done.returncode, done.stdout) == (1, b"")


def test_without_any_stream_a_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    assert calrt_with("<&- >&- 2>&-", *RECORDED, "--record", str(file)).returncode == 0
    assert json.loads(file.read_bytes())["capabilities"]["golden"]["verdict"] == "pass"


def test_programs_that_are_started_have_all_streams() -> None:
    code = "import os, calrt.cli as cli; cli._prepare_streams(); print([*map(os.get_inheritable, range(3))])"
    shell = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=CEILING)
    assert done.stdout == "[True, True, True]\n"


def test_a_name_that_is_no_text_is_valid_json(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe/x.json"
    done = calrt_with("", *RECORDED, "--json", "--record", os.fsdecode(name), PYTHONUTF8="1")
    assert done.returncode == 2
    assert "\udcff\udcfe" in json.loads(done.stdout.decode("utf-8"))["error"]["message"]


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_what_the_encoding_lacks_is_escaped(flags: list[str], tmp_path: Path) -> None:
    output = tmp_path / "é.zip"
    done = calrt_with("", "report", "null", "--output", str(output), *flags, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["output"] if flags else done.stdout.decode().split(": ")[0]
    assert told == str(output) if flags else told.endswith("\\xe9.zip")


def test_an_abbreviated_json_flag_holds_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caps", "-dev", "nosuch", "--js"]) == 1
    assert "nosuch" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home and without an entry in the list of users, as in many a container."""

    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "CALRT_CACHE", "CALRT_EVIDENCE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(RuntimeError):
        Path.home()


def test_a_user_without_a_home_has_no_evidence_and_no_cache(
    homeless: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(None) == []
    assert main(["caps", "-dev", "null"]) == 0
    capsys.readouterr()
    assert main(["run", "-m", "preset:tiny", "-dev", "mock", "-p", "a"]) == 1
    told = capsys.readouterr().err
    assert "this user has no home folder" in told
    assert "CALRT_CACHE" in told
    assert Redactor().text("~/x and /srv/models/a") == "<path> and <path>"


def test_a_user_without_a_home_records_to_any_folder(homeless: None, tmp_path: Path) -> None:
    from calrt.cli.recording import Recording

    Recording(str(tmp_path / "evidence.json"))
    with pytest.raises(calrt.cli.output.UsageError, match="make it first"):
        Recording(str(tmp_path / "none" / "evidence.json"))
