# SPDX-License-Identifier: Apache-2.0
"""A loaded model: its graphs, its KV lanes, sequences and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from calrt import _core, recovery
from calrt._arguments import flag, iterable, text
from calrt.device_facts import KvInfo
from calrt.errors import CalrtError, WaitTimeoutError
from calrt.kv import Kv
from calrt.sequence import Sequence as LaneSequence

if TYPE_CHECKING:
    from calrt.tokenizer import Tokenizer

__all__ = ["Model"]


class Model:
    """A loaded generation of a package. Close it, or use it in `with`; it keeps its device.

    Jobs, tensors and numpy views made from it stay valid after it is closed.
    """

    def __init__(self, native: _core.Model, load: Callable[[], Model], in_flight: int = 1) -> None:
        self._native = native
        self._in_flight = in_flight
        self._load = load  # the same again; it holds the device
        recovery.models[native.generation] = self

    @property
    def native(self) -> _core.Model:
        """The object of the native module, e.g. for a `StepRunner`."""
        return self._native

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._native.closed

    @cached_property
    def info(self) -> dict[str, Any]:
        """lanes, cells (per lane), vocab, compute, kv_dtype, logits_dtype, weight_bytes, kv_bytes."""
        return self._native.info

    @property
    def kv_info(self) -> KvInfo:
        """The model's KV, and what the device itself can do with it. `UnsupportedError` if it cannot tell."""
        return KvInfo.of(self._native.kv_info)

    @property
    def lanes(self) -> int:
        """Sequences the model can hold at a time."""
        return int(self.info["lanes"])

    @property
    def cells(self) -> int:
        """Token positions per lane."""
        return int(self.info["cells"])

    @property
    def in_flight(self) -> int:
        """Jobs of the engine at a time, 1 or 2, as the load was allowed: for a `StepRunner`."""
        return self._in_flight

    @property
    def vocab(self) -> int:
        """Columns of the logits."""
        return int(self.info["vocab"])

    @property
    def generation(self) -> int:
        """Number of this load, unique in the process."""
        return self._native.generation

    @cached_property
    def package(self) -> _core.Package:
        """The package the model was loaded from."""
        return self._native.package

    @cached_property
    def graphs(self) -> dict[str, _core.Graph]:
        """Graphs by name, e.g. "decode_b4" and "prefill_t64"."""
        return self._native.graphs

    @cached_property
    def kv(self) -> Kv:
        """The KV lanes: reservations, sequence operations, states, prefixes."""
        return Kv(self._native.kv)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The package's manifest.json."""
        import json

        manifest: dict[str, Any] = json.loads(self.package.manifest_json())
        return manifest

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back, made at first use.

        Raises `ValueError` if the package brings none, `ImportError` without the `tokenizers` library.
        """
        from calrt.tokenizer import Tokenizer

        return Tokenizer.from_package(self.manifest, self.package.read)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that end a generation; empty if the package does not say. Needs no tokenizer library."""
        section = self.manifest["tokenizer"]
        if section["kind"] == "gguf" and section["artifact"] is not None:
            from calrt.gguf import parse_gguf
            from calrt.vocabulary import read_vocabulary

            return frozenset(read_vocabulary(parse_gguf(self.package.read(section["artifact"])).metadata).eog)
        try:
            return self.tokenizer.eog
        except (ImportError, ValueError):
            return frozenset()

    def sequence(self, tokens: int | None = None, *, timeout: float | None = None) -> LaneSequence:
        """A sequence on a lane of its own with room for `tokens` cells, the whole lane if None.

        Waits up to `timeout` seconds for a free lane (None = 60): `KvTimeoutError` then. `KvCapacityError` at
        once if open sequences hold every lane and no other thread runs that could close one.
        """
        return LaneSequence.reserve(self, tokens, timeout)

    @overload
    def generate(
        self, prompt: str, *, max_tokens: int = ..., stream: Literal[False] = ..., **options: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Sequence[int], *, max_tokens: int = ..., stream: Literal[False] = ..., **options: Any
    ) -> list[int]: ...
    @overload
    def generate(
        self, prompt: str, *, max_tokens: int = ..., stream: Literal[True], **options: Any
    ) -> Iterator[str]: ...
    @overload
    def generate(
        self, prompt: Sequence[int], *, max_tokens: int = ..., stream: Literal[True], **options: Any
    ) -> Iterator[int]: ...
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        stream: bool = False,
        **options: Any,
    ) -> str | list[int] | Iterator[str] | Iterator[int]:
        """Continues `prompt`: text gives text, token ids give token ids (and need no tokenizer library).

        With `stream` an iterator of pieces, which holds a lane until it ends or is closed; a piece is never
        half a character, and a stop string never shows. Ends at a stop token, a stop string, `max_tokens`,
        or the lane's end.

        Options by name: `temperature` (0.8; 0 = greedy), `top_k` (40; 0 = all), `top_p` (0.95; 1 = off),
        `min_p` (0.05; 0 = off), `repeat_penalty` (1 = off), `presence_penalty`, `frequency_penalty` (0 =
        off), `repeat_last_n` (64; 0 = none, -1 = all), `seed` (None = random), `logit_bias` ({token: bias}),
        `stop` (a string or several; for text), `stop_tokens` (ids; None = the model's own), `timeout`
        (seconds to wait for a lane, None = 60).

        A token is drawn as llama.cpp's sampler chain does. `logit_bias` is added to the logits. A token that
        is n > 0 times among the last `repeat_last_n` has its logit x replaced by x / repeat_penalty
        (x * repeat_penalty if x <= 0; Keskar et al., 2019, section 4.1), less n * frequency_penalty +
        presence_penalty (OpenAI's API). Then the `top_k` likeliest stay; of these as few as together have
        `top_p` of the probability (Holtzman et al., 2020); of these those with at least `min_p` times that of
        the likeliest (Nguyen et al., 2024). The draw is from softmax(x / temperature).

        Raises `InvalidArgumentError` naming the option or the prompt before anything runs; for text
        `ImportError` or `ValueError` as `tokenizer`; then what `sequence`, `Sequence.prefill` and
        `Sequence.decode` raise.
        """
        from calrt.generate import generate_ids, generate_text

        flag("stream", stream)
        if isinstance(prompt, str):
            pieces = generate_text(self, text("prompt", prompt), max_tokens, options)
            return pieces if stream else "".join(pieces)
        ids = generate_ids(
            self, iterable("prompt", prompt, "a text or a list of token ids"), max_tokens, options
        )
        return ids if stream else list(ids)

    def reload(self) -> Model:
        """Unloads the model and loads the same package with the same options: a new `Model`.

        This one is closed then, and its handles answer MODEL_UNLOADED. Raises what `Device.load` raises.
        """
        with suppress(WaitTimeoutError):  # of a job that does not end: it is lost to this generation
            self.close(force=True)
        return self._load()

    def close(self, force: bool = False) -> None:
        """Refuses new jobs, cancels those in flight and waits up to 5 s for them. Idempotent.

        `WaitTimeoutError` if a job did not end; the model is closed all the same. `BufferError` while views
        of its memory live (numpy, memoryview, DLPack), and nothing changes; with `force`, as at the end of a
        `with`, they keep their memory for themselves.
        """
        self._native.close(force)

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        # What the block raised matters more than a job that did not end in time.
        with suppress(CalrtError) if value is not None else nullcontext():
            self.close(force=True)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<calrt.Model {self.package.name!r} lanes={self.lanes} cells={self.cells}{state}>"
