# SPDX-License-Identifier: Apache-2.0
"""One total table from what went wrong to what a client is told; used by JSON answers and by streams.

llama-server's error object (`{"error": {"code", "message", "type"}}`) is read by OpenAI's clients too, so
one shape serves every dialect of this server.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct


class Kind(Enum):
    """Classes of refusal. The names never change: clients may act on them."""

    INVALID = "invalid_request_error"
    TOO_LONG = "exceed_context_size_error"
    UNAUTHORISED = "authentication_error"
    NOT_FOUND = "not_found_error"
    BODY_TOO_LARGE = "request_too_large_error"
    BODY_TIMEOUT = "request_timeout_error"
    OVERLOADED = "overloaded_error"
    UNSUPPORTED = "not_supported_error"
    UNAVAILABLE = "unavailable_error"
    DEADLINE = "deadline_exceeded_error"
    SERVER = "server_error"


class Row(Struct, frozen=True):
    """HTTP status and, where trying again makes sense, the seconds to wait."""

    status: int
    retry_after: int | None = None


TABLE: dict[Kind, Row] = {
    Kind.INVALID: Row(400),
    Kind.TOO_LONG: Row(400),
    Kind.UNAUTHORISED: Row(401),
    Kind.NOT_FOUND: Row(404),
    Kind.BODY_TOO_LARGE: Row(413),
    Kind.BODY_TIMEOUT: Row(408),
    Kind.OVERLOADED: Row(429, retry_after=1),
    Kind.UNSUPPORTED: Row(501),
    Kind.UNAVAILABLE: Row(503, retry_after=1),
    Kind.DEADLINE: Row(504),
    Kind.SERVER: Row(500),
}

_ARGUMENT = range(1, 8)
_FULL = range(13, 21)  # memory, buffers, queue and KV
_DEVICE_LOST, _DEVICE_UNHEALTHY = 27, 28


def kind_of(status: int) -> Kind:
    """Of a failure with this `calrt.Status`: the client's, ours, or one that passes, as of a lost device."""
    if status in _ARGUMENT:
        return Kind.INVALID
    if status in _FULL or status in (_DEVICE_LOST, _DEVICE_UNHEALTHY):
        return Kind.UNAVAILABLE
    return Kind.SERVER


class Refused(Exception):
    """A request that gets an error instead of an answer. `extra` joins the error object."""

    def __init__(self, kind: Kind, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.extra = extra

    @property
    def row(self) -> Row:
        """Status and Retry-After of this refusal."""
        return TABLE[self.kind]

    def body(self) -> dict[str, Any]:
        """The error object, as clients receive it."""
        error = {"code": self.row.status, "message": self.message, "type": self.kind.value, **self.extra}
        return {"error": error}


def bad_field(name: str, problem: str) -> Refused:
    """A field with a wrong type or value."""
    return Refused(Kind.INVALID, f"Field '{name}': {problem}")


def too_long(tokens: int, cells: int, counted: bool = True) -> Refused:
    """A prompt of `tokens` (at least so many, unless `counted`) that leaves no room in `cells`."""
    number = f"{tokens} tokens" if counted else f"at least {tokens} tokens"
    return Refused(
        Kind.TOO_LONG,
        f"request ({number}) exceeds the available context size ({cells} tokens), try increasing it",
        n_prompt_tokens=tokens,
        n_ctx=cells,
    )


def unsupported_field(name: str, what: str) -> Refused:
    """A field that llama-server knows, whose value would change the result, and that we lack."""
    return Refused(
        Kind.UNSUPPORTED,
        f"Field '{name}': {what} is not supported by this version of calrt; leave the field out",
    )


def from_native(error: BaseException) -> Refused:
    """A refusal for an exception of the runtime (`calrt.CalrtError`) or of anything else."""
    return Refused(kind_of(getattr(error, "code", 0)), str(error) or type(error).__name__)
