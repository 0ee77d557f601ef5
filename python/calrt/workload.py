# SPDX-License-Identifier: Apache-2.0
"""A random workload on a loaded model, and the balance that must hold at its end.

    outcome = run(model, plan(model, 50, seed=7)); assert outcome.balanced

All requests follow from the seed, and which of them are to be cancelled; so do the tokens of all others,
whatever the schedule: two runs of one plan have the same `tokens_sha256`. How far a cancelled one gets before
its cancel takes effect does not follow: with it vary the counts of tokens, and of what ended cancelled.
"""

from __future__ import annotations

import hashlib
import random
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from calrt._arguments import seconds, whole
from calrt._core import ENDED, TOKEN, Lane, StepRunner
from calrt._enums import Status
from calrt.errors import CalrtError, error_for
from calrt.model import Model
from calrt.progress import Progress, silent

__all__ = ["Outcome", "Request", "plan", "run"]

FINISHES = {1: "stop", 2: "length", 3: "context", 4: "cancelled", 5: "deadline", 6: "failed"}
_CANCELLED_SHARE = 0.2
_SETTLE_S = 5.0  # lanes of cancelled requests come back once their last job has ended


@dataclass(frozen=True)
class Request:
    """One request. `cancel_after`: tokens after which it is cancelled, 0 = at once, None = never."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    cancel_after: int | None


@dataclass(frozen=True)
class Outcome:
    """What came of a workload. `tokens` and `prompt_tokens` are the runner's own counts.

    `tokens_sha256`: of the tokens of all requests that were not cancelled, in the plan's order.
    `begin`: free_lanes, reserved_cells and jobs_in_flight before the first request, to hold the end against.
    `imbalances`: what does not add up, one text each; none if the run is sound.
    """

    requests: int
    finishes: dict[str, int]
    prompt_tokens: int
    tokens: int
    tokens_sha256: str
    seconds: float
    lanes: int
    free_lanes: int
    reserved_cells: int
    jobs_in_flight: int
    begin: dict[str, int]
    failures: list[str]
    imbalances: list[str]

    @property
    def balanced(self) -> bool:
        """Whether everything adds up, and nothing failed."""
        return not self.imbalances


def plan(
    model: Model, requests: int, seed: int, *, max_tokens: int = 128, temperature: float = 0.8
) -> list[Request]:
    """Random requests for a model. Prompts are short more often than long; a fifth will be cancelled."""
    whole("requests", requests, 1, 1_000_000)
    whole("max_tokens", max_tokens, 1, (1 << 31) - 1)
    draw = random.Random(whole("seed", seed, 0, (1 << 32) - 1))
    longest = max(1, model.cells - 1)
    made = []
    for _ in range(requests):
        length = min(longest, int(longest ** draw.random()))
        budget = draw.randint(1, min(max_tokens, model.cells))
        cancelled = draw.random() < _CANCELLED_SHARE
        made.append(
            Request(
                prompt=tuple(draw.randrange(model.vocab) for _ in range(length)),
                max_tokens=budget,
                temperature=temperature,
                seed=draw.getrandbits(32),
                cancel_after=draw.randrange(budget) if cancelled else None,
            )
        )
    return made


def _failure(detail: Any) -> str:
    """What the runner tells of a failed request, as its error would be."""
    status, native, text = detail
    return str(error_for(status, text, native_code=native))


@dataclass
class _Live:
    """A request that was started, or is over."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    cancelled: bool = False
    finish: str = ""


def run(
    model: Model, requests: Sequence[Request], progress: Progress = silent, *, timeout: float = 60.0
) -> Outcome:
    """Runs the requests on all lanes of the model, which must all be free.

    `progress(what, done, total)` counts requests. A job counts as lost after a third of `timeout`: its
    requests fail and the rest goes on. Raises `WaitTimeoutError` if nothing happens for `timeout` seconds,
    and what the runtime refuses.
    """
    seconds("timeout", timeout)
    if model.kv.free_lanes() != model.lanes:
        text = f"{model.lanes - model.kv.free_lanes()} of {model.lanes} lanes are held: a workload needs all"
        raise error_for(Status.INVALID_STATE, text)
    runner = StepRunner(model.native, job_timeout=timeout / 3, in_flight=model.in_flight)
    try:
        return _Run(model, runner, requests, progress, timeout).outcome()
    finally:
        runner.close()


