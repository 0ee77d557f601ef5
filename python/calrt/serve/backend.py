# SPDX-License-Identifier: Apache-2.0
"""From a command line to a loaded model, and from a model to the parts that the engine works with.

Runs in a thread of its own while the server already answers "Loading model".
"""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import calrt
from calrt._core import StepRunner

from .flags import Config
from .geometry import choose
from .service import Description, Parts

log = logging.getLogger("calrt.serve")

_REPORT_EVERY = 2.0
_SPM, _BPE = 1, 2


def load(config: Config, path: str) -> Parts:
    """Open the device, load the model at `path` onto it, make a runner. Everything goes back on an error."""
    own: dict[str, Any] = {} if config.threads < 0 else {"threads": config.threads}
    device = calrt.open(config.device, allow_unverified=config.allow_unverified, **own)
    try:
        model = _load_model(device, config, path)
        try:
            return take_apart(model, device=device, path=path)
        except BaseException:
            model.close(force=True)
            raise
    except BaseException:
        device.close(force=True)
        raise


def _load_model(device: calrt.Device, config: Config, path: str) -> calrt.Model:
    package = device.package(path, compute=config.compute, progress=_Report())
    manifest = json.loads(package.manifest_json())
    allowed = manifest["allowed"]
    geometry = choose(
        config.ctx_size, config.parallel, manifest["model"]["context"], allowed["lanes"], allowed["cells"]
    )
    for note in geometry.notes:
        log.info("%s", note)
    return device.load(
        package,
        lanes=geometry.lanes,
        cells=geometry.cells,
        compute=config.compute,
        kv_dtype=config.cache_type_k,
        in_flight=config.in_flight,
        progress=_Report(),
    )


def take_apart(
    model: calrt.Model, *, device: calrt.Device | None = None, path: str = "", **runner_options: Any
) -> Parts:
    """The parts of a loaded model. With `device`, closing the parts closes model and device too."""
    runner = StepRunner(model.native, in_flight=model.in_flight, **runner_options)

    def close() -> None:
        if device is not None:
            model.close(force=True)
            device.close(force=True)

    return Parts(
        runner=runner,
        lanes=model.kv,
        tokenizer=model.tokenizer,
        description=_describe(model, device, path),
        vocab=model.vocab,
        close=close,
    )


def _describe(model: calrt.Model, device: calrt.Device | None, path: str) -> Description:
    manifest, info = model.manifest, model.info
    about = manifest["model"]
    weights = manifest.get("weights") or {"rows": []}
    parameters = sum(math.prod(shape) for _, _, shape, *_ in weights["rows"])
    batches = [graph.batch for graph in model.graphs.values() if graph.kind == "decode"]
    caps = {} if device is None else {cap.name: f"C{cap.level}" for cap in device.caps}
    return Description(
        name=Path(path).name or about["name"],
        path=path,
        device="" if device is None else device.spec,
        vocab_type=_SPM if manifest["tokenizer"]["kind"] == "gguf" and model.tokenizer.add_bos else _BPE,
        n_ctx_train=about["context"],
        n_embd=about["embed"],
        n_params=parameters,
        size=int(info["weight_bytes"]),
        ftype=str(info["compute"]).upper(),
        compute=info["compute"],
        kv_dtype=info["kv_dtype"],
        hardware_batch=max(batches, default=1),
        in_flight=model.in_flight,
        evidence=caps,
    )


class _Report:
    """Progress of packing and loading as lines in the log."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _REPORT_EVERY

    def __call__(self, what: str, done: int, total: int, /) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY
            log.info("%s: %d of %d MiB", what, done >> 20, total >> 20)
