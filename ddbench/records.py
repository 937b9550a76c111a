"""What was observed: frozen records, raw integers in nanoseconds, bytes and tokens; everything else is derived later.

Standard library and pydantic only. A value that was not measured is `NotMeasured(reason)`, never 0 or NaN.
One row of `rounds` is one request in one round; one row of `steps` is one round of the whole batch.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ddbench.spec import Case, ExperimentSpec, Record

Pass = Literal["clean", "attributed"]
Acceptance = Literal["measured", "replayed", "random_drafter", "random_weights", "none"]
CeilingKind = Literal["read", "copy", "matmul", "launch", "replay"]
CacheLabel = Literal["hot", "cold", "none"]
When = Literal["before", "after"]  # the cases of a run


class NotMeasured(Record):
    """Why a value is missing."""

    not_measured: str


class Environment(Record):
    """Where a run happened. Strings, or why they are unknown; nothing here names a user, a host or a path."""

    platform: str
    machine: str
    cpu_model: str
    num_cpus: int
    memory_bytes: int
    device: str  # what the engine ran on: 'cpu' or the GPU's name
    device_memory_bytes: int | NotMeasured
    driver: str | NotMeasured
    power_cap_w: float | NotMeasured
    libraries: dict[str, str]  # python, torch, triton, numpy, ... to version or 'absent'
    num_threads: int
    code_digest: str  # SHA-256 over the package's own source files
    commit: str | NotMeasured
    is_dirty: bool | NotMeasured
    parts_origin: str  # 'checkout' or 'installed'

    def fingerprint(self) -> tuple[str, ...]:
        """What must agree before two runs' times may be compared."""
        libraries = (f"{name}={version}" for name, version in sorted(self.libraries.items()))
        return (self.machine, self.cpu_model, self.device, str(self.driver), str(self.power_cap_w), *libraries)


BUSY_HOST = 0.5  # share of all CPU time taken by others from which times are in doubt


class LoadSample(Record):
    """The machine's state around a pass: host load, clocks and throttling where they can be read.

    Host load is the share of all CPU time (0..1) that was busy in a short window in which the case itself was idle.
    """

    host_load_before: float | NotMeasured
    host_load_after: float | NotMeasured
    sm_clock_mhz: int | NotMeasured
    temperature_c: int | NotMeasured
    throttle_reasons: tuple[str, ...] | NotMeasured


class CeilingSample(Record):
    """What this machine can do at best at one thing, measured in the run, in the cases' own dtype and thread count.

    `amount` is bytes per second (`read`: one stream in; `copy`: bytes read plus bytes written), flops per second
    (`matmul`) or nanoseconds (`launch`: one small op from the host, back to back; `replay`: the same op as a node of a
    replayed CUDA graph, the least that any kernel takes on the device).
    """

    kind: CeilingKind
    cache: CacheLabel  # hot: fits the last-level cache; cold: far larger; none: no matter
    when: When
    dtype: str
    num_threads: int
    working_set_bytes: int
    amount: float = Field(gt=0)  # median over samples
    low: float = Field(gt=0)  # lower quartile
    high: float = Field(gt=0)  # upper quartile
    num_samples: int = Field(ge=1)


class Ceilings(Record):
    """What ceilings.json of a run folder holds."""

    device: str
    last_level_cache_bytes: int | NotMeasured
    samples: tuple[CeilingSample, ...]
    faults: tuple[str, ...] = ()  # what could not be measured, and why


class Divergence(Record):
    """The first place where speculative output leaves the autoregressive one."""

    prompt_id: str
    position: int
    expected: int
    got: int
    logit_margin: float | NotMeasured  # how far the lower of the two tokens' logits is below the best one there


class Parity(Record):
    """Greedy output against autoregressive output, checked before any timing."""

    status: Literal["identical", "near_tie", "diverged", "not_applicable"]
    num_prompts: int
    num_tokens: int
    divergences: tuple[Divergence, ...] = ()
    detail: str = ""


