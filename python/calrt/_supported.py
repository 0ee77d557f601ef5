# SPDX-License-Identifier: Apache-2.0
"""Refuses an interpreter that calrt does not run in with one clear line, before anything else is loaded.

The native module comes first of all: it refuses sub-interpreters.
"""

from __future__ import annotations

import sys

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "calrt needs a CPython with the GIL: free-threaded builds (python3.13t and later) are not "
        "supported yet; use the build without the t"
    )

import calrt._core  # noqa: F401
