# SPDX-License-Identifier: Apache-2.0
"""Evidence: how well it is known that a device can do a thing, and what `calrt.open` makes of it.

A driver states a level for each of its capabilities: C0 proven, C1 declared by the vendor, C2 built and not
accepted, C3 needs the vendor, C4 no. A file of evidence, written by `calrt conformance DRIVER --record FILE`
(schema `calrt.evidence/1`, docs/evidence-1.schema.json), raises C1 and C2 to C0 for exactly the driver's
library, runtime, package and device that it was recorded on, and for the version of calrt that recorded it.
Any change of these lowers the level again.
C3 and C4 are never raised.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calrt import _core
from calrt._enums import Status
from calrt.errors import error_for
from calrt.regular_file import open_regular

__all__ = ["HARDWARE", "SCHEMA", "Evidence", "Identity", "Verdict", "record", "schema", "subject_of"]

SCHEMA = "calrt.evidence/1"
HARDWARE = "calrt-0.7.6"
"""The subject that `calrt caps` has a column for."""

_log = logging.getLogger("calrt.evidence")

_VERDICTS = ("pass", "fail", "skip")
_MAX_BYTES = 1 << 20
_MAX_FILES = 1024
_SHA256 = "^[0-9a-f]{64}$"


@dataclass(frozen=True)
class Identity:
    """What evidence is about. It holds for this very combination and for no other.

    `driver_sha256`: of the driver's library; `runtime`: version of the vendor's runtime, "" = none;
    `package_sha256`: the package's id; `device_class`, `device_id`: as in `DeviceInfo`.
    """

    driver_sha256: str
    runtime: str
    package_sha256: str
    device_class: str
    device_id: str


@dataclass(frozen=True)
class Verdict:
    """What the checks of one capability said: pass, fail or skip, and the ids of their rules."""

    verdict: str
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """One recorded run of the conformance kit. `source`: the file that it was read from, "" = none."""

    identity: Identity
    driver: str
    driver_version: str
    package: str
    subject: str
    calrt: str
    utc: str
    capabilities: Mapping[str, Verdict]
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a document of schema `calrt.evidence/1`."""
        return {
            "schema": SCHEMA,
            "utc": self.utc,
            "calrt": self.calrt,
            "subject": self.subject,
            "driver": {
                "name": self.driver,
                "version": self.driver_version,
                "sha256": self.identity.driver_sha256,
            },
            "runtime": self.identity.runtime,
            "package": {"name": self.package, "sha256": self.identity.package_sha256},
            "device": {"class": self.identity.device_class, "id": self.identity.device_id},
            "capabilities": {
                name: {"verdict": found.verdict, "rules": list(found.rules)}
                for name, found in sorted(self.capabilities.items())
            },
        }

    @classmethod
    def from_json(cls, document: Any, source: str = "") -> Evidence:
        """From a document; `ValueError` naming the field that is wrong."""
        from calrt.schema_faults import schema_fault  # here, as below: `import calrt` does without

        if not isinstance(document, dict):
            raise ValueError(f"it is no object of schema {SCHEMA}")
        fault = schema_fault(schema(), document, "")
        if fault is not None:
            raise ValueError(fault)
        driver, package, device = document["driver"], document["package"], document["device"]
        return cls(
            Identity(driver["sha256"], document["runtime"], package["sha256"], device["class"], device["id"]),
            driver["name"],
            driver["version"],
            package["name"],
            document["subject"],
            document["calrt"],
            document["utc"],
            {
                name: Verdict(found["verdict"], tuple(found["rules"]))
                for name, found in document["capabilities"].items()
            },
            source,
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Evidence:
        """A file of evidence. `OSError` if it cannot be read, `ValueError` saying what is wrong in it."""
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"{path}: more than {_MAX_BYTES} bytes: no file of evidence")
        try:
            return cls.from_json(json.loads(data), os.fspath(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: no file of evidence: {error}") from None

    def merged_into(self, path: str | os.PathLike[str]) -> Evidence:
        """This and what the file at `path` holds, if there is one; nothing of either is rounded up.

        A capability that both judge by the same rules is as this one says; by other rules, it passes if one
        of them passed and none failed. `ValueError` for a file about another driver, runtime, package or
        device, or of another calrt: it would lose what it proves; `OSError` if it cannot be read.
        """
        if not os.path.isfile(path):  # missing, or a device or pipe, which holds nothing
            return self
        before = Evidence.read(path)
        if before.calrt != self.calrt:
            raise ValueError(f"{path} was recorded by calrt {before.calrt}: record to another file")
        if before.identity != self.identity:
            fields = [
                name for name, value in vars(self.identity).items() if vars(before.identity)[name] != value
            ]
            raise ValueError(f"{path} is evidence about another {', '.join(fields)}: record to another file")
        merged = dict(before.capabilities)
        for name, found in self.capabilities.items():
            merged[name] = found if name not in merged else _together(merged[name], found)
        return replace(self, capabilities=merged)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all; its folder is made. A device or pipe is just written to.

        `OSError` if it cannot be written, or is a pipe that nobody reads.
        """
        from calrt.cache_files import write_atomically

        text = (json.dumps(self.to_json(), indent=1) + "\n").encode()
        if os.path.exists(path) and not os.path.isfile(path):  # never to be replaced by a file
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # not to wait for a reader
            os.set_blocking(fd, True)
            with os.fdopen(fd, "wb") as file:
                file.write(text)
        else:
            write_atomically(Path(path), text)


def record(
    *,
    library: str | os.PathLike[str],
    driver: str,
    driver_version: str,
    runtime: str,
    device_class: str,
    device_id: str,
    package: _core.Package,
    checks: Iterable[tuple[str, str, str]],
) -> Evidence:
    """Evidence of a run that ends now. `checks`: (capability, rule, verdict pass, fail, known or skip) each.

    A capability passes if a check of it passed and none failed; a known failure is one. Checks of no
    capability ("") count for none.
    """
    from datetime import datetime, timezone

    identity = Identity(_core.sha256_file(os.fspath(library)), runtime, package.id, device_class, device_id)
    found: dict[str, list[tuple[str, str]]] = {}
    for capability, rule, verdict in checks:
        if capability:
            found.setdefault(capability, []).append((rule, verdict))
    return Evidence(
        identity,
        driver,
        driver_version,
        package.name,
        subject_of(driver, device_class, runtime),
        _core.__version__,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        {name: _verdict_of(rows) for name, rows in found.items()},
    )


def _together(before: Verdict, now: Verdict) -> Verdict:
    if now.verdict == "skip":
        return before
    if before.verdict == "skip" or set(before.rules) <= set(now.rules):
        return now
    return _verdict_of([(rule, verdict.verdict) for verdict in (before, now) for rule in verdict.rules])


def _verdict_of(rows: list[tuple[str, str]]) -> Verdict:
    verdicts = {verdict for _, verdict in rows}
    whole = "fail" if verdicts & {"fail", "known"} else "pass" if "pass" in verdicts else "skip"
    return Verdict(whole, tuple(sorted({rule for rule, verdict in rows if verdict != "skip"})))


def subject_of(driver: str, device_class: str, runtime: str) -> str:
    """What a level is about: the vendor's runtime ("calrt-0.7.6") if there is one, else the driver.

    A mock device also has its preset, "mock:tiny".
    """
    if runtime:
        slug = "-".join(runtime.lower().split())
        return f"{driver}-{slug}" if slug[0].isdigit() else slug
    return device_class.replace("-", ":", 1) if driver == "mock" else driver


# ---- files ------------------------------------------------------------------------------------------


def evidence_dir() -> Path:
    """CALRT_EVIDENCE, else "evidence" in the user's cache. A folder of *.json, or one file.

    `OSError` if there is neither.
    """
    from calrt.cache_files import cache_dir

    own = os.environ.get("CALRT_EVIDENCE")
    return Path(own) if own else cache_dir() / "evidence"


def collect(where: str | os.PathLike[str] | None) -> list[Evidence]:
    """All evidence in a file or a folder's *.json, oldest first; None is `evidence_dir()`.

    What was named is refused if it is missing or damaged, or a folder of more than 1,024 files
    (`InvalidArgumentError`); what is wrong with the default folder is left out, with a warning.
    """
    if where is not None and not os.fspath(where):
        raise error_for(Status.INVALID_ARGUMENT, "evidence: an empty path; a file or a folder is due")
    try:
        root = evidence_dir() if where is None else Path(where)
    except OSError:  # a user without a home has no such folder, and so no evidence in it
        return []
    if where is not None and not root.exists():
        raise error_for(Status.INVALID_ARGUMENT, f"evidence: {root} does not exist")
    paths = sorted(root.glob("*.json")) if root.is_dir() else [root] if root.exists() else []
    if len(paths) > _MAX_FILES:
        text = f"{root} has {len(paths)} files, at most {_MAX_FILES} are read: move old ones away"
        if where is not None:
            raise error_for(Status.INVALID_ARGUMENT, f"evidence: {text}")
        _log.warning("evidence is left out: %s", text)
    found: list[Evidence] = []
    for path in paths[:_MAX_FILES]:
        try:
            found.append(Evidence.read(path))
        except (OSError, ValueError) as error:
            if where is not None:
                raise error_for(Status.INVALID_ARGUMENT, f"evidence: {error}") from None
            _log.warning("evidence is left out: %s", error)
    return sorted(found, key=lambda evidence: evidence.utc)


def hardware_figures(where: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """By capability, what evidence recorded on CalRT 0.7.6 hardware said last; empty if there is none."""
    figures: dict[str, str] = {}
    for evidence in collect(where):
        if evidence.subject == HARDWARE:
            for name, found in evidence.capabilities.items():
                if found.verdict != "skip":
                    figures[name] = f"{found.verdict} {evidence.utc[:10]}"
    return figures


# ---- schema -----------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a file of evidence; docs/evidence-1.schema.json holds the same."""
    text = {"type": "string"}
    named = {"type": "string", "minLength": 1}
    digest = {"type": "string", "pattern": _SHA256}

    def record_of(**fields: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }

    verdict = record_of(verdict={"enum": list(_VERDICTS)}, rules={"type": "array", "items": named})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A file of evidence, {SCHEMA}",
        "description": "What the conformance kit found of each capability, on one driver's library, runtime, "
        "package and device. It holds for exactly these.",
        **record_of(
            schema={"const": SCHEMA},
            utc={"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"},
            calrt=named,
            subject=named,
            driver=record_of(name=named, version=text, sha256=digest),
            runtime=text,
            package=record_of(name=text, sha256=digest),
            device=record_of(**{"class": named, "id": text}),
            capabilities={"type": "object", "additionalProperties": verdict},
        ),
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
