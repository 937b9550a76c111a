"""What may be asked of the lab: engine, workload, capture, axes, experiments; and one point of a plan, the `Case`.

Standard library and pydantic only. Whether a named variant exists is decided by `engine/parts.py`; this module fixes
the questions and their defaults. `experiment_file.py` reads them from TOML.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ddbench.errors import SchemaError, UserError, did_you_mean, shown

RecordT = TypeVar("RecordT", bound="Record")

Seed = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Device = Literal["cpu", "cuda"]
Owner = Literal["engine", "workload", "capture"]  # of a field: the spec that has it

ORACLE_PROFILES = (
    "nano-k2", "nano-k2-code", "nano-k2-docs", "nano-k2-prose", "nano-k2-blocks", "smollm2-humaneval",
)  # fmt: skip
PROFILE_SUFFIX = ".safetensors"  # of a recorded one

UNUSED = "none"  # the value of a part that takes no part in an arm (no drafter: nothing to materialize)


class Record(BaseModel):
    """Base of all specs and records: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ADDED: ClassVar[tuple[str, ...]] = ()  # fields younger than kept baselines and other checkouts, see `digest`

    def digest(self) -> str:
        """A short stable content address of the values.

        An added field counts once it is not at its default, so that what it was before it knew the field stays itself.
        """
        text = json.dumps(without_unset_additions(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_unset_additions(record: Record) -> dict[str, Any]:
    """The values as JSON holds them, less added fields at their defaults: what code that is older than those can read.

    Code that knows them fills them in again.
    """
    values = record.model_dump(mode="json")
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if name in record.ADDED and value == field.default:
            del values[name]
        elif isinstance(value, Record):
            values[name] = without_unset_additions(value)
    return values


class EngineSpec(Record):
    """Everything that decides what the engine computes and how; the part fields name entries of `PARTS`."""

    ADDED = ("oracle_profile", "kernels", "prefill")

    target: str = Field(
        default="nano-k2", min_length=1, description="named shape, shipped pair, or folder with a checkpoint"
    )
    drafter: str | None = Field(
        default=None, min_length=1, description="folder with a drafter; without: the target's own"
    )
    draft: str = "dflash"
    materialize: str = "fused"
    tree_build: str = "heap"
    tree_compile: str = "ancestors"
    attention: str = "dense_mask"
    sampling: str = "greedy"
    prefill: str = "eager"
    executor: str = "eager"
    node_budget: int = Field(default=32, ge=0, le=4096, description="most nodes of a draft tree, the root not counted")
    block_size: int | None = Field(
        default=None,
        ge=2,
        le=64,
        description="positions of a draft block, anchor included; without: as trained; smaller only",
    )
    temperature: float = Field(default=1.0, gt=0.0, le=10.0, description="read by stochastic sampling only")
    oracle_quality: tuple[Share, ...] = Field(
        default=(), description="oracle draft only: per position, how often its first choice is right: 0.9+0.8+0.7"
    )
    oracle_profile: str = Field(
        default="nano-k2",
        description="oracle draft without oracle_quality: the recorded acceptance that it replays. nano-k2-blocks, "
        "smollm2-humaneval or a file of `ddbench train profile`: rank by rank, as the pair drafted; nano-k2, and of "
        "one kind of prompts nano-k2-code, -docs and -prose: how often first choices were right",
    )
    experts: Literal["packed", "dequantized"] = Field(
        default="dequantized", description="INT4 experts: unpacked at every use (packed) or once at load (dequantized)"
    )
    kernels: Literal["torch", "triton"] = Field(
        default="torch", description="torch: plain torch ops; triton: fused kernels; without: what fits the device"
    )
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="float32 or bfloat16")
    device: Device = Field(default="cpu", description="cpu or cuda; set by --device")
    num_threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads; without: torch's default")
    seed: Seed = Field(default=0, description="of random weights and of sampling")

    @field_validator("oracle_profile")
    @classmethod
    def _named_or_a_file(cls, profile: str) -> str:
        if profile not in ORACLE_PROFILES and not profile.endswith(PROFILE_SUFFIX):
            known = did_you_mean(profile, ORACLE_PROFILES)
            raise ValueError(f"unknown profile {shown(profile)}: {known}; or the path of a {PROFILE_SUFFIX} file")
        return profile


PART_FIELDS: tuple[str, ...] = (
    "draft",
    "materialize",
    "tree_build",
    "tree_compile",
    "attention",
    "sampling",
    "prefill",
    "executor",
)

LABELLED: tuple[str, ...] = (*PART_FIELDS, "node_budget", "block_size")  # named in a label where not as usual

# What an engine on a GPU is, and no label has to say: prefill and round are a launch each, nothing waits for the host,
# no mask over the context is made.
USUAL_ON_GPU: dict[str, Any] = {
    "tree_build": "device",
    "attention": "tree_triton",
    "prefill": "graph",
    "executor": "round_graph",
}

# An arm pins the fields that define it: an axis over a pinned field does not multiply the arm.
ARMS: dict[str, dict[str, Any]] = {
    "ar": {"draft": UNUSED, "materialize": UNUSED, "tree_build": UNUSED, "tree_compile": UNUSED, "node_budget": 0},
    "prompt_lookup": {
        "draft": "prompt_lookup",
        "materialize": UNUSED,
        "tree_build": "chain",
        "tree_compile": "causal",
        "node_budget": 0,
    },
    "chain": {"tree_build": "chain", "tree_compile": "causal", "node_budget": 0},
    "chain_via_tree": {"tree_build": "chain", "tree_compile": "ancestors", "node_budget": 0},
    "ddtree": {"tree_compile": "ancestors"},
}


class WorkloadSpec(Record):
    """Which prompts, how many at once, how long the answers."""

    ADDED = ("prompt_tokens", "prompt_split")

    prompts: str = Field(
        default="held-out",
        description="held-out: the target's own; random: token ids (labelled); or a set of ddbench workloads list",
    )
    prompt_split: Literal["test", "calibration", "all"] = Field(
        default="test", description="sets only: test for reporting, calibration for choosing settings, all"
    )
    prompt_tokens: int | None = Field(
        default=None, ge=1, le=2**20, description="random prompts only: tokens of each; without: 8 to 48, unequal"
    )
    kinds: tuple[str, ...] = Field(default=(), description="kinds of prompts to keep: code+prose; without: all")
    num_requests: int = Field(default=16, ge=1, le=10_000, description="requests of a timed pass, each another prompt")
    max_new_tokens: int = Field(default=64, ge=1, description="length limit of an answer")
    concurrency: int = Field(default=1, ge=1, le=1024, description="requests in flight")
    ignore_stop: bool = Field(default=False, description="decode to the length limit whatever is generated (labelled)")
    prompt_seed: Seed = Field(default=0, description="which prompts are chosen")


Tool = Literal["nsys", "ncu", "torch"]
Counters = Literal["all", "bytes"]


class CaptureSpec(Record):
    """How a case is observed: warm-up, repeats of the clean pass, what else gets a pass of its own."""

    ADDED = ("tools", "first_round", "num_rounds", "counted_kernels", "counters", "samples_per_s")

    mode: Literal["none", "stages"] = Field(
        default="stages", description="stages: an attributed pass after the clean one; none"
    )
    tools: tuple[Tool, ...] = Field(default=(), description="nsys, ncu, torch: each in a run of its own, in block 0")
    first_round: int = Field(default=4, ge=0, le=2**20, description="a profiler's window begins with this round")
    num_rounds: int = Field(default=16, ge=1, le=10_000, description="rounds in the window; ncu takes one of them")
    counted_kernels: str = Field(
        default="", description="ncu only: an expression that the whole name of a kernel has to match; without: all"
    )
    counters: Counters = Field(
        default="all", description="ncu only: all, or bytes: time and bytes alone, caches flushed before every kernel"
    )
    samples_per_s: int = Field(
        default=100_000, ge=10, le=200_000, description="nsys only: GPU metrics; fewer where rounds take tens of ms"
    )
    num_warmup_requests: int = Field(default=2, ge=0, le=10_000, description="other prompts, before anything is timed")
    num_rehearsals: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="untimed passes over the measured prompts themselves; without: 1 on a GPU, 0 on a CPU",
    )
    num_clean_passes: int = Field(default=1, ge=1, le=100, description="timed passes without instrumentation")
    parity_prompts: int = Field(default=4, ge=1, description="prompts that are checked against plain decoding first")
    parity_tokens: int = Field(default=24, ge=1, description="tokens of each of them")
    timeout_s: int = Field(default=600, ge=1, description="after so many seconds a case has failed; so has a capture")

    @field_validator("counted_kernels")
    @classmethod
    def _an_expression(cls, expression: str) -> str:
        try:
            re.compile(expression)
        except re.error as error:
            raise ValueError(f"expected a regular expression, got {shown(expression)}: {error}") from error
        return expression


