# SPDX-License-Identifier: Apache-2.0
"""The tokenizer: round trips, special tokens, pre-tokenizers, and agreement with slow references."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calrt import tokenizer as tokenizer_module
from calrt.detokenizer import Detokenizer
from calrt.gguf import GgufError, GgufMetadata, parse_gguf, read_gguf
from calrt.package_build import build_package
from calrt.pretokenizers import PATTERNS
from calrt.tokenizer import Tokenizer
from calrt.vocabulary import read_vocabulary
from shared_files import smollm2, stories
from tiny_gguf import CHAT_TEMPLATE, bpe_metadata, gguf_bytes, make_llama, spm_metadata

TEXTS = [
    "",
    " ",
    "Hello world",
    " Once upon a time there was a little girl named Lily.",
    "  two  spaces\tand\ttabs \n\n lines\r\n",
    "I'm you're WE'LL 1234567 3.14 x=y; /* c */",
    "héé 日本語 👋🏽 \U0010ffff e\u0301 \u3000 \u00a0",
    "\x00\x01\x7f",
    "<s></s><unk><0x41><|im_end|>",
    "▁already▁there",
    "the " * 50,
]


def metadata(values: dict[str, Any]) -> GgufMetadata:
    return parse_gguf(gguf_bytes(values)).metadata


@functools.cache
def spm_meta() -> GgufMetadata:
    return metadata(spm_metadata())


@functools.cache
def bpe_meta() -> GgufMetadata:
    return metadata(bpe_metadata())


@functools.cache
def spm() -> Tokenizer:
    return Tokenizer.from_gguf(spm_meta())


@functools.cache
def bpe(pre: str = "gpt-2") -> Tokenizer:
    return Tokenizer.from_gguf(metadata(bpe_metadata(pre=pre)))


@functools.cache
def smollm2_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(smollm2()).metadata)


# ---- round trips ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text())
def test_spm_round_trip(text: str) -> None:
    # SPM writes a space as U+2581, so a text's own U+2581 comes back as a space. One space is put in front.
    wanted = (" " + text if text else "").replace("\u2581", " ")
    assert spm().decode(spm().encode(text)) == wanted


@settings(deadline=None)
@given(st.text())
def test_bpe_round_trip(text: str) -> None:
    assert bpe().decode(bpe().encode(text)) == text


@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_every_pretokenizer_keeps_the_text(pre: str) -> None:
    for text in TEXTS:
        assert bpe(pre).decode(bpe(pre).encode(text)) == text


@settings(deadline=None)
@given(st.text())
def test_stream_equals_whole(text: str) -> None:
    for tokenizer in (spm(), bpe()):
        ids = tokenizer.encode(text)
        stream = Detokenizer(tokenizer.byte_table)
        assert "".join(map(stream.feed, ids)) + stream.flush() == tokenizer.decode(ids)


def test_lone_surrogates_become_a_replacement_character() -> None:
    for tokenizer in (spm(), bpe()):
        assert tokenizer.decode(tokenizer.encode("a\ud800b")).strip() == "a\ufffdb"


# ---- merging, against slow references -------------------------------------------------------------


def slow_spm(meta: GgufMetadata, text: str) -> list[int]:
    """Merge the neighbours whose union scores highest, the leftmost first; bytes for what is no piece."""
    vocabulary = read_vocabulary(meta)
    ids = {t: i for i, (t, k) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)) if k == 1}
    parts = list((" " + text).replace(" ", "\u2581"))
    while True:
        unions = [
            (vocabulary.scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairs(parts)) if a + b in ids
        ]
        if not unions:
            break
        at = -max(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    out: list[int] = []
    for part in parts:
        out += (
            [ids[part]] if part in ids else [vocabulary.tokens.index(f"<0x{b:02X}>") for b in part.encode()]
        )
    return out


def pairs(parts: list[str]) -> list[tuple[str, str]]:
    return list(pairwise(parts))


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="theOnc upaimlLy.,é日 ", min_size=1, max_size=40))
def test_spm_merges_like_the_definition(text: str) -> None:
    assert spm().encode(text, add_special=False) == slow_spm(spm_meta(), text)


def test_spm_merges_like_the_definition_on_a_real_vocabulary() -> None:
    meta = read_gguf(stories()).metadata
    tokenizer = Tokenizer.from_gguf(meta)
    for text in TEXTS[2:7]:
        assert tokenizer.encode(text, add_special=False) == slow_spm(meta, text)


def slow_bpe(meta: GgufMetadata, word: str) -> list[str]:
    """Merge the pair of lowest rank, the leftmost first, within one word."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(meta.texts("tokenizer.ggml.merges"))}
    parts = list(word)
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(pairs(parts)) if pair in ranks]
        if not found:
            return parts
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="aedhilnorstwy", min_size=1, max_size=12), min_size=1, max_size=5))
def test_bpe_merges_like_the_definition(words: list[str]) -> None:
    wanted = [part for word in words for part in slow_bpe(bpe_meta(), "Ġ" + word)]
    ids = bpe().encode(" " + " ".join(words))
    assert [bpe().token_text(i) for i in ids] == wanted


