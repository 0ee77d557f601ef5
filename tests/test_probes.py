# SPDX-License-Identifier: Apache-2.0
"""Probes: each answers yes where the device is sound, and another word where it is not."""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt import probes
from calrt.cli import main
from calrt.device_facts import TraceEvent
from calrt.evidence import Evidence, Identity, Verdict, hardware_figures
from calrt.probes import abort, outbuf
from calrt.probes.answer import settled
from calrt.probes.registry import PROBES
from calrt.probes.subject import Subject, Worker
from calrt.probes.trace import faults
from test_calrt076 import library
from test_conformance_defects import driver

__all__ = ["library"]

SLOW = {"speed": "0.05"}  # so that a queue fills before its first job ends


def ask(spec: str, name: str, **options: object) -> probes.Answer:
    return probes.run(spec, [name], steps=8, timeout=120, **options).answers[name]  # type: ignore[arg-type]


# ---- sound devices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["outbuf", "golden", "trace", "pingpong", "abort", "hang"])
def test_a_sound_device_says_yes(name: str) -> None:
    answer = ask("mock", name)
    assert answer.word == probes.YES, answer


def test_a_queue_that_fills_is_as_deep_as_it_says() -> None:
    answer = ask("mock", "queue", options=SLOW)
    assert answer.word == probes.YES, answer
    assert "jobs" in answer.figures["counting"]
    assert answer.figures["taken"] == answer.figures["stated"] == 9


def test_a_queue_of_one_lane_is_filled_by_the_kit() -> None:
    answer = ask("mock:bare", "queue", package="preset:bare")
    assert answer.word == probes.YES, answer
    assert "3 jobs taken by the bare table" in answer.why


def test_what_computes_nothing_is_a_no() -> None:
    found = probes.run("null", ["outbuf", "golden", "trace"], steps=8)
    assert {answer.word for answer in found.answers.values()} == {"no"}
    assert not found.sound


def test_modes_that_load_must_agree() -> None:
    answer = ask("mock:dual-chip", "parallel", package="preset:dual-chip")
    assert answer.word == probes.YES, answer
    assert set(answer.figures["us_per_job"]) == {"none", "tensor"}


def test_the_adapter_on_a_sound_sdk(library: str) -> None:
    found = probes.run("calrt076", ["outbuf", "golden", "abort", "trace", "pingpong", "hang"], steps=8)
    words = {name: answer.word for name, answer in found.answers.items()}
    assert words == {
        "outbuf": "yes",
        "golden": "yes",
        "abort": "yes",
        "trace": "not offered",
        "pingpong": "not offered",
        "hang": "yes",
    }, found
    assert {"isolated", "in process"} <= set(found.answers["abort"].figures)


# ---- vices of the SDK ------------------------------------------------------------------------------

VICES = [
    ("outbuf", "outputbuf_reused_early", "no", "reused before it was copied"),
    ("outbuf", "outputbuf_reused_early@5", "no", "1 outputs were another run's"),
    ("queue", "completion_twice", "no", "jobs that do not run"),
    ("golden", "run_fails@9", "broken", "native 20"),
    ("abort", "abort@3:infer", "broken", "SIGABRT"),
    ("abort", "segfault@3:outbuf_acquire", "broken", "SIGSEGV"),
    ("hang", "run_never_ends@3", "broken", "opened again 2 times, to no avail: job"),
    ("abort", "wait_never_returns@3", "broken", "JOB-21: the driver did not come back"),
]


