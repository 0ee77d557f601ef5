# SPDX-License-Identifier: Apache-2.0
"""What the routes work with: the server's settings, and the loaded model once it is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Struct

from calrt.errors import StateError
from calrt.recovery import RecoveryBudget

from .chat import ChatTemplate
from .engine import Engine, Limits
from .errors import Kind, Refused
from .fields import Options
from .ports import LaneStore, Runner
from .tokenizer import PromptEncoder, Tokenizer

log = logging.getLogger("calrt.serve")

_PAUSE_S = 1.0
"""Before a device that could not be opened is tried again."""

_LAST_JOB_S = 3.0
"""For the job in flight to end, once the requests have."""


class Settings(Struct, frozen=True, kw_only=True):
    """How the server behaves. Times in seconds, sizes in bytes."""

    options: Options = Options()
    """Defaults of the request fields."""
    limits: Limits = Limits()
    aliases: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    cors_origins: str = ""
    """"*", "localhost", or one origin. Empty: "*" with a key, "localhost" without."""
    body_limit: int = 32 << 20
    body_timeout: float = 60.0
    ping: float = 30.0
    drain: float = 5.0
    recoveries: int = 3
    """How often a lost device is opened anew within `recovery_window` seconds."""
    recovery_window: float = 600.0
    greeting: tuple[str, ...] = ()
    """Lines for the log once the model is ready."""


class Description(Struct, frozen=True, kw_only=True):
    """What is known about the model, for /props and /v1/models. Zero or empty when it is not known."""

    name: str
    path: str = ""
    device: str = ""
    vocab_type: int = 0
    n_ctx_train: int = 0
    n_embd: int = 0
    n_params: int = 0
    size: int = 0
    ftype: str = ""
    compute: str = ""
    kv_dtype: str = ""
    hardware_batch: int = 0
    in_flight: int = 1
    evidence: dict[str, str] = {}


class Parts(Struct, frozen=True, kw_only=True):
    """A loaded model, taken apart: what `load` hands to the service. `close` gives everything back."""

    runner: Runner
    lanes: LaneStore
    tokenizer: Tokenizer
    description: Description
    vocab: int = 0
    """Logits of the model; may be more than the tokenizer's tokens."""
    close: Callable[[], None] = lambda: None


class Loaded:
    """The model as the routes see it."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        description: Description,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.description = description
        self.encoder = PromptEncoder(tokenizer)
        self.close = close
        self.bos_text = _token_text(tokenizer, tokenizer.bos)
        self.eos_text = _token_text(tokenizer, tokenizer.eos)
        self.template = ChatTemplate(tokenizer.chat_template, self.bos_text, self.eos_text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text."""
        return self.tokenizer.byte_table[token]


