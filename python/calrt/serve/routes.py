# SPDX-License-Identifier: Apache-2.0
"""The handlers: each reads a body, asks a dialect what it means, and hands prompts to the engine."""

from __future__ import annotations

import asyncio
import math
import secrets
import string
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from calrt import __version__

from . import api_llama, api_openai
from .answers import Meta
from .api_llama import NativeDialect
from .api_openai import ChatDialect, ChatRequest, TextDialect
from .errors import bad_field, too_long
from .fields import Options
from .messages import Sampling
from .prompts import Prompt
from .replies import Json, Reply, read_body
from .service import Loaded, Service
from .stream import Answer, Dialect, EventStream, unless_gone

Handler: TypeAlias = Callable[[Service, Request], Awaitable[Reply]]

FINGERPRINT = f"b0-calrt-{__version__}"
"""Begins like llama-server's (b<build>-<commit>), which clients test for."""
_ID_LETTERS = string.ascii_letters + string.digits


class _Job(Struct, frozen=True):
    """One request to complete prompts, whatever the dialect."""

    prompts: tuple[Prompt, ...]
    options: Options
    dialect: Callable[[Meta], Dialect]
    include_usage: bool = False
    many: bool = False


# ---- looking ------------------------------------------------------------------------------------


async def health(service: Service, request: Request) -> Reply:
    """Whether requests can be answered now."""
    return Json(service.health())


async def models(service: Service, request: Request) -> Reply:
    """The one model, in the shapes of Ollama and of OpenAI."""
    loaded, name = service.loaded, service.model_name
    about = loaded.description
    meta = {
        "vocab_type": about.vocab_type,
        "n_vocab": loaded.tokenizer.vocab_size,
        "n_ctx": loaded.engine.cells,
        "n_ctx_train": about.n_ctx_train,
        "n_embd": about.n_embd,
        "n_params": about.n_params,
        "size": about.size,
        "ftype": about.ftype,
    }
    details = {
        "parent_model": "",
        "format": "gguf" if about.path.endswith(".gguf") else "",
        "family": "",
        "families": [""],
        "parameter_size": "",
        "quantization_level": "",
    }
    ollama = {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": details,
    }
    openai = {
        "id": name,
        "aliases": sorted(service.settings.aliases),
        "tags": [],
        "object": "model",
        "created": service.started,
        "owned_by": "calrt",
        "meta": meta,
    }
    return Json({"models": [ollama], "object": "list", "data": [openai]})


async def props(service: Service, request: Request) -> Reply:
    """What the server is and can do."""
    loaded = service.loaded
    about, engine = loaded.description, loaded.engine
    numbers = engine.statistics()
    return Json(
        {
            "default_generation_settings": {
                "params": api_llama.default_settings(service.settings.options),
                "n_ctx": engine.cells,
            },
            "total_slots": engine.lanes,
            "model_alias": service.model_name,
            "model_ftype": about.ftype,
            "model_path": about.path,
            "modalities": {"vision": False, "video": False, "audio": False},
            "media_marker": "",
            "endpoint_slots": False,
            "endpoint_props": False,
            "endpoint_metrics": False,
            "ui": False,
            "ui_settings": {},
            "chat_template": loaded.template.source,
            "chat_template_caps": {
                "supports_tools": False,
                "supports_tool_calls": False,
                "supports_system_role": True,
                "supports_parallel_tool_calls": False,
            },
            "bos_token": loaded.bos_text,
            "eos_token": loaded.eos_text,
            "build_info": FINGERPRINT,
            "is_sleeping": False,
            "cors_proxy_enabled": False,
            "calrt": {
                "version": __version__,
                "device": about.device,
                "compute": about.compute,
                "kv_dtype": about.kv_dtype,
                "hardware_batch": about.hardware_batch,
                "in_flight": about.in_flight,
                "software_slots": engine.lanes,
                "evidence": about.evidence,
                "queue_limit": engine.queue_limit,
                "requests": {
                    "accepted": numbers.scheduler.accepted,
                    "refused": numbers.scheduler.refused,
                    "finished": numbers.finished,
                    "queued": numbers.scheduler.queued,
                    "running": numbers.scheduler.running,
                    "draining": numbers.scheduler.draining,
                },
                "turns": {"count": numbers.turns, "longest_ms": numbers.longest_turn_ms},
                "runner": numbers.runner,
            },
        }
    )


