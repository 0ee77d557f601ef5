# SPDX-License-Identifier: Apache-2.0
"""`calrt conformance DRIVER`: holds a driver to the rules of its ABI (docs/conformance.md).

The checks run in a program of their own, `calrt-conformance`, as a child with a deadline for each check: a
driver that crashes or hangs is a finding that names the check, and the next checks run all the same.

    report = calrt.conformance.run("cpu")
    assert report.conforms, report.broken
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import calrt
from calrt import _core, evidence, presets
from calrt.cli.output import (
    EXIT_FAILED,
    Commands,
    MissingError,
    UsageError,
    emit,
    error_document,
    fail,
    number,
    path,
)
from calrt.cli.output import add_command as new_command
from calrt.cli.recording import Recording

__all__ = ["Check", "Report", "Rule", "add_command", "program", "rules", "run"]

PATIENCE = 60.0
"""Seconds that one check may take before the driver is said to hang."""


@dataclass(frozen=True)
class Rule:
    """What a driver is held to. `capability`: what a pass is evidence for, "" = none of its own."""

    id: str
    capability: str
    text: str


@dataclass(frozen=True)
class Check:
    """What one check found.

    `rule`: the one that it tests, or the more general one that it saw broken. `verdict`: pass, fail, skip
    (this device lacks what is needed; `why` says what), or known (it fails, as the check declares).
    """

    check: str
    rule: str
    verdict: str
    why: str
    seconds: float


@dataclass
class Report:
    """All checks of a run, in order, and what they were run on."""

    spec: str
    subject: dict[str, Any]
    """As the driver describes itself: driver, version, library, device {name, device_class, id, runtime}."""
    package: str | None
    checks: list[Check] = field(default_factory=list)

    @property
    def broken(self) -> list[Check]:
        """The checks that found a rule broken."""
        return [check for check in self.checks if check.verdict == "fail"]

    @property
    def conforms(self) -> bool:
        """No rule is broken, and something was tested."""
        return not self.broken and any(check.verdict == "pass" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The document that `calrt conformance --json` prints."""
        return {
            "spec": self.spec,
            **self.subject,
            "package": self.package,
            "conforms": self.conforms,
            "counts": dict(Counter(check.verdict for check in self.checks)),
            "checks": [vars(check) for check in self.checks],
        }


def program() -> str:
    """Path of `calrt-conformance`, which is installed with calrt; `MissingError` without it."""
    path = Path(_core.__file__).parent / "bin" / "calrt-conformance"  # beside libcalrt
    if not path.is_file():
        raise MissingError(f"{path} is missing: this installation of calrt is incomplete")
    return str(path)