CUTS = {  # what each family does with "ab 12345 c!\n\n d"
    "gpt-2": ["ab", " 12345", " c", "!", "\n\n", " d"],
    "llama-bpe": ["ab", " ", "123", "45", " c", "!\n\n", " d"],
    "qwen2": ["ab", " ", "1", "2", "3", "4", "5", " c", "!\n\n", " d"],
    "smollm": ["ab", " ", "1", "2", "3", "4", "5", " c", "!", "\n\n", " d"],
    "falcon": ["ab", " ", "123", "45", " c", "!", "\n\n", " d"],
    "default": ["ab", " ", "123", "45", " c", "!", "\n\n", " d"],
    "deepseek-coder": ["ab", " ", "1", "2", "3", "4", "5", " c", "!", "\n", "\n", " d"],
    "deepseek-llm": ["ab", " ", "12345", " c", "!", "\n", "\n", " d"],
}


@pytest.mark.parametrize("pre", CUTS)
def test_how_text_is_cut_into_words(pre: str) -> None:
    import tokenizers

    pieces = [("ab 12345 c!\n\n d", (0, 0))]
    for expression in PATTERNS[pre]:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")
        pieces = [new for text, _ in pieces for new in split.pre_tokenize_str(text)]
    assert [text for text, _ in pieces] == CUTS[pre]


def test_cased_letters_of_deepseek_llm() -> None:
    import tokenizers

    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERNS["deepseek-llm"][1]), "isolated")
    for text, whole in [
        ("Straße", True),
        ("Ωμέγα", True),
        ("Привет", True),
        ("ꚛ", True),
        ("\U00010428a", True),
    ]:
        assert (split.pre_tokenize_str(text + "-")[0][0] == text) is whole
    for text in ("\u0561", "\u10d0", "\u1c80", "\ua7b5", "\U0001d400", "ƻ", "日"):
        assert split.pre_tokenize_str("a" + text)[0][0] == "a"


# ---- special tokens -------------------------------------------------------------------------------


def test_bos_and_eos() -> None:
    assert spm().encode("") == [1]
    assert spm().encode("", add_special=False) == []
    assert (spm().bos, spm().eos, spm().eog, spm().add_bos) == (1, 2, frozenset({2}), True)
    assert (bpe().bos, bpe().eos, bpe().eog, bpe().add_bos) == (1, 2, frozenset({0, 2}), False)
    both = spm_metadata() | {"tokenizer.ggml.add_eos_token": True}
    assert Tokenizer.from_gguf(metadata(both)).encode("") == [1, 2]
    none = spm_metadata() | {"tokenizer.ggml.bos_token_id": (1 << 32) - 1}
    tokenizer = Tokenizer.from_gguf(metadata(none))
    assert (tokenizer.bos, tokenizer.add_bos, tokenizer.encode("")) == (None, False, [])


