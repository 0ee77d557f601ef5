# SPDX-License-Identifier: Apache-2.0
"""The conformance kit is sharp: each defect of a driver is found, and the rule named that it breaks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from calrt import conformance
from calrt.cli.output import UsageError

ROOT = Path(__file__).parent.parent
DEFECTS = re.findall(
    r'^DEFECT\((\w+), "([A-Z]+-\d\d(?:/\w+)?)", "(.*)"\)$',
    (ROOT / "csrc/tests/drivers/defects.inc").read_text(),
    re.MULTILINE,
)
VIRTUAL = {"clock": "virtual"}  # exact, and no waiting
# Defects that show in real time alone, slow enough that a busy machine does not hide them; and one of a
# device of two sessions.
SLOW = {"speed": "0.05"}
OPTIONS: dict[str, dict[str, str]] = {"completion_after_end": {}, "wait_gives_up": SLOW, "wait_cancels": SLOW}
SPECS = {"one_session_of_two": "dual-chip"}


def driver(name: str = "defective") -> str:
    """Path of a test driver: in CALRT_TEST_DRIVERS, else in the newest build with tests and no sanitizer."""
    named = os.environ.get("CALRT_TEST_DRIVERS")
    built = [folder for folder in ROOT.glob("build/*/test-drivers") if "sanitize" not in folder.parts[-2]]
    folders = [Path(named)] if named else sorted(built, key=os.path.getmtime)
    for folder in reversed(folders):
        if (folder / f"libcald_{name}.so").is_file():
            return str(folder / f"libcald_{name}.so")
    pytest.skip(f"no build with native tests: CALRT_TEST_DRIVERS names the folder of libcald_{name}.so")


def broken(defect: str, group: str, monkeypatch: pytest.MonkeyPatch) -> list[conformance.Check]:
    """The checks of a group of rules that the defective driver fails."""
    monkeypatch.setenv("CALRT_DEFECT", defect)
    return conformance.run(
        f"{driver()}:{SPECS.get(defect, 'tiny')}" if defect in SPECS else driver(),
        options=OPTIONS.get(defect, VIRTUAL),
        only=[group],
        patience=30,
    ).broken


@pytest.mark.parametrize(("defect", "rule", "text"), DEFECTS, ids=[row[0] for row in DEFECTS])
def test_a_defect_is_rejected(
    defect: str,
    rule: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    checks = broken(defect, rule.split("-")[0], monkeypatch)
    found = {check.rule for check in checks}
    its_id = rule.split("/")[0]
    record_property("defect", f"{defect:<26} {rule:<15} {' '.join(sorted(found - {its_id}))}".rstrip())
    assert its_id in found, f"{text}: found {sorted(found)}"
    if rule != its_id:
        assert rule in {check.check for check in checks}, f"{text}: found {sorted(c.check for c in checks)}"


@pytest.mark.parametrize("group", ["ENTRY", "JOB", "DATA"])
def test_without_a_defect_nothing_is_found(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken("", group, monkeypatch) == []


def test_there_are_many_defects_and_each_rule_has_one() -> None:
    assert len(DEFECTS) >= 40
    rules = {rule.id for rule in conformance.rules()}
    assert {rule.split("/")[0] for _, rule, _ in DEFECTS} == rules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken_major", "its table is of ABI major 2"),
        ("broken_short", "its table is of "),
        ("broken_no_version", "its table is of 4 bytes"),
        ("broken_throws", "threw"),
        ("broken_no_table", "gave no table"),
        ("broken_code_30", "its entry answered 30"),
    ],
)
def test_a_handshake_that_fails(name: str, why: str) -> None:
    report = conformance.run(driver(name))
    assert [check.rule for check in report.broken] == ["ENTRY-01"]
    assert why in report.broken[0].why


def test_a_library_without_an_entry_is_no_driver() -> None:
    with pytest.raises(UsageError, match="does not export cald_driver_entry"):
        conformance.run(driver("broken_no_symbol"))


def test_a_known_failure_that_is_mended_is_noticed() -> None:
    report = conformance.run(driver("defective_null"), only=["LOAD-04"])
    verdicts = {check.check: check.verdict for check in report.checks}
    assert verdicts == {"LOAD-04/geometry": "fail", "LOAD-04/graphs": "pass", "LOAD-04/words": "known"}
    assert "take the declaration out of the check" in report.broken[0].why


def test_behind_a_crash_the_kit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_DEFECT", "null_close_crashes")
    report = conformance.run(driver(), options=VIRTUAL, only=["ENTRY", "INFO"])
    assert [check.check for check in report.broken] == ["ENTRY-03"]
    assert "SIGSEGV" in report.broken[0].why
    assert len(report.checks) == len({check.check for check in report.checks}) > 20


def test_an_unknown_defect_is_refused() -> None:
    with pytest.raises(UsageError, match="no such defect"):
        conformance.run(driver(), options={"defect": "nosuch"})
    report = conformance.run(driver(), options={"defect": "dirty_buffer", **VIRTUAL}, only=["BUF-02"])
    assert [check.rule for check in report.broken] == ["BUF-02"]