class Case(Record):
    """One point of a plan, run in its own process."""

    arm: str
    engine: EngineSpec
    workload: WorkloadSpec
    capture: CaptureSpec = CaptureSpec()
    block: int = 0  # interleaved repeat: cases of one block are compared with each other
    shown: tuple[str, ...] = ()  # varied fields that the label names even at their default; no part of the case's id

    @field_validator("arm")
    @classmethod
    def _known_arm(cls, arm: str) -> str:
        return known_arm(arm)

    @property
    def label(self) -> str:
        """Arm, what differs from what it usually is on its device, and the concurrency: `ddtree executor=eager c=4`."""
        usual = USUAL_ON_GPU if self.engine.device == "cuda" else {}
        defaults = EngineSpec(**{**usual, **ARMS[self.arm]})
        named = [name for name in LABELLED if getattr(self.engine, name) != getattr(defaults, name)]
        named += [name for name in self.shown if name not in named and name not in ARMS[self.arm]]
        texts = [f"{name}={_text(self.field(name))}" for name in named if name != "concurrency"]
        return " ".join([self.arm, *texts, f"c={self.workload.concurrency}"])

    def field(self, name: str) -> Any:
        """The value of an axis at this case."""
        return getattr(getattr(self, _axis_owner(name)), name)


class Axis(Record):
    """A named list of values to try: a field of `EngineSpec` or `WorkloadSpec`."""

    name: str
    values: tuple[Any, ...]

    @property
    def owner(self) -> Owner:
        return _axis_owner(self.name)


