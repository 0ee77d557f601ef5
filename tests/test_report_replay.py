# SPDX-License-Identifier: Apache-2.0
"""The run of a report again on mock, and the steps of docs/vendor-driver.md that lead to one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import calrt
from calrt.presets import build_preset
from calrt.report.replay import replay
from test_report import PAGE, adapter, files_of, made, own, tree
from test_server_process import Process

__all__ = ["adapter", "own"]  # fixtures

pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


# ---- the run again -------------------------------------------------------------------------------


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("spec", ["mock", "mock:bare", "calrt076"])
def test_the_run_is_replayed_on_mock_with_the_same_tokens(
    spec: str, with_data: bool, adapter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = "preset:bare" if spec == "mock:bare" else "preset:tiny"
    found, files = made(tmp_path, spec, package=package, with_data=with_data)
    assert found.ok, found.device
    monkeypatch.setenv("CALRT_DRIVER_PATH", "")  # without the driver
    again = replay(tmp_path / "report.zip")
    assert again.same, (again.why, again.told)
    then = tree(files, "device.json")["run"]["requests"]
    assert [row["tokens_sha256"] for row in again.requests] == [row["tokens_sha256"] for row in then]
    calls = tree(files, "jobs.json")["calls"]
    assert again.jobs == sum(calls.get(entry, {"calls": 0})["calls"] for entry in ("submit", "kv_submit"))
    assert again.left == 0
    if with_data:
        assert again.diverged == 0


def test_a_device_that_computed_something_else_is_replayed_with_data_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALRT_LAYERS", "fault:completion flip every=2")
    made(tmp_path, package="preset:tiny", with_data=True)
    assert replay(tmp_path / "report.zip").same
    made(tmp_path, package="preset:tiny")
    again = replay(tmp_path / "report.zip")
    assert not again.same
    assert "others than the 8 recorded" in again.why
    assert again.told


def test_a_record_that_was_changed_is_noticed(tmp_path: Path) -> None:
    made(tmp_path, package="preset:tiny", with_data=True)
    files = files_of(tmp_path / "report.zip")
    lines = files["run/record.jsonl"].decode().splitlines()
    at = max(number for number, line in enumerate(lines) if '"hex"' in line and '"state"' in line)
    row = json.loads(lines[at])
    row["outputs"][0]["hex"] = "7f7f" * (len(row["outputs"][0]["hex"]) // 4)
    lines[at] = json.dumps(row)
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as bundle:
        for name, data in files.items():
            changed = "\n".join(lines).encode() + b"\n" if name == "run/record.jsonl" else data
            bundle.writestr(f"calrt-report/{name}", changed)
    assert not replay(tmp_path / "changed.zip").same


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no")
    with pytest.raises(ValueError, match="is no report of calrt"):
        replay(tmp_path / "text.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as bundle:
        bundle.writestr("x", "y")
    for text, said in (
        ("[1, 2]", "it is no object"),
        ('{"run"', "device.json is damaged"),
        ('{"run": {}, "package": {}}', "lacks what a replay needs"),
        ('{"run": [1], "package": {"graphs": [], "model": 3}}', "lacks what a replay needs"),
    ):
        with zipfile.ZipFile(tmp_path / "damaged.zip", "w") as bundle:
            bundle.writestr("calrt-report/device.json", text)
            bundle.writestr("calrt-report/run/record.jsonl", "{}\n")
        with pytest.raises(ValueError, match=said):
            replay(tmp_path / "damaged.zip")
    with pytest.raises(ValueError, match=r"is no report of calrt: calrt-report/device.json is missing"):
        replay(tmp_path / "other.zip")
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "gone.zip")


# ---- the four steps ------------------------------------------------------------------------------


def test_the_four_steps_of_the_page_are_real(
    adapter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that need no compiler are run as they stand; test_calrt076.py builds against an SDK elsewhere."""
    text = PAGE[PAGE.index("## With the SDK: four steps") : PAGE.index("What the adapter relies on")]
    commands = re.findall(r"`([^`]*(?:cmake -B|calrt|CALRT_\w+=)[^`]*)`", text)
    build = next(command for command in commands if command.startswith("cmake"))
    assert "-DCALRT_SDK_ROOT=" in build
    assert "--target cald_calrt076" in build
    package = build_preset("tiny", driver="calrt076", folder=tmp_path / "package")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, code in (("calrt", "calrt.cli"), ("calrt-server", "calrt.serve.cli")):
        program = f"import sys; from {code} import main; sys.exit(main())"
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CALRT_EVIDENCE")

    def run(start: str) -> str:
        command = next(command for command in commands if command.startswith(start))
        command = command.replace("PACKAGE", str(package))
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    run("calrt conformance isolate:calrt076")
    assert (tmp_path / "evidence.json").is_file()
    shown = run("calrt caps -dev calrt076 -m")
    proven = re.findall(r"^(\w+) .* C0 .*recorded", shown, re.MULTILINE)
    assert {"explicit_positions", "n_valid", "lane_map_any", "completion_callback"} <= set(proven)
    below = set(re.findall(r"^(\S+) +\d+ +C[12] ", shown, re.MULTILINE))
    table = re.findall(r"^\| (`[^|]*) \| C[12] \|", text, re.MULTILINE)
    told = {name for names in table for name in re.findall(r"`([^`]+)`", names)} | {"sdk.outputbuf"}
    by_chance = {"cancel", "queue"}  # on runs that end at once
    assert below - by_chance == told - by_chance
    assert "the device: ok" in run("calrt report")
    assert (tmp_path / "calrt-report.zip").is_file()
    serve = next(command for command in commands if "calrt-server" in command)
    words = shlex.split(serve.partition("calrt-server ")[2].replace("PACKAGE", str(package)))
    assert serve.startswith('CALRT_EVIDENCE="$PWD/evidence.json" ')
    # A stand-in's package shows nothing of a device, which has to be allowed; a vendor's is none.
    environment = {"CALRT_EVIDENCE": str(tmp_path / "evidence.json")}
    with Process(*words, "--allow-unverified", **environment) as server, server.ready() as client:
        answer = client.post("/completion", json={"prompt": [1, 2, 3], "n_predict": 4, "temperature": 0})
        assert answer.json()["tokens_predicted"] == 4
