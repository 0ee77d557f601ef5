# SPDX-License-Identifier: Apache-2.0
"""`calrt report`: what is in it, what must never be, a device that hangs or dies, the command."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calrt
from calrt import report
from calrt.presets import build_preset
from calrt.report import Made, questions, records
from calrt.report.redact import Redactor, own_words
from calrt.report.replay import replay
from test_conformance_defects import driver
from test_server_recovery import wait_for

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/vendor-driver.md").read_text(encoding="utf-8")
PROMPT = "the planted prompt"

pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device and evidence of this test's own."""
    monkeypatch.setenv("CALRT_LOCK_DIR", str(tmp_path))
    monkeypatch.setenv("CALRT_EVIDENCE", str(tmp_path / "evidence"))
    monkeypatch.setenv("CALRT_STANDIN_VICES", "")
    monkeypatch.delenv("CALRT_LAYERS", raising=False)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> str:
    """calrt076 on the stand-in for its SDK."""
    path = driver("calrt076")
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(Path(path).parent))
    return path


def made(tmp_path: Path, spec: str = "mock", **options: Any) -> tuple[Made, dict[str, bytes]]:
    """A report, and its files."""
    output = tmp_path / "report.zip"
    found = report.make(spec, output=output, **options)
    return found, files_of(output)


