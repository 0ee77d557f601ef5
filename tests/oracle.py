# SPDX-License-Identifier: Apache-2.0
"""The reference answer: a llama forward pass in numpy float64, straight from a GGUF's tensors.

It shares no code with the driver, the packer or the package: only the GGUF reader. Slow and plain on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from calrt.gguf import read_gguf
from calrt.gguf_tensors import load

F64 = npt.NDArray[np.float64]


class Oracle:
    """A llama model from a GGUF file.

    `round_weights` = "bf16" rounds every matrix to BF16 first (not the norms), as the packer does, so that
    only the arithmetic of a bf16 device is left to differ. Weights are held in float32 (exact for every GGUF
    type calrt reads) and widened as they are used.
    """

    def __init__(self, path: str | os.PathLike[str], round_weights: str | None = None) -> None:
        gguf = read_gguf(path)
        meta = gguf.metadata
        with open(path, "rb") as file:
            self._weights = {name: load(file, info) for name, info in gguf.tensors.items()}
        if round_weights == "bf16":
            self._weights = {n: _round_bf16(w) if w.ndim > 1 else w for n, w in self._weights.items()}
        elif round_weights is not None:
            raise ValueError(f"round_weights={round_weights!r}; wanted None or 'bf16'")
        self.layers = int(meta.uint("llama.block_count"))
        self.heads = int(meta.uint("llama.attention.head_count"))
        self.kv_heads = int(meta.uint("llama.attention.head_count_kv", self.heads))
        self.embed = int(meta.uint("llama.embedding_length"))
        self.head_dim = int(meta.uint("llama.attention.key_length", self.embed // self.heads))
        self.rope_dim = int(meta.uint("llama.rope.dimension_count", self.head_dim))
        self.rope_base = float(meta.real("llama.rope.freq_base", 10000.0))
        # Metadata floats are float32; the model was defined with that rounding.
        self.eps = float(meta.real("llama.attention.layer_norm_rms_epsilon"))
        self.vocab = self._weights["token_embd.weight"].shape[0]

    def logits(self, tokens: Sequence[int], rows: Sequence[int] | None = None) -> F64:
        """Logits [len(rows), vocab] of a fresh sequence; row i answers "what follows tokens[: i + 1]".

        `rows` default to all positions.
        """
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or ids.size == 0 or ids.min() < 0 or ids.max() >= self.vocab:
            raise ValueError(f"tokens must be 1 or more ids in 0..{self.vocab - 1}")
        return self.sequence().feed(ids, rows)

    def sequence(self) -> OracleSequence:
        """An empty sequence that keeps its keys and values."""
        return OracleSequence(self)

    def _run(self, lane: OracleSequence, ids: npt.NDArray[np.int64], rows: Sequence[int] | None) -> F64:
        x = self._weights["token_embd.weight"][ids].astype(np.float64)
        angles = self._angles(np.arange(lane.length, lane.length + len(ids)))
        for layer in range(self.layers):
            x = x + self._attention(self._norm(x, layer, "attn_norm"), layer, angles, lane)
            x = x + self._feed_forward(self._norm(x, layer, "ffn_norm"), layer)
        if rows is not None:
            x = x[np.asarray(rows, np.int64)]
        x = self._rms(x, self._weights["output_norm.weight"])
        head = self._weights.get("output.weight")
        if head is None:
            head = self._weights["token_embd.weight"]
        out: F64 = x @ head.astype(np.float64).T
        return out

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely next tokens, each fed back; ties go to the lowest id."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens, [len(tokens) - 1])[0].argmax()))
        return tokens[len(prompt) :]

    def _matrix(self, layer: int, name: str) -> F64:
        return self._weights[f"blk.{layer}.{name}.weight"].astype(np.float64)

    def _rms(self, x: F64, gain: npt.NDArray[Any]) -> F64:
        scaled: F64 = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * gain.astype(np.float64)
        return scaled

    def _norm(self, x: F64, layer: int, name: str) -> F64:
        return self._rms(x, self._weights[f"blk.{layer}.{name}.weight"])

    def _angles(self, positions: npt.NDArray[np.int64]) -> F64:
        exponent = np.arange(0, self.rope_dim, 2, dtype=np.float64) / self.rope_dim
        angles: F64 = np.outer(positions.astype(np.float64), self.rope_base**-exponent)
        return angles

    def _rope(self, x: F64, angles: F64) -> F64:
        """Rotates the pairs (2i, 2i + 1) of every head; x is [tokens, heads, head_dim]."""
        out: F64 = x.copy()
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        even, odd = x[..., 0 : self.rope_dim : 2], x[..., 1 : self.rope_dim : 2]
        out[..., 0 : self.rope_dim : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_dim : 2] = even * sin + odd * cos
        return out

    def _attention(self, x: F64, layer: int, angles: F64, lane: OracleSequence) -> F64:
        count = len(x)
        q = self._rope((x @ self._matrix(layer, "attn_q").T).reshape(count, self.heads, -1), angles)
        k = self._rope((x @ self._matrix(layer, "attn_k").T).reshape(count, self.kv_heads, -1), angles)
        v = (x @ self._matrix(layer, "attn_v").T).reshape(count, self.kv_heads, -1)
        k, v = lane.append(layer, k, v)
        future = np.triu(np.ones((count, len(k)), bool), len(k) - count + 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / np.sqrt(self.head_dim)
            scores[future] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, shared]
        mixed: F64 = out.reshape(count, -1) @ self._matrix(layer, "attn_output").T
        return mixed

    def _feed_forward(self, x: F64, layer: int) -> F64:
        gate = x @ self._matrix(layer, "ffn_gate").T
        up = x @ self._matrix(layer, "ffn_up").T
        out: F64 = (gate / (1 + np.exp(-gate)) * up) @ self._matrix(layer, "ffn_down").T
        return out


class OracleSequence:
    """The cells of one sequence in float64: keys and values of each layer, [cells, kv_heads, head_dim]."""

    def __init__(self, oracle: Oracle) -> None:
        empty = np.zeros((0, oracle.kv_heads, oracle.head_dim))
        self._oracle = oracle
        self.keys = [empty] * oracle.layers
        self.values = [empty] * oracle.layers

    @property
    def length(self) -> int:
        """Cells that are filled; the next token's position."""
        return len(self.keys[-1])

    def feed(self, tokens: Sequence[int] | npt.NDArray[np.int64], rows: Sequence[int] | None = None) -> F64:
        """Appends tokens; logits [len(rows), vocab], by default of each of them."""
        return self._oracle._run(self, np.asarray(tokens, np.int64), rows)

    def shift(self, keep: int, discard: int) -> None:
        """Discards cells [keep, keep + discard); those behind move down, their own keys turned back.

        Nothing is computed anew: with two layers or more, cells that stay have seen what was discarded.
        """
        if keep < 0 or discard < 1 or keep + discard > self.length:
            raise ValueError(f"keep={keep}, discard={discard}: {self.length} cells are filled")
        gone = slice(keep, keep + discard)
        self.keys = [np.delete(k, gone, axis=0) for k in self.keys]
        self.values = [np.delete(v, gone, axis=0) for v in self.values]
        back = self._oracle._angles(np.full(self.length - keep, -discard))
        for k in self.keys:
            k[keep:] = self._oracle._rope(k[keep:], back)

    def append(self, layer: int, keys: F64, values: F64) -> tuple[F64, F64]:
        """Adds cells to one layer; all of its keys and values."""
        self.keys[layer] = np.concatenate([self.keys[layer], keys])
        self.values[layer] = np.concatenate([self.values[layer], values])
        return self.keys[layer], self.values[layer]


def _round_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return rounded.astype(np.uint32).view(np.float32)


# ---- comparing ------------------------------------------------------------------------------------


def relative_rms(found: npt.ArrayLike, wanted: npt.ArrayLike) -> float:
    """Root of the mean squared difference over the root mean square of `wanted`."""
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.sqrt(((a - b) ** 2).mean() / (b**2).mean()))


def mean_kl(found: npt.ArrayLike, wanted: npt.ArrayLike) -> float:
    """Mean over rows of KL(softmax(wanted) || softmax(found)), in nats."""
    p, q = _log_softmax(np.asarray(wanted, np.float64)), _log_softmax(np.asarray(found, np.float64))
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def _log_softmax(x: F64) -> F64:
    shifted = x - x.max(axis=-1, keepdims=True)
    out: F64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out
