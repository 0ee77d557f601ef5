# SPDX-License-Identifier: Apache-2.0
"""Runs probes, each in a process of its own, and makes evidence of what they answer."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from calrt import _core, evidence
from calrt.probes.answer import BROKEN, NO, YES, Answer, in_short

__all__ = ["Findings", "record", "run"]

TIMEOUT_S = 300.0
"""For each probe, loads included."""
DEADLINE_S = 10.0
"""For each job of a probe, and for each call behind `isolate:`."""
STEPS = 32
_CLOSE_S = 5.0
_VERDICTS = {YES: "pass", NO: "fail", BROKEN: "fail"}


@dataclass
class Findings:
    """The answers by probe, and what they are about ({"why": ...} for a device that does not open)."""

    spec: str
    subject: dict[str, Any]
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """No answer is no or broken."""
        return all(answer.word not in (NO, BROKEN) for answer in self.answers.values())

    def to_json(self) -> dict[str, Any]:
        """The document that `calrt probe --json` prints."""
        return {
            "spec": self.spec,
            "subject": self.subject,
            "sound": self.sound,
            "probes": {name: asdict(answer) for name, answer in self.answers.items()},
        }


def run(
    spec: str,
    names: Sequence[str] = (),
    *,
    package: str = "preset:tiny",
    options: dict[str, str] | None = None,
    isolate: bool | None = None,
    steps: int = STEPS,
    deadline: float = DEADLINE_S,
    timeout: float = TIMEOUT_S,
    progress: Callable[[str], object] = lambda name: None,
    begun: Callable[[Findings], object] = lambda findings: None,
    answered: Callable[[Findings, str], object] = lambda findings, name: None,
) -> Findings:
    """Asks the probes named, all if none is, of a device.

    `package`: what `Device.load` takes; `options`: of the device; `steps`: jobs of a measurement; `deadline`:
    seconds for each job; `timeout`: for each probe, after which its process is ended, and all that it
    started. `progress`: told of each probe before it is asked; `begun`: of what it is about, before all;
    `answered`: of each answer as it comes. Raises `ValueError` for an unknown probe, and what those raise;
    `UsageError` for a device or package that is refused.
    """
    from calrt.cli.output import UsageError  # here, as its package imports this module
    from calrt.probes.registry import PROBES  # here: each module of it imports from this package

    unknown = [name for name in names if name not in PROBES]
    if unknown:
        raise ValueError(f"there is no probe {unknown[0]!r}: {', '.join(PROBES)}")
    question = {
        "spec": spec,
        "package": package,
        "steps": steps,
        "deadline": deadline,
        "options": options or {},
        "isolate": isolate,
    }
    subject, why = _child(question | {"probe": None}, "subject", timeout)
    if subject is not None and "refused" in subject:
        raise UsageError(f"{spec} with {package} does not open: {subject['refused']}")
    findings = Findings(spec, subject if subject is not None else {"why": why})
    begun(findings)
    for name in names or PROBES:
        progress(name)
        found, why = _child(question | {"probe": name}, "answer", timeout)
        findings.answers[name] = Answer(BROKEN, why) if found is None else Answer(**found)
        answered(findings, name)
    return findings


def record(findings: Findings) -> evidence.Evidence:
    """What the answers are evidence for: yes is a pass, no and broken are fails, all else is skipped.

    `ValueError` if the device did not open.
    """
    from calrt.probes.registry import PROBES

    about = dict(findings.subject)
    if "why" in about:
        raise ValueError(f"evidence needs a device that opens: {about['why']}")
    package = _core.Package.open(about.pop("package"))
    checks = [
        (PROBES[name].capability, f"probe:{name}", _VERDICTS.get(answer.word, "skip"))
        for name, answer in findings.answers.items()
    ]
    return evidence.record(**about, package=package, checks=checks)


def _child(question: dict[str, Any], wanted: str, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """What the process of a question said, or None and what became of it."""
    environment = os.environ | {
        "CALRT_ISOLATE_DEADLINE": f"{question['deadline']:g}",
        "PYTHONSAFEPATH": "1",  # no module of the caller's folder in place of Python's own
    }
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "calrt.probes.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # to be ended with all that it starts
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                # Which stays open: its end tells the child that this process is gone.
                print(json.dumps(question), file=child.stdin, flush=True)
            found, stage, notes, hung = _listen(child, wanted, time.monotonic() + timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            with contextlib.suppress(BrokenPipeError):
                if child.stdin is not None:
                    child.stdin.close()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if found is not None:
        return found, ""
    where = f" (at: {stage})" if stage else ""
    before = f"; found before: {in_short(notes)}" if notes else ""
    if hung:
        return None, f"it hung: no answer within {timeout:g} s{where}{before}"
    if code < 0:
        return None, f"its process was ended by {signal.Signals(-code).name}{where}{before}"
    last = said[-1] if said else "no word why"
    return None, f"its process ended with exit code {code}{where}: {last}{before}"


def _listen(
    child: subprocess.Popen[str], wanted: str, until: float
) -> tuple[dict[str, Any] | None, str, list[str], bool]:
    """The row that is wanted, the last stage, all notes, and whether time was up. Waits for the end, too."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def pump() -> None:
        with contextlib.suppress(ValueError), child.stdout or contextlib.nullcontext(()) as output:
            for line in output:
                lines.put(line)
        lines.put(None)

    reader = threading.Thread(target=pump, name="calrt-probe", daemon=True)
    reader.start()
    found: dict[str, Any] | None = None
    stage = ""
    notes: list[str] = []
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return found, stage, notes, True
        if line is None:
            reader.join()
            with contextlib.suppress(subprocess.TimeoutExpired):  # its own end, rather than ours
                child.wait(_CLOSE_S)
            return found, stage, notes, False
        row = json.loads(line)
        stage = row.get("stage", stage)
        notes += [row["note"]] if "note" in row else []
        if wanted in row:
            found = row[wanted]
            until = min(until, time.monotonic() + _CLOSE_S)  # to close what it opened
