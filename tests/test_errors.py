# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one list of codes, the right class for each, fields, texts, copies, and the page about them."""

from __future__ import annotations

import copy
import gc
import importlib.util
import logging
import multiprocessing
import pickle
import re
import weakref
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import calrt
from calrt import _core, errors
from calrt._enums import OpenIntEnum
from shared_files import shared

ROOT = Path(__file__).resolve().parent.parent
FIELDS = (
    *("code", "native_code", "message", "where", "status_class", "retry", "retryable", "damage"),
    *("recovery", "device", "job_id"),
)

# The table of the design, by number: class and, where it helps, the built-in it also is.
CLASSES = {
    1: "InvalidArgumentError",
    2: "InvalidArgumentError",
    3: "StateError",
    4: "InvalidArgumentError",
    5: "InvalidArgumentError",
    6: "InvalidArgumentError",
    7: "UnsupportedError",
    8: "PackageError",
    9: "PackageError",
    10: "PackageError",
    11: "PackageError",
    12: "StateError",
    13: "CapacityError",
    14: "CapacityError",
    15: "CapacityError",
    16: "CapacityError",
    17: "KvCapacityError",
    18: "KvTimeoutError",
    19: "KvError",
    20: "KvSequenceError",
    21: "ExecutionError",
    22: "WaitTimeoutError",
    23: "CancelledJobError",
    24: "ExecutionError",
    25: "CcuError",
    26: "ExecutionError",
    27: "DeviceLostError",
    28: "DeviceError",
    29: "CalrtError",
}


def test_status_is_the_native_list() -> None:
    rows = _core.status_rows()
    assert [(row[0], row[1]) for row in rows] == [(int(s), s.name) for s in calrt.Status]
    assert len(rows) == 30


@pytest.mark.parametrize(("code", "name"), CLASSES.items())
def test_each_code_has_its_class(code: int, name: str) -> None:
    error = errors.error_for(code, "what was wrong")
    assert type(error) is getattr(calrt, name)
    assert isinstance(error, calrt.CalrtError)
    assert error.code is calrt.Status(code)


def test_classes_are_also_the_built_ins_people_expect() -> None:
    for name, builtin in (
        ("InvalidArgumentError", ValueError),
        ("StateError", RuntimeError),
        ("UnsupportedError", NotImplementedError),
        ("WaitTimeoutError", TimeoutError),
        ("KvTimeoutError", TimeoutError),
        ("KvSequenceError", ValueError),
        ("KvCapacityError", calrt.CapacityError),
        ("DeviceLostError", calrt.DeviceError),
    ):
        assert issubclass(getattr(calrt, name), builtin)


def test_fields_follow_the_status_table() -> None:
    error = errors.error_for(17, "none of 4 lanes is free", native_code=9, device="cpu", job_id=5)
    assert (error.status_class, error.retry, error.retryable) == ("kv", "wait", True)
    assert (error.damage, error.recovery) == ("call", "wait")
    assert (error.native_code, error.device, error.job_id) == (9, "cpu", 5)
    assert str(error) == "KV_NO_CAPACITY (calrt 17, native 9): none of 4 lanes is free"
    assert str(errors.error_for(3, "busy")) == "INVALID_STATE (calrt 3): busy"
    assert not errors.error_for(27, "gone").retryable


def test_an_unknown_number_is_a_member_and_an_error_not_a_crash() -> None:
    status = calrt.Status(77)
    assert status.name == "UNKNOWN_77"
    assert int(status) == 77
    error = errors.error_for(77, "odd", native_code=77, unmapped=True)
    assert type(error) is calrt.CalrtError
    assert error.recovery == "reopen_device"
    assert str(error) == "UNKNOWN_77 (calrt 77, native 77 unmapped): odd"
    with pytest.raises(ValueError, match="seven"):
        calrt.Status("seven")  # type: ignore[arg-type]


def one(code: int) -> calrt.CalrtError:
    return errors.error_for(
        code,
        "text",
        native_code=-3,
        where="submit",
        device="mock",
        job_id=9,
        unmapped=True,
        status_class="kv",
    )


