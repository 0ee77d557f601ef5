# SPDX-License-Identifier: Apache-2.0
"""The `perf` fixture: figures beside their limits, interleaved in one run, as rows of `calrt.perf/1`.

    pytest benchmarks --benchmark-only [--perf-rows rows.jsonl]

A benchmark never fails because of a time: it states what was measured, and under which load.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import calrt
from calrt.perf import PerfWriter, new_run
from calrt.perf_rows import Bench, Driver

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the tiny model is made there

_ROWS = pytest.StashKey[list[Bench]]()


class Perf:
    """Times calls against each other and keeps the rows."""

    def __init__(self, benchmark: Callable[..., object], rows: list[Bench]) -> None:
        self._benchmark = benchmark
        self._rows = rows

    def samples(self, *calls: Callable[[], object], rounds: int = 15) -> list[list[float]]:
        """Seconds of each call in each round. All run in turn in every round, so that they share its load."""
        times: list[list[float]] = [[] for _ in calls]

        def one_round() -> None:
            for call, seconds in zip(calls, times, strict=True):
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)

        one_round()  # warms caches, pools and branches
        for seconds in times:
            seconds.clear()
        self._benchmark.pedantic(one_round, rounds=rounds, iterations=1)  # type: ignore[attr-defined]
        return times

    def best(self, *calls: Callable[[], object], rounds: int = 15) -> list[float]:
        """Best seconds of each call: what the machine can do when nobody disturbs it."""
        return [min(seconds) for seconds in self.samples(*calls, rounds=rounds)]

    def record(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        limit: float | None = None,
        n: int | None = None,
        out_sha256: str | None = None,
    ) -> None:
        """Keeps a row. `limit`: what `value` is held against, in the same unit, from the same run."""
        self._rows.append(Bench.of(name, value, unit, n=n, limit=limit, out_sha256=out_sha256))


@pytest.fixture
def perf(benchmark: Callable[..., object], request: pytest.FixtureRequest) -> Perf:
    return Perf(benchmark, request.config.stash.setdefault(_ROWS, []))


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of two layers with a vocabulary of 384 tokens, packed for f32."""
    from calrt.package_build import build_package
    from tiny_gguf import make_llama

    source = make_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", vocab=384, context=256)
    return build_package(source, tmp_path_factory.mktemp("package") / "tiny")


@pytest.fixture(scope="session")
def null_package(tiny_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the null driver, which ends each job at once and writes nothing."""
    package = shutil.copytree(tiny_package, tmp_path_factory.mktemp("package") / "null")
    manifest = json.loads((package / "manifest.json").read_text())
    manifest["target"] = {"driver": "null", "device_class": "null"}
    (package / "manifest.json").write_text(json.dumps(manifest))
    return package


@pytest.fixture
def null_model(null_package: Path) -> Iterator[calrt.Model]:
    """The tiny model on the null device, which ends each job at once and writes nothing."""
    with calrt.open("null") as device, device.load(null_package, lanes=4) as model:
        yield model


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--perf-rows", metavar="FILE", help="write the figures to FILE (calrt.perf/1)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("figures (best of several rounds, each interleaved with its limit)")
        width = max(len(row.name) for row in rows)
        terminalreporter.line(f"{'':{width}} {'n':>12} {'value':>12} {'limit':>12} unit      ratio   load")
        for row in rows:
            cells = (f"{row.value:12.4g}", "-" if row.limit is None else f"{row.limit:.4g}")
            ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
            terminalreporter.line(
                f"{row.name:{width}} {row.n or '-':>12} {cells[0]} {cells[1]:>12} {row.unit:8} {ratio:>6} "
                f"{row.load:6.2f}"
            )
    path = config.getoption("--perf-rows")
    if path:
        with PerfWriter(path, new_run(driver=Driver(ver=calrt.__version__))) as writer:
            for row in rows:
                writer.write(row)
