# SPDX-License-Identifier: Apache-2.0
"""The rules in docs/conformance.md, made from rules.inc. `--write` puts them there, `--check` compares."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES_INC = ROOT / "csrc/conformance/rules.inc"
PAGE = ROOT / "docs/conformance.md"
BEGIN = "<!-- generated from rules.inc by tools/conformance_rules.py -->"
END = "<!-- end of the generated part -->"

_RULE = re.compile(r'^CONFORMANCE_RULE\("([A-Z]+-\d\d)", "(\w*)", "([^"]*)"\)$', re.MULTILINE)


def table() -> str:
    """The table in Markdown, between its two marks."""
    lines = [BEGIN, "", "| rule | what a driver is held to | proves |", "|---|---|---|"]
    for rule, capability, text in _RULE.findall(RULES_INC.read_text()):
        lines.append(f"| `{rule}` | {text} | {f'`{capability}`' if capability else ''} |")
    return "\n".join([*lines, "", END])


def page_with_table(text: str) -> str:
    """The page with a fresh table in place of the old one."""
    before, rest = text.split(BEGIN, 1)
    return before + table() + rest.split(END, 1)[1]


def main() -> int:
    """0, or 1 where the page differs from rules.inc."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = PAGE.read_text()
    fresh = page_with_table(text)
    if options.write:
        PAGE.write_text(fresh)
    elif fresh != text:
        print(
            "docs/conformance.md differs from rules.inc: run tools/conformance_rules.py --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