# ---- text ---------------------------------------------------------------------------------------


async def tokenize(service: Service, request: Request) -> Reply:
    """Text to token ids."""
    loaded = service.loaded
    wanted = api_llama.read_tokenize(await read_body(service, request))
    tokens = await loaded.encoder.encode(wanted.parts, wanted.add_special, wanted.parse_special)
    if not wanted.with_pieces:
        return Json({"tokens": tokens})
    if len(tokens) > (most := api_llama.MAX_TEXT_TOKENS):
        raise bad_field("content", f"gives {len(tokens)} tokens, at most {most} are listed with pieces")
    api_llama.read_detokenize({"tokens": tokens}, loaded.tokenizer.vocab_size)
    return Json({"tokens": [api_llama.piece_object(token, loaded.token_bytes(token)) for token in tokens]})


async def detokenize(service: Service, request: Request) -> Reply:
    """Token ids to text."""
    loaded = service.loaded
    tokens = api_llama.read_detokenize(await read_body(service, request), loaded.tokenizer.vocab_size)
    return Json({"content": await loaded.encoder.decode(tokens)})


async def apply_template(service: Service, request: Request) -> Reply:
    """The prompt that a chat request would make."""
    loaded = service.loaded
    chat = api_openai.read_chat(await read_body(service, request), service.settings.options)
    return Json({"prompt": _render(loaded, chat)})


def _render(loaded: Loaded, chat: ChatRequest) -> str:
    prompt = loaded.template.render(
        chat.messages,
        add_generation_prompt=chat.add_generation_prompt,
        arguments=chat.template_arguments,
        strip_bos=loaded.tokenizer.add_bos,
    )
    return prompt + chat.prefill


# ---- completions --------------------------------------------------------------------------------


async def completion(service: Service, request: Request) -> Reply:
    """llama-server's own completion."""
    body = await read_body(service, request)
    wanted = api_llama.read_completion(body, service.settings.options, service.loaded.engine.cells)
    return await _complete(
        service, request, _Job(wanted.prompts, wanted.options, NativeDialect, many=wanted.many)
    )


async def openai_completion(service: Service, request: Request) -> Reply:
    """OpenAI's text completion."""
    body = await read_body(service, request)
    wanted, usage = api_openai.read_text_completion(
        body, service.settings.options, service.loaded.engine.cells
    )
    return await _complete(service, request, _Job(wanted.prompts, wanted.options, TextDialect, usage))


async def chat_completion(service: Service, request: Request) -> Reply:
    """OpenAI's chat completion."""
    loaded = service.loaded
    chat = api_openai.read_chat(await read_body(service, request), service.settings.options)
    prompt = _render(loaded, chat)
    return await _complete(
        service, request, _Job(((prompt,),), chat.options, ChatDialect, chat.include_usage)
    )


async def _complete(service: Service, request: Request, job: _Job) -> Reply:
    loaded = service.loaded
    options = replace(job.options, logit_bias=await _logit_bias(loaded, job.options))
    answer = await _submit(loaded, job.prompts, options)
    meta = Meta(
        id="chatcmpl-" + "".join(secrets.choice(_ID_LETTERS) for _ in range(32)),
        created=int(time.time()),
        model=service.model_name,
        fingerprint=FINGERPRINT,
        options=options,
        prompts=tuple(
            loaded.tokenizer.decode(ticket.accepted.tokens, special=True)
            if job.dialect is NativeDialect
            else ""
            for ticket in answer.tickets
        ),
        include_usage=job.include_usage,
        token_bytes=loaded.token_bytes,
    )
    dialect = job.dialect(meta)
    try:
        if not options.stream:
            results = await unless_gone(request.receive, answer.collect)
            return Json(dialect.whole(results, job.many))
        # Headers leave when the device starts; a refusal before that is a plain JSON answer.
        first = await unless_gone(request.receive, answer.take)
    except BaseException:
        answer.cancel()
        raise
    limits = loaded.engine.limits
    return EventStream(answer, dialect, first, service.settings.ping, limits.send_timeout)


