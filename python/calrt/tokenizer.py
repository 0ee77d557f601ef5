# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, from a GGUF vocabulary or a package's `tokenizer.json`.

The merging itself is done by the `tokenizers` library, which is loaded when the first Tokenizer is made and
comes with `pip install calrt[serve]`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from calrt.gguf import GgufError, GgufMetadata, parse_gguf
from calrt.pretokenizers import WHOLE_WORDS, patterns
from calrt.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    byte_alphabet,
    byte_token_value,
    read_vocabulary,
)

_MAX_TOKENS = 1 << 22
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Encodes text to token ids and decodes ids to bytes. Immutable; safe to use from several threads."""

    bos: int | None
    eos: int | None
    eog: frozenset[int]
    """Every id that ends a generation: end of text, of a turn, of a message."""
    add_bos: bool
    add_eos: bool
    chat_template: str | None

    def __init__(
        self,
        *,
        encode: Callable[[str], list[int]],
        texts: Sequence[str],
        kinds: Sequence[int],
        table: Sequence[bytes],
        space_prefix: bool,
        bos: int | None,
        eos: int | None,
        eog: Iterable[int],
        add_bos: bool,
        add_eos: bool,
        chat_template: str | None,
        lost: bytes | None = None,
    ) -> None:
        """`lost` are the bytes that make no token; None if it is not known which."""
        self._encode_words = encode
        self._texts = texts
        self._kinds = kinds
        self._table = table
        self._space_prefix = space_prefix
        self.bos, self.eos, self.eog = bos, eos, frozenset(eog)
        self.add_bos = add_bos and bos is not None
        self.add_eos = add_eos and eos is not None
        self.chat_template = chat_template
        whole = {t: i for i, (t, k) in enumerate(zip(texts, kinds, strict=True)) if k == USER_DEFINED and t}
        special = {t: i for i, (t, k) in enumerate(zip(texts, kinds, strict=True)) if _is_special(k) and t}
        self._whole = whole | special
        spelt = (max(len(t.encode("utf-8", "replace")), len(b)) for t, b in zip(texts, table, strict=True))
        self._longest = max(4, *spelt) if texts else 4  # 4: an unknown letter
        self._lost = lost
        self._user_pattern = _alternatives(whole)
        self._special_pattern = _alternatives(self._whole)

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> Tokenizer:
        """A tokenizer from a GGUF's metadata. Raises `GgufError` naming what is missing or unsupported."""
        vocabulary = read_vocabulary(metadata)
        build = _spm_encoder if vocabulary.model == "spm" else _bpe_encoder
        return cls(
            encode=build(vocabulary),
            texts=vocabulary.tokens,
            kinds=vocabulary.kinds,
            table=vocabulary.token_bytes(),
            space_prefix=vocabulary.model == "spm" and vocabulary.add_space_prefix,
            bos=vocabulary.bos,
            eos=vocabulary.eos,
            eog=vocabulary.eog,
            add_bos=vocabulary.add_bos,
            add_eos=vocabulary.add_eos,
            chat_template=vocabulary.chat_template,
            lost=b"" if vocabulary.model == "spm" else _lost_bytes(vocabulary.tokens),
        )

    @classmethod
    def from_package(cls, manifest: Mapping[str, Any], read: Callable[[str], bytes]) -> Tokenizer:
        """The tokenizer of an opened package.

        `manifest` is the parsed manifest.json, `read` gives the bytes of an artifact id. Raises `GgufError`
        or `ValueError` when the package brings no tokenizer or a damaged one.
        """
        section = manifest["tokenizer"]
        kind, artifact = section["kind"], section["artifact"]
        if artifact is None or kind not in ("gguf", "hf"):
            raise ValueError(f"this package brings no tokenizer (kind {kind or 'unknown'}): use token ids")
        if kind == "gguf":
            tokenizer = cls.from_gguf(parse_gguf(read(artifact)).metadata)
        else:
            tokenizer = cls._from_hf(read(artifact), manifest["model"]["params"])
        if section.get("template") is not None:
            tokenizer.chat_template = read(section["template"]).decode("utf-8")
        if section.get("add_bos") is not None:
            tokenizer.add_bos = bool(section["add_bos"]) and tokenizer.bos is not None
        return tokenizer

    @classmethod
    def _from_hf(cls, data: bytes, params: Mapping[str, Any]) -> Tokenizer:
        library = _library()
        with _library_errors("tokenizer.json is damaged"):
            text = data.decode("utf-8")
            engine = library.Tokenizer.from_str(text)
            document = json.loads(text)
        engine.encode_special_tokens = True  # control tokens are cut out here, in encode()
        ids: dict[str, int] = engine.get_vocab(with_added_tokens=True)
        count = max(ids.values(), default=-1) + 1
        if count > _MAX_TOKENS:
            raise ValueError(
                f"tokenizer.json has token id {count - 1:,}; at most {_MAX_TOKENS - 1:,} is supported"
            )
        texts, kinds = [""] * count, [UNUSED] * count
        for token, index in ids.items():
            texts[index], kinds[index] = token, NORMAL
        for index, added in engine.get_added_tokens_decoder().items():  # the file may say other ids
            if index < count:
                kinds[index] = CONTROL if added.special else USER_DEFINED
        byte_level = '"ByteLevel"' in json.dumps([document.get("pre_tokenizer"), document.get("decoder")])
        if not byte_level:
            bytes_at = [i for i, t in enumerate(texts) if len(t) == 6 and re.fullmatch("<0x[0-9A-F]{2}>", t)]
            for index in bytes_at:
                kinds[index] = BYTE
        eos = [int(number) for number in params.get("eos", [])]
        vocabulary = Vocabulary(
            model="bpe" if byte_level else "spm",
            pre="",
            tokens=texts,
            kinds=kinds,
            scores=[],
            merges=[],
            bos=params.get("bos"),
            eos=eos[0] if eos else None,
            unk=None,
            eog=tuple(eos),
            add_bos=False,
            add_eos=False,
            add_space_prefix=False,
            chat_template=None,
        )
        return cls(
            encode=lambda words: _encode(engine, words),
            texts=texts,
            kinds=kinds,
            table=vocabulary.token_bytes(),
            space_prefix=False,
            bos=vocabulary.bos,
            eos=vocabulary.eos,
            eog=eos,
            add_bos=False,
            add_eos=False,
            chat_template=None,
            lost=_lost_bytes(texts) if byte_level and _keeps_text(document) else None,
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self._texts)

    @property
    def byte_table(self) -> Sequence[bytes]:
        """The bytes each token adds to the text, by id; control tokens add none. For a `Detokenizer`."""
        return self._table

    def fewest(self, text: str) -> int:
        """A number of tokens that `text` has at least, from its size alone; 0 where nothing is known."""
        if self._lost is None:
            return 0
        raw = text.encode("utf-8", "surrogatepass").translate(None, self._lost)
        return -(-len(raw) // self._longest)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `add_special` puts BOS before and EOS after, where the model wants them; `parse_special` reads the
        text of a control token as that token, otherwise it is text like any other.
        """
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        if _SURROGATES.search(text):  # half a UTF-16 pair, as JSON may bring; it has no UTF-8 form
            text = _SURROGATES.sub("\ufffd", text)
        pattern = self._special_pattern if parse_special else self._user_pattern
        # With a capturing group, split() gives text and token texts in turn.
        parts = [text] if pattern is None else pattern.split(text)
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(self._whole[part])
            elif part:
                ids.extend(self._encode_words(" " + part if self._space_prefix else part))
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes `token` adds to the text. Raises `ValueError` for an id outside the vocabulary."""
        return self._table[self._checked(token)]

    def token_text(self, token: int) -> str:
        """The token's name in the vocabulary, such as `<|im_end|>` or `▁the`."""
        return self._texts[self._checked(token)]

    def is_control(self, token: int) -> bool:
        """Whether the token steers the model and is no text."""
        return self._kinds[self._checked(token)] == CONTROL

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """The text of `tokens`; bytes that are not UTF-8 become U+FFFD. `special` adds control tokens."""
        checked = map(self._checked, tokens)
        if special:
            data = (self._texts[t].encode() if self._kinds[t] == CONTROL else self._table[t] for t in checked)
        else:
            data = (self._table[t] for t in checked)
        return b"".join(data).decode("utf-8", "replace")

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self._texts):
            raise ValueError(f"token {token} is outside the vocabulary of {len(self._texts):,} tokens")
        return token