class RequestRecord(Record):
    """One finished request of one pass. Times are nanoseconds since the pass began."""

    pass_name: Pass
    pass_index: int = 0  # of the clean passes: 0, 1, ...
    request_id: int
    prompt_id: str
    kind: str
    num_prompt_tokens: int
    tokens: tuple[int, ...]  # emitted, the first (prefill) token included
    num_rounds: int
    finish_reason: Literal["stop", "length"]
    admitted_ns: int
    first_token_ns: int
    last_token_ns: int


class RoundRecord(Record):
    """One request in one round."""

    pass_name: Pass
    pass_index: int = 0
    step: int  # index of the round in the pass
    request_id: int
    request_round: int
    num_nodes: int  # non-root nodes verified for this request
    num_accepted: int  # drafted tokens accepted, before any cut
    num_emitted: int  # tokens that reached the output, after any cut
    num_repeated: int  # of those, tokens that complete a 4-gram seen before in prompt or output
    expected_length: float  # surrogate E[tau] of the tree
    is_identity_path: bool


class StepRecord(Record):
    """One round of the whole batch, timed on the host from its start to its tokens' arrival."""

    pass_name: Pass
    pass_index: int = 0
    step: int
    batch_size: int  # requests that took part; a row that stopped before, unread as yet, does not
    verify_width: int  # tokens per request in the target forward, padding included
    start_ns: int
    end_ns: int


class StageSample(Record):
    """Time of one stage in one round (step) or prefill (step -1) of the attributed pass."""

    step: int
    stage: str
    duration_ns: int
    clock: Literal["host", "device"]


class StageCost(Record):
    """Fewest bytes and flops of a stage in a typical round of the case, from the shapes."""

    stage: str
    num_bytes: int
    num_flops: int
    basis: str  # what round it is for: batch, width, context
    context_bytes: int | NotMeasured = NotMeasured(not_measured="written before context rows were counted apart")
    # Of num_bytes, what is an expectation and no floor: routed experts beyond those that any tokens must touch.
    expected_bytes: int | NotMeasured = NotMeasured(not_measured="written before expectations were told from floors")
    # Of the verified tokens, all layers: what attention reads beside the context; no part of num_bytes.
    query_bytes: int | NotMeasured = NotMeasured(not_measured="written before queries were counted apart")
    # In place of expected_bytes, as the case's own tokens chose: see `ExpertUse`.
    counted_bytes: int | NotMeasured = NotMeasured(not_measured="written before experts were counted")

    @property
    def fewest_bytes(self) -> int:
        """`num_bytes` with routed experts as they were counted, where they were."""
        if isinstance(self.counted_bytes, NotMeasured) or isinstance(self.expected_bytes, NotMeasured):
            return self.num_bytes
        return self.num_bytes - self.expected_bytes + self.counted_bytes

    @property
    def unsure_bytes(self) -> int | NotMeasured:
        """Of `fewest_bytes`, what is an expectation and was not counted."""
        if isinstance(self.counted_bytes, NotMeasured) or isinstance(self.expected_bytes, NotMeasured):
            return self.expected_bytes
        return 0


class ExpertUse(Record):
    """How many of the routed experts held here the tokens of a round chose: means over verified rounds and layers."""

    touched: float = Field(ge=0)  # different ones, of a layer
    uniform: float = Field(gt=0)  # what a uniform router would touch for as many tokens
    spread: float = Field(ge=0)  # of touched / uniform over rounds: standard deviation / mean
    held: int = Field(ge=1)
    tokens: float  # of a round, padding included
    num_rounds: int = Field(ge=2)


class PassSummary(Record):
    """One pass over the workload."""

    pass_name: Pass
    index: int
    wall_ns: int
    num_emitted: int
    load: LoadSample
    replayed_ns: int | NotMeasured = NotMeasured(not_measured="the rounds were not replayed as graphs")


