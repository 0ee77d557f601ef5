# SPDX-License-Identifier: Apache-2.0
"""Rows and files of calrt.perf/1: what is sound passes, every fault is named, both validators agree."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calrt import perf
from calrt.perf import PerfWriter, main, new_run, problems, row_fault
from calrt.perf_rows import KINDS, Bench, Driver, End, Env, Fault, Host, Req, Run, Server, Sum, Tick, schema

DOCS = Path(__file__).parent.parent / "docs" / "perf-1.schema.json"

ROWS: list[Any] = [
    Req("r", 0, "measure", prompt_tok=3, tok_ns=[5, 9], chunk_tok=[1, 2], srv=Server(t_recv=7, lane=0)),
    Req("r", 1, "warm", class_="interactive", status="ok", http=200, finish="stop"),
    Tick(1, profile="decode_b4", n=3, padded=1, dev_us=1.5),
    Fault(2, "F_TIMEOUT_JOB", seed=0),
    Env(3, temp_c=-4.0, rss=1 << 20),
    Bench.of("submit", 1.5, "us", n=3, limit=3.0),
    Bench.of("decode", 2.0, "tok/s"),
    Sum({"ttft_ms": {"p50": 1.0}, "n": 2}),
]


def write(path: Path) -> bytes:
    with PerfWriter(path, new_run(run_id="r", config={"threads": 2})) as writer:
        for row in ROWS:
            writer.write(row)
    return path.read_bytes()


def with_row(change: dict[str, Any], row: Any = ROWS[5]) -> dict[str, Any]:
    import dataclasses

    return {"kind": row.kind, **dataclasses.asdict(row)} | change


def test_a_file_of_every_kind_is_sound(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl")
    assert problems(data) == []
    lines = [json.loads(line) for line in data.splitlines()]
    assert {line["kind"] for line in lines} == set(KINDS)
    assert all(next(iter(line)) == "kind" for line in lines)
    assert lines[0]["schema"] == "calrt.perf/1"
    assert lines[0]["git"] is None
    assert lines[2]["class"] == "interactive"
    assert lines[-1]["lines"] == len(lines) - 1
    assert lines[-1]["sha256"] == hashlib.sha256(b"".join(data.splitlines(keepends=True)[:-1])).hexdigest()


def test_a_bench_row_has_the_fields_the_native_runner_writes_too() -> None:
    properties = schema()["$defs"]["bench"]["properties"]
    fields = ["kind", "name", "n", "value", "unit", "limit", "ratio", "load", "out_sha256"]
    assert sorted(properties) == sorted(fields)
    row = dict.fromkeys(fields[1:]) | {"kind": "bench", "name": "a", "unit": "ns", "value": 2, "load": 0.5}
    assert row_fault({"kind": row.pop("kind"), **row}) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": "1"}, "value is '1': a number is due (or null"),
        ({"value": True}, "value is True"),
        ({"value": -1.0}, "value is -1.0: 0 or more"),
        ({"value": float("nan")}, "value is nan: a finite number"),
        ({"n": 0}, "n is 0: 1 or more is due (or null"),
        ({"n": 1.5}, "n is 1.5: an integer"),
        ({"name": ""}, "name is empty"),
        ({"unit": None}, "unit is None: a string is due"),
        ({"limit": None}, "ratio is 0.5: value / limit = None"),
        ({"ratio": None}, "ratio is None: value / limit = 0.5"),
        ({"ratio": 0.6}, "ratio is 0.6: value / limit = 0.5"),
        ({"out_sha256": "abc"}, "out_sha256 is 'abc'"),
        ({"speed": 1}, "speed is not a field; known: kind, name"),
        ({"kind": "bunch"}, "kind is 'bunch': one of run, req"),
        ({"kind": ["bench"]}, "kind is ['bench']: one of run, req"),
        ({"value": 10**400}, "value has more than 300 digits"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], text: str) -> None:
    fault = row_fault(with_row(change))
    assert fault is not None
    assert text in fault


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([], "a row is an object"),
        ({"name": "a", "kind": "bench"}, "first field is kind"),
        ({"kind": "tick"}, "t_ns is missing"),
        (with_row({"t_ns": 0}, ROWS[2]), "t_ns is 0: more than 0 is due"),
        (with_row({"tok_ns": [1, 0]}, Req("r", 0, "warm")), "tok_ns[1] is 0"),
        (with_row({"phase": "cold"}, Req("r", 0, "warm")), "phase is 'cold': 'warm' or 'measure'"),
        (with_row({"driver": {"name": 1, "ver": None, "abi": None}}, new_run()), "driver.name is 1"),
        (with_row({"schema": "calrt.perf/2"}, new_run()), "schema is 'calrt.perf/2'"),
    ],
)
def test_wrong_rows_of_other_kinds(row: Any, text: str) -> None:
    assert isinstance(row, (dict, list))
    if isinstance(row, dict):
        row.pop("class_", None)
    if text.startswith(("tok_ns", "phase")):
        row["class"] = None
    fault = row_fault(row)
    assert fault is not None
    assert text in fault


def test_damage_of_a_file_is_found(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl")
    lines = data.splitlines(keepends=True)

    def faults(*changed: bytes) -> str:
        return "\n".join(problems(b"".join(changed)))

    assert "the end is missing" in faults(*lines[:-1])
    assert "cut short" in faults(data[:-1])
    assert "lines is" in faults(*lines[:3], *lines[4:])
    assert "sha256 is not that" in faults(data.replace(b'"submit"', b'"submix"'))
    assert "line 1: the first row is a run" in faults(*lines[1:])
    assert "line 2: run may not stand here" in faults(lines[0], *lines)
    assert f"line {len(lines)}: end may not stand here" in faults(*lines, lines[-1])
    assert "line 2: NaN is no JSON number" in faults(lines[0], b'{"kind":"bench","value":NaN}\n', *lines[1:])
    assert "a field is there twice" in faults(lines[0], b'{"kind":"sum","a":1,"a":2}\n', *lines[1:])
    assert "line 2: " in faults(lines[0], b"\xff{\n", *lines[1:])
    assert "the end is missing" in faults(b"")
    assert problems(lines[6], whole=False) == []


def test_what_is_too_long_is_refused_before_it_is_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, sealed = tmp_path / "a.jsonl", tmp_path / "sealed.jsonl"
    data = write(good)
    assert perf.MOST_LINE_BYTES < perf.MOST_BYTES
    longest = max(len(line) for line in data.splitlines())
    monkeypatch.setattr(perf, "MOST_LINE_BYTES", longest)
    monkeypatch.setattr(perf, "MOST_BYTES", len(data))
    assert problems(data) == []
    monkeypatch.setattr(perf, "MOST_LINE_BYTES", longest - 1)
    assert any(f"{longest} bytes, a row has at most {longest - 1}" in fault for fault in problems(data))
    row = with_row({"name": "n" * longest})
    with (
        PerfWriter(sealed, new_run(driver=Driver(), host=Host())) as writer,
        pytest.raises(ValueError, match=f"bench: .* a row has at most {longest - 1}"),
    ):
        writer.write(row)
    sealed.unlink()
    monkeypatch.setattr(perf, "MOST_BYTES", len(data) - 1)
    assert problems(data) == [
        f"more than {len(data) - 1} bytes, which is the most that is read: split the run into files"
    ]
    for command in (["validate", str(good)], ["seal", str(good), str(sealed)]):
        assert main(command) == 1
        assert f"more than {len(data) - 1} bytes" in capsys.readouterr().err
    assert not sealed.exists()


def test_a_line_that_is_nested_too_deeply_is_a_fault() -> None:
    assert problems(b"[" * 200_000 + b"\n", whole=False) == ["line 1: nested too deeply"]


def test_the_writer_refuses_what_is_wrong_and_leaves_an_unfinished_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with PerfWriter(path, new_run()) as writer:
        before = path.read_bytes()
        with pytest.raises(ValueError, match="bench: value is -1"):
            writer.write(Bench("a", "s", value=-1))
        with pytest.raises(ValueError, match="bench: value is inf"):
            writer.write({"kind": "bench", "value": float("inf")} | with_row({"value": float("inf")}))
        assert path.read_bytes() == before
        writer.close()
        writer.close()
    assert problems(path.read_bytes()) == []

    def fail() -> None:
        with PerfWriter(path, new_run()):
            raise LookupError("the benchmark fell over")

    with pytest.raises(ValueError, match="run: git is empty"):
        PerfWriter(path, new_run(git=""))
    assert problems(path.read_bytes()) == []
    with pytest.raises(LookupError):
        fail()
    assert problems(path.read_bytes()) == ["the end is missing: an unfinished run, or a file cut short"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, rows = tmp_path / "good.jsonl", tmp_path / "bad.jsonl", tmp_path / "rows.jsonl"
    bad.write_bytes(write(good)[:-2])
    assert main(["validate", str(good)]) == 0
    assert main(["validate", str(good), str(bad)]) == 1
    assert "bad.jsonl: line" in capsys.readouterr().err
    rows.write_bytes(good.read_bytes().splitlines(keepends=True)[6])
    assert main(["seal", str(rows), str(tmp_path / "sealed.jsonl")]) == 0
    assert main(["validate", str(tmp_path / "sealed.jsonl")]) == 0
    assert main(["seal", str(rows), str(tmp_path)]) == 1
    assert f"{tmp_path}: Is a directory" in capsys.readouterr().err
    rows.write_text('{"kind":"bench"}\n')
    assert main(["seal", str(rows), str(tmp_path / "other.jsonl")]) == 1
    assert "line 1: name is missing" in capsys.readouterr().err
    assert main(["seal", str(good), str(tmp_path / "other.jsonl")]) == 1
    assert "line 1: run may not stand here" in capsys.readouterr().err
    assert not (tmp_path / "other.jsonl").exists()
    missing = str(tmp_path / "missing.jsonl")
    assert main(["validate", missing, str(bad)]) == main(["seal", missing, missing]) == 1
    said = capsys.readouterr().err
    assert said.count("missing.jsonl: No such file") == 2
    assert "bad.jsonl: line" in said


def test_the_schema_in_docs_is_the_one_of_the_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert DOCS.read_text() == capsys.readouterr().out
    jsonschema.Draft202012Validator.check_schema(schema())


VALUES = st.none() | st.booleans() | st.integers(-2, 1 << 60) | st.just(0.5) | st.text(max_size=3)
NESTED = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)


@given(st.data())
def test_any_json_schema_validator_says_the_same(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([k for k in KINDS if k != "bench"]))
    names = list(schema()["$defs"][kind]["properties"])
    row: dict[str, Any] = {"kind": kind}
    samples = {r.kind: r for r in [*ROWS, new_run(), End(1, "0" * 64)]}
    row |= {k.rstrip("_"): v for k, v in with_row({}, samples[kind]).items()}
    if kind == "sum":
        row |= row.pop("values")
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from([*names[1:], "other"]) if len(names) > 1 else st.just("other"))
        if data.draw(st.booleans()):
            row[name] = data.draw(NESTED)
        else:
            row.pop(name, None)
    valid = jsonschema.Draft202012Validator(schema()).is_valid(row)
    assert (row_fault(row) is None) == valid


def test_a_run_knows_this_machine() -> None:
    run = new_run()
    assert isinstance(run, Run)
    assert run.host.kernel
    assert run.run_id != new_run().run_id
