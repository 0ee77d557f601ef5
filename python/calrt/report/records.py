# SPDX-License-Identifier: Apache-2.0
"""Files of the record layer in a report: what of them may be sent, and what they tell.

A record without data still has SHA-256 of what jobs were given, and of a single token id that is as good as
the id itself: all 151,936 are quickly tried. So of a run that may have had somebody's prompts nothing of it
is kept unless data was asked for.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calrt.regular_file import open_regular
from calrt.report.redact import Redactor

__all__ = ["Seen", "read_lines", "redacted"]

_MOST_LINES = 200_000
_MOST_LINE = 64 << 20  # bytes; one with all that a job was given and gave has less
_MOST_JOBS = 32
_MOST_ERRORS = 64
_CONTENT = ("inputs", "outputs", "key", "sha256")
_STATES = {3: "done", 4: "failed", 5: "cancelled"}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a record; `ValueError` naming the file's name if it is none. The last may be cut off.

    `OSError` for what is no regular file, and may have no end.
    """
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE + 1), b""), 1):
            if number > _MOST_LINES:
                yield {"cut": f"after {_MOST_LINES} lines"}
                return
            if len(line) > _MOST_LINE and number > 1:
                yield {"cut": f"line {number} has more than {_MOST_LINE >> 20} MiB"}
                return
            try:
                row = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                row = None
            if number == 1 and (not isinstance(row, dict) or row.get("format") != "calrt-record"):
                raise ValueError(f"{path.name} is no file of the record layer: its first line is another")
            if isinstance(row, dict):
                yield row


def redacted(row: dict[str, Any], redactor: Redactor, content: bool) -> dict[str, Any]:
    """A line as it may be sent; `content`: with what jobs were given and gave."""
    if not content:
        row = {name: value for name, value in row.items() if name not in _CONTENT} | {
            name: [{"role": item.get("role"), "bytes": item.get("bytes")} for item in row[name]]
            for name in ("inputs", "outputs")
            if name in row
        }
    return dict(redactor.tree(row))


@dataclass
class Seen:
    """What a record tells: how entries were called, the last jobs, the errors."""

    calls: dict[str, dict[str, int]] = field(default_factory=dict)
    """By entry: calls, failed, longest_ns."""
    jobs: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_JOBS))
    errors: list[dict[str, Any]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    _open: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        """Takes one line of the record, in order."""
        if "format" in row:
            self.header = row
        elif "entry" in row:
            self._call(row)
        elif "job" in row:
            self._job(row["job"]).update(
                {
                    name: row[name]
                    for name in ("status", "native", "bytes_in", "bytes_out", "why")
                    if name in row
                }
            )
            if "state" in row:
                state = row["state"]
                self._job(row["job"]).update(state=_STATES.get(state, str(state)), ended_t_ns=row.get("t_ns"))

    def _call(self, row: dict[str, Any]) -> None:
        found = self.calls.setdefault(row["entry"], {"calls": 0, "failed": 0, "longest_ns": 0})
        failed = row.get("status", 0) != 0 or row.get("threw", False)
        found["calls"] += 1
        found["failed"] += failed
        found["longest_ns"] = max(found["longest_ns"], row.get("ns", 0))
        if failed and len(self.errors) < _MOST_ERRORS:
            self.errors.append({name: row.get(name) for name in ("call", "entry", "status", "why", "threw")})
        if "job" in row:
            self._job(row["job"]).update(
                what=row.get("what"),
                job_seq=row.get("job_seq"),
                submitted_t_ns=row.get("t_ns"),
                answer=row.get("status"),
            )

    def _job(self, number: int) -> dict[str, Any]:
        if number not in self._open:
            self._open[number] = {"job": number}
            self.jobs.append(self._open[number])
            if len(self._open) > 2 * _MOST_JOBS:
                self._open = {job["job"]: job for job in self.jobs}
        return self._open[number]
