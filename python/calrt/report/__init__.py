# SPDX-License-Identifier: Apache-2.0
"""A report: one file about a device, its driver and this machine, fit to be sent to the vendor.

    found = calrt.report.make("calrt076", package="preset:tiny", output="calrt-report.zip")

What touches the device is a process of its own with a deadline: a driver that hangs or dies is a finding, and
the report says so. Nothing goes into the file that tells who made it, where, or for whom (`redact`).
"""

from __future__ import annotations

import io
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from calrt._arguments import seconds, text
from calrt.cache_files import write_atomically
from calrt.report import child, facts, questions
from calrt.report.readme import readme
from calrt.report.records import Seen, read_lines, redacted
from calrt.report.redact import Redactor

__all__ = ["PATIENCE", "SCHEMA", "Made", "make"]

SCHEMA = "calrt.report/1"
PATIENCE = 60.0
"""Seconds that one step on the device may take before the driver is said to hang."""

_MOST_STDERR = 64 << 10
_MOST_RECORD = 256 << 20
Progress = Callable[[str], object]


@dataclass(frozen=True)
class Made:
    """A report that was written. `device`: "ok", or what went wrong on it. `files`: name -> bytes.

    `output`, `device` and `errors` are for who made it, and not redacted; what is in the file is.
    """

    output: str
    device: str
    seconds: float
    files: dict[str, int]
    with_data: bool
    open_questions: int
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the device did all it was asked."""
        return self.device == "ok"


def make(
    driver: str,
    *,
    package: str | os.PathLike[str] | None = None,
    records: Sequence[str | os.PathLike[str]] = (),
    output: str | os.PathLike[str] = "calrt-report.zip",
    with_data: bool = False,
    timeout: float = PATIENCE,
    progress: Progress = lambda step: None,
) -> Made:
    """Makes a report on a device and writes it to `output`, whole or not at all; a file there is replaced.

    `driver`: what `calrt.open` takes. `package`: what `Device.load` takes; with one, four short prompts of
    random token ids are run, recorded and traced. `records`: files of the record layer to send along; what
    jobs were given and gave is left out of them, and of the run, unless `with_data`. `timeout`: seconds for
    each step on the device. `progress` is called with the name of each step.

    A device that fails, hangs or dies makes no exception: `Made.device` says it, and so does the report.
    Raises `OSError` if a record cannot be read or the report not be written, mostly before the device is
    touched; `ValueError` for a file that is no record, and if something of this machine would be in it in
    spite of all.
    """
    text("driver", driver)
    seconds("timeout", timeout)
    began = time.monotonic()
    target = Path(output).absolute()
    given = [os.fspath(path) for path in (package, output, *records) if path is not None]
    paths = tuple(path for path in given if not path.startswith("preset:") and os.sep in path)
    redactor = Redactor(paths=(*paths, *(os.path.abspath(path) for path in paths)))
    contents: dict[str, bytes] = {}
    for number, path in enumerate(records, 1):
        progress(f"reading record {number} of {len(records)}")
        contents[f"records/{number}.jsonl"], _ = _record(Path(path), redactor, with_data)
    _check_writable(target)
    with tempfile.TemporaryDirectory(prefix="calrt-report-") as folder:
        task = child.Task(
            driver, None if package is None else os.fspath(package), folder, with_data, secrets.randbits(31)
        )
        ended, said = _on_device(task, timeout, progress)
        progress("writing")
        seen = _device_files(Path(folder), redactor, with_data, contents)
        device = _found(Path(folder), ended)
    contents["driver-output.txt"] = redactor.text(said).encode()
    asked = questions.open_questions(seen.calls)
    documents = {
        "device.json": redactor.tree(device),
        "jobs.json": redactor.tree({"jobs": list(seen.jobs), "errors": seen.errors, "calls": seen.calls}),
        "versions.json": redactor.tree(facts.versions() | {"driver_speaks_abi": seen.header.get("abi")}),
        "environment.json": redactor.tree(facts.environment()),
        "status-table.json": facts.status_table(),
        "open-questions.json": asked,
    }
    contents |= {
        name: (json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode()
        for name, tree in documents.items()
    }
    outcome = _outcome(device, ended)
    told = redactor.text(outcome)
    about = {
        "schema": SCHEMA,
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": told,
        "with_data": with_data,
        "files": sorted([*contents, "README.txt"]),
    }
    contents["report.json"] = (json.dumps(about, indent=1) + "\n").encode()
    contents["README.txt"] = readme(told, with_data, contents, "run" in device).encode()
    _check(contents, redactor)
    write_atomically(target, _zip(contents))
    return Made(
        os.fspath(output),
        outcome,
        round(time.monotonic() - began, 3),
        {name: len(data) for name, data in sorted(contents.items())},
        with_data,
        len(asked),
        [step["error"] | {"step": step["step"]} for step in device["steps"] if "error" in step],
    )


# ---- the device -------------------------------------------------------------------------------------


def _on_device(task: child.Task, patience: float, progress: Progress) -> tuple[str, str]:
    """Runs the child. "" or how it ended before its end; and what it and the driver printed."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from calrt.report.child import main; sys.exit(main())"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
        try:
            step, whole = _follow(process, json.dumps(asdict(task)), patience, progress)
        finally:
            process.kill()
            code = process.wait()
            if process.stdin is not None:
                process.stdin.close()
        length = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, length - _MOST_STDERR))
        said = errors.read().decode("utf-8", "replace")
    if step == "end" and whole:
        return "", said
    if not whole:
        return f"the driver did not come back within {patience:g} s: {step}", said
    return f"the process of the driver ended, {_ended_by(code)}: {step}", said