def test_control_tokens_are_read_only_when_asked() -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    parsed = bpe().encode(text, parse_special=True)
    assert (parsed[0], parsed[-1]) == (1, 2)
    assert bpe().decode(parsed) == "user\nhi"
    assert bpe().decode(parsed, special=True) == text
    plain = bpe().encode(text)
    assert not set(plain) & {0, 1, 2}
    assert bpe().decode(plain) == text
    assert [bpe().is_control(i) for i in (0, 1, 2, 3)] == [True, True, True, False]
    assert bpe().token_text(1) == "<|im_start|>"
    assert bpe().token_bytes(1) == b""


def test_spm_text_after_a_control_token_gets_its_space() -> None:
    ids = spm().encode("a<s>b</s>", parse_special=True)
    assert ids == [1, *spm().encode("a", False), 1, *spm().encode("b", False), 2]
    assert 3 + 0x41 not in spm().encode("<0x41>", parse_special=True)  # a byte token has no text of its own


def test_user_defined_tokens_are_always_whole() -> None:
    values = bpe_metadata()
    values["tokenizer.ggml.tokens"][300] = "<tool>"
    values["tokenizer.ggml.tokens"][301] = "<tool>x"
    values["tokenizer.ggml.merges"] = values["tokenizer.ggml.merges"][:30]
    values["tokenizer.ggml.token_type"][300:302] = 4
    tokenizer = Tokenizer.from_gguf(metadata(values))
    for parse in (False, True):
        ids = tokenizer.encode("a<tool>xb<tool>", parse_special=parse)
        assert ids == [*tokenizer.encode("a"), 301, *tokenizer.encode("b"), 300]
        assert tokenizer.decode(ids) == "a<tool>xb<tool>"


def test_no_space_prefix_when_the_file_says_so() -> None:
    values = spm_metadata() | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_gguf(metadata(values))
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_ids_outside_the_vocabulary() -> None:
    for call in (spm().token_bytes, spm().token_text, spm().is_control, lambda i: spm().decode([i])):
        for token in (-1, 384):
            with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of 384"):
                call(token)


# ---- refusals -------------------------------------------------------------------------------------


def test_unknown_pretokenizer_is_named() -> None:
    with pytest.raises(GgufError, match=r"tokenizer.ggml.pre is 'qwen9', .* known: .*gpt-2.*smollm"):
        Tokenizer.from_gguf(metadata(bpe_metadata(pre="qwen9")))


