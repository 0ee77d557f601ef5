# SPDX-License-Identifier: Apache-2.0
"""calrt's lines in Python's `logging`: loggers "calrt.<component>", each record with two more attributes.

`record.job_id`: job_seq of the job that the line is about, or None; `record.request_ids`: the numbers of the
requests that the job serves, a tuple. `IdFormatter` shows both. Lines of the native part arrive when the next
call into calrt returns, on that thread: a driver's thread never runs Python. At most 256 wait; what comes on
top is counted, and the count is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["IdFormatter", "about"]

_MOST_COMPONENTS = 64  # a driver names its own; loggers live as long as the process
_components: set[str] = set()


def about(job_id: int | None = None, request_ids: Iterable[int] = ()) -> dict[str, Any]:
    """`extra=` of a log call about a job or requests: `log.warning("...", extra=about(request_ids=[7]))`."""
    return {"job_id": job_id, "request_ids": tuple(request_ids)}


class IdFormatter(logging.Formatter):
    """Any format, with " [job 7, request 3]" after the message where a record has them."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of one record, without its exception."""
        ids = []
        if (job := getattr(record, "job_id", None)) is not None:
            ids.append(f"job {job}")
        if requests := getattr(record, "request_ids", ()):
            ids.append(f"request{'s'[: len(requests) - 1]} {', '.join(map(str, requests))}")
        if ids:
            record.message = f"{record.message} [{', '.join(ids)}]"
        return super().formatMessage(record)


def deliver(lines: Sequence[tuple[int, str, str, int, tuple[int, ...]]], dropped: int) -> None:
    """For the native module: (level, component, text, job_seq, requests) of each line, oldest first."""
    for level, component, text, job_seq, requests in lines:
        log = _logger(component)
        if log.isEnabledFor(level):
            log.log(level, "%s", text, extra=about(job_seq or None, requests))
    if dropped:
        text = "%d native log lines were dropped: more than the queue holds came between two calls"
        logging.getLogger("calrt").warning(text, dropped, extra=about())


def _logger(component: str) -> logging.Logger:
    if component not in _components:
        # One that the program asked for is there already, whatever a driver invented before.
        asked_for = f"calrt.{component}" in logging.Logger.manager.loggerDict
        if len(_components) >= _MOST_COMPONENTS and not asked_for:
            return logging.getLogger("calrt")
        _components.add(component)
    return logging.getLogger(f"calrt.{component}")
