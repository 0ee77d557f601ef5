# SPDX-License-Identifier: Apache-2.0
"""calrt-server as a process on the cpu device: the published text, streams at once, signals, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fake_server import parse_events
from shared_files import smollm2, stories

PUBLISHED = (
    " Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big, red ball. She wanted to play with it, but it was too high."
)
RUN = "import sys; from calrt.serve.cli import main; sys.exit(main())"
READY = 60.0


class Process:
    """A calrt-server. `log` is what it has written so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, "--port", "0", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def listening(self) -> str:
        end = time.monotonic() + READY
        while (found := re.search(r"listening on (http://\S+)", self.log)) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.01)
        return found[1]

    @contextlib.contextmanager
    def ready(self) -> Iterator[httpx.Client]:
        """A client, once the model is loaded."""
        with httpx.Client(base_url=self.listening(), timeout=60) as client:
            end = time.monotonic() + READY
            while client.get("/health").status_code != 200:
                assert self.process.poll() is None, self.log
                assert time.monotonic() < end, self.log
                time.sleep(0.02)
            yield client

    def end(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def server(cache: str) -> Iterator[Process]:
    arguments = ("-m", str(stories()), "-c", "2048", "-np", "4", "-t", "1", "--temp", "0")
    with Process(*arguments, CALRT_CACHE=cache) as process:
        yield process
        assert process.end() == 0, process.log


@pytest.fixture
def http(server: Process) -> Iterator[httpx.Client]:
    with server.ready() as client:
        yield client


def idle(http: httpx.Client, seconds: float = 10.0) -> None:
    """Every accepted request has ended, and no lane is held."""
    end = time.monotonic() + seconds
    while True:
        requests = http.get("/props").json()["calrt"]["requests"]
        if requests["queued"] + requests["running"] + requests["draining"] == 0:
            assert sum(requests["finished"].values()) == requests["accepted"]
            return
        assert time.monotonic() < end, requests
        time.sleep(0.01)


def test_the_demo_says_what_to_try() -> None:
    smollm2()
    with Process("--demo", "-c", "512", "-np", "1") as process:
        with process.ready() as client:
            end = time.monotonic() + READY
            while "/props" not in process.log:
                assert time.monotonic() < end, process.log
                time.sleep(0.02)
            commands = re.findall(
                r"curl (?:-N )?(http://[^/\s]+)(/\S+)(?: -d '(.*)')?$", process.log, re.MULTILINE
            )
            assert len(commands) == 3
            for url, path, body in commands:
                assert url == str(client.base_url).rstrip("/")
                answer = client.post(path, content=body) if body else client.get(path)
                assert answer.status_code == 200
        assert process.end() == 0, process.log


def test_the_published_text(cache: str) -> None:
    arguments = ("-m", str(stories()), "-c", "2048", "-np", "1")
    with Process(*arguments, CALRT_CACHE=cache) as process:
        with process.ready() as http:
            body = {"prompt": "", "temperature": 0, "n_predict": 120}
            answer = http.post("/completion", json=body).json()
            assert answer["content"].startswith(PUBLISHED)
            assert (answer["tokens_evaluated"], answer["prompt"]) == (1, "<s>")
            assert answer["tokens_predicted"] == 120
            assert http.get("/props").json()["total_slots"] == 1
        assert process.end() == 0


def stream(http: httpx.Client, body: dict[str, Any]) -> str:
    with http.stream("POST", "/completion", json={**body, "stream": True}) as answer:
        return "".join(event["content"] for event in parse_events(answer.read()))


def test_eight_streams_at_once_give_what_each_gives_alone(http: httpx.Client) -> None:
    bodies = [
        {"prompt": f"{name} went to the", "n_predict": 48}
        for name in ["Tom", "Ann", "Lily", "Ben", "Sue", "Max", "Zoe", "Bo"]
    ]
    alone = [stream(http, body) for body in bodies]
    assert len(set(alone)) == 8
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: stream(http, body), bodies)) == alone
    whole = http.post("/completion", json=bodies[0]).json()["content"]
    assert whole == alone[0]
    idle(http)


def test_the_same_seed_gives_the_same_text(http: httpx.Client) -> None:
    body = {"prompt": "Tom", "n_predict": 32, "temperature": 1.0, "seed": 7}
    first = http.post("/completion", json=body).json()["content"]
    assert http.post("/completion", json=body).json()["content"] == first
    assert http.post("/completion", json={**body, "seed": 8}).json()["content"] != first


