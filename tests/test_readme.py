# SPDX-License-Identifier: Apache-2.0
"""The README's promises: its Python runs, its curl lines are answered, its links lead somewhere."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from calrt.model_fetch import model_path
from tiny_gguf import make_llama

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs_on_a_tiny_model(code: str, tmp_path: pathlib.Path) -> None:
    model = tmp_path / "tiny.gguf"
    make_llama(model, context=2048)
    assert '"smollm2"' in code or 'open("null"' in code
    code = code.replace('"smollm2"', repr(str(model)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs_as_written(code: str) -> None:
    if model_path("smollm2") is None:
        pytest.skip("the demo model is not in the cache: calrt model fetch smollm2")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_it_starts_with_the_two_commands_and_the_platforms() -> None:
    lines = README.splitlines()
    assert lines[2].startswith("    make demo")
    assert lines[3].startswith("    make test")
    assert "x86-64" in lines[5]
    assert "arm64" in lines[5]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_folders_in_the_picture_exist() -> None:
    for target in re.findall(r"\b((?:csrc|python)/[\w/.]+)", README):
        assert (ROOT / target).exists(), target
