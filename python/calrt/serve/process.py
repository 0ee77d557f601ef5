# SPDX-License-Identifier: Apache-2.0
"""One server process: the event loop, uvicorn, signals and an orderly end.

The socket answers before the model is loaded (503 "Loading model" until it is ready). The first SIGTERM or
SIGINT closes the socket, lets running requests finish for --drain-timeout seconds, ends the rest with an
error event, and the process exits with 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator

import anyio
import uvicorn

from .engine import Limits
from .fields import RANDOM_SEED, Options
from .flags import Config
from .http import application
from .service import Service, Settings
from .transport import uvicorn_config

log = logging.getLogger("calrt.serve")

_BACKLOG = 512
_CLOSE_CONNECTIONS = 2
"""Seconds that connections get after the last answer."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(config: Config, path: str, listener: socket.socket) -> int:
    """Serve until a signal comes; the exit code."""
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        process = _Process(config, path, url_of(listener))
        code = loop.run_until_complete(process.run(listener))
        if process.service.inside:
            # A thread is inside the device and cannot be interrupted; do not wait for it.
            logging.shutdown()
            os._exit(code)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        return code
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def settings_of(config: Config, greeting: tuple[str, ...] = ()) -> Settings:
    """The server's settings from its flags."""
    return Settings(
        options=Options(
            n_predict=config.n_predict,
            temperature=config.temp,
            seed=config.seed & RANDOM_SEED,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            repeat_last_n=config.repeat_last_n,
            repeat_penalty=config.repeat_penalty,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
        ),
        limits=Limits(queue=config.queue, timeout=config.timeout, send_timeout=config.send_timeout),
        aliases=_list(config.alias),
        api_keys=_list(config.api_key),
        cors_origins=config.cors_origins,
        body_limit=config.body_limit,
        ping=config.sse_ping_interval,
        drain=config.drain_timeout,
        recoveries=config.recoveries,
        greeting=greeting,
    )


def demo_greeting(url: str) -> tuple[str, ...]:
    """Three things to try, as lines that can be pasted."""
    chat = '{"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "stream": true}'
    prompt = '{"prompt": "The capital of France is", "n_predict": 16, "temperature": 0}'
    return (
        "try it (Ctrl-C stops the server):",
        f"  curl {url}/completion -d '{prompt}'",
        f"  curl -N {url}/v1/chat/completions -d '{chat}'",
        f"  curl {url}/props",
    )


def url_of(listener: socket.socket) -> str:
    """Where the listener can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Process:
    """A running server and what stops it."""

    def __init__(self, config: Config, path: str, url: str) -> None:
        from .backend import load

        greeting = demo_greeting(url) if config.demo else ()
        self.service = Service(settings_of(config, greeting), lambda: load(config, path))
        self._config = config
        self._stop = asyncio.Event()
        self._code = 0

    async def run(self, listener: socket.socket) -> int:
        server = _Server(
            uvicorn_config(
                application(self.service, self._load_failed),
                access_log=self._config.verbose,
                close_seconds=_CLOSE_CONNECTIONS,
            )
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        log.info("listening on %s", url_of(listener))
        async with anyio.create_task_group() as group:
            group.start_soon(self._uvicorn, server, listener)
            await self._stop.wait()
            for each in server.servers:
                each.close()
            await self.service.close()
            server.should_exit = True
        return self._code

    async def _uvicorn(self, server: _Server, listener: socket.socket) -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            self._stop.set()

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            log.warning("second signal: ending at once")
            logging.shutdown()
            os._exit(128 + number)
        log.info("stopping: running requests get %g s", self._config.drain_timeout)
        self._stop.set()

    def _load_failed(self, error: BaseException) -> None:
        log.debug("loading failed", exc_info=error)
        log.error("the model could not be loaded: %s", error)
        self._code = 1
        self._stop.set()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
