# SPDX-License-Identifier: Apache-2.0
"""`calrt devices`: what can be opened here."""

from __future__ import annotations

import argparse
from typing import Any

import calrt
from calrt.cli.output import Commands, MissingError, emit
from calrt.cli.output import add_command as new_command

__all__ = ["add_command"]

_EXAMPLES = """  calrt devices                     a line for each device
  calrt devices --json              all that each one says of itself
  CALRT_DRIVER_PATH=/opt/drivers calrt devices
                                    those of libcald_*.so in that folder too
"""
_PATIENCE_S = 10
"""For each call of a driver, its library's load and its runtime's start among them."""


def add_command(commands: Commands) -> None:
    """Adds `calrt devices`."""
    new_command(
        commands,
        "devices",
        _devices,
        summary="list the devices that can be opened here",
        about="A driver that cannot be opened, hangs or dies is listed with its error.\n"
        "Of mock the one that `mock` opens is listed; others are opened by name: mock:bare,\n"
        "mock:qwen3-30b-a3b, mock:dual-chip.",
        examples=_EXAMPLES,
    )


def _devices(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in calrt.drivers():
        try:
            # In a process of its own: a driver that dies or hangs while it is asked takes no other along.
            with calrt.open(f"isolate:{name}", exclusive=False, isolate_deadline=_PATIENCE_S) as device:
                rows.append({"device": name, **vars(device.info)})
        except calrt.CalrtError as error:
            rows.append({"device": name, "error": str(error)})
    if not rows:
        raise MissingError("no driver found: the installation is incomplete")
    lines = [f"{row['device']:<12} {row.get('error') or _describe(row)}" for row in rows]
    lines.append(f"\ninstruction set: {calrt.isa()} (of {', '.join(calrt.isas())}; CALRT_ISA pins one)")
    emit(options, {"devices": rows, "isa": calrt.isa(), "isas": list(calrt.isas())}, "\n".join(lines))
    return 0


def _describe(row: dict[str, Any]) -> str:
    chips = "1 chip" if row["chips"] == 1 else f"{row['chips']} chips"
    memory = f", {row['memory_bytes'] / 2**30:.1f} GiB" if row["memory_bytes"] else ""
    runtime = f", runtime {row['runtime']}" if row["runtime"] else ""
    return f"{row['name']} ({row['device_class']}), {chips}{memory}{runtime}, driver {row['driver_version']}"
