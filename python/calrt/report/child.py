# SPDX-License-Identifier: Apache-2.0
"""The part of a report that touches the device, as a program of its own: it may hang, or die.

It is told what to do by one line of JSON on stdin, whose end means that nobody waits any more: then it takes
the folder along. It writes what it finds into that folder, whole after each step, and says on stdout which
step begins. Whoever started it has the patience, and ends it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import calrt
from calrt.cache_files import write_atomically
from calrt.cli.output import error_document
from calrt.evidence import collect
from calrt.grounds import library_digest
from calrt.logs import IdFormatter
from calrt.orphans import end_with_parent

__all__ = ["DEVICE", "LOG", "RECORD", "TRACE", "Task", "prompts"]

DEVICE, LOG, RECORD, TRACE = "device.json", "log.txt", "record.jsonl", "trace.json"
"""Files in the folder."""

KEPT_BYTES = 1 << 20
"""Of each input and output of a job, with data."""

_MOST_LOG_LINES = 4000
_LENGTHS = (1, 5, 20, 70)  # of prompts: one token, less than a chunk, more than a small one, more than one
_TOKENS = 8


@dataclass(frozen=True)
class Task:
    """What to do. `package` None: no run."""

    spec: str
    package: str | None
    folder: str
    with_data: bool
    seed: int


def prompts(seed: int, vocab: int, cells: int) -> list[list[int]]:
    """The prompts of the run: random token ids that follow from the seed, and are nobody's."""
    draw = random.Random(seed)
    longest = max(1, cells - _TOKENS)
    return [[draw.randrange(vocab) for _ in range(min(length, longest))] for length in _LENGTHS]


class _Work:
    """Steps in order; what they find is on disk after each."""

    def __init__(self, task: Task, tell: Callable[[str], object]) -> None:
        self.task = task
        self.tell = tell
        self.found: dict[str, Any] = {"spec": task.spec, "steps": []}

    def step(self, name: str, work: Callable[[], Any]) -> bool:
        """Runs one step; False if it failed, which is a finding."""
        self.tell(name)
        began = time.monotonic()
        row: dict[str, Any] = {"step": name}
        try:
            work()
        except (calrt.CalrtError, OSError, ValueError) as error:
            row["error"] = error_document(error, 1)["error"]
        row["seconds"] = round(time.monotonic() - began, 3)
        self.found["steps"].append(row)
        self.save()
        return "error" not in row

    def save(self) -> None:
        """Writes what was found so far."""
        write_atomically(Path(self.task.folder) / DEVICE, json.dumps(self.found).encode())

    def run(self) -> None:
        """All of it."""
        data = KEPT_BYTES if self.task.with_data else 0
        folder = self.task.folder
        layers = f'trace:"{folder}/{TRACE}" wait_ms=0;record:"{folder}/{RECORD}" data={data} wait_ms=0'
        if own := os.environ.get("CALRT_LAYERS"):
            layers += f";{own}"
        opened: list[calrt.Device] = []
        # What a device can do is to be found out here, so that it is proven does not matter.
        if not self.step(
            "open", lambda: opened.append(calrt.open(self.task.spec, layers=layers, allow_unverified=True))
        ):
            return
        device = opened[0]
        try:
            self.step("ask", lambda: self.ask(device))
            if self.task.package is not None:
                self.use(device, self.task.package)
            self.step("counters", lambda: self.found.update(counters=device.counters()))
        finally:
            self.step("close", lambda: device.close(force=True))

    def ask(self, device: calrt.Device) -> None:
        """What the device says of itself."""
        info = device.info
        digest = library_digest(info.driver_path)
        self.found["info"] = {
            **asdict(info),
            "driver_path": Path(info.driver_path).name,
            "library_sha256": digest,
        }
        beside = Path(info.driver_path).with_suffix(".status-map.toml")
        self.found["status_map"] = beside.read_text("utf-8", "replace") if beside.is_file() else None
        self.found["caps"] = [vars(cap) for cap in device.caps]
        self.found["evidence"] = [
            found.to_json() for found in collect(None) if found.identity.driver_sha256 == digest
        ]
        asks: dict[str, Callable[[], Any]] = {
            "topology": lambda: asdict(device.topology),
            "health": device.health,
        }
        for name, ask in asks.items():
            try:
                self.found[name] = ask()
            except calrt.UnsupportedError as error:
                self.found[name] = {"not told": error.message}

    def use(self, device: calrt.Device, package: str) -> None:
        """Loads the package and runs the prompts."""
        loaded: list[calrt.Model] = []
        if not self.step("load", lambda: loaded.append(device.load(package, progress=self.loading))):
            return
        with loaded[0] as model:
            graphs = {
                name: {
                    "kind": graph.kind,
                    "batch": graph.batch,
                    "chunk": graph.chunk,
                    "lane_map": graph.lane_map,
                    "inputs": graph.inputs,
                    "outputs": graph.outputs,
                }
                for name, graph in model.graphs.items()
            }
            facts = {"id": model.package.id, "name": model.package.name}
            self.found["package"] = {**facts, "model": model.info, "graphs": graphs}
            self.found["caps"] = [vars(cap) for cap in device.caps]
            self.step("run", lambda: self.generate(model))

    def loading(self, what: str, done: int, total: int) -> None:
        """A load may take long as long as it goes on."""
        self.tell(f"load {100 * done // max(total, 1)} %")

    def generate(self, model: calrt.Model) -> None:
        """Greedy tokens after each prompt; where the device fails is where the run ends."""
        run = self.found["run"] = {"seed": self.task.seed, "data": self.task.with_data, "requests": []}
        for at, prompt in enumerate(prompts(self.task.seed, model.vocab, model.cells)):
            self.tell(f"run {at + 1} of {len(_LENGTHS)}")
            run["requests"].append({"prompt_tokens": len(prompt), "unfinished": True})
            self.save()
            run["requests"][-1] = row = generated(model, prompt)
            self.save()
            if "error" in row:
                raise ValueError(f"request {at + 1} failed: {row['error']['message']}")


def generated(model: calrt.Model, prompt: list[int]) -> dict[str, Any]:
    """One request: how many tokens of what SHA-256 there were, or the error."""
    row: dict[str, Any] = {"prompt_tokens": len(prompt)}
    try:
        tokens = list(model.generate(prompt, max_tokens=_TOKENS, temperature=0, stop_tokens=()))
    except calrt.CalrtError as error:
        return row | {"error": error_document(error, 1)["error"]}
    return row | {"tokens": len(tokens), "tokens_sha256": hashlib.sha256(repr(tokens).encode()).hexdigest()}


class _Log(logging.Handler):
    """The first lines of the log, as a file; what comes on top is counted."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.setFormatter(IdFormatter("%(relativeCreated)d ms %(levelname)s %(name)s: %(message)s"))
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  it lives as long as the process
        self._left = _MOST_LOG_LINES

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line at once: the process may die."""
        if self._left > 0:
            self._left -= 1
            self._file.write(self.format(record) + "\n")
            self._file.flush()


def main() -> int:
    """Entry point of the program."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")  # a driver prints, too: that is not ours to read
    os.dup2(2, 1)
    task = Task(**json.loads(sys.stdin.readline()))
    end_with_parent(lambda: shutil.rmtree(task.folder, ignore_errors=True))

    def tell(step: str) -> None:
        out.write(json.dumps({"step": step}) + "\n")
        out.flush()

    log = logging.getLogger("calrt")
    log.addHandler(_Log(Path(task.folder) / LOG))
    log.setLevel(logging.DEBUG)
    _Work(task, tell).run()
    tell("end")
    return 0
