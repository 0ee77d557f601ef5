# SPDX-License-Identifier: Apache-2.0
"""Layers that watch, around whole models: validate is silent, a trace opens, a record is replayed."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import calrt

LONG = 60.0  # seconds; a ceiling
ROOT = Path(__file__).resolve().parent.parent
MOCK = "mock" in calrt.drivers()
needs_mock = pytest.mark.skipif(not MOCK, reason="the driver mock is not built")


def generate(layers: str, prompt: str = "hello world", n: int = 16, **options: Any) -> str:
    """What a mock writes under these layers, or the error that it ends with."""
    with calrt.open("mock", layers=layers, **options) as device, device.load("preset:tiny") as model:
        try:
            return str(model.generate(prompt, max_tokens=n, temperature=0))
        except calrt.CalrtError as error:
            said = f"{type(error).__name__} {int(error.code)} {error.native_code}: {error}"
            return re.sub(r"job \d+", "job N", said)  # jobs are counted over the whole process


def nonzero(device: calrt.Device, layer: str) -> dict[str, int]:
    return {
        name: value
        for name, value in device.counters().items()
        if name.startswith(f"{layer}.") and value != 0
    }


# ---- validate ------------------------------------------------------------------------------------


def walk(device: calrt.Device, model: calrt.Model) -> None:
    """Jobs that end well, that are refused, and that are let go."""
    graph = model.graphs["decode_b1"]
    with model.kv.reserve(8) as lane:
        for position in range(4):
            job = graph.submit(tokens=[1], positions=[position], lanes=[lane])
            assert job.wait(LONG).state == "done"
        with pytest.raises(calrt.CalrtError):
            graph.submit(tokens=[1], positions=[0], lanes=[lane], deadline=-1.0)
        late = graph.submit(tokens=[1], positions=[4], lanes=[lane])
        late.cancel()
    device.health()
    buffer = device.alloc(256)
    buffer.write(bytes(256))
    with device.alloc(64), graph.context(slots=2) as context:
        context[0].inputs["tokens"].numpy()[:] = 1


@pytest.mark.parametrize("name", ["null", "cpu"])
def test_validate_is_silent_on(name: str, null_package: Path, tiny_package: Path) -> None:
    package = null_package if name == "null" else tiny_package
    with calrt.open(name, layers="validate") as device:
        with device.load(package, lanes=2, cells=64) as model:
            walk(device, model)
        assert nonzero(device, "validate") == {}


@needs_mock
@pytest.mark.parametrize("preset", ["tiny", "dual-chip"])
@pytest.mark.parametrize("completion", ["callback", "wait", "poll"])
def test_validate_is_silent_on_mock(preset: str, completion: str) -> None:
    with calrt.open(f"mock:{preset}", layers="validate", completion=completion, speed=0) as device:
        with device.load(f"preset:{preset}") as model:
            if preset == "tiny":  # dual-chip maps each row to a lane of its own
                walk(device, model)
            model.generate("hello", max_tokens=4)
        assert nonzero(device, "validate") == {}


def test_validate_names_a_drivers_mistake(null_package: Path) -> None:
    with calrt.open(
        "null", layers="validate;fault:completion twice nth=1 / submit status=30 nth=2"
    ) as device:
        with device.load(null_package, lanes=1, cells=64) as model, model.kv.reserve(4) as lane:
            graph = model.graphs["decode_b1"]
            assert graph.submit(tokens=[1], positions=[0], lanes=[lane]).wait(LONG).state == "done"
            with pytest.raises(calrt.CalrtError):
                graph.submit(tokens=[1], positions=[1], lanes=[lane])
        assert nonzero(device, "validate") == {"validate.completed_twice": 1, "validate.status_range": 1}


@pytest.mark.parametrize("side", ["caller", "driver"])
def test_the_page_has_the_rules_of_the_header(side: str) -> None:
    header = (ROOT / "csrc/layers/validate.h").read_text()
    rules = re.findall(r'CALRT_RULE\((\w+), "([^"]+)"\)', header)
    border = [name for name, _ in rules].index("ok_without_handle")
    page = (ROOT / "docs/layers.md").read_text()
    table = page.split(f"<!-- {side} rules -->")[1].split("<!-- /")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert rows == (rules[:border] if side == "caller" else rules[border:])


def test_without_layers_there_is_nothing_of_them() -> None:
    with calrt.open("null", layers="") as device:
        names = {name.split(".")[0] for name in device.counters()}
        assert not names & {"validate", "trace", "record", "replay", "fault"}


# ---- trace ---------------------------------------------------------------------------------------

Event = dict[str, Any]


def slices(events: list[Event]) -> dict[tuple[int, int], list[tuple[float, float, Event]]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    return tracks


def events_of(file: Path) -> list[Event]:
    """The driver closes when the last thread lets go of it: the end of the array is waited for."""
    until = time.monotonic() + LONG
    while not file.read_text().endswith("]\n") and time.monotonic() < until:
        time.sleep(0.01)
    events: list[Event] = json.loads(file.read_text())
    return events


def traced(layers: str, completion: str) -> tuple[int, int]:
    """Two texts; the residual in ns and the number of jobs. The driver is closed when it returns."""
    with (
        calrt.open("mock", layers=layers, completion=completion) as device,
        device.load("preset:tiny") as model,
    ):
        model.generate("hello world", max_tokens=32)
        model.generate("good night", max_tokens=32)
        assert nonzero(device, "validate") == {}
        counters = device.counters()
        return counters["trace.residual_ns"], counters["trace.jobs"]


@needs_mock
@pytest.mark.parametrize("completion", ["callback", "wait"])
def test_a_trace_of_a_run(tmp_path: Path, completion: str) -> None:
    file = tmp_path / "run.json"
    residual, jobs = traced(f"validate;trace:{file}", completion)
    events = events_of(file)
    tracks = slices(events)
    slack = 0.002  # microseconds: what reading the digits as floats may lose
    for track in tracks.values():
        open_until: list[float] = []
        for begin, end, _ in sorted(track, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= begin + slack:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + slack
            open_until.append(end)
    # Each job is one span with its stages inside.
    spans: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            spans[event["id"]].append(event)
    assert len(spans) == jobs > 40
    found: dict[int, tuple[float, float]] = {}
    for span in spans.values():
        assert [one["ts"] for one in span] == sorted(one["ts"] for one in span)
        stages = [one["name"] for one in span[1:-1]]
        assert stages[0::2] == stages[1::2]
        assert "infer" in stages
        assert span[0]["name"] == span[-1]["name"]
        assert span[0]["name"].startswith(("decode_", "prefill_"))
        assert span[-1]["args"] == {"state": 3, "status": 0}
        found[span[0]["args"]["job_seq"]] = (span[0]["ts"], span[-1]["ts"])
    said = [event["args"] for event in events if event["name"] == "clock alignment"][-1]
    assert said["residual_ns"] >= residual  # the last readings came after the counters
    assert f"residual {said['residual_ns']} ns" in said["text"]
    residual = said["residual_ns"]
    # The device's own slices of a job lie within its span, as far as the clocks can tell.
    device_slices = [one for (pid, _), track in tracks.items() if pid >= 10 for one in track]
    assert Counter(event["name"] for *_, event in device_slices)["decode"] > 40
    for begin, end, event in device_slices:
        submitted, ended = found[event["args"]["job_seq"]]
        assert begin >= submitted - residual / 1000 - slack
        assert end <= ended + residual / 1000 + slack


@needs_mock
def test_a_programs_own_trace_beside_the_layers(tmp_path: Path) -> None:
    file = tmp_path / "run.json"

    def run() -> tuple[set[int], int]:
        with calrt.open("mock", layers=f"trace:{file}") as device, device.load("preset:tiny") as model:
            model.generate("hello", max_tokens=4)
            with device.trace() as trace:
                model.generate("hello", max_tokens=4)
            model.generate("hello", max_tokens=4)
            return {event.job_id for event in trace.events}, trace.dropped

    mine, dropped = run()
    assert dropped == 0
    assert len(mine) == 4
    written = {
        event["args"]["job_seq"]
        for (pid, _), track in slices(events_of(file)).items()
        if pid >= 10
        for *_, event in track
    }
    assert len(written) == 12
    assert mine < written


# ---- record and replay ---------------------------------------------------------------------------


@needs_mock
def test_tokens_are_replayed(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    healthy = generate(f"record:{file}")
    assert generate(f"replay:{file} check") == generate(f"replay:{file}") == healthy
    # The record wins over a device that writes damaged logits now; nothing notices.
    damaged = "fault:completion flip every=2"
    assert generate(damaged) != healthy
    assert generate(f"replay:{file};{damaged}") == healthy


@needs_mock
@pytest.mark.parametrize(
    "rules",
    [
        "completion flip every=3",
        "completion status=CCU_FAULT native=13 nth=5",
        "submit status=DEVICE_LOST nth=6",
        "submit status=-3 nth=4",
        "completion nan nth=2",
    ],
)
def test_a_run_with_faults_is_replayed_without_them(tmp_path: Path, rules: str) -> None:
    file = tmp_path / "run.jsonl"
    faulty = generate(f"record:{file};fault:{rules}")
    assert faulty != generate("")
    assert generate(f"replay:{file}") == faulty


@needs_mock
def test_another_prompt_diverges(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    generate(f"record:{file}")
    with calrt.open("mock", layers=f"replay:{file}") as device, device.load("preset:tiny") as model:
        model.generate("good night", max_tokens=4)
        counters = device.counters()
    assert counters["replay.diverged"] > 0
    assert counters["replay.left"] > 0


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("validate:x", "no configuration"),
        ("trace", "needs a file"),
        ("trace:/nonexistent/run.json", "No such file"),
        ("record:run.jsonl dta=3", "no word 'dta'"),
        ("replay:/nonexistent.jsonl", "cannot read"),
    ],
)
def test_configurations_without_meaning(
    layers: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(calrt.InvalidArgumentError, match=words):
        calrt.open("null", layers=layers)
