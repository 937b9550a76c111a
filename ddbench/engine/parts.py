"""The variant tables gathered, and the rules by which a spec's choices go together.

CLI choices, validation, test parametrisation and the ablation report all derive from `PARTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ddbench.engine.attention import ATTENTIONS
from ddbench.engine.batch import Batch
from ddbench.engine.draft import DRAFTS
from ddbench.engine.executor import EXECUTORS, Executor
from ddbench.engine.launch import Launch
from ddbench.engine.materialize import MATERIALIZERS, Materializer
from ddbench.engine.prefill import PREFILLS, EagerPrefill
from ddbench.engine.sampling import SAMPLERS, Sampler
from ddbench.engine.tree_build import TREE_BUILDERS
from ddbench.engine.tree_compile import TREE_COMPILERS
from ddbench.engine.types import CaseFacts, DraftTree, Part, Setting
from ddbench.errors import UnsupportedVariant, did_you_mean
from ddbench.models.inputs import VerifyAttention, VerifyInputs
from ddbench.models.kernel_set import KernelSet
from ddbench.models.shapes import DrafterShape, TargetShape
from ddbench.models.weights import DRAFTERLESS
from ddbench.spec import PART_FIELDS, UNUSED, EngineSpec

PARTS: dict[str, Mapping[str, type[Part]]] = {
    "draft": DRAFTS,
    "materialize": MATERIALIZERS,
    "tree_build": TREE_BUILDERS,
    "tree_compile": TREE_COMPILERS,
    "attention": ATTENTIONS,
    "sampling": SAMPLERS,
    "prefill": PREFILLS,
    "executor": EXECUTORS,
}  # keyed by EngineSpec field
assert tuple(PARTS) == PART_FIELDS


class Draft(Protocol):
    def __call__(self, batch: Batch) -> torch.Tensor: ...


class TreeBuilder(Protocol):
    num_slots: int  # N, tokens per request in the target forward

    def __call__(self, logits: torch.Tensor, launch: Launch) -> DraftTree: ...


class TreeCompiler(Protocol):
    moves_rows: bool  # whether accepted rows have to be moved into path order at commit

    def __call__(self, tree: DraftTree, batch: Batch) -> VerifyInputs: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What an autoregressive engine is made of."""

    attention: VerifyAttention
    sampling: Sampler
    prefill: EagerPrefill
    executor: Executor
    kernels: KernelSet

    @property
    def verify_width(self) -> int:
        """Tokens per request in the target forward."""
        return 1

    @property
    def has_drafter(self) -> bool:
        """The target's features are asked for: a drafter lives on them."""
        return False


@dataclass(frozen=True, slots=True)
class SpeculativeParts(Parts):
    """What a speculative engine is made of."""

    draft: Draft
    tree_build: TreeBuilder
    tree_compile: TreeCompiler
    materialize: Materializer | None  # None: no drafter runs

    @property
    def verify_width(self) -> int:
        return self.tree_build.num_slots

    @property
    def has_drafter(self) -> bool:
        return self.materialize is not None


def supports(spec: EngineSpec, target: TargetShape, drafter: DrafterShape | None) -> str | None:
    """None, or why the spec's choices cannot serve this target. A name that nobody knows raises UnsupportedVariant."""
    for field, table in PARTS.items():
        name = getattr(spec, field)
        if name not in table and name != UNUSED:
            raise UnsupportedVariant(f"unknown {field} '{name}': {did_you_mean(name, table)}")
    return absence(spec) or _misfit(spec) or _part_reason(CaseFacts(spec, target, drafter))


def absence(spec: EngineSpec) -> str | None:
    """None, or which of the spec's choices cannot be had on its device, whatever the others are."""
    if spec.device == "cuda":
        return None
    for field, table in PARTS.items():
        name = getattr(spec, field)
        if name in table and table[name].needs_cuda:
            return f"{field} '{name}' needs a CUDA device"
    return "kernels 'triton' needs a CUDA device" if spec.kernels == "triton" else None


def _misfit(spec: EngineSpec) -> str | None:
    """Why the choices do not go together as an arm."""
    needed = {"attention", "sampling", "prefill", "executor"}
    if spec.draft != UNUSED:
        needed |= {"draft", "tree_build", "tree_compile"}
    if spec.draft not in DRAFTERLESS:
        needed.add("materialize")
    for field in PART_FIELDS:
        is_used = getattr(spec, field) != UNUSED
        if field in needed and not is_used:
            return f"{field} is '{UNUSED}', but draft '{spec.draft}' needs one of: {', '.join(PARTS[field])}"
        if is_used and field not in needed:
            return f"{field} '{getattr(spec, field)}' has nothing to do with draft '{spec.draft}': set it to '{UNUSED}'"
    return None


def _part_reason(facts: CaseFacts) -> str | None:
    for field, table in PARTS.items():
        name = getattr(facts.spec, field)
        reason = None if name == UNUSED else table[name].supports(facts)
        if reason is not None:
            return reason
    return None


def build_parts(setting: Setting) -> Parts:
    """The parts that the spec names, built; UnsupportedVariant where they cannot serve."""
    facts = setting.facts
    reason = supports(facts.spec, facts.target, facts.drafter)
    if reason is not None:
        raise UnsupportedVariant(reason)
    built: dict[str, Any] = {
        field: None if (name := getattr(facts.spec, field)) == UNUSED else table[name](setting)
        for field, table in PARTS.items()
    }
    if built["draft"] is None:
        return Parts(built["attention"], built["sampling"], built["prefill"], built["executor"], setting.kernels)
    return SpeculativeParts(**built, kernels=setting.kernels)