@pytest.mark.parametrize(("name", "vice", "word", "why"), VICES, ids=[f"{row[0]}-{row[1]}" for row in VICES])
def test_a_vice_changes_the_answer(
    library: str, name: str, vice: str, word: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    answer = ask("calrt076", name, deadline=1.0)
    assert answer.word == word, answer
    assert why in answer.why


@pytest.mark.parametrize("vice", ["wait_never_returns@3", "abort@3:infer"])
def test_a_hang_that_opening_again_mends_is_a_no(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vices = tmp_path / "vices"
    vices.write_text(f"\n{vice}\n")  # of the description's process none, of the first that asks this one
    monkeypatch.setenv("CALRT_STANDIN_VICES", f"@{vices}")
    answer = ask("calrt076", "hang", deadline=1.0)
    # A hang of which one is told is this probe's "no"; a driver that dies is broken in each probe.
    assert answer.word == (probes.BROKEN if vice.startswith("abort") else probes.NO), answer
    assert "opened again, 8 jobs gave the right bits" in answer.why
    assert answer.figures["hung_s"] < 20


@pytest.mark.parametrize("name", PROBES)
def test_a_driver_that_dies_is_broken_in_each_probe(
    library: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "abort@3:infer")
    answer = ask("calrt076", name, deadline=2.0)
    if name == "trace":  # there is none, and so no job
        assert answer.word == probes.NOT_OFFERED, answer
        return
    assert answer.word == probes.BROKEN, answer
    assert "killed by signal 6" in answer.why


def test_what_tells_of_a_death_is_broken() -> None:
    died = probes.Answer(probes.NO, "step 7 failed", {"kit": {"broken": {"X": "it was killed by signal 6"}}})
    hung = probes.Answer(probes.NOT_OFFERED, "the call did not return within 1.0 s and was killed")
    for name, probe in PROBES.items():
        assert settled(probe, died).word == probes.BROKEN
        assert settled(probe, hung).word == (probes.NOT_OFFERED if name == "hang" else probes.BROKEN)
        assert settled(probe, probes.Answer(probes.NO, "step 7 gave other bits")).word == probes.NO


def test_what_was_found_before_a_hang_is_kept(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes: list[str] = []
    subject = Subject(library, "preset:tiny", 4, 2.0, isolate=False, note=notes.append)

    def dies(subject: Subject, found: dict[str, str]) -> None:
        found["a load"] = "INVALID_ARGUMENT"
        raise calrt.DeviceLostError("gone", calrt.Status.DEVICE_LOST)

    monkeypatch.setattr(abort, "_lifetimes", dies)
    monkeypatch.setenv("CALRT_STANDIN_VICES", "abort@3:infer")
    answer = PROBES["abort"].ask(subject)
    assert answer.word == probes.BROKEN
    assert "in the order of calls: " in answer.why
    assert answer.figures["lifetimes"] == {"a load": "INVALID_ARGUMENT"}
    assert answer.figures["in process"]["checks"]["pass"] > 5
    assert "JOB-21: the driver ended the process: SIGABRT" in notes

    child = tmp_path / "child"
    child.write_text("""#!/bin/sh
echo '{"stage": "kit"}'; echo '{"note": "X-1: taken"}'; echo '{"note": "X-2: late"}'; kill -9 $$
""")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    answer = ask("mock", "abort")
    why = "its process was ended by SIGKILL (at: kit); found before: X-1: taken; X-2: late"
    assert (answer.word, answer.why) == (probes.BROKEN, why)


def test_steps_that_do_not_fit_are_told() -> None:
    answer = probes.run("mock", ["golden"], steps=100).answers["golden"]
    assert (answer.word, answer.figures["steps"]) == (probes.YES, 64)
    assert answer.why.endswith("(of 100 steps, 64 fit a lane)")
    assert "fit a lane" not in ask("mock", "golden").why


def test_a_probe_that_never_comes_back_is_ended_and_harms_no_other(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", "call_never_returns@2:outbuf_release")
    found = probes.run(library, ["golden", "trace"], steps=8, isolate=False, deadline=60.0, timeout=3)
    assert found.answers["golden"].word == probes.BROKEN
    assert "it hung: no answer within 3 s (at: run)" in found.answers["golden"].why
    assert list(found.answers) == ["golden", "trace"]
    monkeypatch.setenv("CALRT_STANDIN_VICES", "abort@2:infer")
    died = ask(library, "golden", isolate=False)
    assert (died.word, died.why) == (probes.BROKEN, "its process was ended by SIGABRT (at: run)")


# ---- defects of drivers ----------------------------------------------------------------------------

DEFECTS = [
    ("outbuf", "late_write", {}, "DATA-03"),
    ("outbuf", "buffer_stays_busy", {}, "JOB-17"),
    ("outbuf", "partial_output", {}, "DATA-01"),
    ("outbuf", "writes_behind_output", {}, "wrote behind its output"),
    ("queue", "queue_one_less", SLOW, "8 jobs were taken before one was refused; it says 9"),
    ("golden", "noise", {}, "gave other bits"),
    ("golden", "lane_2_differs", {}, "on lane 2, step 0"),
    ("trace", "trace_never_ends", {}, "begins and 0 ends"),
    ("trace", "trace_other_time", {}, "outside"),
    ("trace", "residual_too_large", {}, "the clocks agree to 1000000000 ns alone"),
    ("parallel", "places_anywhere", {}, "parallel=conformance was accepted"),
    ("pingpong", "set_changes_result", {}, "BIND-01"),
    ("abort", "takes_any_value", {}, "JOB-08"),
]


@pytest.mark.parametrize(
    ("name", "defect", "options", "why"), DEFECTS, ids=[f"{row[0]}-{row[1]}" for row in DEFECTS]
)
def test_a_defect_is_a_no(
    name: str, defect: str, options: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_DEFECT", defect)
    answer = ask(driver(), name, options=options)
    assert answer.word == probes.NO, answer
    assert why in answer.why


def test_an_output_that_changes_while_it_is_held_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = []
    submit = Worker.submit

    def scribble(self: Worker, step: int, group: int = 0, seed: int = 0) -> object:
        if seed == 1:  # the jobs that run while all others' outputs are held
            memoryview(buffers[2])[5] = 0x5A
            ctypes.memset(held[-1].ctypes.data, 0x5A, 1)
        job = submit(self, step, group, seed)
        held.append(job.wait().outputs["logits"].raw())
        return job

    class Recorder:
        def __init__(self, device: calrt.Device) -> None:
            self._device = device

        def __getattr__(self, name: str) -> object:
            return getattr(self._device, name)

        def alloc(self, *words: object) -> object:
            buffers.append(self._device.alloc(*words))  # type: ignore[arg-type]
            return buffers[-1]

    held: list[np.ndarray] = []  # type: ignore[type-arg]
    monkeypatch.setattr(Worker, "submit", scribble)
    subject = Subject("mock", "preset:tiny", 5, 10.0)
    with subject.loaded() as (device, model):
        wrong, figures = outbuf.measure(subject, Recorder(device), model)  # type: ignore[arg-type]
    assert "the output of job 2 changed while held" in wrong[0]
    assert "held output 2 changed under later jobs" in wrong[1]
    assert len(wrong) == 2
    assert figures["jobs"] == 10


def test_a_trace_is_held_against_the_jobs() -> None:
    def event(t_ns: int, phase: str) -> TraceEvent:
        return TraceEvent(t_ns, "run", phase, 7, 0, 0)

    whole = [event(110, "begin"), event(190, "end")]
    assert faults(whole, {7: (100, 200)}, 0) == []
    assert faults(whole, {7: (115, 200)}, 5) == []
    assert len(faults(whole, {7: (115, 200)}, 4)) == 1
    assert faults(whole[:1], {7: (100, 200)}, 0) == ["job 7: 1 begins and 0 ends"]


# ---- the command and its record --------------------------------------------------------------------


def test_the_command_lists_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["probes"]
    assert [row["name"] for row in listed] == list(PROBES)
    for row in listed:
        assert {"question", "how", "capability", "meaning"} <= set(row)
        assert set(row["meaning"]) <= set(probes.WORDS)
    assert main(["probe"]) == 2
    assert main(["probe", "nosuch"]) == 2
    assert "outbuf" in capsys.readouterr().err


def test_a_record_is_merged_with_what_was_recorded(
    library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "evidence.json"
    words = ["-dev", "calrt076", "--steps", "4", "--record", str(file), "--json"]
    assert main(["probe", "outbuf", *words]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert answered["probes"]["outbuf"]["word"] == "yes"
    assert main(["probe", "golden", *words]) == 0
    found = Evidence.read(file)
    assert found.subject == "calrt076-0.7.6-standin"  # and never the hardware's
    assert hardware_figures(file) == {}
    assert {name: verdict.verdict for name, verdict in found.capabilities.items()} == {
        "sdk.outputbuf": "pass",
        "golden": "pass",
    }
    monkeypatch.setenv("CALRT_STANDIN_VICES", "outputbuf_reused_early")
    assert main(["probe", "outbuf", *words]) == 1
    assert Evidence.read(file).capabilities["sdk.outputbuf"].verdict == "fail"
    capsys.readouterr()
    assert main(["probe", "golden", "-dev", "mock", "--steps", "4", "--record", str(file)]) == 2
    assert "evidence about another driver_sha256" in capsys.readouterr().err
    with calrt.open("calrt076", allow_unverified=True, evidence=file) as device:
        caps = {cap.name: cap for cap in device.caps_for(device.package("preset:tiny"))}
    assert caps["sdk.outputbuf"].level == 1  # a fail raises nothing
    assert caps["sdk.wait"].level == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-dev", "nosuch"], "there is no driver 'nosuch'"),
        (["-dev", "mock", "--option", "foo=1"], 'unknown option "foo"'),
        (["-dev", "mock", "--package", "/nosuch"], "/nosuch: no such"),
    ],
)
def test_what_does_not_open_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evidence.json"
    assert main(["probe", "all", *words, "--record", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert not file.exists()


RECORDERS = [
    ["probe", "golden", "-dev", "mock"],
    ["bench", "ab", "-dev", "mock", "--rounds", "1"],
    ["conformance", "mock"],
]


@pytest.mark.parametrize("words", RECORDERS, ids=["probe", "bench", "conformance"])
def test_a_record_that_cannot_be_is_refused_first(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    other = tmp_path / "other.json"
    other.write_text(
        json.dumps(
            Evidence(
                Identity("0" * 64, "", "1" * 64, "x", "id"),
                *("driver", "1", "package", "subject", calrt.__version__, "2026-11-30T12:00:00+00:00"),
                {},
            ).to_json()
        )
    )
    before = other.read_bytes()
    for file, says in (
        (damaged, "no file of evidence"),
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "x.json", f"there is no folder {tmp_path / 'no'}"),
        (Path("/proc/x.json"), "--record /proc/x.json: no file can be written there"),
        (other, "evidence about another driver_sha256"),
    ):
        assert main([*words, "--record", str(file)]) == 2
        said = capsys.readouterr()
        assert says in said.err
        assert str(file) in said.err
        assert said.out == ""  # nothing was measured
    assert other.read_bytes() == before
    assert not (tmp_path / "no").exists()


def test_what_was_answered_is_kept_when_it_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = importlib.import_module("calrt.probes.run")  # whose name in the package is the function's
    ask_one = run._child

    def interrupted(question: dict[str, object], *rest: object) -> object:
        if question["probe"] == "trace":
            raise KeyboardInterrupt
        return ask_one(question, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "_child", interrupted)
    file = tmp_path / "evidence.json"
    words = ["probe", "golden", "trace", "-dev", "mock", "--steps", "4", "--record", str(file)]
    assert main(words) == 130
    assert capsys.readouterr().out.startswith("golden  yes")
    assert list(Evidence.read(file).capabilities) == ["golden"]


def test_nothing_is_rounded_up_when_records_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    about = Identity("0" * 64, "0.7.6", "1" * 64, "vdev-2chip", "id")

    def found(verdict: str, *rules: str, calrt: str = "1") -> Evidence:
        utc = "2026-11-30T12:00:00+00:00"
        capabilities = {"queue": Verdict(verdict, rules)}
        return Evidence(about, "driver", "1", "package", "subject", calrt, utc, capabilities)

    def merged(before: Evidence, now: Evidence) -> Verdict:
        before.write(file)
        return now.merged_into(file).capabilities["queue"]

    assert merged(found("fail", "JOB-19"), found("pass", "probe:queue")).verdict == "fail"
    assert merged(found("pass", "JOB-19"), found("fail", "probe:queue")).verdict == "fail"
    assert merged(found("pass", "JOB-19"), found("pass", "probe:queue")) == Verdict(
        "pass", ("JOB-19", "probe:queue")
    )
    assert merged(found("fail", "probe:queue"), found("pass", "probe:queue")).verdict == "pass"
    assert merged(found("fail", "probe:queue"), found("skip")).verdict == "fail"
    assert merged(found("skip"), found("pass", "probe:queue")).verdict == "pass"
    with pytest.raises(ValueError, match=r"recorded by calrt 0: record to another file"):
        merged(found("pass", "probe:queue", calrt="0"), found("pass", "probe:queue"))
