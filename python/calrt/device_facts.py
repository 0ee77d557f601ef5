# SPDX-License-Identifier: Apache-2.0
"""What a device tells about itself: plain frozen records, and the trace as a context manager."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from calrt import _core
from calrt.errors import CalrtError

__all__ = [
    "BufferRules",
    "Capability",
    "Chip",
    "DeviceInfo",
    "DeviceTrace",
    "Footprint",
    "KvInfo",
    "Link",
    "Topology",
    "TraceEvent",
]


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is, as its driver says. Memory in bytes, 0 = unknown.

    `sessions`: execution queues; `depth`: jobs that may run at once on one; `queue`: jobs that may wait
    behind them, one more is QUEUE_FULL. `exclusive`: one process at a time. `id`: the same in every process,
    "" if not stated. `domains`: where buffers can be, () if not stated. `completion`: how the end of a job is
    told: "callback" by the driver, "wait" by a thread of calrt that blocks, "poll" when somebody polls.
    `clock`: "real", or "virtual" for a simulator.
    """

    driver: str
    driver_version: str
    driver_path: str
    name: str
    device_class: str
    runtime: str
    chips: int
    sessions: int
    depth: int
    queue: int
    exclusive: bool
    memory_bytes: int
    memory_free: int
    id: str
    domains: tuple[str, ...]
    completion: str
    clock: str

    @classmethod
    def of(cls, raw: dict[str, Any]) -> DeviceInfo:
        """From the native module's dict."""
        return cls(**{**raw, "domains": tuple(raw["domains"])})


@dataclass(frozen=True)
class Capability:
    """A capability with its evidence.

    `level` 0 proven, 1 declared, 2 built and not accepted, 3 needs the vendor, 4 no; it is about `subject`
    ("cpu", "mock:tiny", "calrt-0.7.6"), and `source` says why. `value` is 0 = absent, 1 = present, or a
    number.
    """

    name: str
    level: int
    value: int
    subject: str
    source: str


@dataclass(frozen=True)
class Chip:
    """One chip of a device. `memory_bytes` 0 = unknown."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Link:
    """A way for data between two chips, by index, or a chip and the host (None). 0 = unknown."""

    source: int | None
    target: int | None
    bytes_per_s: int
    latency_ns: int


@dataclass(frozen=True)
class Topology:
    """What a device is made of, and what a load may ask of it.

    `sessions`: of each execution queue, the chips it runs on. `modes` and `placements`: the values of
    `parallel` and `placement` that `Device.load` can be given; () = not stated.
    """

    chips: tuple[Chip, ...]
    links: tuple[Link, ...]
    sessions: tuple[tuple[int, ...], ...]
    modes: tuple[str, ...]
    placements: tuple[str, ...]

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Topology:
        """From the native module's dict."""
        return cls(
            chips=tuple(Chip(*chip) for chip in raw["chips"]),
            links=tuple(Link(*link) for link in raw["links"]),
            sessions=tuple(raw["sessions"]),
            modes=tuple(raw["modes"]),
            placements=tuple(raw["placements"]),
        )


@dataclass(frozen=True)
class BufferRules:
    """What a buffer in one memory domain needs.

    `align`: least alignment of its address, a power of two; `padding`: its size is rounded up to a multiple
    of this; `max_bytes`: of one buffer, 0 = not stated. (64, 1, 0) where the driver states no rules.
    """

    align: int
    padding: int
    max_bytes: int


@dataclass(frozen=True)
class Footprint:
    """Bytes that a load would take, on the host and on the device."""

    host_bytes: int
    device_bytes: int


@dataclass(frozen=True)
class KvInfo:
    """The KV of a loaded model.

    `ops`: what the device itself can do with cells: clear, lane_copy, range_copy, rotate, read, write.
    `lanes`, `cells` (per lane), `dtype`, `layers`; `bytes_per_cell`: K and V of all layers, 0 where a cell
    holds nothing.
    """

    ops: tuple[str, ...]
    lanes: int
    cells: int
    dtype: str
    layers: int
    bytes_per_cell: int

    @classmethod
    def of(cls, raw: dict[str, Any]) -> KvInfo:
        """From the native module's dict."""
        return cls(**{**raw, "ops": tuple(raw["ops"])})


@dataclass(frozen=True)
class TraceEvent:
    """One event of a device's own trace.

    `t_ns`: on the host's clock, comparable with `time.monotonic_ns()`, true to the trace's `residual_ns`.
    `phase`: "begin", "end" or "counter", then `value` is the counter's. `job_id`: job_seq of the job, 0 =
    none. `track`: the chip or engine.
    """

    t_ns: int
    name: str
    phase: str
    job_id: int
    track: int
    value: int


class DeviceTrace:
    """A device's own trace while a `with` block runs; see `Device.trace`.

    `events`: oldest first, complete after the block, or up to the last `drain`. `dropped`: events that the
    device could not keep since the block began. `residual_ns`: how far the device's clock, turned into the
    host's, may be off; the largest of all drains.
    """

    def __init__(self, native: _core.Device, capacity: int) -> None:
        self._native = native
        self._capacity = capacity
        self.events: list[TraceEvent] = []
        self.dropped = 0
        self.residual_ns = 0

    def drain(self) -> list[TraceEvent]:
        """Takes the events since the last drain, so that there is room for more; they are in `events` too."""
        raw, self.dropped, residual_ns = self._native.trace_drain()
        self.residual_ns = max(self.residual_ns, residual_ns)
        new = [TraceEvent(*event) for event in raw]
        self.events += new
        return new

    def __enter__(self) -> DeviceTrace:
        self._native.trace_start(self._capacity)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        # The block's own exception is the one to see, and a closed device has no trace to end.
        with suppress(CalrtError) if kind is not None or self._native.closed else nullcontext():
            self._native.trace_stop()
            self.drain()
