# SPDX-License-Identifier: Apache-2.0
"""The `prompt` field: every form llama-server takes, as lists of parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .errors import Refused, bad_field, too_long, unsupported_field
from .fields import kind_name

Prompt: TypeAlias = "tuple[str | int, ...]"
"""One prompt: texts still to be tokenised and token ids, in order."""

MAX_PROMPTS = 256


def read_prompts(body: Mapping[str, Any], cells: int | None = None) -> tuple[Prompt, ...]:
    """The prompts of a request, at least one. A list that holds a number is one prompt of parts.

    A prompt with as many parts as a slot has `cells` is refused before its parts are looked at.
    """
    if "prompt" not in body:
        raise bad_field("prompt", "is required: a string, a list of token ids, or a list of those")
    value = body["prompt"]
    if not isinstance(value, list) or (value and _is_id(value[0])):
        return (_prompt(value, cells),)
    if cells is not None and len(value) > max(MAX_PROMPTS, cells):
        # Too many for prompts and, should a number hide among them, for the parts of one.
        raise _too_many(value)
    if any(map(_is_id, value)):
        return (_prompt(value, cells),)
    if not value:
        raise bad_field("prompt", "must not be an empty list")
    if len(value) > MAX_PROMPTS:
        raise _too_many(value)
    return tuple(_prompt(each, cells) for each in value)


def _prompt(value: object, cells: int | None) -> Prompt:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return _object(value)
    if not isinstance(value, list):
        raise bad_field("prompt", f"must be a string or a list, not {kind_name(value)}")
    if not value:
        raise bad_field("prompt", "must not hold an empty list")
    _check_length(value, cells)
    for part in value:
        if not isinstance(part, str) and not _is_id(part):
            raise bad_field("prompt", f"may hold strings and token ids, not {kind_name(part)}")
    return tuple(value)


def _too_many(prompts: Sequence[object]) -> Refused:
    return bad_field("prompt", f"has {len(prompts)} prompts, at most {MAX_PROMPTS} are allowed")


def _check_length(parts: Sequence[object], cells: int | None) -> None:
    if cells is not None and len(parts) >= cells:
        raise too_long(len(parts), cells, counted=False)


def _object(value: Mapping[str, Any]) -> Prompt:
    if value.get("multimodal_data"):
        raise unsupported_field("multimodal_data", "image or audio input")
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise bad_field("prompt_string", "is required in a prompt object and must be a string")
    return (text,)


def _is_id(part: object) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)
