"""[part] The prompt's way into the caches of a batch row, and the first token after it.

Op by op at the prompt's own length; or as one CUDA graph. A graph knows addresses and shapes only, so prompts are
padded to one of few lengths, run into a spare row of the caches, and are copied from there into the row that the
request got. What stands behind a prompt's last token is seen by none of its tokens, and is not copied.
Letters: n prompt tokens, P padded length, B batch rows, N tokens of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.kv_cache import CacheView
from ddbench.engine.launch import Launch
from ddbench.engine.probe import UNOBSERVED, Probe
from ddbench.engine.recording import Recording, record
from ddbench.engine.stages import Stage
from ddbench.engine.types import CaseFacts, CommittedRows, Part, Request, Setting
from ddbench.models.inputs import VerifyAttention, VerifyInputs

FINE_STEP, COARSE_STEP, COARSE_FROM = 64, 256, 512  # tokens: padded lengths are multiples, coarser for long prompts


class Chooses(Protocol):
    """Of a sampler: the target's tokens for logits [B, N, V] -> [B, N] int64."""

    def choose(self, logits: torch.Tensor) -> torch.Tensor: ...


class Others(Protocol):
    """The parts that a prefill calls, and `materialize` where the engine has that."""

    @property
    def attention(self) -> VerifyAttention: ...

    @property
    def sampling(self) -> Chooses: ...

    @property
    def has_drafter(self) -> bool: ...


class Prefilled(NamedTuple):
    """What a prefill leaves besides the target's cache rows."""

    token: torch.Tensor  # [1, 1] int64, on the device
    rows: CommittedRows | None  # the prompt's features, where they are not in the draft cache yet


class EagerPrefill(Part):
    """Op by op; the features go into the draft cache on the account of the first round."""

    num_spare_rows: ClassVar[int] = 0  # of the caches, behind those of the batch

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._target = setting.models.target
        self._device = setting.device

    def prepare(
        self,
        others: Others,
        batch: Batch,
        requests: Sequence[Request],
        generators: Sequence[torch.Generator],
        probe: Probe,
    ) -> None:
        """These requests are to come, on this storage."""

    def release(self) -> None:
        """Let go of the storage prepared for: another takes its place."""

    def counters(self) -> dict[str, int]:
        """What happened so far, for a harness that takes differences."""
        return {}

    def __call__(self, others: Others, batch: Batch, row: int, prompt: Sequence[int]) -> Prefilled:
        """Fill the target cache of `row` and choose the first token."""
        ids = torch.tensor([prompt], device=self._device)
        lengths = torch.tensor([len(prompt)], device=self._device)
        return Prefilled(*self._forward(others, ids, lengths, batch.cache.view(slice(row, row + 1))))

    def _forward(
        self, others: Others, ids: torch.Tensor, lengths: torch.Tensor, caches: CacheView
    ) -> tuple[torch.Tensor, CommittedRows]:
        """ids [1, P], of which the first `lengths` [1] count -> (the first token, the prompt's features)."""
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        inputs = VerifyInputs(
            input_ids=ids,
            positions=positions,
            lengths=torch.zeros_like(lengths),
            visible=None,
            context_bound=0,
            logit_rows=lengths - 1,
        )
        out = self._target(inputs, caches.layers, others.attention, captures=others.has_drafter)
        rows = CommittedRows(out.features, positions, lengths, ids.shape[1])
        return others.sampling.choose(out.logits), rows


class PaddedPrefill(EagerPrefill):
    """Base of the recorded one: padded, through the spare row, the draft cache included."""

    num_spare_rows = 1

    def __call__(self, others: Others, batch: Batch, row: int, prompt: Sequence[int]) -> Prefilled:
        padded = padded_length(len(prompt), batch.num_rows)
        token = self._run(others, batch, padded, prompt)
        batch.cache.copy_row(batch.capacity, row, len(prompt))
        return Prefilled(token, None)

    def _run(self, others: Others, batch: Batch, padded: int, prompt: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([(*prompt, *[0] * (padded - len(prompt)))], device=self._device)
        return self._into_spare_row(others, batch, ids, torch.tensor([len(prompt)], device=self._device))

    def _into_spare_row(self, others: Others, batch: Batch, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        spare = batch.cache.view(slice(batch.capacity, batch.capacity + 1))
        token, rows = self._forward(others, ids, lengths, spare)
        materialize: Callable[[CommittedRows, CacheView], None] | None = getattr(others, "materialize", None)
        if materialize is not None:
            materialize(rows, spare)
        return token


class GraphPrefill(PaddedPrefill):
    """One graph per padded length, recorded for the prompts that are to come."""

    needs_cuda = True

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        if facts.spec.kernels != "triton":
            return "prefill 'graph' needs kernels 'triton': plain torch reads expert choices on the host"
        return None

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._storage: Batch | None = None
        self._pool: Any = None
        self._ids = self._lengths = torch.zeros(0)
        self._recordings: dict[int, Recording] = {}
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # around a replay; nobody reads them
        self._counts = {"prefill_captures": 0, "prefill_replays": 0, "eager_prefills": 0}

    def prepare(
        self,
        others: Others,
        batch: Batch,
        requests: Sequence[Request],
        generators: Sequence[torch.Generator],
        probe: Probe,
    ) -> None:
        if batch is not self._storage:
            self.release()
            self._storage = batch
            self._pool = torch.cuda.graph_pool_handle()
            self._ids = torch.zeros(1, batch.num_rows, dtype=torch.int64, device=self._device)
            self._lengths = torch.ones(1, dtype=torch.int64, device=self._device)
            self._events = [(torch.cuda.Event(), torch.cuda.Event())]
        wanted = {padded_length(len(request.prompt), batch.num_rows) for request in requests} - self._recordings.keys()
        for padded in sorted(wanted, reverse=True):  # the longest first: the others fit the memory that it lets go of
            self._record(others, batch, padded, generators, probe)

    def release(self) -> None:
        self._storage = self._pool = None
        self._events = []
        self._ids = self._lengths = torch.zeros(0)
        self._recordings.clear()

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def _record(
        self, others: Others, batch: Batch, padded: int, generators: Sequence[torch.Generator], probe: Probe
    ) -> None:
        def code(storage: Batch, launch: Launch) -> torch.Tensor:
            with launch.stage(Stage.PREFILL):
                return self._into_spare_row(others, storage, self._ids[:, :padded], self._lengths)

        recording = record(code, batch, self._pool, generators, by_stage=False, times_stages=False, probe=probe)
        self._recordings[padded] = recording
        self._counts["prefill_captures"] += recording.num_graphs

    def _run(self, others: Others, batch: Batch, padded: int, prompt: Sequence[int]) -> torch.Tensor:
        recording = self._recordings.get(padded)
        if recording is None or batch is not self._storage:
            self._counts["eager_prefills"] += 1
            return super()._run(others, batch, padded, prompt)
        self._ids[0, : len(prompt)].copy_(torch.tensor(prompt))  # what an earlier prompt left behind it is padding
        self._lengths.fill_(len(prompt))
        recording.replay(UNOBSERVED, self._events)
        self._counts["prefill_replays"] += recording.num_graphs
        return recording.report


def padded_length(num_tokens: int, num_rows: int) -> int:
    """P for a prompt of n tokens in a cache of `num_rows` rows."""
    step = FINE_STEP if num_tokens <= COARSE_FROM else COARSE_STEP
    return min(-(-num_tokens // step) * step, num_rows)


PREFILLS = {"eager": EagerPrefill, "graph": GraphPrefill}
