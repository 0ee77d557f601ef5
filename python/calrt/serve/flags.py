# SPDX-License-Identifier: Apache-2.0
"""calrt-server's flags: one table with llama-server's names, read into a frozen Config. Pure.

Command line beats environment beats default. Long flags take `_` for `-`, and `--flag=value`.
"""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .fields import SMALLEST


class FlagError(Exception):
    """A command line that cannot be used; the text says what to do."""


class Config(Struct, frozen=True, kw_only=True):
    """What the command line and the environment ask for."""

    model: str = ""
    demo: bool = False
    device: str = "cpu"
    allow_unverified: bool = False
    alias: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    ctx_size: int = 0
    parallel: int = -1
    threads: int = -1
    compute: str = "auto"
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    in_flight: int = 1
    n_predict: int = -1
    temp: float = 0.8
    seed: int = -1
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    api_key: str = ""
    cors_origins: str = ""
    queue: int = -1
    timeout: float = 3600.0
    send_timeout: float = 10.0
    drain_timeout: float = 5.0
    recoveries: int = 3
    body_limit: int = 32 << 20
    sse_ping_interval: float = 30.0
    verbose: bool = False
    help: bool = False
    version: bool = False


class Flag(Struct, frozen=True):
    """One row of the table. A flag of kind bool takes no value."""

    names: str
    field: str
    kind: type
    env: str
    about: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()


_KV_TYPES = ("auto", "f16", "bf16", "f32")
_COMPUTE = ("auto", "f32", "bf16")
_BIG = 2**31 - 1
_LONG = 1e9

