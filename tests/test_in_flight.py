# SPDX-License-Identifier: Apache-2.0
"""Two jobs of the engine in flight: allowed by a recorded gain, seen at the driver, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import calrt
from calrt import bench_ab
from calrt.cli import main
from calrt.probes.subject import open_when_free
from calrt.workload import plan, run
from test_bench_ab import gained
from test_calrt076 import library
from test_donts import NEEDS_MOCK, most_in_flight
from test_server_process import Process

__all__ = ["library"]

pytestmark = NEEDS_MOCK


def recorded_gain(folder: Path, spec: str = "mock", package: str = "preset:tiny") -> Path:
    """Evidence that two jobs in flight gain on this device, with its preset."""
    file = folder / "in_flight.json"
    bench_ab.record(gained(spec, package)).write(file)
    return file


@pytest.mark.parametrize("profiles", [[1], [], [4]], ids=["by one", "all", "by four"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_workload_gets_the_same_tokens(depth: int, profiles: list[int], tmp_path: Path) -> None:
    evidence, sums, most = recorded_gain(tmp_path), [], []
    for in_flight in (1, 2):
        file = tmp_path / f"run{in_flight}.jsonl"
        layers = f"record:{file} data=0;fault:device_info depth={depth}"
        with (
            calrt.open("mock", layers=layers, evidence=evidence) as device,
            device.load("preset:tiny", profiles=profiles, in_flight=in_flight) as model,
        ):
            assert model.in_flight == in_flight
            outcome = run(model, plan(model, 40, seed=5, max_tokens=24))
            assert outcome.balanced, outcome.imbalances
        sums.append(outcome.tokens_sha256)
        most.append(most_in_flight(file))
    assert sums[0] == sums[1]
    assert most == [1, 2]


def test_the_seeds_hardware_works_through_its_lanes(tmp_path: Path) -> None:
    """`bare`: one row a step and nothing asynchronous: the second job waits its turn behind the first."""
    evidence, sums = recorded_gain(tmp_path, "mock:bare", "preset:bare"), []
    for in_flight in (1, 2):
        with (
            calrt.open("mock:bare", evidence=evidence) as device,
            device.load("preset:bare", in_flight=in_flight) as model,
        ):
            outcome = run(model, plan(model, 24, seed=9, max_tokens=16))
            assert outcome.balanced, outcome.imbalances
        sums.append(outcome.tokens_sha256)
    assert sums[0] == sums[1]


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_the_adapter_has_two_runs_at_its_sdk(library: str, isolated: bool, tmp_path: Path) -> None:
    evidence = recorded_gain(tmp_path, "isolate:calrt076" if isolated else library)

    def tokens(in_flight: int) -> str:
        with (
            open_when_free("calrt076", isolate=isolated, allow_unverified=True, evidence=evidence) as device,
            device.load("preset:tiny", profiles=[1], in_flight=in_flight) as model,
        ):
            outcome = run(model, plan(model, 16, seed=11, max_tokens=16))
            assert outcome.balanced, outcome.imbalances
        return outcome.tokens_sha256

    assert tokens(1) == tokens(2)


@pytest.mark.parametrize("rule", ["nth=30", "p=0.02 seed=4"])
def test_a_failed_job_fails_its_own_requests_alone(rule: str, tmp_path: Path) -> None:
    layers = f"fault:completion status=EXECUTION_FAILED {rule}"
    with (
        calrt.open("mock", layers=layers, evidence=recorded_gain(tmp_path)) as device,
        device.load("preset:tiny", profiles=[1], in_flight=2) as model,
    ):
        work = plan(model, 40, seed=5, max_tokens=24)
        outcome = run(model, work)
        assert sum(outcome.finishes.values()) == len(work)
        assert 0 < outcome.finishes["failed"] < len(work)
        assert all("EXECUTION_FAILED" in line for line in outcome.failures)
        assert (outcome.free_lanes, outcome.jobs_in_flight) == (4, 0)


def test_a_reload_keeps_it(tmp_path: Path) -> None:
    with (
        calrt.open(
            "mock", layers="fault:submit status=CCU_FAULT nth=1", evidence=recorded_gain(tmp_path)
        ) as device,
        device.load("preset:tiny", in_flight=2) as model,
        model.kv.reserve(4) as lane,
    ):
        with pytest.raises(calrt.CcuError) as caught:
            model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
        again = caught.value.recover()
        assert isinstance(again, calrt.Model)
        with again:
            assert again.generation > model.generation
            assert again.in_flight == 2


def test_the_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "-m", "preset:tiny", "-dev", "mock", "--requests", "12", "--json"]
    sums = []
    evidence = str(recorded_gain(tmp_path))
    for flags in ([], ["--in-flight", "2", "--evidence", evidence]):
        assert main([*words, *flags]) == 0
        sums.append(json.loads(capsys.readouterr().out)["tokens_sha256"])
    assert sums[0] == sums[1]
    (tmp_path / "none").mkdir()
    assert main([*words, "--in-flight", "2", "--evidence", str(tmp_path / "none")]) == 1
    assert "no record shows equal outputs and a gain" in capsys.readouterr().out


def test_the_server_says_so_and_answers_the_same(tmp_path: Path) -> None:
    body = {"prompt": [3, 1, 4], "n_predict": 12, "temperature": 0}
    answers = []
    gain = recorded_gain(tmp_path)
    for in_flight in ("1", "2"):
        words = ("-m", "preset:tiny", "-dev", "mock", "--in-flight", in_flight)
        with Process(*words, CALRT_EVIDENCE=str(gain)) as process:
            with process.ready() as client:
                assert client.get("/props").json()["calrt"]["in_flight"] == int(in_flight)
                answers.append(client.post("/completion", json=body).raise_for_status().json()["content"])
            assert process.end() == 0, process.log
    assert answers[0] == answers[1]
    with Process(
        "-m", "preset:tiny", "-dev", "mock", "--in-flight", "2", CALRT_EVIDENCE=str(tmp_path / "none")
    ) as process:
        assert process.wait() == 1
        assert "no record shows equal outputs and a gain" in process.log
