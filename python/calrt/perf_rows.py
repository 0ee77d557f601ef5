# SPDX-License-Identifier: Apache-2.0
"""The rows of schema `calrt.perf/1` as types, and their JSON Schema. `calrt.perf` writes and checks them.

Times are integers in ns on CLOCK_MONOTONIC unless a field's name says otherwise. What is not known is None
(null in a file), never 0.
"""

from __future__ import annotations

import dataclasses
import os
import types
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = [
    "KINDS",
    "SCHEMA",
    "Bench",
    "Clock",
    "Driver",
    "End",
    "Env",
    "Fault",
    "Host",
    "Req",
    "Row",
    "Run",
    "Schedule",
    "Server",
    "Slo",
    "Sum",
    "Tick",
    "schema",
    "schema_of_row",
]

SCHEMA = "calrt.perf/1"

_Count = Annotated[int, ("minimum", 0)]
_Size = Annotated[int, ("minimum", 1)]
_Time = Annotated[int, ("exclusiveMinimum", 0)]  # an instant of CLOCK_MONOTONIC is never 0
_Amount = Annotated[float, ("minimum", 0)]
_Sha256 = Annotated[str, ("pattern", "^[0-9a-f]{64}$")]
_Text = Annotated[str, ("minLength", 1)]


@dataclass(frozen=True)
class Driver:
    """The driver that ran the jobs."""

    name: _Text | None = None
    ver: _Text | None = None
    abi: _Text | None = None


@dataclass(frozen=True)
class Host:
    """The machine: processor, bytes of memory, kernel."""

    cpu: _Text | None = None
    mem: _Size | None = None
    kernel: _Text | None = None


@dataclass(frozen=True)
class Schedule:
    """How requests arrive: e.g. "poisson" at `rate` per second, `n` of them."""

    type: _Text | None = None
    rate: _Amount | None = None
    seed: _Count | None = None
    n: _Size | None = None


@dataclass(frozen=True)
class Slo:
    """What was promised, in ms."""

    ttft_ms: _Amount | None = None
    tpot_ms: _Amount | None = None
    e2e_ms: _Amount | None = None


@dataclass(frozen=True)
class Clock:
    """The clocks of client, server and device, and how they were brought together."""

    client: _Text | None = None
    server: _Text | None = None
    device: _Text | None = None
    offset_ns: int | None = None
    resid_ns: _Count | None = None


@dataclass(frozen=True)
class Run:
    """What all rows of a file share; the first row."""

    run_id: _Text
    utc: _Text
    kind: Literal["run"] = "run"
    schema: Literal["calrt.perf/1"] = "calrt.perf/1"
    git: _Text | None = None
    package_sha256: _Sha256 | None = None
    driver: Driver = field(default_factory=Driver)
    host: Host = field(default_factory=Host)
    config: dict[str, Any] | None = None
    schedule: Schedule = field(default_factory=Schedule)
    slo: Slo = field(default_factory=Slo)
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Server:
    """The server's own times of a request, its lane, and its first and last job."""

    t_recv: _Time | None = None
    t_tok: _Time | None = None
    t_admit: _Time | None = None
    t_prefill0: _Time | None = None
    t_prefill1: _Time | None = None
    t_first: _Time | None = None
    t_done: _Time | None = None
    lane: _Count | None = None
    job0: _Size | None = None
    job1: _Size | None = None
    profile_hist: dict[str, _Count] | None = None


@dataclass(frozen=True)
class Req:
    """One request as its client saw it. `tok_ns[i]` is when chunk i came, with `chunk_tok[i]` tokens."""

    run_id: _Text
    i: _Count
    phase: Literal["warm", "measure"]
    kind: Literal["req"] = "req"
    id: _Text | None = None
    tenant: _Text | None = None
    class_: _Text | None = None
    prompt_tok: _Count | None = None
    cached_tok: _Count | None = None
    max_new: _Count | None = None
    out_tok: _Count | None = None
    t_sched_ns: _Time | None = None
    t_send_ns: _Time | None = None
    t_hdr_ns: _Time | None = None
    t_first_ns: _Time | None = None
    t_last_ns: _Time | None = None
    t_end_ns: _Time | None = None
    tok_ns: list[_Time] | None = None
    chunk_tok: list[_Count] | None = None
    srv: Server | None = None
    status: _Text | None = None
    http: _Size | None = None
    err_code: int | None = None
    finish: _Text | None = None
    out_sha256: _Sha256 | None = None
    seed: _Count | None = None


