# SPDX-License-Identifier: Apache-2.0
"""Levels of capabilities: what they refuse, what recorded evidence raises, and what lowers it again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import calrt
from calrt import conformance
from calrt.cli import main
from calrt.device_facts import DeviceInfo
from calrt.evidence import SCHEMA, Evidence, collect, hardware_figures, record, schema, subject_of
from calrt.grounds import Grounds
from calrt.presets import build_preset
from leveled_driver import Row, build

ROWS: list[Row] = [
    ("cancel", 1, 1),
    ("trace", 2, 1),
    ("binding_sets", 1, 2),
    ("lane_copy", 3, 1),
    ("registers", 4, 1),
    ("completion_callback", 0, 1),
]
SUBJECT = "calrt-0.7.6"
ALL = ("cancel", "trace", "binding_sets", "lane_copy", "registers")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver") / "leveled", ROWS)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "tiny"
    return build_preset("tiny", driver="null", folder=folder, weights=False)


@pytest.fixture(autouse=True)
def evidence_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALRT_EVIDENCE", str(tmp_path / "evidence"))
    return tmp_path / "evidence"


def checks(*names: str, verdict: str = "pass") -> list[tuple[str, str, str]]:
    return [(name, f"{name.upper()}-01", verdict) for name in names]


def recorded(library: Path, package: Path, rows: Sequence[tuple[str, str, str]]) -> Evidence:
    with calrt.open(str(library)) as device:
        info = device.info
    return record(
        library=library,
        driver=info.driver,
        driver_version=info.driver_version,
        runtime=info.runtime,
        device_class=info.device_class,
        device_id=info.id,
        package=calrt.Package.open(str(package)),
        checks=rows,
    )


def levels(device: calrt.Device, package: Path) -> dict[str, int]:
    return {cap.name: cap.level for cap in device.caps_for(calrt.Package.open(str(package)))}


# ---- what a level allows ------------------------------------------------------------------------


def test_caps_name_their_subject(library: Path) -> None:
    with calrt.open("cpu") as device:
        assert {(cap.level, cap.subject) for cap in device.caps} == {(0, "cpu")}
    with calrt.open(str(library)) as device:
        found = {cap.name: cap for cap in device.caps}
    assert {cap.subject for cap in found.values()} == {SUBJECT}
    assert [(found[name].level, found[name].source) for name in ALL] == [
        (level, "its header") for _, level, _ in ROWS[:-1]
    ]


@pytest.mark.parametrize(
    ("driver", "device_class", "runtime", "subject"),
    [
        ("cpu", "cpu-ref", "", "cpu"),
        ("null", "null", "", "null"),
        ("mock", "mock-tiny", "", "mock:tiny"),
        ("mock", "mock-qwen3-30b-a3b", "", "mock:qwen3-30b-a3b"),
        ("calrt076", "calculet", "CalRT 0.7.6", SUBJECT),
        ("vendor", "x", "2.1", "vendor-2.1"),
    ],
)
def test_a_subject_is_the_runtime_or_the_driver(
    driver: str, device_class: str, runtime: str, subject: str
) -> None:
    assert subject_of(driver, device_class, runtime) == subject


def test_c1_and_c2_are_refused_unless_allowed(library: Path, package: Path) -> None:
    with calrt.open(str(library)) as device:
        with pytest.raises(
            calrt.UnsupportedError, match=rf"trace is C2 on {SUBJECT}: .*its header.*allow_unver"
        ):
            device.trace()
        with device.load(package, lanes=1) as model:  # cancel and binding_sets are not used, which is enough
            assert model.generate([1, 2], max_tokens=2, temperature=0, stop_tokens=()) != []
    with calrt.open(str(library), allow_unverified=True) as device, device.trace() as trace:
        pass
    assert trace.dropped == 0


def ask_cancel(library: Path, package: Path, allow: bool) -> None:
    """Cancels a job that has not ended, as its completion is dropped."""
    layers = "fault:completion drop"
    with (
        calrt.open(str(library), layers=layers, allow_unverified=allow) as device,
        device.load(package, lanes=1) as model,
        model.kv.reserve(8) as lane,
    ):
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane], deadline=0.2)
        try:
            job.cancel()
        finally:
            with pytest.raises(calrt.CalrtError):
                job.wait(10)


def test_cancel_is_refused_by_the_native_runtime(library: Path, package: Path) -> None:
    with pytest.raises(calrt.UnsupportedError, match=f"cancel is C1 on {SUBJECT}"):
        ask_cancel(library, package, allow=False)
    ask_cancel(library, package, allow=True)


def grounds(rows: Sequence[Row], allow: bool = False) -> Grounds:
    with calrt.open("null") as device:
        info: DeviceInfo = replace(device.info, driver="calrt076", runtime="CalRT 0.7.6")
    stated = [{"name": name, "level": level, "value": value, "source": "seed"} for name, level, value in rows]
    return Grounds(info, stated, None, allow)


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("allow", [False, True])
def test_which_levels_are_used(level: int, allow: bool) -> None:
    why = grounds([("cancel", level, 1)], allow).refusal("cancel")
    assert (why is None) == (level == 0 or (allow and level < 3))
    if why is not None:
        assert f"cancel is C{level} on {SUBJECT}" in why
        assert ("allow_unverified" in why) == (level < 3)


MANIFEST = {"parallelism": {"mode": "tensor"}, "allowed": {"profiles": [1, 4, 8]}}
ONE_CHIP = {**MANIFEST, "parallelism": {"mode": "none"}}


def test_a_batch_profile_needs_its_level() -> None:
    judge = grounds([("decode_b8", 3, 1), ("batch", 0, 8)])
    assert judge.profiles("p", ONE_CHIP, []) == [1, 4]  # what may be used
    assert judge.profiles("p", ONE_CHIP, [4]) == [4]
    with pytest.raises(calrt.UnsupportedError, match=f"decode_b8 is C3 on {SUBJECT}"):
        judge.profiles("p", ONE_CHIP, [1, 8])
    assert grounds([("batch", 1, 8)]).profiles("p", ONE_CHIP, []) == [1]
    assert grounds([("batch", 1, 8)], allow=True).profiles("p", ONE_CHIP, []) == []
    with pytest.raises(calrt.UnsupportedError, match="decode_b1 is C4"):
        grounds([(f"decode_b{batch}", 4, 1) for batch in (1, 4, 8)], allow=True).profiles("p", ONE_CHIP, [])


@pytest.mark.parametrize(
    ("capability", "options", "manifest"),
    [
        ("parallel_tensor", {}, MANIFEST),
        ("lanes", {"lanes": 2}, ONE_CHIP),
        ("compute_bf16", {"compute": "bf16"}, ONE_CHIP),
        ("kv_f32", {"kv_dtype": "f32"}, ONE_CHIP),
        ("logits_f32", {"logits_dtype": "f32"}, ONE_CHIP),
        ("n_valid", {}, ONE_CHIP),
        ("logit_rows", {}, ONE_CHIP),
    ],
)
def test_what_a_load_asks_for_needs_its_level(capability: str, options: object, manifest: object) -> None:
    with pytest.raises(calrt.UnsupportedError, match=f"{capability} is C1 on {SUBJECT}"):
        grounds([(capability, 1, 1)]).check_request("p", manifest, options)  # type: ignore[arg-type]
    grounds([(capability, 1, 1)], True).check_request("p", manifest, options)  # type: ignore[arg-type]


def test_what_the_device_has_not_needs_no_level_to_run() -> None:
    grounds([("logit_rows", 3, 0)]).check_request("p", ONE_CHIP, {})


def test_what_a_load_chose_needs_its_level(library: Path, package: Path, tmp_path: Path) -> None:
    rows: list[Row] = [("lane_map_any", 1, 1)]
    driver = build(tmp_path / "maps", rows)
    with calrt.open(str(driver)) as device, pytest.raises(calrt.UnsupportedError, match="lane_map_any is C1"):
        device.load(package)
    with calrt.open(str(driver), allow_unverified=True) as device, device.load(package) as model:
        assert {graph.lane_map for graph in model.graphs.values()} == {"any"}


# ---- what evidence raises -----------------------------------------------------------------------


def test_evidence_raises_c1_and_c2_and_never_c3_and_c4(
    library: Path, package: Path, evidence_dir: Path
) -> None:
    evidence = recorded(library, package, checks(*ALL))
    evidence.write(evidence_dir / "run.json")
    assert evidence.subject == SUBJECT
    with calrt.open(str(library)) as device:
        assert [levels(device, package)[name] for name in ALL] == [0, 0, 0, 3, 4]
        proven = next(cap for cap in device.caps_for(calrt.Package.open(str(package))) if cap.name == "trace")
        assert all(word in proven.source for word in ("TRACE-01", "run.json", "stated C2"))
        assert {cap.level for cap in device.caps if cap.name in ("cancel", "trace")} == {1, 2}
        with pytest.raises(calrt.UnsupportedError, match="trace is C2"):
            device.trace()
        with device.load(package, lanes=1), device.trace():
            assert next(cap for cap in device.caps if cap.name == "trace").level == 0
        with pytest.raises(calrt.UnsupportedError, match="trace is C2"):  # the package is gone
            device.trace()


def test_evidence_lets_the_native_runtime_cancel(library: Path, package: Path, evidence_dir: Path) -> None:
    recorded(library, package, checks("cancel")).write(evidence_dir / "run.json")
    ask_cancel(library, package, allow=False)


@pytest.mark.parametrize(
    "component", ["driver_sha256", "runtime", "package_sha256", "device_class", "device_id"]
)
def test_evidence_of_anything_else_raises_nothing(
    component: str, library: Path, package: Path, tmp_path: Path
) -> None:
    evidence = recorded(library, package, checks(*ALL))
    other = "0" * 64 if component.endswith("sha256") else "another"
    changed = replace(evidence, identity=replace(evidence.identity, **{component: other}))
    for name, written, level in (("same", evidence, 0), ("changed", changed, 2)):
        written.write(tmp_path / f"{name}.json")
        with calrt.open(str(library), evidence=tmp_path / f"{name}.json") as device:
            assert levels(device, package)["trace"] == level, name


def test_a_rebuilt_driver_is_another_one(package: Path, tmp_path: Path) -> None:
    library = build(tmp_path / "driver", ROWS)
    path = tmp_path / "run.json"
    recorded(library, package, checks("trace")).write(path)
    with calrt.open(str(library), evidence=path) as device:
        assert levels(device, package)["trace"] == 0
        changed = build(tmp_path / "changed", ROWS, note="one more byte")
        os.replace(changed, library)
        assert levels(device, package)["trace"] == 2
        library.unlink()
        assert levels(device, package)["trace"] == 2  # what cannot be read proves nothing


def test_a_changed_package_is_another_one(library: Path, package: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    recorded(library, package, checks("trace")).write(path)
    other = tmp_path / "other"
    build_preset("bare", driver="null", folder=other, weights=False)
    with calrt.open(str(library), evidence=path) as device:
        assert (levels(device, package)["trace"], levels(device, other)["trace"]) == (0, 2)
        with device.load(package, lanes=1), device.load(other, lanes=1):
            assert next(cap for cap in device.caps if cap.name == "trace").level == 2  # not for each of them


@pytest.mark.parametrize("verdict", ["fail", "known", "skip"])
def test_only_a_pass_raises(verdict: str, library: Path, package: Path, evidence_dir: Path) -> None:
    rows = checks("trace", verdict=verdict) + checks("cancel") + [("cancel", "JOB-09", verdict)]
    recorded(library, package, rows).write(evidence_dir / "run.json")
    with calrt.open(str(library)) as device:
        found = levels(device, package)
    assert (found["trace"], found["cancel"]) == (2, 0 if verdict == "skip" else 1)


def test_the_newest_evidence_counts(library: Path, package: Path, evidence_dir: Path) -> None:
    good = replace(recorded(library, package, checks("trace")), utc="2026-01-01T00:00:00+00:00")
    bad = recorded(library, package, checks("trace", verdict="fail"))
    good.write(evidence_dir / "z.json")
    with calrt.open(str(library)) as device:
        assert levels(device, package)["trace"] == 0
        bad.write(evidence_dir / "a.json")
        assert levels(device, package)["trace"] == 2
    replace(good, utc="2099-01-01T00:00:00+00:00").write(evidence_dir / "z.json")
    with calrt.open(str(library)) as device:
        assert levels(device, package)["trace"] == 0


def test_reopen_keeps_what_was_allowed(library: Path) -> None:
    device = calrt.open(str(library), allow_unverified=True).reopen()
    with device, device.trace():
        pass


def test_caps_says_which_evidence_it_does_not_go_by(
    library: Path, package: Path, evidence_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[list[str], dict[str, int]]:
        assert main(["caps", "-dev", str(library), *words]) == 0
        notes = capsys.readouterr().err.splitlines()
        assert main(["caps", "-dev", str(library), *words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [f"note: {note}" for note in found["notes"]] == notes
        return notes, {cap["name"]: cap["level"] for cap in found["caps"]}

    assert said()[0] == []
    evidence = recorded(library, package, checks("trace"))
    evidence.write(evidence_dir / "run.json")
    needs = f"note: 1 record of evidence is about {evidence.driver} with a package: -m PACKAGE takes it into"
    for words in ((), ("--evidence", str(evidence_dir / "run.json"))):
        notes, found = said(*words)
        assert [note.startswith(needs) for note in notes] == [True]
        assert found["trace"] == 2
    notes, found = said("-m", str(package))
    assert (notes, found["trace"]) == ([], 0)
    for name in ("mock", "other", "other"):
        replace(evidence, driver=name).write(evidence_dir / f"{name}-{len(os.listdir(evidence_dir))}.json")
    elsewhere = replace(evidence.identity, driver_sha256="0" * 64, device_id="x")
    replace(evidence, identity=elsewhere).write(evidence_dir / "elsewhere.json")
    replace(evidence, calrt="0.0.1").write(evidence_dir / "old.json")
    what = "build of the driver, device, version of calrt"
    assert said("-m", str(package))[0] == [
        "note: 3 records of evidence are about another driver: mock, other",
        f"note: 2 records of evidence are about another {what} than this",
    ]


# ---- files --------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(library: Path, package: Path, tmp_path: Path) -> None:
    evidence = recorded(library, package, checks("trace") + checks("cancel", verdict="fail"))
    evidence.write(tmp_path / "deep" / "run.json")
    found = Evidence.read(tmp_path / "deep" / "run.json")
    assert found == replace(evidence, source=str(tmp_path / "deep" / "run.json"))
    assert found.to_json()["schema"] == SCHEMA
    assert [(name, found.capabilities[name].verdict) for name in ("trace", "cancel")] == [
        ("trace", "pass"),
        ("cancel", "fail"),
    ]


def test_a_pipe_is_written_to_and_not_replaced(library: Path, package: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    recorded(library, package, checks("trace")).write(tmp_path / "pipe")
    found = json.loads(os.read(read, 1 << 16))
    os.close(read)
    assert found["schema"] == SCHEMA
    assert (tmp_path / "pipe").is_fifo()


@pytest.fixture
def document(library: Path, package: Path) -> dict[str, object]:
    return recorded(library, package, checks("trace")).to_json()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("schema", "calrt.evidence/2", "schema is 'calrt.evidence/2': 'calrt.evidence/1' is due"),
        ("utc", "yesterday", "utc is 'yesterday'"),
        ("runtime", 7, "runtime is 7: a string is due"),
        ("driver", {"name": "x", "version": "1"}, "driver.sha256 is missing"),
        ("package", {"name": "x", "sha256": "ab"}, "package.sha256 is 'ab'"),
        ("capabilities", {"trace": {"verdict": "perhaps", "rules": []}}, "capabilities.trace.verdict"),
        ("more", 1, "more is not a field"),
        ("calrt", None, "calrt is None"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    field: str, value: object, says: str, document: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**document, field: value}))
    with pytest.raises(ValueError, match="no file of evidence") as caught:
        Evidence.read(path)
    assert says in str(caught.value)
    with pytest.raises(calrt.InvalidArgumentError, match="evidence"):
        calrt.open("null", evidence=path)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_damaged_files_are_refused_where_named_and_left_out_where_found(
    data: bytes, evidence_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evidence_dir.mkdir()
    (evidence_dir / "bad.json").write_bytes(data)
    with pytest.raises(calrt.InvalidArgumentError, match=r"bad\.json"):
        collect(evidence_dir)
    with caplog.at_level(logging.WARNING, "calrt.evidence"):
        assert collect(None) == []
    assert "bad.json" in caplog.text


def test_a_folder_of_too_many_files_is_not_cut_off_in_silence(
    evidence_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calrt.evidence._MAX_FILES", 1)
    evidence_dir.mkdir()
    for name in ("a", "b"):
        (evidence_dir / f"{name}.json").write_text("{}")
    with pytest.raises(calrt.InvalidArgumentError, match=r"has 2 files, at most 1"):
        collect(evidence_dir)
    with caplog.at_level(logging.WARNING, "calrt.evidence"):
        collect(None)
    assert "has 2 files, at most 1" in caplog.text


def test_evidence_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match=r"evidence: .*nowhere does not exist"):
        calrt.open("null", evidence=tmp_path / "nowhere")
    with pytest.raises(calrt.InvalidArgumentError, match="evidence is 7"):
        calrt.open("null", evidence=7)  # type: ignore[arg-type]
    with pytest.raises(calrt.InvalidArgumentError, match="allow_unverified"):
        calrt.open("null", allow_unverified=1)  # type: ignore[arg-type]


def test_figures_of_hardware_come_from_its_runtime_alone(
    library: Path, package: Path, evidence_dir: Path
) -> None:
    assert hardware_figures() == {}
    evidence = recorded(library, package, checks("trace") + checks("cancel", verdict="skip"))
    replace(evidence, subject="mock:tiny").write(evidence_dir / "mock.json")
    assert hardware_figures() == {}
    evidence.write(evidence_dir / "run.json")
    assert hardware_figures() == {"trace": f"pass {evidence.utc[:10]}"}


def test_the_schema_in_the_docs_is_the_one_that_is_checked() -> None:
    path = Path(__file__).parent.parent / "docs" / "evidence-1.schema.json"
    assert json.loads(path.read_text()) == schema()


def test_what_the_kit_records_raises_a_level(package: Path, tmp_path: Path) -> None:
    rows: list[Row] = [("explicit_positions", 1, 1), ("completion_callback", 2, 1), ("reset", 4, 1)]
    library = build(tmp_path / "driver", rows)
    report = conformance.run(str(library), package=package)
    assert report.conforms, report.broken
    conformance.record(report).write(tmp_path / "run.json")
    with calrt.open(str(library)) as device:
        assert levels(device, package) == {name: level for name, level, _ in rows}
        with pytest.raises(calrt.UnsupportedError, match="explicit_positions is C1"):
            device.load(package)
    with calrt.open(str(library), evidence=tmp_path / "run.json") as device, device.load(package):
        assert levels(device, package) == {"explicit_positions": 0, "completion_callback": 0, "reset": 4}