def test_the_openai_client(http: httpx.Client) -> None:
    with openai.OpenAI(base_url=str(http.base_url).rstrip("/") + "/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "Tell me a story"}]
        whole = client.chat.completions.create(model="m", messages=messages, max_tokens=24)
        parts = client.chat.completions.create(model="m", messages=messages, max_tokens=24, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
        assert text == whole.choices[0].message.content
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24


def test_stop_strings_and_log_probabilities(http: httpx.Client) -> None:
    body = {"prompt": "", "n_predict": 60}
    text = http.post("/completion", json=body).json()["content"]
    answer = http.post("/completion", json={**body, "stop": ["Lily. She"]}).json()
    assert answer["content"] == text[: text.index("Lily. She")]
    assert stream(http, {**body, "stop": ["Lily. She"]}) == answer["content"]
    rows = http.post("/completion", json={**body, "n_predict": 3, "n_probs": 2}).json()
    for row in rows["completion_probabilities"]:
        assert len(row["top_logprobs"]) == 2
        assert row["id"] == row["top_logprobs"][0]["id"]  # greedy draws the best
        assert row["logprob"] <= 0
    banned = [[rows["completion_probabilities"][0]["id"], False]]
    other = http.post("/completion", json={**body, "n_predict": 3, "logit_bias": banned}).json()["content"]
    assert not text.startswith(other)


def test_a_request_that_forbids_every_token_is_refused(http: httpx.Client) -> None:
    vocab = http.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    body = {"prompt": "Tom", "n_predict": 4, "logit_bias": [[token, False] for token in range(vocab)]}
    refused = http.post("/completion", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("Field 'logit_bias': forbids every token")
    assert http.get("/health").status_code == 200
    assert http.post("/completion", json={"prompt": "Tom", "n_predict": 4}).status_code == 200
    idle(http)


def test_killed_clients_free_their_slots(http: httpx.Client) -> None:
    port = http.base_url.port
    for number in range(20):
        raw = json.dumps({"prompt": "Tom", "stream": number % 2 == 0, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
            connection.sendall(head.encode() + raw)
            if number % 4 == 0:
                connection.recv(200)
    idle(http)
    assert http.post("/completion", json={"prompt": "", "n_predict": 4}).status_code == 200


def test_too_long_and_malformed_requests_leave_the_server_well(http: httpx.Client) -> None:
    n_ctx = http.get("/props").json()["default_generation_settings"]["n_ctx"]
    error = http.post("/completion", json={"prompt": "Tom " * n_ctx}).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == n_ctx < error["n_prompt_tokens"]
    for raw in (b"{", b"[" * 100_000, b'{"prompt": [123456789]}', b'{"prompt": "a", "top_p": "x"}'):
        assert http.post("/completion", content=raw).status_code == 400
    full = http.post("/completion", json={"prompt": "Tom", "ignore_eos": True}).json()
    assert (full["truncated"], full["stop_type"]) == (True, "limit")
    assert full["tokens_evaluated"] + full["tokens_predicted"] == n_ctx
    idle(http)


def test_sigterm_lets_a_stream_finish(cache: str) -> None:
    with Process("-m", str(stories()), "-np", "1", CALRT_CACHE=cache) as process:
        with process.ready() as http:
            body = {"prompt": "", "n_predict": 100, "temperature": 0, "stream": True}
            with http.stream("POST", "/completion", json=body) as answer:
                lines = answer.iter_lines()
                first = next(lines)
                process.process.send_signal(signal.SIGTERM)
                events = [json.loads(line[6:]) for line in [first, *lines] if line]
        assert events[-1]["stop"] is True
        assert events[-1]["tokens_predicted"] == 100
        assert process.wait() == 0, process.log


def test_a_second_signal_ends_at_once(cache: str) -> None:
    arguments = ("-m", str(stories()), "-np", "1", "--drain-timeout", "600")
    with (
        Process(*arguments, CALRT_CACHE=cache) as process,
        process.ready() as http,
        socket.create_connection(("127.0.0.1", http.base_url.port), 10) as connection,
    ):
        # A body that never comes keeps a connection busy, so the first signal needs a while.
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        http.get("/health")
        process.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + READY
        while "stopping" not in process.log:
            assert time.monotonic() < end, process.log
            time.sleep(0.005)
        assert process.end(signal.SIGINT) == 128 + signal.SIGINT


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--paralel", "4"], 1, "did you mean --parallel"),
        ([], 1, "give -m FILE.gguf"),
        (["-m", "a", "--demo"], 1, "exclude each other"),
        (["-m", "nowhere.gguf", "--port", "0"], 1, "nowhere.gguf"),
        (["-m", "a", "-dev", "nonsense", "--port", "0"], 1, "nonsense"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    got, stderr = run(*arguments, CALRT_CACHE=str(tmp_path))
    assert got == code, stderr
    assert text in stderr
    assert "Traceback" not in stderr


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stderr = run("-m", "a", "--port", port)
    assert code == 1
    assert f"port {port}" in stderr
    assert "Traceback" not in stderr


def test_help_and_version() -> None:
    done = subprocess.run([sys.executable, "-c", RUN, "-h"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--demo" in done.stdout
