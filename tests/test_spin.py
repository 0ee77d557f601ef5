# SPDX-License-Identifier: Apache-2.0
"""The protocol of the lane table, proved by spin: tests/spin/lanes.pml holds, its mutants are caught."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("spin") / "lanes.pml"
MEGABYTES = 1500
DEPTH = 100_000
CEILING_S = 300  # a hang

pytestmark = pytest.mark.timeout(2 * CEILING_S)

# What each has to find, by the line that spin prints.
MUTANTS = {
    "NO_SEQ_CHECK": "assertion violated",
    "SEQ_PER_LEASE": "assertion violated",
    "CANCEL_FREES": "assertion violated",
    "FAULT_FREES": "assertion violated",
    "SCRUB_TWICE": "assertion violated",
    "CANCEL_STAYS": "assertion violated",
    "NOBODY_SERVES": "invalid end state",
}


def search(where: Path, *defines: str, optimise: str = "-O1") -> str:
    """What spin's verifier of the model says of every state, with these -D."""
    spin, cc = shutil.which("spin"), os.environ.get("CC") or shutil.which("cc")
    if spin is None or cc is None:
        pytest.skip(f"needs spin and a C compiler: {'cc' if spin else 'spin'} is not installed")
    for command in (
        [spin, "-a", *(f"-D{name}" for name in defines), str(MODEL)],
        [
            *cc.split(),
            optimise,
            "-w",
            "-DSAFETY",
            "-DCOLLAPSE",
            f"-DMEMLIM={MEGABYTES}",
            "-o",
            "pan",
            "pan.c",
        ],
    ):
        made = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=CEILING_S)
        assert made.returncode == 0, made.stdout + made.stderr
    # -b: a search that was too deep is an error.
    run = [str(where / "pan"), f"-m{DEPTH}", "-b"]
    found = subprocess.run(run, cwd=where, capture_output=True, text=True, timeout=CEILING_S)
    return found.stdout + found.stderr


def states(report: str) -> int:
    """How many were looked at."""
    match = re.search(r"^\s*([\d.e+]+) states, stored", report, re.MULTILINE)
    assert match is not None, report
    return int(float(match[1]))


def assert_complete(report: str) -> None:
    """Nothing was left out: every state was reached within the limits, and no statement never was."""
    for sign in (
        "Search not completed",
        "max search depth too small",
        "out of memory",
        "memory limit",
        "aborting",
    ):
        assert sign not in report, report
    never = [line for line in re.findall(r"lanes\.pml:.*", report) if not line.endswith('"-end-"')]
    assert never == [], report


@pytest.mark.parametrize(
    ("defines", "least"), [((), 500_000), (("ENDS", "JOBS=1"), 1_000_000)], ids=["lanes", "ends"]
)
def test_the_protocol_holds_in_every_state(tmp_path: Path, defines: tuple[str, ...], least: int) -> None:
    report = search(tmp_path, *defines)
    print(f"spin: {states(report)} states of lanes.pml {' '.join(defines)}")
    assert re.search(r"errors: 0$", report, re.MULTILINE), report
    assert_complete(report)
    assert states(report) >= least, report


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(tmp_path: Path, mutant: str) -> None:
    report = search(tmp_path, mutant, optimise="-O0")
    print(f"spin: {mutant} found wrong after {states(report)} states")
    assert re.search(r"errors: 1$", report, re.MULTILINE), report
    assert re.search(rf"^pan:1: {MUTANTS[mutant]}", report, re.MULTILINE), report


def test_every_mutant_of_the_model_is_run() -> None:
    named = re.findall(r"^//   -D(\w+) ", MODEL.read_text().split("// Mutants:")[1], re.MULTILINE)
    assert named == list(MUTANTS)
