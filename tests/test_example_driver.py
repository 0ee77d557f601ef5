# SPDX-License-Identifier: Apache-2.0
"""The driver in examples/driver: built by the command of the porting guide, held to the kit, and used."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import calrt
from calrt import conformance
from calrt.presets import build_preset

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/driver"
PAGE = ROOT / "docs/vendor-driver.md"

# What the example is an example of. The checks of queue and deadlines race with the device, and may skip.
RULES = """
ENTRY-01 ENTRY-07 ERR-02 INFO-04 BUF-05 BUF-07 BUF-08 LOAD-02 LOAD-06 LOAD-09
JOB-03 JOB-05 JOB-07 JOB-08 JOB-09 JOB-11 JOB-12 JOB-21 TIME-01 TIME-05 CANCEL-02
"""
SEEN = {*RULES.split(), *(f"DATA-{n:02}" for n in range(1, 16))}
PROMPT = [*range(3, 40), 7, 7, 400]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libcald_pebble.so, by the page's own command."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (line,) = re.findall(r"^ *cc (-std=c11 .*)$", PAGE.read_text(), re.M)
    made = tmp_path_factory.mktemp("driver") / "libcald_pebble.so"
    words = {"yours/*.c": [str(path) for path in EXAMPLE.glob("*.c")], "libcald_yours.so": [str(made)]}
    options = shlex.split(line)
    assert set(words) <= set(options)
    command = [*shlex.split(compiler), *(word for option in options for word in words.get(option, [option]))]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return made


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "tiny"
    return build_preset("tiny", driver="pebble", device_class="pebble-1", folder=folder)


def test_it_is_small() -> None:
    sources = [*EXAMPLE.glob("*.c"), *EXAMPLE.glob("*.h")]
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    assert lines <= 400
    readme = (EXAMPLE / "README.md").read_text()
    assert f"a driver of {lines} lines" in readme
    assert len(readme.splitlines()) <= 40


def test_it_conforms(library: Path) -> None:
    command = [sys.executable, "-m", "calrt", "conformance", f"{library}:0", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(ran.stdout)
    wrong = [check for check in report["checks"] if check["verdict"] not in ("pass", "skip")]
    assert wrong == []
    assert (ran.returncode, report["conforms"], report["driver"]) == (0, True, "pebble")
    assert {check["rule"] for check in report["checks"]} == {rule.id for rule in conformance.rules()}
    assert report["counts"]["pass"] >= 90
    assert SEEN - {check["rule"] for check in report["checks"] if check["verdict"] == "pass"} == set()


def test_what_the_readme_tells_to_type_runs(library: Path) -> None:
    readme = (EXAMPLE / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", program], cwd=library.parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)) == 8
    for text in (readme, PAGE.read_text()):
        named = re.findall(r"(?:conformance |open\()[\"']?(\S*libcald_\w+\.so)", text)
        assert all(path.startswith(("/", "$PWD/")) for path in named), named  # no other is taken


def test_lanes_batches_and_chunks_make_no_difference(library: Path, package: Path) -> None:
    made = []
    with calrt.open(str(library), allow_unverified=True) as device:
        for lanes, profiles, chunks in [(1, [1], [16]), (1, [1], [64]), (3, [4], [16, 64]), (16, [16], [64])]:
            with device.load(package, lanes=lanes, cells=128, profiles=profiles, chunks=chunks) as model:
                made.append(model.generate(PROMPT, max_tokens=8, temperature=0))
                if lanes == 1:
                    continue
                with model.sequence(16) as other:  # beside another one, and on another lane
                    other.prefill([1, 2, 3])
                    made.append(model.generate(PROMPT, max_tokens=8, temperature=0))
    assert len(made[0]) == 8
    assert len(set(made[0])) > 2
    assert made == [made[0]] * len(made)


def test_every_token_and_the_order_of_them_matters(library: Path, package: Path) -> None:
    others = [[4, *PROMPT[1:]], [PROMPT[1], PROMPT[0], *PROMPT[2:]], PROMPT[:-1]]
    with (
        calrt.open(str(library), allow_unverified=True) as device,
        device.load(package, lanes=1, cells=64) as model,
    ):
        made = [tuple(model.generate(prompt, max_tokens=8, temperature=0)) for prompt in [PROMPT, *others]]
    assert len(set(made)) == len(made)


def test_what_it_cannot_is_refused(library: Path, package: Path) -> None:
    with calrt.open(str(library)) as device, pytest.raises(calrt.PackageError, match=r"D25.*stand-in"):
        device.load(package)
    with calrt.open(str(library), allow_unverified=True) as device:
        for options in ({"compute": "bf16"}, {"kv_dtype": "bf16"}, {"logits_dtype": "bf16"}):
            with pytest.raises(calrt.UnsupportedError, match="F32"):
                device.load(package, **options)
    with pytest.raises(calrt.InvalidArgumentError, match="speed"):
        calrt.open(str(library), speed="2")
