# SPDX-License-Identifier: Apache-2.0
"""What a device can be asked: topology, rules, footprint, trace, KV; and wrong arguments are named."""

from __future__ import annotations

import dataclasses
import os
import pickle
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import calrt
from calrt import _core

DEVICES = ["null", "cpu"]


@pytest.mark.parametrize("name", DEVICES)
def test_info_says_what_0_9_added(name: str) -> None:
    with calrt.open(name) as device:
        info = device.info
        assert info.id == f"{name}:0"
        assert info.domains == ("host",)
        assert info.completion == "callback"
        assert info.clock == "real"
        with pytest.raises(dataclasses.FrozenInstanceError):
            info.id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(("name", "placements"), [("null", ("any",)), ("cpu", ("any", "chip:0"))])
def test_topology(name: str, placements: tuple[str, ...]) -> None:
    with calrt.open(name) as device:
        topology = device.topology
        assert len(topology.chips) == device.info.chips == 1
        assert topology.chips[0].index == 0
        assert topology.chips[0].name == name
        assert topology.chips[0].memory_bytes == device.info.memory_bytes
        assert topology.links == ()
        assert topology.sessions == ((0,),)
        assert topology.modes == ("none",)
        assert topology.placements == placements
        assert topology == device.topology
    with pytest.raises(calrt.StateError, match="closed"):
        _ = device.topology


@pytest.mark.parametrize("name", DEVICES)
def test_buffer_rules(name: str) -> None:
    with calrt.open(name) as device:
        rules = device.buffer_rules()
        assert rules == device.buffer_rules("host")
        assert rules.align == 64
        assert rules.padding == 1
        with pytest.raises(calrt.UnsupportedError, match="domain 4"):
            device.buffer_rules("device")
        with pytest.raises(calrt.InvalidArgumentError, match="moon"):
            device.buffer_rules("moon")


def test_a_footprint_is_what_the_load_takes(device: calrt.Device, tiny_package: Path) -> None:
    need = device.footprint(tiny_package, lanes=4, cells=128)
    with device.load(tiny_package, lanes=4, cells=128) as model:
        held = model.info["weight_bytes"] + model.info["kv_bytes"]
    assert need.device_bytes == 0
    assert need.host_bytes > held
    half = device.footprint(tiny_package, lanes=2, cells=128)
    assert need.host_bytes - half.host_bytes == model.info["kv_bytes"] // 2  # KV is what lanes cost
    assert device.footprint(str(tiny_package), lanes=4, cells=128, placement="any") == need


def test_a_footprint_is_refused_as_the_load_is(device: calrt.Device, tiny_package: Path) -> None:
    wrong: list[dict[str, Any]] = [{"lanes": 10**6}, {"compute": "int4"}, {"placement": "chip:9"}]
    for options in wrong:
        with pytest.raises(calrt.CalrtError) as load:
            device.load(tiny_package, **options)
        with pytest.raises(calrt.CalrtError) as footprint:
            device.footprint(tiny_package, **options)
        assert str(load.value) == str(footprint.value)
        assert type(load.value) is type(footprint.value)
        assert next(iter(options)) in str(load.value)


def test_kv_info(model: calrt.Model) -> None:
    info = model.kv_info
    assert (info.lanes, info.cells, info.dtype) == (4, 128, "f32")
    assert info.ops == ("clear", "lane_copy", "range_copy", "rotate", "read", "write")
    assert info.layers == 2
    assert info.bytes_per_cell == 2 * 2 * 32 * 4  # K and V of 2 layers, 32 F32 each
    assert model.info["kv_bytes"] >= info.bytes_per_cell * info.lanes * info.cells
    model.close()
    with pytest.raises(calrt.StateError, match="closed"):
        _ = model.kv_info


def test_a_trace_shows_each_job_on_the_hosts_clock(device: calrt.Device, model: calrt.Model) -> None:
    with model.sequence() as sequence:
        sequence.prefill([1, 2, 3])  # before: not traced
        begin = time.monotonic_ns()
        with device.trace() as trace:
            sequence.decode(4)
            first = trace.drain()
            sequence.decode(5)
        end = time.monotonic_ns()
        sequence.decode(6)  # after: not traced
    assert [event.phase for event in trace.events] == ["begin", "end", "begin", "end"]
    assert trace.events[:2] == first
    times = [event.t_ns for event in trace.events]
    assert begin <= times[0] <= times[1] <= times[2] <= times[3] <= end
    ids = [event.job_id for event in trace.events]
    assert ids[0] == ids[1] < ids[2] == ids[3]
    assert {event.name for event in trace.events} == {"job"}
    assert (trace.dropped, trace.residual_ns) == (0, 0)


