# SPDX-License-Identifier: Apache-2.0
"""Each driver point of the fault list on each kind of data move: the call ends by its deadline with a typed
error or as if nothing had been, a lane is poisoned only if it was written, and no other lane has changed.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

import calrt
from calrt.kv import Lane

LONG = 2.0  # seconds; a ceiling for what takes milliseconds
SHORT = 0.15  # the deadline of a move that is to be lost
PROMPT = [(7 * i + 3) % 256 for i in range(16)]  # the smallest chunk: one job
OTHER = [(5 * i + 1) % 256 for i in range(11)]
pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


@dataclass
class Point:
    """`rule`: of the fault layer; `fails`: the error of the moves that it hits, and of all where `moves` is
    empty; `submits`: the job never was; `answers`: the driver tells the end of what was lost."""

    rule: str
    fails: str = ""
    moves: tuple[str, ...] = ()
    timeout: float = LONG
    submits: bool = True
    answers: bool = True
    meanwhile: Callable[[calrt.Model, Lane], None] | None = None


def run_another(model: calrt.Model, lane: Lane) -> None:
    """A job on another lane; its end lets a job go that is told after the next one."""
    time.sleep(0.05)
    with lane:
        calrt.Sequence(model, lane).prefill([1, 2, 3])


def interrupt(model: calrt.Model, lane: Lane) -> None:
    time.sleep(0.05)
    _thread.interrupt_main()


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt, also in a process that was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


POINTS = {
    "F01": Point("kv_submit status=SUBMIT_FAILED", "SUBMIT_FAILED", submits=False),
    "F02": Point("completion drop", "EXECUTION_FAILED", timeout=SHORT, answers=False),
    "F03": Point("completion delay_ms=400", "EXECUTION_FAILED", timeout=SHORT),
    "F04": Point("completion hold cancel=normal", "KeyboardInterrupt", meanwhile=interrupt),
    "F05": Point("completion twice"),
    "F06": Point("completion swap", meanwhile=run_another),
    "F07": Point("completion short_in=4", "TRANSFER_FAULT", ("write",)),
    "F08": Point("completion short_out=2", "TRANSFER_FAULT", ("read",)),
    "F11": Point("kv_submit status=DEVICE_LOST", "DEVICE_LOST", submits=False),
    "F12": Point("kv_submit status=QUEUE_FULL"),
    "F13": Point("completion delay_ms=50"),
    "F16 answer": Point("kv_submit status=-1", "INTERNAL -1", submits=False),
    "F16 end": Point("completion status=30", "INTERNAL 30"),
    "F17": Point("completion early"),
}
PASS_TRIAL = ("F03", "F05", "F06", "F08", "F12", "F13", "F17")  # no byte of the cells is missing
MOVES = ("copy", "rotate", "read", "write")


@dataclass
class World:
    """Two lanes for a move, and one that has no part in it."""

    device: calrt.Device
    model: calrt.Model
    first: calrt.Sequence
    second: calrt.Sequence
    other: calrt.Sequence
    spare: Lane
    saved: bytes
    before: dict[str, bytes] = field(default_factory=dict)

    @property
    def kv(self) -> calrt.kv.Kv:
        return self.model.kv


SETUP_PREFILLS, SETUP_READS = 3, 4


@contextmanager
def world(*rules: str) -> Iterator[World]:
    """Rule n meets the nth KV job after all is set up; "" is none."""
    armed = []
    for ahead, rule in enumerate(rules, 1):
        jobs = SETUP_READS + (SETUP_PREFILLS if rule.startswith("completion") else 0)
        armed += [f"{rule} nth={jobs + ahead}"] * bool(rule)
    layers = f"fault:{' / '.join(armed)}" if armed else ""
    with calrt.open("mock", layers=layers, speed=0) as device:
        model = device.load("preset:tiny", lanes=5, cells=512)
        kv = model.kv
        sequences = [model.sequence(128) for _ in range(3)]
        for sequence, tokens in zip(sequences, (PROMPT, OTHER, PROMPT[::-1]), strict=True):
            sequence.prefill(tokens)
        made = World(device, model, *sequences, spare=kv.reserve(16), saved=kv.state(sequences[2].lane))
        made.before = {name: kv.state(getattr(made, name).lane) for name in ("first", "second", "other")}
        yield made


def move(w: World, what: str, timeout: float) -> object:
    if what == "copy":
        return w.kv.seq_cp(w.first.lane, w.second.lane, timeout=timeout)
    if what == "read":
        return w.kv.state(w.first.lane, timeout=timeout)
    if what == "write":
        return w.kv.restore(w.second.lane, w.saved, timeout=timeout)
    w.kv.seq_rm(w.second.lane, 2, 7)  # cells are moved by one job, and turned by the next
    w.kv.seq_add(w.second.lane, 7, -1, -5)
    return w.kv.apply(w.second.lane, timeout=timeout)


def name_of(error: BaseException) -> str:
    if not isinstance(error, calrt.CalrtError):
        return type(error).__name__
    known = error.code.name
    return f"{known} {error.native_code}" if known == "INTERNAL" else known


def wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + LONG
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


@pytest.fixture(scope="module")
def clean() -> dict[str, tuple[bytes, list[int]]]:
    """What each move leaves in its lane on a device that is well, and the tokens that are right."""
    found = {}
    for what in MOVES:
        with world() as w:
            move(w, what, LONG)
            found[what] = (
                w.kv.state(w.second.lane),
                list(w.model.generate(PROMPT[:9], max_tokens=12, temperature=0)),
            )
    return found


@pytest.mark.parametrize("what", MOVES)
@pytest.mark.parametrize("name", POINTS)
def test_a_move_at_a_fault_point(name: str, what: str, clean: dict[str, tuple[bytes, list[int]]]) -> None:
    point = POINTS[name]
    fails = point.fails if not point.moves or what in point.moves else ""
    with world(*[""] * (what == "rotate"), point.rule) as w:
        kv, lane = w.kv, w.second.lane
        helper = None
        if point.meanwhile is not None:
            helper = threading.Thread(target=point.meanwhile, args=(w.model, w.spare))
            helper.start()
        begun = time.monotonic()
        ended = ""
        try:
            move(w, what, point.timeout)
        except (calrt.CalrtError, KeyboardInterrupt) as error:
            ended = name_of(error)
        assert time.monotonic() - begun < 4 * LONG
        if helper is not None:
            helper.join()
        assert ended == fails
        target = point.rule.split()[0]
        assert w.device.counters()[f"fault.1.{target}"] == 1
        kv.check_integrity()
        if fails == "DEVICE_LOST":  # and its memory with it
            assert kv.stats()["states"] == {"OFFLINE": kv.lanes}
            for ask in (lambda: kv.state(w.other.lane), lambda: kv.try_reserve(1)):
                with pytest.raises(calrt.DeviceLostError, match="open it again"):
                    ask()
            return

        written = bool(fails) and (what == "rotate" or (what in ("copy", "write") and point.submits))
        touched = w.first.lane if what == "read" else lane
        lost = point.timeout == SHORT
        if lost and point.answers:
            assert wait_for(lambda: kv.snapshot(touched.index)["job_seq"] == 0)
        now = kv.snapshot(touched.index)
        if lost and not point.answers:
            assert now["job_seq"] != 0  # the device may write it still: nobody else has it
            with pytest.raises(calrt.StateError):
                kv.clear(touched)
        elif ended == "KeyboardInterrupt":
            assert now["job_seq"] == 0  # it was asked to end, and ended in its own way
        else:
            assert (now["state"] == "POISONED") == written
            if not fails:
                assert kv.state(lane) == clean[what][0]
            elif not written:
                assert kv.state(touched) == w.before["first" if what == "read" else "second"]
        assert kv.state(w.other.lane) == w.before["other"]
        if what == "copy" and not (lost and not point.answers):
            assert kv.state(w.first.lane) == w.before["first"]  # only read

        # Whoever comes next gets what is right, on the same lanes if they are to be had.
        for sequence in (w.first, w.second, w.other):
            sequence.lane.release()
        if written:
            kv.scrub()
        for _ in range(kv.free_lanes()):
            assert list(w.model.generate(PROMPT[:9], max_tokens=12, temperature=0)) == clean[what][1]
        if not (lost and not point.answers):
            assert kv.free_lanes() == (5 if name == "F06" else 4)
        kv.check_integrity()


@pytest.mark.parametrize("name", POINTS)
def test_a_lane_under_trial_at_a_fault_point(name: str, clean: dict[str, tuple[bytes, list[int]]]) -> None:
    """At the first job of a scrub: the lane is well and empty, or nobody gets it."""
    point = POINTS[name]
    with world("completion status=EXECUTION_FAILED", point.rule) as w:
        kv, index = w.kv, w.second.lane.index
        with pytest.raises(calrt.ExecutionError):
            move(w, "write", LONG)
        assert kv.snapshot(index)["state"] == "POISONED"
        helper = threading.Thread(target=run_another, args=(w.model, w.spare))
        if point.meanwhile is run_another:
            helper.start()
        begun = time.monotonic()
        works = kv.scrub()
        assert time.monotonic() - begun < 4 * LONG  # 2 s for a job that is lost
        if helper.ident is not None:
            helper.join()
        assert w.device.counters()[f"fault.2.{point.rule.split()[0]}"] == 1
        kv.check_integrity()
        assert works == ([index] if name in PASS_TRIAL else [])
        if point.fails == "DEVICE_LOST":
            assert kv.stats()["states"] == {"OFFLINE": kv.lanes}
            return
        assert kv.snapshot(index)["state"] == ("RESERVED" if works else "POISONED")
        for each in ("first", "other"):
            assert kv.state(getattr(w, each).lane) == w.before[each]
        if works:
            w.second.prefill(OTHER)
            assert kv.state(w.second.lane) == w.before["second"]
        for sequence in (w.first, w.second, w.other):
            sequence.lane.release()
        for _ in range(kv.free_lanes()):
            assert list(w.model.generate(PROMPT[:9], max_tokens=12, temperature=0)) == clean["copy"][1]
        kv.check_integrity()


def test_a_poisoned_lane_refuses_all_and_says_what_to_do() -> None:
    with world("completion status=EXECUTION_FAILED") as w:
        kv, lane = w.kv, w.second.lane
        with pytest.raises(calrt.ExecutionError):
            move(w, "write", LONG)
        asks: list[Callable[[], object]] = [
            lambda: lane.truncate(0), lambda: kv.clear(lane), lambda: kv.seq_rm(lane), lambda: kv.runs(lane),
            lambda: kv.shift(lane, 2), lambda: kv.state(lane), lambda: kv.restore(lane, w.saved),
        ]  # fmt: skip
        for ask in asks:
            with pytest.raises(calrt.KvError, match=r"is poisoned: .*kv\.scrub\(\)") as caught:
                ask()
            assert caught.value.code is calrt.Status.KV_POISONED
        assert kv.scrub() == [lane.index]
        lane.truncate(0)
