# SPDX-License-Identifier: Apache-2.0
"""Sequences and generate(): ids, text, streams, stops, options."""

from __future__ import annotations

import numpy as np
import pytest

import calrt
from calrt.detokenizer import StopFinder
from shared_files import stories

PROMPT = [1, 60, 70, 80, 90, 100]


def greedy(model: calrt.Model, prompt: list[int], count: int) -> list[int]:
    """Argmax by hand over Sequence."""
    out: list[int] = []
    with model.sequence(len(prompt) + count) as sequence:
        logits = sequence.prefill(prompt)
        for _ in range(count):
            token = int(logits.to_f32().argmax())
            out.append(token)
            logits = sequence.decode(token)
    return out


def test_sequence_shapes_and_room(model: calrt.Model) -> None:
    with model.sequence(8) as sequence:
        assert sequence.prefill(PROMPT).shape == (model.vocab,)
        assert sequence.length == len(PROMPT)
        assert sequence.decode(3).shape == (model.vocab,)
        with pytest.raises(calrt.InvalidArgumentError, match="2 do not fit"):
            sequence.prefill([1, 2])
        assert sequence.length == 7
        with pytest.raises(calrt.InvalidArgumentError, match="empty"):
            sequence.prefill([])
    assert model.kv.free_lanes() == 4


def test_a_long_prefill_runs_in_chunks_and_equals_decoding(model: calrt.Model) -> None:
    tokens = [1] + [(7 * i) % 380 for i in range(110)]
    with model.sequence() as chunked, model.sequence() as single:
        whole = chunked.prefill(tokens).to_f32()
        for token in tokens:
            last = single.decode(token)
        assert (last.to_f32() == whole).all()


def test_ids_give_ids(model: calrt.Model) -> None:
    expected = greedy(model, PROMPT, 12)
    ids = model.generate(PROMPT, max_tokens=12, temperature=0, stop_tokens=())
    assert ids == expected
    stream = model.generate(PROMPT, max_tokens=12, temperature=0, stop_tokens=(), stream=True)
    assert next(stream) == expected[0]
    assert model.kv.free_lanes() == 3
    assert list(stream) == expected[1:]
    assert model.kv.free_lanes() == 4


def test_a_stop_token_ends_and_does_not_show(model: calrt.Model) -> None:
    expected = greedy(model, PROMPT, 12)
    stop = expected[5]
    ids = model.generate(PROMPT, max_tokens=12, temperature=0, stop_tokens=[stop])
    assert ids == expected[: expected.index(stop)]
    for given in (stop, np.int64(stop), np.array([stop], np.int32), {stop}):
        assert ids == model.generate(PROMPT, max_tokens=12, temperature=0, stop_tokens=given)


def test_generation_ends_where_the_lane_ends(model: calrt.Model) -> None:
    prompt = [1] * 120
    ids = model.generate(prompt, max_tokens=100, temperature=0, stop_tokens=())
    assert len(ids) == 128 - 120 + 1  # the last token needs no cell
    with pytest.raises(calrt.InvalidArgumentError, match="129 tokens"):
        model.generate([1] * 129)


def test_seeds_repeat_and_differ(model: calrt.Model) -> None:
    def draw(seed: int) -> list[int]:
        return model.generate(PROMPT, max_tokens=16, temperature=1.5, top_k=0, seed=seed, stop_tokens=())

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_text_gives_text_and_streams_the_same(model: calrt.Model) -> None:
    options = {"max_tokens": 24, "temperature": 0}
    text = model.generate("Once upon a time", **options)
    pieces = list(model.generate("Once upon a time", stream=True, **options))
    assert "".join(pieces) == text
    assert all(pieces)


def test_a_stop_string_never_shows(model: calrt.Model) -> None:
    text = model.generate("Once upon a time", max_tokens=24, temperature=0)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    assert stop
    cut = model.generate("Once upon a time", max_tokens=24, temperature=0, stop=stop)
    assert cut == text[: text.index(stop)]
    assert model.kv.free_lanes() == 4


def test_an_abandoned_stream_gives_its_lane_back(model: calrt.Model) -> None:
    stream = model.generate("Once", max_tokens=24, temperature=0, stream=True)
    next(stream)
    assert model.kv.free_lanes() == 3
    del stream
    assert model.kv.free_lanes() == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temprature": 1.0}, "temprature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": np.float32(-1)}, "temperature"),
        ({"max_token": 5}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"stop_tokens": ["x"]}, "stop_tokens"),
        ({"stop_tokens": "x"}, "stop_tokens"),
        ({"stop_tokens": [-1]}, "stop_tokens"),
        ({"stop_tokens": 9999}, "stop_tokens"),
        ({"stop_tokens": True}, "stop_tokens"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {9999: 1.0}}, "logit_bias"),
    ],
)
def test_options_are_checked_by_name_before_anything_runs(
    model: calrt.Model, options: dict[str, object], text: str
) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match=text):
        model.generate("Once", stream=True, **options)  # type: ignore[call-overload]
    assert model.kv.free_lanes() == 4


def test_bad_prompts(model: calrt.Model) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match="no tokens"):
        model.generate([])
    with pytest.raises(calrt.InvalidArgumentError, match="384"):
        model.generate([384])


@pytest.mark.parametrize("stops", [("abcd", "bc"), ("bc", "abcd"), ("bcd", "abcd"), ("xy", "d")])
def test_a_stop_string_ends_a_text_the_same_however_it_is_cut(stops: tuple[str, ...]) -> None:
    def shown(pieces: list[str]) -> str:
        finder = StopFinder(stops)
        return "".join(finder.feed(piece) for piece in pieces) + finder.flush()

    assert {shown(["zabcde"]), shown(["zab", "cde"]), shown(["zabc", "de"])} == {shown(list("zabcde"))}


def test_stories260k_tells_its_published_story(device: calrt.Device, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("CALRT_CACHE", str(tmp_path))
    published = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball. She wanted to play with it, but it was too high."
    )
    with device.load(stories(), lanes=1, cells=512) as model:
        text = model.generate("", max_tokens=120, temperature=0)
    assert text.lstrip().startswith(published)
