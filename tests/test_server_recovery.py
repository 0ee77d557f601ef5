# SPDX-License-Identifier: Apache-2.0
"""A server whose device is lost opens it anew, as often as it may; what it answers is right or an error."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import calrt
from calrt.errors import error_for
from calrt.serve.service import Settings
from fake_server import FakeServer
from test_server_process import Process

LOST = 27
DEATHS = 10
BODY = {"prompt": [5, 6, 7], "n_predict": 24, "temperature": 0, "return_tokens": True}


def lose(server: FakeServer, text: str = "gone") -> httpx.Response:
    """The next request finds the device lost."""
    server.call(lambda: setattr(server.runner, "refuse", error_for(LOST, text)))
    return server.http.post("/completion", json=BODY)


def test_a_lost_device_is_opened_anew_and_answers_as_before() -> None:
    with FakeServer(settings=Settings(recoveries=1)) as server:
        server.ready()
        before = server.http.post("/completion", json=BODY).json()["tokens"]
        first = server.runner
        answer = lose(server)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["status"] == LOST
        assert "gone" in answer.json()["error"]["message"]
        server.until(lambda: server.runner is not first)
        server.ready()
        assert server.http.post("/completion", json=BODY).json()["tokens"] == before
        assert first.closed


def test_the_budget_ends_in_failed_and_says_so() -> None:
    with FakeServer(settings=Settings(recoveries=2, recovery_window=600)) as server:
        server.ready()
        for _ in range(2):
            last = server.runner
            lose(server)
            server.until(lambda last=last: server.runner is not last)  # type: ignore[misc]
            server.ready()
        last = server.runner
        lose(server, "a third time")
        server.until(lambda: "used up" in server.http.get("/health").text)
        health = server.http.get("/health")
        assert health.status_code == 503
        message = health.json()["error"]["message"]
        assert "a third time" in message
        assert "2 in 600 s" in message
        refused = server.http.post("/completion", json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == message
        assert server.runner is last


def test_a_device_that_does_not_come_back_is_tried_within_the_budget() -> None:
    tries: list[None] = []

    def load() -> None:
        tries.append(None)
        if len(tries) > 1:
            raise error_for(LOST, "still gone")

    with FakeServer(settings=Settings(recoveries=2), load=load) as server:
        server.ready()
        lose(server)
        server.until(lambda: "used up" in server.http.get("/health").text or len(tries) == 3)
        server.until(lambda: server.service.failure is not None)
        health = server.http.get("/health")
        assert health.status_code == 503
        assert "still gone" in health.json()["error"]["message"]
        assert len(tries) == 3


def test_while_it_is_opened_anew_requests_are_refused_with_the_reason() -> None:
    go = threading.Event()
    loads: list[None] = []

    def load() -> None:
        loads.append(None)
        if len(loads) > 1:
            assert go.wait(20)

    with FakeServer(load=load) as server:
        server.ready()
        lose(server, "the child was killed")
        server.until(lambda: len(loads) == 2)
        refused = server.http.post("/completion", json=BODY)
        assert refused.status_code == 503
        assert "being opened again: " in refused.json()["error"]["message"]
        assert "the child was killed" in refused.json()["error"]["message"]
        go.set()
        server.ready()


def test_no_recovery_is_a_choice() -> None:
    with FakeServer(settings=Settings(recoveries=0)) as server:
        server.ready()
        lose(server)
        server.until(lambda: "0 in 600 s" in server.http.get("/health").text)


def children(process: int) -> list[int]:
    """The isolated drivers of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        if name.startswith("calrt-isolate") and int(rest[1]) == process and rest[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
    return found


@pytest.mark.skipif("mock" not in calrt.drivers(), reason="needs the driver mock")
@pytest.mark.timeout(240)
def test_killed_drivers_under_load_leave_only_right_answers(tmp_path: Path) -> None:
    """SIGKILL, SIGSEGV and SIGABRT in turn: what is answered is right, the rest is an error."""
    deaths = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
    with Process(
        *("-m", "preset:tiny", "-dev", "isolate:mock", "--recoveries", str(DEATHS)),
        CALRT_CACHE=str(tmp_path / "cache"),
    ) as server:
        with server.ready() as client:
            url = str(client.base_url)
            right = client.post("/completion", json=BODY).json()["tokens"]
            assert len(right) == 24
            wrong: list[Any] = []
            answered, failed = [0], [0]
            stop = threading.Event()

            def load() -> None:
                with httpx.Client(base_url=url, timeout=60) as own:
                    while not stop.is_set():
                        answer = own.post("/completion", json=BODY)
                        if answer.status_code == 200:
                            answered[0] += 1
                            if answer.json()["tokens"] != right:
                                wrong.append(answer.json())
                        elif answer.status_code == 503:
                            failed[0] += 1
                            time.sleep(0.02)
                        else:
                            wrong.append(answer.text)

            clients = [threading.Thread(target=load, daemon=True) for _ in range(4)]
            for each in clients:
                each.start()
            for death in range(DEATHS):
                (child,) = wait_for(lambda: children(server.process.pid))
                before = answered[0]
                wait_for(lambda before=before: answered[0] > before + 2)  # type: ignore[misc]
                os.kill(child, deaths[death % len(deaths)])
                wait_for(lambda child=child: child not in children(server.process.pid))  # type: ignore[misc]
                wait_for(lambda: children(server.process.pid))
                wait_for(lambda: client.get("/health").status_code == 200)
            before = answered[0]
            wait_for(lambda: answered[0] > before + 4)
            stop.set()
            for each in clients:
                each.join(60)
                assert not each.is_alive()
            assert not wrong
            assert failed[0] > 0
            assert server.log.count(" of 10") >= DEATHS
        assert server.end() == 0
        assert not children(server.process.pid)


@pytest.mark.skipif("mock" not in calrt.drivers(), reason="needs the driver mock")
def test_a_server_whose_device_hangs_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """The hang would be noticed in ten minutes; the server does not wait for that, and leaves nothing."""
    with Process(
        *("-m", "preset:tiny", "-dev", "isolate:mock", "--drain-timeout", "0.2"),
        CALRT_CACHE=str(tmp_path / "cache"),
        CALRT_LOCK_DIR=str(tmp_path),
        CALRT_ISOLATE_DEADLINE="600",
    ) as server:
        with server.ready() as client:
            (child,) = children(server.process.pid)
            os.kill(child, signal.SIGSTOP)
            answers: list[httpx.Response] = []
            asking = threading.Thread(
                target=lambda: answers.append(client.post("/completion", json=BODY)), daemon=True
            )
            asking.start()
            url = client.base_url.join("/props")
            wait_for(lambda: httpx.get(url, timeout=60).json()["calrt"]["requests"]["running"])
            assert server.end(seconds=60) == 0
            asking.join(60)
            assert answers[0].status_code == 503
            assert "has not ended" in server.log
        wait_for(lambda: not Path(f"/proc/{child}").exists())
