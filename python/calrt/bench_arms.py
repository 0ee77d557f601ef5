# SPDX-License-Identifier: Apache-2.0
"""The arms of `calrt bench ab`: the same decode steps by a raw loop and by calrt. See `calrt.bench_ab`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import calrt
from calrt import _core
from calrt._enums import Status
from calrt.errors import error_for
from calrt.probes.subject import open_when_free

__all__ = ["Arms", "patience"]

_READY = ("rows", "lanes", "cells")
_END_S = 5.0
_MOST_SAID = 200  # characters


def patience(steps: int) -> float:
    """Seconds for a block of so many steps, by default: to load and to begin, and a quarter second each."""
    return 60.0 + steps / 4


class Arms:
    """The raw loop and calrt on one device. One that only one process may hold is handed over in turns.

    `timeout`: seconds for each block and for the load of a raw loop, and for each job of calrt's.
    """

    def __init__(
        self, spec: str, package: str, layers: str | None, isolate: bool | None, timeout: float
    ) -> None:
        self._timeout = timeout
        self._spec, self._layers, self._isolate = spec, layers, isolate
        self._raw: RawLoop | None = None
        self._calrt: Runtime | None = None
        self._package = package
        info, opened = self._look()
        self._exclusive = info.exclusive
        self.subject = {
            "library": info.driver_path,
            "driver": info.driver,
            "driver_version": info.driver_version,
            "runtime": info.runtime,
            "device_class": info.device_class,
            "device_id": info.id,
            "package": opened.directory,
        }
        own = Path(info.driver_path).parent / f"{info.driver}-raw-loop"
        manifest = json.loads(opened.manifest_json())
        if own.is_file():
            self._command = [str(own), opened.directory, manifest["parallelism"]["mode"]]
        else:
            generic = Path(_core.__file__).parent / "bin" / "calrt-raw-loop"
            if not generic.is_file():
                raise error_for(Status.UNSUPPORTED, f"{generic} is missing: this installation is incomplete")
            config = spec.removeprefix("isolate:").partition(":")[2] if "/" not in spec else ""
            own_spec = info.driver_path + (f":{config}" if config else "")
            self._command = [str(generic), own_spec, opened.directory]
        self.program = Path(self._command[0]).name
        try:
            ours = self._calrt_turn()
            self.cells, groups = ours.cells, ours.groups
            ready = self._raw_turn().ready
        except BaseException:
            self.close()
            raise
        self.cells = min(self.cells, ready["cells"])
        self.sequences = min(groups, ready["lanes"] // ready["rows"], 2)

    def _look(self) -> tuple[calrt.DeviceInfo, _core.Package]:
        with self._open() as device:
            return device.info, device.package(self._package)

    def _open(self) -> calrt.Device:
        # To measure is how it is verified.
        return open_when_free(self._spec, layers=self._layers, isolate=self._isolate, allow_unverified=True)

    def _raw_turn(self) -> RawLoop:
        if self._exclusive and self._calrt is not None:
            self._calrt.close()
            self._calrt = None
        self._raw = self._raw or RawLoop(self._command, self._timeout)
        return self._raw

    def _calrt_turn(self) -> Runtime:
        if self._exclusive and self._raw is not None:
            self._raw.close()
            self._raw = None
        self._calrt = self._calrt or Runtime(self._open(), self._package, self._timeout)
        return self._calrt

    def run(self, arm: str, steps: int) -> tuple[int, list[str]]:
        """One block of an arm: ns, and the digest of each step's logits."""
        if arm == "A":
            return self._raw_turn().run(steps, self.sequences)
        try:
            return self._calrt_turn().run(steps, self.sequences, depth=2 if arm == "C" else 1)
        except calrt.CalrtError as error:
            raise error_for(
                error.code, f"arm {arm}: {error.message}", native_code=error.native_code
            ) from error

    def close(self) -> None:
        for each in (self._raw, self._calrt):
            if each is not None:
                each.close()


