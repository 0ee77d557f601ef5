# SPDX-License-Identifier: Apache-2.0
"""Drivers that state levels: copies of `null` with capabilities and a runtime of a test's choice."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent / "csrc"
_NULL = _ROOT / "drivers" / "null"

Row = tuple[str, int, int]
"""Capability, level, value."""


def build(folder: Path, rows: Sequence[Row], runtime: str = "CalRT 0.7.6", note: str = "") -> Path:
    """libcald_leveled.so in `folder`; `note` only changes its bytes. Skips the test without a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None or not _NULL.is_dir():
        pytest.skip("needs a C compiler and the sources of the driver null")
    folder.mkdir(exist_ok=True)
    caps = "".join(
        f'{{sizeof(cald_cap), {level}, "{name}", "its header", {value}}},' for name, level, value in rows
    )
    source = (_NULL / "null_driver.c").read_text()
    start = source.index("static const cald_cap caps[] = {") + len("static const cald_cap caps[] = {")
    end = source.index("};", start)
    source = source[:start] + caps + source[end:]
    assert source.count('.runtime = ""') == 1
    source = source.replace('.runtime = ""', f'.runtime = "{runtime}"')
    (folder / "driver.c").write_text(f'{source}\nconst char leveled_note[] = "{note}";\n')
    library = folder / "libcald_leveled.so"
    others = [str(_NULL / name) for name in ("null_buffer.c", "null_job.c", "null_model.c", "null_trace.c")]
    command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += [
        f"-I{_NULL}",
        f"-I{_ROOT / 'calrt' / 'include'}",
        f"-I{_ROOT / 'base' / 'include'}",
        "-o",
        str(library),
    ]
    done = subprocess.run(
        [*command, str(folder / "driver.c"), *others, "-lpthread", "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return library
