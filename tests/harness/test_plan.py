"""Plans: which cases an experiment means, in which order, and why some are left out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.errors import UserError
from ddbench.experiment_file import experiment_files, experiment_from_mapping, find_experiment
from ddbench.harness.plan import Capabilities, engine_capabilities, make_plan, reference_key, with_overrides
from ddbench.spec import ARMS, Axis, Case, ExperimentSpec, make_axis


def axes(**values: tuple[object, ...]) -> tuple[Axis, ...]:
    return tuple(make_axis(name, given_values) for name, given_values in values.items())


def count_by_arm(cases: tuple[Case, ...]) -> Counter[str]:
    return Counter(case.arm for case in cases)


def test_an_axis_over_a_pinned_field_does_not_multiply_the_arm(can: Capabilities, experiment: ExperimentSpec) -> None:
    plan = make_plan(with_overrides(experiment, axes=axes(node_budget=(8, 16), concurrency=(1, 4))), can)
    assert count_by_arm(plan.cases) == {"ar": 2, "prompt_lookup": 2, "chain": 2, "chain_via_tree": 2, "ddtree": 4}
    assert {case.engine.node_budget for case in plan.cases if case.arm == "ddtree"} == {8, 16}


def test_every_case_holds_what_its_arm_pins(can: Capabilities, experiment: ExperimentSpec) -> None:
    wide = with_overrides(experiment, axes=axes(tree_build=("heap", "device"), materialize=("sequential", "fused")))
    plan = make_plan(wide, can)
    assert all(getattr(case.engine, k) == v for case in plan.cases for k, v in ARMS[case.arm].items())


def test_ablation_changes_one_field_at_every_axis_point(can: Capabilities, experiment: ExperimentSpec) -> None:
    ablated = experiment.model_copy(
        update={
            "axes": axes(concurrency=(1, 4)),
            "ablate": axes(materialize=("sequential", "fused"), tree_build=("device",)),
        }
    )
    plan = make_plan(ablated, can)
    trees = [case for case in plan.cases if case.arm == "ddtree"]
    found = {(c.workload.concurrency, c.engine.materialize, c.engine.tree_build) for c in trees}
    expected = {("fused", "heap"), ("sequential", "heap"), ("fused", "device")}
    assert found == {(c, *rest) for c in (1, 4) for rest in expected}
    assert len(trees) == len(found), "the variant that equals the default is the arm itself"


def test_ablating_what_defines_the_arm_is_refused(can: Capabilities, experiment: ExperimentSpec) -> None:
    with pytest.raises(UserError, match=r"tree_compile.*defines the arm 'ddtree'"):
        make_plan(experiment.model_copy(update={"ablate": axes(tree_compile=("causal",))}), can)


def test_a_variant_that_lacks_a_device_is_skipped_with_its_reason(
    can: Capabilities, experiment: ExperimentSpec
) -> None:
    plan = make_plan(experiment.model_copy(update={"ablate": axes(executor=("round_graph",))}), can)
    assert [(s.label, s.reason) for s in plan.skipped] == [
        ("ddtree executor=round_graph c=1", "executor 'round_graph' needs a GPU")
    ]
    assert len(plan.cases) == len(ARMS)


def test_an_unsupported_combination_is_skipped_with_its_reason(can: Capabilities, experiment: ExperimentSpec) -> None:
    plan = make_plan(with_overrides(experiment, axes=axes(node_budget=(32, 64))), can)
    assert [(s.arm, s.reason) for s in plan.skipped] == [("ddtree", "a budget of 64 is too much")]


@pytest.mark.parametrize(("field", "name", "hint"), [("tree_build", "heep", "heap"), ("executor", "eagre", "eager")])
def test_an_unknown_variant_names_the_closest(
    can: Capabilities, experiment: ExperimentSpec, field: str, name: str, hint: str
) -> None:
    with pytest.raises(UserError, match=f"{field}.*'{name}'.*did you mean '{hint}'") as caught:
        make_plan(with_overrides(experiment, axes=axes(**{field: (name,)})), can)
    assert caught.value.exit_code == 2


def test_an_unknown_target_is_refused(can: Capabilities, experiment: ExperimentSpec) -> None:
    with pytest.raises(UserError, match="unknown target 'gqa'"):
        make_plan(with_overrides(experiment, engine={"target": "gqa"}), can)


def test_a_run_has_one_device(can: Capabilities, experiment: ExperimentSpec) -> None:
    with pytest.raises(UserError, match="one device"):
        make_plan(with_overrides(experiment, axes=axes(device=("cpu", "cuda"))), can)


def test_fields_that_are_never_read_do_not_multiply_a_case(can: Capabilities, experiment: ExperimentSpec) -> None:
    plan = make_plan(with_overrides(experiment, axes=axes(temperature=(0.5, 1.0), block_size=(3, 4))), can)
    assert count_by_arm(plan.cases) == {"ar": 1, "prompt_lookup": 2, "chain": 2, "chain_via_tree": 2, "ddtree": 2}


def test_the_same_seed_gives_the_same_order_and_another_seed_the_same_cases(
    can: Capabilities, experiment: ExperimentSpec
) -> None:
    orders = [[c.label for c in make_plan(with_overrides(experiment, seed=seed), can).cases] for seed in range(8)]
    again = [[c.label for c in make_plan(with_overrides(experiment, seed=seed), can).cases] for seed in range(8)]
    assert orders == again
    assert len({tuple(order) for order in orders}) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_blocks_are_counterbalanced(can: Capabilities, experiment: ExperimentSpec) -> None:
    """H102: the second of two blocks runs backwards, so that a steady drift cancels in every pair."""
    plan = make_plan(with_overrides(experiment, axes=axes(concurrency=(1, 4)), num_blocks=4), can)
    blocks = [[c.label for c in group] for _, group in itertools.groupby(plan.cases, key=lambda case: case.block)]
    assert len(blocks) == 4
    assert blocks[1] == blocks[0][::-1]
    assert blocks[3] == blocks[2][::-1]
    assert blocks[0] != blocks[2], "later pairs of blocks are shuffled anew"


def test_plain_decoding_comes_first_where_others_are_held_against_it(
    can: Capabilities, experiment: ExperimentSpec
) -> None:
    plan = make_plan(with_overrides(experiment, axes=axes(concurrency=(1, 4, 16))), can)
    groups = [list(group) for _, group in itertools.groupby(plan.cases, key=reference_key)]
    assert len(groups) == 3, "cases of one workload stand together"
    assert all(group[0].arm == "ar" for group in groups)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    arms=st.lists(st.sampled_from(sorted(ARMS)), min_size=1, max_size=5),
    budgets=st.lists(st.sampled_from([0, 4, 8, 64]), min_size=1, max_size=3),
    builders=st.lists(st.sampled_from(["heap", "device"]), min_size=1, max_size=2),
    num_blocks=st.integers(1, 3),
)
def test_every_point_is_either_run_once_per_block_or_skipped_once(
    arms: list[str], budgets: list[int], builders: list[str], num_blocks: int
) -> None:
    from ddbench.spec import EngineSpec

    can = Capabilities(
        variants={"draft": ("dflash", "prompt_lookup"), "materialize": ("fused",), "tree_build": ("chain", *builders),
                  "tree_compile": ("causal", "ancestors"), "attention": ("dense_mask",), "sampling": ("greedy",),
                  "prefill": ("eager",), "executor": ("eager",)},
        absence=lambda spec: None,
        check_target=lambda name: None,
        supports=lambda spec: "too wide" if spec.node_budget == 64 else None,
    )  # fmt: skip
    base = ExperimentSpec(name="x", question="?", engine=EngineSpec(target="tiny-gqa"))
    wide = with_overrides(
        base, arms=arms, axes=axes(node_budget=tuple(budgets), tree_build=tuple(builders)), num_blocks=num_blocks
    )
    if "ddtree" in arms and set(budgets) == {64}:
        with pytest.raises(UserError, match="too wide"):
            make_plan(wide, can)
        return
    plan = make_plan(wide, can)
    labels = [(case.block, case.label) for case in plan.cases]
    assert len(set(labels)) == len(labels)
    open_points = {(b, t) for b in budgets for t in builders} if "ddtree" in arms else set()
    expected_per_block = len(set(arms) - {"ddtree"}) + sum(budget != 64 for budget, _ in open_points)
    assert len(plan.cases) == num_blocks * expected_per_block
    assert len(plan.skipped) == sum(budget == 64 for budget, _ in open_points)


def test_command_line_axes_replace_or_add(can: Capabilities, experiment: ExperimentSpec) -> None:
    base = experiment.model_copy(update={"axes": axes(concurrency=(1, 4), node_budget=(8,))})
    changed = with_overrides(base, axes=axes(concurrency=(2,), tree_build=("device",)), arms=("ddtree", "ddtree"))
    assert {axis.name: axis.values for axis in changed.axes} == {
        "node_budget": (8,),
        "concurrency": (2,),
        "tree_build": ("device",),
    }
    assert [case.label for case in make_plan(changed, can).cases] == ["ddtree tree_build=device node_budget=8 c=2"]


def test_leaving_out_the_ablated_arm_leaves_out_its_variants(can: Capabilities, experiment: ExperimentSpec) -> None:
    ablated = experiment.model_copy(update={"ablate": axes(tree_build=("device",))})
    plan = make_plan(with_overrides(ablated, arms=("ar", "chain")), can)
    assert count_by_arm(plan.cases) == {"ar": 1, "chain": 1}


def test_a_swept_field_is_named_in_every_label(can: Capabilities, experiment: ExperimentSpec) -> None:
    swept = with_overrides(experiment, arms=("ddtree", "ar"), axes=axes(node_budget=(16, 32), max_new_tokens=(4, 8)))
    labels = {case.label for case in make_plan(swept, can).cases}
    assert "ddtree node_budget=32 max_new_tokens=4 c=1" in labels
    assert "ar max_new_tokens=8 c=1" in labels
    assert len(labels) == 6


def test_a_gpu_runs_its_own_kernels_unless_others_were_asked_for(can: Capabilities, experiment: ExperimentSpec) -> None:
    def kernels_of(base: ExperimentSpec, device: str, **changed: tuple[object, ...]) -> set[str]:
        plan = make_plan(with_overrides(base, axes=axes(**changed), engine={"device": device}), can)
        return {case.engine.kernels for case in plan.cases}

    plain = experiment.model_copy(
        update={"engine": experiment.engine.model_validate({"target": "tiny-gqa", "kernels": "torch"})}
    )
    assert kernels_of(experiment, "cpu") == {"torch"}
    assert kernels_of(experiment, "cuda") == {"triton"}
    assert kernels_of(plain, "cuda") == {"torch"}
    assert kernels_of(experiment, "cuda", kernels=("torch",)) == {"torch"}
    assert kernels_of(experiment, "cuda", kernels=("torch", "triton")) == {"torch", "triton"}
    varied = experiment.model_copy(update={"axes": axes(kernels=("torch",))})
    assert kernels_of(varied, "cuda") == {"torch"}


def test_a_variant_that_no_part_names_is_told_from_its_arm_by_its_label(
    can: Capabilities, experiment: ExperimentSpec
) -> None:
    ablated = experiment.model_copy(update={"ablate": axes(kernels=("torch", "triton"), tree_build=("heap", "device"))})
    plan = make_plan(with_overrides(ablated, engine={"device": "cuda"}), can)
    labels = [case.label for case in plan.cases if case.arm == "ddtree"]
    unusual = "attention=dense_mask prefill=eager executor=eager"  # of an engine on a GPU; it builds trees there
    heap = f"ddtree tree_build=heap {unusual}"
    assert sorted(labels) == [f"ddtree {unusual} c=1", f"{heap} c=1", f"{heap} kernels=torch c=1"]
    again = make_plan(with_overrides(ablated, engine={"device": "cuda"}, axes=axes(seed=(1, 2))), can)
    assert len({case.label for case in again.cases}) == len(again.cases)


def test_on_a_cpu_what_needs_a_gpu_is_skipped_and_on_a_gpu_nothing_is() -> None:
    found = find_experiment("default")
    on_gpu = make_plan(with_overrides(found, engine={"device": "cuda"}), engine_capabilities())
    assert on_gpu.skipped == ()
    on_cpu = make_plan(with_overrides(found, engine={"device": "cpu"}), engine_capabilities())
    assert len(on_cpu.cases) + len(on_cpu.skipped) == len(on_gpu.cases)
    assert all(one.reason.endswith("needs a CUDA device") for one in on_cpu.skipped)
    assert {word for one in on_cpu.skipped for word in one.label.split()} >= {
        "attention=tree_triton", "executor=stage_graphs", "executor=round_graph",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(experiment_files()))
def test_every_shipped_experiment_plans(name: str) -> None:
    plan = make_plan(find_experiment(name), engine_capabilities())
    assert plan.cases
    labels = [(case.block, case.label) for case in plan.cases]
    assert len(set(labels)) == len(labels)
    assert "ar" in {case.arm for case in plan.cases}


@pytest.mark.parametrize("name", sorted(experiment_files()))
def test_every_shipped_experiment_has_requests_for_its_batches(name: str) -> None:
    """A concurrency that no number of requests reaches is refused before anything runs."""
    experiment = find_experiment(name)
    sizes = [size for axis in experiment.axes if axis.name == "concurrency" for size in axis.values]
    assert max([experiment.workload.concurrency, *sizes]) <= experiment.workload.num_requests


def test_the_default_experiment_ablates_every_part_that_ddtree_leaves_open() -> None:
    plan = make_plan(find_experiment("default"), engine_capabilities())
    assert set(ARMS) <= {case.arm for case in plan.cases}
    changed = {word.split("=")[0] for s in (*plan.cases, *plan.skipped) for word in s.label.split() if "=" in word}
    assert {"materialize", "tree_build", "attention", "sampling", "executor"} <= changed


def test_what_an_experiment_says_of_a_gpu_counts_there_alone(can: Capabilities, experiment: ExperimentSpec) -> None:
    """And gives way to a word of the command line, fixed or as an axis."""
    told = experiment.model_copy(update={"on_gpu": {"executor": "round_graph", "dtype": "bfloat16"}})
    assert with_overrides(told, engine={"device": "cpu"}).engine == told.engine.model_copy(update={"device": "cpu"})
    engine = with_overrides(told, engine={"device": "cuda"}).engine
    assert (engine.executor, engine.dtype, engine.kernels) == ("round_graph", "bfloat16", "triton")
    engine = with_overrides(told, engine={"device": "cuda", "dtype": "float32"}).engine
    assert (engine.executor, engine.dtype) == ("round_graph", "float32")
    wide = with_overrides(told, engine={"device": "cpu"}, axes=axes(executor=("eager",)))
    assert {case.engine.executor for case in make_plan(wide, can).cases} == {"eager"}


def test_what_an_experiment_says_of_a_gpu_is_checked_as_it_is_read() -> None:
    for fields, fault in (({"exekutor": "eager"}, "unknown key"), ({"node_budget": "many"}, "expected an integer")):
        data = {"question": "?", "on_gpu": fields}
        with pytest.raises(UserError, match=fault):
            experiment_from_mapping(data, name="x", where="x.toml")
