# SPDX-License-Identifier: Apache-2.0
"""BF16 and float32 arrays, bit-identical to ml_dtypes and as fast as memory allows.

Conversion rounds to nearest, ties to even; NaN stays NaN with its sign; subnormals are kept. BF16 arrays have
dtype `ml_dtypes.bfloat16`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from calrt import _core
from calrt._enums import Status
from calrt.errors import InvalidArgumentError

__all__ = ["dtype", "from_f32", "to_f32", "view"]

dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


def from_f32(a: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """float32 to bfloat16, any shape.

    `a` is a float32 array (copied first if it is not contiguous) or a list of numbers. `out`, if given, is a
    C-contiguous, writable bfloat16 array of the same shape, and is returned. Raises `InvalidArgumentError`
    for other dtypes: float64 would be rounded twice, so convert it yourself.
    """
    return _core.bf16_from_f32(a, out)


def to_f32(b: npt.NDArray[Any], out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """bfloat16 to float32, exact, any shape.

    `b` is a bfloat16 array (copied first if it is not contiguous); `view()` makes one of uint16 bits. `out`,
    if given, is a C-contiguous, writable float32 array of the same shape, and is returned. Raises
    `InvalidArgumentError` for other dtypes, float16 among them.
    """
    return _core.bf16_to_f32(b, out)


def view(u16: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
    """The bits of a uint16 array as bfloat16, without a copy. `InvalidArgumentError` for other dtypes."""
    if not isinstance(u16, np.ndarray) or u16.dtype != np.dtype(np.uint16):
        found = u16.dtype if isinstance(u16, np.ndarray) else type(u16).__name__
        raise InvalidArgumentError(f"u16 is {found}: a uint16 array is due", Status.DTYPE_MISMATCH)
    return u16.view(dtype)
