# SPDX-License-Identifier: Apache-2.0
"""The request fields that all completion endpoints share, as one table. Pure.

`read` turns a decoded JSON object into `Options`: known fields checked and clamped as llama-server does
(null means absent, unknown fields are ignored), known fields that calrt lacks refused by name unless they
have their neutral value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .errors import bad_field, unsupported_field

MAX_STOPS = 64
MAX_STOP_LENGTH = 4096
MAX_LOGIT_BIAS = 65536
MAX_BIAS_STRINGS = 1024
MAX_BIAS_BYTES = 1024
MAX_RESPONSE_FIELDS = 64
MAX_RESPONSE_FIELD_LENGTH = 256
MAX_PROBS = 128
RANDOM_SEED = 0xFFFFFFFF
DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
SMALLEST = 2.0**-126
"""The smallest normal number of the sampler's arithmetic (float32): what is below it counts as 0 there."""
_INT32 = 2**31 - 1
_LARGEST = 1e30


class Options(Struct, frozen=True, kw_only=True):
    """Fields of one request after reading. The defaults are llama-server's."""

    n_predict: int = -1
    n_cmpl: int = 1
    stream: bool = False
    cache_prompt: bool = True
    id_slot: int = -1
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = RANDOM_SEED
    n_probs: int = 0
    ignore_eos: bool = False
    n_keep: int = 0
    n_discard: int = 0
    min_keep: int = 0
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    stop: tuple[str, ...] = ()
    response_fields: tuple[str, ...] = ()


class Field(Struct, frozen=True):
    """How one field is read: hard limits refuse, soft limits clamp."""

    kind: type
    low: float = -math.inf
    high: float = math.inf
    soft: bool = False
    aliases: tuple[str, ...] = ()


FIELDS: dict[str, Field] = {
    "n_predict": Field(int, -1, _INT32, aliases=("max_completion_tokens", "max_tokens")),
    "n_cmpl": Field(int, 1, 1024, aliases=("n",)),
    "stream": Field(bool),
    "cache_prompt": Field(bool),
    "id_slot": Field(int, -_INT32, _INT32),
    "return_tokens": Field(bool),
    "return_progress": Field(bool),
    "timings_per_token": Field(bool),
    "temperature": Field(float, 0, soft=True),
    "top_k": Field(int, 0, _INT32, soft=True),
    "top_p": Field(float, 0, 1, soft=True),
    "min_p": Field(float, 0, 1, soft=True),
    "repeat_last_n": Field(int, 0, _INT32),
    "repeat_penalty": Field(float, SMALLEST),
    "presence_penalty": Field(float),
    "frequency_penalty": Field(float),
    "seed": Field(int, -(2**63), 2**64 - 1),
    "n_probs": Field(int, 0, MAX_PROBS),
    "ignore_eos": Field(bool),
    "n_keep": Field(int, -1, _INT32),
    "n_discard": Field(int, 0, _INT32),
    "min_keep": Field(int, 0, _INT32),
}


class Missing(Struct, frozen=True):
    """A field of llama-server that calrt does not have yet: what it is, and its values without effect."""

    what: str
    kind: type
    low: float = 0
    high: float = 0


MISSING: dict[str, Missing] = {
    "grammar": Missing("constrained output", str),
    "json_schema": Missing("constrained output", dict),
    "mirostat": Missing("mirostat sampling", int),
    "dynatemp_range": Missing("dynamic temperature", float, -math.inf, 0),
    "top_n_sigma": Missing("top-n-sigma sampling", float, -math.inf, 0),
    "typical_p": Missing("typical sampling", float, 1, math.inf),
    "xtc_probability": Missing("XTC sampling", float, -math.inf, 0),
    "dry_multiplier": Missing("DRY sampling", float, -math.inf, 0),
    "adaptive_target": Missing("adaptive sampling", float, -math.inf, 0),
    "post_sampling_probs": Missing("probabilities after sampling", bool),
    "n_cache_reuse": Missing("shifting cached chunks", int),
    "n_indent": Missing("the indentation stop", int),
    "t_max_predict_ms": Missing("the time limit after a new line", float, -math.inf, 0),
    "lora": Missing("LoRA adapters", list),
}


def read(body: Mapping[str, Any], defaults: Options) -> Options:
    """The shared fields of `body` over `defaults`. Refused with the field's name when one is wrong."""
    values: dict[str, Any] = {}
    for name, field in FIELDS.items():
        for key in (name, *field.aliases):
            value = body.get(key)
            if value is not None:
                values[name] = check(key, value, field)
                break
    for name, missing in MISSING.items():
        value = body.get(name)
        if value is not None and not _neutral(name, value, missing):
            raise unsupported_field(name, missing.what)
    if values.get("n_cmpl", 1) > 1:
        raise unsupported_field("n" if "n" in body else "n_cmpl", "more than one answer per prompt")
    if "seed" in values:
        values["seed"] &= RANDOM_SEED
    _read_lists(body, values)
    merged = {name: getattr(defaults, name) for name in Options.__struct_fields__}
    return Options(**{**merged, **values})