class ModelCard(Record):
    """Which weights were measured. Where no drafter ran, its name and digest are `none` and it has 0 parameters."""

    target: str
    target_digest: str
    drafter: str
    drafter_digest: str
    block_size: int | None  # positions of a draft block as it ran, the anchor included; None: nothing was drafted
    trained_block_size: int | None  # as the drafter was trained; a smaller block at run time costs acceptance
    acceptance: Acceptance
    num_target_parameters: int
    num_drafter_parameters: int


class PromptCard(Record):
    """Which standard prompts were given, and how."""

    name: str
    split: Literal["test", "calibration", "all"]
    num_prompts: int  # of the split and the wanted kinds; the workload takes some of them
    source: str  # package and version that carry the set
    licence: str
    set_digest: str
    framing: Literal["chat", "plain"]  # an instruction in the target's chat template, or the bare text to go on with
    framing_digest: str  # of the template and the wording
    turns: Literal["only", "first"]  # of an item: its only one, or the first of several
    is_foreign: bool  # the target has prompts of its own kind, and these are not


class _Result(Record):
    case_id: str
    case: Case
    started_at: str  # UTC, ISO 8601
    seconds: float
    warnings: tuple[str, ...] = ()


class OkResult(_Result):
    """Parity held and the case was timed."""

    status: Literal["ok"] = "ok"
    parity: Parity
    models: ModelCard
    prompts: PromptCard | None = None  # of a standard set; the workload says what other prompts are
    passes: tuple[PassSummary, ...] = Field(min_length=1)
    stage_costs: tuple[StageCost, ...]
    expert_use: ExpertUse | NotMeasured = NotMeasured(not_measured="written before experts were counted")
    path_used: dict[str, str]  # part -> the path that ran; `kernels.x`: of an op that left the set of kernels
    # file below kernels/ -> its kernels that were launched on a GPU; of old records unknown
    kernels_launched: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    counters: dict[str, int]  # exact, noise-free: torch_ops, host_reads, nodes_verified, ... (analysis/counters.py)
    output_digest: str | NotMeasured = NotMeasured(not_measured="written before outputs had a digest")
    peak_memory_bytes: int | NotMeasured
    warmup_ns: tuple[int, ...] = ()  # wall time of every warm-up run, in order


class IncorrectResult(_Result):
    """Parity failed: there are no timings by construction."""

    status: Literal["incorrect"] = "incorrect"
    parity: Parity
    models: ModelCard


class FailedResult(_Result):
    """The case's process did not deliver."""

    status: Literal["failed"] = "failed"
    outcome: Literal["crash", "timeout", "out_of_memory", "error"]
    reason: str
    log_tail: str = ""


class SkippedCase(Record):
    """A point of the plan that cannot be run, and why."""

    status: Literal["skipped"] = "skipped"
    arm: str
    label: str
    reason: str


CaseResult = Annotated[OkResult | IncorrectResult | FailedResult, Field(discriminator="status")]


class ResultFile(Record):
    """What a case's result.json holds."""

    result: CaseResult


# Nothing else of a run says what was asked and where it was measured: it cannot be made again from the cases.
MANIFEST_CURE = (
    "copy it again from where the run was measured, or read the run with the ddbench that wrote it; "
    "else run the experiment anew"
)


class Manifest(Record):
    """What a run folder is: the question, the plan, the place."""

    schema_version: int = 2
    run_id: str
    ddbench_version: str
    created_at: str  # UTC, ISO 8601
    experiment: ExperimentSpec
    environment: Environment
    case_ids: tuple[Annotated[str, Field(pattern=r"^\w[\w-]*$")], ...]  # in execution order; names of folders
    cases: tuple[Case, ...] = ()  # the case of each id
    skipped: tuple[SkippedCase, ...]
    interleaved_with: str | None = None  # run id of the other code whose blocks ran in turns with this run's

    @model_validator(mode="after")
    def _distinct_ids(self) -> Self:
        if len(set(self.case_ids)) != len(self.case_ids):
            raise ValueError("case_ids: a case is there twice")
        return self
