# SPDX-License-Identifier: Apache-2.0
"""Devices: open one, look at it, load a model onto it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakSet

from calrt import _core
from calrt._enums import Status
from calrt.errors import CalrtError, PackageError, error_for
from calrt.model import Model

__all__ = ["Capability", "Device", "DeviceInfo", "open"]

Progress = Callable[[str, int, int], object]
"""progress(what, done_bytes, total_bytes); raising an exception cancels the load."""


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is. Memory in bytes, 0 = unknown."""

    driver: str
    driver_version: str
    driver_path: str
    name: str
    device_class: str
    runtime: str
    chips: int
    sessions: int
    depth: int
    queue: int
    exclusive: bool
    memory_bytes: int
    memory_free: int


@dataclass(frozen=True)
class Capability:
    """A capability with its evidence.

    `level` 0 proven, 1 declared, 2 built and not accepted, 3 needs the vendor, 4 no; `source` says why.
    `value` is 0 = absent, 1 = present, or a number.
    """

    name: str
    level: int
    value: int
    source: str


_open_devices: WeakSet[Device] = WeakSet()


class Device:
    """An open device. Close it, or use it in `with`. What was loaded from it may outlive it."""

    def __init__(self, native: _core.Device) -> None:
        self._native = native
        self._models: WeakSet[Model] = WeakSet()
        _open_devices.add(self)

    @property
    def spec(self) -> str:
        """What `open` was given."""
        return self._native.spec

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._native.closed

    @property
    def info(self) -> DeviceInfo:
        """What the device is, asked anew each time. StateError once closed."""
        return DeviceInfo(**self._native.info())

    @property
    def caps(self) -> list[Capability]:
        """Capabilities, each with its evidence."""
        return [Capability(**cap) for cap in self._native.caps()]

    def health(self) -> dict[str, Any]:
        """state (ok, degraded, failed), temperature_c, power_w, clock_mhz; None where it cannot tell."""
        return self._native.health()

    def counters(self) -> dict[str, int]:
        """The driver's counters by name."""
        return self._native.counters()

    def alloc(self, nbytes: int, domain: str = "host", align: int = 64) -> _core.Buffer:
        """A buffer of `nbytes` in a memory domain (host, host_pinned, device, shared), aligned to `align`."""
        return self._native.alloc(nbytes, domain, align)

    def load(
        self,
        model: str | os.PathLike[str] | _core.Package,
        *,
        lanes: int | None = None,
        cells: int | None = None,
        profiles: Iterable[int] = (),
        chunks: Iterable[int] = (),
        compute: str = "auto",
        kv_dtype: str = "auto",
        logits_dtype: str = "auto",
        parallel: str = "auto",
        placement: str = "auto",
        progress: Progress | None = None,
    ) -> Model:
        """Loads a model.

        `model`: a GGUF file (packed once into the user's cache), a package directory, an opened `Package`, or
        the name of a fetched model ("smollm2"). `lanes`: sequences at a time; `cells`: token positions per
        lane; `profiles`, `chunks`: decode batches and prefill chunks to prepare, all if empty. `compute`:
        auto, f32, bf16; `kv_dtype`, `logits_dtype`: auto, f32, bf16. What is left out takes the package's
        default; nothing is clamped. `progress(what, done, total)` is called now and then; an exception it
        raises cancels the load and comes out here.

        Raises `PackageError` (missing, damaged, rejected), `InvalidArgumentError` naming the option,
        `CapacityError`, `StateError` once closed.
        """
        package = model if isinstance(model, _core.Package) else self._package(model, compute, progress)
        package.raise_if_rejected()
        native = self._native.load(
            package,
            lanes=lanes,
            cells=cells,
            profiles=list(profiles),
            chunks=list(chunks),
            compute=_explicit(compute),
            kv_dtype=_explicit(kv_dtype),
            logits_dtype=_explicit(logits_dtype),
            parallel=_explicit(parallel),
            placement=_explicit(placement),
            progress=None if progress is None else _Reporter(progress),
        )
        loaded = Model(native)
        self._models.add(loaded)
        return loaded

    def _package(
        self, model: str | os.PathLike[str], compute: str, progress: Progress | None
    ) -> _core.Package:
        # Here and not at the top: `import calrt` does without the packer.
        from calrt.gguf import GgufError
        from calrt.model_cache import package_for

        try:
            directory = package_for(model, progress, compute=compute)
        except TimeoutError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and error.errno is None:  # the model itself
                raise PackageError(str(error), Status.PACKAGE_NOT_FOUND, device=self.spec) from error
            text = f"{model} cannot be packed into the cache: {error}; CALRT_CACHE names another folder"
            raise PackageError(text, Status.PACKAGE_CORRUPT, device=self.spec) from error
        except GgufError as error:
            raise PackageError(str(error), Status.PACKAGE_CORRUPT, device=self.spec) from error
        except ValueError as error:
            raise error_for(Status.INVALID_ARGUMENT, str(error), device=self.spec) from error
        return _core.Package.open(os.fspath(directory))

    def close(self) -> None:
        """Refuses new work. Models loaded from it answer StateError from now on. Idempotent."""
        self._native.close()
        _open_devices.discard(self)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<calrt.Device {self.spec!r}{' closed' if self.closed else ''}>"


class _Reporter:
    """The native loader's progress(done, total) -> go on, in terms of ours."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, done: int, total: int) -> bool:
        self._progress("loading", done, total)
        return True


def open(spec: str = "cpu", **options: str | int | float) -> Device:
    """Opens a device.

    `spec`: a driver's short name ("cpu", "null"), any configuration after a colon, or the
    absolute path of a driver library ("/opt/vendor/libcald_vendor.so:0"). `options` are the driver's own,
    e.g. `threads=2`. Raises `InvalidArgumentError` for an unknown driver or option, `DeviceError` when
    another process holds the device.
    """
    return Device(_core.Device.open(spec, {name: _text(value) for name, value in options.items()}))


def _text(value: str | int | float) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _explicit(option: str) -> str:
    return "" if option == "auto" else option


@atexit.register
def _close_all() -> None:
    """Closes what is still open while Python is whole, so that no native thread outlives it."""
    _core.begin_exit()  # first: a daemon thread is not to be told of a model closed under it
    for device in list(_open_devices):
        for model in list(device._models):
            with suppress(CalrtError):  # a job that does not end must not keep the process
                model.close()
        device.close()