def rules() -> list[Rule]:
    """All rules, in order."""
    done = subprocess.run([program(), "--list"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [Rule(row["rule"], row["capability"], row["text"]) for row in rows]


def run(
    driver: str,
    *,
    package: str | os.PathLike[str] | None = None,
    options: dict[str, str] | None = None,
    only: Sequence[str] = (),
    patience: float = PATIENCE,
    progress: Callable[[str, int], object] = lambda check, done: None,
    begun: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Runs the checks on a driver: a spec as `calrt.open` takes it, `mock:bare` or a library's path.

    `package`: a directory made for the driver, or "preset:NAME", which is made for it; by default the preset
    of a mock device, else `preset:tiny`. `options`: of the device. `only`: rules ("JOB-03"), groups ("JOB")
    or checks. `patience`: seconds for each check. `progress` is called with the name of each check that
    begins and how many have ended, `begun` once with the report before all checks. Raises `UsageError` for an
    unknown rule, option or package, and `MissingError`.
    """
    words = [program(), driver, *(word for item in (options or {}).items() for word in _option(*item))]
    subject = _describe(driver, words, patience)
    device = subject.get("device")
    if package is None or presets.preset_name(package) is not None:
        made_for = None if device is None else (subject["driver"], device["device_class"])
        package = None if made_for is None else _stand_in(presets.preset_name(package), *made_for)
    report = Report(driver, subject, None if package is None else os.fspath(package))
    begun(report)
    if package is not None:
        words += ["--package", os.fspath(package)]
    for word in only:
        words += ["--only", word]
    after: list[str] = []
    while True:
        known = len(report.checks)
        if _run_child([*words, *after], patience, report.checks, progress):
            return report
        if len(report.checks) == known:  # not one check further: the driver ends it before any
            return report
        after = ["--after", report.checks[-1].check]


def _option(key: str, value: str) -> tuple[str, str]:
    return "--option", f"{key}={value}"


def _stand_in(name: str | None, driver: str, device_class: str) -> str:
    """A preset made for this driver, as by `Device.load`; for a driver that calrt does not know, too."""
    if name is None:
        name = device_class.removeprefix("mock-") if driver == "mock" else "tiny"
    try:
        if driver == "mock":  # whose presets are each of a device of their own
            return os.fspath(presets.preset_for(name, driver, device_class))
        return os.fspath(presets.build_preset(name, driver=driver, device_class=device_class))
    except (calrt.PackageError, ValueError) as error:
        raise UsageError(f"--package preset:{name}: {error}") from error


def _describe(driver: str, words: list[str], patience: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [*words, "--describe"], capture_output=True, text=True, errors="replace", timeout=patience
        )
    except subprocess.TimeoutExpired:
        return {"driver": driver, "device": None, "why": f"it did not come back within {patience:g} s"}
    if done.returncode < 0:
        return {"driver": driver, "device": None, "why": _ended_by(done.returncode)}
    if done.returncode != 0:
        raise UsageError(_complaint(done.stderr))
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer.get("device") is None and answer["version"] and words[2:]:
        raise UsageError(f"{driver} does not open: {answer.get('why')}")
    return answer


def _run_child(
    words: list[str],
    patience: float,
    checks: list[Check],
    progress: Callable[[str, int], object],
) -> bool:
    """Adds what the child finds. False if it ended in the middle, and the rest is still to be run."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        child = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace", bufsize=1
        )
        try:
            open_check, whole, ended = _read(child, patience, checks, progress)
        finally:
            child.kill()
            code = child.wait()
        if whole and code in (0, 1) and ended:
            return True
        errors.seek(0)
        said = errors.read()
        if whole and code == 2 and not checks and _KIT_SAYS in said:
            raise UsageError(_complaint(said))
        check, rule = open_check or (checks[-1].check if checks else "", "")
        why = _ended_by(code) if whole else f"the driver did not come back within {patience:g} s"
        if open_check is not None:
            checks.append(Check(check, rule, "fail", why, patience if not whole else 0.0))
        elif checks:  # after the verdict, while everything was closed
            last = checks.pop()
            checks.append(Check(last.check, last.rule, "fail", f"{why}, when it was closed", last.seconds))
            progress(last.check, len(checks))
        else:
            checks.append(Check("ENTRY-01", "ENTRY-01", "fail", why, 0.0))
        return False


def _read(
    child: subprocess.Popen[str],
    patience: float,
    checks: list[Check],
    progress: Callable[[str, int], object],
) -> tuple[tuple[str, str] | None, bool, bool]:
    """The check (and its rule) that has begun and not ended, whether the output came to its end, and whether
    the kit said so: a driver may end the process with any exit code. Only what the kit prints counts, for
    time too: a driver that prints without end is one that hangs."""
    rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def pump() -> None:
        with contextlib.suppress(ValueError), child.stdout or contextlib.nullcontext() as output:
            while output is not None and (line := output.readline(_LONGEST_LINE)):
                if (row := _row_of_the_kit(line)) is not None:
                    rows.put(row)
        rows.put(None)

    threading.Thread(target=pump, name="calrt-conformance", daemon=True).start()
    begun: tuple[str, str] | None = None
    ended = False
    while True:
        try:
            row = rows.get(timeout=patience)
        except queue.Empty:
            return begun, False, ended
        if row is None:
            return begun, True, ended
        ended = "end" in row
        if "begin" in row:
            begun = row["begin"], row["rule"]
            progress(row["begin"], len(checks))
        elif "check" in row:
            checks.append(Check(**row))
            begun = None


_ROWS = ({"begin", "rule"}, {"check", "rule", "verdict", "why", "seconds"}, {"end"})
_LONGEST_LINE = 1 << 20


def _row_of_the_kit(line: str) -> dict[str, Any] | None:
    """None for what the driver printed."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and set(row) in _ROWS else None


def _ended_by(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the driver ended the process: {signal.Signals(-code).name}"
    return f"the driver ended the process with exit code {code}"


_KIT_SAYS = "calrt-conformance: "


def _complaint(text: str) -> str:
    """What the kit says on stderr, among all that a driver may have written there."""
    lines = [line for line in text.splitlines() if line.startswith(_KIT_SAYS)]
    return lines[0].removeprefix(_KIT_SAYS) if lines else text.strip() or "no word why"


def record(report: Report) -> evidence.Evidence:
    """What the run is evidence for; `ValueError` if it had no device or no package."""
    device = report.subject.get("device")
    if device is None or report.package is None:
        raise ValueError("evidence needs a device that opens and a package that it loads")
    capability = {rule.id: rule.capability for rule in rules()}
    return evidence.record(
        library=report.subject["library"],
        driver=report.subject["driver"],
        driver_version=report.subject["version"],
        runtime=device["runtime"],
        device_class=device["device_class"],
        device_id=device["id"],
        package=_core.Package.open(report.package),
        checks=[(capability.get(check.rule, ""), check.rule, check.verdict) for check in report.checks],
    )


# ---- the command ------------------------------------------------------------------------------------

_ABOUT = """

Each rule has an id that never changes (docs/conformance.md lists them). What a device does not claim is
skipped; a failure that is known of a driver is declared in the check, so that a fix is noticed. A driver that
crashes or hangs is a finding, not the end."""

_EXAMPLES = """  calrt conformance cpu                            all rules
  calrt conformance mock:bare --only JOB --only TIME-05
  calrt conformance mock --option clock=virtual    with device options
  calrt conformance /path/libcald_yours.so --package DIR --record evidence.json
  calrt conformance --list                         the rules
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt conformance`."""
    parser = new_command(
        commands,
        "conformance",
        _conformance,
        summary="hold a driver to the rules of the driver ABI",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "driver", nargs="?", metavar="DRIVER", help="null, cpu, mock:bare, /path/libcald_x.so"
    )
    parser.add_argument(
        "--package",
        type=path,
        metavar="P",
        help="a directory made for the driver, or preset:NAME (default: a preset), which is made for it",
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the device")
    parser.add_argument("--only", action="append", default=[], metavar="RULE", help="a rule, group or check")
    parser.add_argument("--record", type=path, metavar="FILE", help="write what was found as evidence")
    parser.add_argument(
        "--timeout", type=number(0.1, 1e6), default=PATIENCE, metavar="S", help="for each check"
    )
    parser.add_argument("--list", action="store_true", help="list the rules, and run nothing")


def _conformance(options: argparse.Namespace) -> int:
    if options.list:
        found = rules()
        width = max(len(rule.id) for rule in found)
        emit(
            options,
            {"rules": [vars(rule) for rule in found]},
            "\n".join(f"{rule.id:<{width}}  {rule.text}" for rule in found),
        )
        return 0
    if options.driver is None:
        raise UsageError("conformance: which DRIVER? calrt devices lists what is here")
    if options.record and options.only:
        raise UsageError("--record needs all rules: leave --only out")
    recording = Recording(options.record)

    def begun(report: Report) -> None:
        with contextlib.suppress(
            calrt.CalrtError, ValueError
        ):  # without a device there is a report all the same
            recording.check(record(report))

    with _progress_line() as progress:
        report = run(
            options.driver,
            package=options.package,
            options=_options(options.option),
            only=options.only,
            patience=options.timeout,
            progress=progress,
            begun=begun if options.record else lambda report: None,
        )
    document = report.to_json()
    recording.add(lambda: record(report))
    if recording.error is not None:  # the report is not lost with its record
        document |= error_document(recording.error, EXIT_FAILED)
    emit(options, document, _text(report))
    if recording.error is not None:
        return EXIT_FAILED if options.json else fail(recording.error, EXIT_FAILED, as_json=False)
    return 0 if report.conforms else EXIT_FAILED


def _options(words: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--option {word}: KEY=VALUE is due")
        pairs[key] = value
    return pairs


@contextlib.contextmanager
def _progress_line() -> Iterator[Callable[[str, int], object]]:
    """One line on a terminal that names the check that runs."""
    stream = sys.stderr
    if not stream.isatty():
        yield lambda check, done: None
        return
    try:
        yield lambda check, done: print(
            f"\r\x1b[K{done} checks done, now {check}", end="", file=stream, flush=True
        )
    finally:
        print("\r\x1b[K", end="", file=stream, flush=True)


def _text(report: Report) -> str:
    device = report.subject.get("device")
    lines = [f"{report.spec}: driver {report.subject['driver']} {report.subject.get('version', '')}".rstrip()]
    if device is None:
        lines.append(f"  the device does not open: {report.subject.get('why', '')}")
    groups: dict[str, Counter[str]] = {}
    for check in report.checks:
        groups.setdefault(check.check.split("-")[0], Counter())[check.verdict] += 1
    for group, counts in groups.items():
        shown = ", ".join(
            f"{counts[word]} {word}" for word in ("pass", "fail", "known", "skip") if counts[word]
        )
        lines.append(f"  {group:<8}{shown}")
    texts = {rule.id: rule.text for rule in rules()} if report.broken else {}
    for check in report.checks:
        if check.verdict == "fail":
            lines += [f"BROKEN {check.rule}: {texts.get(check.rule, '')}", f"  {check.check}: {check.why}"]
        elif check.verdict == "known":
            lines.append(f"known  {check.check}: {check.why}")
    skipped = Counter(check.why for check in report.checks if check.verdict == "skip")
    lines += [f"skip   {count} check{'s' * (count > 1)}: {why}" for why, count in skipped.items()]
    lines.append(
        "it conforms"
        if report.conforms
        else f"it does not conform: {len(report.broken)} check{'s' * (len(report.broken) > 1)} failed"
    )
    return "\n".join(lines)
