"""The running requests: fixed-shape device state that a round changes in place, and what the host remembers of them.

Active requests always occupy batch rows 0..B-1, so a round works on views of the first B rows. The host's memory
decides who runs and when a request has finished; what a round computes depends on device state alone, and on
`context_bound`, of which any value not below the longest context gives the same result.
Letters: B batch rows, S context length (tokens and cache rows per request), Q stop ids, P block positions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch

from ddbench.engine.kv_cache import KVCache
from ddbench.engine.types import CommittedRows, Request

_PAD = -1  # of stop ids; no token
SMALLEST_BOUND = 256  # context rows; below it nothing is to be won by a closer fit


@dataclass(slots=True)
class Running:
    """What the host knows of one active request."""

    request: Request
    tokens: list[int]  # emitted so far, the prefill's first
    num_rounds: int = 0
    prompt_rows: CommittedRows | None = field(default=None, repr=False)  # not yet materialized

    @property
    def length(self) -> int:
        """Absolute position of the anchor."""
        return len(self.request.prompt) + len(self.tokens) - 1

    def longest(self, num_unread: int) -> int:
        """The most that `length` can be with so many more tokens."""
        return min(self.length + num_unread, len(self.request.prompt) + self.request.max_new_tokens - 1)

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length` once the request is done."""
        if self.tokens[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_new_tokens else None


def context_bounds(longest: int) -> tuple[int, ...]:
    """Powers of two from the smallest bound on, and the longest context: within twice of any."""
    bounds = []
    bound = SMALLEST_BOUND
    while bound < longest:
        bounds.append(bound)
        bound *= 2
    return (*bounds, longest)


class Batch:
    """Slots for `capacity` requests of at most `num_rows` tokens; the tensors below are views of the active rows."""

    tokens: torch.Tensor  # [B, S] int64 prompt and output; meaningful up to the anchor
    lengths: torch.Tensor  # [B] int64 absolute position of the anchor = rows in target cache and draft cache
    anchors: torch.Tensor  # [B] int64 last token, not yet in the caches
    stop_ids: torch.Tensor  # [B, Q] int64, padded with -1
    remaining: torch.Tensor  # [B] int64 tokens that may still be emitted; 0: idle, a round changes nothing
    prompt_lengths: torch.Tensor  # [B] int64
    request_ids: torch.Tensor  # [B] int64

    _PER_ROW = ("tokens", "lengths", "anchors", "stop_ids", "remaining", "prompt_lengths", "request_ids")

    def __init__(
        self, cache: KVCache, *, capacity: int, num_rows: int, slack: int, num_stop_ids: int, device: torch.device
    ) -> None:
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(capacity, *shape, dtype=torch.int64, device=device)

        self.cache = cache
        self.capacity = capacity
        self.num_rows = num_rows
        self.most_context = num_rows - slack  # no anchor lies farther: behind any, a round may write so many rows
        self.device = device
        self.running: list[Running] = []
        self.context_bound = 0
        self._storage = {name: ints() for name in self._PER_ROW}
        self._storage["tokens"] = ints(num_rows)
        self._storage["stop_ids"] = ints(max(num_stop_ids, 1)).fill_(_PAD)
        self._use_rows(0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Cache rows and stop ids per request."""
        return self.num_rows, self._storage["stop_ids"].shape[1]

    @property
    def size(self) -> int:
        """B."""
        return len(self.running)

    def _use_rows(self, size: int) -> None:
        for name, storage in self._storage.items():
            setattr(self, name, storage[:size])
        self.caches = self.cache.view(slice(0, size))

    def view(self, size: int, context_bound: int) -> Batch:
        """The same storage seen with `size` rows: the shapes that a round of that many requests works on."""
        view = copy.copy(self)
        view.context_bound = context_bound
        view._use_rows(size)
        return view

    def reset(self) -> None:
        """Nobody runs, and every row is idle; what the caches hold stays."""
        self.running.clear()
        self.context_bound = 0
        for name in ("lengths", "anchors", "remaining", "prompt_lengths"):
            self._storage[name].zero_()
        self._use_rows(0)

    def admit(self, row: int, running: Running) -> None:
        """Put a prefilled request into `row`: a row that has become free, or the next one."""
        request = running.request
        assert len(running.tokens) == 1, "admit a request right after its prefill"
        assert row <= self.size < self.capacity or row < self.size, f"row {row} of {self.size}"
        state = self._storage
        sequence = torch.tensor((*request.prompt, *running.tokens), device=self.device)
        state["tokens"][row, : len(sequence)] = sequence
        state["anchors"][row] = running.tokens[-1]
        state["lengths"][row] = len(request.prompt)
        state["prompt_lengths"][row] = len(request.prompt)
        state["remaining"][row] = request.max_new_tokens - 1
        state["request_ids"][row] = request.request_id
        stops = torch.tensor(request.stop_token_ids, dtype=torch.int64, device=self.device)
        state["stop_ids"][row] = _PAD
        state["stop_ids"][row, : len(stops)] = stops
        if row == self.size:
            self.running.append(running)
            self._use_rows(self.size)
        else:
            self.running[row] = running

    def drop(self, row: int) -> None:
        """Close the hole at `row`: the last active row moves into it."""
        last = self.size - 1
        if row != last:
            for storage in self._storage.values():
                storage[row] = storage[last]
            self.cache.copy_row(last, row, self.running[last].length)
            self.running[row] = self.running[last]
        self._storage["remaining"][last] = 0
        self.running.pop()
        self._use_rows(self.size)

    def loosen_bound(self) -> None:
        """Raise `context_bound` to the next of `context_bounds`, so that few shapes serve all contexts."""
        self.context_bound = next(b for b in context_bounds(self.most_context) if b >= self.context_bound)

    def update_bound(self, num_unread: int = 0) -> None:
        """Let `context_bound` cover the longest active context, `num_unread` tokens of which may not be known yet."""
        self.context_bound = max((running.longest(num_unread) for running in self.running), default=0)