# fmt: off
GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("model", (
        Flag("-m --model", "model", str, "LLAMA_ARG_MODEL",
             "a GGUF file, a package directory, the name of a fetched model, or preset:NAME"),
        Flag("--demo", "demo", bool, "",
             "serve the demo model (SmolLM2-135M-Instruct), preset:tiny on mock if it is not here"),
        Flag("-dev --device", "device", str, "LLAMA_ARG_DEVICE",
             "a driver such as cpu or mock:bare, or the path of one"),
        Flag("--allow-unverified", "allow_unverified", bool, "",
             "use what the device is said to do (C1, C2), not only what is proven (C0)"),
        Flag("-a --alias", "alias", str, "LLAMA_ARG_ALIAS", "name in answers; several with commas"),
        Flag("-c --ctx-size", "ctx_size", int, "LLAMA_ARG_CTX_SIZE",
             "context of all slots together, 0 = the model's", 0, _BIG),
        Flag("-np --parallel", "parallel", int, "LLAMA_ARG_N_PARALLEL",
             "slots, each with ctx-size / parallel tokens; -1 = 4", -1, 1024),
        Flag("-t --threads", "threads", int, "LLAMA_ARG_THREADS",
             "threads of the device, -1 = its own choice", -1, 1024),
        Flag("--compute", "compute", str, "CALRT_ARG_COMPUTE",
             "precision of weights and arithmetic: auto, f32 or bf16", choices=_COMPUTE),
        Flag("-ctk --cache-type-k", "cache_type_k", str, "LLAMA_ARG_CACHE_TYPE_K",
             "KV type of keys: auto, bf16 or f32 (f16 means bf16)"),
        Flag("-ctv --cache-type-v", "cache_type_v", str, "LLAMA_ARG_CACHE_TYPE_V",
             "KV type of values: the same as for keys"),
        Flag("--in-flight", "in_flight", int, "CALRT_ARG_IN_FLIGHT",
             "jobs on the device at a time; 2 takes a record of calrt bench ab that shows a gain", 1, 2),
    )),
    ("sampling defaults (a request's own values win)", (
        Flag("-n --predict --n-predict", "n_predict", int, "LLAMA_ARG_N_PREDICT",
             "most tokens to generate, -1 = until the slot is full", -1, _BIG),
        Flag("--temp --temperature", "temp", float, "LLAMA_ARG_TEMPERATURE", "0 = the likeliest token", 0),
        Flag("-s --seed", "seed", int, "LLAMA_ARG_SEED", "-1 = random", -1, 2**32 - 1),
        Flag("--top-k", "top_k", int, "LLAMA_ARG_TOP_K", "0 = all", 0, _BIG),
        Flag("--top-p", "top_p", float, "LLAMA_ARG_TOP_P", "1 = off", 0, 1),
        Flag("--min-p", "min_p", float, "LLAMA_ARG_MIN_P", "0 = off", 0, 1),
        Flag("--repeat-last-n", "repeat_last_n", int, "", "tokens that the penalties look at", 0, _BIG),
        Flag("--repeat-penalty", "repeat_penalty", float, "LLAMA_ARG_REPEAT_PENALTY", "1 = off",
             SMALLEST),
        Flag("--presence-penalty", "presence_penalty", float, "", "0 = off"),
        Flag("--frequency-penalty", "frequency_penalty", float, "", "0 = off"),
    )),
    ("server", (
        Flag("--host", "host", str, "LLAMA_ARG_HOST", "address to listen on; 0.0.0.0 = the whole network"),
        Flag("--port", "port", int, "LLAMA_ARG_PORT", "0 = any free one, see the log", 0, 65535),
        Flag("--api-key", "api_key", str, "LLAMA_API_KEY", "keys that let in; several with commas"),
        Flag("--cors-origins", "cors_origins", str, "LLAMA_ARG_CORS_ORIGINS",
             'web pages that may call: "*", "localhost" or one origin (not set: "*" with a key)'),
        Flag("--queue", "queue", int, "CALRT_ARG_QUEUE",
             "requests that may wait; more are refused with 429; -1 = 16 for each slot", -1, 1 << 20),
        Flag("-to --timeout", "timeout", float, "LLAMA_ARG_TIMEOUT",
             "seconds a request may take", 0.001, _LONG),
        Flag("--send-timeout", "send_timeout", float, "CALRT_ARG_SEND_TIMEOUT",
             "seconds a client may leave its stream unread", 0.001, _LONG),
        Flag("--drain-timeout", "drain_timeout", float, "CALRT_ARG_DRAIN_TIMEOUT",
             "seconds that running requests get when the server is told to stop", 0, _LONG),
        Flag("--recoveries", "recoveries", int, "CALRT_ARG_RECOVERIES",
             "how often a lost device is opened anew in ten minutes; then the server answers 503",
             0, 1 << 20),
        Flag("--body-limit", "body_limit", int, "CALRT_ARG_BODY_LIMIT",
             "largest request body in bytes", 1024, 1 << 40),
        Flag("--sse-ping-interval", "sse_ping_interval", float, "LLAMA_ARG_SSE_PING_INTERVAL",
             "seconds of silence before a stream gets a comment, -1 = never", -1, _LONG),
        Flag("-v --verbose", "verbose", bool, "", "log every request"),
        Flag("-h --help", "help", bool, "", "this text"),
        Flag("--version", "version", bool, "", "print the version"),
    )),
)
# fmt: on

_IGNORED_WITH_VALUE = """-b --batch-size -ub --ubatch-size -tb --threads-batch --threads-http -ngl
    --gpu-layers --n-gpu-layers -fa --flash-attn"""
_IGNORED_ALONE = """-cb --cont-batching --jinja --no-jinja --no-webui --no-ui --slots --no-slots --offline
    --mlock --no-mmap --no-context-shift -kvu --kv-unified -no-kvu --no-kv-unified"""
IGNORED: dict[str, bool] = {
    **dict.fromkeys(_IGNORED_WITH_VALUE.split(), True),
    **dict.fromkeys(_IGNORED_ALONE.split(), False),
}
"""Flags of llama-server without effect here, and whether they take a value. Accepted with a warning."""

