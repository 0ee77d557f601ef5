# SPDX-License-Identifier: Apache-2.0
"""calrt076, the adapter for CalRT 0.7.6, on the stand-in for its SDK: mock is the oracle.

The stand-in's vices are switched on by an environment variable, read when the SDK starts: by a child process,
that of the conformance kit or of the isolate layer.
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

# What is survived in the process of the caller, and what it means for a caller: nothing.
SURVIVED = (
    "",
    "numbers_permuted",
    "completion_twice",
    "completion_twice@3",
    "completion_after_cancel",
    "late_completion@3:200",
    "run_takes:1000",
    "outputbuf_reused_early@5",
    "call_answers@4:wait=29",
    "kv_silent_noops",
    "d0_padding",
    "abort_on_misuse",
)
# What ends or hangs a process: survived behind isolate alone. Each process of the driver is struck again.
FATAL = ("abort@9:infer", "segfault@9:wait", "abort@2:kv_apply", "segfault@3:outbuf_acquire")
# What no adapter can make good: the kit has to find it, where it strikes. Vice -> why.
KNOWN = {
    "outputbuf_reused_early": "no output can be read before it is another's: each run fails, none is wrong",
    "run_fails": "each run ends with an error of the device, and computes nothing",
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> str:
    """The adapter's library; its folder is in the path of drivers."""
    path = driver("calrt076")
    monkeypatch.setenv("CALRT_DRIVER_PATH", str(Path(path).parent))
    monkeypatch.setenv("CALRT_STANDIN_VICES", "")
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


@pytest.mark.parametrize("vice", SURVIVED)
def test_it_conforms_with_each_vice_that_can_be_survived(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = conformance.run(library)
    assert report.conforms, report.broken


@pytest.mark.parametrize("vice", KNOWN)
def test_what_cannot_be_made_good_is_found_and_never_a_wrong_answer(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = conformance.run(library, only=["DATA", "JOB-01"])
    assert report.broken
    assert all("state 4" in check.why for check in report.broken), report.broken


@pytest.mark.parametrize("vice", ["", *SURVIVED[1:]])
def test_it_conforms_isolated(library: str, vice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = conformance.run("isolate:calrt076")
    assert report.conforms, report.broken


@pytest.mark.parametrize("vice", FATAL)
def test_what_ends_the_process_ends_no_caller_isolated(
    library: str, vice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_STANDIN_VICES", vice)
    report = conformance.run("isolate:calrt076", only=["JOB", "DATA"])
    assert report.broken  # it struck
    for check in report.broken:  # and is told for what it is; what comes after a new start is right
        told = ("killed by signal", "in state 4", "answered 27")
        assert any(words in check.why for words in told), check
    assert sum(check.verdict == "pass" for check in report.checks) > len(report.checks) / 4


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
