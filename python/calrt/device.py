# SPDX-License-Identifier: Apache-2.0
"""Devices: open one, look at it, load a model onto it."""

from __future__ import annotations

import atexit
import errno
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict
from weakref import WeakSet

from calrt import _core, recovery
from calrt._arguments import flag, function, iterable, option, refuse, text, whole
from calrt._enums import Status
from calrt.device_facts import BufferRules, Capability, DeviceInfo, DeviceTrace, Footprint, Topology
from calrt.errors import CalrtError, PackageError, error_for
from calrt.evidence import collect
from calrt.grounds import Grounds
from calrt.model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Capability", "Device", "DeviceInfo", "LoadOptions", "open"]

Progress = Callable[[str, int, int], object]
"""progress(what, done_bytes, total_bytes); raising an exception cancels the load."""


class LoadOptions(TypedDict, total=False):
    """The options of `Device.load` that decide what is loaded, and so of `Device.footprint`."""

    lanes: int | None
    cells: int | None
    profiles: Iterable[int]
    chunks: Iterable[int]
    compute: str
    kv_dtype: str
    logits_dtype: str
    parallel: str
    placement: str


_open_devices: WeakSet[Device] = WeakSet()


class Device:
    """An open device, made by `open`. Close it, or use it in `with`.

    Jobs, buffers, tensors and views made from it stay valid after it is closed. A closed device still has
    `spec`, `closed`, `reopen` and `close`; all else is a StateError.
    """

    def __init__(
        self,
        native: _core.Device,
        open_again: Callable[[], Device],
        allow_unverified: bool = False,
        evidence: str | os.PathLike[str] | None = None,
        privileged: bool = False,
    ) -> None:
        self._native = native
        self._open_again = open_again
        self._allow_unverified = allow_unverified
        self._evidence = evidence
        self._privileged = privileged
        recovery.devices[native.serial] = self
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
    def privileged(self) -> bool:
        """Whether it was opened for the privileged plane (`calrt.privileged`)."""
        return self._privileged

    @property
    def info(self) -> DeviceInfo:
        """What the device is, asked anew each time."""
        return DeviceInfo.of(self._native.info())

    @property
    def caps(self) -> list[Capability]:
        """Capabilities, each with its evidence. Recorded evidence counts for the models that are loaded."""
        return self._grounds().caps(self._packages())

    def caps_for(self, package: _core.Package) -> list[Capability]:
        """The same for a model of `package`, loaded or not; what `load` goes by."""
        if not isinstance(package, _core.Package):
            refuse("package", package, "a Package")
        return self._grounds().caps([package.id])

    def _grounds(self) -> Grounds:
        """Made anew each time, so that evidence recorded since counts."""
        info = DeviceInfo.of(self._native.info())
        return Grounds(info, self._native.caps(), self._evidence, self._allow_unverified)

    def _packages(self) -> list[str]:
        return sorted({model.package.id for model in self._models if not model.closed})

    def health(self) -> dict[str, Any]:
        """state (ok, degraded, failed), temperature_c (°C), power_w (W), clock_mhz (MHz); None where unknown.

        Raises `UnsupportedError` if the driver cannot tell any of it.
        """
        return self._native.health()

    def counters(self) -> dict[str, int]:
        """Counters by name, which only rise: the driver's, those of layers ("fault.1.submit"), and calrt's.

        "calrt.stray_completions": a driver told of a job that does not run; "calrt.late_completions": of one
        that was lost already. Both of the whole process, both were dropped.
        """
        return self._native.counters()

    @property
    def topology(self) -> Topology:
        """Chips, links, sessions; what a load may ask for. `UnsupportedError` if the driver cannot tell."""
        return Topology.of(self._native.topology())

    def buffer_rules(self, domain: str = "host") -> BufferRules:
        """What a buffer in a memory domain (host, host_pinned, device, shared) needs, in bytes.

        Raises `InvalidArgumentError` for a name that is no domain, `UnsupportedError` for one that this
        device has not.
        """
        return BufferRules(**self._native.buffer_rules(domain))

    def trace(self, capacity: int = 65536) -> DeviceTrace:
        """The device's own trace of what runs in a `with` block, e.g. begin and end of each job.

            with device.trace() as trace:
                ...
            for event in trace.events: ...

        Between two drains the device keeps `capacity` events (1 to 2**20) and counts what does not fit. One
        trace at a time: the next one begins anew. Raises `UnsupportedError` if the device records none.
        """
        capacity = whole("capacity", capacity, 1, 1 << 20)
        self._grounds().require("trace", self._packages())
        return DeviceTrace(self._native, capacity)

    def alloc(self, nbytes: int, domain: str = "host", align: int = 64) -> _core.Buffer:
        """A zeroed buffer of `nbytes` (1 to 2**48) in a memory domain (host, host_pinned, device, shared).

        `align`: of its address, in bytes, a power of two; the driver's rules may raise it. The buffer is the
        caller's: close it, or use it in `with`. Raises `InvalidArgumentError` naming the number,
        `UnsupportedError` for a domain that this device has not, `CapacityError` when the memory is used up.
        """
        return self._native.alloc(nbytes, domain, align)

    def pool(
        self, nbytes: int, count: int, domain: str = "host", align: int | None = None
    ) -> _core.BufferPool:
        """A bounded pool of `count` (1 to 65,536) buffers of `nbytes` each, made when first needed.

        `with pool.acquire(timeout=1.0) as buffer:` waits up to 1 s and lends one. `align`: in bytes, a power
        of two; None takes the driver's. Raises `InvalidArgumentError` for numbers that cannot be,
        `UnsupportedError` for a domain that this device has not; memory that is used up shows in `acquire`.
        """
        return self._native.pool(nbytes, count, domain, 1 if align is None else align)

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
        in_flight: int = 1,
        progress: Progress | None = None,
    ) -> Model:
        """Loads a model.

        `model`: a GGUF file (packed once into the user's cache), a package directory, an opened `Package`,
        the name of a fetched model ("smollm2"), or "preset:NAME", a made-up one (`calrt.presets`). `lanes`:
        sequences at a time; `cells`: token positions per lane; `profiles`, `chunks`: decode batches and
        prefill chunks to prepare, all if empty. `compute`: auto, f32, bf16; `kv_dtype`, `logits_dtype`: auto,
        f32, bf16. `parallel`, `placement`: auto, or one of `topology.modes` and `topology.placements`. What
        is left out takes the package's default; nothing is clamped. `in_flight`: jobs of the engine at a
        time, 1, or 2 where a recorded A/B has shown a gain (docs/evidence.md). `progress(what, done, total)`,
        in bytes, is called now and then; an exception it raises cancels the load and comes out here.

        The `Model` is the caller's: close it, or use it in `with`. Raises `PackageError` (missing, damaged,
        rejected, made for another device), `InvalidArgumentError` naming the option, `UnsupportedError` for
        what the device does not offer, `CapacityError` with the numbers, `TimeoutError` if another process
        packs the same file for too long.
        """
        options: LoadOptions = {
            "lanes": lanes,
            "cells": cells,
            "profiles": iterable("profiles", profiles, _COUNTS),
            "chunks": iterable("chunks", chunks, _COUNTS),
            "compute": compute,
            "kv_dtype": kv_dtype,
            "logits_dtype": logits_dtype,
            "parallel": parallel,
            "placement": placement,
        }
        if progress is not None:
            function("progress", progress)
        _add_defaults(model, options)
        explicit = _explicit(options)
        package = self._opened(model, options, progress)
        grounds, manifest = self._grounds(), json.loads(package.manifest_json())
        grounds.check_in_flight(whole("in_flight", in_flight, 1, 2), package.id)
        grounds.check_request(package.id, manifest, explicit)
        explicit["profiles"] = grounds.profiles(package.id, manifest, explicit["profiles"])
        if withheld := grounds.withheld(package.id):
            explicit["withheld"] = withheld
        explicit["allow_standin"] = grounds.allow_unverified
        report = None if progress is None else _Reporter(progress)
        native = self._native.load(package, **explicit, progress=report)
        try:
            grounds.check_loaded(package.id, native.info, native.graphs.values())
        except CalrtError:
            native.close(force=True)
            raise
        again = partial(self.load, package, in_flight=in_flight, **options)
        loaded = Model(native, again, in_flight)
        self._models.add(loaded)
        return loaded

    def footprint(
        self, model: str | os.PathLike[str] | _core.Package, **options: Unpack[LoadOptions]
    ) -> Footprint:
        """What `load` would take with these options, in bytes, without loading anything.

        Checks what a load checks before it begins, and raises the same errors, except `CapacityError`: a
        footprint that does not fit is an answer. A GGUF file is packed into the cache first, as for a load.
        `UnsupportedError` if the driver cannot tell.
        """
        _add_defaults(model, options)
        explicit = _explicit(options)
        package = self._opened(model, options, None)
        self._grounds().require("footprint", [package.id])
        return Footprint(**self._native.footprint(package, **explicit))

    def package(
        self,
        model: str | os.PathLike[str] | _core.Package,
        *,
        progress: Progress | None = None,
        **options: Unpack[LoadOptions],
    ) -> _core.Package:
        """The package that `load` takes for `model` with these options, opened and found sound.

        Its manifest says what a load may ask for. Raises what `load` raises before it begins.
        """
        if progress is not None:
            function("progress", progress)
        _explicit(options)
        return self._opened(model, options, progress)

    def _opened(
        self, model: str | os.PathLike[str] | _core.Package, options: LoadOptions, progress: Progress | None
    ) -> _core.Package:
        if not isinstance(model, (str, os.PathLike, _core.Package)):
            refuse("model", model, "a path, the name of a fetched model or a Package")
        if not isinstance(model, _core.Package):
            model = text("model", os.fspath(model))
        package = model if isinstance(model, _core.Package) else self._package(model, options, progress)
        package.raise_if_rejected()
        return package

    def _package(
        self, model: str | os.PathLike[str], options: LoadOptions, progress: Progress | None
    ) -> _core.Package:
        # Here and not at the top: `import calrt` does without the packer.
        from calrt.gguf import GgufError
        from calrt.model_cache import package_for
        from calrt.presets import preset_for, preset_name

        name = preset_name(model)
        try:
            if name is None:
                directory = package_for(model, progress, compute=options.get("compute", "auto"))
            else:
                wanted = options.get("parallel", "auto"), options.get("placement", "auto")
                directory = preset_for(name, self.info.driver, self.info.device_class, *wanted)
        except TimeoutError:
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) and error.errno is None:  # the model itself
                raise PackageError(str(error), Status.PACKAGE_NOT_FOUND, device=self.spec) from error
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # the host has nothing left
                message = f"{model} cannot be opened: {error}"
                raise error_for(Status.OUT_OF_HOST_MEMORY, message, device=self.spec) from error
            message = f"{model} cannot be packed into the cache: {error}; CALRT_CACHE names another folder"
            raise PackageError(message, Status.PACKAGE_CORRUPT, device=self.spec) from error
        except GgufError as error:
            raise PackageError(str(error), Status.PACKAGE_CORRUPT, device=self.spec) from error
        except ValueError as error:
            raise error_for(Status.INVALID_ARGUMENT, str(error), device=self.spec) from error
        return _core.Package.open(os.fspath(directory))

    def reopen(self) -> Device:
        """Closes the device and its models and opens it again as it was opened: a new `Device`.

        Raises what `open` raises. An exclusive device is let go only with the last job, buffer and view.
        """
        for model in list(self._models):
            with suppress(CalrtError):  # of a device that is lost
                model.close(force=True)
        self.close(force=True)
        return self._open_again()

    def close(self, force: bool = False) -> None:
        """Refuses new work. Models loaded from it answer StateError from now on. Idempotent.

        `BufferError` while views of its memory live (numpy, memoryview, DLPack), and nothing changes; with
        `force`, as at the end of a `with`, they keep their memory for themselves.
        """
        self._native.close(force)
        _open_devices.discard(self)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close(force=True)

    def __repr__(self) -> str:
        return f"<calrt.Device {self.spec!r}{' closed' if self.closed else ''}>"


