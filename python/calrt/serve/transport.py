# SPDX-License-Identifier: Apache-2.0
"""How uvicorn carries the application: the one place for its settings.

h11 reads HTTP because it bounds what it buffers: a head that is too long is refused, not stored. It also
hands on the body of a request that offers an upgrade (`Upgrade: h2c`), which is then answered over HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import logging

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import Kind, Refused
from .replies import refusal

log = logging.getLogger("calrt.serve")

MAX_HEAD = 64 << 10
"""Bytes of a request line with its headers."""


def uvicorn_config(
    app: ASGIApp, *, access_log: bool = False, close_seconds: int | None = None
) -> uvicorn.Config:
    """uvicorn's settings for `app`; connections that are left at the end get `close_seconds`."""
    return uvicorn.Config(
        _Outermost(app),
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=access_log,
        server_header=False,
        timeout_graceful_shutdown=close_seconds,
    )


class _Outermost:
    """Ends what uvicorn cuts off at shutdown; by itself it would log a defect of ours and answer 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            log.debug("%s %s was cut off by the shutdown", scope["method"], scope["path"])
            if not started:
                await refusal(Refused(Kind.UNAVAILABLE, "The server is stopping"))(scope, receive, send)