def _follow(
    process: subprocess.Popen[str], task: str, patience: float, progress: Progress
) -> tuple[str, bool]:
    """The last step that began, and whether the process came to an end by itself."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def pump() -> None:
        with suppress(ValueError, OSError), process.stdout or nullcontext(()) as output:
            for line in output:
                lines.put(line)
        lines.put(None)

    with suppress(BrokenPipeError):
        if process.stdin is not None:  # which stays open: its end tells the child that this process is gone
            process.stdin.write(f"{task}\n")
            process.stdin.flush()
    threading.Thread(target=pump, name="calrt-report", daemon=True).start()
    step = "start"
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            return step, False
        if line is None:
            return step, True
        step = json.loads(line)["step"]
        progress(step)


def _ended_by(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _found(folder: Path, ended: str) -> dict[str, Any]:
    """What the child had written when it ended."""
    device: dict[str, Any] = {"steps": []}
    with suppress(OSError, ValueError):
        device = json.loads((folder / child.DEVICE).read_bytes())
    if ended:
        device["ended"] = ended
    return device


def _outcome(device: dict[str, Any], ended: str) -> str:
    if ended:
        return ended
    for step in device["steps"]:
        if "error" in step:
            return f"{step['step']}: {step['error'].get('status', 'error')}: {step['error']['message']}"
    return "ok"


# ---- the files --------------------------------------------------------------------------------------


def _check_writable(target: Path) -> None:
    """Before the device is asked: what it does may take long, and a report of it may not be had again."""
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is no file: the report is not written there")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise OSError(f"{target}: no report can be written there: {error.strerror}") from None


def _device_files(folder: Path, redactor: Redactor, with_data: bool, contents: dict[str, bytes]) -> Seen:
    """Takes the run's record, trace and log. The run's prompts are nobody's: its hashes may stay."""
    seen = Seen()
    with suppress(OSError, ValueError):
        contents["run/record.jsonl"], seen = _record(folder / child.RECORD, redactor, True)
    with suppress(OSError, ValueError):
        contents["run/trace.json"] = json.dumps(redactor.tree(_trace(folder / child.TRACE))).encode()
    with suppress(OSError):
        contents["log.txt"] = redactor.text((folder / child.LOG).read_text("utf-8", "replace")).encode()
    return seen


def _record(path: Path, redactor: Redactor, content: bool) -> tuple[bytes, Seen]:
    out, seen = io.StringIO(), Seen()
    for row in read_lines(path):
        kept = redacted(row, redactor, content)
        seen.add(kept)
        out.write(json.dumps(kept, separators=(",", ":"), ensure_ascii=False) + "\n")
        if out.tell() > _MOST_RECORD:
            out.write(json.dumps({"cut": f"after {_MOST_RECORD >> 20} MiB"}) + "\n")
            break
    return out.getvalue().encode(), seen


def _trace(path: Path) -> Any:
    """The trace, also one whose end is missing because its process died."""
    text = path.read_text("utf-8", "replace").rstrip()
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text.rstrip(",\n") + "]")


def _check(contents: dict[str, bytes], redactor: Redactor) -> None:
    """The last net: nothing that this machine is known by may have come through."""
    for name, data in contents.items():
        if leaks := redactor.leaks(data):
            raise ValueError(
                f"the report is not written: {name} would tell {', '.join(leaks)} of this machine"
            )


def _zip(contents: dict[str, bytes]) -> bytes:
    """The same bytes for the same contents; no time or owner in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in sorted(contents.items()):
            bundle.writestr(zipfile.ZipInfo(f"calrt-report/{name}"), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()
