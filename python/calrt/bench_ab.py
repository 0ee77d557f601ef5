# SPDX-License-Identifier: Apache-2.0
"""A/B: what calrt costs, or gains, against the same steps without it.

Arm A is a loop of its own without calrt's runtime: the SDK's own infer() and Wait() where the driver brings
such a program, else submit and wait through the driver's bare table. Arm B is calrt with one job at a time,
arm C with two in flight, on two sequences that take turns. All run the same steps, in the order A B C C B A,
so that a drift of the machine is shared, and each must give the same logits: outputs are compared before any
time is, and one bit refuses the figures.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from calrt import _core, evidence
from calrt.bench_arms import Arms, patience
from calrt.grounds import IN_FLIGHT_2

__all__ = ["ARMS", "MARGIN", "MIN_ROUNDS", "Ratio", "Report", "interval", "record", "run"]

ARMS = {"A": "raw: run and wait at once", "B": "calrt, 1 in flight", "C": "calrt, 2 in flight"}
_ORDER = "ABCCBA"
_PAIRS = (("B", "A"), ("C", "A"), ("C", "B"))
RULE = "bench:ab"
MARGIN = 0.02
"""Times are equal where the whole interval lies this close to 1: to hold 1 alone may be mere ignorance."""
MIN_ROUNDS = 3
"""Fewer rounds decide nothing."""
_T975: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond them the last one, which is wider."""


@dataclass(frozen=True)
class Ratio:
    """Time of one arm over another's, with its 95 % confidence interval.

    `verdict` of the first arm: faster or slower where the interval lies on one side of 1, equal where it
    holds 1 and lies within `MARGIN` of it, else undecided.
    """

    arms: str
    ratio: float
    low: float
    high: float
    verdict: str


@dataclass
class Report:
    """One comparison. `verdict`: measured; refused, then `why` names the step that differs; or no outputs, of
    a device that computes nothing: then times are there and nothing is compared.

    `ns`: by arm, of each block of `steps`; `sha256`: by arm, of all its logits; `ratios`: () unless measured.
    `subject`: what it is about, as evidence needs it.
    """

    spec: str
    steps: int
    sequences: int
    raw: str
    subject: dict[str, Any]
    verdict: str = "measured"
    why: str = ""
    ns: dict[str, list[int]] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)

    @property
    def gain(self) -> bool:
        """Two in flight gave the same outputs as one, in less time, the whole interval below 1."""
        return any(ratio.arms == "C/B" and ratio.verdict == "faster" for ratio in self.ratios)

    def to_json(self) -> dict[str, Any]:
        """The document that `calrt bench ab --json` prints."""
        return {**asdict(self), "arms": ARMS, "interval": "95 %, Student's t of paired log ratios"}


def interval(ours: Sequence[int], theirs: Sequence[int], arms: str = "") -> Ratio:
    """The ratio of two arms' times, measured in pairs, and what can be said of it.

    The mean of the log ratios of the pairs, give or take Student's t times its standard error: pairs share
    the machine's load, and logs make a ratio and its inverse alike. `ValueError` for less than two pairs.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"{len(ours)} and {len(theirs)} times: two pairs or more are due")
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    t = _T975[min(len(logs) - 1, len(_T975)) - 1]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    equal = low >= 1 - MARGIN and high <= 1 + MARGIN
    verdict = "faster" if high < 1 else "slower" if low > 1 else "equal" if equal else "undecided"
    return Ratio(arms, math.exp(mean), low, high, verdict)


def run(
    spec: str,
    *,
    package: str = "preset:tiny",
    steps: int = 64,
    rounds: int = 5,
    layers: str | None = None,
    isolate: bool | None = None,
    timeout: float | None = None,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
    begun: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Compares the arms on a device: `rounds` times A B C C B A of `steps` each, after one to warm.

    `layers`, `isolate`: of calrt's arms, as for `calrt.open`; arm A has neither. Without a second lane there
    is no arm C. `timeout`: seconds for each block of arm A and each job of calrt's (None: 60, and a quarter
    for each step). `progress`: told of the arm that runs; `begun`: of what is compared, before that is done.
    Fewer than `MIN_ROUNDS` decide nothing. Raises what `open`, `load` and `begun` raise, `ExecutionError` for
    a raw loop that fails or hangs, `UnsupportedError` without such a program.
    """
    progress("loading calrt and arm A", 0, 1)
    limit = patience(steps) if timeout is None else timeout
    with contextlib.closing(Arms(spec, package, layers, isolate, limit)) as arms:
        sequences = arms.sequences
        steps = min(steps, arms.cells * sequences)
        report = Report(spec, steps, sequences, arms.program, arms.subject)
        begun(report)
        order = _ORDER if sequences > 1 else _ORDER.replace("C", "")
        digests: dict[str, list[str]] = {}
        total = len(order) * (rounds + 1)
        for at in range(total):
            arm = order[at % len(order)]
            progress(f"arm {arm}, {ARMS[arm]}", at, total)
            ns, found = arms.run(arm, steps)
            if _differs(report, digests, arm, found):
                report.sha256 = {each: _whole(of_arm) for each, of_arm in digests.items()} | {
                    arm: _whole(found)
                }
                return report
            if at >= len(order):
                report.ns.setdefault(arm, []).append(ns)
        report.sha256 = {each: _whole(of_arm) for each, of_arm in digests.items()}
    if all(len(set(of_arm)) == 1 for of_arm in digests.values()):  # whatever the token
        report.verdict = "no outputs"
        report.why = f"each of the {steps} steps gave the same bits: there are no outputs to compare"
        return report
    for one, other in _PAIRS:
        if one in report.ns:
            ratio = interval(report.ns[one], report.ns[other], f"{one}/{other}")
            report.ratios.append(ratio if rounds >= MIN_ROUNDS else replace(ratio, verdict="undecided"))
    return report


def _whole(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _differs(report: Report, digests: dict[str, list[str]], arm: str, found: list[str]) -> bool:
    """Whether a block gave other logits than the first one; then the report says where."""
    digests.setdefault(arm, found)
    first, right = next(iter(digests.items()))
    for step, (one, other) in enumerate(zip(right, found, strict=True)):
        if one != other:
            report.verdict = "refused"
            report.why = (
                f"outputs differ: step {step} gave {other[:12]} in arm {arm} ({ARMS[arm]}) "
                f"and {one[:12]} in arm {first} ({ARMS[first]})"
            )
            report.ns = {}
            return True
    return False


def record(report: Report) -> evidence.Evidence:
    """What the comparison is evidence for: `in_flight_2` passes if outputs are equal and C gains on B.

    Skipped where nothing was decided: without a second lane, without outputs, by an interval too wide.
    """
    about = dict(report.subject)
    package = _core.Package.open(about.pop("package"))
    decided = report.verdict == "refused" or any(
        ratio.arms == "C/B" and ratio.verdict != "undecided" for ratio in report.ratios
    )
    verdict = "pass" if report.gain else "fail" if decided else "skip"
    return evidence.record(**about, package=package, checks=[(IN_FLIGHT_2, RULE, verdict)])
