# SPDX-License-Identifier: Apache-2.0
"""A sequence: one lane of a model, filled and continued by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from calrt._arguments import iterable, refuse
from calrt._core import Graph, Lane, Tensor, token_ids
from calrt._enums import Status
from calrt.errors import error_for

if TYPE_CHECKING:
    from calrt.model import Model

__all__ = ["Sequence"]

_open: WeakKeyDictionary[Model, WeakSet[Sequence]] = WeakKeyDictionary()


def _open_sequences(model: Model) -> WeakSet[Sequence]:
    """Those that hold a lane of the model."""
    return _open.setdefault(model, WeakSet())


class Sequence:
    """Holds one lane: `model.sequence()` reserves it, `Sequence(model, lane)` takes over one of `model.kv`.

    Close it, or use it in `with`; garbage collection gives the lane back too. Calls wait for their jobs and
    raise what `Graph.submit` and `Job.wait` raise, `InvalidArgumentError` once it is closed. Logits are a
    `Tensor` [V], V = `model.vocab`, of dtype `model.info["logits_dtype"]`, good as long as it or a view of it
    lives. Not thread-safe: one job at a time may write a lane.
    """

    def __init__(self, model: Model, lane: Lane) -> None:
        if not isinstance(lane, Lane):
            refuse("lane", lane, "a Lane, as model.kv.reserve() gives it,")
        graphs = model.graphs.values()
        self._open = _open_sequences(model)
        self._open.add(self)
        self._lane = lane
        self._cells = lane.reserved
        self._vocab = model.vocab
        self._prefill = sorted((g for g in graphs if g.kind == "prefill"), key=lambda g: g.chunk)
        # Where row i is lane i, all rows of a batch write: only a batch of one leaves other lanes alone.
        alone = (g for g in graphs if g.lane_map == "any" or (lane.index == 0 and g.batch == 1))
        self._decode = min((g for g in alone if g.kind == "decode"), key=lambda g: g.batch, default=None)

    @classmethod
    def reserve(cls, model: Model, tokens: int | None, timeout: float | None) -> Sequence:
        """A sequence on a lane of its own; see `Model.sequence`."""
        held_by_all = len(_open_sequences(model)) >= model.lanes and model.kv.free_lanes() == 0
        if held_by_all and timeout != 0 and threading.active_count() == 1:
            raise error_for(
                Status.KV_NO_CAPACITY,
                f"all {model.lanes} lanes are held by open sequences, and no other thread runs that could "
                "close one: close a sequence, or finish or close the iterator of a generate(stream=True)",
            )
        return cls(model, model.kv.reserve(model.cells if tokens is None else tokens, timeout))

    @property
    def lane(self) -> Lane:
        """The lane this sequence holds."""
        return self._lane

    @property
    def length(self) -> int:
        """Tokens in the lane."""
        return self._lane.length

    def prefill(self, tokens: Iterable[int], *, deadline: float | None = None) -> Tensor:
        """Appends `tokens` (at least one) and returns the logits [V] after the last of them.

        Long inputs run in several chunks. `deadline`: seconds that each job may take, None = 600. Raises
        `InvalidArgumentError` when they do not fit the lane, or one is not of the vocabulary; nothing is
        written then.
        """
        ids = token_ids("tokens", iterable("tokens", tokens, "a list of token ids"), self._vocab)
        start = self.length
        if not ids:
            raise error_for(Status.SHAPE_MISMATCH, "tokens: empty; prefill takes at least one")
        if start + len(ids) > self._cells:
            raise error_for(
                Status.OUT_OF_RANGE,
                f"tokens: {len(ids)} do not fit: the lane holds {start} of {self._cells} cells",
            )
        if not self._prefill:
            for token in ids:
                logits = self.decode(token, deadline=deadline)
            return logits
        at = 0
        while True:
            graph = self._graph_for(len(ids) - at)
            piece = ids[at : at + graph.chunk]
            logits = self._run(graph, piece, start + at, deadline)
            at += len(piece)
            if at == len(ids):
                return logits

    def decode(self, token: int, *, deadline: float | None = None) -> Tensor:
        """Appends one token and returns the logits [V] after it.

        `deadline`: seconds that the job may take, None = 600. Raises `InvalidArgumentError` when the lane is
        full or the token is not of the vocabulary. On a lane that no decode graph serves alone (lane_map
        identity) the smallest chunk does it.
        """
        graph = self._decode or (self._prefill[0] if self._prefill else None)
        if graph is None:
            raise error_for(Status.UNSUPPORTED, "this package has no graph for this lane alone")
        return self._run(graph, [token], self.length, deadline)

    def truncate(self, length: int) -> None:
        """Forgets the tokens from `length` on. `InvalidArgumentError` if it holds fewer."""
        self._lane.truncate(length)

    def close(self) -> None:
        """Gives the lane back. Idempotent."""
        self._open.discard(self)
        self._lane.release()

    def _graph_for(self, remaining: int) -> Graph:
        """The largest chunk that is filled whole, else the smallest that holds what remains."""
        whole = [graph for graph in self._prefill if graph.chunk <= remaining]
        return whole[-1] if whole else self._prefill[0]

    def _run(self, graph: Graph, tokens: list[int], position: int, deadline: float | None) -> Tensor:
        positions = list(range(position, position + len(tokens)))
        job = graph.submit(tokens=tokens, positions=positions, lanes=[self._lane], deadline=deadline)
        return job.wait().outputs["logits"].row(0)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
