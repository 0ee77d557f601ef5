# SPDX-License-Identifier: Apache-2.0
"""The questions to the vendor, of which docs/vendor-driver.md and every report take theirs: questions.json.

`python -m calrt.report.questions` prints the two lists as the page has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["general", "of_entries", "open_questions", "page_list", "page_table"]

_FILE = Path(__file__).with_name("questions.json")
_HEAD = "| entry | need | must do | in CalRT 0.7.6 | level | ask the vendor |\n|---|---|---|---|---|---|"


def _load() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def of_entries() -> list[dict[str, str]]:
    """Of each entry of the driver ABI: entry, need, must, known, level, ask ("" = nothing)."""
    return _load()["entries"]


def general() -> list[dict[str, str]]:
    """Those about no single entry: about, level, ask."""
    return _load()["general"]


def open_questions(calls: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Every question, with what a run saw of it. `calls`: by entry, calls, failed and longest_ns."""
    asked: list[dict[str, Any]] = [
        {"about": row["entry"], "level": row["level"], "known": row["known"], "ask": row["ask"]}
        | {"seen": dict(calls.get(row["entry"], {}))}
        for row in of_entries()
        if row["ask"]
    ]
    return asked + [dict(row) for row in general()]


def page_table() -> str:
    """The table of docs/vendor-driver.md."""
    columns = ("need", "must", "known", "level", "ask")
    rows = (
        " | ".join([f"| `{row['entry']}`", *(row[name] or "–" for name in columns)]) + " |"
        for row in of_entries()
    )
    return "\n".join((_HEAD, *rows))


def page_list() -> str:
    """The list below it."""
    return "\n".join(f"- {row['about']} ({row['level']}): {row['ask']}" for row in general())


if __name__ == "__main__":
    print(page_table(), page_list(), sep="\n\n")
