# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers of untrusted files, side by side: fuzz.py [SECONDS] (default 30 for each target).

`manifest` and `kv_blob` (C++) need clang with libFuzzer, `gguf` (Python) the package atheris; a target that
has not what it needs is skipped with a reason. What is found is left in build/fuzz/crashes: fix the reader,
then keep the input in the target's corpus. Exit: 0 sound, 1 found something, 77 nothing could run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/fuzz"
SKIPPED = 77
# An input may take 10 s (the slowest known takes 0.1 s, here under sanitizers) and 1 GiB.
LIMITS = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=16384", "-print_final_stats=1"]


class SkipError(Exception):
    """What a target needs is not here; the text says what."""


def clang() -> str:
    names = [
        os.environ.get("CALRT_CLANG", ""),
        "clang++",
        *(f"clang++-{version}" for version in range(22, 13, -1)),
    ]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise SkipError("no clang (Debian: apt install clang, or set CALRT_CLANG)")
    probe = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    command = [found, "-x", "c++", "-", "-fsanitize=fuzzer,address,undefined", "-o", os.devnull]
    if subprocess.run(command, input=probe.encode(), capture_output=True).returncode != 0:
        raise SkipError(f"{found} lacks libFuzzer or the sanitizers (Debian: apt install libclang-rt-14-dev)")
    return found


def native_target(name: str) -> list[str]:
    """Builds the C++ target of this name; its command."""
    compiler = clang()
    cmake, ninja = (str(Path(sys.executable).with_name(name)) for name in ("cmake", "ninja"))
    configure = [
        *(cmake, "-S", str(ROOT), "-B", str(BUILD / "cmake")),
        *("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"),
        *(f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_C_COMPILER={compiler.replace('clang++', 'clang')}"),
        *("-DCALRT_FUZZ=ON", "-DCALRT_TESTS=ON", "-DCALRT_PYTHON=OFF", "-DCALRT_WERROR=ON"),
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, [cmake, "--build", str(BUILD / "cmake"), "--target", f"fuzz_{name}"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    corpus = ROOT / "csrc/tests/fuzz/corpus"
    words = corpus / f"{name}.dict"
    return [
        str(BUILD / f"cmake/csrc/tests/fuzz/fuzz_{name}"),
        *found_here(name),
        str(corpus / name),
        *([f"-dict={words}"] if words.is_file() else []),
    ]


def manifest_target() -> list[str]:
    return native_target("manifest")


def kv_blob_target() -> list[str]:
    return native_target("kv_blob")


def gguf_target() -> list[str]:
    """Installs the fuzzer where a wheel of it exists; the target's command."""
    if subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True).returncode != 0:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        if subprocess.run([*pip, "--only-binary=:all:", "atheris>=3"], capture_output=True).returncode != 0:
            version = ".".join(map(str, sys.version_info[:2]))
            raise SkipError(f"no wheel of atheris for Python {version} on this platform")
    folder = ROOT / "tests/fuzz"
    return [sys.executable, str(folder / "fuzz_gguf.py"), *found_here("gguf"), str(folder / "corpus/gguf")]


def found_here(name: str) -> list[str]:
    """The folder that collects this target's new inputs from run to run."""
    folder = BUILD / "found" / name
    folder.mkdir(parents=True, exist_ok=True)
    return [str(folder)]


TARGETS = {"manifest": manifest_target, "kv_blob": kv_blob_target, "gguf": gguf_target}


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    crashes = BUILD / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    running: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="calrt-fuzz-", dir=memory) as folder:
        environment = {**os.environ, "TMPDIR": folder, "UBSAN_OPTIONS": "print_stacktrace=1"}
        for name, target in TARGETS.items():
            try:
                command = target()
            except SkipError as reason:
                print(f"fuzz {name}: skipped: {reason}", flush=True)
                continue
            limits = [*LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/{name}-"]
            with open(BUILD / f"{name}.log", "wb") as log:
                running[name] = subprocess.Popen([*command, *limits], stdout=log, stderr=log, env=environment)
        results = {}
        for name, process in running.items():
            try:
                results[name] = process.wait(timeout=10 * seconds + 120)
            except subprocess.TimeoutExpired:
                process.kill()
                results[name] = process.wait()
    for name, code in results.items():
        lines = (BUILD / f"{name}.log").read_text(errors="replace").splitlines()
        runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
        print(f"fuzz {name}: {'sound' if code == 0 else f'FAILED ({code})'}, {runs} inputs")
        if code != 0:
            print("\n".join(lines[-60:]))
    if not results:
        return SKIPPED
    return int(any(results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
