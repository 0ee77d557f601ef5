# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit says of a few rules: it speaks to the driver's bare table, below the runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from calrt import conformance
from calrt.probes.subject import Subject

__all__ = ["ENDED", "ask_kit", "summary"]

ENDED = ("ended the process", "did not come back", "killed by signal", "did not return")
"""How the kit and the isolation tell of a driver that died or hung."""


def ask_kit(subject: Subject, spec: str, rules: Sequence[str]) -> conformance.Report:
    """The checks of some rules on `spec`, with the subject's package."""
    package = subject.look()[1].directory
    subject.stage(f"conformance {spec}")
    own = {key: value for key, value in subject.options.items() if key != "isolate_deadline"}
    return conformance.run(
        spec, package=package, options=own, only=rules, patience=max(subject.deadline * 2, 5)
    )


def summary(report: conformance.Report) -> dict[str, Any]:
    """Counts of verdicts, and what is broken and why."""
    return {
        "checks": dict(Counter(check.verdict for check in report.checks)),
        "broken": {check.check: check.why for check in report.broken},
    }
