# SPDX-License-Identifier: Apache-2.0
"""The serving layer inside somebody else's program: Engine.generate and create_app, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest

import calrt
from calrt.errors import StateError
from calrt.serve import Engine, create_app
from calrt.serve.engine import Limits
from calrt.serve.errors import TABLE, Kind, Refused
from calrt.serve.messages import End, Finish, Sampling
from calrt.serve.routes import ROUTES
from fake_runner import FakeLanes, FakeRunner, FakeTokenizer, echo
from shared_files import stories


def make(script: Any = None, lanes: int = 2, **limits: Any) -> tuple[Engine, FakeRunner, FakeLanes]:
    tokenizer = FakeTokenizer()
    runner = FakeRunner(tokenizer.vocab_size, True, script)
    store = FakeLanes(lanes)
    return Engine(runner, store, tokenizer, Limits(**limits)), runner, store


def test_generate_gives_pieces_and_frees_the_lane() -> None:
    async def main() -> None:
        engine, runner, store = make(echo("Grüße!"))
        async with engine:
            pieces = [piece async for piece in engine.generate([5, 6], sampling=Sampling(seed=3))]
            assert "".join(piece.text for piece in pieces) == "Grüße!"
            assert runner.sampling[1]["seed"] == 3
            async with contextlib.aclosing(engine.generate([5], stops=["ß"])) as stream:
                assert (await anext(stream)).text == "G"
            for _ in range(100):
                await asyncio.sleep(0.001)
                if not store.held:
                    break
            assert not store.held
            assert engine.statistics().scheduler.accepted == engine.statistics().scheduler.closed == 2
        assert runner.closed

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tokens", "kind", "text"),
    [
        ([], Kind.INVALID, "is empty"),
        ([9999], Kind.INVALID, "9999 is not in the vocabulary"),
        ([5] * 256, Kind.TOO_LONG, "256 tokens"),
    ],
)
def test_a_wrong_prompt_is_refused_before_anything_runs(tokens: list[int], kind: Kind, text: str) -> None:
    async def main() -> None:
        engine, runner, store = make()
        async with engine:
            with pytest.raises(Refused, match=text) as caught:
                engine.submit(tokens)
            assert caught.value.kind is kind
            assert not runner.started
            assert not store.held

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tokens": "abc"}, "tokens"),
        ({"tokens": ["a"]}, "tokens"),
        ({"tokens": [1.5]}, "tokens"),
        ({"tokens": 7}, "tokens"),
        ({"tokens": [5], "max_tokens": 1.5}, "max_tokens"),
        ({"tokens": [5], "max_tokens": "9"}, "max_tokens"),
        ({"tokens": [5], "stops": "abc"}, "stops"),
        ({"tokens": [5], "stops": [1]}, "stops"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], field: str) -> None:
    async def main() -> None:
        engine, _, store = make()
        async with engine:
            with pytest.raises(Refused, match=f"^Field '{field}': ") as caught:
                async for _ in engine.generate(**arguments):
                    pass
            assert caught.value.kind is Kind.INVALID
            assert not store.held
            numbers = engine.statistics().scheduler
            assert numbers.accepted == numbers.closed == 0

    asyncio.run(main())


def test_tokens_may_be_an_array() -> None:
    async def main() -> None:
        engine, _, _ = make(echo("hi"))
        async with engine:
            pieces = [piece async for piece in engine.generate(np.array([5, 6], np.int32))]
            assert "".join(piece.text for piece in pieces) == "hi"

    asyncio.run(main())


def test_a_lane_that_cannot_be_had_at_all_ends_the_request_once() -> None:
    async def main() -> None:
        engine, _, store = make()

        def unloaded(*_: object) -> None:
            raise StateError("the model is unloaded", 12)

        store.try_reserve = unloaded  # type: ignore[method-assign, assignment]
        async with engine:
            ticket = engine.submit([5])
            with anyio.fail_after(10):
                events = await ticket.outbox.take()
            assert [type(event) for _, event in events] == [End]
            end = events[0][1]
            assert isinstance(end, End)
            assert (end.finish, end.status) == (Finish.FAILED, 12)
            assert "unloaded" in end.error
            with pytest.raises(Refused, match="unloaded"):
                async for _ in engine.generate([5]):
                    pass
            numbers = engine.statistics().scheduler
            assert (numbers.accepted, numbers.closed, numbers.illegal) == (2, 2, 0)
        assert ticket.outbox.backlog == 0

    asyncio.run(main())


def test_a_closed_model_is_an_error_at_once() -> None:
    path = stories()

    async def main(model: Any) -> None:
        async with Engine.open(model, Limits(timeout=60)) as engine:
            model.close()
            with anyio.fail_after(20), pytest.raises(Refused):
                async for _ in engine.generate([1, 5]):
                    pass

    with calrt.open("cpu") as device, device.load(path, lanes=2, cells=64) as model:
        asyncio.run(main(model))


def test_a_closed_engine_ends_its_streams_and_refuses() -> None:
    async def main() -> None:
        engine, runner, _ = make(lambda prompt, step: 100)
        runner.delay = 0.01
        engine.start()

        async def consume() -> Kind:
            try:
                async for _ in engine.generate([5]):
                    pass
            except Refused as refused:
                return refused.kind
            raise AssertionError("the stream ended as if it were complete")

        with anyio.fail_after(10):
            consumer = asyncio.gather(consume(), consume())
            while len(runner.requests) < 2:
                await asyncio.sleep(0.001)
            await engine.close()
            assert await consumer == [Kind.UNAVAILABLE] * 2
        with pytest.raises(Refused, match="stopping"):
            engine.submit([5])
        await engine.close()

    asyncio.run(main())


def test_a_random_seed_is_fixed_when_the_request_is_accepted() -> None:
    async def main() -> None:
        engine, runner, _ = make(echo("x"))
        async with engine:
            for _ in range(2):
                async for _ in engine.generate([5], sampling=Sampling(seed=0xFFFFFFFF)):
                    pass
            seeds = [values["seed"] for values in runner.sampling.values()]
            assert seeds[0] != seeds[1]
            assert max(seeds) < 0xFFFFFFFF

    asyncio.run(main())


def test_create_app_serves_an_engine() -> None:
    async def main() -> None:
        engine, _, _ = make(echo("hello"))
        app = create_app(engine)
        async with engine:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                answer = await client.post("/completion", json={"prompt": "a"})
                assert answer.json()["content"] == "hello"
                assert (await client.get("/v1/models")).json()["data"][0]["id"] == "model"

    asyncio.run(main())


def test_create_app_starts_and_closes_an_engine_that_is_not_started() -> None:
    async def main() -> None:
        engine, runner, _ = make(echo("hello"))
        app = create_app(engine)
        async with app.router.lifespan_context(app):
            assert engine.started
        assert runner.closed

    asyncio.run(main())


def test_an_engine_on_the_cpu_device_equals_the_model_alone() -> None:
    path = stories()

    async def main(model: Any) -> None:
        prompts = [model.tokenizer.encode(text) for text in ("Once", "Tom and Ann", "The dog")]
        greedy = Sampling(temperature=0)
        async with Engine.open(model) as engine:

            async def text(tokens: list[int]) -> str:
                pieces = engine.generate(tokens, max_tokens=24, sampling=greedy)
                return "".join([piece.text async for piece in pieces])

            together = await asyncio.gather(*map(text, prompts))
        assert model.kv.free_lanes() == 2
        model.kv.check_integrity()
        alone = [model.generate(tokens, max_tokens=24, temperature=0) for tokens in prompts]
        assert together == [model.tokenizer.decode(tokens) for tokens in alone]

    with calrt.open("cpu") as device, device.load(path, lanes=2, cells=64) as model:
        asyncio.run(main(model))


def test_importing_calrt_loads_nothing_of_the_server() -> None:
    code = (
        "import sys, calrt; import calrt.serve;"
        "bad = {'starlette', 'uvicorn', 'msgspec', 'jinja2', 'anyio', 'tokenizers'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_page_has_each_endpoint_and_error_and_its_program_runs() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs/server.md").read_text()
    assert {tuple(each.split()) for each in re.findall(r"`((?:GET|POST) \S+)`", page)} == set(ROUTES)
    told = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    assert sorted(told) == sorted((kind.value, str(row.status)) for kind, row in TABLE.items())
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
