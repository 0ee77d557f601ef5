# SPDX-License-Identifier: Apache-2.0
"""The HTTP API against a fake runner: shapes of answers, streams equal to whole answers, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from calrt.serve.routes import MISSING, ROUTES
from calrt.serve.service import Settings
from fake_runner import FakeTokenizer, echo
from fake_server import FakeServer, parse_events

TEXT = "A grey cat.\nÜber 😀 all"
LENGTH = len(TEXT.encode()) + 1
"""Tokens of TEXT, the stop token included."""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer(script=echo(TEXT)) as server:
        yield server.ready()


@pytest.fixture(autouse=True)
def everything_is_given_back(server: FakeServer) -> Iterator[None]:
    yield
    server.until(server.idle)


def test_health_models_and_props(server: FakeServer) -> None:
    for path in ("/health", "/v1/health"):
        assert server.http.get(path).json() == {"status": "ok"}
    for path in ("/models", "/v1/models"):
        answer = server.http.get(path).json()
        assert answer["data"][0]["id"] == answer["models"][0]["name"] == "fake.gguf"
        assert answer["data"][0]["meta"]["n_ctx"] == 256
    props = server.http.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert "stop" not in props["default_generation_settings"]["params"]
    assert props["calrt"]["requests"]["running"] == 0
    assert server.http.get("/health").headers["content-type"] == "application/json; charset=utf-8"


def test_completion_has_the_native_shape(server: FakeServer) -> None:
    answer = server.http.post("/completion", json={"prompt": "Hi", "return_tokens": True, "seed": 5}).json()
    assert answer["content"] == TEXT
    assert bytes(token - 4 for token in answer["tokens"]).decode() == TEXT
    assert answer["stop"] is True
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("eos", "", False)
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (LENGTH, 3)
    assert answer["prompt"] == "<s>Hi"
    assert answer["has_new_line"] is True
    assert answer["generation_settings"]["seed"] == 5
    assert answer["generation_settings"]["temperature"] == 0.800000011920929
    assert list(answer)[:7] == ["index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted"]
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 3, LENGTH)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_native_stream_equals_the_whole(server: FakeServer, path: str) -> None:
    events = server.stream(path, {"prompt": "Hi", "stream": True})
    assert "".join(event["content"] for event in events) == TEXT
    assert all(event["stop"] is False and event["id_slot"] == -1 for event in events[:-1])
    tokens = [token for event in events[:-1] for token in event["tokens"]]
    assert bytes(token - 4 for token in tokens).decode() == TEXT
    last = events[-1]
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert "[DONE]" not in events


def test_openai_completion(server: FakeServer) -> None:
    body = {"model": "x", "prompt": "Hi", "max_tokens": 4}
    answer = server.http.post("/v1/completions", json=body).json()
    assert answer["choices"] == [{"text": TEXT[:4], "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "completion_tokens": 4,
        "prompt_tokens": 3,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert (answer["object"], answer["model"]) == ("text_completion", "fake.gguf")
    assert answer["id"].startswith("chatcmpl-")
    assert len(answer["id"]) == len("chatcmpl-") + 32
    events = server.stream("/v1/completions", {**body, "stream": True})
    assert events[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == TEXT[:4]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-2]["usage"]["total_tokens"] == 7


def test_openai_chat(server: FakeServer) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice == {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": TEXT},
    }
    assert answer["object"] == "chat.completion"
    events = server.stream("/chat/completions", {**body, "stream": True})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    deltas = [event["choices"][0]["delta"] for event in events[1:-2]]
    assert all(delta["content"] for delta in deltas)
    assert "".join(delta["content"] for delta in deltas) == TEXT
    assert events[-2]["choices"][0] == {"finish_reason": "stop", "index": 0, "delta": {}}
    assert "timings" in events[-2]
    assert events[-1] == "[DONE]"
    assert len({event["id"] for event in events[:-1]}) == 1
    with_usage = server.stream(
        "/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == LENGTH


def test_the_openai_client_streams_the_same_text(server: FakeServer) -> None:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    with client:
        whole = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        parts = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(parts) == whole.choices[0].message.content == TEXT
        assert client.completions.create(model="m", prompt="Hi").choices[0].text == TEXT
        assert client.models.list().data[0].id == "fake.gguf"


@pytest.mark.parametrize("stop", ["cat", " 😀", "\nÜb", ".", "A"])
def test_stop_strings_never_show(server: FakeServer, stop: str) -> None:
    body = {"prompt": "Hi", "stop": [stop, "never"]}
    whole = server.http.post("/completion", json=body).json()
    assert whole["content"] == TEXT[: TEXT.index(stop)]
    assert (whole["stop_type"], whole["stopping_word"]) == ("word", stop)
    events = server.stream("/completion", {**body, "stream": True})
    assert "".join(event["content"] for event in events) == whole["content"]
    assert events[-1]["stop_type"] == "word"


def test_several_prompts_give_as_many_results(server: FakeServer) -> None:
    prompts = ["a", [1, 70], ["b", 71], "c"]
    answers = server.http.post("/completion", json={"prompt": prompts, "n_predict": 3}).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["tokens_evaluated"] for answer in answers] == [2, 2, 3, 2]
    merged = server.http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 3}).json()
    assert [choice["index"] for choice in merged["choices"]] == [0, 1, 2, 3]
    assert merged["usage"]["prompt_tokens"] == 9
    events = server.stream("/completion", {"prompt": prompts, "n_predict": 3, "stream": True})
    for index in range(4):
        own = [event for event in events if event["index"] == index]
        assert "".join(event["content"] for event in own) == TEXT[:3]
        assert own[-1]["stop"] is True


def test_tokenize_and_detokenize(server: FakeServer) -> None:
    tokens = server.http.post("/tokenize", json={"content": "Hü"}).json()["tokens"]
    assert server.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": "Hü"}
    special = server.http.post("/tokenize", json={"content": "H", "add_special": True}).json()["tokens"]
    assert special == [1, 4 + ord("H")]
    pieces = server.http.post("/tokenize", json={"content": "Hü", "with_pieces": True}).json()["tokens"]
    assert pieces[0] == {"id": 4 + ord("H"), "piece": "H"}
    assert pieces[1]["piece"] == [0xC3]
    assert server.http.post("/tokenize", json={}).json() == {"tokens": []}
    long = server.http.post("/tokenize", json={"content": "x" * 50_000}).json()["tokens"]
    assert len(long) == 50_000


def test_apply_template_uses_chatml_by_default(server: FakeServer) -> None:
    body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]}
    prompt = server.http.post("/apply-template", json=body).json()["prompt"]
    assert (
        prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    body["messages"].append({"role": "assistant", "content": "So"})
    assert server.http.post("/apply-template", json=body).json()["prompt"] == prompt + "So"


def test_log_probabilities(server: FakeServer) -> None:
    answer = server.http.post("/completion", json={"prompt": "Hi", "n_predict": 2, "n_probs": 1}).json()
    rows = answer["completion_probabilities"]
    assert [row["token"] for row in rows] == ["A", " "]
    assert rows[0]["top_logprobs"] == [{"id": 4 + 65, "token": "A", "bytes": [65], "logprob": -0.5}]
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "logprobs": True,
        "max_tokens": 2,
        "stream": True,
    }
    events = server.stream("/v1/chat/completions", body)
    rows = [row for e in events[1:-2] for row in e["choices"][0]["logprobs"]["content"]]
    assert [row["id"] for row in rows] == [4 + 65, 4 + 32]


def test_ignore_eos_is_a_bias_that_shows(server: FakeServer) -> None:
    body = {"prompt": "Hi", "n_predict": 2, "ignore_eos": True, "logit_bias": [["A", -1]]}
    answer = server.http.post("/completion", json=body).json()
    assert answer["generation_settings"]["logit_bias"] == [
        {"bias": -1.0, "token": 4 + 65},
        {"bias": None, "token": 2},
        {"bias": None, "token": 3},
    ]
    bias = server.runner.sampling[server.runner.started[-1]]["logit_bias"]
    assert bias == ((4 + 65, -1.0), (2, float("-inf")), (3, float("-inf")))


def test_response_fields_and_progress(server: FakeServer) -> None:
    body = {"prompt": "Hi", "response_fields": ["content", "generation_settings/top_k", "nothing"]}
    assert server.http.post("/completion", json=body).json() == {
        "content": TEXT,
        "generation_settings/top_k": 40,
    }
    events = server.stream("/completion", {"prompt": "Hi", "stream": True, "return_progress": True})
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress[0] == {"total": 3, "cache": 0, "processed": 0, "time_ms": 0}
    assert progress[-1]["processed"] == 3


def test_the_context_bounds_an_answer(server: FakeServer) -> None:
    server.runner.script = lambda prompt, step: 4 + ord("z")
    try:
        answer = server.http.post("/completion", json={"prompt": [5] * 250}).json()
        assert (answer["tokens_predicted"], answer["truncated"], answer["stop_type"]) == (6, True, "limit")
        short = server.http.post("/completion", json={"prompt": [5] * 250, "n_predict": 2}).json()
        assert (short["tokens_predicted"], short["truncated"]) == (2, False)
    finally:
        server.runner.script = echo(TEXT)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(server: FakeServer, stream: bool) -> None:
    answer = server.http.post("/completion", json={"prompt": [5] * 256, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == (
        "exceed_context_size_error",
        256,
        256,
    )


MALFORMED = [
    b"",
    b"{",
    b'{"prompt": NaN}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b"[1, 2]",
    b'"text"',
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b'{"prompt": "a", "temperature": 1e999}',
]


@pytest.mark.parametrize("raw", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies_are_400_and_the_server_lives(server: FakeServer, raw: bytes) -> None:
    answer = server.http.post("/completion", content=raw)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/completion", {}, 400, "Field 'prompt'"),
        ("/completion", {"prompt": [99999]}, 400, "not in the vocabulary"),
        ("/completion", {"prompt": [-1]}, 400, "not in the vocabulary"),
        ("/completion", {"prompt": "a", "temperature": "x"}, 400, "Field 'temperature'"),
        ("/completion", {"prompt": "a", "logit_bias": [[999, 1]]}, 400, "Field 'logit_bias'"),
        ("/completion", {"prompt": "a", "grammar": "root ::= x"}, 501, "Field 'grammar'"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, 501, "image"),
        ("/v1/chat/completions", {}, 400, "Field 'messages'"),
        ("/v1/chat/completions", {"messages": "x"}, 400, "Field 'messages'"),
        ("/v1/chat/completions", {"messages": [5]}, 400, "messages[0]"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [], "tools": [{}]}, 501, "Field 'tools'"),
        ("/v1/chat/completions", {"messages": [], "response_format": {"type": "json_object"}}, 501, "json"),
        ("/v1/chat/completions", {"messages": [], "top_logprobs": 2}, 400, "requires logprobs"),
        ("/detokenize", {"tokens": [400]}, 400, "not in the vocabulary"),
        ("/detokenize", {"tokens": "x"}, 400, "Field 'tokens'"),
    ],
)
def test_wrong_requests_say_what_is_wrong(
    server: FakeServer, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == status
    assert text in error["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/completion"), ("POST", "/health"), ("GET", "/nothing")]
)
def test_unknown_paths_and_methods_are_404(server: FakeServer, method: str, path: str) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == 404
    assert answer.json() == {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}


@pytest.mark.parametrize(("method", "path"), sorted(MISSING))
def test_endpoints_that_are_missing_say_so(server: FakeServer, method: str, path: str) -> None:
    assert (method, path) not in ROUTES
    answer = server.http.request(method, path)
    assert answer.status_code == 501
    assert MISSING[method, path] in answer.json()["error"]["message"]


def test_preflight_and_origins(server: FakeServer) -> None:
    local = {"Origin": "http://localhost:3000"}
    answer = server.http.options("/completion", headers=local)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == local["Origin"]
    assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "*"
    foreign = server.http.get("/health", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers


def test_a_device_failure_is_an_error_and_not_an_answer(server: FakeServer) -> None:
    def breaks(prompt: list[int], step: int) -> int:
        if step == 2:
            raise_in_runner.set()
        return 4 + ord("x")

    raise_in_runner = threading.Event()
    server.runner.script = breaks
    server.runner.delay = 0.02
    results: list[httpx.Response] = []
    body = {"prompt": "Hi", "n_predict": 200, "stream": True}
    thread = threading.Thread(
        target=lambda: results.append(httpx.post(server.url + "/completion", json=body))
    )
    try:
        thread.start()
        assert raise_in_runner.wait(10)
        server.call(lambda: server.runner.fail(next(iter(server.runner.requests))))
        thread.join(10)
    finally:
        server.runner.script, server.runner.delay = echo(TEXT), 0.0
    events = parse_events(results[0].content)
    assert events[-1]["error"]["type"] == "server_error"
    assert "the device broke" in events[-1]["error"]["message"]
    assert server.http.get("/health").status_code == 200


def test_keys_are_asked_for_everywhere_but_health() -> None:
    settings = Settings(api_keys=("secret", "second"))
    with FakeServer(settings=settings, script=echo("ok")) as server:
        server.ready()
        for path in ("/props", "/v1/models"):
            assert server.http.get(path).status_code == 401
            assert server.http.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
            assert server.http.get(path, headers={"X-Api-Key": "second"}).status_code == 200
            assert server.http.get(path, headers={"X-Api-Key": "secre"}).status_code == 401
        assert server.http.post("/completion", json={"prompt": "a"}).status_code == 401
        answer = server.http.options("/completion", headers={"Origin": "http://web.example"})
        assert answer.headers["access-control-allow-origin"] == "http://web.example"


class NoBos(FakeTokenizer):
    add_bos = False
    chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools, please') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )


def test_an_empty_prompt_needs_a_first_token() -> None:
    with FakeServer(script=echo("ok"), tokenizer=NoBos()) as server:
        server.ready()
        answer = server.http.post("/completion", json={"prompt": ""})
        assert answer.status_code == 400
        assert "is empty" in answer.json()["error"]["message"]
        refused = server.http.post("/apply-template", json={"messages": [{"role": "tool", "content": "x"}]})
        assert refused.status_code == 400
        assert "no tools, please" in json.dumps(refused.json())
        prompt = server.http.post("/apply-template", json={"messages": [{"role": "user", "content": "x"}]})
        assert prompt.json() == {"prompt": "[user] x\n"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/completion", {"prompt": "a", "n_probs": 129}, "n_probs"),
        ("/completion", {"prompt": "a", "logprobs": 129}, "logprobs"),
        ("/v1/chat/completions", {"messages": [], "logprobs": True, "top_logprobs": 129}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 4097}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": ""}] * 4097}, "messages"),
        ("/completion", {"prompt": "a", "logit_bias": [[5, 1]] * 261}, "logit_bias"),
        ("/completion", {"prompt": "a", "logit_bias": [["x" * 131, 1]] * 2}, "logit_bias"),
        ("/detokenize", {"tokens": [5] * 262_145}, "tokens"),
        ("/tokenize", {"content": "x" * 262_145, "with_pieces": True}, "content"),
    ],
)
def test_amounts_have_bounds_that_are_named(server: FakeServer, path: str, body: Any, field: str) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"Field '{field}': ")


def test_a_bias_that_forbids_every_token_is_refused(server: FakeServer) -> None:
    size = server.runner.vocab
    every: list[list[Any]] = [[token, False] for token in range(size)]
    eog = server.tokenizer.eog
    assert eog
    but_ends = [[token, False] for token in range(size) if token not in eog]
    for more in ({}, {"stream": True}):
        started = len(server.runner.started)
        for body, text in (
            ({"logit_bias": every}, f"forbids every token of the vocabulary ({size}): allow one"),
            ({"logit_bias": {str(token): False for token in range(size)}}, "forbids every token"),
            ({"logit_bias": but_ends, "ignore_eos": True}, "forbids together with ignore_eos every token"),
        ):
            answer = server.http.post("/completion", json={"prompt": "a", **body, **more})
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(f"Field 'logit_bias': {text}")
        assert len(server.runner.started) == started
    for bias in (every[1:], but_ends, [*every[1:], [0, -1e9]], every[1:] + every[-1:]):
        assert server.http.post("/completion", json={"prompt": "a", "logit_bias": bias}).status_code == 200


def test_amounts_at_their_bounds_are_taken(server: FakeServer) -> None:
    body = {"prompt": "a", "n_probs": 128, "logit_bias": [[5, 1]] * 260, "response_fields": ["content"] * 64}
    assert server.http.post("/completion", json=body).json() == {"content": TEXT}
    tokens = [4 + ord("x")] * 262_144
    assert server.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": "x" * 262_144}


@pytest.mark.parametrize(
    ("prompt", "least"),
    [
        ("x" * 256, 256),
        (["a", "\u00fc" * 128], 256),
        ([5, "x" * 255], 256),
        ([5] * 300 + [None], 301),
        ([[5] * 10, [5] * 300 + ["x", {}]], 302),
        ({"prompt_string": "x" * 5000}, 5000),
    ],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_what_can_never_fit_is_refused_unread(server: FakeServer, path: str, prompt: Any, least: int) -> None:
    encoded: list[str] = []
    encode = server.tokenizer.encode
    server.tokenizer.encode = lambda text, *a, **k: encoded.append(text) or encode(text, *a, **k)  # type: ignore
    try:
        answer = server.http.post(path, json={"prompt": prompt})
    finally:
        del server.tokenizer.encode  # type: ignore[method-assign]
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == (
        "exceed_context_size_error",
        least,
        256,
    )
    assert f"at least {least} tokens" in error["message"]
    assert not encoded


def test_a_chat_that_can_never_fit_is_refused(server: FakeServer) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 10_000}]}
    error = server.http.post("/v1/chat/completions", json=body).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > 10_000


def test_very_many_prompts_are_refused_by_their_number(server: FakeServer) -> None:
    error = server.http.post("/completion", json={"prompt": ["x"] * 300}).json()["error"]
    assert "300 prompts" in error["message"]


@pytest.mark.parametrize(
    "path", [*(path for method, path in ROUTES if method == "GET"), "/slots", "/nothing"]
)
def test_head_is_get_without_the_body(server: FakeServer, path: str) -> None:
    get, head = server.http.get(path), server.http.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    names = ("content-type", "content-length", "server")
    assert [head.headers[name] for name in names] == [get.headers[name] for name in names]


def test_head_of_what_is_posted_is_not_found(server: FakeServer) -> None:
    assert server.http.head("/completion").status_code == server.http.get("/completion").status_code == 404