def _lost_bytes(tokens: Sequence[str]) -> bytes:
    """Bytes that a byte-level vocabulary has no letter for: the library leaves them out."""
    known = set(tokens)
    return bytes(value for value, letter in enumerate(byte_alphabet()) if letter not in known)


def _keeps_text(document: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json hands a text on to its model as it is, and all of it."""
    cuts = json.dumps(document.get("pre_tokenizer")).lower()
    fuses = document.get("model", {}).get("fuse_unk")
    return not (document.get("normalizer") or document.get("truncation") or fuses or '"removed"' in cuts)


def _is_special(kind: int) -> bool:
    return kind in (CONTROL, UNKNOWN)


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern with one group that finds any of the texts, the longest first."""
    ordered = sorted(texts, key=lambda t: (-len(t), t))
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            "text needs the 'tokenizers' library: pip install calrt[serve] (token ids work without it)"
        ) from None
    return tokenizers


@contextlib.contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """What the library raises as a `GgufError`: a bare Exception, or a panic, which is not even that."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise GgufError(f"{what}: {error}") from None
        raise


def _engine(build: Callable[[Any], Any]) -> Any:
    library = _library()
    with _library_errors("the vocabulary cannot be used"):
        return build(library)


def _encode(engine: Any, text: str) -> list[int]:
    # Of the library's calls only those for batches let other Python threads run meanwhile; the fast one
    # does not count where in the text each token stands.
    with _library_errors("the text cannot be encoded"):
        return list(engine.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _bpe_encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    expressions = patterns(vocabulary.pre)
    ids: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind in (NORMAL, USER_DEFINED):
            ids.setdefault(text, index)
    missing = next((letter for letter in byte_alphabet() if letter not in ids), None)
    if missing is not None and vocabulary.unk is None:
        raise GgufError(f"tokenizer.ggml.tokens lacks the byte-level letter {missing!r}")
    pairs: list[tuple[str, str]] = []
    for number, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            lost = next(text for text in (left, right, left + right) if text not in ids)
            raise GgufError(
                f"tokenizer.ggml.merges[{number}] is {merge!r}, but tokenizer.ggml.tokens has no {lost!r}"
            )
        pairs.append((left, right))

    def build(lib: Any) -> Any:
        engine = lib.Tokenizer(lib.models.BPE(ids, pairs, ignore_merges=vocabulary.pre in WHOLE_WORDS))
        cuts = [lib.pre_tokenizers.Split(lib.Regex(expression), "isolated") for expression in expressions]
        letters = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        engine.pre_tokenizer = lib.pre_tokenizers.Sequence([*cuts, letters])
        return engine

    engine = _engine(build)
    return lambda text: _encode(engine, text)


def _spm_encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """SentencePiece BPE as ranked merges: the pair whose union scores highest merges first."""
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    ids: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (NORMAL, USER_DEFINED):
            ids.setdefault(text, index)
    pieces = sorted(ids.items(), key=lambda item: -vocabulary.scores[item[1]])
    pairs = [
        (text[:cut], text[cut:])
        for text, _ in pieces
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    covered = set()
    for index, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == BYTE:
            covered.add(byte_token_value(text, index))
            ids.setdefault(text, index)
    if len(covered) < 256 and vocabulary.unk is None:
        raise GgufError(f"tokenizer.ggml.tokens has {len(covered)} of 256 byte tokens and no unknown token")
    unk = None if vocabulary.unk is None else tokens[vocabulary.unk]
    if unk is not None:
        ids.setdefault(unk, vocabulary.unk or 0)

    def build(lib: Any) -> Any:
        return lib.Tokenizer(lib.models.BPE(ids, pairs, unk_token=unk, byte_fallback=True, fuse_unk=False))

    engine = _engine(build)
    return lambda text: _encode(engine, text.replace(" ", "\u2581"))