class _Run:
    """One workload on its way."""

    def __init__(
        self,
        model: Model,
        runner: StepRunner,
        requests: Sequence[Request],
        progress: Progress,
        timeout: float,
    ) -> None:
        self._model = model
        self._runner = runner
        self._progress = progress
        self._timeout = timeout
        self._all = [_Live(request) for request in requests]
        self._waiting = deque(range(len(requests)))
        self._ended = 0
        self._failures: list[str] = []
        self._faults: list[str] = []
        self._begin = self._holdings()

    def outcome(self) -> Outcome:
        """Runs to the end and takes stock."""
        begin = time.perf_counter()
        self._report()
        while self._ended < len(self._all):
            self._start()
            ready, _, _ = select.select([self._runner], [], [], self._timeout)
            if not ready:
                left = len(self._all) - self._ended
                text = f"nothing happened for {self._timeout:g} s, {left} of {len(self._all)} requests left"
                raise error_for(Status.WAIT_TIMEOUT, text)
            self._take_events()
            self._report()
        return self._stock(time.perf_counter() - begin)

    def _report(self) -> None:
        self._progress("running", self._ended, len(self._all))

    def _start(self) -> None:
        while self._waiting and self._model.kv.free_lanes():
            index = self._waiting[0]
            request = self._all[index].request
            room = min(self._model.cells, len(request.prompt) + request.max_tokens)
            try:
                lane: Lane = self._model.kv.try_reserve(room)
            except CalrtError as error:
                nobody_runs = self._ended + len(self._waiting) == len(self._all)
                if error.status_class not in ("kv", "capacity") or nobody_runs:
                    raise
                return  # one of the free lanes is still being emptied
            self._waiting.popleft()
            self._runner.start(
                index,
                lane,
                request.prompt,
                max_tokens=request.max_tokens,
                stop_tokens=sorted(self._model.stop_tokens),
                sampling={"temperature": request.temperature, "seed": request.seed},
            )
            if request.cancel_after == 0:
                self._cancel(index)

    def _cancel(self, index: int) -> None:
        self._all[index].cancelled = True
        self._runner.cancel(index)

    def _take_events(self) -> None:
        for kind, index, value, _, detail in self._runner.drain():
            live = self._all[index]
            if kind == TOKEN:
                live.tokens.append(value)
                if live.finish:
                    self._faults.append(f"request {index}: a token came after its end")
                if len(live.tokens) == live.request.cancel_after:
                    self._cancel(index)
            elif kind == ENDED:
                self._end(index, live, FINISHES.get(value, f"finish {value}"), detail)

    def _end(self, index: int, live: _Live, finish: str, detail: object) -> None:
        if live.finish:
            self._faults.append(f"request {index} ended twice, {live.finish} and {finish}")
            return
        live.finish = finish
        self._ended += 1
        got, budget = len(live.tokens), live.request.max_tokens
        if finish == "failed":
            told = _failure(detail)
            self._failures.append(f"request {index}: {told}")
            self._faults.append(f"request {index} failed: {told}")
        elif finish == "cancelled" and not live.cancelled:
            self._faults.append(f"request {index} was cancelled by nobody")
        elif got > budget or (finish == "length" and got != budget):
            self._faults.append(f"request {index}: {got} tokens of a budget of {budget}, finish {finish}")

    def _holdings(self) -> dict[str, int]:
        kv = self._model.kv
        lanes = [kv.snapshot(lane) for lane in range(self._model.lanes)]
        return {
            "free_lanes": kv.free_lanes(),
            "reserved_cells": sum(lane["reserved"] for lane in lanes),
            "jobs_in_flight": self._runner.statistics()["active"]
            + sum(lane["job_seq"] != 0 for lane in lanes),
        }

    def _stock(self, took: float) -> Outcome:
        kv, numbers = self._model.kv, self._runner.statistics()
        deadline = time.monotonic() + _SETTLE_S
        while kv.free_lanes() < self._model.lanes and time.monotonic() < deadline:
            time.sleep(0.001)
        whole_ones = [live for live in self._all if not live.cancelled]
        digest = hashlib.sha256(repr([live.tokens for live in whole_ones]).encode())
        outcome = Outcome(
            requests=len(self._all),
            finishes={name: sum(live.finish == name for live in self._all) for name in FINISHES.values()},
            prompt_tokens=numbers["prompt_tokens"],
            tokens=numbers["tokens"],
            tokens_sha256=digest.hexdigest(),
            seconds=took,
            lanes=self._model.lanes,
            **self._holdings(),
            begin=self._begin,
            failures=self._failures,
            imbalances=self._faults,
        )
        self._balance(outcome, numbers, whole_ones)
        return outcome

    def _balance(self, outcome: Outcome, numbers: dict[str, int], whole_ones: list[_Live]) -> None:
        """Adds to the imbalances what does not add up."""
        told = sum(len(live.tokens) for live in self._all)
        least = sum(len(live.request.prompt) for live in whole_ones)
        most = sum(len(live.request.prompt) for live in self._all)
        facts = [
            (outcome.free_lanes == outcome.lanes, f"{outcome.free_lanes} of {outcome.lanes} lanes are free"),
            (outcome.reserved_cells == 0, f"{outcome.reserved_cells} cells are reserved"),
            (outcome.jobs_in_flight == 0, f"{outcome.jobs_in_flight} jobs are in flight"),
            (told == outcome.tokens, f"{told} tokens were told of, {outcome.tokens} counted"),
            (
                least <= outcome.prompt_tokens <= most,
                f"{outcome.prompt_tokens} prompt tokens were counted, {least}..{most} given",
            ),
            (numbers["events_dropped"] == 0, f"{numbers['events_dropped']} events were dropped"),
            (numbers["stale_completions"] == 0, f"{numbers['stale_completions']} completions were stale"),
        ]
        self._faults += [text for sound, text in facts if not sound]
        try:
            self._model.kv.check_integrity()
        except CalrtError as error:
            self._faults.append(f"the KV bookkeeping is broken: {error}")