class ExperimentSpec(Record):
    """A question and the cases that answer it: arms x axes, plus one-factor-at-a-time variants of one arm."""

    name: str = Field(min_length=1, max_length=80)
    question: str = Field(min_length=1)
    arms: tuple[str, ...] = Field(default=tuple(ARMS), min_length=1)
    engine: EngineSpec = EngineSpec()
    on_gpu: dict[str, Any] = Field(default={}, description="fields of `engine` that take other values on a GPU")
    workload: WorkloadSpec = WorkloadSpec()
    capture: CaptureSpec = CaptureSpec()
    axes: tuple[Axis, ...] = ()
    ablate_arm: str = "ddtree"
    ablate: tuple[Axis, ...] = ()  # each value replaces one field of `ablate_arm`, the others at their defaults
    num_blocks: int = Field(default=1, ge=1, le=100)
    seed: Seed = 0  # of the order of the cases

    @model_validator(mode="after")
    def _known_arms(self) -> Self:
        for arm in (*self.arms, self.ablate_arm):
            known_arm(arm)
        try:
            EngineSpec.model_validate(self.on_gpu, strict=True)
        except ValidationError as error:
            raise ValueError(f"[on_gpu] {first_message(error)}") from error
        return self


def known_arm(arm: str) -> str:
    """The arm itself; an unknown one is a ValueError that names the closest."""
    if arm not in ARMS:
        raise ValueError(f"unknown arm {shown(arm)}: {did_you_mean(arm, ARMS)}")
    return arm


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


