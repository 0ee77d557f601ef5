# SPDX-License-Identifier: Apache-2.0
"""Finds files the tests use but the repository does not carry; a test that needs an absent one is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calrt.model_cache import model_path

_ROOT = Path(__file__).resolve().parent.parent


def shared(*parts: str) -> Path:
    """A file or folder below CALRT_SHARED (default: `../shared` beside the repository)."""
    base = Path(os.environ.get("CALRT_SHARED") or _ROOT.parent / "shared")
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} below CALRT_SHARED")
    return path


def stories() -> Path:
    """stories260K.gguf."""
    return shared("models", "stories260K.gguf")


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a GGUF from the model cache."""
    path = model_path("smollm2")
    if path is None:
        pytest.skip("needs the demo model: calrt model fetch smollm2")
    return path
