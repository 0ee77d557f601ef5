# SPDX-License-Identifier: Apache-2.0
"""`calrt report` as a command: what it refuses before the device is used, what it says, exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import calrt
from calrt.cli import main
from calrt.report.redact import Redactor
from test_conformance_defects import driver
from test_report import adapter, files_of, made, own

__all__ = ["adapter", "own"]  # fixtures

pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


def test_exit_codes_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = str(tmp_path / "r.zip")
    assert main(["report", "mock", "--package", "preset:tiny", "--output", output, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    document = json.loads(said.out)
    assert document["ok"] is True
    assert document["files"].keys() == files_of(Path(output)).keys()
    assert main(["report", "--replay", output, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert main(["report", "--replay", output]) == 0
    assert capsys.readouterr().out.endswith("\nthe same\n")
    assert main(["report", "mock", "--replay", output]) == 2
    words = ["report", "mock", "--force", "--output", output, "--record"]
    assert main([*words, str(tmp_path / "gone")]) == 1
    (tmp_path / "text").write_text("{}\n")
    capsys.readouterr()
    assert main([*words, str(tmp_path / "text"), "--json"]) == 1
    assert "no file of the record layer" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), r"there is no driver 'nowhere': .*mock"),
        (("isolate:nowhere",), "there is no driver 'nowhere'"),
        (("nowhere:0",), "there is no driver 'nowhere'"),
        (("/no/such/libcald_x.so:0",), "there is no file /no/such/libcald_x.so"),
        (("lib/libcald_x.so",), "an absolute path, is due"),
        (("mock", "--package", "preset:nosuch"), "there is no preset 'nosuch': tiny"),
        (("mock", "--package", "no/such"), "--package no/such: no such package directory"),
    ],
)
def test_a_typo_makes_no_report(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "r.zip"
    assert main(["report", *words, "--output", str(output)]) == 2
    said = capsys.readouterr()
    assert re.search(says, said.err)
    assert "report: " not in said.err
    assert not output.exists()


def test_a_device_that_does_not_open_makes_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "r.zip"
    library = driver("broken_no_table")
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(Path(library).parent))
    for spec in ("broken_no_table", f"{library}:0", "mock:nosuch"):
        assert main(["report", spec, "--output", str(output), "--force"]) == 1
        said = capsys.readouterr()
        assert "\nthe device: open: " in said.out
        assert "report: writing" in said.err
        assert "open: " in json.loads(files_of(output)["report.json"])["device"]


def test_a_file_that_exists_is_replaced_by_force_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "r.zip"
    output.write_text("mine")
    assert main(["report", "mock", "--output", str(output)]) == 2
    assert "r.zip exists: name another, or let --force replace it" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main(["report", "mock", "--output", str(output), "--force"]) == 0
    assert "report.json" in files_of(output)
    assert main(["report", "mock", "--output", str(tmp_path), "--force"]) == 1
    assert "is no file: the report is not written there" in capsys.readouterr().err


def test_where_nothing_can_be_written_the_device_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["report", "mock", "--output", str(tmp_path / "no" / "dir" / "r.zip")]) == 0
    shutil.rmtree(tmp_path / "no")
    (tmp_path / "no").write_text("")
    capsys.readouterr()
    assert main(["report", "mock", "--output", str(tmp_path / "no" / "r.zip")]) == 1
    assert "report: open" not in capsys.readouterr().err


def test_only_the_file_is_redacted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = f"{tmp_path}/x.bin is gone"
    monkeypatch.setenv("CALRT_LAYERS", f'fault:model_load status=INTERNAL message="{said}"')
    output = tmp_path / "r.zip"
    assert main(["report", "mock", "--package", "preset:tiny", "--output", str(output)]) == 1
    assert said in capsys.readouterr().out
    assert "<path> is gone" in json.loads(files_of(output)["report.json"])["device"]
    assert Redactor({}).text(said) == "<path> is gone"


def test_a_replay_without_data_says_what_is_the_same(
    adapter: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made(tmp_path, "calrt076", package="preset:tiny")
    assert main(["report", "--replay", str(tmp_path / "report.zip")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"the same tokens; \d+ output hashes or calls differ from the record, "
        "and the outputs themselves were not recorded",
        last,
    )


def test_the_readme_names_what_is_in_it_and_no_index(tmp_path: Path) -> None:
    listed = r"^((?:run|records)/\S+) +\w"
    _, files = made(tmp_path)
    text = files["README.txt"].decode()
    assert re.findall(listed, text, re.MULTILINE) == ["run/record.jsonl", "run/trace.json"]  # of asking
    assert "There is no run in it to replay" in text
    with calrt.open("mock", layers=f"record:{tmp_path / 'r.jsonl'} wait_ms=0"):
        pass
    _, files = made(tmp_path, package="preset:tiny", records=[tmp_path / "r.jsonl"])
    text = files["README.txt"].decode()
    assert re.findall(listed, text, re.MULTILINE) == ["run/record.jsonl", "run/trace.json", "records/1.jsonl"]
    assert "calrt report --replay REPORT.zip" in text
    assert "pip install" not in text
    assert "calrt-report.zip" not in text
