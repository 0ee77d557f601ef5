# SPDX-License-Identifier: Apache-2.0
"""What a probe is asked about: a device, a package, and the work that the probes give it."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import calrt
from calrt import _core

__all__ = ["Subject", "Worker", "deltas", "digest", "driver_counters", "open_when_free", "told"]

_FREE_S = 5.0


@dataclass
class Subject:
    """What a probe may use. `spec`: as for `calrt.open`; `package`: as for `Device.load`.

    `steps`: jobs of a measurement; `deadline`: seconds for each job; `options`: of the device. `stage` is
    told what is about to be done, so that a process that does not come back says where it was; `note` each
    fault that was found, so that none is lost. `cells`: of the shortest lane that was worked on.
    """

    spec: str
    package: str
    steps: int
    deadline: float
    options: dict[str, str] = field(default_factory=dict)
    isolate: bool | None = None
    stage: Callable[[str], None] = lambda what: None
    note: Callable[[str], None] = lambda found: None
    cells: int = 1 << 31

    def open(self) -> calrt.Device:
        """The device, with what is not proven yet: to find that out is what a probe is for."""
        self.stage("open")
        options: dict[str, Any] = dict(self.options)
        return open_when_free(self.spec, isolate=self.isolate, allow_unverified=True, **options)

    @contextmanager
    def loaded(self, **load: Any) -> Iterator[tuple[calrt.Device, calrt.Model]]:
        """The device and its model, closed afterwards whatever runs."""
        with self.open() as device:
            self.stage("load")
            with device.load(self.package, **load) as model:
                self.stage("run")
                yield device, model
                self.stage("close")

    def look(self) -> tuple[calrt.DeviceInfo, _core.Package]:
        """The device's facts and the package, with nothing left open: some SDKs open a device once."""
        with self.open() as device:
            return device.info, device.package(self.package)

    def many_lanes(self, most: int) -> dict[str, int]:
        """Load options for as many lanes as the package allows, `most` at most, of the fewest cells."""
        allowed: dict[str, Any] = json.loads(self.look()[1].manifest_json())["allowed"]
        wanted = [n for n in _numbers(allowed["lanes"]) if n <= most] or _numbers(allowed["lanes"])[:1]
        return {"lanes": max(wanted), "cells": min(_numbers(allowed["cells"]))}


def _numbers(allowed: Any) -> Sequence[int]:
    """What a manifest allows: a list, or min, max, step."""
    if isinstance(allowed, dict):
        return range(allowed["min"], allowed["max"] + 1, allowed["step"])
    return list(allowed)


def open_when_free(spec: str, **options: Any) -> calrt.Device:
    """`calrt.open` of a device that was closed a moment ago: its last job may be let go a moment later."""
    gc.collect()
    try:
        return calrt.open(spec, **options)
    except calrt.DeviceError as error:
        if error.recovery != "wait":
            raise
        device: calrt.Device = error.recover(timeout=_FREE_S)
        return device


class Worker:
    """Runs decode jobs of the model's smallest decode graph; each row of it has a lane of its own.

    `group` numbers a set of such lanes. Token and position of a job follow from its step and a seed alone,
    so that the same steps must give the same logits. Positions are written again in each run.
    """

    def __init__(self, subject: Subject, model: calrt.Model, groups: int = 1) -> None:
        graphs = [graph for graph in model.graphs.values() if graph.kind == "decode"]
        if not graphs:
            raise calrt.UnsupportedError("this package has no decode graph", calrt.Status.UNSUPPORTED)
        self.graph = min(graphs, key=lambda graph: graph.batch)
        self.deadline = subject.deadline
        self.cells, self.vocab = model.cells, model.vocab
        subject.cells = min(subject.cells, self.cells)
        self._chunk = max(
            (
                graph
                for graph in model.graphs.values()
                if graph.kind == "prefill" and graph.lane_map == "any" and graph.chunk <= self.cells
            ),
            key=lambda graph: graph.chunk,
            default=None,
        )
        rows = self.graph.batch
        self._lanes = [model.kv.reserve(self.cells, timeout=10) for _ in range(model.lanes)]
        self._lanes.sort(key=lambda lane: lane.index)
        if self.graph.lane_map != "any":  # row i is lane i
            groups = 1
        self.groups = [self._lanes[at : at + rows] for at in range(0, len(self._lanes) - rows + 1, rows)][
            :groups
        ]

    def token(self, step: int, seed: int = 0) -> int:
        """Of one job."""
        return (step * 131 + seed * 977 + 7) % self.vocab

    def submit(self, step: int, group: int = 0, seed: int = 0) -> _core.Job:
        """One job: the token of `step`, at the position of `step`."""
        n = self.graph.batch
        return self.graph.submit(
            tokens=[self.token(step, seed)] * n,
            positions=[step % self.cells] * n,
            lanes=self.groups[group],
            deadline=self.deadline,
        )

    def submit_long(self, group: int) -> _core.Job:
        """The longest job that fits a lane: a whole chunk, where a prefill graph takes any lane."""
        if self._chunk is None:
            return self.submit(0, group)
        n = self._chunk.chunk
        return self._chunk.submit(
            tokens=[self.token(step) for step in range(n)],
            positions=list(range(n)),
            lanes=self.groups[group][:1],
            n_valid=n if "n_valid" in self._chunk.inputs else None,
            deadline=self.deadline,
        )

    def run(self, steps: int, group: int = 0, seed: int = 0) -> list[str]:
        """Jobs one after another, from an empty lane on; the digest of each one's logits."""
        self.reset(group)
        return [digest(self.submit(step, group, seed)) for step in range(min(steps, self.cells))]

    def reset(self, group: int = 0) -> None:
        """Empties the lanes of a group."""
        for lane in self.groups[group]:
            lane.truncate(0)

    def close(self) -> None:
        """Gives the lanes back."""
        for lane in self._lanes:
            with suppress(calrt.CalrtError):
                lane.release()


def digest(job: _core.Job) -> str:
    """Waits for a job and answers the SHA-256 of its logits, in logical order as F32."""
    job.wait()
    return hashlib.sha256(job.outputs["logits"].to_f32().tobytes()).hexdigest()


def driver_counters(device: calrt.Device) -> dict[str, int]:
    """The device's counters without those of calrt and its layers; {} if it has none."""
    try:
        counters = device.counters()
    except calrt.UnsupportedError:
        return {}
    return {name: value for name, value in counters.items() if not name.startswith("fault.")}


def deltas(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """How much each counter rose, without those that did not."""
    rises = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: rise for name, rise in rises.items() if rise}


def told(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())
