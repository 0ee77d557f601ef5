# SPDX-License-Identifier: Apache-2.0
"""Writes the table of entries in docs/abi.md from driver_entries.inc: abi_entries.py"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = ROOT / "csrc/calrt/include/calrt/driver_entries.inc"
PAGE = ROOT / "docs/abi.md"
BETWEEN = re.compile(r"(?<=<!-- entries -->\n).*?(?=<!-- /entries -->)", re.DOTALL)
LINE = re.compile(r"^CALD_ENTRY\((\w+), (\w+), (\d+), (\w+)\) /\* (.+) \*/$", re.MULTILINE)


def table() -> str:
    """The entries as a Markdown table, in the order of the struct."""
    lines = ["| entry | need | since | what | class of an unmapped number |", "|---|---|---|---|---|"]
    for name, need, minor, group, sentence in LINE.findall(ENTRIES.read_text(encoding="utf-8")):
        since = f"1.{int(minor) - 100}" if int(minor) > 100 else f"0.{minor}"
        lines.append(f"| `{name}` | {need.lower()} | {since} | {sentence} | {group.lower()} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/abi.md as it should be."""
    return BETWEEN.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
