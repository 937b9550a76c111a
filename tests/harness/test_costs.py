"""Floors against numbers worked out by hand for Kimi-K2.6 in bf16."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.engine.stages import Stage
from ddbench.harness.costs import (
    Cost,
    TypicalRound,
    attention_cost,
    attention_weights,
    draft_cost,
    expert_bytes,
    experts_touched,
    fewest_experts,
    linear_cost,
    materialize_cost,
    stage_costs,
    verify_cost,
)
from ddbench.models.shapes import DRAFTERS, TARGETS, GQAShape, MoEShape
from ddbench.records import ExpertUse, NotMeasured, StageCost

K2, K2_DRAFTER = TARGETS["kimi-k2.6"], DRAFTERS["kimi-k2.6"]
MB, GB = 1e6, 1e9
ONE_TOKEN = TypicalRound(batch=1, width=1, block=8, context=0, committed=1, moved=0)


def test_weights_of_a_layer() -> None:
    assert attention_weights(K2) * 2 == pytest.approx(202 * MB, rel=0.005)
    assert linear_cost(3 * 7168 * 2048, 1, 2).num_bytes == pytest.approx(88 * MB, rel=0.005)
    assert K2.moe is not None
    assert expert_bytes(K2.moe, K2.hidden, 2, is_packed=True) == pytest.approx(24.8 * MB, rel=0.005)
    assert expert_bytes(K2.moe, K2.hidden, 2, is_packed=False) == pytest.approx(88 * MB, rel=0.005)


def test_latent_attention_reads_little_and_computes_much() -> None:
    """Context 8192, 64 nodes, 64 heads: 9.4 MB of latent rows and 73 GFLOP per layer."""
    context = TypicalRound(batch=1, width=64, block=8, context=8192, committed=1, moved=0)
    cost = attention_cost(K2.attention, context, 2)
    assert cost.num_bytes == pytest.approx(9.4 * MB + 64 * 576 * 2, rel=0.005)
    assert cost.num_flops == pytest.approx(73e9, rel=0.005)


def test_materialize_is_weight_traffic() -> None:
    """fc 617 MB and K/V projections 176 MB, whatever the few rows of a round."""
    assert materialize_cost(K2_DRAFTER, 0, 2).num_bytes == pytest.approx((617 + 176) * MB, rel=0.002)
    sixteen = materialize_cost(K2_DRAFTER, 16, 2)
    assert sixteen.num_bytes / materialize_cost(K2_DRAFTER, 0, 2).num_bytes < 1.02
    assert sixteen.num_flops == pytest.approx(2 * 16 * (617 + 176) * MB / 2, rel=0.002)


def test_plain_decoding_of_one_token_on_one_of_eight_ranks() -> None:
    """About 21 to 22 GB: attention and shared experts in full, one routed expert per layer, the head."""
    assert K2.moe is not None
    rank = K2.model_copy(update={"moe": K2.moe.model_copy(update={"num_experts": 48, "top_k": 1})})
    cost = verify_cost(rank, ONE_TOKEN, 2, is_packed=True)
    assert 21 * GB < cost.num_bytes < 22.6 * GB


def test_a_rank_counts_the_experts_it_holds() -> None:
    """48 of 384: one of eight chosen experts per token is here; the router stays whole."""
    rank = TARGETS["k2.6-ep8-rank"]
    assert K2.moe is not None
    assert rank.moe is not None
    assert experts_touched(rank.moe, 1) == pytest.approx(1)
    assert experts_touched(rank.moe, 8) == pytest.approx(7.4, abs=0.05)
    assert experts_touched(rank.moe, 64) == pytest.approx(35.5, abs=0.1)
    assert experts_touched(K2.moe, 8) == pytest.approx(8 * experts_touched(rank.moe, 8))
    whole, share = (verify_cost(shape, ONE_TOKEN, 2, is_packed=True) for shape in (K2, rank))
    assert whole.num_bytes - share.num_bytes == pytest.approx(60 * 7 * 24.8 * MB, rel=0.005)
    assert whole.num_flops - share.num_flops == pytest.approx(60 * 7 * 2 * 3 * 7168 * 2048)
    assert 21 * GB < share.num_bytes < 22.6 * GB


def test_grouped_query_attention_by_hand() -> None:
    shape = GQAShape(num_heads=4, num_kv_heads=2, head_dim=8)
    round_ = TypicalRound(batch=3, width=5, block=4, context=10, committed=2, moved=1)
    cost = attention_cost(shape, round_, 4)
    assert cost == Cost(3 * (10 + 5) * 2 * 2 * 8 * 4, 3 * 5 * 11 * 4 * 4 * 8)


def test_experts_touched_under_a_uniform_router() -> None:
    moe = MoEShape(num_experts=128, top_k=8, expert_width=1)
    assert experts_touched(moe, 1) == pytest.approx(8)
    assert experts_touched(moe, 16) == pytest.approx(82, abs=0.5)
    assert experts_touched(moe, 65) == pytest.approx(126, abs=0.5)


def test_sliding_layers_read_no_more_than_their_window() -> None:
    far = replace(ONE_TOKEN, context=100_000)
    near = replace(ONE_TOKEN, context=2_048)
    one_full_layer = (100_000 - 2_048) * 2 * 8 * 128 * 2
    gap = draft_cost(K2, K2_DRAFTER, far, 2).num_bytes - draft_cost(K2, K2_DRAFTER, near, 2).num_bytes
    assert gap == pytest.approx(one_full_layer)


def test_context_bytes_are_those_that_grow_with_the_context() -> None:
    """All that verify reads more for a longer context is context rows, and they are counted once per request."""
    for name, target in TARGETS.items():
        near = TypicalRound(batch=3, width=9, block=0, context=100, committed=2, moved=1)
        far = replace(near, context=1100)
        one, two = (stage_costs(target, K2_DRAFTER, round_, 2, False, {"verify"})[0] for round_ in (near, far))
        assert not isinstance(one.context_bytes, NotMeasured), name
        assert not isinstance(two.context_bytes, NotMeasured), name
        assert two.num_bytes - one.num_bytes == pytest.approx(two.context_bytes - one.context_bytes, abs=2), name
        assert two.context_bytes == 11 * one.context_bytes


def test_experts_that_only_a_uniform_router_touches_are_an_expectation() -> None:
    """60 layers of K2.6 at 64 tokens: of the whole target 8 experts a layer are sure, of a rank's share none."""
    wide = replace(ONE_TOKEN, width=64)
    for name, touched, sure in (("kimi-k2.6", 8 * 35.5, 8), ("k2.6-ep8-rank", 35.5, 0)):
        (cost,) = stage_costs(TARGETS[name], K2_DRAFTER, wide, 2, True, {"verify"})
        assert cost.expected_bytes == pytest.approx(60 * (touched - sure) * 24.8 * MB, rel=0.01), name
        assert cost.expected_bytes < cost.num_bytes
    for name, target in TARGETS.items():
        for cost in stage_costs(target, K2_DRAFTER, wide, 2, False, set(Stage)):
            has_experts = target.moe is not None and cost.stage == "verify"
            assert bool(cost.expected_bytes) == has_experts, (name, cost.stage)


