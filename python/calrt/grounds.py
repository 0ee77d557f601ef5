# SPDX-License-Identifier: Apache-2.0
"""What a device may use: each capability's level, raised by evidence, against what `calrt.open` allows."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from calrt import _core
from calrt._enums import Status
from calrt.device_facts import Capability, DeviceInfo
from calrt.errors import CalrtError, error_for
from calrt.evidence import Evidence, Identity, collect, subject_of

__all__ = ["IN_FLIGHT_2", "Grounds"]

IN_FLIGHT_2 = "in_flight_2"
"""What `calrt bench ab --record` is evidence for: two jobs in flight give equal outputs in less time."""


@functools.lru_cache(maxsize=64)
def _digest(path: str, identity: tuple[int, int, int]) -> str:
    return _core.sha256_file(path)


def library_digest(path: str) -> str:
    """SHA-256 of a driver's library, read again whenever the file has changed; "" if it cannot be read."""
    from calrt.cache_files import identity

    try:
        return _digest(path, identity(Path(path)))
    except (OSError, CalrtError):
        return ""


_MEANINGS = (
    "proven",
    "declared by the vendor, unproven",
    "built by us, not accepted on it",
    "it needs a vendor compiler, kernel, runtime or package",
    "unsupported, or for the privileged plane only",
)

_EVERY_RUN = ("async_native", "explicit_positions", "n_valid", "logit_rows", "padding_rows")
"""What the runtime uses of a device that has it, in every run of a graph."""
_NATIVE = (
    "cancel",
    "binding_sets",
    "footprint",
    "kv_clear",
    "lane_copy",
    "range_copy",
    "k_rotate",
    "kv_read",
    "kv_write",
)
_ABSENT = Capability("", 0, 0, "", "")


