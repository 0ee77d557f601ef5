# SPDX-License-Identifier: Apache-2.0
"""What must not be done, as refusals: each test holds one sentence of the list of "do not".

Who tries gets an error that says why, or finds that it changes nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import calrt
import calrt.privileged
from calrt import _core
from calrt.presets import PRESETS, build_preset
from calrt.serve.routes import MISSING, ROUTES
from leveled_driver import build
from package_bench import Bench, build_standin
from test_conformance_defects import driver
from test_evidence import checks, levels, recorded
from test_privileged import module_imports, modules_of, reachable
from test_server_process import Process

ROOT = Path(__file__).resolve().parent.parent
NEEDS_MOCK = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """calrt076 on the stand-in for its SDK; the device is this test's own."""
    path = driver("calrt076")
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(Path(path).parent))
    monkeypatch.setenv("CALRT_STANDIN_VICES", "")
    monkeypatch.setenv("CALRT_LOCK_DIR", str(tmp_path))
    return path


# ---- "Do not delete Wait() to get concurrency" ---------------------------------------------------


@NEEDS_MOCK
def test_what_was_not_waited_for_has_no_outputs_and_keeps_its_buffers() -> None:
    with (
        calrt.open("mock", layers="fault:completion hold") as device,
        device.load("preset:tiny") as model,
        model.kv.reserve(8) as lane,
    ):
        decode = model.graphs["decode_b1"]
        with decode.context(slots=1, lanes=[lane]) as context:
            context[0].inputs["tokens"].numpy()[:] = 1
            job = context[0].submit(deadline=60)
            with pytest.raises(calrt.StateError, match=r"has not ended: wait\(\) or await it"):
                _ = job.outputs
            with pytest.raises(calrt.StateError):  # nor is its set another job's
                context[0].submit()
            with pytest.raises(calrt.StateError):  # nor its lane
                decode.submit(tokens=[1], positions=[0], lanes=[lane])
            job.cancel()
            with pytest.raises(calrt.CancelledJobError):
                job.wait(60)


@NEEDS_MOCK
def test_two_in_flight_are_refused_without_a_record_of_a_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_EVIDENCE", str(tmp_path / "none"))
    with (
        calrt.open("mock", layers="fault:device_info depth=2") as device,
        pytest.raises(calrt.UnsupportedError, match="no record shows equal outputs and a gain"),
    ):
        device.load("preset:tiny", in_flight=2)


@NEEDS_MOCK
def test_one_job_is_in_flight_at_a_time_unless_evidence_allows_more(tmp_path: Path) -> None:
    from calrt.workload import plan, run

    file = tmp_path / "run.jsonl"
    layers = f"record:{file} data=0;fault:device_info depth=2"
    with calrt.open("mock", layers=layers) as device, device.load("preset:tiny") as model:
        assert device.info.depth == 2  # the device could
        outcome = run(model, plan(model, 12, seed=3, max_tokens=16))
        assert outcome.balanced, outcome.imbalances
    assert most_in_flight(file) == 1


@NEEDS_MOCK
def test_that_measure_sees_two_jobs(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    submit_two(f"record:{file} data=0;fault:completion delay_ms=50")
    assert most_in_flight(file) == 2


def submit_two(layers: str) -> None:
    """Two jobs at once. The record is whole when all that came of the device is gone."""
    with (
        calrt.open("mock", layers=layers) as device,
        device.load("preset:tiny") as model,
        model.kv.reserve(8) as one,
        model.kv.reserve(8) as other,
    ):
        decode = model.graphs["decode_b1"]
        jobs = [decode.submit(tokens=[1], positions=[0], lanes=[lane]) for lane in (one, other)]
        assert [job.wait(60).state for job in jobs] == ["done", "done"]


def most_in_flight(record: Path) -> int:
    """Jobs submitted and not ended, at most. One that ended inside submit has its end before its line."""
    running: set[int] = set()
    ended: set[int] = set()
    most = 0
    for line in map(json.loads, record.read_text().splitlines()):
        if line.get("entry") == "submit" and line["status"] == 0:
            running |= {line["job"]} - ended
            most = max(most, len(running), 1)
        elif "job" in line and "state" in line:
            ended.add(line["job"])
            running.discard(line["job"])
    return most


# ---- "Do not pretend that a chip id makes a single-chip model of a dual-chip package" -----------


@NEEDS_MOCK
@pytest.mark.parametrize("chip", ["chip:0", "chip:1"])
def test_a_chip_id_makes_no_single_chip_model(chip: str) -> None:
    with calrt.open("mock:qwen3-30b-a3b") as device:
        with pytest.raises(calrt.UnsupportedError) as caught:
            device.load("preset:qwen3-30b-a3b", placement=chip)
        with pytest.raises(calrt.UnsupportedError, match="is C3"):
            device.footprint("preset:qwen3-30b-a3b", placement=chip)
    assert caught.value.code == calrt.Status.UNSUPPORTED
    for word in (f"placement={chip} not allowed", "2 chips", "C3", "vendor"):
        assert word in str(caught.value)


@pytest.mark.parametrize("allow", [False, True])
def test_nor_does_it_on_the_adapter(adapter: str, allow: bool) -> None:
    with calrt.open("calrt076", allow_unverified=allow) as device:
        with pytest.raises(calrt.UnsupportedError, match="of its 2 chips alone is C3" if allow else "is C1"):
            device.load("preset:tiny", placement="chip:0")
        assert device.info.sessions == 1


# ---- "Do not call aggregated software slots hardware batch" --------------------------------------


@NEEDS_MOCK
def test_slots_are_no_hardware_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "batch-1", replace(PRESETS["tiny"], profiles=(1,)))
    package = build_preset("batch-1", driver="mock", device_class="mock-tiny", folder=tmp_path / "package")
    arguments = ("-m", str(package), "-dev", "mock", "-np", "8", "-c", "2048")
    with Process(*arguments, CALRT_CACHE=str(tmp_path / "cache")) as server:
        with server.ready() as client:
            props = client.get("/props").json()
        assert "8 software slots" in server.log
    assert props["total_slots"] == props["calrt"]["software_slots"] == 8
    assert props["calrt"]["hardware_batch"] == 1