def used(touched: float, uniform: float, moe: MoEShape) -> ExpertUse:
    return ExpertUse(touched=touched, uniform=uniform, spread=0.0, held=moe.num_held, tokens=64, num_rounds=9)


@pytest.mark.parametrize("name", ["kimi-k2.6", "k2.6-ep8-rank"])
def test_experts_that_were_counted_take_the_place_of_the_expectation(name: str) -> None:
    """As many as a uniform router's: the same floor. One a layer fewer: 60 experts of 24.8 MB less."""
    target, wide = TARGETS[name], replace(ONE_TOKEN, width=64)
    moe = target.moe
    assert moe is not None
    uniform = experts_touched(moe, 64)

    def cost(touched: float, tokens: float = 64) -> StageCost:
        round_ = replace(wide, width=tokens)
        (found,) = stage_costs(
            target, K2_DRAFTER, round_, 2, True, {"verify"}, used(touched, experts_touched(moe, 64), moe)
        )
        return found

    same, fewer = cost(uniform), cost(uniform - 1)
    assert same.fewest_bytes == same.num_bytes
    assert same.num_bytes - fewer.fewest_bytes == pytest.approx(60 * expert_bytes(moe, 7168, 2, True), abs=1)
    assert (fewer.num_bytes, fewer.expected_bytes) == (same.num_bytes, same.expected_bytes), "exact, from shapes"
    assert (same.unsure_bytes, fewer.unsure_bytes) == (0, 0)
    half = cost(uniform / 2, tokens=8)  # another width than was counted: the same share of the uniform router's
    beyond = experts_touched(moe, 8) / 2 - fewest_experts(moe)
    assert half.counted_bytes == pytest.approx(60 * beyond * expert_bytes(moe, 7168, 2, True), abs=1)
    assert cost(0.0).counted_bytes == 0, "never less than what any tokens touch"
    all_held = 60 * (moe.num_held - fewest_experts(moe)) * expert_bytes(moe, 7168, 2, True)
    assert cost(3.0 * moe.num_held).counted_bytes == pytest.approx(all_held, abs=1), "nor more than are held"