def test_broken_vocabularies() -> None:
    missing = bpe_metadata()
    missing["tokenizer.ggml.tokens"][40] = "Ġzz"
    with pytest.raises(GgufError, match="lacks the byte-level letter"):
        Tokenizer.from_gguf(metadata(missing))
    merge = bpe_metadata()
    merge["tokenizer.ggml.merges"][0] = "q zq"
    with pytest.raises(GgufError, match=r"merges\[0\] is 'q zq', but tokenizer\.ggml\.tokens has no 'zq'"):
        Tokenizer.from_gguf(metadata(merge))
    for text in ("<0xZZ>", "<0x+A>", "<0x A>"):
        byte = spm_metadata()
        byte["tokenizer.ggml.tokens"][5] = text
        with pytest.raises(GgufError, match="token 5 is a byte token, but its text is '<0x"):
            Tokenizer.from_gguf(metadata(byte))
    for key, numbers in (("token_type", np.full(384, np.nan, np.float32)), ("scores", np.zeros(384, bool))):
        wrong = spm_metadata() | {f"tokenizer.ggml.{key}": numbers}
        with pytest.raises(
            GgufError, match=rf"tokenizer\.ggml\.{key} is an array of {numbers.dtype}; wanted"
        ):
            Tokenizer.from_gguf(metadata(wrong))
    long = spm_metadata()
    long["tokenizer.ggml.tokens"][300] = "a" * 1024
    assert Tokenizer.from_gguf(metadata(long)).token_text(300) == "a" * 1024
    long["tokenizer.ggml.tokens"][300] = "a" * 1025
    with pytest.raises(
        GgufError, match=r"tokenizer\.ggml\.tokens\[300\] has 1,025 characters, at most 1,024"
    ):
        Tokenizer.from_gguf(metadata(long))
    scores = spm_metadata()
    del scores["tokenizer.ggml.scores"]
    with pytest.raises(GgufError, match=r"tokenizer\.ggml\.scores is missing"):
        Tokenizer.from_gguf(metadata(scores))
    with pytest.raises(GgufError, match=r"tokenizer\.ggml\.tokens is empty"):
        Tokenizer.from_gguf(metadata({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": []}))


def test_tokens_cut_out_whole_have_a_bound() -> None:
    tokens = [f"<{number}>" for number in range(32769)]
    kinds = np.full(len(tokens), 4, np.int32)
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    with pytest.raises(GgufError, match=r"has 32,769 control or user-defined tokens, at most 32,768"):
        read_vocabulary(metadata({**values, "tokenizer.ggml.token_type": kinds}))
    kinds[0] = 1
    assert len(read_vocabulary(metadata({**values, "tokenizer.ggml.token_type": kinds})).tokens) == 32769


def test_a_panic_of_the_library_is_a_refusal() -> None:
    class PanicException(BaseException):  # what a panic looks like from Python: no Exception
        pass

    class Panics:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise PanicException("index out of range")

    with pytest.raises(GgufError, match="the text cannot be encoded: index out of range"):
        tokenizer_module._encode(Panics(), "x")

    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # and nothing else is held back
        tokenizer_module._engine(stopped)


def test_the_missing_library_is_named() -> None:
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from calrt.tokenizer import Tokenizer\nfrom calrt.gguf import GgufMetadata\n"
        "import tiny_gguf\nfrom calrt.gguf import parse_gguf\n"
        "meta = parse_gguf(tiny_gguf.gguf_bytes(tiny_gguf.spm_metadata())).metadata\n"
        "try: Tokenizer.from_gguf(meta)\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent
    )
    assert "pip install calrt[serve]" in done.stdout, done.stderr


# ---- packages -------------------------------------------------------------------------------------


def opened(package: Path) -> tuple[dict[str, Any], Any]:
    manifest = json.loads((package / "manifest.json").read_bytes())
    paths = {artifact["id"]: package / artifact["path"] for artifact in manifest["artifacts"]}
    return manifest, lambda artifact: paths[artifact].read_bytes()


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_from_package(kind: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf", tokenizer=kind, chat_template=CHAT_TEMPLATE)
    manifest, read = opened(build_package(source, tmp_path / "p"))
    tokenizer = Tokenizer.from_package(manifest, read)
    direct = Tokenizer.from_gguf(read_gguf(source).metadata)
    for text in TEXTS:
        assert tokenizer.encode(text) == direct.encode(text)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (tokenizer.bos, tokenizer.eog, tokenizer.add_bos) == (direct.bos, direct.eog, direct.add_bos)


def hf_package(byte_level: bool) -> tuple[dict[str, Any], Any]:
    """A package whose tokenizer is a tokenizer.json made with the library's own trainer-free parts."""
    import tokenizers as lib

    if byte_level:
        values = bpe_metadata()
        ids = {text: i for i, text in enumerate(values["tokenizer.ggml.tokens"][3:])}
        merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
        engine = lib.Tokenizer(lib.models.BPE(ids, merges))
        engine.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = lib.decoders.ByteLevel()
    else:
        ids = {text: i for i, text in enumerate(spm_metadata()["tokenizer.ggml.tokens"])}
        engine = lib.Tokenizer(lib.models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
        engine.normalizer = lib.normalizers.Replace(" ", "▁")
    engine.add_special_tokens([lib.AddedToken("<|im_end|>", special=True, normalized=False)])
    end = engine.token_to_id("<|im_end|>")
    manifest = {
        "tokenizer": {"kind": "hf", "artifact": "tok", "template": None, "vocab": None, "add_bos": None},
        "model": {"params": {"eos": [end]}},
    }
    return manifest, lambda artifact: engine.to_str().encode()


@pytest.mark.parametrize("byte_level", [True, False])
def test_from_a_tokenizer_json(byte_level: bool) -> None:
    manifest, read = hf_package(byte_level)
    tokenizer = Tokenizer.from_package(manifest, read)
    for text in ("Once upon a time é日👋", "", " a  b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    end = manifest["model"]["params"]["eos"][0]
    assert tokenizer.encode("a<|im_end|>", parse_special=True)[-1] == end
    assert end not in tokenizer.encode("a<|im_end|>")
    assert tokenizer.is_control(end)
    assert tokenizer.eog == {end}
    with pytest.raises(ValueError, match=r"tokenizer.json is damaged"):
        Tokenizer.from_package(manifest, lambda artifact: b"{")


def test_added_tokens_have_the_ids_that_the_library_gives_them() -> None:
    manifest, read = hf_package(byte_level=True)
    end = manifest["model"]["params"]["eos"][0]
    document = json.loads(read("tok"))
    for wrong in (10**6, 5):  # beyond the vocabulary; a letter's
        document["added_tokens"][0]["id"] = wrong
        data = json.dumps(document).encode()
        tokenizer = Tokenizer.from_package(manifest, lambda artifact, data=data: data)
        assert tokenizer.encode("a<|im_end|>", parse_special=True)[-1] == end
        assert [i for i in range(tokenizer.vocab_size) if tokenizer.is_control(i)] == [end]


def test_a_package_without_tokenizer() -> None:
    for kind in (None, "external"):
        section = {"kind": kind, "artifact": None, "template": None, "vocab": None, "add_bos": None}
        with pytest.raises(ValueError, match="brings no tokenizer"):
            Tokenizer.from_package({"tokenizer": section}, lambda artifact: b"")


# ---- the demo model -------------------------------------------------------------------------------


def test_smollm2() -> None:
    tokenizer = Tokenizer.from_gguf(read_gguf(smollm2()).metadata)
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("Hello world, it's 2026!")]
    assert texts == ["Hello", "Ġworld", ",", "Ġit", "'s", "Ġ", "2", "0", "2", "6", "!"]
    assert tokenizer.encode("Hello world") == [19556, 905]
    turn = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n", parse_special=True)
    assert (turn[0], turn[-2]) == (1, 2)
    assert (tokenizer.vocab_size, tokenizer.eog, tokenizer.add_bos) == (49152, frozenset({0, 2}), False)
    assert tokenizer.chat_template is not None
    assert "<|im_start|>" in tokenizer.chat_template
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_stories() -> None:
    tokenizer = Tokenizer.from_gguf(read_gguf(stories()).metadata)
    assert tokenizer.encode("") == [1]
    assert tokenizer.decode(tokenizer.encode("Once upon a time")) == " Once upon a time"


# ---- long texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [spm, bpe])
def test_other_threads_run_while_a_long_text_is_encoded(make: Any) -> None:
    tokenizer, text = make(), "Once upon a time " * 20_000
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        with gate:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # from here on the lock is handed over only where it is let go
    try:
        gate.release()
        tokenizer._encode_words(text)
        seen = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join(10)
    assert seen


@settings(deadline=None)
@given(st.text(st.sampled_from("the \u2581\x04\ud800\u00e9\U000f0000"), max_size=400))
def test_a_text_never_has_fewer_tokens_than_foretold(text: str) -> None:
    for tokenizer in (spm(), bpe(), smollm2_tokenizer()):
        for special in (False, True):
            assert tokenizer.fewest(text) <= len(tokenizer.encode(text, False, special))


def test_the_least_number_of_tokens_grows_with_the_text() -> None:
    tokenizer = smollm2_tokenizer()
    assert tokenizer.fewest("<|im_end|>" * 1000) > 10
    assert tokenizer.fewest("\x04" * 1000) == 0  # a byte that this vocabulary does not have
