"""The engine: requests in, tokens out; prefill, then rounds until every request has finished.

Letters: B batch rows, S context length, N tree node slots, the root included, P block positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal, cast

import torch

from ddbench.engine import invariants, outcome
from ddbench.engine.batch import Batch, Running
from ddbench.engine.executor import Report
from ddbench.engine.kv_cache import KVCache
from ddbench.engine.parts import PARTS, Parts, SpeculativeParts, build_parts
from ddbench.engine.probe import UNOBSERVED, Probe
from ddbench.engine.round import run_round, run_step
from ddbench.engine.scheduler import Scheduler
from ddbench.engine.stages import Stage
from ddbench.engine.types import CaseFacts, Finished, Part, Request, RoundOutcome, Setting
from ddbench.errors import UserError
from ddbench.models.kernel_set import TORCH, plain_ops, use_kernels
from ddbench.models.weights import Models
from ddbench.spec import EngineSpec


def setting_of(spec: EngineSpec, models: Models, continuations: Mapping[int, Sequence[int]] | None = None) -> Setting:
    """What the parts of an engine for these models are built from."""
    return Setting(CaseFacts(spec, models.target.shape, models.drafter.shape), models, continuations)


class Engine:
    """Runs requests as an EngineSpec says. Equal calls give equal results."""

    def __init__(
        self,
        spec: EngineSpec,
        models: Models,
        *,
        continuations: Mapping[int, Sequence[int]] | None = None,  # request id -> true output, for oracle drafts
        parts: Parts | None = None,  # in place of those that the spec names
        debug: bool = False,  # check the invariants around every round (slow)
    ) -> None:
        self.spec = spec
        self.models = models
        self.setting = setting_of(spec, models, continuations)
        self.parts = build_parts(self.setting) if parts is None else parts
        self.debug = debug
        for module in (models.target, models.drafter):
            use_kernels(module, self.parts.kernels)
        own = (op for part in self._used_parts().values() for op in part.plain_ops)
        self._plain_ops = (*plain_ops(models.target, self.parts.kernels), *own)
        self._device = torch.device(spec.device)
        self._dtype = models.target.embedding.weight.dtype
        if isinstance(self.parts, SpeculativeParts):
            self._block_size = self.setting.facts.block_size
            self._round = partial(run_round, models, invariants.watched(self.parts) if debug else self.parts)
        else:
            self._block_size = 1
            self._round = partial(run_step, models, self.parts)
        self._storage: Batch | None = None
        self._in_flight: deque[tuple[Report, tuple[Running, ...]]] = deque()

    @torch.inference_mode()
    def run(self, requests: Sequence[Request], concurrency: int, probe: Probe = UNOBSERVED) -> list[Finished]:
        """Serve all requests, `concurrency` of them in flight, first come first served; results in request order."""
        _check_requests(requests, concurrency, self.models.target.shape.vocab)
        scheduler = Scheduler(requests, concurrency)
        batch = self.reserve(requests, concurrency, times_stages=probe.times_stages, probe=probe)
        for field, part in self._used_parts().items():
            part.begin(requests)
            probe.path_used(field, _name_of(field, part))
        probe.path_used("kernels", self.parts.kernels.name)
        for op in self._plain_ops:
            probe.path_used(f"kernels.{op}", TORCH.name)
        while batch.size < scheduler.capacity and self._admit(batch, batch.size, scheduler, probe):
            pass
        while batch.size:
            self._advance(batch, probe)
            for row in reversed(range(batch.size)):
                if batch.running[row].finish_reason is not None:
                    _finish(batch.running[row], scheduler, probe)
                    if not self._admit(batch, row, scheduler, probe):
                        batch.drop(row)
        return scheduler.results()

    @torch.inference_mode()
    def reserve(
        self,
        requests: Sequence[Request],
        concurrency: int,
        *,
        times_stages: bool = False,
        probe: Probe = UNOBSERVED,  # sees the stages of what is recorded
    ) -> Batch:
        """Storage for these requests, kept from run to run, and all that its executor prepares for it.

        Runs of requests that fit take it as it is: call it with all that will come, before anything is timed.
        """
        capacity = min(concurrency, len(requests))
        batch, wanted = self._storage, self._sizes(requests)
        if batch is None or capacity > batch.capacity or any(w > k for w, k in zip(wanted, batch.sizes, strict=True)):
            batch = None
            self.release()  # let go of the old one first
            batch = self._storage = self.new_batch(requests, capacity)
        batch.reset()
        self._in_flight.clear()
        generators = tuple(chain.from_iterable(part.generators for part in self._used_parts().values()))
        shortest = min((len(request.prompt) for request in requests), default=0)
        self.parts.executor.prepare(
            self._round, batch, generators, shortest=shortest, times_stages=times_stages, probe=probe
        )
        self.parts.prefill.prepare(self.parts, batch, requests, generators, probe)
        return batch

    def release(self) -> None:
        """Let go of the storage and of all that was recorded on it; the next run takes new ones."""
        self._storage = None
        self._in_flight.clear()
        self.parts.executor.release()
        self.parts.prefill.release()

    def _used_parts(self) -> dict[str, Part]:
        return {field: part for field in PARTS if (part := getattr(self.parts, field, None)) is not None}

    def _sizes(self, requests: Sequence[Request]) -> tuple[int, int]:
        """Cache rows and stop ids that each of these requests fits in."""
        slack = self.setting.facts.rows_in_flight
        longest = max(requests, key=lambda request: len(request.prompt) + request.max_new_tokens, default=None)
        num_rows = slack if longest is None else len(longest.prompt) + longest.max_new_tokens + slack
        limit = self.models.target.shape.max_context
        if longest is not None and num_rows > limit:
            raise UserError(
                f"request {longest.request_id}: {len(longest.prompt)} prompt tokens + {longest.max_new_tokens} new + "
                f"{slack} for the block and tree in flight = {num_rows}, more than the context of "
                f"'{self.models.target.shape.name}' ({limit}); shorten one of them"
            )
        return num_rows, max((len(request.stop_token_ids) for request in requests), default=0)

    @torch.inference_mode()
    def new_batch(self, requests: Sequence[Request], capacity: int) -> Batch:
        """Empty slots in which each of these requests fits."""
        num_rows, num_stop_ids = self._sizes(requests)
        cache = KVCache(
            self.models.target.shape,
            self.models.drafter.shape if self.parts.has_drafter else None,
            capacity=capacity + self.parts.prefill.num_spare_rows,
            num_rows=num_rows,
            dtype=self._dtype,
            device=self._device,
        )
        return Batch(
            cache,
            capacity=capacity,
            num_rows=num_rows,
            slack=self.setting.facts.rows_in_flight,
            num_stop_ids=num_stop_ids,
            device=self._device,
        )

    @torch.inference_mode()
    def prefill(self, batch: Batch, row: int, request: Request, probe: Probe = UNOBSERVED) -> Running:
        """Run the prompt into the caches of `row`; the first token is on the host when this returns."""
        probe.admitted(request.request_id)
        with probe.stage(Stage.PREFILL):
            done = self.parts.prefill(self.parts, batch, row, request.prompt)
        token = int(done.token)
        probe.first_token(request.request_id, token)
        return Running(request, [token], prompt_rows=done.rows)

    @torch.inference_mode()
    def step(self, batch: Batch, probe: Probe = UNOBSERVED) -> RoundOutcome:
        """One round or autoregressive step for all active requests, and the arrival of its tokens on the host."""
        self._launch(batch, probe)
        return self._collect(batch, probe)

    def _advance(self, batch: Batch, probe: Probe) -> None:
        """Launch a round; read the one before it, and this one too where the next must not be launched without.

        That is so where a request may have reached its length, or has finished: its row would run idle, or must go to
        another. Only a stop token can surprise, at the price of one round that leaves the request alone.
        """
        self._launch(batch, probe)
        runs_ahead = self.parts.executor.runs_ahead and not self.debug and not probe.times_stages
        while len(self._in_flight) > runs_ahead or (self._in_flight and self._may_finish(batch)):
            self._collect(batch, probe)

    def _may_finish(self, batch: Batch) -> bool:
        unread = len(self._in_flight) * self._block_size
        return any(
            running.finish_reason is not None or len(running.tokens) + unread >= running.request.max_new_tokens
            for running in batch.running
        )

    def _launch(self, batch: Batch, probe: Probe) -> None:
        batch.update_bound(num_unread=len(self._in_flight) * self._block_size)
        if self.parts.executor.fixed_shapes or self.parts.kernels is not TORCH:
            batch.loosen_bound()  # for all executors: how the context is split over programs decides the rounding
        probe.round_started(batch.size)
        self.materialize_prompts(batch, probe)
        if self.debug:
            invariants.check_bound(batch)
            invariants.check_state(batch)
            invariants.mark_unread_rows(batch, (*batch.caches.target, *batch.caches.draft))
        self._in_flight.append((self.parts.executor(self._round, batch, probe), tuple(batch.running)))

    def _collect(self, batch: Batch, probe: Probe) -> RoundOutcome:
        """Read the oldest round in flight."""
        report, took_part = self._in_flight.popleft()
        by_id = {running.request.request_id: running for running in took_part}
        result = outcome.unpack(report.rows(), tuple(by_id), self.parts.verify_width)
        result = replace(result, replayed_ns=report.replayed_ns())
        for request_id, tokens in zip(result.request_ids, result.tokens, strict=True):
            by_id[request_id].tokens.extend(tokens)
            by_id[request_id].num_rounds += 1
        if self.debug:
            invariants.check_outcome(result, self._block_size)
            invariants.check_state(batch)
        probe.committed(result)
        return result

    @torch.inference_mode()
    def materialize_prompts(self, batch: Batch, probe: Probe = UNOBSERVED) -> None:
        """The newcomers' prompts go into the draft cache on the account of their first round."""
        for row, running in enumerate(batch.running):
            if running.prompt_rows is not None:
                if isinstance(self.parts, SpeculativeParts) and self.parts.materialize is not None:
                    with probe.stage(Stage.MATERIALIZE):
                        self.parts.materialize(running.prompt_rows, batch.cache.view(slice(row, row + 1)))
                running.prompt_rows = None

    def _admit(self, batch: Batch, row: int, scheduler: Scheduler, probe: Probe) -> bool:
        """Fill `row` with the next request that its prefill does not finish already; False when nobody waits."""
        while (request := scheduler.next()) is not None:
            with probe.recording(Stage.PREFILL):  # the small copies before and after it, too
                running = self.prefill(batch, row, request, probe)
                if running.finish_reason is None:
                    batch.admit(row, running)
                    return True
            _finish(running, scheduler, probe)
        return False


