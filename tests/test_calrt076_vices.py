# SPDX-License-Identifier: Apache-2.0
"""Each vice of the stand-in SDK in turn, by the conformance kit: what the adapter for CalRT makes of it.

The rules that meet a vice; CALRT_LONG=1 (`make long`) takes all of them.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from calrt import conformance
from test_calrt076 import library
from test_isolate import gone

__all__ = ["library"]

LONG = os.environ.get("CALRT_LONG", "") not in ("", "0")
TABLE = (Path(__file__).parent / "standin_sdk/README.md").read_text()
RULES = ["JOB", "DATA", "KV", "CANCEL"]
FEW = ["JOB-01", "JOB-02", "JOB-03", "DATA-01"]
HANG_S = 0.3
END_S = 60.0
"""A ceiling for a whole run of the kit on a driver that hangs again and again."""

# Made good, in the process of the caller and in another: the driver conforms.
GOOD = (
    "abort_on_misuse",
    "call_answers@4:wait=29",
    "completion_after_cancel",
    "completion_twice",
    "completion_twice@3",
    "d0_padding",
    "kv_silent_noops",
    "late_completion@3:200",
    "numbers_permuted",
    "outputbuf_reused_early@5",
    "run_takes:1000",
)
# What no adapter can make good: the kit finds it, and no answer is wrong. Vice -> the rules that are broken.
FOUND = {
    "outputbuf_reused_early": {"JOB-01", "DATA-01"},
    "run_fails": {"JOB-01", "DATA-01"},
}
# What ends or hangs a process: survived in another one alone. Each process of the driver is struck again.
ENDS = ("abort@9:infer", "segfault@9:wait", "abort@2:kv_apply", "segfault@3:outbuf_acquire")
HANGS = (
    "apply_spins@2",
    "call_never_returns@3:infer",
    "call_never_returns@2:wait",
    "call_never_returns:outbuf_release",
    "run_never_ends@2",
    "wait_never_returns@2",
)


def name_of(vice: str) -> str:
    return re.split("[@:]", vice)[0]


def run(spec: str, only: list[str]) -> conformance.Report:
    return conformance.run(spec, only=[] if LONG else only)


def test_every_vice_has_an_expectation() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", TABLE, re.MULTILINE))
    assert len(known) > 15
    assert {name_of(vice) for vice in (*GOOD, *FOUND, *ENDS, *HANGS)} == known


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("vice", GOOD)
def test_it_conforms(library: str, vice: str, isolated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = run("isolate:calrt076" if isolated else library, RULES)
    assert report.conforms, report.broken


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("vice", FOUND)
def test_what_cannot_be_made_good_is_found_and_never_a_wrong_answer(
    library: str, vice: str, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = conformance.run("isolate:calrt076" if isolated else library, only=["DATA", "JOB-01"])
    assert {check.rule for check in report.broken} >= FOUND[vice]
    assert all("state 4" in check.why for check in report.broken), report.broken


@pytest.mark.parametrize("vice", ENDS)
def test_what_ends_the_process_ends_no_caller(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = run("isolate:calrt076", ["JOB", "DATA"])
    assert report.broken  # it struck
    for check in report.broken:  # and is told for what it is; what comes after a new start is right
        told = ("killed by signal", "in state 4", "answered 27")
        assert any(words in check.why for words in told), check
    assert sum(check.verdict == "pass" for check in report.checks) > len(report.checks) / 5
    assert gone()


@pytest.mark.parametrize("vice", HANGS)
@pytest.mark.timeout(600)
def test_what_hangs_is_a_lost_device_and_ends(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    monkeypatch.setenv("CALRT_ISOLATE_DEADLINE", str(HANG_S))
    began = time.monotonic()
    report = run("isolate:calrt076", FEW)
    assert LONG or time.monotonic() - began < END_S
    assert report.broken
    for check in report.broken:
        told = ("did not return within 0.", "ended none of its", "in state 4", "answered 27")
        assert any(words in check.why for words in told), check
    assert gone()