def same(a: calrt.CalrtError, b: calrt.CalrtError) -> None:
    assert type(a) is type(b)
    assert str(a) == str(b)
    assert [getattr(a, name) for name in FIELDS] == [getattr(b, name) for name in FIELDS]
    assert type(a.code) is type(b.code) is calrt.Status


@pytest.mark.parametrize("code", [*CLASSES, 30, 77, -1, 2**40])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_everything(code: int, protocol: int) -> None:
    error = one(code)
    error.__cause__ = KeyError("what the driver said")
    error.__notes__ = ["seen twice"]  # add_note() from Python 3.11 on
    back = pickle.loads(pickle.dumps(error, protocol))
    same(back, error)
    assert back.__notes__ == ["seen twice"]
    assert str(back.__cause__) == "KeyError: 'what the driver said'"
    again = pickle.loads(pickle.dumps(back, protocol))
    same(again, error)
    assert "what the driver said" in str(again.__cause__)


@pytest.mark.parametrize("code", [*CLASSES, 77])
def test_copies_keep_everything(code: int) -> None:
    error = one(code).about(model=3)
    error.__cause__ = KeyError("why")
    shallow, deep = copy.copy(error), copy.deepcopy(error)
    for other in (shallow, deep):
        same(other, error)
    assert shallow.__cause__ is error.__cause__
    assert shallow.subject == error.subject
    assert "why" in str(deep.__cause__)
    assert deep.subject == errors.Subject()


def test_every_public_class_survives_the_pickle_of_a_plain_constructor() -> None:
    classes = [getattr(calrt, name) for name in calrt.__all__]
    classes = [c for c in classes if isinstance(c, type) and issubclass(c, calrt.CalrtError)]
    assert len(classes) == 16
    for cls in classes:
        same(pickle.loads(pickle.dumps(cls("made by hand"))), cls("made by hand"))


def raise_one(code: int) -> None:
    raise one(code) from OSError("in the child")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_errors_cross_processes(method: str) -> None:
    codes = [3, 17, 18, 20, 22, 27, 77]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        for code, future in [(code, pool.submit(raise_one, code)) for code in codes]:
            error = future.exception(timeout=120)
            assert isinstance(error, calrt.CalrtError)
            same(error, one(code))
            assert "in the child" in str(error.__cause__)


def test_unknown_numbers_survive() -> None:
    for number in (30, 77, -1, -(2**31), 2**40):
        status = calrt.Status(number)
        assert (status.name, int(status), status.value) == (f"UNKNOWN_{number}", number, number)
        assert isinstance(status, OpenIntEnum)
        assert status == number
        assert status == calrt.Status(number)
        assert hash(status) == hash(calrt.Status(number))
        assert status in {calrt.Status(number)}
        assert repr(status) == f"<Status.UNKNOWN_{number}: {number}>"
        assert f"{status.name} {status:d} {int(status)}" == f"UNKNOWN_{number} {number} {number}"
        assert f"{status!s}" == str(status)
        assert f"{status:>5}".strip() in (str(number), f"UNKNOWN_{number}", f"Status.UNKNOWN_{number}")
        for other in (pickle.loads(pickle.dumps(status)), copy.copy(status), copy.deepcopy(status)):
            assert (other, other.name, type(other)) == (status, status.name, calrt.Status)
    assert calrt.Status(np.int64(77)).name == "UNKNOWN_77"
    assert calrt.Status(np.int32(17)) is calrt.Status.KV_NO_CAPACITY
    assert len(calrt.Status) == 30
    for nothing in ("17", 17.5, None):
        with pytest.raises(ValueError, match=re.escape(repr(nothing))):
            calrt.Status(nothing)  # type: ignore[arg-type]


def test_texts_show_both_numbers() -> None:
    for code, fields, begin in (
        (17, {}, "KV_NO_CAPACITY (calrt 17): "),
        (17, {"native_code": 9}, "KV_NO_CAPACITY (calrt 17, native 9): "),
        (29, {"native_code": 13, "unmapped": True}, "INTERNAL (calrt 29, native 13 unmapped): "),
        (29, {"native_code": 0, "unmapped": True}, "INTERNAL (calrt 29, native 0 unmapped): "),
        (24, {"native_code": -(2**63)}, f"EXECUTION_FAILED (calrt 24, native {-(2**63)}): "),
    ):
        assert str(errors.error_for(code, "x", **fields)) == begin + "x"
        assert str(errors.error_for(code, "", **fields)) == begin + _core.status_rows()[code][7]


