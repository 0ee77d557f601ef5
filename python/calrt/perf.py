# SPDX-License-Identifier: Apache-2.0
"""Files of measurements, schema `calrt.perf/1` (rows: `calrt.perf_rows`): written as JSON lines, checked.

A file is one JSON object per line, `kind` first: a `run`, then rows of any kind, then an `end` with the
number of lines before it and the SHA-256 of their bytes. A file without its `end` is an unfinished run.

    python -m calrt.perf validate FILE...     # exit 1 and one line per fault
    python -m calrt.perf seal ROWS FILE       # bare rows of any program ("-": stdin) into a whole file
    python -m calrt.perf schema               # docs/perf-1.schema.json
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import re
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from calrt.perf_rows import KINDS, SCHEMA, End, Host, Row, Run, Sum, schema, schema_of_row
from calrt.regular_file import open_regular
from calrt.schema_faults import schema_fault

__all__ = ["MOST_BYTES", "MOST_LINE_BYTES", "PerfWriter", "host", "new_run", "plain", "problems", "row_fault"]

MOST_BYTES = 256 << 20
"""Of a file: more than a million requests."""
MOST_LINE_BYTES = 8 << 20
"""Of a row: a request with more than 300,000 tokens, each with its time."""


@functools.cache
def _rules() -> dict[str, dict[str, Any]]:
    return {kind: schema_of_row(cls) for kind, cls in KINDS.items()}


def row_fault(row: Any) -> str | None:
    """What is wrong with one row as it was read, or None."""
    if not isinstance(row, dict) or next(iter(row), None) != "kind":
        return "a row is an object whose first field is kind"
    if not isinstance(row["kind"], str) or row["kind"] not in KINDS:
        return f"kind is {row['kind']!r}: one of {', '.join(KINDS)} is due"
    fault = schema_fault(_rules()[row["kind"]], row, "")
    if fault is None and row["kind"] == "bench":
        value, limit, ratio = row["value"], row["limit"], row["ratio"]
        due = value / limit if value is not None and limit else None
        if (due is None) != (ratio is None) or (due and not math.isclose(due, ratio, rel_tol=1e-3)):
            fault = f"ratio is {ratio!r}: value / limit = {due!r} is due"
    return fault


def _read(line: bytes) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(items)
        if len(row) != len(items):
            raise ValueError("a field is there twice")
        return row

    def constant(name: str) -> float:
        raise ValueError(f"{name} is no JSON number: null is due where nothing is known")

    return json.loads(line, object_pairs_hook=pairs, parse_constant=constant)


def problems(data: bytes, *, whole: bool = True) -> list[str]:
    """What is wrong with a file, one text per fault, "line 3: ..."; empty if it is sound.

    With `whole` the run at the beginning and the end with its count and SHA-256 must be there; without, bare
    rows are enough. Of more than `MOST_BYTES` nothing is read, nor is a line of more than `MOST_LINE_BYTES`.
    """
    if len(data) > MOST_BYTES:
        return [f"more than {MOST_BYTES} bytes, which is the most that is read: split the run into files"]
    found: list[str] = []
    lines = data.split(b"\n")
    if lines.pop() != b"":
        found.append(f"line {len(lines) + 1}: cut short, a line ends with a newline")
    kinds: list[str] = []
    last: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        try:
            if len(line) > MOST_LINE_BYTES:
                raise ValueError(f"{len(line)} bytes, a row has at most {MOST_LINE_BYTES}")
            last = _read(line)
            fault = row_fault(last)
        except ValueError as wrong:
            last, fault = {}, str(wrong)
        except RecursionError:
            last, fault = {}, "nested too deeply"
        if fault is not None:
            found.append(f"line {number}: {fault}")
        kinds.append(str(last.get("kind")) if isinstance(last, dict) else "")
    if not whole:
        return found
    if not kinds or kinds[0] != "run":
        found.append("line 1: the first row is a run")
    found += [f"line {i}: {kind} may not stand here" for i, kind in enumerate(kinds, 1)
              if (kind == "run" and i != 1) or (kind == "end" and i != len(kinds))]  # fmt: skip
    if not kinds or kinds[-1] != "end":
        return [*found, "the end is missing: an unfinished run, or a file cut short"]
    before = b"".join(line + b"\n" for line in lines[:-1])
    if last.get("lines") != len(lines) - 1:
        found.append(f"line {len(lines)}: lines is {last.get('lines')!r}, but {len(lines) - 1} come before")
    if last.get("sha256") != hashlib.sha256(before).hexdigest():
        found.append(f"line {len(lines)}: sha256 is not that of the lines before")
    return found


# ---- writing ----------------------------------------------------------------------------------------


def plain(row: Any) -> dict[str, Any]:
    """A row as the object that stands in a file."""
    values = {"kind": row.kind, **dataclasses.asdict(row)}
    if isinstance(row, Sum):
        values.update(values.pop("values"))
    return {name.rstrip("_"): value for name, value in values.items()}


def _check(row: dict[str, Any]) -> None:
    fault = row_fault(row)
    if fault is not None:
        raise ValueError(f"{row.get('kind')}: {fault}")


class PerfWriter:
    """Writes a file row by row; each row is checked, and in the file before `write` returns.

    Use it in `with`, or `close()` it: that writes the `end`. After an exception in the `with` there is no
    `end`, and so the file says that it is unfinished. A file of that name is replaced. Not thread-safe.

    Raises `ValueError` naming the field of `run` that is wrong, before the file is touched; `OSError`.
    """

    def __init__(self, path: str | os.PathLike[str], run: Run) -> None:
        _check(plain(run))
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._sha256 = hashlib.sha256()
        self._lines = 0
        self.write(run)

    def write(self, row: Row | dict[str, Any]) -> None:
        """Appends a row; `ValueError` names the field that is wrong, and nothing is written then."""
        self._write(row if isinstance(row, dict) else plain(row))

    def _write(self, row: dict[str, Any]) -> None:
        _check(row)
        line = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > MOST_LINE_BYTES + 1:
            raise ValueError(f"{row['kind']}: {len(line) - 1} bytes, a row has at most {MOST_LINE_BYTES}")
        self._file.write(line)
        self._file.flush()
        self._sha256.update(line)
        self._lines += 1

    def close(self) -> None:
        """Writes the end and closes the file. Idempotent."""
        if not self._file.closed:
            self._write(plain(End(self._lines, self._sha256.hexdigest())))
            self._file.close()

    def __enter__(self) -> PerfWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        self._file.close()


def host() -> Host:
    """This machine."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    try:
        memory: int | None = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = None
    return Host(found[1] if found else platform.processor() or None, memory, platform.release() or None)


