# SPDX-License-Identifier: Apache-2.0
"""Fixtures on a tiny random model, packed once for the whole run and loaded on the cpu device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import calrt
from calrt.package_build import build_package
from tiny_gguf import make_llama

VOCAB = 384

# Timings never decide a test: a busy machine must not fail a property.
settings.register_profile("calrt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calrt")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random F32 llama of two layers with a vocabulary of 384 tokens."""
    return make_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", vocab=VOCAB, context=256)


@pytest.fixture(scope="session")
def tiny_package(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, packed for f32."""
    return build_package(tiny_gguf, tmp_path_factory.mktemp("package") / "tiny")


@pytest.fixture(scope="session")
def null_package(tiny_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the null driver, which ends each job at once and writes nothing."""
    package = shutil.copytree(tiny_package, tmp_path_factory.mktemp("package") / "null")
    manifest = json.loads((package / "manifest.json").read_text())
    manifest["target"] = {"driver": "null", "device_class": "null"}
    (package / "manifest.json").write_text(json.dumps(manifest))
    return package


@pytest.fixture
def device() -> Iterator[calrt.Device]:
    with calrt.open("cpu", threads=1) as opened:
        yield opened


@pytest.fixture
def model(device: calrt.Device, tiny_package: Path) -> Iterator[calrt.Model]:
    with device.load(tiny_package, lanes=4, cells=128) as loaded:
        yield loaded


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seeded defects, each with the rule of the conformance kit that caught it, and others it broke."""
    rows = sorted(
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "defect" and report.when == "call"
    )
    if rows:
        terminalreporter.section("defect, rule that caught it, other rules broken")
        for row in rows:
            terminalreporter.write_line(row)