def test_a_trace_is_bounded_and_says_what_it_lost(device: calrt.Device, model: calrt.Model) -> None:
    with model.sequence() as sequence:
        sequence.prefill([1])
        with device.trace(capacity=3) as trace:
            sequence.decode(2)
            sequence.decode(3)
    assert len(trace.events) == 3
    assert trace.dropped == 1
    for capacity in (0, -1, 2**20 + 1, 2.0, "many", True):
        with pytest.raises(calrt.InvalidArgumentError, match="capacity"):
            device.trace(capacity)  # type: ignore[arg-type]


def close_and_fail(device: calrt.Device) -> None:
    device.close()
    raise KeyError


def test_an_exception_in_a_traced_block_is_the_one_to_see(device: calrt.Device, model: calrt.Model) -> None:
    with pytest.raises(KeyError), device.trace():
        raise KeyError
    with pytest.raises(KeyError), device.trace():
        close_and_fail(device)
    with pytest.raises(calrt.StateError, match="closed"), device.trace():
        pass


@pytest.mark.parametrize("spec", [5, None, b"cpu", ["cpu"]])
def test_open_names_a_spec_that_is_no_text(spec: Any) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match=r"spec is .*: a text is due"):
        calrt.open(spec)


def test_open_names_an_option_that_is_no_text() -> None:
    with pytest.raises(calrt.InvalidArgumentError, match="threads is None"):
        calrt.open("cpu", threads=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lanes": "a"}, "lanes"),
        ({"lanes": -1}, "lanes"),
        ({"lanes": 2**40}, "lanes"),
        ({"cells": 1.5}, "cells"),
        ({"profiles": 4}, "profiles is 4: a list"),
        ({"profiles": "14"}, "profiles is '14': a list"),
        ({"profiles": [1.5]}, "profiles"),
        ({"chunks": [None]}, "chunks"),
        ({"compute": 32}, "compute is 32: a text is due"),
        ({"kv_dtype": None}, "kv_dtype is None"),
        ({"parallel": ["none"]}, "parallel is"),
        ({"placement": b"any"}, "placement is"),
    ],
)
def test_load_and_footprint_name_wrong_arguments(
    device: calrt.Device, tiny_package: Path, options: dict[str, Any], said: str
) -> None:
    for call in (device.load, device.footprint):
        with pytest.raises(calrt.InvalidArgumentError, match=said):
            call(tiny_package, **options)


def test_load_names_what_is_no_model_or_progress(device: calrt.Device, tiny_package: Path) -> None:
    wrong: Any = 7
    with pytest.raises(calrt.InvalidArgumentError, match="model is 7"):
        device.load(wrong)
    with pytest.raises(calrt.InvalidArgumentError, match="progress is 7"):
        device.load(tiny_package, progress=wrong)
    with pytest.raises(calrt.InvalidArgumentError, match="no load option 'lane'"):
        device.footprint(tiny_package, lane=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("entry", "group"),
    [("buffer_alloc", "capacity"), ("device_health", "device"), ("buffer_rules", "capacity")],
)
def test_a_number_that_nobody_mapped_has_the_class_of_its_entry(entry: str, group: str) -> None:
    with calrt.open("null", layers=f"fault:{entry} status=1234") as device:
        call = {"buffer_alloc": lambda: device.alloc(64), "device_health": device.health}
        with pytest.raises(calrt.CalrtError) as caught:
            call.get(entry, device.buffer_rules)()
    assert caught.value.status_class == group
    assert caught.value.native_code == 1234
    assert str(caught.value).startswith("INTERNAL (calrt 29, native 1234 unmapped): ")
    assert pickle.loads(pickle.dumps(caught.value)).status_class == group


def test_a_trace_ends_cleanly_when_its_device_is_closed() -> None:
    with calrt.open("cpu", threads=1) as device, device.trace() as trace:
        device.close()
    assert trace.events == []


def test_caps_of_the_cpu_name_their_evidence() -> None:
    with calrt.open("cpu", threads=1) as device:
        assert {cap.source for cap in device.caps} == {"this driver's tests"}


def test_counters_tell_what_calrt_dropped(null_package: Path) -> None:
    layers = "fault:completion twice"
    with calrt.open("null", layers=layers) as device, device.load(null_package, lanes=1, cells=64) as model:
        before = device.counters()
        with model.kv.reserve(4) as lane:
            model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane]).wait()
        after = device.counters()
    assert after["calrt.stray_completions"] == before["calrt.stray_completions"] + 1
    assert after["calrt.late_completions"] == before["calrt.late_completions"]


def test_no_layers_left_says_what_to_do() -> None:
    with pytest.raises(calrt.CapacityError, match="close devices that have layers"):
        calrt.open("null", layers=["fault:submit delay_ms=1 nth=9"] * 33)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_no_descriptors_left_is_no_damaged_package(null_package: Path, left: int) -> None:
    """For the folder, the manifest, the artifacts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        package = _core.Package.open(str(null_package))
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(calrt.CapacityError, match="Too many open files"):
        package.raise_if_rejected()
    _core.Package.open(str(null_package)).raise_if_rejected()
