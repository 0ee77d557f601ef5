# SPDX-License-Identifier: Apache-2.0
"""Probes: what is open about a device, asked of the device itself. See docs/probes.md.

Each question is asked in a process of its own, which may hang or die: that is an answer too. A probe uses
the public API alone, so it can be asked of any driver; what it finds is about that driver, that runtime, that
package and that device, and about no other.

    for name, answer in calrt.probes.run("mock", ["queue", "golden"]).answers.items(): ...
"""

from __future__ import annotations

from calrt.probes.answer import BROKEN, NO, NOT_ASKED, NOT_OFFERED, WORDS, YES, Answer, Probe
from calrt.probes.run import Findings, record, run

__all__ = [
    "BROKEN",
    "NO",
    "NOT_ASKED",
    "NOT_OFFERED",
    "WORDS",
    "YES",
    "Answer",
    "Findings",
    "Probe",
    "record",
    "run",
]