def test_an_error_keeps_nothing_alive(tiny_package: Path) -> None:
    device = calrt.open("cpu", threads=1)
    model = device.load(tiny_package, lanes=1, cells=64)
    lane = model.kv.reserve(4)
    with pytest.raises(calrt.InvalidArgumentError) as caught:
        model.graphs["decode_b1"].submit(tokens=[-7], positions=[0], lanes=[lane])
    error = caught.value.with_traceback(None)
    del caught
    assert error.subject.model == model.generation
    gone: list[weakref.ref[Any]] = [weakref.ref(device), weakref.ref(model), weakref.ref(lane)]
    del device, model, lane
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]
    assert "tokens" in str(error)


# ---- the design, and the page -------------------------------------------------------------------

STATUS_CLASS = {
    **dict.fromkeys(range(1, 8), "argument"),
    **dict.fromkeys(range(8, 13), "package"),
    **dict.fromkeys(range(13, 17), "capacity"),
    **dict.fromkeys(range(17, 21), "kv"),
    **dict.fromkeys((21, 22, 23, 24, 26), "submit"),
    25: "ccu",
    **dict.fromkeys((27, 28, 29), "device"),
}


def test_the_table_is_the_designs() -> None:
    text = shared("DESIGN.md").read_text()
    table = re.findall(
        r"^\| (\d+) \| ([A-Z_]+)[^|]*\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M
    )
    assert [int(row[0]) for row in table] == list(range(30))
    words = {"–": "none", "lanes of the job": "job_lanes"}
    for (number, name, exception, retry, damage, recovery), row in zip(
        table, _core.status_rows(), strict=True
    ):
        n = int(number)
        assert row[:2] == (n, name)
        assert row[2] == STATUS_CLASS.get(n, "none")
        assert row[3] == ("no" if retry == "–" else retry)
        assert row[4:6] == (words.get(damage, damage), recovery)
        if n == 0:
            assert (exception, row[6]) == ("–", "")
            continue
        named = re.findall(r"[A-Z]\w+Error", exception)
        cls = getattr(calrt, row[6])
        # One name and its bases in brackets; or, for 20, just the two bases.
        assert row[6] == named[0] or cls.__bases__ == tuple(getattr(calrt, base) for base in named)
        builtins = {"TimeoutError": TimeoutError}
        assert all(issubclass(cls, builtins.get(base, getattr(calrt, base, object))) for base in named)


def test_every_word_of_the_table_is_explained_and_can_be_recovered() -> None:
    from calrt.recovery import _ACTIONS

    page = (ROOT / "docs/errors.md").read_text()
    for row in _core.status_rows()[1:]:
        assert f"\n| {row[4]} |" in page
        assert f"\n| {row[5]} |" in page
        assert row[5] in _ACTIONS


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("error_table", ROOT / "tools/error_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_the_status_list() -> None:
    tool = generator()
    names = ("number", "name", "cls", "retry", "damage", "recovery", "exception", "sentence")
    listed = [tuple(row[name] for name in names) for row in tool.rows()]
    assert listed == [tuple(map(str, row)) for row in _core.status_rows()]
    page = (ROOT / "docs/errors.md").read_text()
    assert tool.page_with_table(page) == page, "python tools/error_table.py --write"


def test_the_pages_examples_run(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/errors.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(examples) >= 5
    scope: dict[str, object] = {"package": tiny_package}
    try:
        for example in examples:
            exec(compile(example, "docs/errors.md", "exec"), scope)
    finally:
        logging.getLogger("calrt").handlers.clear()
    said = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*?# ([^\n]+)…$", page, re.M)
    assert len(said) == len(promised)
    for line, begin in zip(said, promised, strict=True):
        assert line.startswith(begin)


def test_native_errors_arrive_typed_with_their_device() -> None:
    with pytest.raises(calrt.CalrtError) as caught:
        calrt.open("no-such-driver")
    assert caught.value.device == "no-such-driver"
    assert "no-such-driver" in str(caught.value)
    assert caught.value.code in calrt.Status
