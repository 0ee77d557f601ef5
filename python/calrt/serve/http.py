# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: keys, CORS, routing, errors. Knows no field of any dialect.

`Front` is the outermost layer and plain ASGI: it buffers nothing. A request passes it in this order:
preflight, key, route, handler; whatever is raised becomes one JSON error.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .engine import Engine
from .errors import Kind, Refused, from_native
from .replies import refusal
from .routes import MISSING, PUBLIC, ROUTES
from .service import Description, Loaded, Service, Settings
from .stream import ClientGone
from .tokenizer import Tokenizer

log = logging.getLogger("calrt.serve")

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SERVER = (b"server", b"calrt")
_DISCARD_SECONDS = 1.0
_DISCARD_BYTES = 64 << 20


class _Body:
    """A request's body as it arrives, which knows whether all of it has."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._complete = True
        return message

    async def discard(self) -> None:
        """Read the rest, within bounds of time and size.

        A connection that is closed over unread data is reset, and the client may never see the answer.
        """
        left = _DISCARD_BYTES
        with anyio.move_on_after(_DISCARD_SECONDS):
            while not self._complete and left > 0:
                left -= len((await self.receive()).get("body", b""))


def create_app(
    engine: Engine,
    tokenizer: Tokenizer | None = None,
    *,
    settings: Settings | None = None,
    description: Description | None = None,
) -> Starlette:
    """An ASGI application over an engine, for embedding.

    `tokenizer` defaults to the one the engine was made with. An engine that is not started yet is started
    and closed with the application; a started one stays the caller's.
    """
    chosen = cast(Tokenizer, engine.vocabulary) if tokenizer is None else tokenizer
    service = Service(settings or Settings())
    service.adopt(Loaded(engine, chosen, description or Description(name="model")))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if engine.started:
            yield
            return
        engine.start()
        try:
            yield
        finally:
            await service.close()

    return _starlette(service, lifespan)


def application(service: Service, failed: Callable[[BaseException], None]) -> Starlette:
    """The application of a service that loads its model: loading starts with the server, not before it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(service.load, failed)
            yield
            group.cancel_scope.cancel()

    return _starlette(service, lifespan)


def _starlette(
    service: Service, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
) -> Starlette:
    return Starlette(lifespan=lifespan, middleware=[Middleware(Front, service=service)])


class Front:
    """Outermost ASGI layer of the server."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = [key.encode() for key in service.settings.api_keys]
        self._origins = service.settings.cors_origins or ("*" if self._keys else "localhost")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(receive)
        extra = [_SERVER, *self._cors(headers)]
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            elif scope["method"] == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._answer(scope, body.receive, send_with_headers, headers)
        except ClientGone:
            log.debug("the client left before its answer")
        except Refused as refused:
            if started:
                raise
            await _discard(body, headers)
            await refusal(refused)(scope, receive, send_with_headers)
        except Exception as error:
            if started:
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            await _discard(body, headers)
            await refusal(from_native(error))(scope, receive, send_with_headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path = scope["path"]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method == "OPTIONS":
            await _preflight(send)
            return
        if self._keys and path not in PUBLIC and not self._has_key(headers):
            raise Refused(Kind.UNAUTHORISED, "Invalid API Key")
        handler = ROUTES.get((method, path))
        if handler is None:
            if (what := MISSING.get((method, path))) is not None:
                raise Refused(Kind.UNSUPPORTED, f"{path}: this version of calrt does not support {what}")
            raise Refused(Kind.NOT_FOUND, "File Not Found")
        reply = await handler(self._service, Request(scope, receive))
        await reply(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        given = headers.get("authorization") or headers.get("x-api-key") or ""
        key = given.removeprefix("Bearer ").encode()
        # Every key is compared, and in constant time: the answer's time tells nothing.
        return sum([hmac.compare_digest(key, known) for known in self._keys]) > 0

    def _cors(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        origin = headers.get("origin")
        if origin is None:
            return []
        allowed = self._allowed_origin(origin)
        if allowed is None:
            return []
        return [
            (b"Access-Control-Allow-Origin", allowed.encode("latin-1")),
            (b"Access-Control-Allow-Credentials", b"true"),
            (b"vary", b"Origin"),
        ]

    def _allowed_origin(self, origin: str) -> str | None:
        if self._origins == "*":
            return origin
        if self._origins == "localhost":
            return origin if _is_local(origin) else None
        return self._origins


async def _discard(body: _Body, headers: Headers) -> None:
    if "expect" not in headers:  # who asks first has sent nothing, and shall not
        await body.discard()


async def _preflight(send: Send) -> None:
    # Spelt as llama-server spells them: there are clients that compare names by case.
    headers = [
        (b"Access-Control-Allow-Methods", b"GET, POST, DELETE, OPTIONS"),
        (b"Access-Control-Allow-Headers", b"*"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _is_local(origin: str) -> bool:
    try:
        return (urlsplit(origin).hostname or "") in _LOCAL_HOSTS
    except ValueError:
        return False
