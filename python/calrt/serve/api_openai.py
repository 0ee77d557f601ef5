# SPDX-License-Identifier: Apache-2.0
"""OpenAI's dialect as llama-server speaks it: /v1/completions and /v1/chat/completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .answers import Meta, Result, finish_reason, probabilities, timings, usage
from .api_llama import CompletionRequest, progress_object, read_completion
from .errors import bad_field, unsupported_field
from .fields import FIELDS, Field, Options, check, kind_name, read
from .messages import Begun, End, Piece, Progress

MAX_MESSAGES = 4096
_DEFAULT_TOP_LOGPROBS = 20


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A chat request after reading; `messages` are as the template wants them."""

    messages: tuple[dict[str, Any], ...]
    prefill: str
    """Text of a last assistant message: the answer continues it."""
    add_generation_prompt: bool
    template_arguments: dict[str, Any]
    options: Options
    include_usage: bool


def read_text_completion(
    body: Mapping[str, Any], defaults: Options, cells: int
) -> tuple[CompletionRequest, bool]:
    """Read the body of /v1/completions; the second value is stream_options.include_usage."""
    return read_completion(body, defaults, cells), _include_usage(body)


def read_chat(body: Mapping[str, Any], defaults: Options) -> ChatRequest:
    """Read the body of /v1/chat/completions. Refused with the field's name when one is wrong."""
    messages, prefill = _messages(body)
    for name, what in (("tools", "calling tools"), ("functions", "calling functions")):
        if body.get(name):
            raise unsupported_field(name, what)
    _check_response_format(body.get("response_format"))
    return ChatRequest(
        messages=messages,
        prefill=prefill,
        add_generation_prompt=_flag(body, "add_generation_prompt", True),
        template_arguments=_template_arguments(body),
        options=read(_with_n_probs(body), defaults),
        include_usage=_include_usage(body),
    )


def _messages(body: Mapping[str, Any]) -> tuple[tuple[dict[str, Any], ...], str]:
    raw = body.get("messages")
    if raw is None:
        raise bad_field("messages", "is required: a list of objects with role and content")
    if not isinstance(raw, list):
        raise bad_field("messages", f"must be a list, not {kind_name(raw)}")
    if len(raw) > MAX_MESSAGES:
        raise bad_field("messages", f"has {len(raw)} messages, at most {MAX_MESSAGES} are allowed")
    messages = [_message(index, each) for index, each in enumerate(raw)]
    roles = [message["role"] for message in messages]
    if roles[-2:] == ["assistant", "assistant"]:
        raise bad_field("messages", "cannot have two or more assistant messages at the end of the list")
    if roles[-1:] != ["assistant"]:
        return tuple(messages), ""
    if _flag(body, "continue_final_message", False) and body.get("add_generation_prompt") is True:
        raise bad_field("continue_final_message", "cannot be true together with add_generation_prompt")
    return tuple(messages[:-1]), str(messages[-1]["content"])


def _message(index: int, raw: object) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(raw, dict):
        raise bad_field(where, f"must be an object with role and content, not {kind_name(raw)}")
    role = raw.get("role")
    if not isinstance(role, str) or not role:
        raise bad_field(f"{where}.role", "is required and must be a string")
    if role != "assistant" and "content" not in raw:
        raise bad_field(f"{where}.content", f"is required in a message of role {role!r}")
    return {**raw, "content": _content(f"{where}.content", raw.get("content"))}


