# SPDX-License-Identifier: Apache-2.0
"""Native lines in Python's logging: levels, ids, the bound of the queue, and failing handlers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import calrt
from calrt import logs
from fresh_python import BROKEN, run


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[list[logging.LogRecord]]:
    handler = Kept()
    log = logging.getLogger("calrt")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler.records
    log.removeHandler(handler)
    log.setLevel(level)


def one(level: int = 30, component: str = "cpu", text: str = "warm", job: int = 0, *requests: int) -> None:
    logs.deliver([(level, component, text, job, requests)], 0)


def test_records_carry_ids(kept: list[logging.LogRecord]) -> None:
    one()
    one(40, "job", "100 % lost", 7, 3, 4)
    first, second = kept
    assert (first.name, first.levelname, first.getMessage()) == ("calrt.cpu", "WARNING", "warm")
    assert (first.job_id, first.request_ids) == (None, ())  # type: ignore[attr-defined]
    assert (second.name, second.levelname, second.getMessage()) == ("calrt.job", "ERROR", "100 % lost")
    assert (second.job_id, second.request_ids) == (7, (3, 4))  # type: ignore[attr-defined]


@pytest.mark.parametrize("level", [10, 20, 30, 40, 0, -5, 1000])
def test_any_level_of_a_driver_is_taken(kept: list[logging.LogRecord], level: int) -> None:
    one(level)
    assert [record.levelno for record in kept] == ([level] if level >= logging.DEBUG else [])


def test_a_driver_that_invents_components_makes_no_more_loggers(kept: list[logging.LogRecord]) -> None:
    before = len(logging.Logger.manager.loggerDict)
    for n in range(1000):
        one(30, f"invented{n}")
    assert len(logging.Logger.manager.loggerDict) - before <= 64
    assert len(kept) == 1000
    logging.getLogger("calrt.asked_for")
    one(30, "asked_for")
    assert kept[-1].name == "calrt.asked_for"


def test_dropped_lines_are_counted_in_one_warning(kept: list[logging.LogRecord]) -> None:
    logs.deliver([], 12)
    assert [record.getMessage()[:31] for record in kept] == ["12 native log lines were dropped"[:31]]
    assert kept[0].levelno == logging.WARNING


def test_the_formatter_shows_ids() -> None:
    formatter = logs.IdFormatter("%(levelname)s %(message)s")

    def line(extra: dict[str, object]) -> str:
        record = logging.makeLogRecord({"msg": "slow %d", "args": (5,), "levelname": "INFO", **extra})
        return formatter.format(record)

    assert line({}) == "INFO slow 5"
    assert line(logs.about()) == "INFO slow 5"
    assert line(logs.about(7)) == "INFO slow 5 [job 7]"
    assert line(logs.about(None, [3])) == "INFO slow 5 [request 3]"
    assert line(logs.about(7, [3, 4])) == "INFO slow 5 [job 7, requests 3, 4]"


# ---- from the native part ------------------------------------------------------------------------


def test_a_lost_job_is_logged_with_its_number(null_package: Path, kept: list[logging.LogRecord]) -> None:
    rules = "fault:completion delay_ms=200 thread"
    with calrt.open("null", layers=rules) as device, device.load(null_package, lanes=1, cells=64) as model:
        with model.kv.reserve(4) as lane:
            graph = model.graphs["decode_b1"]
            job = graph.submit(tokens=[1], positions=[0], lanes=[lane], deadline=0.02)
            with pytest.raises(calrt.ExecutionError):
                job.wait()
        device.health()  # lines are delivered when a call comes back
    about = [record for record in kept if getattr(record, "job_id", None) == job.job_seq]
    assert about
    assert about[0].levelno == logging.WARNING
    assert "lost" in about[0].getMessage()


def test_a_lost_job_of_a_runner_is_logged_with_its_requests(
    null_package: Path, kept: list[logging.LogRecord]
) -> None:
    rules = "fault:completion delay_ms=300 thread"
    with calrt.open("null", layers=rules) as device, device.load(null_package, lanes=2, cells=64) as model:
        runner = calrt._core.StepRunner(model.native, job_timeout=0.05)
        runner.start(41, model.kv.reserve(8), [1, 2], max_tokens=4, sampling={"temperature": 0.0})
        while not any(event[0] == calrt._core.ENDED for event in runner.drain()):
            time.sleep(0.01)
        device.health()
        runner.close()
    lost = [record for record in kept if getattr(record, "request_ids", ()) == (41,)]
    assert lost
    assert lost[0].job_id is not None  # type: ignore[attr-defined]


def test_a_failing_handler_is_not_the_callers_fault(null_package: Path) -> None:
    code = """
import logging
class Fails(logging.Handler):
    def emit(self, record):
        raise OSError("the disk is full")
logging.getLogger("calrt").addHandler(Fails())
logging.getLogger("calrt").propagate = False
job = submit(deadline=0.02)
try:
    job.wait()
except calrt.ExecutionError as error:
    print(error.code.name)
print(device.health()["state"])
"""
    done = run(BROKEN + code, null_package, "completion delay_ms=200 thread", quiet=False)
    assert done.stdout == "EXECUTION_FAILED\nok\n"
    assert "the disk is full" in done.stderr


NATIVE_LOG = """
import ctypes, logging
from pathlib import Path
native = ctypes.CDLL(str(Path(calrt._core.__file__).with_name("libcalrt.so")))
def native_log(text):
    native["_ZN5calrt8log_textEiPKcS1_"](30, b"late", text)  # calrt::log_text
sys.stdout.reconfigure(encoding="utf-8")
logging.basicConfig(stream=sys.stdout, format="%(message)s")
"""


def test_the_queue_is_bounded_and_says_what_it_dropped() -> None:
    """In a process of its own: any call that returns delivers, and so does a device that is collected."""
    code = (
        """
import calrt, sys
device = calrt.open("null")
"""
        + NATIVE_LOG
        + """
for n in range(300):
    native_log(b"line %d" % n)
print("-- not before a call comes back from native code")
device.health()
"""
    )
    first, *told, dropped = run(code).stdout.splitlines()
    assert first.startswith("-- not before")
    assert told == [f"line {n}" for n in range(256)]
    assert dropped.startswith("44 native log lines were dropped")


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    code = "import sys, calrt" + NATIVE_LOG + r'native_log(b"odd \xff")'
    assert run(code).stdout == "odd \ufffd\n"


def test_a_line_after_the_last_call_comes_at_the_end() -> None:
    """No device, so nothing else comes back from native code."""
    code = "import sys, calrt" + NATIVE_LOG + 'native_log(b"last words")'
    assert run(code).stdout == "last words\n"


def test_lines_are_told_while_ctrl_c_is_on_its_way(null_package: Path) -> None:
    """The signal is seen inside the wait; the lines are told before its error is raised, and leave it be."""
    code = """
held = [model.kv.reserve(4) for _ in range(3)]
def tell_and_interrupt():
    native_log(b"meanwhile")
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, tell_and_interrupt).start()
try:
    model.kv.reserve(4, timeout=60)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run(BROKEN + NATIVE_LOG + code, null_package, "")
    assert done.stdout == "meanwhile\ninterrupted\n"


def test_lines_that_nobody_fetched_come_at_the_end(null_package: Path) -> None:
    code = """
import logging
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s job=%(job_id)s")
job = submit(deadline=0.02)
time.sleep(0.3)
"""
    done = run(BROKEN + code, null_package, "completion drop")
    assert "WARNING job=" in done.stdout