class Service:
    """One server's state: not loaded, loaded, being recovered, stopping, or failed."""

    def __init__(self, settings: Settings, load: Callable[[], Parts] | None = None) -> None:
        self.settings = settings
        self.started = int(time.time())
        self.failure: BaseException | None = None
        self.stopping = False
        self.inside = False
        """Whether a thread may still be inside the device, where it cannot be interrupted."""
        self.lost: str | None = None
        """Why the device was lost that is being opened anew; None at other times."""
        self._load = load
        self._loaded: Loaded | None = None
        self._budget = RecoveryBudget(settings.recoveries, settings.recovery_window)

    def adopt(self, loaded: Loaded) -> None:
        """Serve this model from now on."""
        self._loaded = loaded

    @property
    def loaded(self) -> Loaded:
        """The model. Refused (503) while it is being loaded."""
        if self._loaded is None:
            if self.failure is not None:
                raise Refused(Kind.UNAVAILABLE, f"The model could not be loaded: {self.failure}")
            if self.lost is not None:
                text = f"The device was lost and is being opened again: {self.lost}"
                raise Refused(Kind.UNAVAILABLE, text)
            raise Refused(Kind.UNAVAILABLE, "Loading model")
        return self._loaded

    @property
    def model_name(self) -> str:
        """What answers call the model: the first alias in the alphabet, else the model's own name."""
        if self.settings.aliases:
            return min(self.settings.aliases)
        return self.loaded.description.name

    async def load(self, failed: Callable[[BaseException], None]) -> None:
        """Load the model and start the engine; `failed` is told when that does not work.

        A device that is lost later is opened anew, with the same model, as often as the settings allow; what
        ran on it has ended with an error. After that the server answers that its device has failed.
        """
        if (error := await self._load_once()) is not None:
            self.failure = error
            failed(error)
            return
        while True:
            engine = self._engine()
            await engine.lost.wait()
            if self.stopping or not await self._recover(engine):
                return

    def _engine(self) -> Engine:
        return self.loaded.engine

    async def _load_once(self) -> Exception | None:
        """Load in a thread and serve. The error if that did not work."""
        if self._load is None:
            raise RuntimeError("this service has no loader")
        began = time.monotonic()
        self.inside = True
        try:
            parts = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            engine = Engine(
                parts.runner, parts.lanes, parts.tokenizer, self.settings.limits, vocab=parts.vocab
            )
            loaded = Loaded(engine, parts.tokenizer, parts.description, parts.close)
        except Exception as error:
            return error
        finally:
            self.inside = False
        engine.start()
        again = self.lost is not None
        self.lost = None
        self.adopt(loaded)
        if loaded.template.is_default and not again:
            log.warning("the model has no chat template; chat requests use ChatML")
        log.info(
            "model %s is ready%s after %.1f s: %d software slots of %d tokens, hardware batch %s",
            self.model_name,
            " again" if again else "",
            time.monotonic() - began,
            engine.lanes,
            engine.cells,
            self.loaded.description.hardware_batch or "unknown",
        )
        for line in () if again else self.settings.greeting:
            log.info("%s", line)
        return None

    async def _recover(self, engine: Engine) -> bool:
        """Open the lost device of `engine` anew. False when that may not be tried again."""
        lost = engine.failure or "it is lost"
        if not self._may_recover(engine, lost):
            return False
        loaded, self._loaded, self.lost = self.loaded, None, lost
        await engine.close()
        await anyio.to_thread.run_sync(loaded.close)
        while (error := await self._load_once()) is not None:
            log.error("the device could not be opened again: %s", error)
            if self.stopping or not self._may_recover(engine, f"{lost}; then {error}"):
                self.failure = self.failure or error
                return False
            await anyio.sleep(_PAUSE_S)
        return True

    def _may_recover(self, engine: Engine, why: str) -> bool:
        name = "of the server"
        try:
            self._budget.spend(name)
        except StateError as spent:
            engine.failure = f"{why} ({spent.message})"
            log.error("the device has failed: %s; restart the server", engine.failure)
            return False
        used = self._budget.attempts - self._budget.left(name)
        log.warning("the device was lost: %s; recovery %d of %d", why, used, self._budget.attempts)
        return True

    async def close(self, drain: float | None = None) -> None:
        """Refuse new requests, finish running ones within `drain` seconds, end the rest, unload.

        A device whose job in flight does not end then is left as it is, with a thread inside.
        """
        self.stopping = True
        if self._loaded is None or self.inside:
            return
        drain = self.settings.drain if drain is None else drain
        self.inside = True
        with anyio.move_on_after(drain + _LAST_JOB_S):
            await self._loaded.engine.close(drain)
            self.inside = False
        if self.inside:
            log.warning("a job has not ended %g s after the last request: it is left", _LAST_JOB_S)
            return
        close, self._loaded.close = self._loaded.close, lambda: None
        await anyio.to_thread.run_sync(close)

    def health(self) -> dict[str, Any]:
        """The body of /health. Refused (503) when the server cannot answer requests."""
        engine = self.loaded.engine
        if engine.failure is not None:
            raise Refused(Kind.UNAVAILABLE, f"The device has failed: {engine.failure}. Restart the server")
        if self.stopping:
            raise Refused(Kind.UNAVAILABLE, "The server is stopping")
        return {"status": "ok"}


def _token_text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)
