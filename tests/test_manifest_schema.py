# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schema and the native validator agree on what a manifest may look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from package_bench import build_standin, build_tiny, copy_of
from package_damages import CASES
from package_edits import Case

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema (pip install calrt[test])")

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "manifest-1.schema.json").read_text())
# What depends on more than one field is not in the schema.
CROSS_FIELD = {
    "llama without ffn",
    "x- data",
    "arch of weights",
    "embed null with weights",
    "manifest is a list",
}
SHAPE_CASES = [
    case
    for case in CASES
    if case.check in ("C08", "C09", "C10", "C11", "C12") and case.name not in CROSS_FIELD
]


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("schema")
    return build_tiny(work / "tiny", work)


def test_sound_manifests_are_valid(validator: Any, tiny: Path, tmp_path: Path) -> None:
    for package in (tiny, build_standin(tmp_path / "standin")):
        validator.validate(json.loads((package / "manifest.json").read_text()))


@pytest.mark.parametrize("case", SHAPE_CASES, ids=lambda case: f"{case.check}-{case.name}".replace(" ", "_"))
def test_damaged_manifests_are_not(validator: Any, tiny: Path, tmp_path: Path, case: Case) -> None:
    bench = copy_of(tiny, tmp_path / "package")
    case.damage(bench)
    text = bench.raw.decode() if bench.raw is not None else bench.manifest_text()
    assert not validator.is_valid(json.loads(text))