def _finish(running: Running, scheduler: Scheduler, probe: Probe) -> None:
    reason = cast(Literal["stop", "length"], running.finish_reason)
    request_id = running.request.request_id
    scheduler.finish(Finished(request_id, tuple(running.tokens), reason, running.num_rounds))
    probe.finished(request_id, reason)


def _name_of(field: str, part: object) -> str:
    """The name under which a part stands in its table; a part from elsewhere goes by its class."""
    return next((name for name, kind in PARTS[field].items() if kind is type(part)), type(part).__name__)


def _check_requests(requests: Sequence[Request], concurrency: int, vocab: int) -> None:
    if concurrency < 1:
        raise UserError(f"concurrency is {concurrency}: at least 1")
    if len({request.request_id for request in requests}) != len(requests):
        raise UserError("request ids repeat: give every request its own")
    for request in requests:
        where = f"request {request.request_id}"
        if not request.prompt:
            raise UserError(f"{where}: the prompt is empty; give at least one token")
        if request.max_new_tokens < 1:
            raise UserError(f"{where}: max_new_tokens is {request.max_new_tokens}; at least 1")
        if not 0 <= min(request.prompt) <= max(request.prompt) < vocab:
            raise UserError(f"{where}: prompt token ids must be in 0..{vocab - 1}")
