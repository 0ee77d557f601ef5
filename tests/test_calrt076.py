# SPDX-License-Identifier: Apache-2.0
"""calrt076, the adapter for CalRT 0.7.6, on the stand-in for its SDK: mock is the oracle.

Without the stand-in's vices, which test_calrt076_vices.py has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import calrt
from calrt import conformance
from calrt.cli import main
from calrt.presets import build_preset
from test_conformance_defects import driver

ROOT = Path(__file__).parent.parent
ADAPTER = ROOT / "csrc/drivers/calrt076"
PROMPTS = ([1, 2, 3], [7] * 20, list(range(5, 105)))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The adapter's library; its folder is in the path of drivers. Its device is this test's own."""
    path = driver("calrt076")
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(Path(path).parent))
    monkeypatch.setenv("CALRT_STANDIN_VICES", "")
    monkeypatch.setenv("CALRT_LOCK_DIR", str(tmp_path))
    return path


def mock_tokens(prompt: list[int]) -> list[int]:
    """What mock says in the adapter's geometry: BF16 logits, as the files of CalRT have them."""
    with calrt.open("mock:tiny") as device, device.load("preset:tiny", logits_dtype="bf16") as model:
        return list(model.generate(prompt, max_tokens=12, temperature=0))


@pytest.mark.parametrize("isolate", [False, True])
def test_tokens_are_those_of_mock(library: str, isolate: bool) -> None:
    with (
        calrt.open("calrt076", isolate=isolate, allow_unverified=True) as device,
        device.load("preset:tiny") as model,
    ):
        for prompt in PROMPTS:
            assert list(model.generate(prompt, max_tokens=12, temperature=0)) == mock_tokens(prompt)


def test_a_package_is_made_for_it(library: str) -> None:
    package = build_preset("tiny", driver="calrt076", device_class="vdev-2chip")
    assert package == build_preset("tiny", driver="calrt076")
    with (
        calrt.open("calrt076", isolate=False, allow_unverified=True) as device,
        device.load(package) as model,
    ):
        assert device.info.device_class == "vdev-2chip"
        assert model.info["logits_dtype"] == "bf16"


def test_caps_list_each_assumption_with_its_evidence(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["caps", "-dev", "calrt076"]) == 0
    shown = capsys.readouterr().out
    table = re.findall(r'\{"([a-z_.0-9]+)", ([0-4]), \d+,', (ADAPTER / "sdk_contact.cpp").read_text())
    assert len(table) > 10
    for name, level in table:
        assert re.search(rf"{re.escape(name)}\b.*C{level}", shown), name


def test_all_contact_with_the_sdk_is_in_one_small_place() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in ADAPTER.glob("sdk_contact.*"))
    assert 0 < lines <= 200
    including = {path.name for path in ADAPTER.iterdir() if "calculet/" in _code(path)}
    calling = {
        path.name for path in ADAPTER.iterdir() if re.search(r"\bcalrt_(?!vdev\b|model\b)\w+\(", _code(path))
    }
    assert including == {"sdk_contact.cpp"}
    assert calling == {"sdk_contact.cpp"}


def _code(path: Path) -> str:
    return path.read_text() if path.suffix in (".h", ".cpp") else ""


def test_every_error_number_of_the_sdk_has_a_row() -> None:
    rows = re.findall(r"^native = (\d+)$", (ADAPTER / "status-map.toml").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(range(30))


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_it_conforms(library: str, isolated: bool) -> None:
    report = conformance.run("isolate:calrt076" if isolated else library)
    assert report.conforms, report.broken


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is needed")
def test_an_sdk_elsewhere_gives_the_same_driver_to_install(library: str, tmp_path: Path) -> None:
    sdk, build = tmp_path / "sdk", tmp_path / "build"
    shutil.copytree(ROOT / "tests/standin_sdk/include", sdk / "include")
    (sdk / "lib").mkdir()
    shutil.copy(Path(library).parent / "libcalrt_standin_sdk.so", sdk / "lib")
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(build),
        f"-DCALRT_SDK_ROOT={sdk}",
        "-DCALRT_PYTHON=OFF",
        "-DCMAKE_BUILD_TYPE=Debug",  # which compiles in half the time
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, capture_output=True, timeout=300)
    target = ["cmake", "--build", str(build), "--target", "cald_calrt076"]
    subprocess.run(target, check=True, capture_output=True, timeout=1800)
    made = build / "drivers/libcald_calrt076.so"
    assert "libcald_calrt076.so" in (build / "csrc/drivers/calrt076/cmake_install.cmake").read_text()
    with calrt.open(f"{made}:0", isolate=False) as device:
        assert device.info.runtime == "0.7.6-standin"
    (sdk / "lib/libsecond.so").write_bytes(b"")
    told = subprocess.run(configure, capture_output=True, text=True, timeout=300)
    assert told.returncode != 0
    assert "CALRT_SDK_LIBRARY" in told.stderr