def _read_lists(body: Mapping[str, Any], values: dict[str, Any]) -> None:
    if (stop := body.get("stop")) is not None:
        values["stop"] = _stops(stop)
    if (bias := body.get("logit_bias")) is not None:
        values["logit_bias"] = _logit_bias(bias)
    if (wanted := body.get("response_fields")) is not None:
        if not isinstance(wanted, list) or not all(isinstance(each, str) for each in wanted):
            raise bad_field("response_fields", "must be a list of strings")
        if len(wanted) > MAX_RESPONSE_FIELDS:
            raise bad_field(
                "response_fields", f"has {len(wanted)} entries, at most {MAX_RESPONSE_FIELDS} are allowed"
            )
        if (longest := max(map(len, wanted), default=0)) > MAX_RESPONSE_FIELD_LENGTH:
            raise bad_field(
                "response_fields", f"has a name of {longest} characters, at most {MAX_RESPONSE_FIELD_LENGTH}"
            )
        values["response_fields"] = tuple(wanted)
    if (samplers := body.get("samplers")) is not None:
        if isinstance(samplers, list) and tuple(samplers) == DEFAULT_SAMPLERS:
            return
        raise unsupported_field("samplers", "another order of samplers than the default")


def check(name: str, value: object, field: Field) -> Any:
    """`value` as the field's kind and within its limits, else Refused."""
    if field.kind is bool:
        if not isinstance(value, bool):
            raise bad_field(name, f"must be true or false, not {kind_name(value)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_field(name, f"must be a number, not {kind_name(value)}")
    if abs(value) > _LARGEST or not math.isfinite(value):
        raise bad_field(name, "must be a finite number of a sensible size")
    if field.kind is int and value != int(value):
        raise bad_field(name, f"must be a whole number, not {value}")
    number = field.kind(value)
    if field.low <= number <= field.high:
        return number
    if field.soft:
        return field.kind(min(max(number, field.low), field.high))
    if field.high == math.inf or number < field.low:
        low = "above 0" if 0 < field.low <= SMALLEST else f"at least {field.low:g}"
        raise bad_field(name, f"must be {low}, not {value}")
    raise bad_field(name, f"must be at most {field.high:.0f}, not {value}")


def kind_name(value: object) -> str:
    """The JSON name of a value's type."""
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _neutral(name: str, value: object, missing: Missing) -> bool:
    if missing.kind in (str, dict, list):
        if not isinstance(value, missing.kind) and not isinstance(value, str | dict | list | bool):
            raise bad_field(name, f"has the wrong type: {kind_name(value)}")
        # An empty schema is a constraint (any object); an empty grammar or list is none.
        return not value and missing.kind is not dict
    if missing.kind is bool:
        return check(name, value, Field(bool)) is False
    number = check(name, value, Field(missing.kind))
    return bool(missing.low <= number <= missing.high)


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise bad_field("stop", "must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise bad_field("stop", f"has {len(stops)} strings, at most {MAX_STOPS} are allowed")
    for stop in stops:
        if len(stop) > MAX_STOP_LENGTH:
            raise bad_field("stop", f"has a string of {len(stop)} characters, at most {MAX_STOP_LENGTH}")
    return tuple(stop for stop in stops if stop)


def _logit_bias(value: object) -> tuple[tuple[int | str, float], ...]:
    if isinstance(value, dict):
        pairs: list[Any] = [[_token_key(key), each] for key, each in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise bad_field("logit_bias", f"must be a list of pairs or an object, not {kind_name(value)}")
    if len(pairs) > MAX_LOGIT_BIAS:
        raise bad_field("logit_bias", f"has {len(pairs)} entries, at most {MAX_LOGIT_BIAS} are allowed")
    biases = tuple(_bias(pair) for pair in pairs)
    strings = sum(isinstance(target, str) for target, _ in biases)
    if strings > MAX_BIAS_STRINGS:
        raise bad_field("logit_bias", f"has {strings} strings, at most {MAX_BIAS_STRINGS} are allowed")
    return biases


def _token_key(key: str) -> int | str:
    return int(key) if len(key) <= 10 and key.isascii() and key.isdigit() else key


def _bias(pair: object) -> tuple[int | str, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise bad_field("logit_bias", "each entry must be [token id or string, number or false]")
    target, bias = pair
    if isinstance(target, bool) or not isinstance(target, int | str):
        raise bad_field("logit_bias", f"a token is a number or a string, not {kind_name(target)}")
    if isinstance(target, str) and (size := len(target.encode("utf-8", "replace"))) > MAX_BIAS_BYTES:
        raise bad_field("logit_bias", f"has a string of {size} bytes, at most {MAX_BIAS_BYTES} are allowed")
    if bias is False:
        return target, -math.inf
    return target, check("logit_bias", bias, Field(float))
