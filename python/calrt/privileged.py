# SPDX-License-Identifier: Apache-2.0
"""The privileged plane of a device: registers, raw memory, reset. Apart from all else, off by default.

    import calrt.privileged
    with calrt.open("/opt/vendor/libcald_vendor.so:0", privileged=True) as device:
        calrt.privileged.Plane(device).reset()

`import calrt` does not load this module, and nothing that the server loads does: a test walks both. No part
of the plane works today. The driver ABI has no entry for it and so no driver offers it: each call is an
`UnsupportedError` naming level C4 and the device's subject. Neither `allow_unverified` nor recorded evidence
changes that, as C4 is never raised.
"""

from __future__ import annotations

from typing import NoReturn

from calrt._enums import Status
from calrt.device import Device
from calrt.errors import error_for
from calrt.evidence import subject_of

__all__ = ["Plane"]


class Plane:
    """What only a privileged caller may do to a device. Keeps the device; makes nothing by itself."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def read_register(self, chip: int, address: int) -> int:
        """A 32-bit register of a chip."""
        self._refuse("registers")

    def write_register(self, chip: int, address: int, value: int) -> None:
        """Sets a 32-bit register of a chip."""
        self._refuse("registers")

    def read_memory(self, chip: int, address: int, nbytes: int) -> bytes:
        """Bytes of a chip's memory, whoever owns them."""
        self._refuse("device_memory")

    def write_memory(self, chip: int, address: int, data: bytes) -> None:
        """Overwrites bytes of a chip's memory, whoever owns them."""
        self._refuse("device_memory")

    def reset(self) -> None:
        """Resets the device under all who use it."""
        self._refuse("reset")

    def _refuse(self, what: str) -> NoReturn:
        info = self._device.info
        subject = subject_of(info.driver, info.device_class, info.runtime)
        why = f"{what} is C4 on {subject}: the driver ABI has no entry for the privileged plane"
        if not self._device.privileged:
            why += ", and the device was not opened with privileged=True"
        raise error_for(Status.UNSUPPORTED, why, device=self._device.spec)
