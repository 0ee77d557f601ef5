# SPDX-License-Identifier: Apache-2.0
"""BF16 and float32 arrays, bit-identical to ml_dtypes and as fast as memory allows.

A bfloat16 is the upper half of an IEEE 754 binary32. With `u` the 32 bits of a float32, the nearest bfloat16,
ties to even, is

    (u + 0x7FFF + ((u >> 16) & 1)) >> 16         for every u that is not a NaN
    ((u >> 16) & 0x8000) | 0x7FC0                for a NaN: it stays one, with its sign

(IEEE 754-2019 §4.3.1, roundTiesToEven, on the integer encoding; the quiet NaN is the one ml_dtypes gives.)
Subnormals are kept, and what rounds beyond the largest finite bfloat16, 3.3895e38, becomes infinity. The way
back, `u = half << 16`, is exact for every value.

BF16 arrays have dtype `ml_dtypes.bfloat16`, here `dtype`. Each call works in one thread, without the GIL from
16,384 elements on, by the kernel that `calrt.isa()` names; the environment's CALRT_ISA pins it (one of
`calrt.isas()`). Nothing but the result is allocated, and with `out=` nothing.
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


# The native functions themselves, documented there: a call in between costs a twentieth of 10,000 elements.
from_f32 = _core.bf16_from_f32
to_f32 = _core.bf16_to_f32


def view(u16: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
    """The bits of a uint16 array as bfloat16: the same memory, shape and strides, writable if `u16` is.

    The result keeps `u16` alive. Raises `InvalidArgumentError` for other dtypes, such as another byte order.
    """
    if not isinstance(u16, np.ndarray) or u16.dtype != np.dtype(np.uint16):
        found = u16.dtype if isinstance(u16, np.ndarray) else type(u16).__name__
        raise InvalidArgumentError(f"u16 is {found}: a uint16 array is due", Status.DTYPE_MISMATCH)
    return u16.view(dtype)