class _Reporter:
    """The native loader's progress(done, total) -> go on, in terms of ours."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, done: int, total: int) -> bool:
        self._progress("loading", done, total)
        return True


def open(
    spec: str = "cpu",
    *,
    layers: str | Sequence[str] | None = None,
    exclusive: bool | None = None,
    isolate: bool | None = None,
    allow_unverified: bool = False,
    evidence: str | os.PathLike[str] | None = None,
    privileged: bool = False,
    **options: str | int | float,
) -> Device:
    """Opens a device.

    `spec`: a driver's short name ("cpu", "null") or the absolute path of its library
    ("/opt/vendor/libcald_vendor.so:0"); after a colon the number of a device, or a configuration that the
    driver reads. `options` are the driver's own, e.g. `threads=2`.

    `layers` stand between calrt and the driver, outermost first, as a list or separated by ";"; None takes
    what the environment's CALRT_LAYERS says, "" is none (docs/layers.md):

    - "validate": names each rule of the driver ABI that the driver or calrt breaks, in the log and as a
      counter
    - "trace:FILE": what passes the ABI, and the device's own events, as a file for Perfetto
    - "record:FILE" and "replay:FILE": what each job was given and gave, to have it again without the device
    - "fault:RULES": makes the driver misbehave, to see what a program does then: rules are separated by "/",
      each a target, what is to happen, and when

    Examples of rules:

    - "fault:submit status=QUEUE_FULL every=3": each third submit is refused
    - "fault:any status=DEVICE_LOST from=40": everything fails from the 40th call on
    - "fault:completion drop nth=2 / completion delay_ms=50": the second job is never told to have ended,
      the others 50 ms late
    - "fault:buffer_alloc delay_ms=50 / model_load throw": slow allocations; the load throws
    - "fault:device_info completion=wait": the device has only a blocking wait

    Targets are the entries of the driver ABI (docs/abi.md), `any` and `completion`. For entries: status=,
    native=, unmapped, message=, throw, after, delay_ms=, short= (bytes), hide. For completions: status=,
    native=, unmapped, message=, state=, drop, hold, swap, delay_ms=, thread, early, twice, seq=, short_in=,
    short_out= (bytes), nan, flip, cancel=. For device_info, always: completion=, clock=, exclusive=,
    sessions=, depth=, queue=, id=. When: nth=, from=, every=, times=, p= with seed=. `Device.counters()` has
    "fault.N.TARGET", how often rule N was met.

    `exclusive`: True locks the device against other processes, by a file in CALRT_LOCK_DIR or the temporary
    folder; None does so if the device says that it is exclusive; False never does. `isolate`: True, as
    "isolate:" before the spec, runs the driver in a process of its own, whose hang or crash is a
    `DeviceLostError` (docs/layers.md); None does so for calrt076, False never does.
    `allow_unverified`: use what the driver states as C1 (declared) or C2 (built, not accepted); without it
    such a capability, as C3 and C4 always, is an `UnsupportedError` naming level and subject where it is
    used. `evidence`: a file or folder of recorded evidence, which makes C1 and C2 proven for the very
    combination it was recorded on; None takes CALRT_EVIDENCE, else "evidence" in the user's cache. See
    docs/evidence.md. `privileged`: for `calrt.privileged`, which has registers, raw memory and reset.

    Raises `InvalidArgumentError` for an unknown driver, option, layer or rule, `PackageError` (8) for a
    library that is no calrt driver or speaks another ABI, `DeviceError` (28) naming the process that holds
    the device.
    """
    text("spec", spec)
    again = partial(
        open,
        spec,
        layers=layers,
        exclusive=exclusive,
        isolate=isolate,
        allow_unverified=allow_unverified,
        evidence=evidence,
        privileged=privileged,
        **options,
    )
    stack: str | None = None if layers is None else ""
    if isinstance(layers, str):
        stack = text("layers", layers)
    elif layers is not None:
        stack = ";".join(text("layers", layer) for layer in iterable("layers", layers, "a text or a list"))
    for name, said in (("exclusive", exclusive), ("isolate", isolate)):
        if said is not None:
            flag(name, said)
    flag("allow_unverified", allow_unverified)
    flag("privileged", privileged)
    if evidence is not None and not isinstance(evidence, (str, os.PathLike)):
        refuse("evidence", evidence, "a path or None")
    if evidence is not None:
        collect(evidence)  # what is named must be there, and sound
    own = {name: option(name, value) for name, value in options.items()}
    try:
        native = _core.Device.open(spec, own, layers=stack, exclusive=exclusive, isolate=isolate)
    except CalrtError as error:
        error.about(call=again)
        raise
    return Device(native, again, allow_unverified, evidence, privileged)


_COUNTS = "a list of whole numbers"


def _add_defaults(model: object, options: LoadOptions) -> None:
    """A preset has its own lanes and cells for a load that leaves them out."""
    if isinstance(model, str) and model.startswith("preset:"):
        from calrt.presets import preset_defaults

        lanes, cells = preset_defaults(model)
        options["lanes"] = lanes if options.get("lanes") is None else options["lanes"]
        options["cells"] = cells if options.get("cells") is None else options["cells"]


def _explicit(options: LoadOptions) -> dict[str, Any]:
    """Load options as the native module takes them, whose own checks say what the package has not."""
    native: dict[str, Any] = {}
    for name, value in options.items():
        if name not in LoadOptions.__annotations__:
            known = ", ".join(LoadOptions.__annotations__)
            raise error_for(Status.INVALID_ARGUMENT, f"there is no load option {name!r}: {known}")
        if name in ("lanes", "cells"):
            native[name] = None if value is None else whole(name, value, 0, (1 << 32) - 1)
        elif name in ("profiles", "chunks"):
            counts = enumerate(iterable(name, value, _COUNTS))
            native[name] = [whole(f"{name}[{at}]", count, 0, (1 << 32) - 1) for at, count in counts]
        else:
            native[name] = "" if text(name, value) == "auto" else value
    return native


@atexit.register
def _close_all() -> None:
    """Closes what is still open while Python is whole, so that no native thread outlives it."""
    _core.begin_exit()  # first: a daemon thread is not to be told of a model closed under it
    for device in list(_open_devices):
        for model in list(device._models):
            with suppress(CalrtError):  # a job that does not end must not keep the process
                model.close(force=True)
        device.close(force=True)