FLAGS: tuple[Flag, ...] = tuple(flag for _, flags in GROUPS for flag in flags)
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """The Config and warnings. Raises FlagError naming the flag and what is wrong with it."""
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for flag in FLAGS:
        if flag.env and (text := environment.get(flag.env)):
            values[flag.field] = _value(flag, text, f"environment variable {flag.env}")
    position = 0
    while position < len(arguments):
        name, given = _split(arguments[position])
        position += 1
        known = _BY_NAME.get(name)
        if known is None and name not in IGNORED:
            raise FlagError(_unknown(name))
        takes_value = IGNORED[name] if known is None else known.kind is not bool
        if takes_value and given is None:
            if position >= len(arguments):
                raise FlagError(f"{name} needs a value")
            given = arguments[position]
            position += 1
        if not takes_value and given is not None:
            raise FlagError(f"{name} takes no value")
        if known is None:
            warnings.append(f"{name} has no effect in calrt")
        else:
            values[known.field] = True if given is None else _value(known, given, name)
    return _checked(Config(**values), warnings)


def _split(argument: str) -> tuple[str, str | None]:
    if not argument.startswith("--"):
        return argument, None
    name, equals, value = argument.partition("=")
    return name.replace("_", "-"), value if equals else None


def _value(flag: Flag, text: str, where: str) -> Any:
    if flag.kind is str:
        if flag.choices and text not in flag.choices:
            raise FlagError(f"{where} must be one of {', '.join(flag.choices)}, not {text!r}")
        return text
    try:
        number = flag.kind(text)
    except ValueError:
        kind = "a whole number" if flag.kind is int else "a number"
        raise FlagError(f"{where} must be {kind}, not {text!r}") from None
    if not flag.low <= number <= flag.high or not math.isfinite(number):
        raise FlagError(f"{where} must be from {flag.low:g} to {flag.high:g}, not {text}")
    return number


def _unknown(name: str) -> str:
    known = [*_BY_NAME, *IGNORED]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown argument {name}: {hint}calrt-server -h lists all"


def _checked(config: Config, warnings: list[str]) -> tuple[Config, tuple[str, ...]]:
    if config.parallel == 0:
        raise FlagError("--parallel must be at least 1, or -1 for the default")
    for name, value in (("--cache-type-k", config.cache_type_k), ("--cache-type-v", config.cache_type_v)):
        if value not in _KV_TYPES:
            raise FlagError(f"{name} {value}: a quantised KV cache is not supported; use bf16 or f32")
    k, v = (("bf16" if kind == "f16" else kind) for kind in (config.cache_type_k, config.cache_type_v))
    if k != v and "auto" not in (k, v):
        raise FlagError(f"--cache-type-k {k} and --cache-type-v {v}: both must be the same")
    if "f16" in (config.cache_type_k, config.cache_type_v):
        warnings.append("the KV type f16 does not exist here; bf16 is used")
    chosen = v if k == "auto" else k
    return replace(config, cache_type_k=chosen, cache_type_v=chosen), tuple(warnings)


def usage(width: int = 100) -> str:
    """The text of -h."""
    defaults = Config()
    lines = [
        "calrt-server: llama-server's HTTP API over a CalRT device",
        "",
        "  calrt-server --demo                      the demo model on http://127.0.0.1:8080",
        "  calrt-server -m model.gguf -c 8192 -np 4 four slots of 2048 tokens each",
        '  curl http://127.0.0.1:8080/completion -d \'{"prompt": "Once upon a time", "n_predict": 32}\'',
    ]
    for title, flags in GROUPS:
        lines += ["", f"{title}:"]
        for flag in flags:
            names = ", ".join(flag.names.split()) + (
                "" if flag.kind is bool else f" {flag.kind.__name__.upper()}"
            )
            default = getattr(defaults, flag.field)
            notes = [flag.about]
            if flag.kind is not bool and default != "":
                notes.append(f"[{default}]")
            if flag.env:
                notes.append(f"(env {flag.env})")
            text = textwrap.wrap(" ".join(notes), width - 36)
            lines.append(f"  {names:<32}  {text[0]}" if len(names) <= 32 else f"  {names}")
            rest = text[1:] if len(names) <= 32 else text
            lines += [" " * 36 + line for line in rest]
    return "\n".join(lines) + "\n"
