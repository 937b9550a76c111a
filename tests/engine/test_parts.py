"""Which choices exist, which go together, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ddbench.engine import tree_build as tree_builders
from ddbench.engine.engine import setting_of
from ddbench.engine.parts import PARTS, Parts, SpeculativeParts, absence, build_parts, supports
from ddbench.engine.types import CaseFacts, Part
from ddbench.errors import UnsupportedVariant
from ddbench.models.kernel_set import TORCH
from ddbench.models.shapes import DRAFTERS, TARGETS
from ddbench.reference import draft_topk as candidates
from ddbench.reference import tree_build as trees
from ddbench.spec import ARMS, PART_FIELDS, UNUSED, EngineSpec

TARGET, DRAFTER = TARGETS["tiny-gqa"], DRAFTERS["tiny-gqa"]


def reason(arm: str = "ddtree", drafter=DRAFTER, **changes: object) -> str | None:
    return supports(EngineSpec(**{**ARMS[arm], **changes}), TARGET, drafter)  # type: ignore[arg-type]


def test_the_tables_hold_the_spec_fields_and_their_entries_say_what_they_are():
    assert tuple(PARTS) == PART_FIELDS
    for table in PARTS.values():
        for entry in table.values():
            assert issubclass(entry, Part)
            assert entry.__doc__ or entry.__mro__[1].__doc__


def test_defaults_and_arms_name_existing_variants_that_go_together():
    for arm in ARMS:
        assert reason(arm) is None


@pytest.mark.parametrize(
    ("arm", "changes", "text"),
    [
        ("ddtree", {"attention": "tree_triton"}, "attention 'tree_triton' needs a CUDA device"),
        ("ar", {"executor": "round_graph"}, "executor 'round_graph' needs a CUDA device"),
        ("ar", {"kernels": "triton"}, "kernels 'triton' needs a CUDA device"),
        ("ddtree", {"device": "cuda", "attention": "tree_triton"}, "attention 'tree_triton' needs kernels 'triton'"),
        ("ar", {"device": "cuda", "executor": "stage_graphs"}, "executor 'stage_graphs' needs kernels 'triton'"),
        ("ddtree", {"tree_compile": "causal"}, "'causal' serves chains only, not tree_build 'heap'"),
        ("ddtree", {"materialize": UNUSED}, "materialize is 'none', but draft 'dflash' needs one of: sequential"),
        ("ddtree", {"draft": "prompt_lookup"}, "materialize 'fused' has nothing to do with draft 'prompt_lookup'"),
        ("ar", {"tree_build": "heap"}, "tree_build 'heap' has nothing to do with draft 'none'"),
        ("chain", {"draft": UNUSED}, "materialize 'fused' has nothing to do with draft 'none'"),
        ("ar", {"attention": UNUSED}, "attention is 'none'"),
        ("ar", {"sampling": UNUSED}, "sampling is 'none'"),
        ("chain", {"block_size": 6}, "block_size 6 is larger than the block the drafter was trained with (5)"),
    ],
)
def test_misfits_have_a_reason(arm, changes, text):
    assert text in (reason(arm, **changes) or "")


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("executor", list(PARTS["executor"]))
def test_on_a_gpu_with_its_kernels_everything_can_be_had(arm, executor):
    for attention in PARTS["attention"]:
        changes = {"device": "cuda", "kernels": "triton", "attention": attention, "executor": executor}
        assert reason(arm, **changes) is None


def test_what_needs_a_gpu_is_out_of_reach_on_a_cpu_and_nothing_else_is():
    out_of_reach = set()
    for field, table in PARTS.items():
        for name in table:
            spec = EngineSpec(**{field: name})
            assert absence(spec.model_copy(update={"device": "cuda"})) is None
            if absence(spec) is not None:
                assert absence(spec) == f"{field} '{name}' needs a CUDA device"
                out_of_reach.add(name)
    assert out_of_reach == {"tree_triton", "graph", "stage_graphs", "round_graph"}


def test_a_target_without_a_drafter_runs_the_model_free_arms_only():
    assert reason("ar", drafter=None) is None
    assert reason("prompt_lookup", drafter=None) is None
    assert "no DFlash drafter" in (reason("chain", drafter=None) or "")


def test_model_free_drafts_may_use_larger_blocks():
    assert reason("prompt_lookup", block_size=16) is None


@pytest.mark.parametrize("field", PART_FIELDS)
def test_an_unknown_name_raises_with_the_closest_one(field):
    known = next(iter(PARTS[field]))
    with pytest.raises(UnsupportedVariant, match=f"unknown {field} '{known}x': did you mean '{known}'"):
        reason(**{field: known + "x"})


def test_building_refuses_what_cannot_serve(gqa_models):
    spec = EngineSpec(target="tiny-gqa", tree_compile="causal")
    with pytest.raises(UnsupportedVariant, match="chains only"):
        build_parts(setting_of(spec, gqa_models))


def test_an_arm_is_built_from_the_parts_it_needs_and_no_others(gqa_models):
    kinds = {arm: build_parts(setting_of(EngineSpec(target="tiny-gqa", **ARMS[arm]), gqa_models)) for arm in ARMS}
    assert type(kinds["ar"]) is Parts
    assert kinds["ar"].verify_width == 1
    assert isinstance(kinds["prompt_lookup"], SpeculativeParts)
    assert kinds["prompt_lookup"].materialize is None
    assert kinds["chain"].verify_width == kinds["chain_via_tree"].verify_width == 5
    assert kinds["ddtree"].verify_width == 33


@pytest.mark.parametrize("build", ["heap", "device"])
def test_more_candidates_than_a_kernel_keeps_are_chosen_in_plain_torch(build):
    """Of the named set alone, and on record; trees stay those of the specification."""
    facts = CaseFacts(EngineSpec(tree_build=build, node_budget=300), TARGET, DRAFTER)
    refusing = replace(TORCH, name="other", draft_topk=None)
    wide = PARTS["tree_build"][build](SimpleNamespace(facts=facts, kernels=refusing))
    assert wide.plain_ops == ("draft_topk",)
    logits = torch.randn(2, 3, 400, generator=torch.Generator().manual_seed(0))
    tree = wide(logits)
    tokens, parents, *_ = trees.tree_build(*candidates.draft_topk(logits, 300), 300)
    assert torch.equal(tree.tokens, tokens)
    assert torch.equal(tree.parents, parents)
    for kernels, budget in ((TORCH, 300), (refusing, 256)):
        facts = CaseFacts(EngineSpec(tree_build=build, node_budget=budget), TARGET, DRAFTER)
        assert PARTS["tree_build"][build](SimpleNamespace(facts=facts, kernels=kernels)).plain_ops == ()


def test_what_the_kernels_can_hold_is_what_they_say():
    """The engine names their limits again, as it must not import what needs Triton."""
    pytest.importorskip("triton")
    from ddbench.kernels import draft_topk_triton, tree_build_triton

    assert tree_builders.MOST_TRITON_NODES == tree_build_triton.MAX_NODE_BUDGET
    assert tree_builders.MOST_TRITON_CANDIDATES == draft_topk_triton.MAX_WIDTH
