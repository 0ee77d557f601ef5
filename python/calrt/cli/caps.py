# SPDX-License-Identifier: Apache-2.0
"""`calrt caps`: what a device can do, and how well that is known."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import calrt
from calrt.cli.output import Commands, add_device_flags, emit, open_device
from calrt.cli.output import add_command as new_command
from calrt.device_facts import Capability, DeviceInfo
from calrt.evidence import Evidence, Identity, collect, hardware_figures
from calrt.grounds import library_digest

__all__ = ["HARDWARE_COLUMN", "NO_FIGURE", "add_command"]

HARDWARE_COLUMN = "CalRT 0.7.6 hardware"
NO_FIGURE = "no figure"

_ABOUT = """

A level belongs to a capability and a subject:
  C0 proven                  used
  C1 declared by the vendor  used with allow_unverified only, or once recorded evidence proves it
  C2 built, not accepted     the same
  C3 needs the vendor        refused
  C4 unsupported, privileged refused
The last column says what was measured on hardware with CalRT 0.7.6. Evidence is about a driver and a package:
without -m it raises nothing. What is not taken into account is said on stderr."""

_EXAMPLES = """  calrt caps                        of the cpu device
  calrt caps -dev mock:bare         of what is known of the hardware, as a mock
  calrt caps -m preset:tiny         with evidence that was recorded for this package
  calrt caps -dev calrt076 -m DIR --evidence evidence.json
  calrt caps --json
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt caps`."""
    parser = new_command(
        commands,
        "caps",
        _caps,
        summary="list what a device can do, each capability with its level of evidence",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    add_device_flags(parser)
    parser.add_argument("-m", "--model", help="levels for this package; evidence holds for one package")


def _caps(options: argparse.Namespace) -> int:
    figures = hardware_figures(options.evidence)
    with open_device(options) as device:
        package = None if options.model is None else device.package(options.model)
        caps = device.caps if package is None else device.caps_for(package)
        notes = _unused(collect(options.evidence), device.info, None if package is None else package.id)
    document = {
        "device": options.device,
        "caps": [vars(cap) | {"hardware": figures.get(cap.name)} for cap in caps],
        "notes": notes,
    }
    emit(options, document, table(_rows(caps, figures)))
    if not options.json:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    return 0


def _unused(evidence: Sequence[Evidence], info: DeviceInfo, package: str | None) -> list[str]:
    """What evidence there is that proves nothing here, and why."""
    notes = []
    foreign = [found for found in evidence if found.driver != info.driver]
    own = [found for found in evidence if found.driver == info.driver]
    if foreign:
        drivers = ", ".join(sorted({found.driver for found in foreign}))
        notes.append(f"{_records(foreign)} about another driver: {drivers}")
    if own and package is None:
        notes.append(f"{_records(own)} about {info.driver} with a package: -m PACKAGE takes it into account")
    elif own and package is not None:
        here = Identity(library_digest(info.driver_path), info.runtime, package, info.device_class, info.id)
        other = [(found, why) for found in own if (why := _differs(found, here))]
        if other:
            what = ", ".join(dict.fromkeys(name for _, why in other for name in why))
            notes.append(f"{_records(other)} about another {what} than this")
    return notes


def _records(found: Sequence[object]) -> str:
    return "1 record of evidence is" if len(found) == 1 else f"{len(found)} records of evidence are"


def _differs(found: Evidence, here: Identity) -> list[str]:
    """The words for what `found` is about and `here` is not."""
    words = {
        "driver_sha256": "build of the driver",
        "runtime": "runtime",
        "package_sha256": "package",
        "device_class": "device class",
        "device_id": "device",
    }
    differing = [word for name, word in words.items() if vars(found.identity)[name] != vars(here)[name]]
    return differing + (["version of calrt"] if found.calrt != calrt.__version__ else [])


def _rows(caps: Sequence[Capability], figures: dict[str, str]) -> list[Sequence[str]]:
    head = ("capability", "value", "level", "subject", "source", HARDWARE_COLUMN)
    body = (
        (cap.name, str(cap.value), f"C{cap.level}", cap.subject, cap.source, figures.get(cap.name, NO_FIGURE))
        for cap in caps
    )
    return [head, *body]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)
