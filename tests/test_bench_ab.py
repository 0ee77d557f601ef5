# SPDX-License-Identifier: Apache-2.0
"""`calrt bench ab`: equal outputs first, then times with an interval; what a record of a gain opens."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import random
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import calrt
from calrt import bench_ab
from calrt.bench_arms import RawLoop
from calrt.cli import main
from calrt.evidence import Evidence
from test_calrt076 import library

__all__ = ["library"]

FLIP = "fault:completion flip nth=20"
IDENTITY = {
    "driver_sha256": "0" * 64,
    "runtime": "0.7.6",
    "package_sha256": "0" * 64,
    "device_class": "other",
    "device_id": "other:1",
}


# ---- figures ---------------------------------------------------------------------------------------


def test_the_interval_is_students() -> None:
    # Two pairs with log ratios 0.1 and 0.3: mean 0.2, standard error 0.1, t(1) = 12.706.
    ratio = bench_ab.interval([round(1e9 * math.exp(0.1)), round(1e9 * math.exp(0.3))], [10**9, 10**9])
    assert math.log(ratio.ratio) == pytest.approx(0.2, abs=1e-6)
    assert math.log(ratio.low) == pytest.approx(0.2 - 1.2706, abs=1e-4)
    assert math.log(ratio.high) == pytest.approx(0.2 + 1.2706, abs=1e-4)
    assert ratio.verdict == "undecided"  # it holds 1 and is far too wide to say equal
    assert bench_ab.interval([1000, 1001, 999], [1000, 1000, 1000]).verdict == "equal"
    assert bench_ab.interval([1000, 1030, 980], [1000, 1000, 1000]).verdict == "undecided"
    assert bench_ab.interval([90, 91, 89], [100, 100, 100]).verdict == "faster"
    assert bench_ab.interval([110, 111, 109], [100, 100, 100]).verdict == "slower"
    with pytest.raises(ValueError, match="two pairs"):
        bench_ab.interval([1], [1])


def test_the_interval_covers_what_it_says() -> None:
    rng = random.Random(7)

    def covers() -> bool:
        ours = [round(1e9 * math.exp(rng.gauss(0.05, 0.2))) for _ in range(10)]
        theirs = [round(1e9 * math.exp(rng.gauss(0, 0.2))) for _ in range(10)]
        ratio = bench_ab.interval(ours, theirs)
        return ratio.low <= math.exp(0.05) <= ratio.high

    assert 0.93 < sum(covers() for _ in range(2000)) / 2000 < 0.97


# ---- arms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["mock", "cpu"])
def test_all_arms_give_the_same_outputs(spec: str) -> None:
    report = bench_ab.run(spec, steps=12, rounds=1)
    assert (report.verdict, report.raw, report.sequences) == ("measured", "calrt-raw-loop", 2)
    assert {arm: len(blocks) for arm, blocks in report.ns.items()} == {"A": 2, "B": 2, "C": 2}
    assert len(set(report.sha256.values())) == 1
    assert [ratio.arms for ratio in report.ratios] == ["B/A", "C/A", "C/B"]


@pytest.mark.parametrize("isolate", [None, False], ids=["isolated", "here"])
@pytest.mark.parametrize("vice", ["", "d0_padding"])
def test_the_sdks_own_loop_stands_beside_the_adapter(
    library: str, isolate: bool | None, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = bench_ab.run("calrt076", steps=12, rounds=1, isolate=isolate)
    assert (report.verdict, report.raw) == ("measured", "calrt076-raw-loop")
    mock = bench_ab.run("mock", steps=12, rounds=1)
    assert set(report.sha256.values()) == set(mock.sha256.values())  # mock is the stand-in's oracle


def test_one_lane_has_no_second_job() -> None:
    report = bench_ab.run("mock:bare", package="preset:bare", steps=4, rounds=1)
    assert report.sequences == 1
    assert [ratio.arms for ratio in report.ratios] == ["B/A"]
    assert bench_ab.record(report).capabilities["in_flight_2"].verdict == "skip"


def test_outputs_that_differ_refuse_the_figures() -> None:
    report = bench_ab.run("mock", steps=12, rounds=2, layers=FLIP)
    assert report.verdict == "refused"
    # 12 steps of arm B are warmed up, then C: completion 20 is its step 7.
    assert "step 7 gave" in report.why
    assert "arm C" in report.why
    assert (report.ns, report.ratios, report.gain) == ({}, [], False)
    assert report.sha256["A"] == report.sha256["B"] != report.sha256["C"]
    assert bench_ab.record(report).capabilities["in_flight_2"].verdict == "fail"


def test_an_output_that_was_reused_is_an_error_and_no_figure(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "outputbuf_reused_early")
    with pytest.raises(calrt.ExecutionError, match="the output: the SDK's number 21"):
        bench_ab.run("calrt076", steps=4, rounds=1)


def test_a_loop_that_hangs_or_dies_is_an_error(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "abort@3:outbuf_release")
    with pytest.raises(calrt.ExecutionError, match="arm A: calrt076-raw-loop was ended by SIGABRT"):
        bench_ab.run("calrt076", steps=4, rounds=1)
    monkeypatch.setenv("CALRT_STANDIN_VICES", "call_never_returns@1:infer")
    with pytest.raises(
        calrt.ExecutionError, match="arm A hangs: calrt076-raw-loop did not answer within 1 s"
    ):
        bench_ab.run("calrt076", steps=4, rounds=1, timeout=1)


def test_the_command_names_the_arm_that_hangs(
    library: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("calrt.cli.bench_ab"), "_WAIT_S", 0.2)
    monkeypatch.setenv("CALRT_STANDIN_VICES", "call_never_returns@5:infer")
    assert main(["bench", "ab", "-dev", "calrt076", "--steps", "16", "--timeout", "2"]) == 1
    said = capfd.readouterr().err
    assert "still waiting for arm A, raw: run and wait at once ..." in said
    assert "arm A hangs: calrt076-raw-loop did not answer within 2 s; a longer --timeout" in said


def test_the_arm_in_which_calrt_failed_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "run_never_ends@20")
    with pytest.raises(calrt.ExecutionError, match=r"arm C: job \d+: lost: no answer by its"):
        bench_ab.run("calrt076", steps=16, rounds=1, timeout=1)


def test_of_what_a_driver_prints_a_few_lines_are_shown(
    library: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "run_takes:100")
    words = ["bench", "ab", "-dev", "calrt076", "--steps", "4", "--rounds", "1"]
    assert main(words) == 0
    said = capfd.readouterr().err
    assert said.count("standin_sdk: vice run_takes") == 5
    more = re.search(r"\.\.\. and (\d+) more lines of the driver\n", said)
    assert more is not None
    assert int(more[1]) >= 4 * 4 - 5  # steps of arm A; what is logged of the others pytest takes
    assert main([*words, "--json"]) == 0
    assert capfd.readouterr().err == ""


def test_what_computes_nothing_has_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "evidence.json"
    assert main(["bench", "ab", "-dev", "null", "--steps", "8", "--rounds", "3", "--record", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "no verdict: each of the 8 steps gave the same bits: there are no outputs to compare" in shown
    assert "equal" not in shown
    assert "C/B" not in shown
    assert Evidence.read(file).capabilities["in_flight_2"].verdict == "skip"


def test_few_rounds_decide_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench_ab.run("mock", steps=4, rounds=bench_ab.MIN_ROUNDS - 1)
    assert {ratio.verdict for ratio in report.ratios} == {"undecided"}
    assert bench_ab.record(report).capabilities["in_flight_2"].verdict == "skip"
    assert main(["bench", "ab", "-dev", "mock", "--steps", "4", "--rounds", "2"]) == 0
    assert "undecided: --rounds 2 are too few, 3 or more tell" in capsys.readouterr().out


# ---- the record, and what it opens -----------------------------------------------------------------


def gained(spec: str, package: str = "preset:tiny") -> bench_ab.Report:
    """A comparison whose times are made up: C gains on B beyond doubt."""
    report = bench_ab.run(spec, package=package, steps=4, rounds=1)
    times = {"A": [100, 101, 99], "B": [100, 101, 99], "C": [50, 51, 49]}
    pairs = (("B", "A"), ("C", "A"), ("C", "B"))
    ratios = [bench_ab.interval(times[one], times[other], f"{one}/{other}") for one, other in pairs]
    return replace(report, ns=times, ratios=ratios)


def refusal(file: Path | None, spec: str = "mock", package: str = "preset:tiny", jobs: int = 2) -> str:
    with calrt.open(spec, evidence=file) as device, pytest.raises(calrt.UnsupportedError) as error:
        device.load(package, in_flight=jobs)
    return str(error.value)


def test_two_in_flight_want_a_record_of_this_driver_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_EVIDENCE", str(tmp_path / "none"))
    wanted = "no record shows equal outputs and a gain"
    assert wanted in refusal(None)
    assert "calrt bench ab --record" in refusal(None)
    file = tmp_path / "evidence.json"
    report = gained("mock")
    proof = bench_ab.record(report)
    assert proof.capabilities["in_flight_2"].verdict == "pass"
    proof.write(file)
    with calrt.open("mock", evidence=file) as device, device.load("preset:tiny", in_flight=2) as model:
        assert model.in_flight == 2
    assert wanted in refusal(file, spec="cpu")  # another driver
    assert wanted in refusal(file, spec="mock:bare", package="preset:bare")
    for field, other in IDENTITY.items():
        replace(proof, identity=replace(proof.identity, **{field: other})).write(file)
        assert wanted in refusal(file), field
    slower = replace(report, ratios=[bench_ab.interval([101, 99], [100, 100], "C/B")])
    bench_ab.record(slower).write(file)
    assert wanted in refusal(file)
    with calrt.open("mock") as device, device.load("preset:tiny", in_flight=1) as model:
        assert model.in_flight == 1
    with calrt.open("mock") as device, pytest.raises(calrt.InvalidArgumentError, match="in_flight=3"):
        device.load("preset:tiny", in_flight=3)


def test_the_command_shows_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "evidence.json"
    words = ["bench", "ab", "-dev", "mock", "--steps", "8", "--rounds", "1"]
    assert main([*words, "--record", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "outputs are equal" in shown
    assert "C/B" in shown
    assert list(Evidence.read(file).capabilities) == ["in_flight_2"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "measured"
    assert set(document["ratios"][0]) == {"arms", "ratio", "low", "high", "verdict"}


def test_the_command_refuses_figures_of_outputs_that_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_LAYERS", FLIP)
    assert main(["bench", "ab", "-dev", "mock", "--steps", "12", "--rounds", "1"]) == 1
    assert "refused: outputs differ: step" in capsys.readouterr().out


# ---- a raw loop that lies --------------------------------------------------------------------------

LIAR = """
import os, sys
print("the SDK says", "[" * 100000, '[1]', '{"level": "info"}', sys.argv[1], sep="\\n", flush=True)
if sys.argv[3:] and os.fork() == 0:  # keeps the pipe for a while
    import time
    os.setsid()
    time.sleep(40)
