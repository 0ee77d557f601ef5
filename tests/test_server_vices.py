# SPDX-License-Identifier: Apache-2.0
"""A server on the stand-in SDK, which hangs, aborts and crashes under load: mock knows each right answer.

Ten deaths; CALRT_LONG=1 (`make long`) makes it a hundred.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import calrt
from test_conformance_defects import driver
from test_server_process import Process
from test_server_recovery import LOST, children, wait_for

LONG = os.environ.get("CALRT_LONG", "") not in ("", "0")
DEATHS = 100 if LONG else 10
PROMPT = [5, 6, 7]
TOKENS = 24
BODY = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
PATIENCE_S = 0.5
"""Of the isolate layer: a hang is a death so much later, and at most a quarter more."""
TOLD_S = 1.0
"""From the death of a device to the answer of each request that it had."""
VICES = (
    "abort@{n}:infer",
    "call_never_returns@{n}:infer",
    "segfault@{n}:wait",
    "wait_never_returns@{n}",
    "run_never_ends@{n}",
    "segfault@{n}:outbuf_acquire",
    "call_never_returns@{n}:outbuf_release",
    "apply_spins@{few}",
    "abort@{few}:kv_apply",
    "call_never_returns:query,call_answers@{n}:wait=29",
)
"""Each is one process's, which is good at first and dies of it then. Cells are applied at its start alone."""


class Load:
    """Clients that ask until they are told to stop: what they were answered, when, and when drivers died."""

    def __init__(self, url: str, right: list[int], process: int, clients: int = 4) -> None:
        self.right, self.url, self.process = right, url, process
        self.answered = 0
        self.wrong: list[str] = []
        self.failed_at: list[float] = []
        self.died_at: list[float] = []
        self.health_s: list[float] = []
        self._stop = threading.Event()
        work = [self._ask] * clients + [self._look, self._watch]
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except httpx.HTTPError as error:  # each request is to be answered
            self.wrong.append(repr(error))

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._stop.is_set():
                answer = client.post("/completion", json=BODY)
                if answer.status_code == 200:
                    self.answered += 1
                    if answer.json()["tokens"] != self.right:
                        self.wrong.append(answer.text)
                elif answer.status_code == 503:
                    if answer.json()["error"].get("status") == LOST:  # it was running
                        self.failed_at.append(time.monotonic())
                    time.sleep(0.02)
                else:
                    self.wrong.append(answer.text)

    def _look(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._stop.wait(0.02):
                began = time.monotonic()
                if client.get("/health").status_code not in (200, 503):
                    self.wrong.append("/health")
                self.health_s.append(time.monotonic() - began)

    def _watch(self) -> None:
        lived: set[int] = set()
        while not self._stop.wait(0.005):
            live = set(children(self.process))
            if lived - live:
                self.died_at.append(time.monotonic())
            lived = live

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def oracle() -> list[int]:
    """What mock answers to BODY, with logits as the files of CalRT have them."""
    with calrt.open("mock:tiny") as device, device.load("preset:tiny", logits_dtype="bf16") as model:
        return model.generate(PROMPT, max_tokens=TOKENS, temperature=0, stop_tokens=())


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Process]:
    """Starts a server on the isolated adapter with these flags; `vices` as the stand-in's switch."""
    path = Path(driver("calrt076")).parent

    def start(vices: str, *flags: str) -> Process:
        return Process(
            *("-m", "preset:tiny", "-dev", "isolate:calrt076", "--allow-unverified", *flags),
            CALRT_DRIVER_PATH=str(path),
            CALRT_STANDIN_VICES=vices,
            CALRT_ISOLATE_DEADLINE=str(PATIENCE_S),
            CALRT_CACHE=str(tmp_path / "cache"),
            CALRT_LOCK_DIR=str(tmp_path),  # other tests have the device, too
        )

    return start


@pytest.mark.timeout(1800 if LONG else 240)
def test_hangs_aborts_and_crashes_under_load_leave_only_right_answers(
    serve: Callable[..., Process], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    right = oracle()
    lives = [VICES[i % len(VICES)].format(n=300 + 17 * (i % 7), few=20 + i % 7) for i in range(DEATHS)]
    vices = tmp_path / "vices"
    vices.write_text("".join(f"{vice}\n" for vice in lives))
    with serve(f"@{vices}", "-np", "8", "--recoveries", str(DEATHS)) as server:
        with server.ready() as client:
            props = client.get("/props").json()
            assert props["total_slots"] == 8
            assert props["calrt"]["hardware_batch"] == 1
            load = Load(str(client.base_url), right, server.process.pid)
            wait_for(lambda: f"recovery {DEATHS} of {DEATHS}" in server.log, 30 + 10 * DEATHS)
            wait_for(lambda: client.get("/health").status_code == 200)
            before = load.answered
            wait_for(lambda: load.answered > before + 8)
            load.stop()
            assert not load.wrong
            assert vices.read_text() == ""
            struck = re.findall(r"standin_sdk: vice (\w+) (\w*)", server.log)
            assert {name for name, _ in struck} >= {re.split("[@:]", vice)[0] for vice in VICES}
            assert before > DEATHS
            assert len(load.failed_at) >= DEATHS / 2
            late = [min(abs(at - death) for death in load.died_at) for at in load.failed_at]
            record_property("worst_s_from_death_to_answer", round(max(late), 3))
            record_property("worst_s_of_health", round(max(load.health_s), 3))
            assert max(late) <= TOLD_S
        assert server.end() == 0
        assert not children(server.process.pid)


def test_the_budget_of_a_server_ends_in_failed(serve: Callable[..., Process]) -> None:
    """Each process aborts: the usual budget is spent, and the server says what to do, and lives."""
    with serve("abort@3:infer") as server:
        with server.ready() as client:
            statuses: list[int | None] = []

            def spent() -> bool:
                error = client.post("/completion", json=BODY).json()["error"]
                statuses.append(error.get("status"))
                return "used up" in client.get("/health").text

            wait_for(spent)
            assert statuses.count(LOST) == 4  # it was loaded, and opened anew three times
            health = client.get("/health")
            assert health.status_code == 503
            message = health.json()["error"]["message"]
            assert "signal 6" in message
            assert "3 in 600 s" in message
            assert client.post("/completion", json=BODY).json()["error"]["message"] == message
            assert not children(server.process.pid)
        assert server.end() == 0