def files_of(output: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(output) as bundle:
        return {name.removeprefix("calrt-report/"): bundle.read(name) for name in bundle.namelist()}


def tree(files: dict[str, bytes], name: str) -> Any:
    return json.loads(files[name])


# ---- what is in it -------------------------------------------------------------------------------


def test_it_has_what_a_vendor_needs(adapter: str, tmp_path: Path) -> None:
    steps: list[str] = []
    found, files = made(tmp_path, "calrt076", package="preset:tiny", progress=steps.append)
    assert found.ok
    assert set(files) == {
        "README.txt",
        "device.json",
        "driver-output.txt",
        "environment.json",
        "jobs.json",
        "log.txt",
        "open-questions.json",
        "report.json",
        "run/record.jsonl",
        "run/trace.json",
        "status-table.json",
        "versions.json",
    }
    assert tree(files, "report.json")["files"] == sorted(set(files) - {"report.json"})
    assert {step.split()[0] for step in steps} >= {
        "open",
        "ask",
        "load",
        "run",
        "counters",
        "close",
        "writing",
    }
    versions = tree(files, "versions.json")
    assert versions["calrt"] == calrt.__version__
    assert re.fullmatch(r"\d+\.\d+", versions["driver_abi"])
    assert all(versions[name] for name in ("python", "kernel", "cpu", "machine", "driver_speaks_abi"))
    device = tree(files, "device.json")
    assert device["info"]["runtime"] == "0.7.6-standin"
    assert len(device["info"]["library_sha256"]) == 64
    assert {cap["name"]: cap["level"] for cap in device["caps"]}["sdk.wait"] == 1
    assert all(cap["source"] for cap in device["caps"])
    assert len(re.findall(r"^native = ", device["status_map"], re.MULTILINE)) == 30
    assert [row["code"] for row in tree(files, "status-table.json")] == list(range(30))
    assert [len(device["run"]["requests"]), device["package"]["graphs"]["decode_b1"]["batch"]] == [4, 1]
    jobs = tree(files, "jobs.json")
    assert 0 < len(jobs["jobs"]) <= 32
    assert {job["state"] for job in jobs["jobs"]} == {"done"}
    assert jobs["calls"]["submit"]["calls"] >= len(jobs["jobs"])
    assert device["counters"]
    names = {event["name"] for event in tree(files, "run/trace.json")}
    assert {"submit", "decode_b1"} <= names
    assert "--replay" in files["README.txt"].decode()


def test_recorded_evidence_of_this_driver_is_in_it(adapter: str, tmp_path: Path) -> None:
    from calrt import conformance

    package = build_preset("tiny", driver="calrt076")
    kit = conformance.run(adapter, package=package, only=["JOB"])
    conformance.record(kit).write(tmp_path / "evidence/run.json")
    conformance.record(conformance.run("mock", only=["ENTRY"])).write(tmp_path / "evidence/other.json")
    _, files = made(tmp_path, "calrt076", package="preset:tiny")
    device = tree(files, "device.json")
    assert [row["driver"]["name"] for row in device["evidence"]] == ["calrt076"]
    assert {cap["name"]: cap["level"] for cap in device["caps"]}["completion_callback"] == 0


def test_without_a_package_nothing_is_run(tmp_path: Path) -> None:
    found, files = made(tmp_path)
    assert found.ok
    assert "run" not in tree(files, "device.json")
    assert "submit" not in tree(files, "jobs.json")["calls"]
    with pytest.raises(ValueError, match="no run is in it: no package was given"):
        replay(tmp_path / "report.zip")


# ---- what must never be in it --------------------------------------------------------------------

PLANTED = {
    "host": "zq-planted-host",
    "user": "zqplanteduser",
    "secret": "zq/Planted+Secret=41",
    "folder": "zqPlantedFolder",
    "foreign": "zqForeignPerson",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that is full of what must not be told, and a device that tells it. A folder on it."""
    folder = tmp_path / PLANTED["folder"]
    folder.mkdir()
    monkeypatch.setattr(socket, "gethostname", lambda: f"{PLANTED['host']}.example.org")
    monkeypatch.setenv("USER", PLANTED["user"])
    monkeypatch.setenv("SITE_DEPLOY", PLANTED["secret"])
    monkeypatch.setenv("CALRT_CACHE", str(folder / "cache"))
    said = (
        f"on {PLANTED['host']} by {PLANTED['user']}, {PLANTED['secret']}, {folder}/x.bin, "
        f"see /home/{PLANTED['foreign']}/log.txt, mail {PLANTED['foreign']}@example.org"
    )
    monkeypatch.setenv("CALRT_LAYERS", f'fault:device_health status=INTERNAL message="{said}"')
    return folder


@pytest.fixture
def recorded(planted: Path) -> tuple[Path, list[bytes]]:
    """A record of somebody's prompt, and what of the prompt could be found in it."""
    file = planted / "somebody.jsonl"
    ids = use(file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    items = [item for row in rows for item in row.get("inputs", []) + row.get("outputs", [])]
    content = [item[name].encode() for item in items for name in ("hex", "sha256") if item.get(name)]
    content += [row["key"].encode() for row in rows if "key" in row]
    assert len(content) > 20
    whole = b"".join(id.to_bytes(4, "little") for id in ids)
    assert any(whole.hex() in row for row in file.read_text().splitlines())
    return file, [*content, whole.hex().encode()]


def use(record: Path) -> list[int]:
    """Records a use of somebody's; the prompt's tokens."""
    with (
        calrt.open("mock", layers=f"record:{record} wait_ms=0") as device,
        device.load("preset:tiny") as model,
    ):
        model.generate(PROMPT, max_tokens=4, temperature=0)
        return list(model.tokenizer.encode(PROMPT))


def found_in(files: dict[str, bytes], words: list[bytes]) -> set[tuple[str, bytes]]:
    return {(name, word) for name, data in files.items() for word in words if word in data}


def test_no_byte_of_it_tells_who_where_or_what(
    planted: Path, recorded: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, content = recorded
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / f"{PLANTED['foreign']}.json").write_text("damaged: the log names it")
    run = report._on_device
    printed = f"see /home/{PLANTED['foreign']}/core"
    monkeypatch.setattr(report, "_on_device", lambda *task: (run(*task)[0], printed))
    package = build_preset("tiny", driver="mock", device_class="mock-tiny", folder=planted / "package")
    found, files = made(tmp_path, package=package, records=[record])
    words = [*(word.encode() for word in PLANTED.values()), str(tmp_path).encode(), str(Path.home()).encode()]
    assert found_in(files, words) == set()
    assert found_in({"records": files["records/1.jsonl"]}, content) == set()
    assert found_in(files, [content[-1]]) == set()
    assert not [name for name in files if b"/home/" in files[name] or b"SITE_DEPLOY" in files[name]]
    assert files["driver-output.txt"] == b"see <path>"
    assert b"evidence is left out: <path>" in files["log.txt"]
    environment = tree(files, "environment.json")
    assert environment["CALRT_CACHE"] == "<path>"
    text = json.dumps(tree(files, "device.json"))
    marks = ("<host>", "<user>", "<value>", "<path>", "<mail>")
    assert [mark for mark in marks if mark not in text] == []  # it was said
    shown = json.dumps([vars(found)])  # to the one who made it, as it was said
    assert PLANTED["host"] in shown
    assert "<host>" not in shown


def test_the_net_below_finds_what_came_through(
    planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Redactor, "text", lambda self, text: text)
    monkeypatch.setattr(Redactor, "tree", lambda self, value: value)
    with pytest.raises(ValueError, match=r"not written: \S+ would tell <host>, .* of this machine"):
        made(tmp_path)
    assert not (tmp_path / "report.zip").exists()
    monkeypatch.setattr(Redactor, "leaks", lambda self, data: [])
    _, files = made(tmp_path)
    words = [PLANTED[name].encode() for name in PLANTED]
    assert {word for _, word in found_in(files, words)} == set(words)  # so the test above can fail


def test_data_is_sent_where_it_was_asked_for(
    planted: Path, recorded: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    record, content = recorded
    _, files = made(tmp_path, records=[record], with_data=True)
    assert len(found_in({"records": files["records/1.jsonl"]}, content)) == len(set(content))
    assert found_in(files, [PLANTED["folder"].encode()]) == set()


def test_the_run_has_no_data_unless_it_was_asked_for(tmp_path: Path) -> None:
    _, without = made(tmp_path, package="preset:tiny")
    assert b'"hex"' not in without["run/record.jsonl"]
    _, with_data = made(tmp_path, package="preset:tiny", with_data=True)
    assert b'"hex"' in with_data["run/record.jsonl"]


@pytest.mark.parametrize(
    ("text", "is_due"),
    [
        ("cannot open /srv/a/b.bin: no", "cannot open <path>: no"),
        ("isolate:/opt/v/libcald_v.so:0", "isolate:<path>:0"),
        ("file '/srv/my files/x y' is gone", "file '<path>' is gone"),
        ("~/models/x", "<path>"),
        ("at 10.1.2.3, fe:ed:00:11:22:33", "at <address>, <address>"),
        ("see https://intern.example/x?y=1 now", "see <address> now"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer <secret>"),
        ("api_key=abc", "api_key=<secret>"),
        ("hf_abcdefgh12345678", "<secret>"),
        ("a.b@c.example", "<mail>"),
        ("placement=chips:0+1, 3 us/job, 1/2, and/or 127.0.0.1", None),
        ("token 5 of job 7 in lane 3", None),
    ],
)
def test_what_looks_like_it_is_taken_out(text: str, is_due: str | None) -> None:
    assert Redactor({}).text(text) == (text if is_due is None else is_due)


def test_a_secret_may_be_a_plain_word() -> None:
    assert Redactor({"SITE_PASSWORD": "hunter"}).text("it is hunter") == "it is <value>"
    assert Redactor({"SITE_SHELL": "hunter"}).text("it is hunter") == "it is hunter"


def test_versions_are_no_addresses() -> None:
    about = {"runtime": "1.2.3.4", "note": "1.2.3.4"}
    assert Redactor({}).tree(about) == {"runtime": "1.2.3.4", "note": "<address>"}


def test_a_record_that_is_too_long_says_that_it_was_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(tmp_path / "run.jsonl")
    monkeypatch.setattr(records, "_MOST_LINES", 10)
    _, files = made(tmp_path, records=[tmp_path / "run.jsonl"])
    lines = files["records/1.jsonl"].decode().splitlines()
    assert [len(lines), json.loads(lines[-1])] == [11, {"cut": "after 10 lines"}]
    monkeypatch.setattr(report, "_MOST_RECORD", 100)
    _, files = made(tmp_path, records=[tmp_path / "run.jsonl"])
    assert files["records/1.jsonl"].decode().splitlines()[-1] == '{"cut": "after 0 MiB"}'


def test_a_path_below_one_of_this_machine_is_one_path(tmp_path: Path) -> None:
    redactor = Redactor({"SITE": "/srv/home"})
    for text, is_due in (
        ("sought in /srv/home/a/b, /srv/home/c", "sought in <path>, <path>"),
        ("/srv/home/a:/srv/home:/opt/b", "<path>:<path>:<path>"),
        ("'/srv/home/my files/x y' is gone", "'<path>' is gone"),
    ):
        assert redactor.text(text) == is_due


@given(
    st.text(max_size=30),
    st.text(max_size=30),
    st.text(st.characters(codec="utf-8", exclude_characters="\0:"), min_size=6, max_size=40),
)
def test_no_value_of_the_environment_comes_through(before: str, after: str, value: str) -> None:
    redactor = Redactor({"ANY": value})
    shown = redactor.text(before + value + after)
    if not re.fullmatch(r"[0-9.]+|[a-z]{1,10}", value) and value.lower() not in own_words():
        assert value not in shown or value in "<path><value><secret><user><host><mail><address>"


def test_long_texts_take_no_time() -> None:
    for text in ("a" * 300_000, "a/" * 100_000, "a.b-" * 100_000, "0123456789abcdef" * 20_000, "@" * 100_000):
        Redactor({}).text(text)  # a pattern that is tried anew from each letter would take minutes


# ---- a device that fails, hangs or dies ----------------------------------------------------------


def test_a_driver_that_hangs_gives_a_report_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALRT_LAYERS", "fault:submit delay_ms=60000 nth=5")
    found, files = made(tmp_path, package="preset:tiny", timeout=2, with_data=True)
    assert found.device == "the driver did not come back within 2 s: run 1 of 4"
    assert not found.ok
    assert tree(files, "device.json")["ended"] == found.device
    assert tree(files, "jobs.json")["jobs"][-1]["state"] == "done"  # what it did until then
    assert tree(files, "run/trace.json")
    again = replay(tmp_path / "report.zip")
    assert [row["verdict"] for row in again.requests] == ["it comes back, and did not when it was recorded"]


def test_a_job_that_never_ends_never_ends_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALRT_LAYERS", "fault:completion drop nth=5")
    found, _ = made(tmp_path, package="preset:tiny", timeout=2, with_data=True)
    assert found.device == "the driver did not come back within 2 s: run 1 of 4"
    monkeypatch.delenv("CALRT_LAYERS")
    again = replay(tmp_path / "report.zip")
    assert again.same, again.why
    assert again.requests[0]["verdict"] == "the same: it does not come back"


def test_a_driver_that_dies_gives_a_report_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = f"{driver('deadly')}:0"
    monkeypatch.setenv("CALRT_DEADLY", "device_caps abort 1")
    found, files = made(tmp_path, spec)
    assert found.device == "the process of the driver ended, SIGABRT: ask"
    assert tree(files, "device.json")["steps"][0]["step"] == "open"
    monkeypatch.setenv("CALRT_DEADLY", "load abort 1")
    found, files = made(tmp_path, spec)
    assert found.device == "the process of the driver ended, SIGABRT: open"
    assert tree(files, "device.json")["steps"] == []


def test_a_hung_driver_is_not_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALRT_LAYERS", "fault:submit delay_ms=60000 nth=5")
    code = "from calrt import report; report.make('mock', package='preset:tiny', output='r.zip')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as process:
        wait_for(lambda: any(works(child) for child in children(process.pid)))
        (child,) = children(process.pid)
        process.kill()
    wait_for(lambda: not works(child))


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def works(process: int) -> bool:
    """Whether it lives; one that has ended and was not waited for has no command line."""
    try:
        return b"calrt.report.child" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("vice", "says"),
    [
        ("abort@9:infer", "run: .*request 2 failed: .*killed by signal 6"),
        ("run_fails@9:20", "run: .*request 2 failed: "),
        ("call_answers:load_model=13", "load: "),
    ],
)
def test_what_fails_on_the_adapter_is_told_and_fails_again_on_mock(
    adapter: str, vice: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    found, files = made(tmp_path, "calrt076", package="preset:tiny", with_data=True)
    assert re.match(says, found.device), found.device
    assert found.errors
    if found.device.startswith("load"):
        with pytest.raises(ValueError, match="no run is in it: load failed"):
            replay(tmp_path / "report.zip")
        assert tree(files, "jobs.json")["errors"][0]["entry"] == "model_load"
        return
    monkeypatch.setenv("CALRT_STANDIN_VICES", "")
    again = replay(tmp_path / "report.zip")
    assert again.same, (again.why, again.requests, again.told)
    assert [("error" in row) for row in again.requests] == [False, True]


def test_a_driver_that_is_not_there_is_told(tmp_path: Path) -> None:
    found, _ = made(tmp_path, "nowhere")
    assert found.device.startswith("open: INVALID_ARGUMENT: there is no driver 'nowhere'")


# ---- the questions -------------------------------------------------------------------------------


def test_page_and_reports_take_the_questions_from_one_file(tmp_path: Path) -> None:
    assert questions.page_table() in PAGE
    assert questions.page_list() in PAGE
    entries = re.findall(
        r"^CALD_ENTRY\((\w+),",
        (ROOT / "csrc/calrt/include/calrt/driver_entries.inc").read_text(),
        re.MULTILINE,
    )
    assert sorted(row["entry"] for row in questions.of_entries()) == sorted(entries)
    _, files = made(tmp_path, package="preset:tiny")
    asked = tree(files, "open-questions.json")
    due = [row["ask"] for row in questions.of_entries() if row["ask"]]
    assert [row["ask"] for row in asked] == due + [row["ask"] for row in questions.general()]
    seen = {row["about"]: row.get("seen") for row in asked}
    assert seen["submit"]["calls"] == tree(files, "jobs.json")["calls"]["submit"]["calls"] > 4
    assert seen["submit"]["longest_ns"] > 0
    assert seen["trace_start"]["failed"] == 0


def test_a_report_is_the_same_bytes_for_the_same_contents() -> None:
    contents = {"b": b"2", "a": b"1"}
    assert hashlib.sha256(report._zip(contents)).digest() == hashlib.sha256(report._zip(contents)).digest()