@NEEDS_MOCK
def test_a_package_of_one_lane_has_no_eight_slots(tmp_path: Path) -> None:
    arguments = ("-m", "preset:bare", "-dev", "mock:bare", "-np", "8", "-c", "4096")
    with Process(*arguments, CALRT_CACHE=str(tmp_path / "cache")) as server:
        assert server.wait(60) != 0
        assert "--parallel 8: this package allows 1 slots" in server.log


# ---- "Do not splice calbin files or edit the static address plan" --------------------------------


@pytest.fixture
def vendor(tmp_path: Path) -> Bench:
    """A directory of a vendor's files, as the baseline's."""
    return Bench(build_standin(tmp_path / "package"))


def refusal(bench: Bench) -> calrt.PackageError:
    bench.save()
    with pytest.raises(calrt.PackageError) as caught:
        _core.Package.open(str(bench.directory)).raise_if_rejected()
    return caught.value


def test_an_edited_address_plan_is_refused(vendor: Bench) -> None:
    path = vendor.file("address00")
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(data)
    error = refusal(vendor)
    assert error.code == calrt.Status.PACKAGE_CORRUPT  # the file is not what the manifest says it is
    assert "address00" in str(error) or path.name in str(error)


def test_addresses_that_do_not_fit_together_are_refused(vendor: Bench) -> None:
    group = vendor.manifest["kv"]["groups"][0]
    group["owner"] = "graph"
    group["base"] = [
        {"layer": layer, "kv": kv, "chip": 0, "address": "0x1000"}
        for layer in range(vendor.manifest["kv"]["layers"])
        for kv in (0, 1)
    ]
    assert refusal(vendor).code == calrt.Status.PACKAGE_REJECTED


def test_a_file_of_another_package_is_refused(vendor: Bench, tmp_path: Path) -> None:
    shutil.copy(vendor.file("params01"), vendor.file("params00"))  # of the same size and kind
    error = refusal(vendor)
    assert error.code == calrt.Status.PACKAGE_CORRUPT
    assert "sha256" in str(error).lower() or "SHA-256" in str(error)


def test_one_whose_manifest_was_made_to_agree_is_another_package(vendor: Bench) -> None:
    before = _core.Package.open(str(vendor.directory)).id
    path = vendor.file("address00")
    path.write_bytes(bytes(len(path.read_bytes())))
    vendor.pin("address00")
    vendor.save()
    assert _core.Package.open(str(vendor.directory)).id != before  # which nothing was recorded of


# ---- "Do not promise gains from historic TTFT", "do not treat an old branch as production" -------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver") / "leveled", [("trace", 1, 1)])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "tiny"
    return build_preset("tiny", driver="null", folder=folder, weights=False)


def level(library: Path, package: Path, evidence: Path) -> int:
    with calrt.open(str(library), evidence=evidence) as device:
        return levels(device, package)["trace"]


@pytest.mark.parametrize("part", ["driver_sha256", "package_sha256"])
def test_a_record_of_another_driver_or_package_promises_nothing(
    part: str, library: Path, package: Path, tmp_path: Path
) -> None:
    good = recorded(library, package, checks("trace"))
    file = tmp_path / "run.json"
    good.write(file)
    assert level(library, package, file) == 0
    replace(good, identity=replace(good.identity, **{part: "0" * 64})).write(file)
    assert level(library, package, file) == 1


