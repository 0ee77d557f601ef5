# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the sandbox, what templates rely on, odd messages; and reading of chat requests."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from calrt.serve.api_openai import read_chat
from calrt.serve.chat import CHATML, ChatTemplate
from calrt.serve.errors import Kind, Refused
from calrt.serve.fields import Options

USER = [{"role": "user", "content": "Hi"}]
NOON = datetime.datetime(2026, 3, 4, 12, 0)


def render(source: str, messages: list[dict[str, Any]] = USER, **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>", lambda: NOON).render(messages, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("{% for m in messages %}\n{{ m['role'] }}\n{% endfor %}", "user\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'ü': '<'} | tojson(indent=1) }}", '{\n "ü": "<"\n}'),
        ("{{ strftime_now('%Y-%m-%d') }} {{ date_string }}", "2026-03-04 04 Mar 2026"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% set l = [] %}{% set _ = l.append(1) %}{{ l | length }}", "1"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ enable_thinking }}", "True"),
        ("{{ nothing is defined }}", "False"),
    ],
)
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert render(source) == text


def test_arguments_reach_the_template_and_bos_is_not_doubled() -> None:
    assert render("{{ x }}{{ enable_thinking }}", arguments={"x": 5, "enable_thinking": False}) == "5False"
    assert render("{{ bos_token }}{{ bos_token }}a", strip_bos=True) == "<s>a"


def test_without_a_template_chatml_is_used() -> None:
    template = ChatTemplate(None)
    assert template.is_default
    assert template.source == CHATML
    expected = "<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(USER, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 5 }}",
        "{% for i in range(10000000000) %}x{% endfor %}",
        "{{ messages | first(1, 2) }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_400(source: str) -> None:
    with pytest.raises(Refused) as caught:
        render(source)
    assert caught.value.kind is Kind.INVALID


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(Refused, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate("ok\n{% for %}")


def test_the_output_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calrt.serve.chat.MAX_PROMPT_CHARACTERS", 1000)
    with pytest.raises(Refused, match="1000 characters"):
        render("{% for i in range(2000) %}xx{% endfor %}")


def chat(messages: Any, **more: Any) -> Any:
    return read_chat({"messages": messages, **more}, Options())


def test_parts_of_text_are_joined_and_null_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat([{"role": "user", "content": parts}]).messages[0]["content"] == "a\nb"
    assert chat([{"role": "user", "content": None}]).messages[0]["content"] == ""


def test_a_last_assistant_message_is_continued() -> None:
    request = chat([*USER, {"role": "assistant", "content": "So"}])
    assert [message["role"] for message in request.messages] == ["user"]
    assert request.prefill == "So"


@pytest.mark.parametrize(
    ("messages", "more", "status"),
    [
        (None, {}, 400),
        ({}, {}, 400),
        ([None], {}, 400),
        ([{"role": 5, "content": "x"}], {}, 400),
        ([{"role": "user", "content": 5}], {}, 400),
        ([{"role": "user", "content": [{"type": "text"}]}], {}, 400),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], {}, 501),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], {}, 400),
        (
            [{"role": "assistant", "content": "a"}],
            {"continue_final_message": True, "add_generation_prompt": True},
            400,
        ),
        (USER, {"tools": [{"type": "function"}]}, 501),
        (USER, {"response_format": {"type": "json_schema"}}, 501),
        (USER, {"response_format": {"type": "xml"}}, 400),
        (USER, {"response_format": "text"}, 400),
        (USER, {"chat_template_kwargs": []}, 400),
        (USER, {"chat_template_kwargs": {"enable_thinking": "yes"}}, 400),
        (USER, {"logprobs": 5}, 400),
        (USER, {"top_logprobs": 5}, 400),
        (USER, {"stream_options": []}, 400),
        (USER, {"json_schema": {}}, 501),
    ],
)
def test_odd_requests_get_the_right_status(messages: Any, more: dict[str, Any], status: int) -> None:
    with pytest.raises(Refused) as caught:
        chat(messages, **more)
    assert caught.value.row.status == status


def test_neutral_values_are_no_reason_to_refuse() -> None:
    request = chat(
        [],
        tools=[],
        response_format={"type": "text"},
        n=1,
        tool_choice="auto",
        logprobs=False,
        logit_bias={},
        frequency_penalty=0,
        user="me",
    )
    assert request.messages == ()
    assert chat(USER, logprobs=True).options.n_probs == 20
    assert chat(USER, logprobs=True, top_logprobs=3).options.n_probs == 3
