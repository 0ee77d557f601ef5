# SPDX-License-Identifier: Apache-2.0
"""Text on its way out: stop strings at every cut, characters over several tokens, flags, fields, prompts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calrt.detokenizer import Detokenizer, StopFinder
from calrt.serve.errors import TABLE, Kind, Refused
from calrt.serve.fields import Options, read
from calrt.serve.flags import FLAGS, Config, FlagError, parse, usage
from calrt.serve.geometry import choose
from calrt.serve.prompts import read_prompts
from calrt.serve.text import TextStream


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def run(parts: Sequence[str], stops: Sequence[str]) -> tuple[str, str | None, list[str]]:
    finder = StopFinder(stops)
    sent = [finder.feed(part) for part in parts]
    sent.append(finder.flush())
    return "".join(sent), finder.found, sent


def expected(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition: the stop string complete first; of those that end together the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize("stops", [["stop"], ["stop", "top it"], ["ss", "s stop"], ["absent"], [""], ["p"]])
def test_stop_strings_at_every_pair_of_cuts(stops: list[str]) -> None:
    text = "this stops top it"
    for a in range(len(text) + 1):
        for b in range(a, len(text) + 1):
            assert run(pieces(text, [a, b]), stops)[:2] == expected(text, stops)


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_the_result_does_not_depend_on_the_cuts(text: str, stops: list[str], cuts: list[int]) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    assert run(pieces(text, cuts), stops)[:2] == expected(text, stops)


def test_text_that_cannot_begin_a_stop_string_is_sent_at_once() -> None:
    finder = StopFinder(["\n\n"])
    assert finder.feed("hello") == "hello"
    assert finder.feed(" you\n") == " you"
    assert finder.feed("there") == "\nthere"


def byte_stream(stops: Sequence[str] = ()) -> TextStream:
    return TextStream(Detokenizer([bytes([value]) for value in range(256)]), stops)


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_characters_over_several_tokens_are_never_cut(text: str, stops: list[str]) -> None:
    text = text.encode("utf-8", "replace").decode()
    stream = byte_stream(stops)
    sent = []
    for value in text.encode():
        sent.append(stream.feed(value))
        if stream.stopping_word is not None:
            break
    sent.append(stream.flush())
    assert "".join(sent) == expected(text, stops)[0]
    assert all("�" not in part or "�" in text for part in sent)
    assert stream.has_new_line == ("\n" in "".join(sent))


def test_a_limit_inside_a_character_gives_one_replacement_mark() -> None:
    stream = byte_stream()
    assert [stream.feed(value) for value in "😀".encode()[:3]] == ["", "", ""]
    assert stream.flush() == "�"


# ---- fields -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({}, "temperature", 0.8),
        ({"temperature": -3}, "temperature", 0.0),
        ({"top_p": 7}, "top_p", 1.0),
        ({"n_predict": None, "max_tokens": 5}, "n_predict", 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, "n_predict", 6),
        ({"seed": -1}, "seed", 0xFFFFFFFF),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["", "y"]}, "stop", ("y",)),
        ({"logit_bias": {"12": 1, "ab": False}}, "logit_bias", ((12, 1.0), ("ab", -math.inf))),
        ({"logit_bias": [[3, -2.5]]}, "logit_bias", ((3, -2.5),)),
        ({"mirostat": 0, "grammar": "", "lora": [], "typical_p": 1.0}, "temperature", 0.8),
        ({"made_up": object()}, "temperature", 0.8),
    ],
)
def test_fields_are_read(body: dict[str, object], field: str, value: object) -> None:
    assert getattr(read(body, Options()), field) == value


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"n_predict": 1.5}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"max_tokens": -7}, "max_tokens"),
        ({"stream": 1}, "stream"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_penalty": 5e-324}, "repeat_penalty"),
        ({"repeat_penalty": 1e-46}, "repeat_penalty"),
        ({"n_probs": 129}, "n_probs"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"logit_bias": [[True, 1]]}, "logit_bias"),
        ({"logit_bias": [[1, "x"]]}, "logit_bias"),
        ({"logit_bias": "x"}, "logit_bias"),
        ({"response_fields": "content"}, "response_fields"),
        ({"response_fields": ["content"] * 65}, "response_fields"),
        ({"response_fields": ["content", "/" * 257]}, "response_fields"),
        ({"stop": ["x" * 4097]}, "stop"),
        ({"logit_bias": [["x" * 1025, 1]]}, "logit_bias"),
        ({"logit_bias": {"\u00fc" * 513: 1}}, "logit_bias"),
        ({"logit_bias": [["x", 1]] * 1025}, "logit_bias"),
        ({"logit_bias": [[1, 1]] * 65537}, "logit_bias"),
    ],
)
def test_wrong_fields_are_named(body: dict[str, object], field: str) -> None:
    with pytest.raises(Refused, match=f"^Field '{field}': ") as caught:
        read(body, Options())
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    "body",
    [
        {"grammar": 'root ::= "x"'},
        {"json_schema": {}},
        {"mirostat": 2},
        {"n": 2},
        {"n_cmpl": 3},
        {"lora": [{"id": 0, "scale": 1}]},
        {"dry_multiplier": 0.5},
        {"xtc_probability": 0.1},
        {"typical_p": 0.9},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.5},
        {"samplers": ["top_k"]},
    ],
)
def test_what_would_change_the_result_and_is_missing_is_refused_by_name(body: dict[str, object]) -> None:
    with pytest.raises(Refused, match=f"^Field '{next(iter(body))}': ") as caught:
        read(body, Options())
    assert caught.value.row.status == 501


def test_every_kind_of_refusal_has_a_row() -> None:
    assert set(TABLE) == set(Kind)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        ("a", 1),
        ("", 1),
        ([1, 2], 1),
        (["a", 3], 1),
        (["a", "b"], 2),
        ([[1], "b"], 2),
        ([{"prompt_string": "x"}], 1),
    ],
)
def test_prompts_take_every_form(prompt: object, count: int) -> None:
    assert len(read_prompts({"prompt": prompt})) == count


@pytest.mark.parametrize(
    "prompt", [None, 5, True, [], [[]], [None], [[True]], {}, {"prompt_string": 5}, ["a"] * 257]
)
def test_wrong_prompts_are_named(prompt: object) -> None:
    with pytest.raises(Refused, match=r"^Field 'prompt"):
        read_prompts({"prompt": prompt})


# ---- flags and geometry -------------------------------------------------------------------------


def test_the_table_and_the_config_name_the_same_fields() -> None:
    assert sorted(flag.field for flag in FLAGS) == sorted(Config.__struct_fields__)
    names = [name for flag in FLAGS for name in flag.names.split()]
    assert len(names) == len(set(names))
    assert all(name in usage() for name in names)


def test_flags_beat_the_environment_and_take_underscores() -> None:
    environment = {"LLAMA_ARG_CTX_SIZE": "100", "LLAMA_ARG_N_PARALLEL": "2"}
    config, warnings = parse(["--ctx_size", "200", "--temp=0.5", "-ngl", "99"], environment)
    assert (config.ctx_size, config.parallel, config.temp) == (200, 2, 0.5)
    assert warnings == ("-ngl has no effect in calrt",)


def test_f16_means_bf16_with_a_warning() -> None:
    config, warnings = parse(["-ctk", "f16", "-ctv", "bf16"], {})
    assert (config.cache_type_k, config.cache_type_v) == ("bf16", "bf16")
    assert "bf16" in warnings[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--paralel", "4"], "did you mean --parallel"),
        (["--port", "x"], "whole number"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--port"], "needs a value"),
        (["--demo=yes"], "takes no value"),
        (["-np", "0"], "at least 1"),
        (["-ctk", "q8_0"], "quantised"),
        (["-ctk", "f32", "-ctv", "bf16"], "must be the same"),
        (["--compute", "int3"], "one of auto, f32, bf16"),
        (["--temp", "nan"], "from 0"),
    ],
)
def test_wrong_flags_say_what_to_do(arguments: list[str], text: str) -> None:
    with pytest.raises(FlagError, match=text):
        parse(arguments, {})


GRID = {"min": 64, "max": 2048, "step": 64}
LANES = {"min": 1, "max": 64, "step": 1}


@pytest.mark.parametrize(
    ("ctx", "parallel", "lanes", "cells"),
    [(0, -1, 4, 512), (0, 1, 1, 2048), (1000, 2, 2, 448), (99999, 1, 1, 2048), (8192, 4, 4, 2048)],
)
def test_geometry_fits_the_grid(ctx: int, parallel: int, lanes: int, cells: int) -> None:
    got = choose(ctx, parallel, 2048, LANES, GRID)
    assert (got.lanes, got.cells) == (lanes, cells)
    exact = (ctx or 2048) // lanes == cells
    assert bool(got.notes) != exact


def test_geometry_of_a_fixed_package() -> None:
    assert choose(0, -1, 40960, [1], [40960]).lanes == 1
    with pytest.raises(ValueError, match="allows 1 slots"):
        choose(0, 2, 40960, [1], [40960])
    with pytest.raises(ValueError, match="raise --ctx-size"):
        choose(100, 4, 2048, LANES, GRID)