def _content(where: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(where, f"must be a string or a list of parts, not {kind_name(content)}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "input_video", "image", "file"):
            raise unsupported_field(where, f"a part of type {kind!r}")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise bad_field(where, 'each part must be {"type": "text", "text": "..."}')
        texts.append(part["text"])
    return "\n".join(texts)


def _template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    arguments = body.get("chat_template_kwargs")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise bad_field("chat_template_kwargs", f"must be an object, not {kind_name(arguments)}")
    if not isinstance(arguments.get("enable_thinking", True), bool):
        raise bad_field("chat_template_kwargs.enable_thinking", "must be true or false")
    return dict(arguments)


def _check_response_format(value: object) -> None:
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("json_object", "json_schema"):
        raise unsupported_field("response_format", f"the type {kind!r}")
    if kind != "text":
        raise bad_field("response_format", 'its type must be "text", "json_object" or "json_schema"')


def _with_n_probs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    top = body.get("top_logprobs")
    if not _flag(body, "logprobs", False):
        if top is not None:
            raise bad_field("top_logprobs", "requires logprobs to be true")
        return body
    if top is None:
        return {**body, "n_probs": _DEFAULT_TOP_LOGPROBS}
    return {**body, "n_probs": check("top_logprobs", top, FIELDS["n_probs"])}


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_field("stream_options", f"must be an object, not {kind_name(options)}")
    return _flag(options, "include_usage", False)


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    return default if value is None else bool(check(name, value, Field(bool)))


class _Dialect:
    """What the two dialects share: ids, the final numbers, [DONE]."""

    tail = b"data: [DONE]\n\n"
    whole_object = ""
    chunk_object = ""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def begin(self, index: int, begun: Begun, prompt_tokens: int) -> list[dict[str, Any]]:
        """Events when the work on a prompt starts."""
        if not self._meta.options.return_progress:
            return []
        return self.progress(index, Progress(0, prompt_tokens, 0.0))

    def progress(self, index: int, progress: Progress) -> list[dict[str, Any]]:
        """Events for a step of the prefill."""
        if not self._meta.options.return_progress:
            return []
        return [{**self._chunk([]), "prompt_progress": progress_object(progress)}]

    def whole(self, results: list[Result], many: bool) -> Any:
        """The answer of a request that is not streamed."""
        ends = [result.end for result in results]
        return {
            "choices": [self._whole_choice(result) for result in results],
            "created": self._meta.created,
            "model": self._meta.model,
            "system_fingerprint": self._meta.fingerprint,
            "object": self.whole_object,
            "usage": _usage(ends),
            "id": self._meta.id,
            "timings": timings(ends[0].timings),
        }

    def _whole_choice(self, result: Result) -> dict[str, Any]:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "choices": choices,
            "created": self._meta.created,
            "id": self._meta.id,
            "model": self._meta.model,
            "system_fingerprint": self._meta.fingerprint,
            "object": self.chunk_object,
        }

    def _logprobs(self, piece: Piece | Result) -> dict[str, Any] | None:
        if not piece.probs:
            return None
        return {"content": probabilities(piece.tokens, piece.probs, self._meta.token_bytes)}


class TextDialect(_Dialect):
    """Answers of /v1/completions."""

    whole_object = chunk_object = "text_completion"

    def piece(self, index: int, piece: Piece, prompt_tokens: int) -> list[dict[str, Any]]:
        """Events for a piece of text."""
        return [self._text_chunk(index, piece.text, None, self._logprobs(piece), piece)]

    def close(self, index: int, end: End) -> list[dict[str, Any]]:
        """The rest of the text, then a chunk that says why it ended and what it took."""
        events = []
        if end.text:
            rest = Piece(end.text, end.tokens, end.probs, end.predicted, end.timings)
            events = self.piece(index, rest, end.prompt_tokens)
        last = self._text_chunk(index, "", finish_reason(end), None, None)
        last["usage"] = _usage([end])
        last["timings"] = timings(end.timings)
        return [*events, last]

    def finish(self, ends: list[End]) -> list[dict[str, Any]]:
        """Events after the last prompt."""
        return []

    def _whole_choice(self, result: Result) -> dict[str, Any]:
        return {
            "text": result.text,
            "index": result.index,
            "logprobs": self._logprobs(result),
            "finish_reason": finish_reason(result.end),
        }

    def _text_chunk(
        self, index: int, text: str, reason: str | None, logprobs: Any, piece: Piece | None
    ) -> dict[str, Any]:
        choice = {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
        chunk = self._chunk([choice])
        if piece is not None and self._meta.options.timings_per_token:
            chunk["timings"] = timings(piece.timings)
        return chunk


class ChatDialect(_Dialect):
    """Answers of /v1/chat/completions: the role first, never an empty delta of content."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, meta: Meta) -> None:
        super().__init__(meta)
        self._opened = False

    def piece(self, index: int, piece: Piece, prompt_tokens: int) -> list[dict[str, Any]]:
        """Events for a piece of text."""
        events = self._open(index)
        choice = {"finish_reason": None, "index": index, "delta": {"content": piece.text}}
        if (logprobs := self._logprobs(piece)) is not None:
            choice["logprobs"] = logprobs
        chunk = self._chunk([choice])
        if self._meta.options.timings_per_token:
            chunk["timings"] = timings(piece.timings)
        return [*events, chunk]

    def close(self, index: int, end: End) -> list[dict[str, Any]]:
        """The rest of the text, then an empty delta with the reason."""
        if end.text:
            rest = Piece(end.text, end.tokens, end.probs, end.predicted, end.timings)
            events = self.piece(index, rest, end.prompt_tokens)
        else:
            events = self._open(index)
        last = self._chunk([{"finish_reason": finish_reason(end), "index": index, "delta": {}}])
        if not self._meta.include_usage:
            last["timings"] = timings(end.timings)
        return [*events, last]

    def finish(self, ends: list[End]) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._meta.include_usage:
            return []
        return [{**self._chunk([]), "usage": _usage(ends), "timings": timings(ends[0].timings)}]

    def _whole_choice(self, result: Result) -> dict[str, Any]:
        choice = {
            "finish_reason": finish_reason(result.end),
            "index": result.index,
            "message": {"role": "assistant", "content": result.text},
        }
        if (logprobs := self._logprobs(result)) is not None:
            choice["logprobs"] = logprobs
        return choice

    def _open(self, index: int) -> list[dict[str, Any]]:
        if self._opened:
            return []
        self._opened = True
        delta = {"role": "assistant", "content": None}
        return [self._chunk([{"finish_reason": None, "index": index, "delta": delta}])]


def _usage(ends: list[End]) -> dict[str, Any]:
    return usage(
        sum(end.prompt_tokens for end in ends),
        sum(end.predicted for end in ends),
        sum(end.timings.cache_n for end in ends),
    )