class Grounds:
    """The levels of one open device, and what may be used on their ground.

    `stated`: the driver's own rows. Reads evidence only where a row is C1 or C2. Never changes.
    """

    def __init__(
        self,
        info: DeviceInfo,
        stated: Iterable[Mapping[str, Any]],
        evidence: str | os.PathLike[str] | None,
        allow_unverified: bool,
    ) -> None:
        self.subject = subject_of(info.driver, info.device_class, info.runtime)
        self.allow_unverified = allow_unverified
        self._info = info
        self._stated = {row["name"]: Capability(subject=self.subject, **row) for row in stated}
        open_questions = any(cap.level in (1, 2) for cap in self._stated.values())
        self._where = evidence
        self._evidence = collect(evidence) if open_questions or evidence is not None else []

    def caps(self, packages: Iterable[str] = ()) -> list[Capability]:
        """All capabilities; one that evidence for *each* of the packages (ids) proves is C0."""
        ids = frozenset(packages)
        return [self._judged(cap, ids) for cap in self._stated.values()]

    def refusal(self, name: str, packages: Iterable[str] = ()) -> str | None:
        """Why a capability may not be used, naming level and subject; None if it may.

        What the driver does not list is not judged here.
        """
        stated = self._stated.get(name)
        if stated is None or stated.level == 0:
            return None
        cap = self._judged(stated, frozenset(packages))
        if cap.level == 0 or (cap.level in (1, 2) and self.allow_unverified):
            return None
        meaning = _MEANINGS[cap.level] if 0 <= cap.level < len(_MEANINGS) else "no such level"
        text = f"{name} is C{cap.level} on {self.subject}: {meaning}"
        if cap.source:
            text += f" ({cap.source})"
        if cap.level in (1, 2):
            text += "; calrt.open(..., allow_unverified=True) uses it, recorded evidence proves it"
        return text

    def require(self, name: str, packages: Iterable[str] = ()) -> None:
        """`UnsupportedError` naming level and subject if the capability may not be used."""
        why = self.refusal(name, packages)
        if why is not None:
            raise error_for(Status.UNSUPPORTED, why)

    def check_in_flight(self, jobs: int, package: str) -> None:
        """Before a load: `UnsupportedError` for more than one job in flight of the engine.

        Not even for the best of devices without a recorded A/B of this very combination.
        """
        if jobs == 1:
            return
        self._evidence = self._evidence or collect(self._where)
        if self._proof(IN_FLIGHT_2, package) is not None:
            return
        raise error_for(
            Status.UNSUPPORTED,
            f"in_flight={jobs} on {self.subject}: no record shows equal outputs and a gain for this "
            "driver and package; calrt bench ab --record FILE makes one",
        )

    def profiles(self, package: str, manifest: Mapping[str, Any], asked: list[int]) -> list[int]:
        """The decode batches to load: those asked for, or, if none is, all of the package that may be used.

        [] is all of the package. `UnsupportedError` for one that was asked for and may not be used, and where
        none is left.
        """
        wanted = asked or _numbers(manifest["allowed"]["profiles"])
        refused = {batch: why for batch in wanted if (why := self._batch_refusal(batch, package))}
        if not refused:
            return asked
        left = [batch for batch in wanted if batch not in refused]
        if asked or not left:
            raise error_for(Status.UNSUPPORTED, next(iter(refused.values())))
        return left

    def _batch_refusal(self, batch: int, package: str) -> str | None:
        why = self.refusal(f"decode_b{batch}", [package])
        return why or (self.refusal("batch", [package]) if batch > 1 else None)

    def check_request(self, package: str, manifest: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Before a load: `UnsupportedError` if what it asks for may not be used."""
        mode = manifest["parallelism"]["mode"]
        uses = [] if mode == "none" else [f"parallel_{mode}"]
        if (options.get("lanes") or 1) > 1:
            uses.append("lanes")
        for option, prefix in (("compute", "compute"), ("kv_dtype", "kv"), ("logits_dtype", "logits")):
            uses.append(f"{prefix}_{options.get(option)}")
        for use in uses:
            self.require(use, [package])
        for use in _EVERY_RUN:  # one that the device has not is not used
            if self._stated.get(use, _ABSENT).value:
                self.require(use, [package])

    def check_loaded(self, package: str, info: Mapping[str, Any], graphs: Iterable[_core.Graph]) -> None:
        """After a load: the same of what the package chose by itself."""
        uses = {f"lane_map_{graph.lane_map}" for graph in graphs}
        uses |= {f"compute_{info['compute']}", f"kv_{info['kv_dtype']}", f"logits_{info['logits_dtype']}"}
        if info["lanes"] > 1:
            uses.add("lanes")
        for use in sorted(uses):
            self.require(use, [package])

    def withheld(self, package: str) -> dict[str, str]:
        """What the native runtime must not use of a model, by capability, each with the reason."""
        found = ((name, self.refusal(name, [package])) for name in _NATIVE)
        return {name: why for name, why in found if why is not None}

    def _judged(self, cap: Capability, packages: frozenset[str]) -> Capability:
        if cap.level not in (1, 2) or cap.value == 0 or not packages:
            return cap
        proofs = [self._proof(cap.name, package) for package in packages]
        newest = proofs[-1]
        if newest is None or None in proofs:
            return cap
        rules = ", ".join(newest.capabilities[cap.name].rules)
        source = f"recorded {newest.utc}, {rules}: {newest.source}; stated C{cap.level}: {cap.source}"
        return replace(cap, level=0, source=source)

    def _proof(self, name: str, package: str) -> Evidence | None:
        """The newest evidence about the capability on this very combination, if it is a pass.

        Another version of calrt is another combination: its kit may have asked for less.
        """
        about = [e for e in self._evidence if name in e.capabilities and e.calrt == _core.__version__]
        if not about:
            return None
        identity = Identity(
            library_digest(self._info.driver_path),
            self._info.runtime,
            package,
            self._info.device_class,
            self._info.id,
        )
        said = [e for e in about if e.identity == identity and e.capabilities[name].verdict != "skip"]
        return said[-1] if said and said[-1].capabilities[name].verdict == "pass" else None


def _numbers(allowed: Any) -> list[int]:
    """The numbers that a manifest allows: a list, or min, max, step."""
    if isinstance(allowed, dict):
        return list(range(allowed["min"], allowed["max"] + 1, allowed["step"]))
    return list(allowed)
