# SPDX-License-Identifier: Apache-2.0
"""The status table of docs/errors.md, made from status.inc. `--write` puts it there, `--check` compares."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATUS_INC = ROOT / "csrc/base/include/calrt/status.inc"
PAGE = ROOT / "docs/errors.md"
BEGIN = "<!-- generated from status.inc by tools/error_table.py -->"
END = "<!-- end of the generated part -->"

_ROW = re.compile(
    r"^CALD_STATUS\((?P<number>\d+), (?P<name>\w+), (?P<cls>\w+), (?P<retry>\w+), (?P<damage>\w+), "
    r'(?P<recovery>\w+), "(?P<exception>\w*)", "(?P<sentence>[^"]*)"\)$',
    re.MULTILINE,
)


def rows() -> list[dict[str, str]]:
    """The rows of status.inc, words in lower case as Python shows them."""
    found = []
    for match in _ROW.finditer(STATUS_INC.read_text()):
        row = match.groupdict()
        for name in ("cls", "retry", "damage", "recovery"):
            row[name] = row[name].lower()
        found.append(row)
    return found


def table() -> str:
    """The table in Markdown, between its two marks."""
    lines = [
        BEGIN,
        "",
        "| n | name | what happened | class | exception | again? | damage | recovery |",
        "|--:|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        exception = f"`{row['exception']}`" if row["exception"] else "–"
        cls = row["cls"] if row["exception"] else "–"
        lines.append(
            f"| {row['number']} | `{row['name']}` | {row['sentence']} | {cls} | {exception} "
            f"| {row['retry']} | {row['damage']} | {row['recovery']} |"
        )
    return "\n".join([*lines, "", END])


def page_with_table(text: str) -> str:
    """The page with a fresh table in place of the old one."""
    before, rest = text.split(BEGIN, 1)
    return before + table() + rest.split(END, 1)[1]


def main() -> int:
    """0, or 1 where the page differs from status.inc."""
    parser = argparse.ArgumentParser(description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true", help="put the table into docs/errors.md")
    choice.add_argument("--check", action="store_true", help="fail if it differs")
    wanted = parser.parse_args()
    old = PAGE.read_text()
    new = page_with_table(old)
    if wanted.write:
        PAGE.write_text(new)
    elif new != old:
        print("docs/errors.md is not what status.inc says: python tools/error_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
