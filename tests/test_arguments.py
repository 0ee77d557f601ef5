# SPDX-License-Identifier: Apache-2.0
"""Bad arguments to every callable that calrt has: each is a calrt error that names the argument.

The callables and their parameters come from the stub of the native module and from the signatures of the
Python part, so a new one is covered by itself; where it needs an object or a good value that this file does
not know yet, its test says so.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calrt
from calrt import _core, generate

STUB = Path(__file__).parents[1] / "stubs" / "_core.pyi"

WORDS: dict[str, Any] = {"object": object(), "bytes": b"x", "surrogate": "\udc80", "array": np.ones(2)}
NUMBERS: dict[str, Any] = {"float32": np.float32(3), "decimal": Decimal(3), "3.7": 3.7, "nan": math.nan}
WHOLE: dict[str, Any] = {"-1": -1, "2**64": 2**64, "2**70": 2**70, "10**5000": 10**5000}
BAD: dict[str, dict[str, Any]] = {
    "int": {**WORDS, **NUMBERS, **WHOLE, "text": "1", "flag": True},
    "float": {**WORDS, "text": "1", "flag": True, "nan": math.nan, "-1": -1, "-0.5": np.float32(-0.5)},
    "str": {**WORDS, **NUMBERS, **WHOLE, "flag": True, "nul": "a\0b"},
    "bool": {**WORDS, **NUMBERS, **WHOLE, "text": "1", "1": 1, "numpy": np.ones(1, bool)},
    # of lists, arrays, functions and our own objects
    "": {"object": object(), "surrogate": "\udc80", **NUMBERS, **WHOLE, "objects": np.array([object()])},
}
# What of these a parameter does take, and where.
TAKEN = {
    "Tensor.row.index": {"-1"},  # from the end
    "bf16_from_f32.a": {*NUMBERS, *WHOLE},  # a number is an array without dimensions
    "Buffer.write.data": {"float32"},  # its bytes
    "Kv.restore.data": {"float32"},
    "Kv.state.out": {"None"},
    **{
        f"{of}.{method}.{p}": {"-1"}
        for of in ("Kv", "LaneTable", "Allocator")
        for method in (
            "seq_rm",
            "seq_cp",
            "seq_add",
            "seq_div",
            "begin_copy",
            "shift",
            "park",
            "begin_hosted",
        )
        for p in ("p0", "p1", "d", "keep", "discard", "priority")
    },  # positions from the beginning, to the end
}
# Protocols of Python have exceptions of their own.
OTHER_ERRORS = {"__dlpack__": BufferError, "__getitem__": IndexError}
# Made by calrt alone, or by their owner's method; records; numbers.
NO_CONSTRUCTOR = {"Device", "Kv", "Model", "Sequence"}
WITHOUT_CHECKS = {"Capability", "DeviceInfo", "Status"}
SKIPPED = {"Sequence.reserve"}  # Model.sequence is its door


@dataclass(frozen=True)
class Callee:
    """One function or method: `owner` is its class or "", `parameters` are (name, annotation, required)."""

    owner: str
    name: str
    parameters: tuple[tuple[str, str, bool], ...]

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def _from_stub() -> Iterator[Callee]:
    def callee(owner: str, node: ast.FunctionDef) -> Callee:
        a = node.args
        places = [*a.posonlyargs, *a.args]
        optional = {x.arg for x in places[len(places) - len(a.defaults) :]}
        optional |= {x.arg for x, value in zip(a.kwonlyargs, a.kw_defaults, strict=True) if value is not None}
        parameters = [
            (x.arg, ast.unparse(x.annotation) if x.annotation else "", x.arg not in optional)
            for x in [*places, *a.kwonlyargs]
            if x.arg != "self"
        ]
        return Callee(owner, node.name, tuple(parameters))

    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield callee("", node)
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name not in (
                    "__exit__",
                    "__buffer__",
                    "__eq__",
                ):
                    yield callee(node.name, item)


def of_class(value: type) -> Iterator[tuple[str, Any]]:
    bases = value.__mro__ if value is calrt.kv.Kv else (value,)
    return ((name, item) for base in bases for name, item in vars(base).items())


def _from_python() -> Iterator[Callee]:
    def callee(owner: str, name: str, function: Callable[..., Any]) -> Callee:
        named = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.name not in ("self", "cls") and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        return Callee(
            owner,
            name,
            tuple((p.name, str(p.annotation), p.default is inspect.Parameter.empty) for p in named),
        )

    yield callee("bf16", "view", calrt.bf16.view)
    public = {name: getattr(calrt, name) for name in calrt.__all__}
    for name, value in {**public, "Kv": calrt.kv.Kv, "Allocator": calrt.kv.Allocator}.items():
        if inspect.isfunction(value):
            yield callee("calrt", name, value)
        if not inspect.isclass(value) or value.__module__ == "calrt._core" or name in WITHOUT_CHECKS:
            continue
        for method, function in of_class(value):
            made = method == "__init__" and name not in NO_CONSTRUCTOR and not issubclass(value, Exception)
            if made or not method.startswith("_"):
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function):
                    yield callee(name, method, function)


CALLEES = [
    (where, callee)
    for where, all_of in (("_core", _from_stub()), ("calrt", _from_python()))
    for callee in all_of
    if callee.parameters and callee.path not in SKIPPED
]


class World:
    """One object of each class, on a device whose jobs end at once."""

    def __init__(self, device: calrt.Device, model: calrt.Model, package: Path) -> None:
        self.device, self.model = device, model
        native = model.native
        self.graph = native.graphs["decode_b1"]
        self.sequence = model.sequence(8)
        self.lane = model.kv.reserve(8)
        self.job = self.submit()
        self.context = self.graph.context(lanes=[self.lane])
        self.tensor = self.job.outputs["logits"]
        self.buffer = device.alloc(64)
        self.allocator = calrt.kv.Allocator(4, 64)
        self.allocator.enable_prefixes(4)
        self.lease = self.allocator.try_reserve(8, 0).commit()
        waiter = model.kv.native.enqueue(8)
        columns = self.tensor.shape[1]
        self.runner = _core.StepRunner(native)
        self.native: dict[str, Any] = {
            "Device": device._native,
            "Buffer": self.buffer,
            "BufferPool": device.pool(64, 1),
            "Package": model.package,
            "Model": native,
            "Graph": self.graph,
            "GraphContext": self.context,
            "BindingSlot": self.context[0],
            "Job": self.job,
            "Completions": _core.Completions(),
            "Tensor": self.tensor,
            "Kv": model.kv.native,
            "Lane": self.lane,
            "LaneWaiter": waiter,
            "LaneRef": self.lease,
            "LaneTable": self.allocator._native,
            "Sampler": _core.Sampler(columns, columns, {}),
            "StepRunner": self.runner,
        }
        self.python: dict[str, Any] = {
            "Device": device,
            "Model": model,
            "Kv": model.kv,
            "Allocator": self.allocator,
            "Sequence": self.sequence,
            "RecoveryBudget": calrt.RecoveryBudget(),
            "CalrtError": calrt.CapacityError("no room"),
            "bf16": calrt.bf16,
            "calrt": calrt,
        }
        layout = self.tensor.layout
        self.good: dict[str, Any] = {
            "nbytes": 64, "count": 1, "domain": "host", "capacity": 8, "spec": "null", "options": {},
            "package": model.package, "directory": str(package), "artifact": "weights", "path": str(STUB),
            "data": b"", "out": bytearray(4), "role": "tokens", "buffer": self.buffer, "slot": 0,
            "tokens": [1], "positions": [1], "lanes": [self.lane], "fn": print, "job": self.job, "tag": 1,
            "index": 0, "lane": self.lane, "length": 1, "logits": self.tensor, "token": 1, "vocab": columns,
            "params": {}, "model": native, "request": 1, "max_tokens": 1, "sampling": {},
            "memory": np.zeros(4, np.float32), "layout": layout, "a": np.zeros(4, np.float32),
            "b": calrt.bf16.from_f32(np.zeros(4, np.float32)), "u16": np.zeros(4, np.uint16),
            "prompt": [1], "device": "null", "waiting": {},
            "unpack_f32.out": np.zeros(4, np.float32), "Device.load.model": package,
            "Device.footprint.model": package, "Device.package.model": package,
            "field": "values", "values": [1],
            "Kv.snapshot.lane": 0, "Sampler.__init__.tokens": columns,
            **{f"{of}.{method}.tokens": 1 for of in ("Kv", "LaneTable", "Allocator")
               for method in ("can_allocate", "reserve", "areserve", "enqueue", "try_reserve")},
            "cells": 8, "source": self.lane, "target": self.lane, "p0": 0, "p1": 1, "d": 1,
            "keep": 0, "held": [1], "wanted": [1], "least": 1, "completions": _core.Completions(),
            "now_ns": 0, "job_seq": 1, "n": 1, "every": 4, "blob": 1, "works": True,
            **{f"{of}.{p}": value for of in ("LaneTable", "Allocator") for p, value in
               (("lane", self.lease), ("source", self.lease), ("target", self.lease))},
            **{f"{of}.{method}.lane": 0 for of in ("LaneTable", "Allocator")
               for method in ("begin_scrub", "end_scrub", "unpark")},
            "LaneTable.__init__.lanes": 1, "Allocator.__init__.lanes": 1,
        }  # fmt: skip

    def submit(self) -> calrt.Job:
        self.lane.truncate(0)
        return self.graph.submit(tokens=[1], positions=[0], lanes=[self.lane]).wait()

    def function(self, where: str, callee: Callee) -> Callable[..., Any]:
        if callee.name == "__init__":
            module = _core if where == "_core" else calrt if hasattr(calrt, callee.owner) else calrt.kv
            made: Callable[..., Any] = getattr(module, callee.owner)
            return made
        if not callee.owner:
            return getattr(_core, callee.name)  # type: ignore[no-any-return]
        owners = self.native if where == "_core" else self.python
        assert callee.owner in owners, f"give World an object of {callee.owner}"
        return getattr(owners[callee.owner], callee.name)  # type: ignore[no-any-return]

    def good_value(self, callee: Callee, name: str) -> Any:
        for key in (f"{callee.path}.{name}", f"{callee.owner}.{name}", name):
            if key in self.good:
                return self.good[key]
        raise AssertionError(f"give World.good a value for {callee.path}.{name}")


@pytest.fixture(scope="module")
def world(null_package: Path) -> Iterator[World]:
    with calrt.open("null") as device, device.load(null_package, lanes=4, cells=128) as model:
        made = World(device, model, null_package)
        yield made
        made.runner.close()


def bad_values(callee: Callee, name: str, annotation: str) -> dict[str, Any]:
    kinds = [kind.strip() for kind in annotation.split("|")]
    known = next((kind for kind in kinds if kind in BAD), "") if set(kinds) <= {*BAD, "None"} else ""
    values = dict(BAD[known])
    if "None" not in annotation:
        values["None"] = None
    taken = TAKEN.get(f"{callee.path}.{name}", set())
    return {label: value for label, value in values.items() if label not in taken}


@pytest.mark.parametrize(("where", "callee"), CALLEES, ids=[f"{w}.{c.path}" for w, c in CALLEES])
def test_a_bad_argument_is_named(world: World, where: str, callee: Callee) -> None:
    function = world.function(where, callee)
    good = {name: world.good_value(callee, name) for name, _, required in callee.parameters if required}
    for name, annotation, _ in callee.parameters:
        for label, value in bad_values(callee, name, annotation).items():
            what = f"{callee.path}({name}={label})"
            refusal: Any = None
            try:
                answer = function(**{**good, name: value})
                if inspect.iscoroutine(answer):
                    answer = asyncio.run(answer)
            except Exception as error:
                refusal = error
            else:
                pytest.fail(f"{what} was taken: {answer!r}")
            if not isinstance(refusal, OTHER_ERRORS.get(callee.name, ())):
                said = f"{what}: {type(refusal).__name__}: {refusal}"[:400]
                assert isinstance(refusal, calrt.InvalidArgumentError), said
                assert name in refusal.message, said
    assert world.submit().state == "done"


def test_each_option_of_a_generation_is_named(world: World) -> None:
    for name in (*generate._SAMPLING, *generate._OTHER):
        for value in (object(), "\udc80" if name != "stop" else 3, np.ones(2)):
            with pytest.raises(calrt.InvalidArgumentError, match=name):
                world.model.generate([1], max_tokens=1, **{name: value})
    for value in (3.7, np.float32(3), Decimal(3), True):
        with pytest.raises(calrt.InvalidArgumentError, match=r"top_k is a .*, not a whole number"):
            world.model.generate([1], max_tokens=1, top_k=value)
    assert world.model.generate([1], max_tokens=1, temperature=np.float32(0), top_k=np.int32(1)) is not None


def test_each_option_of_a_driver_is_named() -> None:
    for value in (object(), "\udc80", "a\0b", np.ones(2), None, 10**5000):
        with pytest.raises(calrt.InvalidArgumentError, match="threads"):
            calrt.open("cpu", threads=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ([{}], r"layout\[0\]\['dim'\] is missing"),
        ([3], r"layout\[0\] is a int: a dict"),
        ([{"dim": 0, "divisor": 1.5, "modulus": 0, "extent": 4, "stride": 4}], r"\['divisor'\] is a float"),
        ([{"dim": -1, "divisor": 1, "modulus": 0, "extent": 4, "stride": 4}], r"\['dim'\]=-1 is outside"),
        ([{}] * 99, "99 axes"),
    ],
)
def test_the_axes_of_a_layout_are_checked(axes: list[Any], text: str) -> None:
    memory, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(calrt.InvalidArgumentError, match=text):
        _core.unpack_f32(memory, axes, out)


@pytest.mark.parametrize("value", [None, [None], [[1], [2, 3]], ["1"], [object()], [1j], [True], "1"])
def test_what_is_no_number_does_not_become_bf16(value: Any) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match=r"\ba (is|has)"):
        calrt.bf16.from_f32(value)


@pytest.mark.parametrize("kind", [_core.StepRunner, _core.Sampler, _core.Completions, _core.Job])
def test_an_object_is_whole_or_not_at_all(kind: type) -> None:
    with pytest.raises(TypeError):
        object.__new__(kind)
    try:
        made = kind.__new__(kind)
    except TypeError:
        return
    assert made.fileno() >= 0  # Completions: no arguments, so nothing is missing
    made.__init__()  # type: ignore[misc]
    assert made.fileno() >= 0


def test_unknown_names_are_told_with_what_there_is(world: World) -> None:
    slot, buffer = world.context[0], world.buffer
    with pytest.raises(calrt.InvalidArgumentError, match="role='gremlin' is the name of no role"):
        slot.bind("gremlin", buffer)
    with pytest.raises(
        calrt.InvalidArgumentError, match=r"64 bytes aligned to 64 in domain host; .* in domain host"
    ):
        slot.bind("logits", buffer)
    with pytest.raises(calrt.InvalidArgumentError, match=r"nbytes=0 is outside 1\.\.2\^48"):
        world.device.pool(0, 2)
    chunk = next(g for g in world.model.graphs.values() if g.kind == "prefill")
    with pytest.raises(calrt.InvalidArgumentError, match=rf"n_valid=-1 is outside 1\.\.{chunk.chunk}"):
        chunk.submit(tokens=[1], positions=[0], lanes=[world.lane], n_valid=-1)
