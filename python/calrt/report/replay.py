# SPDX-License-Identifier: Apache-2.0
"""The run of a report again, on mock: without the device, its SDK or its package.

Mock gets a package of the same graphs, so that every job has inputs and outputs of the same bytes, and the
replay layer gives it what the record says. With the jobs' data in the record the tokens are the same on any
machine. Without, mock's own outputs stand, and the record's hashes tell whether they are the same; they are
if the device computed what mock does, as the stand-in SDK.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import calrt
from calrt.presets import Preset, build_package
from calrt.regular_file import open_regular
from calrt.report.child import generated, prompts

__all__ = ["Replayed", "replay", "replay_package"]

_MOST_DEVICE = 64 << 20
_MOST_RECORD = 512 << 20  # twice what a report has
_MOST_TOLD = 8
_TIMEOUT_S = 60.0
_HUNG_S = 2.0  # in which mock has long done what it can
_RUN = "calrt-report/run/record.jsonl"
_DEVICE = "calrt-report/device.json"


@dataclass(frozen=True)
class Replayed:
    """What came of a replay. `requests`: of each, tokens and verdict: the same, or what is not.

    `jobs`, `calls`: taken from the record; `diverged`: where the record and this run differ; `left`: recorded
    jobs that were not asked for; `told`: the first divergences in words. Without data in the report, outputs
    that differ are not yet a fault: what lies in padding is nobody's, and mock computes what it computes.
    """

    with_data: bool
    requests: list[dict[str, Any]]
    jobs: int
    calls: int
    diverged: int
    left: int
    told: list[str]

    @property
    def why(self) -> str:
        """What is not the same; "" if all is."""
        other = [at for at, row in enumerate(self.requests, 1) if not row["verdict"].startswith("the same")]
        if other:
            return f"request {other[0]}: {self.requests[other[0] - 1]['verdict']}"
        if self.diverged and self.with_data:
            return f"{self.diverged} jobs or calls differ from the record"
        return f"{self.left} recorded jobs were not asked for" if self.left else ""

    @property
    def same(self) -> bool:
        """Whether this run was as the recorded one."""
        return not self.why


def replay(
    report: str | os.PathLike[str], *, progress: Callable[[str], object] = lambda step: None
) -> Replayed:
    """Replays the run of a report. Raises `OSError` or `ValueError` naming what is missing in it."""
    with tempfile.TemporaryDirectory(prefix="calrt-replay-") as folder:
        progress("reading")
        record, device = _unpacked(report, Path(folder))
        run, package = device.get("run"), device.get("package")
        if run is None or package is None:
            raise ValueError(f"{report}: no run is in it: {_why(device)}")
        progress("building a package of the same graphs")
        try:
            directory = replay_package(package, Path(folder) / "package")
            _check_shape(package, run)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{report}: {_DEVICE} lacks what a replay needs: {error!r}") from None
        with (
            _divergences() as told,
            calrt.open("mock:tiny", layers=f'replay:"{record}"', exclusive=False) as opened,
        ):
            progress("replaying")
            rows = _requests(opened, directory, package["graphs"], run)
            counted = _counted(opened)
    jobs, calls, diverged, left = (
        counted[f"replay.{name}"] for name in ("jobs", "calls", "diverged", "left")
    )
    return Replayed(run["data"], rows, jobs, calls, diverged, left, told)


@contextmanager
def _divergences() -> Iterator[list[str]]:
    """The first warnings of the replay layer, which are an answer here and no log."""
    told: list[str] = []

    class First(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(told) < _MOST_TOLD:
                told.append(record.getMessage())

    log, handler = logging.getLogger("calrt.replay"), First()
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield told
    finally:
        log.removeHandler(handler)
        log.propagate = before


def _check_shape(package: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """`KeyError` or `TypeError` for what is read below and is not there, or something else."""
    rows = run["requests"]
    graphs = list(package["graphs"].values())
    if not (isinstance(run["data"], bool) and isinstance(run["seed"], int) and isinstance(rows, list)):
        raise TypeError("run: data, seed, requests")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("error", {}), dict):
            raise TypeError("run: requests")
        if "error" not in row and not row.get("unfinished"):
            _ = row["tokens"], row["tokens_sha256"]
    for graph in graphs:
        _ = graph["inputs"], graph["outputs"], _logits(graph)["dtype"]


def _why(device: Mapping[str, Any]) -> str:
    try:
        failed = [step for step in device["steps"] if "error" in step]
        if failed:
            return f"{failed[0]['step']} failed: {failed[0]['error']['message']}"
    except (KeyError, TypeError):
        return f"{_DEVICE} does not say why"
    return str(device.get("ended") or "no package was given")


def _requests(
    device: calrt.Device, directory: Path, graphs: Mapping[str, Any], run: Mapping[str, Any]
) -> list[dict[str, Any]]:
    logits = _logits(next(iter(graphs.values())))
    model = device.load(directory, logits_dtype=logits["dtype"])
    rows: list[dict[str, Any]] = []
    try:
        _compare_graphs(graphs, model)
        for prompt, then in zip(
            prompts(run["seed"], model.vocab, model.cells), run["requests"], strict=False
        ):
            rows.append(_request(model, prompt, then))
            if rows[-1].get("unfinished"):
                break
    finally:
        with suppress(calrt.CalrtError):  # of a job that never ends
            model.close(force=True)
    return rows


def _counted(device: calrt.Device) -> dict[str, int]:
    """The counters; that they could not be had then is replayed, too."""
    for _ in range(_MOST_TOLD):
        with suppress(calrt.CalrtError):
            return device.counters()
    return device.counters()


def _request(model: calrt.Model, prompt: list[int], then: Mapping[str, Any]) -> dict[str, Any]:
    hung = bool(then.get("unfinished"))
    rows: list[dict[str, Any]] = []
    # A job that never ended then does not end now either: the thread ends with the model.
    work = threading.Thread(target=lambda: rows.append(generated(model, prompt)), daemon=True)
    work.start()
    work.join(_HUNG_S if hung else _TIMEOUT_S)
    if not rows:
        same = "the same: it does not come back"
        return {
            "unfinished": True,
            "verdict": same if hung else f"it does not come back within {_TIMEOUT_S:g} s",
        }
    now = rows[0]
    if hung:
        verdict = "it comes back, and did not when it was recorded"
    elif "error" in then or "error" in now:
        was, found = (row.get("error", {}).get("status", "no error") for row in (then, now))
        verdict = "the same" if was == found else f"{found}, recorded was {was}"
    elif now["tokens_sha256"] != then["tokens_sha256"]:
        verdict = f"{now['tokens']} tokens, others than the {then['tokens']} recorded"
    else:
        verdict = "the same"
    return now | {"verdict": verdict}


def _unpacked(report: str | os.PathLike[str], folder: Path) -> tuple[Path, dict[str, Any]]:
    """The record, as a file in `folder`, and device.json; never more than is due, whatever the zip says."""
    record = folder / "record.jsonl"
    try:
        with open_regular(report) as file, zipfile.ZipFile(file) as bundle:
            if _DEVICE not in bundle.namelist():
                raise ValueError(f"{report} is no report of calrt: {_DEVICE} is missing")
            if _RUN not in bundle.namelist():
                raise ValueError(f"{report}: no run is in it: {_RUN} is missing")
            for name, most in ((_DEVICE, _MOST_DEVICE), (_RUN, _MOST_RECORD)):
                found = bundle.getinfo(name)  # of whose size zipfile gives no byte more
                if found.file_size > most:
                    raise ValueError(
                        f"{report}: {name} has {found.file_size} bytes unpacked, {most} at most are due"
                    )
                if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(
                        f"{report}: {name} is packed by method {found.compress_type}, not 0 or 8"
                    )
            text = bundle.read(_DEVICE)
            with bundle.open(_RUN) as packed, open(record, "wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
    # Of a damaged or strange one zipfile raises all of these; RuntimeError is one that wants a password.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{report} is no report of calrt: {error}") from None
    try:
        device = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{report}: {_DEVICE} is damaged: {error}") from None
    if not isinstance(device, dict):
        raise ValueError(f"{report}: {_DEVICE} is damaged: it is no object")
    return record, device


def replay_package(package: Mapping[str, Any], directory: Path) -> Path:
    """A package for mock:tiny with the graphs that `device.json` says of `package`."""
    graphs, model = list(package["graphs"].values()), package["model"]
    decode = [graph for graph in graphs if graph["kind"] == "decode"]
    prefill = [graph for graph in graphs if graph["kind"] == "prefill"]
    logits = _logits(graphs[0])
    tile, rows = _tile(logits)
    preset = Preset(
        about="the graphs of a report",
        vocab=model["vocab"],
        lanes=[model["lanes"]],
        cells=[min(model["cells"], 4096)],
        profiles=[graph["batch"] for graph in decode],
        chunks=[graph["chunk"] for graph in prefill],
        lane_map=decode[0]["lane_map"],
        dtypes=(logits["dtype"],),
        kv_ops=(),
        last_row_only="logit_rows" not in prefill[0]["inputs"],
        tile=tile,
        padded_rows=rows,
    )
    return build_package(preset, "replay", driver="mock", device_class="mock-tiny", folder=directory)


def _logits(graph: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = graph["outputs"]["logits"]
    return found


def _tile(logits: Mapping[str, Any]) -> tuple[int, int]:
    """Columns of a tile, 0 = none, and padded rows, 0 = none."""
    tile = next((axis["modulus"] for axis in logits["layout"] if axis["dim"] == 1 and axis["modulus"]), 0)
    rows = next(axis["extent"] for axis in logits["layout"] if axis["dim"] == 0)
    return tile, rows if rows > logits["shape"][0] else 0


def _compare_graphs(recorded: Mapping[str, Any], model: calrt.Model) -> None:
    for name, graph in recorded.items():
        mine = model.graphs.get(name)
        found = (
            None if mine is None else json.loads(json.dumps({"inputs": mine.inputs, "outputs": mine.outputs}))
        )
        if found != {"inputs": graph["inputs"], "outputs": graph["outputs"]}:
            raise ValueError(
                f"the run cannot be replayed on mock: graph {name} has a layout that mock has not"
            )
