# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server on loopback over a fake runner, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import httpx
import uvicorn

from calrt.serve.http import application
from calrt.serve.service import Description, Parts, Service, Settings
from calrt.serve.transport import uvicorn_config
from fake_runner import FakeLanes, FakeRunner, FakeTokenizer

_T = TypeVar("_T")


class FakeServer(AbstractContextManager["FakeServer"]):
    """`runner` may be looked at from the test's thread; `call` runs something on the server's loop."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        lanes: int = 2,
        cells: int = 256,
        script: Any = None,
        delay: float = 0.0,
        tokenizer: FakeTokenizer | None = None,
        load: Callable[[], None] = lambda: None,
        send_buffer: int = 0,
        close_seconds: int | None = None,
    ) -> None:
        self.lanes = FakeLanes(lanes, cells)
        self.tokenizer = tokenizer or FakeTokenizer()
        self._wait = load
        self._close_seconds = close_seconds
        self._script, self._delay = script, delay
        self.service = Service(settings or Settings(), self._load)
        self._listener = socket.create_server(("127.0.0.1", 0))
        if send_buffer:  # inherited by the connections
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _load(self) -> Parts:
        self._wait()
        self.runner = FakeRunner(self.tokenizer.vocab_size, True, self._script, self._delay)
        description = Description(name="fake.gguf", path="fake.gguf", n_ctx_train=256)
        return Parts(runner=self.runner, lanes=self.lanes, tokenizer=self.tokenizer, description=description)

    def _run(self) -> None:
        app = application(self.service, lambda error: None)
        self._server = uvicorn.Server(uvicorn_config(app, close_seconds=self._close_seconds))
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        self._loop.run_until_complete(self.service.close(0))
        self._loop.close()

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def ready(self) -> FakeServer:
        """Wait until the model is loaded."""
        self.until(lambda: self.http.get("/health").status_code == 200)
        return self

    def call(self, work: Callable[[], _T]) -> _T:
        """Run `work` on the server's event loop and give its result."""

        async def run() -> _T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait for a condition; fails the test when it does not come."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition did not come"
            time.sleep(0.005)

    def idle(self) -> bool:
        """No request anywhere, every lane free, every accepted request closed."""
        numbers = self.call(lambda: self.service.loaded.engine.statistics()).scheduler
        rest = numbers.queued + numbers.running + numbers.draining
        return rest == 0 and not self.lanes.held and numbers.accepted == numbers.closed

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All events of a stream; "[DONE]" as it is."""
        with self.http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"] == "text/event-stream"
            return parse_events(answer.read())


def parse_events(raw: bytes) -> list[Any]:
    """Server-sent events: each one data line."""
    events = []
    for block in raw.decode().split("\n\n"):
        if block and block != ":":
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events
