# SPDX-License-Identifier: Apache-2.0
"""`python -m calrt.cli` is `calrt`."""

from __future__ import annotations

import sys

from calrt.cli import main

if __name__ == "__main__":
    sys.exit(main())