for line in sys.stdin:
    print(sys.argv[2], flush=True)
"""
READY = '{"rows": 1, "lanes": 4, "cells": 64}'


def liar(ready: str = READY, answer: str = "", *more: str) -> RawLoop:
    return RawLoop([sys.executable, "-c", LIAR, ready, answer, *more], 30.0)


@pytest.mark.parametrize(
    ("ready", "due"),
    [
        ('{"rows": 0, "lanes": 4, "cells": 64}', "whole numbers of 1 or more"),
        ('{"rows": 1, "lanes": "4", "cells": 64}', "whole numbers of 1 or more"),
        ('{"rows": 1, "lanes": 4, "cells": 1e9}', "whole numbers of 1 or more"),
        ('{"rows": 8, "lanes": 4, "cells": 64}', "as many lanes as rows"),
    ],
)
def test_a_loop_of_impossible_numbers_is_refused(ready: str, due: str) -> None:
    with pytest.raises(calrt.ExecutionError, match=rf"arm A: python\S* answered .*: {due} is due"):
        liar(ready)


@pytest.mark.parametrize(
    ("answer", "due"),
    [
        ('{"ns": 0, "sha256": ["a", "b"]}', "a time of 1 ns or more"),
        ('{"ns": NaN, "sha256": ["a", "b"]}', "a time of 1 ns or more"),
        ('{"ns": null, "sha256": ["a", "b"]}', "a time of 1 ns or more"),
        ('{"ns": 5, "sha256": ["a"]}', "a digest of each of 2 steps"),
        ('{"ns": 5, "sha256": ["a", 2]}', "a digest of each of 2 steps"),
        ('{"ns": 5, "sha256": 3}', "a digest of each of 2 steps"),
    ],
)
def test_a_block_of_impossible_figures_is_refused(answer: str, due: str) -> None:
    with contextlib.closing(liar(answer=answer)) as loop:
        assert loop.ready["lanes"] == 4  # whatever objects the SDK printed before
        with pytest.raises(calrt.ExecutionError, match=rf"answered .*: {due} is due"):
            loop.run(2, 1)


def test_a_process_that_a_loop_left_behind_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calrt.bench_arms._END_S", 0.2)
    loop = liar(READY, '{"ns": 5, "sha256": ["a", "b"]}', "fork")
    assert loop.run(2, 1) == (5, ["a", "b"])
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
