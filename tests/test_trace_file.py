# SPDX-License-Identifier: Apache-2.0
"""Traces of real runs are sound by the strict reader `trace_check`, which refuses broken ones."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calrt
import trace_check

LONG = 60.0  # seconds; a ceiling
Event = dict[str, Any]
needs_mock = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


def run(device_name: str, layers: str, package: Any, deadline: float | None = None) -> None:
    """Two generations (not with a deadline, at which jobs are lost), jobs one by one, one let go, a transfer.

    All is closed when it returns.
    """
    ends = contextlib.suppress(calrt.CalrtError) if "fault:" in layers else contextlib.nullcontext()
    with (
        ends,
        calrt.open(device_name, layers=layers) as device,
        device.load(package, lanes=2, cells=64) as model,
    ):
        for _ in range(0 if deadline else 2):
            with ends:
                model.generate([1, 2, 3], max_tokens=8, temperature=0)
        graph = model.graphs["decode_b1"]
        for number in range(3):
            with ends, model.kv.reserve(8, timeout=LONG) as lane:
                job = graph.submit(tokens=[1], positions=[0], lanes=[lane], deadline=deadline)
                if number == 2:
                    job.cancel()
                else:
                    job.wait(LONG)
        device.alloc(256).write(bytes(256))


def text_of(file: Path, end: str = "]\n") -> str:
    """The trace once `end` stands in it: the driver closes when the last thread lets go of it."""
    until = time.monotonic() + LONG
    while end not in (text := file.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    return text


FAULTS = {
    "none": "",
    "F01": "submit status=SUBMIT_FAILED nth=3",
    "F02": "completion drop nth=2",
    "F05": "completion twice every=3",
    "F06": "completion swap nth=1",
    "F07": "buffer_transfer short=4 nth=2",
    "F11": "submit status=DEVICE_LOST nth=7",
    "F16": "completion status=30 nth=4",
    "F17": "completion early every=2",
    "throws": "submit throw nth=2 / job_wait throw nth=2",
    "chance": "any status=29 p=0.02 seed=7",
}


def traced(name: str, rules: str, package: Any, file: Path) -> list[Event]:
    deadline = 0.05 if "drop" in rules or "swap" in rules else None
    run(name, f"trace:{file}" + (f";fault:{rules}" if rules else ""), package, deadline)
    # A job that is lost keeps its driver open, for the answer may come yet: its trace has no end.
    text = text_of(file, "]\n" if deadline is None else "[\n")
    assert trace_check.faults(text, whole=deadline is None) == []
    return trace_check.events_of(text, whole=deadline is None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_trace_of_cpu_is_sound(fault: str, tmp_path: Path, tiny_package: Path) -> None:
    events = traced("cpu", FAULTS[fault], tiny_package, tmp_path / "run.json")
    if fault == "none":
        assert any(event["ph"] == "X" and event["pid"] >= trace_check.FIRST_DEVICE for event in events)


@needs_mock
@pytest.mark.parametrize("fault", FAULTS)
def test_a_trace_of_mock_is_sound(fault: str, tmp_path: Path) -> None:
    events = traced("mock", FAULTS[fault], "preset:tiny", tmp_path / "run.json")
    if fault == "none":
        assert any(event["ph"] == "X" and event["pid"] >= trace_check.FIRST_DEVICE for event in events)


# ---- broken traces -------------------------------------------------------------------------------


def first(events: list[Event], **members: Any) -> Event:
    return next(e for e in events if all(e.get(name) == value for name, value in members.items()))


def device_slice(events: list[Event]) -> Event:
    return next(e for e in events if e["ph"] == "X" and e["pid"] >= 10 and "job_seq" in e["args"])


def device_said(events: list[Event]) -> Event:
    return [e for e in events if e["name"] == "clock alignment"][-1]


def moved(event: Event, us: float) -> None:
    event["ts"] += us


def host_slice(events: list[Event]) -> Event:
    return next(e for e in events if e["ph"] == "X" and e["pid"] < 10)


def extra(*added: Event) -> Callable[[list[Event]], None]:
    """Adds events to the track of the first host slice, at its time."""

    def edit(events: list[Event]) -> None:
        at = host_slice(events)
        for one in added:
            events.append({"pid": at["pid"], "tid": at["tid"], "ts": at["ts"], "name": "x", **one})

    return edit


def drop(**members: Any) -> Callable[[list[Event]], None]:
    return lambda events: events.remove(first(events, **members))


FLOW = {"cat": "flow", "id": 1}
EDITS: dict[str, tuple[Callable[[list[Event]], Any], str]] = {
    "no ph": (lambda e: host_slice(e).pop("ph"), "ph is None"),
    "unknown ph": (lambda e: host_slice(e).update(ph="Q"), "ph is 'Q'"),
    "no ts": (lambda e: host_slice(e).pop("ts"), r"lacks \['ts'\]"),
    "no dur": (lambda e: host_slice(e).pop("dur"), r"lacks \['dur'\]"),
    "no pid": (lambda e: host_slice(e).pop("pid"), r"lacks \['pid'\]"),
    "no tid": (lambda e: host_slice(e).pop("tid"), r"lacks \['tid'\]"),
    "no name": (lambda e: host_slice(e).pop("name"), r"lacks \['name'\]"),
    "empty name": (lambda e: host_slice(e).update(name=""), "name is ''"),
    "unknown member": (lambda e: host_slice(e).update(tts=1), r"unknown \['tts'\]"),
    "ts is text": (lambda e: host_slice(e).update(ts="1"), "ts is '1'"),
    "ts negative": (lambda e: host_slice(e).update(ts=-1), "ts is -1"),
    "dur negative": (lambda e: host_slice(e).update(dur=-0.001), "dur is"),
    "ts of picoseconds": (lambda e: host_slice(e).update(ts=1.0001), "no whole nanoseconds"),
    "pid is text": (lambda e: host_slice(e).update(pid="1"), "pid is '1'"),
    "tid is true": (lambda e: host_slice(e).update(tid=True), "tid is True"),
    "args is a list": (lambda e: host_slice(e).update(args=[]), "args is"),
    "scope": (lambda e: device_said(e).update(s="x"), "scope s is 'x'"),
    "process without a name": (drop(name="process_name", pid=10), "process 10 has no name"),
    "track without a name": (drop(name="thread_name", pid=10), "track 10/.* has no name"),
    "thread without a name": (drop(name="thread_name", pid=1), "track 1/.* has no name"),
    "name given twice": (lambda e: e.append(first(e, name="process_name")), "given twice"),
    "metadata without text": (lambda e: first(e, ph="M").update(args={}), "metadata"),
    "metadata unknown": (lambda e: first(e, ph="M").update(name="process_nom"), "metadata"),
    "slices cross": (
        extra({"ph": "X", "dur": 5e6, "ts": 1.0}, {"ph": "X", "dur": 9e6, "ts": 2.0}), "reaches out of",
    ),
    "B never ends": (extra({"ph": "B"}), "never ends"),
    "E ends nothing": (extra({"ph": "E"}), "does not end"),
    "B and E cross": (
        extra(*({"ph": p, "name": n} for p, n in zip("BBEE", "abab", strict=True))), "E a does not end",
    ),
    "B and E back in time": (extra({"ph": "B"}, {"ph": "E", "ts": 0.0}), "back in time"),
    "span never ends": (lambda e: e.remove([x for x in e if x["ph"] == "e"][-1]), "never ends"),
    "span never begins": (drop(ph="b"), "does not end"),
    "span begins again": (
        lambda e: e.extend(({**first(e, ph="b"), "ts": 1e12}, {**first(e, ph="b"), "ts": 1e12, "ph": "e"})),
        "begins twice",
    ),
    "stages swapped": (
        lambda e: first(e, ph="b", name="infer").update(name="d2h"), "e infer does not end",
    ),
    "stage unknown": (lambda e: first(e, ph="b", name="infer").update(name="warm"), "warm is no stage"),
    "span back in time": (lambda e: moved([x for x in e if x["ph"] == "e"][-1], -1e6), "back in time"),
    "span without job_seq": (lambda e: first(e, ph="b").update(args={}), "no job_seq"),
    "counter of text": (extra({"ph": "C", "args": {"value": "7"}}), "numbers are due"),
    "counter of nothing": (extra({"ph": "C", "args": {}}), "numbers are due"),
    "counter back in time": (
        extra({"ph": "C", "args": {"value": 7}, "ts": 2.0}, {"ph": "C", "args": {"value": 8}, "ts": 1.0}),
        "counter x of 1",
    ),
    "counter changes series": (
        extra({"ph": "C", "args": {"value": 7}}, {"ph": "C", "args": {"other": 8}}), "counter x of 1",
    ),
    "flow never ends": (extra({"ph": "s", **FLOW}), "flow .* is s"),
    "flow never begins": (extra({"ph": "f", "bp": "e", **FLOW}), "flow .* is f"),
    "flow without id": (extra({"ph": "s", "cat": "flow"}), r"lacks \['id'\]"),
    "flow back in time": (
        extra({"ph": "s", **FLOW, "ts": 2.0}, {"ph": "f", "bp": "e", **FLOW, "ts": 1.0}), "back in time",
    ),
    "no alignment": (
        lambda e: e.__setitem__(slice(None), [x for x in e if x["name"] != "clock alignment"]),
        "no clock alignment",
    ),
    "no residual": (lambda e: device_said(e)["args"].pop("residual_ns"), "alignment of 10"),
    "residual is text": (lambda e: device_said(e)["args"].update(residual_ns="0"), "alignment of 10"),
    "residual unlike the text": (
        lambda e: device_said(e)["args"].update(residual_ns=10**12), "residual_ns is 1000000000000",
    ),
    "offset unlike the text": (lambda e: device_said(e)["args"].update(offset_ns=10**12), "offset_ns is"),
    "no reading": (lambda e: device_said(e)["args"].update(readings=0), "alignment of 10"),
    "no label": (
        lambda e: e.__setitem__(slice(None), [x for x in e if x["name"] != "process_labels"]), "its label",
    ),
    "clocks apart": (lambda e: moved(device_slice(e), -1e9), "lies outside it"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("trace") / "run.json"
    run("mock", f"trace:{file}", "preset:tiny")
    text = text_of(file)
    assert trace_check.faults(text) == []
    return text


@needs_mock
def test_a_trace_written_again_is_sound(sound: str) -> None:
    assert trace_check.faults(json.dumps(json.loads(sound))) == []


@needs_mock
def test_flows_counters_and_pairs_that_are_sound_pass(sound: str) -> None:
    events = json.loads(sound)
    extra(
        {"ph": "s", **FLOW, "ts": 1.0}, {"ph": "t", **FLOW, "ts": 2.0},
        {"ph": "f", "bp": "e", **FLOW, "ts": 3.0},
        {"ph": "B", "name": "a"}, {"ph": "B", "name": "b"},
        {"ph": "E", "name": "b"}, {"ph": "E", "name": "a"},
        {"ph": "C", "args": {"value": 7}}, {"ph": "C", "args": {"value": 7.5}},
    )(events)  # fmt: skip
    assert trace_check.faults(json.dumps(events)) == []


@needs_mock
@pytest.mark.parametrize("name", EDITS)
def test_a_broken_trace_is_refused(name: str, sound: str) -> None:
    edit, said = EDITS[name]
    events = json.loads(sound)
    edit(events)
    found = trace_check.faults(json.dumps(events))
    with pytest.raises(ValueError, match=said):
        raise ValueError("; ".join(found))


@needs_mock
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text[:-2], "no JSON"),
        (lambda text: text[: len(text) // 2], "no JSON"),
        (lambda text: text.replace('"ph":', '"ph":"X","ph":', 1), "twice"),
        (lambda text: text.replace('"ts":', '"ts":NaN,"was":', 1), "NaN is no JSON number"),
        (lambda text: '{"traceEvents":' + text + "}", "array"),
        (lambda text: "[]", "array"),
        (lambda text: "[1]", "no object"),
    ],
)
def test_a_broken_file_is_refused(edit: Callable[[str], str], said: str, sound: str) -> None:
    assert said in "; ".join(trace_check.faults(edit(sound)))
