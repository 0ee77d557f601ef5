# SPDX-License-Identifier: Apache-2.0
"""The alphabet of the serving layer: what enters the scheduler, what leaves it. Plain data, no behaviour.

Times are integers of nanoseconds on one monotonic clock (the clock of the native runner); a time never
comes from inside this module or the scheduler. Token ids are vocabulary indices. Do not subclass.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TypeAlias

from msgspec import Struct

TokenProbs: TypeAlias = "tuple[float, list[tuple[int, float]]]"
"""(log probability of the drawn token, [(token id, log probability), ...] of the best candidates)."""


class RunnerEvent(IntEnum):
    """Kinds of the native runner's event tuples (csrc/engine/plan.h)."""

    STARTED = 1
    PREFILL = 2
    TOKEN = 3
    ENDED = 4


class Finish(Enum):
    """Why a request ended. The first six carry the native runner's numbers."""

    STOP = 1
    """A stop token (end of sequence) was drawn."""
    LENGTH = 2
    """The request's own budget of tokens is used up."""
    CONTEXT = 3
    """The lane is full."""
    CANCELLED = 4
    """The client left, or its owner cancelled it."""
    DEADLINE = 5
    """The request's deadline passed."""
    FAILED = 6
    """The device failed; the terminal event carries status and text."""
    WORD = 7
    """A stop string was found."""
    SLOW = 8
    """The client did not read its stream within the send deadline."""
    SHUTDOWN = 9
    """The server stops."""


class Sampling(Struct, frozen=True, kw_only=True):
    """What the native sampler is told; every value is resolved and in range."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int = 0
    n_probs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()


class Accepted(Struct, frozen=True, kw_only=True):
    """A request that passed every check at the border: holding one is the proof."""

    request: int
    """Number given by the engine, never reused."""
    tokens: tuple[int, ...]
    """The prompt, at least one token, shorter than a lane."""
    max_tokens: int
    """Budget of new tokens, >= 1; prompt and budget together fit the lane."""
    context_bound: bool = False
    """True when `max_tokens` is what the lane has left and not what was asked for."""
    stop_tokens: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    slot: int = -1
    """The lane it must run on, -1 for any."""
    arrived: int = 0
    deadline: int | None = None


# ---- events in ----------------------------------------------------------------------------------


class Arrived(Struct, frozen=True):
    """A new request; answered by Refuse, or by a Close some time later."""

    accepted: Accepted


class Granted(Struct, frozen=True):
    """The KV store gave the lane that Reserve asked for."""

    request: int
    lane: int


class Denied(Struct, frozen=True):
    """The lane is held by someone else; try again not before `until`."""

    request: int
    lane: int
    until: int


class Started(Struct, frozen=True):
    """The first prefill job is on the device."""

    request: int
    at: int


class ChunkDone(Struct, frozen=True):
    """`done` prompt tokens are in the lane."""

    request: int
    done: int
    at: int


class Token(Struct, frozen=True):
    """One drawn token."""

    request: int
    token: int
    at: int
    probs: TokenProbs | None = None


class Ended(Struct, frozen=True):
    """The runner let go of the request and its lane is free, or its lane cannot be had at all."""

    request: int
    finish: Finish
    at: int
    status: int = 0
    native_code: int = 0
    text: str = ""


class Cancelled(Struct, frozen=True):
    """The owner wants no more of it: client gone, stop string found, slow reader."""

    request: int
    finish: Finish = Finish.CANCELLED


class Expired(Struct, frozen=True):
    """The deadline passed. Made by the scheduler itself from `now`."""

    request: int


class Unloaded(Struct, frozen=True):
    """The server stops: every live request gets this."""

    request: int


Event: TypeAlias = (
    Arrived | Granted | Denied | Started | ChunkDone | Token | Ended | Cancelled | Expired | Unloaded
)


# ---- actions out --------------------------------------------------------------------------------


class Refuse(Struct, frozen=True):
    """The queue is full; the request was never accepted."""

    request: int
    waiting: int
    limit: int


class Reserve(Struct, frozen=True):
    """Ask the KV store for lane `lane` with room for `cells`.

    The answer is Granted, Denied (later) or Ended (never).
    """

    request: int
    lane: int
    cells: int


class Launch(Struct, frozen=True):
    """Hand the request to the runner on its reserved lane."""

    accepted: Accepted
    lane: int


class Stop(Struct, frozen=True):
    """Tell the runner to let go of the request."""

    request: int


class Emit(Struct, frozen=True):
    """A live request has news for its owner."""

    request: int
    event: Started | ChunkDone | Token


class Close(Struct, frozen=True):
    """The one terminal event of an accepted request."""

    request: int
    finish: Finish
    at: int | None = None
    """When the runner ended it; None when the owner's side did."""
    status: int = 0
    native_code: int = 0
    text: str = ""


class Illegal(Struct, frozen=True):
    """An event that the table does not list for this state. Nothing was changed."""

    request: int
    state: str
    event: str


Action: TypeAlias = Refuse | Reserve | Launch | Stop | Emit | Close | Illegal


class Plan(Struct, frozen=True):
    """What a step wants done, in order, and when it wants to be called again at the latest."""

    actions: tuple[Action, ...]
    wake_at: int | None


# ---- what the owner of a request sees -----------------------------------------------------------


class Begun(Struct, frozen=True):
    """The device works on the prompt; it runs on slot `lane`."""

    lane: int
    at: int


class Progress(Struct, frozen=True):
    """`done` of `total` prompt tokens are in the lane, `elapsed_ms` after Begun."""

    done: int
    total: int
    elapsed_ms: float


class Timings(Struct, frozen=True, kw_only=True):
    """Counts and milliseconds of one request."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class Piece(Struct, frozen=True):
    """Text that became certain, and the tokens since the last piece. `predicted` counts all so far."""

    text: str
    tokens: tuple[int, ...]
    probs: tuple[TokenProbs, ...]
    predicted: int
    timings: Timings


class End(Struct, frozen=True, kw_only=True):
    """The one terminal event. `text` is the held back rest; what follows a stop string is not in it."""

    finish: Finish
    text: str = ""
    tokens: tuple[int, ...] = ()
    probs: tuple[TokenProbs, ...] = ()
    word: str = ""
    prompt_tokens: int = 0
    predicted: int = 0
    lane: int = -1
    has_new_line: bool = False
    timings: Timings = Timings()
    status: int = 0
    native_code: int = 0
    error: str = ""


OwnerEvent: TypeAlias = Begun | Progress | Piece | End
