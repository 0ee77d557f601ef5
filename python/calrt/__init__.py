# SPDX-License-Identifier: Apache-2.0
"""calrt: the runtime for the Calculet NPU, with a cpu device that runs the same models.

import calrt
with calrt.open("cpu") as dev, dev.load("smollm2") as model:
    for piece in model.generate("Once upon a time", max_tokens=32, stream=True):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from calrt import _supported as _supported  # first: it refuses interpreters that calrt does not run in
from calrt import bf16, errors, kv
from calrt._core import (
    Buffer,
    BufferPool,
    Graph,
    Job,
    Package,
    Tensor,
    drivers,
    isa,
    isas,
)
from calrt._core import __version__ as __version__
from calrt._enums import Status
from calrt.device import Capability, Device, DeviceInfo, open
from calrt.errors import (
    CalrtError,
    CancelledJobError,
    CapacityError,
    CcuError,
    DeviceError,
    DeviceLostError,
    ExecutionError,
    InvalidArgumentError,
    KvCapacityError,
    KvError,
    KvSequenceError,
    KvTimeoutError,
    PackageError,
    StateError,
    UnsupportedError,
    WaitTimeoutError,
)
from calrt.model import Model
from calrt.recovery import RecoveryBudget
from calrt.sequence import Sequence

__all__ = [
    "Buffer",
    "BufferPool",
    "CalrtError",
    "CancelledJobError",
    "Capability",
    "CapacityError",
    "CcuError",
    "Device",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "ExecutionError",
    "Graph",
    "InvalidArgumentError",
    "Job",
    "KvCapacityError",
    "KvError",
    "KvSequenceError",
    "KvTimeoutError",
    "Model",
    "Package",
    "PackageError",
    "RecoveryBudget",
    "Sequence",
    "StateError",
    "Status",
    "Tensor",
    "UnsupportedError",
    "WaitTimeoutError",
    "bf16",
    "drivers",
    "errors",
    "isa",
    "isas",
    "kv",
    "open",
]
