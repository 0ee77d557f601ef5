# SPDX-License-Identifier: Apache-2.0
"""`calrt caps`: what a device can do, and how well that is known."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from calrt.cli.output import Commands, add_device_flags, emit, open_device
from calrt.cli.output import add_command as new_command
from calrt.device_facts import Capability
from calrt.evidence import hardware_figures

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
The last column says what was measured on hardware with CalRT 0.7.6."""

_EXAMPLES = """  calrt caps                        of the cpu device
  calrt caps -dev mock:bare         of what is known of the hardware, as a mock
  calrt caps -m preset:tiny         with evidence that was recorded for this package
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
        caps = device.caps if options.model is None else device.caps_for(device.package(options.model))
    document = {
        "device": options.device,
        "caps": [vars(cap) | {"hardware": figures.get(cap.name)} for cap in caps],
    }
    emit(options, document, table(_rows(caps, figures)))
    return 0


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
