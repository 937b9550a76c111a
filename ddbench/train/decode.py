"""Many answers at once: a target decodes one token per row and step, and a row that has finished takes the next job.

All state is on the device and written in place, so that a step is one CUDA graph and the host only looks on. Prompts
go through the same steps as answers (a row whose prompt is not over is told its next token); what all prompts begin
with is computed once and stays in every row's cache. Letters: B rows, J jobs, T tokens of a job at most, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ddbench.models.inputs import VerifyAttention, VerifyInputs
from ddbench.models.target import Target
from ddbench.train.loop import REPORT_SECONDS, Clock, Report, time_left

LOOK_STEPS = 64  # between looks of the host
LOOP_TAIL, LOOP_PERIOD = 48, 64  # tokens: an answer whose last so many repeat those up to so many before them loops


@dataclass(frozen=True, slots=True)
class Jobs:
    """Prompts in tokens and how each is to be answered; temperature 0 is greedy."""

    prompts: Sequence[Sequence[int]]
    temperatures: Sequence[float]


class Decoder:
    """One queue of jobs on one target. `run` works on it until it is empty or time is up."""

    def __init__(
        self,
        target: Target,
        jobs: Jobs,
        rows: int,
        total: int,
        attention: VerifyAttention,
        stop_ids: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        self.target, self.attention, self.generator, self.total = target, attention, generator, total
        device = target.embedding.weight.device
        self.num_jobs = len(jobs.prompts)
        longest = max(len(prompt) for prompt in jobs.prompts)
        assert longest < total, f"a prompt of {longest} tokens leaves no room in {total}"
        rows = min(rows, self.num_jobs)
        # The last job is none: where rows that have nothing to do any more stay.
        tokens = torch.zeros(self.num_jobs + 1, total, dtype=torch.int32)
        for place, prompt in enumerate(jobs.prompts):
            tokens[place, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.tokens = tokens.to(device)
        self.prompt_lengths = torch.tensor([*(len(prompt) for prompt in jobs.prompts), 0], device=device)
        self.temperatures = torch.tensor([*jobs.temperatures, 0.0], device=device)
        self.lengths = torch.zeros_like(self.prompt_lengths)  # of finished jobs
        self.stops = torch.tensor(list(stop_ids), dtype=torch.int64, device=device)
        self.job = torch.arange(rows, device=device)
        self.next_job = torch.tensor(rows, device=device)
        # At least one token of every prompt has to be fed for its answer to begin.
        self.shared = min(len(prompt) for prompt in jobs.prompts) - 1
        for prompt in jobs.prompts:
            while list(prompt[: self.shared]) != list(jobs.prompts[0][: self.shared]):
                self.shared -= 1
        self.position = torch.full((rows,), self.shared, device=device)
        self.token = self.tokens[self.job, self.shared].long()
        self.cache = self._filled_cache(rows, jobs.prompts[0][: self.shared])
        self.noise = torch.empty(rows, target.shape.vocab, dtype=torch.float32, device=device)

    def _filled_cache(self, rows: int, prefix: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        """K/V rows of every row and layer; the shared beginning is in."""
        shape, weight = self.target.shape, self.target.embedding.weight
        cache = [
            tuple(
                torch.zeros(rows, self.total, *row, device=weight.device, dtype=weight.dtype)
                for row in shape.attention.row_shapes
            )
            for _ in range(shape.num_layers)
        ]
        if prefix:
            one = [tuple(tensor[:1] for tensor in layer) for layer in cache]
            ids = torch.tensor([list(prefix)], device=weight.device)
            nothing = torch.zeros(1, dtype=torch.int64, device=weight.device)
            positions = torch.arange(len(prefix), device=weight.device)[None]
            self.target(VerifyInputs(ids, positions, nothing, None, 0, logit_rows=nothing), one, self.attention)
            for layer in cache:
                for tensor in layer:
                    tensor[:, : len(prefix)] = tensor[:1, : len(prefix)].clone()
        return cache

    def step(self) -> None:
        """One token for every row. No host sync."""
        inputs = VerifyInputs(self.token[:, None], self.position[:, None], self.position, None, self.total - 1)
        logits = self.target(inputs, self.cache, self.attention).logits[:, 0].float()  # [B, V]
        noise = self.noise.exponential_(generator=self.generator).clamp_(min=1e-30).log_()  # Gumbel trick
        noise.mul_(self.temperatures[self.job][:, None])
        sampled = (logits - noise).argmax(dim=-1)
        after = self.position + 1
        is_prompt = after < self.prompt_lengths[self.job]
        new = torch.where(is_prompt, self.tokens[self.job, after].long(), sampled)
        self.tokens[self.job, after] = new.int()
        has_stopped = (new[:, None] == self.stops).any(dim=1) | (after == self.total - 1)
        ended = (has_stopped | self._loops(after)) & ~is_prompt
        self.lengths[self.job] = (after + 1) * ended
        nexts = (self.next_job + ended.cumsum(0) - 1).clamp(max=self.num_jobs)
        self.next_job.copy_((self.next_job + ended.sum()).clamp(max=self.num_jobs))
        self.job.copy_(torch.where(ended, nexts, self.job))
        self.position.copy_(after.masked_fill(ended, self.shared))
        self.token.copy_(torch.where(ended, self.tokens[self.job, self.shared].long(), new))

    def _loops(self, last: torch.Tensor) -> torch.Tensor:
        """Which rows go in circles at their token `last` [B]; they end there, or would fill the batch. -> [B] bool."""
        window = torch.arange(1 - LOOP_TAIL - LOOP_PERIOD, 1, device=last.device)
        places = last[:, None] + window  # [B, W]
        tail = self.tokens[self.job[:, None], places.clamp(min=0)]
        return is_looping(tail, last + 1 - self.prompt_lengths[self.job])

    @torch.inference_mode()
    def run(self, seconds: float, report: Report, clock: Clock = time.monotonic) -> None:
        """Until all jobs are done, or `seconds` are over; finished ones have a length."""
        began = reported = clock()
        launch = self._recorded() if self.token.is_cuda else self.step
        while True:
            for _ in range(LOOK_STEPS):
                launch()
            done = int((self.lengths[:-1] > 0).sum())
            now = clock()
            is_over = done == self.num_jobs or now - began >= seconds
            if is_over or now - reported >= REPORT_SECONDS:
                reported = now
                made = int(((self.lengths - self.prompt_lengths)[:-1] * (self.lengths[:-1] > 0)).sum())
                rate = made / (now - began) if now > began else 0.0
                left = time_left(max(done / self.num_jobs, min(1.0, (now - began) / seconds)), now - began)
                report(f"answers: {done}/{self.num_jobs}, {rate:,.0f} answer tokens/s, {left}")
            if is_over:
                return

    def _recorded(self) -> Callable[[], None]:
        """A step as one CUDA graph. The steps that warm up count: they are work like any other."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def is_looping(tail: torch.Tensor, num_own: torch.Tensor) -> torch.Tensor:
    """Whether the last LOOP_TAIL tokens repeat those some period up to LOOP_PERIOD before, all within the answer.

    tail [B, LOOP_TAIL + LOOP_PERIOD], the last tokens; num_own [B], how many of them, at most, are the answer's.
    What an answer copies from its prompt is no loop.
    """
    shifted = tail.unfold(1, LOOP_TAIL, 1)  # [B, LOOP_PERIOD + 1, LOOP_TAIL], the last one being the tail's end
    repeats = (shifted[:, :-1] == shifted[:, -1:]).all(dim=2)  # [B, LOOP_PERIOD], by period from the longest to 1
    periods = torch.arange(LOOP_PERIOD, 0, -1, device=tail.device)
    return (repeats & (LOOP_TAIL + periods <= num_own[:, None])).any(dim=1)