AXIS_MODELS: dict[Owner, type[Record]] = {"engine": EngineSpec, "workload": WorkloadSpec, "capture": CaptureSpec}


def axis_names() -> tuple[str, ...]:
    """Every field that may be an axis."""
    return tuple(name for model in AXIS_MODELS.values() for name in model.model_fields)


def _axis_owner(name: str) -> Owner:
    for owner, model in AXIS_MODELS.items():
        if name in model.model_fields:
            return owner
    raise UserError(f"unknown axis {shown(name)}: {did_you_mean(name, axis_names())}")


def parse_axis(name: str, text: str) -> Axis:
    """`parse_axis('concurrency', '1,4,16')`: values of a command line; `a+b` is one value of a field that is a list."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    return make_axis(name, tuple(part.split("+") for part in parts) if _is_list(name) else parts, is_strict=False)


def make_axis(name: str, values: tuple[Any, ...], *, is_strict: bool = True) -> Axis:
    """An axis whose values have the type of the field it sets; strictly, text does not pass for a number."""
    model = AXIS_MODELS[_axis_owner(name)]
    if not values:
        raise UserError(f"axis '{name}' has no values: expected at least one")
    checked = []
    for value in values:
        given = (value,) if _is_list(name) and isinstance(value, str) else with_tuples(value)
        try:
            checked.append(getattr(model.model_validate({name: given}, strict=is_strict), name))
        except ValidationError as error:
            raise UserError(f"axis '{name}': {complaint(error)}") from error
    return Axis(name=name, values=tuple(dict.fromkeys(checked)))


def _is_list(name: str) -> bool:
    return isinstance(AXIS_MODELS[_axis_owner(name)].model_fields[name].default, tuple)


def with_tuples(value: Any) -> Any:
    """TOML's lists as the tuples that records hold."""
    if isinstance(value, list):
        return tuple(with_tuples(item) for item in value)
    return {key: with_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def first_message(error: ValidationError) -> str:
    """The first complaint of a validation, on one line: where, what is expected, what was got."""
    where = ".".join(str(part) for part in error.errors()[0]["loc"])
    return f"{where}: {complaint(error)}" if where else complaint(error)


# pydantic's error types whose own words a user would not understand
_EXPECTED = {
    "int_parsing": "expected an integer",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "string_too_short": "expected a text that is not empty",
    "string_pattern_mismatch": "expected a plain name",
    "tuple_type": "expected a list",
    "too_short": "expected at least one",
}
_WITHOUT_INPUT = {"missing": "missing", "extra_forbidden": "unknown key"}


def complaint(error: ValidationError) -> str:
    """What is expected and what was got, without where."""
    first = error.errors()[0]
    kind = first["type"]
    if kind in _WITHOUT_INPUT:
        return _WITHOUT_INPUT[kind]
    message = first["msg"].removeprefix("Value error, ")
    if kind in ("value_error", "json_invalid"):
        return message
    expected = _EXPECTED.get(kind)
    if expected is None:
        words = message.replace("Input should be", "expected").replace("String should have", "expected")
        expected = words.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return f"{expected}, got {shown(first['input'])}"


def from_json(model: type[RecordT], text: str, where: str, cure: str = "") -> RecordT:
    """Parse one of our own JSON records; damage is a SchemaError naming the file and, where there is one, the cure."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        words = f"{where}: damaged or from another version: {first_message(error)}"
        raise SchemaError(f"{words}: {cure}" if cure else words) from error
