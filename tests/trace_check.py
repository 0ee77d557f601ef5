# SPDX-License-Identifier: Apache-2.0
"""A strict reader of the trace-event format (JSON array form) and of what the layer `trace` promises.

`faults(text)` says all that is wrong; `python tests/trace_check.py FILE...` prints it. Source: "Trace Event
Format", the sections on phases X, B/E, b/n/e, s/t/f, C, i and M. Stricter than the viewers, which draw what
they can: a slice that reaches out of the one around it, or an end without a begin, is a fault here.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Track = tuple[int, int]

FIRST_DEVICE = 10  # process id of device 0 in a trace; below are calrt's own
DONE = 3  # args.state of a job that ended well

_MEMBERS = {  # by phase: what an event must have; it may have args, and nothing else
    "X": {"name", "pid", "tid", "ts", "dur"},
    "B": {"name", "pid", "tid", "ts"},
    "E": {"name", "pid", "tid", "ts"},
    **{phase: {"name", "cat", "id", "pid", "tid", "ts"} for phase in "bnest"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "M": {"name", "pid", "tid", "args"},
}
_METADATA = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
_UNENDED = "never ends"
_STAGES = ("queue", "h2d", "infer", "d2h")
_ALIGNMENT: dict[str, type | tuple[type, ...]] = {
    "clock": str, "offset_ns": int, "drift_ppm": (int, Decimal), "residual_ns": int, "readings": int,
    "device_dropped": int, "text": str,
}  # fmt: skip


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Event:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError(f"a member is there twice: {[name for name, _ in pairs]}")
        return members

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON number")

    return json.loads(text, object_pairs_hook=once, parse_float=Decimal, parse_constant=constant)


def _shape(event: Any) -> str | None:
    """What is wrong with one event by itself; afterwards ts and dur are whole nanoseconds."""
    if not isinstance(event, dict):
        return "is no object"
    phase = event.get("ph")
    if not isinstance(phase, str) or phase not in _MEMBERS:
        return f"ph is {phase!r}"
    need, have = _MEMBERS[phase], set(event) - {"ph"}
    if need - have or have - need - {"args"}:
        return f"ph {phase} lacks {sorted(need - have)}, has unknown {sorted(have - need - {'args'})}"
    for member in ("name", "cat"):
        if member in event and not (isinstance(event[member], str) and event[member]):
            return f"{member} is {event[member]!r}"
    for member in ("pid", "tid", "id"):
        if member in event and not (_is_int(event[member]) and event[member] >= 0):
            return f"{member} is {event[member]!r}"
    for member in ("ts", "dur"):
        if member not in event:
            continue
        value = event[member]
        if not (_is_int(value) or isinstance(value, Decimal)) or value < 0:
            return f"{member} is {value!r}"
        if (ns := value * 1000) != int(ns):
            return f"{member} is {value}: no whole nanoseconds"
        event[member] = int(ns)
    args = event.get("args", {})
    if not isinstance(args, dict):
        return f"args is {args!r}"
    if phase == "C" and not (args and all(_is_int(v) or isinstance(v, Decimal) for v in args.values())):
        return f"counter with args {args}: numbers are due"
    if phase == "i" and event["s"] not in ("g", "p", "t"):
        return f"scope s is {event['s']!r}"
    if phase == "f" and event["bp"] != "e":
        return f"bp is {event['bp']!r}"
    if phase == "M":
        said = _METADATA.get(event["name"])
        if said is None or list(args) != [said] or not (isinstance(args[said], str) and args[said]):
            return f"metadata {event['name']!r} with args {args}"
    return None


def _names(events: list[Event]) -> list[str]:
    """Each process has one name; each track with slices, too."""
    found: list[str] = []
    named: set[tuple[str, int, int]] = set()
    for event in events:
        if event["ph"] == "M" and event["name"] != "process_labels":
            key = (event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0)
            if key in named:
                found.append(f"{key[0]} of {key[1:]} is given twice")
            named.add(key)
    for pid in sorted({event["pid"] for event in events}):
        if ("process_name", pid, 0) not in named:
            found.append(f"process {pid} has no name")
    for pid, tid in sorted({(e["pid"], e["tid"]) for e in events if e["ph"] in "XBE"}):
        if ("thread_name", pid, tid) not in named:
            found.append(f"track {pid}/{tid} has no name")
    return found


def _slices(events: list[Event]) -> list[str]:
    """X within each other or apart on each track; B and E in order, paired by name."""
    found: list[str] = []
    whole: dict[Track, list[tuple[int, int, str]]] = defaultdict(list)
    open_: dict[Track, list[Event]] = defaultdict(list)
    last: dict[Track, int] = {}
    for event in events:
        track = (event["pid"], event["tid"])
        if event["ph"] == "X":
            whole[track].append((event["ts"], -(event["ts"] + event["dur"]), event["name"]))
        if event["ph"] not in ("B", "E"):
            continue
        if event["ts"] < last.get(track, 0):
            found.append(f"track {track}: {event['ph']} {event['name']} goes back in time")
        last[track] = event["ts"]
        if event["ph"] == "B":
            open_[track].append(event)
        elif not open_[track] or open_[track].pop()["name"] != event["name"]:
            found.append(f"track {track}: E {event['name']} does not end what is open")
    found += [f"track {track}: B {e['name']} {_UNENDED}" for track, left in open_.items() for e in left]
    for track, slices in whole.items():
        ends: list[tuple[int, str]] = []
        for begin, negative_end, name in sorted(slices):
            while ends and ends[-1][0] <= begin:
                ends.pop()
            if ends and -negative_end > ends[-1][0]:
                found.append(f"track {track}: {name} at {begin} ns reaches out of {ends[-1][1]}")
            ends.append((-negative_end, name))
    return found


def _spans(events: list[Event]) -> list[str]:
    """b and e of one id nest, in order; a job's stages lie in it, one after the other; flows are paired."""
    found: list[str] = []
    open_: dict[tuple[str, int], list[Event]] = defaultdict(list)
    last: dict[tuple[str, int], int] = {}
    done: set[tuple[str, int]] = set()
    flows: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "t", "f"):
            flows[event["cat"], event["id"]].append(event)
        if event["ph"] not in ("b", "n", "e"):
            continue
        key = (event["cat"], event["id"])
        if event["ts"] < last.get(key, 0):
            found.append(f"span {key}: {event['ph']} {event['name']} goes back in time")
        last[key] = event["ts"]
        if event["ph"] == "b":
            if not open_[key] and key in done:
                found.append(f"span {key}: begins twice")
            if open_[key] and event["name"] not in _STAGES:
                found.append(f"span {key}: {event['name']} is no stage of a job")
            open_[key].append(event)
        elif event["ph"] == "e":
            if not open_[key] or open_[key].pop()["name"] != event["name"]:
                found.append(f"span {key}: e {event['name']} does not end what is open")
            if not open_[key]:
                done.add(key)
    found += [f"span {key}: b {e['name']} {_UNENDED}" for key, left in open_.items() for e in left]
    for key, flow in flows.items():
        phases = "".join(event["ph"] for event in flow)
        if not re.fullmatch("st*f", phases):
            found.append(f"flow {key} is {phases}: one s, then t, one f are due")
        if [event["ts"] for event in flow] != sorted(event["ts"] for event in flow):
            found.append(f"flow {key}: goes back in time")
    return found


