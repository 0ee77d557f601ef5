# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal is a bar, elsewhere two lines a phase."""

from __future__ import annotations

import io

import pytest

from calrt.progress import ConsoleProgress, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_two_lines_a_phase() -> None:
    out = io.StringIO()
    with ConsoleProgress(out) as report:
        for done in range(0, 5 << 20, 1 << 20):
            report("reading x", done, 4 << 20)
        report("packing x", 1, 1)
    assert out.getvalue().splitlines() == [
        "reading x (4 MiB) ...",
        "reading x: done",
        "packing x (0 MiB) ...",
        "packing x: done",
    ]


def test_on_a_terminal_a_bar_that_goes_away() -> None:
    out = Terminal()
    with ConsoleProgress(out) as report:
        report("reading x", 1 << 20, 4 << 20)
        assert "reading x" in out.getvalue()
        assert "4.00M" in out.getvalue()
        report("reading x", 4 << 20, 4 << 20)
    assert "..." not in out.getvalue()


def test_without_tqdm_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    out = Terminal()
    with ConsoleProgress(out) as report:
        report("reading x", 0, 4 << 20)
    assert out.getvalue() == "reading x (4 MiB) ...\n"


def test_an_interrupted_bar_is_closed() -> None:
    out = Terminal()
    with ConsoleProgress(out) as report:
        report("reading x", 1, 4)
    before = out.getvalue()
    report.close()
    assert out.getvalue() == before


def test_silent() -> None:
    silent("reading x", 1, 2)


def test_what_is_counted_need_not_be_bytes() -> None:
    stream = io.StringIO()
    with ConsoleProgress(stream, unit="requests") as progress:
        progress("running", 0, 20)
        progress("running", 20, 20)
    assert stream.getvalue() == "running (20 requests) ...\nrunning: done\n"


def test_a_phase_that_says_twice_that_it_is_done_is_told_once() -> None:
    out = io.StringIO()
    with ConsoleProgress(out) as report:
        for what in ("loading", "loading", "packing", "loading"):
            report(what, 1, 1)
    phases = [line.split()[0] for line in out.getvalue().splitlines() if line.endswith("...")]
    assert phases == ["loading", "packing", "loading"]
