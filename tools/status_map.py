# SPDX-License-Identifier: Apache-2.0
"""A driver's status-map.toml as a C table: status_map.py MAP.toml OUT.h

The map says what a vendor's status numbers mean in calrt's words, one row a number:

    [[status]]
    native = 9                 # the vendor's number, an int64
    name = "KV_NO_CAPACITY"    # canonical (calrt/status.inc), or "UNKNOWN"
    level = 1                  # evidence: 0 proven, 1 declared, 2 built, 3 needs the vendor, 4 no
    note = "vendor_status.h, VENDOR_ERR_KV_FULL"

Every mistake is told, with the file and the row; nothing is written then. Exit status 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STATUS_INC = Path(__file__).resolve().parent.parent / "csrc/base/include/calrt/status.inc"
KEYS = {"native": int, "name": str, "level": int, "note": str}
LEVELS = range(5)


class MapError(Exception):
    """The map cannot be used; the text has a line for every reason."""


def canonical_names() -> dict[str, int]:
    """The names of status.inc with their numbers."""
    rows = re.findall(r"^CALD_STATUS\((\d+), (\w+),", STATUS_INC.read_text(), re.MULTILINE)
    return {name: int(number) for number, name in rows}


def row_faults(row: Any, names: dict[str, int]) -> list[str]:
    """What is wrong with one row, taken alone."""
    if not isinstance(row, dict):
        return [f"{row!r} is no table: write [[status]]"]
    faults = [f"unknown key {key!r}: {', '.join(KEYS)}" for key in row if key not in KEYS]
    for key, kind in KEYS.items():
        if key not in row:
            faults.append(f"{key} is missing")
        elif not isinstance(row[key], kind) or isinstance(row[key], bool):
            faults.append(f"{key} is {row[key]!r}: {'an integer' if kind is int else 'a text'} is due")
    if faults:
        return faults
    if not -(2**63) <= row["native"] < 2**63:
        faults.append(f"native is {row['native']}: it does not fit an int64")
    if row["level"] not in LEVELS:
        faults.append(f"level is {row['level']}: 0 to 4")
    if row["name"] != "UNKNOWN" and row["name"] not in names:
        faults.append(f"name is {row['name']!r}: a name of status.inc, or UNKNOWN")
    if not row["note"].strip():
        faults.append("note is empty: say what the row rests on")
    return faults


def read_map(path: Path) -> list[dict[str, Any]]:
    """The rows by rising native number. MapError names file, row and reason for all that is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MapError(f"{path}: {error}") from error
    names = canonical_names()
    faults = [f"{path}: unknown key {key!r}: only [[status]]" for key in document if key != "status"]
    rows = document.get("status", [])
    if not isinstance(rows, list):
        raise MapError(f"{path}: status is {rows!r}: write [[status]]")
    first_row: dict[int, int] = {}
    for number, row in enumerate(rows, 1):
        wrong = row_faults(row, names)
        if not wrong and first_row.setdefault(row["native"], number) != number:
            wrong = [f"native {row['native']} is in row {first_row[row['native']]} already"]
        faults += [f"{path}: row {number}: {fault}" for fault in wrong]
    if faults:
        raise MapError("\n".join(faults))
    return sorted(rows, key=lambda row: int(row["native"]))


def c_table(rows: list[dict[str, Any]], source: str) -> str:
    """The header: `cald_native_map`, sorted as cald_status_find needs it."""
    lines = []
    for row in rows:
        # INT64_MIN has no literal of its own.
        native = "INT64_MIN" if row["native"] == -(2**63) else f"INT64_C({row['native']})"
        status = "CALD_STATUS_UNKNOWN" if row["name"] == "UNKNOWN" else f"CALD_{row['name']}"
        lines.append(f"    {{{native}, {status}, {row['level']}, {c_string(row['note'])}}},\n")
    body = "".join(lines) or "    {0, CALD_OK, 0, NULL}, /* C has no empty arrays: n_rows is 0 */\n"
    return (
        f"/* Made from {source} by tools/status_map.py: change that file, not this one. */\n"
        "#pragma once\n"
        '#include "calrt/status_map.h"\n\n'
        f"static const cald_status_row cald_native_rows[] = {{\n{body}}};\n"
        f"static const cald_status_map cald_native_map = {{cald_native_rows, {len(rows)}}};\n"
    )


def c_string(text: str) -> str:
    """A C literal of the text's UTF-8 bytes."""
    # Octal escapes end after three digits, whatever follows; '?' is one so that no trigraph is made.
    escaped = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(escaped) + '"'


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: status_map.py MAP.toml OUT.h", file=sys.stderr)
        return 2
    source, out = Path(arguments[0]), Path(arguments[1])
    try:
        rows = read_map(source)
    except MapError as error:
        print(error, file=sys.stderr)
        return 1
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(c_table(rows, source.name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
