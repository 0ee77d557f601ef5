# SPDX-License-Identifier: Apache-2.0
"""What a report says of the machine and the software, without asking a device."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import calrt
from calrt import _core
from calrt.report.redact import ALLOWED

__all__ = ["environment", "status_table", "versions"]


def versions() -> dict[str, Any]:
    """calrt and its ABI, Python, the system, the processor."""
    return {
        "calrt": calrt.__version__,
        "driver_abi": _abi(),
        "libcalrt_sha256": _library(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "system": platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "isa": calrt.isa(),
        "isas": list(calrt.isas()),
        "byte_order": sys.byteorder,
    }


def environment() -> dict[str, str]:
    """The variables that a report may show, as they are; redacting is the caller's."""
    return {name: os.environ[name] for name in ALLOWED if name in os.environ}


def status_table() -> list[dict[str, Any]]:
    """calrt's own table, against which a vendor's numbers are held."""
    return [{"code": int(status), "name": status.name} for status in calrt.Status if 0 <= int(status) < 30]


def _abi() -> str | None:
    header = Path(_core.__file__).parent / "include" / "calrt" / "driver.h"
    with contextlib.suppress(OSError):
        text = header.read_text(encoding="utf-8")
        found = [
            re.search(rf"^#define CALD_ABI_{part} (\d+)$", text, re.MULTILINE) for part in ("MAJOR", "MINOR")
        ]
        if all(found):
            return ".".join(match[1] for match in found if match is not None)
    return None


def _library() -> str | None:
    library = Path(_core.__file__).parent / "libcalrt.so"
    return _core.sha256_file(str(library)) if library.is_file() else None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor()