class RawLoop:
    """A program that runs steps without calrt; see csrc/drivers/calrt076/raw_loop.cpp for what it is told."""

    def __init__(self, command: list[str], timeout: float) -> None:
        self._timeout = timeout
        self._name = Path(command[0]).name
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._pump, name="calrt-raw-loop", daemon=True)
        self._reader.start()
        try:
            self.ready = self._answer(*_READY)
            if not all(type(self.ready[name]) is int and 0 < self.ready[name] < 1 << 31 for name in _READY):
                raise self._nonsense(self.ready, "whole numbers of 1 or more")
            if self.ready["lanes"] < self.ready["rows"]:
                raise self._nonsense(self.ready, "as many lanes as rows")
        except BaseException:
            self.close()
            raise

    def _pump(self) -> None:
        with contextlib.suppress(ValueError), self._child.stdout or contextlib.nullcontext(()) as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, *wanted: str) -> dict[str, Any]:
        """The next JSON object with the fields that are wanted; what else an SDK prints is passed over."""
        until = time.monotonic() + self._timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self._child.kill()  # it would not hear the end of its stdin
                why = (
                    f"arm A hangs: {self._name} did not answer within {self._timeout:g} s; "
                    "a longer --timeout waits longer"
                )
                raise error_for(Status.EXECUTION_FAILED, why) from None
            if line is None:
                code = self._end()
                how = (
                    f"was ended by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with exit code {code}"
                )
                raise error_for(Status.EXECUTION_FAILED, f"arm A: {self._name} {how}")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and "error" in row:
                raise error_for(Status.EXECUTION_FAILED, f"arm A: {self._name}: {row['error']}")
            if isinstance(row, dict) and row.keys() >= set(wanted):
                return row

    def _nonsense(self, row: dict[str, Any], due: str) -> calrt.CalrtError:
        said = json.dumps(row)[:_MOST_SAID]
        return error_for(Status.EXECUTION_FAILED, f"arm A: {self._name} answered {said}: {due} is due")

    def run(self, steps: int, sequences: int) -> tuple[int, list[str]]:
        with contextlib.suppress(BrokenPipeError):
            print(f"run {steps} {sequences}", file=self._child.stdin, flush=True)
        row = self._answer("ns", "sha256")
        ns, digests = row["ns"], row["sha256"]
        if type(ns) is not int or not 0 < ns < 1 << 63:
            raise self._nonsense(row, "a time of 1 ns or more")
        if not isinstance(digests, list) or [type(each) for each in digests] != [str] * steps:
            raise self._nonsense(row, f"a digest of each of {steps} steps")
        return ns, digests

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._child.stdin is not None:
                self._child.stdin.close()
        self._end()
        self._reader.join(_END_S)  # not for ever: what the program left behind may hold the pipe

    def _end(self) -> int:
        """Its exit code, once it has ended by itself or was killed."""
        try:
            return self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


class Runtime:
    """The same steps through calrt: fixed buffers of each sequence, one or two jobs in flight."""

    def __init__(self, device: calrt.Device, package: str, timeout: float) -> None:
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        try:
            self._stack.enter_context(device)
            self._model = self._stack.enter_context(device.load(package))
            graphs = [graph for graph in self._model.graphs.values() if graph.kind == "decode"]
            if not graphs:
                raise error_for(Status.UNSUPPORTED, "this package has no decode graph to compare")
            graph = min(graphs, key=lambda graph: graph.batch)
            self.cells, rows = self._model.cells, graph.batch
            lanes = [self._model.kv.reserve(self.cells, timeout=10) for _ in range(self._model.lanes)]
            lanes.sort(key=lambda lane: lane.index)
            self.groups = len(lanes) // rows if graph.lane_map == "any" else min(1, len(lanes) // rows)
            self._lanes = [lanes[at * rows : (at + 1) * rows] for at in range(min(self.groups, 2))]
            for lane in lanes[2 * rows :]:
                lane.release()
            self._slots = []
            for group in self._lanes:
                context = self._stack.enter_context(graph.context(lanes=group))
                self._slots.append(context[0])
        except BaseException:
            self.close()
            raise

    def run(self, steps: int, sequences: int, depth: int) -> tuple[int, list[str]]:
        """ns of all steps, each with the copy of its logits, and the digest of each as F32."""
        for group in self._lanes:
            for lane in group:
                lane.truncate(0)
        vocab = self._model.vocab
        places = [
            (slot, slot.inputs["tokens"].numpy(), slot.inputs["positions"].numpy())
            for slot in self._slots[:sequences]
        ]
        outputs = [slot.outputs["logits"] for slot in self._slots[:sequences]]
        raws = [output.raw() for output in outputs]
        kept = [[raw.copy() for _ in range(0, steps, sequences)] for raw in raws]
        flying: list[tuple[int, _core.Job]] = []

        def take() -> None:
            step, job = flying.pop(0)
            job.wait()
            kept[step % sequences][step // sequences][...] = raws[step % sequences]

        begin = time.perf_counter_ns()
        for step in range(steps):
            if len(flying) == depth:
                take()
            slot, tokens, positions = places[step % sequences]
            tokens[:] = (step * 131 + 7) % vocab
            positions[:] = step // sequences
            flying.append((step, slot.submit(deadline=self._timeout)))
        while flying:
            take()
        ns = time.perf_counter_ns() - begin
        digests = []
        for step in range(steps):
            sequence = step % sequences
            digests.append(_digest(outputs[sequence], kept[sequence][step // sequences]))
        return ns, digests

    def close(self) -> None:
        self._slots = []
        self._stack.close()


def _digest(tensor: _core.Tensor, memory: npt.NDArray[Any]) -> str:
    """SHA-256 of what a copy of a tensor's memory holds, in logical order as F32."""
    values = np.empty(tensor.shape, np.float32)
    _core.unpack_f32(memory.reshape(-1), tensor.layout, values)
    return hashlib.sha256(values.tobytes()).hexdigest()