@pytest.mark.parametrize("part", ["driver_sha256", "package_sha256", ""])
def test_a_comparison_of_another_driver_or_package_promises_nothing(
    part: str, library: Path, package: Path, tmp_path: Path
) -> None:
    gain = recorded(library, package, checks("in_flight_2"))
    file = tmp_path / "ab.json"
    other = {part: "0" * 64} if part else {}
    replace(gain, identity=replace(gain.identity, **other)).write(file)
    with calrt.open(str(library), evidence=file, allow_unverified=True) as device:
        if not part:
            device.load(package, in_flight=2).close()
            return
        with pytest.raises(calrt.UnsupportedError, match="no record shows equal outputs and a gain"):
            device.load(package, in_flight=2)


@pytest.mark.parametrize("old", ["calrt", "runtime"])
def test_a_record_of_another_branch_is_not_of_this_one(
    old: str, library: Path, package: Path, tmp_path: Path
) -> None:
    good = recorded(library, package, checks("trace"))
    file = tmp_path / "run.json"
    if old == "calrt":
        replace(good, calrt="0.0.1").write(file)
    else:
        replace(good, identity=replace(good.identity, runtime="CalRT 0.7.5")).write(file)
    assert level(library, package, file) == 1


# ---- "Do not infer multi-board support from a per-chip memory API" -------------------------------


def test_two_chips_with_memory_of_their_own_are_one_device(
    adapter: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from calrt.cli import main

    with calrt.open("calrt076") as device:
        chips = device.topology.chips
        assert len(chips) == 2
        assert device.info.memory_bytes == sum(chip.memory_bytes for chip in chips)
        assert "board" not in " ".join(f"{cap.name} {cap.source}" for cap in device.caps)
        assert device.topology.sessions == ((0, 1),)
    with pytest.raises(calrt.InvalidArgumentError, match=r"calrt076 has 1 device\(s\)"):
        calrt.open("calrt076:1")
    alone = tmp_path / "drivers"  # without the drivers that tests have, some of which are deadly
    alone.mkdir()
    for name in ("libcald_calrt076.so", "libcalrt_standin_sdk.so"):
        shutil.copy(Path(adapter).parent / name, alone)
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(alone))
    assert main(["devices", "--json"]) == 0
    listed = [row for row in json.loads(capsys.readouterr().out)["devices"] if row["device"] == "calrt076"]
    assert [row["chips"] for row in listed] == [2]
    with calrt.open("calrt076", allow_unverified=True) as device:
        package = build_preset("tiny", driver="calrt076")
        for placement in ("board:1", "chips:0+1+2+3"):
            with pytest.raises(calrt.UnsupportedError, match="placement="):
                device.load(package, placement=placement)


# ---- "Do not expose registers, device memory or reset to ordinary inference requests" -----------

DANGEROUS = ("register", "memory", "reset", "privileged", "firmware", "peek", "poke")


def test_no_route_reaches_the_privileged_plane() -> None:
    paths = " ".join(path for _, path in [*ROUTES, *MISSING])
    assert not [word for word in DANGEROUS if word in paths]
    assert "calrt.privileged" not in reachable(modules_of("calrt.serve"), module_imports)


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    pytest.importorskip("uvicorn")
    from fake_server import FakeServer

    with FakeServer() as server, httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/reset", "/v1/calrt/reset", "/registers/0", "/v1/calrt/memory?address=0"])
def test_a_request_for_it_finds_nothing(path: str, client: httpx.Client) -> None:
    assert {client.request(method, path).status_code for method in ("GET", "POST", "PUT", "DELETE")} <= {
        404,
        405,
    }
    asked = {"prompt": [1], "n_predict": 1, "reset": True, "registers": [0], "privileged": True}
    answer = client.post("/completion", json=asked)
    assert answer.status_code == 200
    assert not [word for word in DANGEROUS if word in json.dumps(list(answer.json()))]


def test_the_driver_abi_has_no_entry_for_it() -> None:
    entries = (ROOT / "csrc/calrt/include/calrt/driver_entries.inc").read_text()
    names = [
        line.split("(")[1].split(",")[0] for line in entries.splitlines() if line.startswith("CALD_ENTRY(")
    ]
    assert len(names) > 30
    assert not [name for name in names for word in DANGEROUS if word in name]


def test_the_plane_is_shut_on_the_device_that_serves(adapter: str) -> None:
    with calrt.open("calrt076") as device:
        plane = calrt.privileged.Plane(device)
        with pytest.raises(calrt.UnsupportedError, match="reset is C4"):
            plane.reset()
        with pytest.raises(calrt.UnsupportedError, match="device_memory is C4"):
            plane.read_memory(0, 0, 16)