async def _submit(loaded: Loaded, prompts: tuple[Prompt, ...], options: Options) -> Answer:
    """All prompts of a request, or none."""
    engine = loaded.engine
    sampling = _sampling(loaded, options)
    for prompt in prompts:
        if (least := loaded.encoder.fewest(prompt)) >= engine.cells:
            raise too_long(least, engine.cells, counted=False)
    encoded = [await loaded.encoder.encode(prompt) for prompt in prompts]
    outbox = engine.outbox()
    answer = Answer(tickets := [], outbox)
    try:
        for index, tokens in enumerate(encoded):
            ticket = engine.submit(
                tokens,
                max_tokens=options.n_predict,
                sampling=sampling,
                stops=options.stop,
                slot=options.id_slot,
                outbox=outbox,
                index=index,
            )
            tickets.append(ticket)
    except BaseException:
        answer.cancel()
        raise
    return answer


async def _logit_bias(loaded: Loaded, options: Options) -> tuple[tuple[int, float], ...]:
    """The biases by token id; `ignore_eos` is a bias on every token that would end the text."""
    bias: list[tuple[int, float]] = []
    size = loaded.tokenizer.vocab_size
    for target, value in options.logit_bias:
        if isinstance(target, str):
            # One after the other: between two the event loop may do what else there is.
            bias += [(token, value) for token in await loaded.encoder.encode((target,), False, False)]
            await asyncio.sleep(0)
        elif 0 <= target < size:
            bias.append((target, value))
        else:
            raise bad_field("logit_bias", f"token id {target} is not in the vocabulary (0 to {size - 1})")
        if len(bias) > size:
            raise bad_field("logit_bias", f"has more entries than the vocabulary has tokens ({size})")
    if options.ignore_eos:
        bias += [(token, -math.inf) for token in sorted(loaded.tokenizer.eog)]
    # No other bias brings a token back. The sampler would say it too, but only at the first token.
    if len({token for token, value in bias if value == -math.inf}) == size:
        also = " together with ignore_eos" if options.ignore_eos else ""
        raise bad_field("logit_bias", f"forbids{also} every token of the vocabulary ({size}): allow one")
    return tuple(bias)


def _sampling(loaded: Loaded, options: Options) -> Sampling:
    size = loaded.tokenizer.vocab_size
    if options.n_probs > size:
        raise bad_field("n_probs", f"must be at most the vocabulary of {size}, not {options.n_probs}")
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repeat_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repeat_last_n=options.repeat_last_n,
        seed=options.seed,
        n_probs=options.n_probs,
        logit_bias=tuple((token, value) for token, value in options.logit_bias if isinstance(token, int)),
    )


ROUTES: Mapping[tuple[str, str], Handler] = {
    ("GET", "/health"): health,
    ("GET", "/v1/health"): health,
    ("GET", "/models"): models,
    ("GET", "/v1/models"): models,
    ("GET", "/props"): props,
    ("POST", "/completion"): completion,
    ("POST", "/completions"): completion,
    ("POST", "/v1/completions"): openai_completion,
    ("POST", "/chat/completions"): chat_completion,
    ("POST", "/v1/chat/completions"): chat_completion,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
    ("POST", "/apply-template"): apply_template,
}

MISSING: Mapping[tuple[str, str], str] = {
    ("GET", "/slots"): "the list of slots",
    ("GET", "/metrics"): "metrics",
    ("POST", "/props"): "changing properties",
    ("POST", "/infill"): "filling in",
    ("GET", "/lora-adapters"): "LoRA adapters",
    ("POST", "/lora-adapters"): "LoRA adapters",
    **{("POST", path): "embeddings" for path in ("/embedding", "/embeddings", "/v1/embeddings")},
    **{("POST", path): "reranking" for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")},
    **{("POST", path): "the Responses API" for path in ("/responses", "/v1/responses")},
    ("POST", "/v1/messages"): "Anthropic's Messages API",
}
"""Endpoints of llama-server that calrt does not have yet: 501 that names them, where others get 404."""

PUBLIC = frozenset({"/health", "/v1/health"})
"""Paths that need no key."""