def new_run(**fields: Any) -> Run:
    """A run that begins now on this machine, with an id of its own."""
    utc = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Run(**{"run_id": uuid.uuid4().hex, "utc": utc, "host": host(), **fields})


# ---- command line -----------------------------------------------------------------------------------


def _whole(path: str) -> bytes:
    """The file, or as much of it as shows that it is too long."""
    with open_regular(path) as file:
        return file.read(MOST_BYTES + 1)


def _faults(path: str) -> list[str]:
    try:
        return [f"{path}: {text}" for text in problems(_whole(path))]
    except OSError as error:
        return [f"{path}: {error.strerror}"]


def _seal(source: str, path: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1) if source == "-" else _whole(source)
        if faults := problems(data, whole=False):
            return faults
        rows = [_read(line) for line in data.split(b"\n")[:-1]]
        for number, row in enumerate(rows, 1):
            if row["kind"] in ("run", "end"):
                return [f"line {number}: {row['kind']} may not stand here: bare rows are due"]
        with PerfWriter(path, new_run()) as writer:
            for row in rows:
                writer.write(row)
    except OSError as error:
        return [f"{error.filename or path}: {error.strerror}"]
    return []


def main(arguments: list[str] | None = None) -> int:
    """`python -m calrt.perf`; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m calrt.perf", description=f"Files of {SCHEMA}.")
    commands = parser.add_subparsers(dest="command", required=True)
    validate = commands.add_parser("validate", help="check whole files")
    validate.add_argument("file", nargs="+")
    seal = commands.add_parser("seal", help="make a whole file of bare rows")
    seal.add_argument("rows", help="JSON lines, - for standard input")
    seal.add_argument("file")
    commands.add_parser("schema", help="print the JSON Schema of a row")
    args = parser.parse_args(arguments)
    if args.command == "schema":
        print(json.dumps(schema(), indent=1))
        return 0
    if args.command == "seal":
        faults = _seal(args.rows, args.file)
    else:
        faults = [text for name in args.file for text in _faults(name)]
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
