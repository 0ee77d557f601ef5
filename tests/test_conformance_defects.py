# SPDX-License-Identifier: Apache-2.0
"""The conformance kit is sharp: each defect of a driver is found, and the rule named that it breaks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from calrt import conformance

ROOT = Path(__file__).parent.parent
DEFECTS = re.findall(
    r'^DEFECT\((\w+), "([A-Z]+-\d\d)", "(.*)"\)$',
    (ROOT / "csrc/tests/drivers/defects.inc").read_text(),
    re.MULTILINE,
)
VIRTUAL = {"clock": "virtual"}  # exact, and no waiting
# Defects that show in real time alone, or on a device of two sessions.
OPTIONS: dict[str, dict[str, str]] = {"completion_after_end": {}, "wait_gives_up": {}, "wait_cancels": {}}
SPECS = {"one_session_of_two": "dual-chip"}


def driver() -> str:
    """Path of the defective driver: in CALRT_TEST_DRIVERS, else in the newest build with tests."""
    named = os.environ.get("CALRT_TEST_DRIVERS")
    folders = [Path(named)] if named else sorted(ROOT.glob("build/*/test-drivers"), key=os.path.getmtime)
    for folder in reversed(folders):
        if (folder / "libcald_defective.so").is_file():
            return str(folder / "libcald_defective.so")
    pytest.skip("no build with native tests: CALRT_TEST_DRIVERS names the folder of libcald_defective.so")


def rules_broken(defect: str, group: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What the kit finds broken in a group of rules, on the defective driver."""
    monkeypatch.setenv("CALRT_DEFECT", defect)
    report = conformance.run(
        f"{driver()}:{SPECS.get(defect, 'tiny')}" if defect in SPECS else driver(),
        options=OPTIONS.get(defect, VIRTUAL),
        only=[group],
        patience=30,
    )
    return {check.rule for check in report.broken}


@pytest.mark.parametrize(("defect", "rule", "text"), DEFECTS, ids=[row[0] for row in DEFECTS])
def test_a_defect_is_rejected(
    defect: str,
    rule: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    found = rules_broken(defect, rule.split("-")[0], monkeypatch)
    record_property("defect", f"{defect:<26} {rule:<10} {' '.join(sorted(found - {rule}))}".rstrip())
    assert rule in found, f"{text}: found {sorted(found)}"


@pytest.mark.parametrize("group", ["ENTRY", "JOB", "DATA"])
def test_without_a_defect_nothing_is_found(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules_broken("", group, monkeypatch) == set()


def test_there_are_many_defects_and_each_rule_of_a_job_has_one() -> None:
    assert len(DEFECTS) >= 40
    rules = {rule.id for rule in conformance.rules()}
    broken = {rule for _, rule, _ in DEFECTS}
    assert broken <= rules
    # Not to be broken by a driver that the kit can open at all.
    assert rules - broken == {"ENTRY-01", "ENTRY-04"}
