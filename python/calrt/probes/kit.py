# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit says of a few rules: it speaks to the driver's bare table, below the runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from calrt import conformance
from calrt.probes.subject import Subject

__all__ = ["ask_kit", "summary"]


def ask_kit(subject: Subject, spec: str, rules: Sequence[str]) -> conformance.Report:
    """The checks of some rules on `spec`, with the subject's package."""
    package = subject.look()[1].directory
    subject.stage(f"conformance {spec}")
    own = {key: value for key, value in subject.options.items() if key != "isolate_deadline"}
    known = 0

    def note(report: conformance.Report) -> None:
        nonlocal known
        for check in report.broken[known:]:
            subject.note(f"{check.rule}: {check.why}")
            known += 1

    begun: list[conformance.Report] = []
    report = conformance.run(
        spec,
        package=package,
        options=own,
        only=rules,
        patience=max(subject.deadline * 2, 5),
        progress=lambda check, done: note(begun[0]),
        begun=begun.append,
    )
    note(report)
    return report


def summary(report: conformance.Report) -> dict[str, Any]:
    """Counts of verdicts, and what is broken and why."""
    return {
        "checks": dict(Counter(check.verdict for check in report.checks)),
        "broken": {check.check: check.why for check in report.broken},
    }
