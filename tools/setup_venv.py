# SPDX-License-Identifier: Apache-2.0
"""Make or refresh the venv: setup_venv.py VENV serve|test. Whatever is missing is named in one line, exit 2.

Runs under any Python 3 so that an old one can be told so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = ["scikit-build-core>=0.11", "pybind11>=3.1", "nlohmann-json>=3.12", "ninja>=1.11"]
# A cmake of the venv, though the machine may have one: another one for the same folder compiles all again.
BUILD += ["cmake>=3.20"]
BUILD += ["tomli>=2; python_version < '3.11'"]  # tools/status_map.py
CXX20 = "#include <span>\n#include <version>\ntemplate <class T> concept C = requires(T t) { t.x; };\n"


def stop(line):
    sys.stderr.write("calrt: %s\n" % line)
    sys.exit(2)


def check_compiler():
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        stop("no C++ compiler found: install g++ 11 or newer (Debian: apt install g++) or set CXX")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.cpp")
        with open(source, "w") as file:
            file.write(CXX20)
        command = compiler.split() + ["-std=c++20", "-fsyntax-only", source]
        try:
            works = subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
        except OSError:
            works = False
    if not works:
        stop("%s does not compile C++20: install g++ 11 or clang 14, or newer, or set CXX" % compiler)


def run(command, log, missing):
    """Runs it, output to the log, a sign of life every 20 s; a compiler's first error is told apart."""
    begin = time.time()
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while True:
            try:
                code = process.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                sys.stdout.write("calrt: still at it after %d s\n" % (time.time() - begin))
                sys.stdout.flush()
    if code != 0:
        with open(log, "rb") as lines:
            errors = [
                line for line in lines.read().decode("utf-8", "replace").splitlines() if ": error: " in line
            ]
        stop("the compiler failed: %s" % errors[0].strip() if errors else missing)


def make_venv(venv):
    command = [sys.executable, "-m", "venv", venv]
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def main():
    venv, kind = sys.argv[1], sys.argv[2]
    if sys.version_info < (3, 10):
        stop("Python %d.%d is too old, 3.10 is needed: make PYTHON=python3.12" % sys.version_info[:2])
    check_compiler()
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "bin", "pip")) and not make_venv(venv):
        shutil.rmtree(venv, ignore_errors=True)
        stop("Python's venv module does not work (Debian: apt install python3-venv)")
    log = os.path.join(venv, "setup.log")
    open(log, "wb").close()
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]

    have = os.path.exists(os.path.join(venv, ".serve")) or os.path.exists(os.path.join(venv, ".test"))
    what = "rebuilding" if have else "first build, some minutes on two cores"
    sys.stdout.write("calrt: %s (log: %s)\n" % (what, log))
    sys.stdout.flush()
    run(
        pip + BUILD,
        log,
        "no build tools: the package index cannot be reached for %s; see %s" % (BUILD[0], log),
    )
    # By the environment, as pip before 23.1 has no -C.
    define = "-DCALRT_TESTS=%s" % ("ON" if kind == "test" else "OFF")
    os.environ["CMAKE_ARGS"] = (os.environ.get("CMAKE_ARGS", "") + " " + define).strip()
    extras = "serve" if kind == "serve" else "test,dev"
    run(
        pip + ["--no-build-isolation", "-e", ".[%s]" % extras],
        log,
        "calrt[%s] was not installed: the package index is out of reach; see the end of %s" % (extras, log),
    )
    made = [".serve", ".test"] if kind == "test" else [".serve"]
    for stamp in made:
        open(os.path.join(venv, stamp), "w").close()
    if kind == "serve":
        # This build has no native tests: `make test` must build again.
        stale = os.path.join(venv, ".test")
        if os.path.exists(stale):
            os.remove(stale)


if __name__ == "__main__":
    main()