def _counters(events: list[Event]) -> list[str]:
    """The points of one counter are in order, and have the same series."""
    found: list[str] = []
    last: dict[tuple[int, str], Event] = {}
    for event in (one for one in events if one["ph"] == "C"):
        before = last.get((event["pid"], event["name"]))
        if before is not None and (
            before["ts"] > event["ts"] or before["args"].keys() != event["args"].keys()
        ):
            found.append(f"counter {event['name']} of {event['pid']}: goes back in time, or changes series")
        last[event["pid"], event["name"]] = event
    return found


def _alignment(events: list[Event]) -> list[str]:
    """Each device with events says how its clock lies on the host's, and its slices are there in fact."""
    found: list[str] = []
    said: dict[int, Event] = {}
    labels: dict[int, str] = {}
    jobs: dict[int, list[int]] = {}
    begun: dict[int, int] = {}
    for event in events:
        pid, args = event["pid"], event.get("args", {})
        if event["name"] == "process_labels":
            labels[pid] = args["labels"]
        if event["ph"] == "i" and event["name"] == "clock alignment":
            wrong = [n for n, kind in _ALIGNMENT.items() if not isinstance(args.get(n), kind)]
            if wrong or set(args) != set(_ALIGNMENT):
                found.append(f"clock alignment of {pid}: {wrong or sorted(args)}")
                continue
            if args["residual_ns"] < 0 or args["device_dropped"] < 0 or args["readings"] < 1:
                found.append(f"clock alignment of {pid}: {args}")
            said[pid] = args
        if event["ph"] == "b" and event["name"] not in _STAGES:
            if "job_seq" not in args:
                found.append(f"span {event['id']}: no job_seq")
            begun[event["id"]] = args.get("job_seq", 0)
            jobs[begun[event["id"]]] = [event["ts"], -1]
        if event["ph"] == "e" and args.get("state") == DONE and event["id"] in begun:
            jobs[begun[event["id"]]][1] = event["ts"]
    for pid in sorted(
        {e["pid"] for e in events if e["ph"] in "XC" and e["pid"] >= FIRST_DEVICE} | set(labels)
    ):
        if pid not in said:
            found.append(f"device {pid}: no clock alignment")
            continue
        args = said[pid]
        if args["clock"] == "virtual":
            continue
        if labels.get(pid) != args["text"]:
            found.append(f"device {pid}: its label {labels.get(pid)!r} is not {args['text']!r}")
        for name, shown in (("offset_ns", f"host {args['offset_ns']:+d} ns"),
                            ("residual_ns", f"residual {args['residual_ns']} ns"),
                            ("readings", f"{args['readings']} readings")):  # fmt: skip
            if shown not in args["text"]:
                found.append(f"device {pid}: {name} is {args[name]}, the text says {args['text']!r}")
        slack = args["residual_ns"]
        for event in (e for e in events if e["ph"] == "X" and e["pid"] == pid):
            span = jobs.get(event.get("args", {}).get("job_seq", 0))
            if span is None or span[1] < 0:
                continue  # not a job that ended well: the device may have gone on with it
            if event["ts"] < span[0] - slack or event["ts"] + event["dur"] > span[1] + slack:
                found.append(
                    f"device {pid}: {event['name']} of job {event['args']['job_seq']} lies outside it"
                )
    return found


def events_of(text: str, *, whole: bool = True) -> list[Event]:
    """The events as they stand. Without `whole` the array's end may be missing, as the format allows."""
    if not whole and not text.endswith("]\n"):
        text += "\n]\n"
    events: list[Event] = _read(text)
    return events


def faults(text: str, *, whole: bool = True) -> list[str]:
    """What is wrong with a trace, a text each; [] if it is sound.

    Without `whole` it is one of a driver that is still open: spans and the array may lack their ends.
    """
    try:
        events = events_of(text, whole=whole)
    except ValueError as error:
        return [f"no JSON: {error}"]
    if not isinstance(events, list) or not events:
        return ["a JSON array with events is due"]
    found = [f"event {i}: {wrong}" for i, event in enumerate(events) if (wrong := _shape(event)) is not None]
    if found:
        return found
    checks = (_names, _slices, _spans, _counters, _alignment)
    found = [wrong for check in checks for wrong in check(events)]
    return [wrong for wrong in found if whole or not wrong.endswith(_UNENDED)]


if __name__ == "__main__":
    said = [f"{name}: {text}" for name in sys.argv[1:] for text in faults(Path(name).read_text())]
    print(*said, sep="\n", end="\n" if said else "")
    sys.exit(1 if said else 0)