def test_without_a_count_the_expectation_stands() -> None:
    wide = replace(ONE_TOKEN, width=64)
    for name, target in TARGETS.items():
        for cost in stage_costs(target, K2_DRAFTER, wide, 2, False, set(Stage)):
            assert isinstance(cost.counted_bytes, NotMeasured), (name, cost.stage)
            assert (cost.fewest_bytes, cost.unsure_bytes) == (cost.num_bytes, cost.expected_bytes)
    moe = K2.moe
    assert moe is not None
    (dense,) = stage_costs(TARGETS["tiny-gqa"], K2_DRAFTER, wide, 2, False, {"verify"}, used(9, 10, moe))
    assert dense.fewest_bytes == dense.num_bytes, "a target without routed experts has none to count"


def test_one_token_of_a_whole_target_leaves_nothing_to_expect() -> None:
    (cost,) = stage_costs(K2, K2_DRAFTER, ONE_TOKEN, 2, True, {"verify"})
    assert cost.expected_bytes == pytest.approx(0, abs=2)


@pytest.mark.parametrize(("experts", "held", "chosen"), [(6, 6, 2), (6, 3, 2), (6, 3, 4), (5, 4, 3), (4, 1, 4)])
def test_the_fewest_experts_are_those_of_the_worst_choice(experts: int, held: int, chosen: int) -> None:
    """Every choice of a token, tried; all tokens may choose alike."""
    moe = MoEShape(num_experts=experts, top_k=chosen, expert_width=1, num_local_experts=held)
    choices = itertools.combinations(range(experts), chosen)
    assert fewest_experts(moe) == min(sum(expert < held for expert in choice) for choice in choices)
    assert fewest_experts(moe) <= experts_touched(moe, 1) + 1e-9


def test_queries_by_hand() -> None:
    """Absorbed queries of 64 tokens of K2.6: 61 layers, 64 heads, 512 + 64 numbers; about one context of 4096 rows."""
    wide = replace(ONE_TOKEN, width=64, context=4096)
    (cost,) = stage_costs(K2, K2_DRAFTER, wide, 2, True, {"verify"})
    assert cost.query_bytes == 64 * 61 * 64 * 576 * 2
    assert cost.query_bytes == cost.context_bytes


def test_only_stages_that_ran_have_a_floor() -> None:
    costs = stage_costs(K2, K2_DRAFTER, ONE_TOKEN, 2, True, {"verify", "accept", "prefill"})
    assert [cost.stage for cost in costs] == ["verify", "accept"]
    without_drafter = stage_costs(K2, K2_DRAFTER, replace(ONE_TOKEN, block=0), 2, True, set(Stage))
    assert {"draft", "materialize", "tree_build"}.isdisjoint(cost.stage for cost in without_drafter)
    assert "batch 1, width 1" in costs[0].basis


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(DRAFTERS)),
    batch=st.integers(1, 32),
    width=st.integers(1, 65),
    context=st.integers(0, 4096),
)
def test_floors_grow_with_the_round_but_weights_are_read_once(name: str, batch: int, width: int, context: int) -> None:
    target, drafter = TARGETS[name], DRAFTERS[name]
    small = TypicalRound(batch, width, drafter.block_size, context, 2, 1)
    large = replace(small, batch=2 * batch)
    for one, two in zip(
        stage_costs(target, drafter, small, 2, False, set(Stage)),
        stage_costs(target, drafter, large, 2, False, set(Stage)),
        strict=True,
    ):
        assert one.num_bytes <= two.num_bytes <= 2 * one.num_bytes + 2
        assert two.num_flops == pytest.approx(2 * one.num_flops, abs=2)
