# SPDX-License-Identifier: Apache-2.0
"""Damages to a package's files and to the manifest itself: gates A, B and C."""

from __future__ import annotations

import os
import re

from package_edits import (
    Case,
    append_byte,
    drop,
    flip_bit,
    layout,
    manifest_as_directory,
    path_of,
    put,
    remove,
    replace_by,
    set_graph,
    set_io,
    set_row,
    symlink_file,
    symlink_parent,
    text,
    truncate,
)

CASES = [
    # A: inventory
    Case(
        "A01",
        "no manifest",
        lambda b: (b.directory / "manifest.json").unlink(),
        r"^no manifest\.json in .*GGUF file",
    ),
    Case("A01", "manifest is a directory", manifest_as_directory, "not a regular file"),
    Case(
        "A02",
        "parent path",
        path_of("weights", "../weights.bin"),
        r"^path '\.\./weights\.bin' leaves the package$",
    ),
    Case("A02", "absolute path", path_of("weights", "/etc/passwd"), "absolute"),
    Case("A02", "double slash", path_of("weights", "a//b"), "empty part"),
    Case("A02", "backslash", path_of("weights", "a\\b"), r"has '\\'"),
    Case("A02", "empty path", path_of("weights", "")),
    Case("A02", "dot part", path_of("weights", "./weights.bin")),
    Case("A02", "colon", path_of("weights", "c:weights")),
    Case("A02", "control character", path_of("weights", "a\x1fb"), "control character"),
    Case("A02", "241 bytes", path_of("weights", "a" * 241), "241 bytes, at most 240"),
    Case("A02", "9 levels", path_of("weights", "a/" * 8 + "b"), "9 levels"),
    Case("A02", "ends in a dot", path_of("weights", "weights."), "dot or space"),
    Case("A02", "ends in a space", path_of("weights", "sub /w"), "dot or space"),
    Case("A03", "composed accent", path_of("weights", "\u00e9.bin"), r"U\+00E9 at byte 0: rename"),
    Case(
        "A03",
        "decomposed accent",
        path_of("weights", "weighte\u0301.bin"),
        r"^path has U\+0301 at byte 7: rename",
    ),
    Case("A03", "fullwidth slash", path_of("weights", "a\uff0fb"), r"U\+FF0F"),
    Case("A04", "case", lambda b: b.add("other", "Weights.bin", "readme", b"x"), "Weights.bin"),
    Case("A04", "file and folder", path_of("g_in", "weights.bin/x"), "file and its folder"),
    Case("A05", "symbolic link", symlink_file, "symbolic link"),
    Case("A05", "parent is a link", symlink_parent, "symbolic link"),
    Case("A05", "FIFO", replace_by(os.mkfifo), "FIFO"),
    Case("A05", "directory", replace_by(os.mkdir), "directory"),
    Case(
        "A06",
        "weights deleted",
        remove("weights"),
        r"^weights\.bin \(role weights, [\d,]+ bytes\) is missing$",
    ),
    Case(
        "A09",
        "weights as readme",
        lambda b: b.artifact("weights").update(role="readme"),
        "role readme, weights wanted",
    ),
    Case(
        "A09",
        "no weights role",
        lambda b: b.artifact("weights").update(role="readme"),
        r"^role weights: 0 files, at least 1$",
    ),
    Case(
        "A09", "tokenizer points at weights", put("/tokenizer/artifact", "weights"), "tokenizer.vocab wanted"
    ),
    Case(
        "A09", "golden output as input", put("/golden/0/outputs/0/artifact", "g_in"), "golden.output wanted"
    ),
    Case("A09", "graph of metadata", put("/graphs/0/artifacts", ["vocab"]), r"calbin\.\* wanted"),
    Case(
        "A09",
        "no graph file",
        lambda b: [a.update(role="calbin.meta") for a in b.manifest["artifacts"][:2]],
        r"^role calbin\.graph: 0 files, at least 1$",
        "standin",
    ),
    # B: content
    Case(
        "B01", "truncated by 64", truncate, r"^weights\.bin: [\d,]+ bytes declared, [\d,]+ on disk \(−64\)$"
    ),
    Case("B01", "one byte more", append_byte, r"\(\+1\)$"),
    Case(
        "B02",
        "bit of a golden output",
        flip_bit("g_out"),
        r"^golden/logits\.f32: SHA-256 [0-9a-f]{12}… declared, [0-9a-f]{12}… found$",
    ),
    Case("B02", "bit of the vocabulary", flip_bit("vocab")),
    # C: the text
    Case("C01", "empty", lambda b: setattr(b, "raw", b""), "is empty"),
    Case("C01", "17 MiB of spaces", lambda b: b.text(lambda t: t + " " * (17 << 20)), "at most 16,777,216"),
    Case("C02", "byte order mark", lambda b: b.text(lambda t: "\ufeff" + t), "byte order mark"),
    Case(
        "C02",
        "bad UTF-8",
        lambda b: b.text(lambda t: t.replace('"tiny"', '"\udcc0\udcaf"')),
        r"line \d+, column \d+",
    ),
    Case("C02", "NaN", text(r'"minor": 0', '"minor": NaN'), r"line 3, column \d+"),
    Case("C02", "comment", text(r'"minor"', '/* */ "minor"')),
    Case("C02", "trailing x", lambda b: b.text(lambda t: t + "x")),
    Case("C02", "1e400", text(r'"minor": 0', '"minor": 1e400'), "1e400"),
    Case("C02", "cut in the middle", lambda b: b.text(lambda t: t[: len(t) // 2])),
    Case("C02", "lone surrogate", text('"tiny"', r'"\\ud800"'.replace("\\\\", "\\"))),
    Case(
        "C03",
        "second vocab",
        text(r'"vocab": 384', '"vocab": 384,\n"vocab": 384'),
        r"^key 'vocab' twice, in lines \d+ and \d+$",
    ),
    Case("C03", "escaped twin", text(r'"vocab": 384', '"vocab": 384, "\\u0076ocab": 384'), "'vocab' twice"),
    Case(
        "C04",
        "10,000 brackets",
        text(r'"requires": \[\]', '"requires": ' + "[" * 10000),
        "nested deeper than 16",
    ),
    Case(
        "C04",
        "70,000 rows",
        lambda b: b.manifest["weights"].update(rows=b.manifest["weights"]["rows"][:1] * 70000),
        "70,000 entries, at most 65,536",
    ),
    Case("C04", "U+0000", put("/model/name", "ti\0ny"), r"U\+0000"),
    Case("C04", "long string", put("/model/name", "a" * 70000), "70,000 bytes, at most 65,536"),
    Case(
        "C05",
        "point",
        text(r'"context": 256', '"context": 256.0'),
        r"^context: 256\.0 is not an integer literal$",
    ),
    Case(
        "C05",
        "exponent",
        text(r'"context": 256', '"context": 1e3'),
        r"^context: 1e3 is not an integer literal$",
    ),
    Case("C05", "minus one", text(r'"context": 256', '"context": -1'), "-1 is not an integer literal"),
    Case("C05", "2^53", text(r'"context": 256', f'"context": {2**53}'), "over 2.53"),
    Case("C05", "2^64", text(r'"context": 256', f'"context": {2**64}'), "over 2.53"),
    Case("C05", "minus zero", text(r'"minor": 0', '"minor": -0'), "-0 is not an integer literal"),
    Case(
        "C06",
        "manifest-2",
        put("/manifest", "manifest-2"),
        r"^package has manifest-2, this calrt [\d.]+ reads manifest-1$",
    ),
    Case("C06", "no version", drop("/manifest")),
    Case("C07", "unknown feature", put("/requires", ["paged-kv-9"]), "'paged-kv-9'"),
    Case("C08", "lanemap", text('"lane_map"', '"lanemap"'), "'lanemap'; did you mean 'lane_map'"),
    Case("C08", "far from all", put("/model/wonder", 1), "^unknown field 'wonder'$"),
    Case(
        "C08", "unknown capability", put("/kv/caps/teleport", {"value": True, "level": "C2", "source": "x"})
    ),
    Case("C09", "kv heads dropped", drop("/kv/heads"), "heads is missing"),
    Case("C09", "short row", lambda b: b.row("output_norm.weight").pop(), "bytes is missing"),
    Case("C09", "llama without ffn", drop("/model/params/ffn"), "ffn is missing, llama needs it"),
    Case(
        "C10", "string for integer", put("/artifacts/0/bytes", "1171200"), "^bytes: string, wanted integer$"
    ),
    Case("C10", "bool for integer", put("/minor", True), "^minor: bool, wanted integer$"),
    Case("C10", "list for object", put("/model", []), "^model: list, wanted object$"),
    Case("C10", "manifest is a list", lambda b: setattr(b, "raw", b"[]")),
    Case("C11", "dtype fp16", set_io("decode", "logits", dtype="fp16"), "'fp16' is none of f32, bf16"),
    Case("C11", "63 digits", lambda b: b.artifact("weights").update(sha256="a" * 63), "63 characters"),
    Case("C11", "align 48", put("/weights/align", 48), "48 is not a power of two"),
    Case("C11", "dim 0", set_row("output_norm.weight", 2, lambda _: [0]), "shape: 0, wanted 1 to"),
    Case("C11", "rank 9", set_row("output_norm.weight", 2, lambda _: [1] * 9), "9 entries, at most 8"),
    Case("C11", "x- data", put("/x-notes", ["a" * 60000, "b" * 60000]), "x- fields hold"),
    Case("C11", "id with a capital", lambda b: b.artifact("g_in").update(id="G_in"), "is not an id"),
    Case("C11", "no graphs", put("/graphs", []), "0 entries, at least 1"),
    Case("C11", "layout kind", layout("decode", "logits", kind="diagonal"), "is none of linear, strided"),
    Case("C11", "column renamed", put("/weights/columns/3", "start"), "'offset' is missing at its place"),
    Case("C11", "arch of weights", put("/model/arch", "mamba"), "'mamba' is none of llama"),
    Case("C11", "local time", put("/provenance/created", "2026-11-29 00:00"), "UTC time"),
    Case("C12", "vocab null", put("/model/vocab", None), "^vocab: null is not allowed here$"),
    Case("C12", "embed null with weights", put("/model/embed", None)),
    Case(
        "C14",
        "two weights",
        lambda b: b.artifact("g_in").update(id="weights"),
        "artifact id 'weights' is not unique: /artifacts",
    ),
    Case("C14", "batch twice", set_graph("decode", batch=[1, 1]), "graph 'decode_b1'"),
    Case(
        "C14",
        "tensor twice",
        set_row("output_norm.weight", 0, lambda _: "output.weight"),
        "tensor 'output.weight'",
    ),
]

LISTED = re.findall(
    r"\w\d\d",
    "A01 A02 A03 A04 A05 A06 A09 B01 B02 "
    "C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 C11 C12 C14 "
    "D02 D03 D04 D05 D06 D08 D09 D10 D11 D12 D13 D14 D15 D17 D18 D19 D20 D21",
)
