# SPDX-License-Identifier: Apache-2.0
"""`calrt report` given files that were made to hurt, ended in the middle, or of an odd user."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

import calrt
from calrt.report import records
from calrt.report import replay as replaying
from calrt.report.redact import Redactor
from calrt.report.replay import replay
from test_report import files_of, made, own

__all__ = ["own"]  # a fixture

pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")

DEVICE, RECORD = "calrt-report/device.json", "calrt-report/run/record.jsonl"


def bundle_of(path: Path, device: str, method: int = zipfile.ZIP_DEFLATED) -> bytearray:
    """A zip that looks like a report; its bytes."""
    with zipfile.ZipFile(path, "w", method) as bundle:
        bundle.writestr(DEVICE, device)
        bundle.writestr(RECORD, '{"format": "calrt-record"}\n' * 100)
    return bytearray(path.read_bytes())


# ---- a replay ------------------------------------------------------------------------------------


def test_a_zip_of_damaged_data_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "r.zip"
    data = bundle_of(path, '{"run": 1}' * 20)
    data[30 + len(DEVICE)] = 0x07  # a block of a kind that deflate has not
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"r.zip is no report of calrt: Error -3"):
        replay(path)


def test_a_zip_that_wants_a_password_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "r.zip"
    data = bundle_of(path, "{}")
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"is no report of calrt: .* is encrypted"):
        replay(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_of_another_method_is_refused(method: int, tmp_path: Path) -> None:
    bundle_of(tmp_path / "r.zip", "{}", method)
    with pytest.raises(ValueError, match=f"is packed by method {method}"):
        replay(tmp_path / "r.zip")


@pytest.mark.parametrize(("name", "most"), [(DEVICE, "_MOST_DEVICE"), (RECORD, "_MOST_RECORD")])
def test_a_zip_that_swells_is_refused_by_its_numbers(
    name: str, most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {DEVICE: 2000, RECORD: 2700}[name]
    bundle_of(tmp_path / "r.zip", " " * 2000)
    monkeypatch.setattr(replaying, most, size - 1)
    with pytest.raises(ValueError, match=f"{name} has {size} bytes unpacked, {size - 1} at most are due"):
        replay(tmp_path / "r.zip")


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_what_has_no_end_is_no_report_and_no_record(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="a regular file is due"):
        replay(tmp_path / path)
    with pytest.raises(OSError, match="a regular file is due"):
        made(tmp_path, records=[tmp_path / path])


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["run"]["requests"].append("x"),
        lambda found: found["run"]["requests"][0].pop("tokens_sha256"),
        lambda found: found["run"]["requests"][0].update(error="x"),
        lambda found: found["run"].update(seed=None),
        lambda found: found["run"].update(requests={"a": 1}),
        lambda found: found["package"]["graphs"]["prefill_b1"].pop("outputs"),
        lambda found: found["package"]["graphs"].update(prefill_b1=3),
    ],
)
def test_a_run_of_another_shape_is_refused_by_name(damage: Any, tmp_path: Path) -> None:
    made(tmp_path, package="preset:tiny")
    files = files_of(tmp_path / "report.zip")
    device = json.loads(files["device.json"])
    name = next(name for name in device["package"]["graphs"] if name.startswith("prefill"))
    device["package"]["graphs"]["prefill_b1"] = device["package"]["graphs"].pop(name)
    damage(device)
    with zipfile.ZipFile(tmp_path / "r.zip", "w") as bundle:
        bundle.writestr(DEVICE, json.dumps(device))
        bundle.writestr(RECORD, files["run/record.jsonl"])
    with pytest.raises(ValueError, match=r"device.json lacks what a replay needs"):
        replay(tmp_path / "r.zip")


def test_a_report_that_does_not_say_why_it_has_no_run(tmp_path: Path) -> None:
    bundle_of(tmp_path / "r.zip", '{"steps": 3}')
    with pytest.raises(ValueError, match=r"no run is in it: .* does not say why"):
        replay(tmp_path / "r.zip")


# ---- records -------------------------------------------------------------------------------------


def test_a_line_without_end_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "r.jsonl"
    record.write_text('{"format": "calrt-record"}\n{"job": 1}\n{"a": "' + "x" * 4096 + '"}\n{"job": 2}\n')
    monkeypatch.setattr(records, "_MOST_LINE", 1024)
    rows = list(records.read_lines(record))
    assert rows[1:] == [{"job": 1}, {"cut": "line 3 has more than 0 MiB"}]
    record.write_bytes(b"\0" * 4096)
    with pytest.raises(ValueError, match="is no file of the record layer"):
        list(records.read_lines(record))


# ---- what must not be told -----------------------------------------------------------------------

TOLD = [
    ("HF_TOKEN=abcdefgh123 is set", "HF_TOKEN=<secret> is set"),
    ('{"client_secret": "hun ter2"}', '{"client_secret": <secret>}'),
    (r"{\"password\": \"hun ter2\"}", r"{\"password\": <secret>}"),
    ("PGPASSWORD='a b' SECRET_KEY=abc", "PGPASSWORD=<secret> SECRET_KEY=<secret>"),
    ("run --api-key abc123 --n 3", "run --api-key <secret> --n 3"),
    ("Authorization: Digest username=joe, nonce=3", "Authorization: <secret>"),
    ("github_pat_11ABCDEFG0123456789 AKIAIOSFODNN7EXAMPLE", "<secret> <secret>"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "<secret>"),
    ("-----BEGIN PRIVATE KEY-----\nMIIabc", "<secret>"),
    ("jdbc:mysql://root:pw@h/db", "jdbc:<address>"),
    ("from fe80::1ff:fe23:4567:890a.", "from <address>."),
    ("[2001:db8::7334]:80", "[<address>]:80"),
    ("1:2:3:4:5:6:7:dead", "<address>"),
    (r"\\server\share\joe", "<path>"),
]
KEPT = [
    "std::vector::size",
    "ab::cd",
    "calrt::kv::Lane",
    "at 12:34:56",
    "::1",
    "131 tokens: 4 of 8",
    "0x1f::a",
]


@pytest.mark.parametrize(("text", "left"), TOLD)
def test_secrets_and_addresses_of_any_shape_are_taken_out(text: str, left: str) -> None:
    assert Redactor({}).text(text) == left


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_it_is_kept(text: str) -> None:
    assert Redactor({}).text(text) == text


def test_the_domain_of_this_machine_is_told_of_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "zqhost17.zqlab.example.org")
    assert Redactor({}).text("zqhost18.zqlab.example.org is down") == "zqhost18.<host> is down"
    monkeypatch.setattr("socket.gethostname", lambda: "zqhost17.local")
    assert Redactor({}).text("local memory of zqhost17") == "local memory of <host>"


@pytest.mark.parametrize("name", ["vendor", "device", "run", "steps"])
def test_a_user_with_a_name_that_each_report_has_gets_one(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("USER", "LOGNAME"):
        monkeypatch.setenv(variable, name)
    monkeypatch.setenv("SITE", "Perfetto")  # a word of README.txt
    found, files = made(tmp_path, package="preset:tiny")
    assert found.ok
    assert {"run", "steps", "package"} <= set(json.loads(files["device.json"]))
    assert replay(tmp_path / "report.zip").same
