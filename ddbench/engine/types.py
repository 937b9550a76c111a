"""The records that flow through a round. Tensors stay on the engine's device: no host reads.

Letters: B batch rows, P block positions (anchor included), N = 1 + node budget tree nodes (node 0 = root = anchor),
L = P - 1 draft horizon, V vocabulary, K captured layers, M hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ddbench.models.kernel_set import KernelSet, kernel_set
from ddbench.models.shapes import DrafterShape, TargetShape
from ddbench.models.weights import Models
from ddbench.spec import UNUSED, EngineSpec

DEFAULT_BLOCK_SIZE = 8  # of drafts that need no drafter, where the target has none to take it from


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued. `prompt` holds at least one token id."""

    request_id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    prompt_id: str = ""  # which workload prompt it came from
    kind: str = ""  # its category: code, prose, docs, random


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that left the batch. `tokens` are all that were emitted, the prefill's token first."""

    request_id: int
    tokens: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    num_rounds: int


@dataclass(frozen=True, slots=True)
class DraftTree:
    """B prefix-closed trees of at most N-1 non-root nodes, parents before children, in canonical order.

    Node 0 is the root (the anchor; its token is not the builder's to know and reads -1). Unused slots: token -1,
    parent -1, depth 0, score -inf. Token 0 is an ordinary token: only `num_nodes` tells used slots from unused.
    """

    tokens: torch.Tensor  # [B, N] int64
    parents: torch.Tensor  # [B, N] int64 node indices; root -1
    depths: torch.Tensor  # [B, N] int64; root 0
    scores: torch.Tensor  # [B, N] float32 log-probability of the prefix under the draft; root 0 (NaN: NaN logits)
    num_nodes: torch.Tensor  # [B] int64 non-root nodes in use


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted path of every request and what it emits.

    `path` lists node indices, root first, strictly increasing, padded with -1. `tokens` are the emitted tokens: the
    accepted drafted ones, then the bonus token; padded with -1; `num_emitted` of them count.
    """

    path: torch.Tensor  # [B, P] int64
    num_accepted: torch.Tensor  # [B] int64 drafted tokens accepted, 0..L
    tokens: torch.Tensor  # [B, P] int64
    num_emitted: torch.Tensor  # [B] int64, num_accepted + 1 before any cut by a stop token or the length limit; idle: 0
    finished: torch.Tensor  # [B] bool: the last emitted token ends the request, or it was idle before


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What the host knows once a round's tokens have arrived; one entry per request that took part, by batch row.

    A request that had finished before the round, unknown to the host when it was launched, took no part.
    """

    request_ids: tuple[int, ...]
    num_nodes: tuple[int, ...]  # non-root nodes verified
    num_accepted: tuple[int, ...]  # before any cut
    tokens: tuple[tuple[int, ...], ...]  # emitted after the cut
    expected_length: tuple[float, ...]  # surrogate E[tau] = 1 + sum of node probabilities
    is_identity_path: tuple[bool, ...]  # accepted nodes were 0..a-1: nothing to move at commit
    verify_width: int  # tokens per request in the target forward, padding included
    replayed_ns: int | None = None  # time of the round's graphs on the device, by events around them


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Target features of newly committed rows and where they belong: the input of materialize."""

    features: torch.Tensor  # [B, T, K*M]
    positions: torch.Tensor  # [B, T] int64, absolute = rows of the draft cache
    num_rows: torch.Tensor  # [B] int64, leading rows that count
    position_bound: int  # host integer > every position that counts


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """What decides whether a variant can serve, known before any weights are loaded."""

    spec: EngineSpec
    target: TargetShape
    drafter: DrafterShape | None

    @property
    def block_size(self) -> int:
        """P: as asked for, else as the drafter was trained."""
        if self.spec.block_size is not None:
            return self.spec.block_size
        return self.drafter.block_size if self.drafter is not None else DEFAULT_BLOCK_SIZE

    @property
    def rows_in_flight(self) -> int:
        """Cache rows from the anchor's on that a round may write: a full block and tree, and one more."""
        if self.spec.draft == UNUSED:
            return 2
        width = self.block_size if self.spec.tree_build == "chain" else 1 + self.spec.node_budget
        return max(self.block_size, width) + 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What the parts of one engine are built from."""

    facts: CaseFacts
    models: Models
    continuations: Mapping[int, Sequence[int]] | None = None  # request id -> its true output: oracle drafts only

    @property
    def device(self) -> torch.device:
        return torch.device(self.facts.spec.device)

    @property
    def kernels(self) -> KernelSet:
        return kernel_set(self.facts.spec.kernels)


class Part:
    """Base of every entry of a part table: says whether it can serve a case, is built once, starts anew at each run."""

    needs_cuda: ClassVar[bool] = False
    generators: Sequence[torch.Generator] = ()  # what it draws from
    plain_ops: Sequence[str] = ()  # of the kernel set, that it runs in plain torch whatever the set is

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        """None, or why this variant cannot serve the case."""
        return None

    def __init__(self, setting: Setting) -> None:
        """Keep what the part needs of `setting`."""

    def begin(self, requests: Sequence[Request]) -> None:
        """A run begins: refuse requests that cannot be served, and forget earlier runs, so that runs repeat."""


class Drawing(Part):
    """Mixin of a part that draws: from a source of its own, the same draws in every run."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._seed = setting.facts.spec.seed
        self._generator = torch.Generator(setting.device)
        self.generators = (self._generator,)
        self.begin(())

    def begin(self, requests: Sequence[Request]) -> None:
        self._generator.manual_seed(self._seed)
