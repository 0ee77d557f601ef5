# SPDX-License-Identifier: Apache-2.0
"""Bodies in and out: JSON read within its limits, JSON written, errors as answers."""

from __future__ import annotations

from typing import Any, Protocol

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from .errors import Kind, Refused
from .fields import kind_name
from .service import Service
from .stream import ClientGone

JSON_TYPE = b"application/json; charset=utf-8"


class Reply(Protocol):
    """An ASGI response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""


class Json:
    """A JSON answer in one piece."""

    def __init__(self, value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self._body = msgspec.json.encode(value)
        self._status = status
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", JSON_TYPE),
            (b"content-length", str(len(self._body)).encode()),
            *self._headers,
        ]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


def refusal(refused: Refused) -> Json:
    """The answer for a refusal. The connection is closed: the rest of a body may never have been read."""
    headers: tuple[tuple[bytes, bytes], ...] = ((b"connection", b"close"),)
    if refused.row.retry_after is not None:
        headers += ((b"retry-after", str(refused.row.retry_after).encode()),)
    return Json(refused.body(), refused.row.status, headers)


async def read_body(service: Service, request: Request) -> dict[str, Any]:
    """The request's JSON object, read within the size and time limits."""
    raw = await _read_raw(service, request)
    try:
        body = msgspec.json.decode(raw)
    except RecursionError:
        raise Refused(Kind.INVALID, "The body is nested too deeply; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(Kind.INVALID, f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(Kind.INVALID, f"The body must be a JSON object, not {kind_name(body)}")
    return body


async def _read_raw(service: Service, request: Request) -> bytes:
    limit, seconds = service.settings.body_limit, service.settings.body_timeout
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(
            Kind.BODY_TIMEOUT, f"The body did not arrive within {seconds:g} s ({size} bytes came)"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def _too_large(limit: int) -> Refused:
    return Refused(
        Kind.BODY_TOO_LARGE, f"The body is larger than {limit} bytes; send less or raise --body-limit"
    )