@dataclass(frozen=True)
class Tick:
    """One step of the engine (a sample of them): graph profile, rows that count, rows of padding, times."""

    t_ns: _Time
    kind: Literal["tick"] = "tick"
    profile: _Text | None = None
    n: _Count | None = None
    padded: _Count | None = None
    waiters: _Count | None = None
    inflight: _Count | None = None
    h2d_us: _Amount | None = None
    dev_us: _Amount | None = None
    d2h_us: _Amount | None = None
    conv_us: _Amount | None = None
    sample_us: _Amount | None = None
    job_seq: _Size | None = None


@dataclass(frozen=True)
class Fault:
    """A fault that was injected: which, into what, by which seed."""

    t_ns: _Time
    id: _Text
    kind: Literal["fault"] = "fault"
    target: _Text | None = None
    seed: _Count | None = None


@dataclass(frozen=True)
class Env:
    """The machine at an instant: W, degrees C, MHz, bytes resident, processors busy."""

    t_ns: _Time
    kind: Literal["env"] = "env"
    power_w: _Amount | None = None
    temp_c: float | None = None
    freq_mhz: _Amount | None = None
    rss: _Size | None = None
    cpu: _Amount | None = None


@dataclass(frozen=True)
class Sum:
    """Figures that follow from the other rows of the file, by name."""

    values: dict[str, Any]
    kind: Literal["sum"] = "sum"


@dataclass(frozen=True)
class Bench:
    """One measured figure beside the limit it was measured against in the same run.

    n: the size measured (elements, bytes, rows; null where there is none). unit: of value and limit.
    ratio: value / limit. load: the machine's load average of one minute. out_sha256: of what was computed.
    """

    name: _Text
    unit: _Text
    kind: Literal["bench"] = "bench"
    n: _Size | None = None
    value: _Amount | None = None
    limit: _Amount | None = None
    ratio: _Amount | None = None
    load: _Amount | None = None
    out_sha256: _Sha256 | None = None

    @classmethod
    def of(
        cls,
        name: str,
        value: float,
        unit: str,
        *,
        n: int | None = None,
        limit: float | None = None,
        out_sha256: str | None = None,
    ) -> Bench:
        """A row with its ratio and the load of now."""
        ratio = value / limit if limit else None
        return cls(name, unit, "bench", n, value, limit, ratio, os.getloadavg()[0], out_sha256)


@dataclass(frozen=True)
class End:
    """The last row of a file: how many lines came before it, and their SHA-256."""

    lines: _Count
    sha256: _Sha256
    kind: Literal["end"] = "end"


Row = Run | Req | Tick | Fault | Env | Sum | Bench
KINDS: dict[str, type[Row] | type[End]] = {
    "run": Run,
    "req": Req,
    "tick": Tick,
    "fault": Fault,
    "env": Env,
    "sum": Sum,
    "bench": Bench,
    "end": End,
}


# ---- schema -----------------------------------------------------------------------------------------


def _schema_of(hint: Any) -> dict[str, Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        base, (keyword, value) = get_args(hint)
        return {**_schema_of(base), keyword: value}
    if origin is Literal:
        return {"const": get_args(hint)[0]} if len(get_args(hint)) == 1 else {"enum": list(get_args(hint))}
    if origin is list:
        return {"type": "array", "items": _schema_of(get_args(hint)[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(get_args(hint)[1])}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(option) for option in get_args(hint)]}
    if dataclasses.is_dataclass(hint):
        return schema_of_row(hint)
    plain = {int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": plain[hint]} if hint in plain else {}


def schema_of_row(cls: Any) -> dict[str, Any]:
    """JSON Schema of one kind of row, or of a part of one."""
    hints = get_type_hints(cls, include_extras=True)
    if cls is Sum:  # its figures stand beside `kind`, whatever their names
        return {"type": "object", "properties": {"kind": _schema_of(hints["kind"])}, "required": ["kind"]}
    names = [row_field.name for row_field in dataclasses.fields(cls)]
    names.sort(key=lambda name: name != "kind")  # kind first, the rest as declared
    return {
        "type": "object",
        "properties": {name.rstrip("_"): _schema_of(hints[name]) for name in names},
        "required": [name.rstrip("_") for name in names],
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one row; docs/perf-1.schema.json holds the same."""
    rows = {
        kind: {"description": (cls.__doc__ or "").split("\n")[0], **schema_of_row(cls)}
        for kind, cls in KINDS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a {SCHEMA} file",
        "description": "Times: ns on CLOCK_MONOTONIC unless named otherwise. Unknown is null, never 0.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in rows],
        "$defs": rows,
    }
