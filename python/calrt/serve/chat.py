# SPDX-License-Identifier: Apache-2.0
"""Chat messages to a prompt: the model's own Jinja template, in a sandbox. Pure but for the date.

A template comes with the model file and is not trusted: it can reach neither attributes that begin with an
underscore nor anything outside its arguments, and its output is bounded.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from .errors import Kind, Refused

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
MAX_PROMPT_CHARACTERS = 64 << 20


class ChatTemplate:
    """A compiled chat template. Rendering is reentrant."""

    def __init__(
        self,
        source: str | None,
        bos: str = "",
        eos: str = "",
        now: Callable[[], datetime.datetime] | None = None,
    ) -> None:
        """`source` None means ChatML. `bos` and `eos` are the texts of those tokens.

        Raises ValueError with the line if the template does not compile.
        """
        self.source = CHATML if source is None else source
        self.is_default = source is None
        self._now = now or datetime.datetime.now
        self._bos = bos
        self._eos = eos
        environment = SandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.filters["from_json"] = json.loads
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: self._now().strftime(form)
        try:
            self._template = environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not compile: line {error.lineno}: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        strip_bos: bool = False,
    ) -> str:
        """The prompt. With `strip_bos` a leading BOS text is left out, for a tokenizer that adds its own.

        Refused (400) with the template's own words if it does not like the messages.
        """
        values = {
            "enable_thinking": True,
            "date_string": self._now().strftime("%d %b %Y"),
            **(arguments or {}),
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos,
            "eos_token": self._eos,
        }
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                size += len(part)
                if size > MAX_PROMPT_CHARACTERS:
                    raise TemplateError(f"it makes more than {MAX_PROMPT_CHARACTERS} characters")
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise Refused(Kind.INVALID, f"The chat template refuses these messages: {error}") from error
        prompt = "".join(parts)
        if strip_bos and self._bos:
            prompt = prompt.removeprefix(self._bos)
        return prompt


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, default=list, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
