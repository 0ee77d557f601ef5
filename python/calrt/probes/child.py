# SPDX-License-Identifier: Apache-2.0
"""The process of one probe: `python -m calrt.probes.child`, a question on stdin, the answer on stdout.

One JSON object a line: {"stage": ...} before what may not come back, {"note": ...} of what was found,
{"subject": ...} once, {"answer": ...}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, replace
from typing import Any

import calrt
from calrt.orphans import end_with_parent
from calrt.probes.answer import BROKEN, NOT_ASKED, Answer, settled
from calrt.probes.registry import PROBES
from calrt.probes.subject import Subject, told

__all__ = ["main"]


def main() -> int:
    """Asks one probe. What a driver prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(row: dict[str, Any]) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    question = json.loads(sys.stdin.readline())
    end_with_parent(lambda: os.killpg(os.getpid(), signal.SIGKILL))  # with all that this one started
    name = question.pop("probe")
    subject = Subject(
        **question, stage=lambda what: say({"stage": what}), note=lambda found: say({"note": found})
    )
    if name is None:
        say({"subject": _describe(subject)})
        return 0
    try:
        answer = PROBES[name].ask(subject)
    except (calrt.UnsupportedError, MemoryError) as error:
        answer = Answer(NOT_ASKED, told(error))
    except (calrt.CalrtError, OSError, ValueError) as error:
        answer = Answer(BROKEN, f"{type(error).__name__}: {told(error)}")
    if subject.cells < subject.steps:  # so that nobody takes it for the steps that were asked for
        answer = replace(answer, why=f"{answer.why} (of {subject.steps} steps, {subject.cells} fit a lane)")
    say({"answer": asdict(settled(PROBES[name], answer))})
    return 0


def _describe(subject: Subject) -> dict[str, Any]:
    """What evidence is about: the driver as it describes itself, and the package."""
    try:
        with subject.open() as device:
            info = device.info
            package = device.package(subject.package)
    except calrt.DeviceLostError as error:
        return {"why": told(error)}
    except (calrt.CalrtError, OSError, ValueError) as error:
        return {"refused": told(error)}
    return {
        "library": info.driver_path,
        "driver": info.driver,
        "driver_version": info.driver_version,
        "runtime": info.runtime,
        "device_class": info.device_class,
        "device_id": info.id,
        "package": package.directory,
    }


if __name__ == "__main__":
    sys.exit(main())
