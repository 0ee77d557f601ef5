# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the native runner and its lanes: deterministic tokens, turned by hand or by itself.

A request's tokens depend on its prompt alone: what it gives alone it must give in company. By hand:
`tick()` moves every running request one step. By itself: `auto=True` ticks from the event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

STARTED, PREFILL, TOKEN, ENDED = 1, 2, 3, 4


class FakeKvError(Exception):
    status_class = "kv"


class FakeLane:
    def __init__(self, store: FakeLanes, index: int) -> None:
        self.store = store
        self.index = index

    def release(self) -> None:
        self.store.held.discard(self.index)


class FakeLanes:
    def __init__(self, lanes: int = 2, cells: int = 256) -> None:
        self.lanes = lanes
        self.cells = cells
        self.held: set[int] = set()

    def try_reserve(self, tokens: int, prefer: int | None = None, only: bool = False) -> FakeLane:
        assert prefer is not None
        assert only
        assert 1 <= tokens <= self.cells
        if prefer in self.held:
            raise FakeKvError("no lane")
        self.held.add(prefer)
        return FakeLane(self, prefer)


class _Request:
    def __init__(self, lane: FakeLane, tokens: Sequence[int], max_tokens: int, stop: Sequence[int]) -> None:
        self.lane = lane
        self.tokens = list(tokens)
        self.left = max_tokens
        self.stop = set(stop)
        self.step = 0
        self.cancelled = False


class FakeRunner:
    """`script(prompt, step)` gives the token of a step, None ends with a stop token."""

    def __init__(self, vocab: int = 300, auto: bool = False, script: Any = None, delay: float = 0.0) -> None:
        self.vocab = vocab
        self.auto = auto
        self.delay = delay
        self.script = script or (lambda prompt, step: 4 + (sum(prompt) * 31 + step * 17) % (vocab - 4))
        self.requests: dict[int, _Request] = {}
        self.events: list[tuple[int, int, int, int, Any]] = []
        self.started: list[int] = []
        self.sampling: dict[int, Mapping[str, Any]] = {}
        self.refuse: Exception | None = None
        self.closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._scheduled = False

    def start(
        self,
        request: int,
        lane: FakeLane,
        tokens: Sequence[int],
        *,
        stop_tokens: Sequence[int] = (),
        max_tokens: int,
        deadline_ns: int | None = None,
        sampling: Mapping[str, Any],
    ) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.requests[request] = _Request(lane, tokens, max_tokens, stop_tokens)
        self.started.append(request)
        self.sampling[request] = sampling
        self._schedule()

    def cancel(self, request: int) -> None:
        if request in self.requests:
            self.requests[request].cancelled = True
            self._schedule()

    def tick(self) -> None:
        """One step of every request: first STARTED and PREFILL, then a token each, then ENDED."""
        for number, request in list(self.requests.items()):
            if request.cancelled:
                self._end(number, 4)
            elif request.step == 0:
                self._tell(STARTED, number, 0)
                self._tell(PREFILL, number, len(request.tokens))
                request.step = 1
            else:
                self._token(number, request)

    def _token(self, number: int, request: _Request) -> None:
        token = self.script(request.tokens, request.step - 1)
        if token is None or token in request.stop:
            self._end(number, 1)
            return
        n_probs = int(self.sampling[number]["n_probs"])
        detail = (-0.5, [(token, -0.5)][:n_probs]) if n_probs else None
        self._tell(TOKEN, number, token, detail)
        request.step += 1
        request.left -= 1
        if request.left == 0:
            self._end(number, 2)

    def fail(self, number: int, status: int = 24, text: str = "the device broke") -> None:
        """A running request fails."""
        self._end(number, 6, (status, 0, text))

    def _end(self, number: int, finish: int, detail: Any = None) -> None:
        self.requests.pop(number).lane.release()
        self._tell(ENDED, number, finish, detail)

    def _tell(self, kind: int, request: int, value: int, detail: Any = None) -> None:
        self.events.append((kind, request, value, time.monotonic_ns(), detail))
        os.write(self._write, b"x")

    def _schedule(self) -> None:
        if self.auto and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(self.delay, self._run)

    def _run(self) -> None:
        self._scheduled = False
        if not self.closed:
            self.tick()
            if self.requests:
                self._schedule()

    def fileno(self) -> int:
        return self._read

    def drain(self) -> list[tuple[int, int, int, int, Any]]:
        while True:
            try:
                if not os.read(self._read, 65536):
                    break
            except BlockingIOError:
                break
        events, self.events = self.events, []
        return events

    def statistics(self) -> dict[str, int]:
        return {"active": len(self.requests)}

    def close(self, timeout: float = 10.0) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._read)
            os.close(self._write)


class FakeTokenizer:
    """One token for each byte: id = 4 + byte; 0 <unk>, 1 <s>, 2 </s>, 3 <end>."""

    bos: int | None = 1
    eos: int | None = 2
    eog = frozenset({2, 3})
    add_bos = True
    chat_template: str | None = None

    def __init__(self) -> None:
        self.byte_table = [b"", b"", b"", b"", *(bytes([value]) for value in range(256))]
        self.vocab_size = len(self.byte_table)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        ids = [4 + value for value in text.encode()]
        return [1, *ids] if add_special and self.add_bos else ids

    def fewest(self, text: str) -> int:
        return len(text.encode())

    def token_text(self, token: int) -> str:
        return ["<unk>", "<s>", "</s>", "<end>"][token] if token < 4 else chr(token - 4)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        names = {1: b"<s>", 2: b"</s>"} if special else {}
        raw = b"".join(names.get(token, self.byte_table[token]) for token in tokens)
        return raw.decode("utf-8", "replace")


def echo(text: str) -> Any:
    """A script that says `text` and then ends, for every prompt."""
    raw = text.encode()
    return lambda prompt, step: 4 + raw[step] if step < len(raw) else None
