# SPDX-License-Identifier: Apache-2.0
"""`import calrt` is light: numpy, ml_dtypes and the native module, nothing of the server or the packer."""

from __future__ import annotations

import subprocess
import sys

import calrt

ALLOWED = {"calrt", "calrt._core", "calrt._enums", "calrt.bf16", "calrt.device", "calrt.errors", "calrt.kv"}
ALLOWED |= {"calrt.device_facts", "calrt.model", "calrt._supported", "calrt.recovery", "calrt.sequence"}
ALLOWED |= {"calrt._arguments", "calrt.evidence", "calrt.grounds", "calrt.regular_file"}
ALLOWED |= {"calrt.kv_allocator", "calrt.kv_records", "calrt.kv_sequences"}


def loaded_by(names: str) -> set[str]:
    code = f"import sys, {names}; print('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_no_server_text_or_packing_module_is_loaded() -> None:
    # The numpy of Python 3.10 loads subprocess itself.
    modules = loaded_by("calrt") - loaded_by("numpy, ml_dtypes")
    assert {name for name in modules if name.split(".")[0] == "calrt"} == ALLOWED
    for heavy in ("tokenizers", "starlette", "uvicorn", "tqdm", "msgspec", "jinja2", "asyncio", "subprocess"):
        assert heavy not in modules


def import_seconds(statement: str) -> float:
    """CPU seconds of one import in a fresh interpreter, as that interpreter measures them."""
    code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def test_import_costs_about_what_numpy_and_ml_dtypes_cost() -> None:
    """1.5 times as much, by measurement. The ceiling leaves room for a loaded machine and for the finder of
    an editable install; what may be loaded at all is held above."""
    ours, theirs = [], []
    for _ in range(10):  # in turns, so that both share the load
        ours.append(import_seconds("import calrt"))
        theirs.append(import_seconds("import numpy, ml_dtypes"))
        if min(ours) <= 2 * min(theirs):
            return
    assert min(ours) <= 4 * min(theirs)


def test_every_public_name_is_there_and_documented() -> None:
    for name in calrt.__all__:
        assert getattr(calrt, name).__doc__, name


def test_the_native_module_documents_every_class_and_method() -> None:
    from calrt import _core

    silent = []
    foreign = []  # a C++ name in a signature, for want of a Python one
    for name, thing in vars(_core).items():
        if name.startswith("_") or isinstance(thing, (int, str)):
            continue
        if not thing.__doc__:
            silent.append(name)
        for attribute, value in vars(thing).items() if isinstance(thing, type) else ():
            if not attribute.startswith("_") and not value.__doc__:
                silent.append(f"{name}.{attribute}")
            if "::" in (value.__doc__ or ""):
                foreign.append(f"{name}.{attribute}")
    assert silent == []
    assert foreign == []
