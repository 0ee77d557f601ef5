# SPDX-License-Identifier: Apache-2.0
"""The HTTP server under pressure, over a fake runner: full queue, clients that leave, drain."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import pytest

from calrt.serve.engine import Limits
from calrt.serve.http import Front
from calrt.serve.messages import Finish
from calrt.serve.service import Service, Settings
from calrt.serve.transport import MAX_HEAD
from fake_server import FakeServer, parse_events

LETTER = 4 + ord("z")


def endless(prompt: list[int], step: int) -> int:
    return LETTER


def send(server: FakeServer, path: str, body: dict[str, Any]) -> socket.socket:
    """A raw request, so that the client can leave or stop reading whenever it wants."""
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), 10)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


def running(server: FakeServer) -> int:
    numbers = server.call(lambda: server.service.loaded.engine.statistics()).scheduler
    return numbers.running + numbers.queued


def finished(server: FakeServer) -> dict[str, int]:
    return server.call(lambda: server.service.loaded.engine.statistics()).finished


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_lane(stream: bool) -> None:
    with FakeServer(script=endless, delay=0.005, cells=100_000) as server:
        server.ready()
        connection = send(server, "/completion", {"prompt": "Hi", "stream": stream})
        server.until(lambda: running(server) == 1)
        if stream:
            assert connection.recv(100)
        connection.close()
        server.until(server.idle)
        assert finished(server) == {"cancelled": 1}


def test_a_client_that_leaves_the_queue_never_runs() -> None:
    with FakeServer(script=endless, delay=0.005, cells=100_000, lanes=1) as server:
        server.ready()
        first = send(server, "/completion", {"prompt": "a", "stream": True})
        server.until(lambda: running(server) == 1)
        second = send(server, "/completion", {"prompt": "b"})
        server.until(lambda: running(server) == 2)
        second.close()
        server.until(lambda: running(server) == 1)
        first.close()
        server.until(server.idle)
        assert len(server.runner.started) == 1


def test_leaving_at_the_very_end_loses_no_lane() -> None:
    with FakeServer(script=lambda prompt, step: LETTER if step < 3 else None) as server:
        server.ready()
        for number in range(150):
            connection = send(server, "/completion", {"prompt": "a", "stream": number % 2 == 0})
            if number % 3:
                connection.recv(10 if number % 3 == 1 else 5000)
            connection.close()
        server.until(server.idle)
        assert server.http.post("/completion", json={"prompt": "a"}).json()["content"] == "zzz"


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    settings = Settings(limits=Limits(queue=2))
    with FakeServer(script=endless, delay=0.005, cells=100_000, lanes=1, settings=settings) as server:
        server.ready()
        connections = [send(server, "/completion", {"prompt": "a", "stream": True}) for _ in range(3)]
        server.until(lambda: running(server) == 3)
        for stream in (False, True):
            answer = server.http.post("/completion", json={"prompt": "a", "stream": stream})
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["type"] == "overloaded_error"
        # Of several prompts all are taken or none.
        assert server.http.post("/completion", json={"prompt": ["a", "b"]}).status_code == 429
        assert running(server) == 3
        assert server.http.get("/health").status_code == 200
        for connection in connections:
            connection.close()
        server.until(server.idle)


def test_each_stream_gives_what_it_gives_alone() -> None:
    with FakeServer(lanes=4) as server:
        server.ready()
        bodies = [{"prompt": f"story {n}", "n_predict": 40, "stream": True} for n in range(8)]

        def text(body: dict[str, Any]) -> str:
            return "".join(event["content"] for event in server.stream("/completion", body))

        alone = [text(body) for body in bodies]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(text, bodies)) == alone
        assert len(set(alone)) > 1
        server.until(server.idle)


def test_a_client_that_does_not_read_is_dropped_and_others_are_served() -> None:
    settings = Settings(limits=Limits(send_timeout=0.3, outbox=64))
    with FakeServer(script=endless, cells=10_000_000, settings=settings, send_buffer=4096) as server:
        server.ready()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        raw = b'{"prompt": "a", "stream": true}'
        connection.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
        )
        server.until(lambda: running(server) == 1)
        assert server.http.post("/completion", json={"prompt": "b", "n_predict": 2}).json()["content"] == "zz"
        server.until(server.idle, 30)
        assert set(finished(server)) & {"slow", "cancelled"}
        connection.close()


def test_many_open_streams_leave_room_for_others() -> None:
    settings = Settings(limits=Limits(queue=400))
    with FakeServer(script=endless, delay=0.02, cells=100_000, lanes=2, settings=settings) as server:
        server.ready()
        connections = [send(server, "/completion", {"prompt": "a", "stream": True}) for _ in range(300)]
        server.until(lambda: running(server) == 300)
        assert server.http.get("/health").status_code == 200
        assert server.http.post("/tokenize", json={"content": "x"}).json() == {"tokens": [4 + ord("x")]}
        for connection in connections:
            connection.close()
        server.until(server.idle, 30)


def test_a_body_that_is_too_large_or_never_comes() -> None:
    settings = Settings(body_limit=2000, body_timeout=0.2)
    with FakeServer(settings=settings) as server:
        server.ready()
        declared = server.http.post("/completion", content=b"x" * 3000)
        assert declared.status_code == 413
        assert "2000 bytes" in declared.json()["error"]["message"]
        chunked = server.http.post("/completion", content=iter([b"x" * 1500, b"x" * 1500]))
        assert chunked.status_code == 413
        connection = socket.create_connection(("127.0.0.1", server.port), 10)
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
        connection.close()


@pytest.mark.parametrize(("path", "status"), [("/infill", 501), ("/nowhere", 404), ("/completion", 413)])
def test_a_refusal_comes_after_the_body_was_read(path: str, status: int) -> None:
    # A connection that is closed over unread data is reset, and the client may lose the answer.
    chunks = [{"type": "http.request", "body": b"x" * 1000, "more_body": left > 0} for left in (2, 1, 0)]
    sent: list[tuple[int, Any]] = []

    async def receive() -> Any:
        return chunks.pop(0)

    async def send(message: Any) -> None:
        sent.append((len(chunks), message))

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    anyio.run(Front(lambda *_: None, Service(Settings(body_limit=1500))), scope, receive, send)  # type: ignore[arg-type]
    unread, start = sent[0]
    assert unread == 0
    assert start["status"] == status


@pytest.mark.parametrize("size", [100_000, 1_000_000])
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
def test_a_long_head_is_refused_and_the_server_lives(size: int, end: bytes) -> None:
    with FakeServer() as server:
        server.ready()
        head = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * size + end
        with socket.create_connection(("127.0.0.1", server.port), 10) as huge:
            answer = b""
            try:
                for begin in range(0, len(head), 4096):
                    huge.sendall(head[begin : begin + 4096])
                    if select.select([huge], [], [], 0 if begin < 80_000 else 0.05)[0]:
                        break
                answer = huge.recv(1000)
            except ConnectionError:  # the refusal was overtaken by the end of the connection
                assert begin >= MAX_HEAD
            assert not answer or answer.startswith(b"HTTP/1.1 4")
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/health", headers={"X-Long": "x" * 60_000}).status_code == 200


def test_the_offer_of_another_protocol_is_passed_over() -> None:
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAAP__",
    }
    with FakeServer(script=lambda p, s: LETTER if s < 3 else None) as server:
        server.ready()
        answer = server.http.post("/completion", json={"prompt": "a" * 200}, headers=headers)
        assert answer.status_code == 200
        assert (answer.json()["content"], answer.json()["tokens_evaluated"]) == ("zzz", 201)


def test_slow_readers_and_cut_off_requests_are_no_defects(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(limits=Limits(send_timeout=0.3, outbox=64))
    with FakeServer(
        script=endless, cells=10_000_000, settings=settings, send_buffer=4096, close_seconds=1
    ) as server:
        server.ready()
        open_before = set(server._server.server_state.connections)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        raw = b'{"prompt": "a", "stream": true}'
        connection.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
        )
        server.until(lambda: running(server) == 1)
        server.until(server.idle, 30)
        connection.close()
        server.until(lambda: not server._server.server_state.connections - open_before)
        waiting = socket.create_connection(("127.0.0.1", server.port), 10)
        waiting.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        server.until(lambda: len(server._server.server_state.tasks) == 1)
    assert waiting.recv(1000).startswith(b"HTTP/1.1 503")
    waiting.close()
    assert not [record for record in caplog.records if record.exc_info]
    assert "Exception in ASGI" not in caplog.text


def test_a_deadline_in_the_queue_is_a_plain_error_and_in_a_stream_an_event() -> None:
    settings = Settings(limits=Limits(timeout=0.3))
    with FakeServer(script=endless, delay=0.01, cells=100_000, lanes=1, settings=settings) as server:
        server.ready()
        first: list[httpx.Response] = []
        body = {"prompt": "a", "stream": True}
        thread = threading.Thread(
            target=lambda: first.append(httpx.post(server.url + "/completion", json=body))
        )
        thread.start()
        server.until(lambda: running(server) == 1)
        answer = server.http.post("/completion", json={"prompt": "b", "stream": True, "id_slot": 0})
        thread.join(10)
        assert parse_events(first[0].content)[-1]["error"]["type"] == "deadline_exceeded_error"
        if answer.status_code != 200:  # it may have had the lane for the last moment
            assert answer.status_code == 504
            assert answer.json()["error"]["type"] == "deadline_exceeded_error"
        server.until(server.idle)


def test_loading_answers_503_and_a_load_that_fails_says_why() -> None:
    loaded = threading.Event()
    with FakeServer(load=lambda: loaded.wait(10)) as server:
        server.until(lambda: server.http.get("/health").status_code == 503)
        for path in ("/v1/models", "/props"):
            answer = server.http.get(path)
            assert answer.status_code == 503
            assert answer.json()["error"] == {
                "code": 503,
                "message": "Loading model",
                "type": "unavailable_error",
            }
        assert server.http.post("/completion", json={"prompt": "a"}).status_code == 503
        assert server.http.options("/completion").status_code == 200
        loaded.set()
        server.ready()

    def fails() -> None:
        raise ValueError("the file is damaged")

    with FakeServer(load=fails) as server:
        server.until(lambda: "damaged" in server.http.get("/health").text)


def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    with FakeServer(script=lambda p, s: LETTER if s < 30 else None, delay=0.01, lanes=1) as server:
        server.ready()
        answers: list[list[Any]] = []
        body = {"prompt": "a", "stream": True}
        thread = threading.Thread(target=lambda: answers.append(server.stream("/completion", body)))
        thread.start()
        server.until(lambda: running(server) == 1)
        engine = server.service.loaded.engine
        closing = asyncio.run_coroutine_threadsafe(engine.close(10), server._loop)
        server.until(lambda: engine._stopping)
        assert httpx.post(server.url + "/completion", json=body).status_code == 503
        thread.join(10)
        closing.result(10)
        assert "".join(event["content"] for event in answers[0]) == "z" * 30


def test_the_end_of_drain_cuts_with_an_error_event() -> None:
    with FakeServer(script=endless, delay=0.01, cells=100_000, lanes=1) as server:
        server.ready()
        body = {"prompt": "a", "stream": True}
        with server.http.stream("POST", "/completion", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            asyncio.run_coroutine_threadsafe(server.service.loaded.engine.close(0.05), server._loop).result(
                10
            )
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "unavailable_error"
        assert "[DONE]" not in last


def test_a_lane_that_another_owner_holds_is_waited_for() -> None:
    with FakeServer(script=lambda p, s: LETTER if s < 2 else None, lanes=1) as server:
        server.ready()
        server.lanes.held.add(0)
        connection = send(server, "/completion", {"prompt": "a"})
        server.until(lambda: running(server) == 1)
        assert not server.runner.started
        server.lanes.held.discard(0)
        with connection, connection.makefile("rb") as answer:
            lines = iter(answer.readline, b"\r\n")
            assert next(lines).startswith(b"HTTP/1.1 200")
            size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
            assert b"\r\n" not in list(lines)
            assert json.loads(answer.read(size))["content"] == "zz"
        server.until(server.idle)


def test_a_runner_that_refuses_gives_an_error_and_the_lane_back() -> None:
    with FakeServer() as server:
        server.ready()
        server.runner.refuse = RuntimeError("no room")
        answer = server.http.post("/completion", json={"prompt": "a"})
        assert answer.status_code == 500
        assert "no room" in answer.json()["error"]["message"]
        server.runner.refuse = None
        server.until(server.idle)


def test_a_lost_device_shows_in_health_and_refuses_new_work() -> None:
    settings = Settings(recoveries=0)
    with FakeServer(settings=settings, script=endless, delay=0.01, cells=100_000) as server:
        server.ready()
        connection = send(server, "/completion", {"prompt": "a"})
        server.until(lambda: len(server.runner.requests) == 1)
        server.call(lambda: server.runner.fail(1, 27, "the card fell off the bus"))
        told = connection.recv(10_000)
        assert told.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in told.lower()
        connection.close()
        health = server.http.get("/health")
        assert health.status_code == 503
        assert "fell off the bus" in health.text
        assert server.http.post("/completion", json={"prompt": "a"}).status_code == 503
        server.until(server.idle)


def test_a_defect_of_the_engine_ends_every_request() -> None:
    with FakeServer(script=endless, delay=0.01, cells=100_000) as server:
        server.ready()
        connection = send(server, "/completion", {"prompt": "a"})
        server.until(lambda: running(server) == 1)
        engine = server.service.loaded.engine

        def breaks(*_: object) -> None:
            raise KeyError("broken on purpose")

        engine._scheduler.step = breaks  # type: ignore[method-assign, assignment]
        assert b"500" in connection.recv(10_000).split(b"\r\n")[0]
        assert server.http.get("/health").status_code == 503
        assert engine.failure is not None
        assert Finish.FAILED.value == 6
        connection.close()
