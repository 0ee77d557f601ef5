# SPDX-License-Identifier: Apache-2.0
"""docs/devices.md: what it tells a stranger to type works, and its table is what the presets allow."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import httpx
import pytest

import calrt
from calrt.presets import PRESETS
from test_server_process import Process

PAGE = (pathlib.Path(__file__).resolve().parent.parent / "docs/devices.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHELL = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]

pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="needs the mock driver")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"CALRT_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith(".venv/bin/calrt ")])
def test_a_command_works(line: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "calrt", *shlex.split(line)[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_second_and_the_third_command_say_the_same(environment: dict[str, str]) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-m", "calrt", *shlex.split(line)[1:]],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
        ).stdout
        for line in SHELL
        if " run " in line and " mock" in line
    ]
    assert len(said) == 2
    assert len(set(said)) == 1


def test_the_server_answers_the_request(environment: dict[str, str]) -> None:
    (server,) = (shlex.split(line) for line in SHELL if line.startswith(".venv/bin/calrt-server"))
    (request,) = (shlex.split(line) for line in SHELL if line.startswith("curl "))
    assert server[-2:] == ["--port", "8080"]
    assert request[1].startswith("http://127.0.0.1:8080/")
    with Process(*server[1:-2], **environment) as process:
        with process.ready() as client:
            url = request[1].replace("http://127.0.0.1:8080", str(client.base_url).rstrip("/"))
            answer = httpx.post(url, content=request[3], timeout=60)
            assert answer.status_code == 200
            assert answer.json()["tokens_predicted"] == 16
        assert process.end() == 0, process.log


@pytest.mark.parametrize("code", PYTHON)
def test_python_runs_as_written(code: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert "DEVICE_LOST reopen_device" in done.stdout


def test_the_table_is_what_the_presets_allow() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)`[^|]*\|(.*)\|$", PAGE, re.MULTILINE))
    for name, preset in PRESETS.items():
        geometry, sizes, *_ = rows[name].split("|")
        numbers = [
            int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", sizes.replace(", ", " "))
        ]
        assert numbers == [*preset.profiles, *preset.chunks], name
        most = preset.cells["max"] if isinstance(preset.cells, dict) else max(preset.cells)
        assert f"{most:,}" in geometry, name
