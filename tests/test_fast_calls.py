# SPDX-License-Identifier: Apache-2.0
"""The methods that do without pybind11's dispatch: their arguments and signatures are Python's own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import calrt
from calrt import _core


@pytest.fixture
def model(null_package: Path) -> Iterator[calrt.Model]:
    with calrt.open("null") as device, device.load(null_package, lanes=1) as model:
        yield model


@pytest.fixture
def slot(model: calrt.Model) -> _core.BindingSlot:
    return model.graphs["decode_b1"].context(lanes=[model.kv.reserve(8)])[0]


class Refuses(asyncio.Future[None]):
    def set_result(self, result: None, /) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda slot: slot.submit([]), "submit() takes at most 0 positional arguments (1 given)"),
        (lambda slot: slot.submit(lane=None), "submit() got an unexpected keyword argument 'lane'"),
        (lambda slot: type(slot).submit(), "unbound method BindingSlot.submit() needs an argument"),
        (lambda slot: type(slot).submit(3), "doesn't apply to a 'int' object"),
        (lambda slot: slot.submit().wait(1, timeout=2), "wait() got multiple values for argument 'timeout'"),
        (lambda slot: slot.submit().wait(1, 2), "wait() takes at most 1 positional arguments (2 given)"),
    ],
)
def test_wrong_calls_are_worded_as_pythons_own(
    slot: _core.BindingSlot, call: Callable[[Any], object], says: str
) -> None:
    with pytest.raises(TypeError) as error:
        call(slot)
    assert says in str(error.value)


def test_a_missing_argument_is_named(model: calrt.Model) -> None:
    with pytest.raises(TypeError) as error:
        model.graphs["decode_b1"].submit(tokens=[1], positions=[0])  # type: ignore[call-arg]
    assert str(error.value) == "submit() missing required argument 'lanes'"


def test_keywords_may_come_in_any_order_and_as_new_strings(slot: _core.BindingSlot) -> None:
    name = "".join(["dead", "line"])  # equal to the parameter's name, and another object
    before = slot.submit(deadline=1, n_valid=None).wait().deadline_ns
    given: dict[str, Any] = {"lanes": None, name: 100}
    assert slot.submit(**given).wait(timeout=5).deadline_ns > before


def test_signatures_are_known() -> None:
    assert str(inspect.signature(_core.Graph.submit)) == (
        "(self, /, *, tokens, positions, lanes, n_valid=None, logit_rows=None, deadline=None)"
    )
    assert str(inspect.signature(_core.Job.wait)) == "(self, /, timeout=None)"
    assert (_core.Graph.submit.__doc__ or "").startswith("Checks the inputs")
    assert _core.Job.outputs.__doc__


def test_each_future_gets_its_result_even_if_another_refuses() -> None:
    loop = asyncio.new_event_loop()
    refuses, cancelled, waits = Refuses(loop=loop), loop.create_future(), loop.create_future()
    cancelled.cancel()
    waiting: dict[int, asyncio.Future[None]] = {1: refuses, 2: cancelled, 3: waits}
    completions = _core.Completions()
    for tag in (1, 2, 3, 4):  # nobody waits for the fourth
        completions.post(tag)
    with pytest.raises(RuntimeError, match="no"):
        completions.resolve(waiting)
    assert waiting == {}
    assert waits.done()
    assert waits.result() is None
    completions.resolve(waiting)
    with pytest.raises(calrt.InvalidArgumentError, match="waiting is a list: a dict is due"):
        completions.resolve([])  # type: ignore[arg-type]
    loop.close()
