# SPDX-License-Identifier: Apache-2.0
"""The detokenizer: pieces joined are the whole, wherever the tokens cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calrt.detokenizer import Detokenizer

TABLE = [bytes([byte]) for byte in range(256)]
TEXT = "aé日👋🏽\U0010ffff z\u0301\n"


def run(pieces: list[bytes]) -> tuple[list[str], str]:
    """What each piece gives, and the flush."""
    stream = Detokenizer(pieces)
    return [stream.feed(i) for i in range(len(pieces))], stream.flush()


def test_every_cut_gives_the_whole() -> None:
    data = TEXT.encode()
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            parts, rest = run([data[:first], data[first:second], data[second:]])
            assert "".join(parts) + rest == TEXT
            assert rest == ""
            assert "\ufffd" not in "".join(parts)


def test_byte_by_byte_text_comes_with_the_last_byte_of_each_character() -> None:
    stream = Detokenizer(TABLE)
    pieces = [stream.feed(byte) for byte in "é👋".encode()]
    assert pieces == ["", "é", "", "", "", "👋"]


@settings(deadline=None)
@given(st.text(), st.data())
def test_text_at_random_cuts(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    edges = [0, *cuts, len(encoded)]
    parts, rest = run([encoded[a:b] for a, b in pairwise(edges)])
    assert "".join(parts) == text
    assert rest == ""


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_give_the_text_of_the_whole(data: bytes) -> None:
    parts, rest = run([bytes([byte]) for byte in data])
    joined = "".join(parts) + rest
    assert joined == data.decode("utf-8", "replace")
    joined.encode("utf-8")
    assert rest in ("", "\ufffd")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_broken_tail_is_one_replacement(length: int) -> None:
    stream = Detokenizer(TABLE)
    tail = "👋".encode()[:length]
    assert "".join(stream.feed(byte) for byte in b"ok" + tail) == "ok"
    assert stream.pending == tail
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.pending == b""
    assert stream.feed(ord("x")) == "x"


def test_a_broken_middle_does_not_swallow_what_follows() -> None:
    stream = Detokenizer([b"\xf0\x9f", b"ab", b"\x80", b"c"])
    assert [stream.feed(i) for i in range(4)] == ["", "\ufffdab", "\ufffd", "c"]
    assert stream.flush() == ""


def test_ids_outside_the_table() -> None:
    stream = Detokenizer([b"a", b"b"])
    for token in (-1, 2, 1 << 40):
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of 2"):
            stream.feed(token)
    assert stream.feed(1) == "b"
