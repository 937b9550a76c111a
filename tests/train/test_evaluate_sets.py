"""What is run on prompt sets, and how it is counted set by set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddbench.engine.parts import supports
from ddbench.engine.types import Request
from ddbench.errors import UserError
from ddbench.harness.observe import PassRows
from ddbench.harness.parity import NEAR_TIE, next_token_logits
from ddbench.models.shapes import DRAFTERS, TARGETS
from ddbench.models.weights import random_models
from ddbench.records import RequestRecord, RoundRecord
from ddbench.spec import EngineSpec
from ddbench.train.evaluate_sets import RESULT, begun, near_ties, set_facts, settings, table


def rows() -> PassRows:
    requests = [
        RequestRecord(
            pass_name="clean", request_id=i, prompt_id=f"{i}", kind=kind, num_prompt_tokens=3,
            tokens=tuple(range(i, i + 20)), num_rounds=1, finish_reason="length",
            admitted_ns=0, first_token_ns=1, last_token_ns=2,
        )
        for i, kind in enumerate(("humaneval", "mt-bench"))
    ]  # fmt: skip
    rounds = [
        RoundRecord(
            pass_name="clean", step=0, request_id=i, request_round=0, num_nodes=7, num_accepted=accepted,
            num_emitted=accepted + 1, num_repeated=0, expected_length=1.0, is_identity_path=True,
        )
        for i, accepted in ((0, 3), (0, 1), (1, 0))
    ]  # fmt: skip
    return PassRows(requests, rounds, [], [], {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_setting_is_one_that_the_engine_serves(device: str):
    fast = {"kernels": "triton", "attention": "tree_triton"} if device == "cuda" else {}
    base = EngineSpec(target="tiny-gqa", device=device, **fast)
    found = dict(settings(base, "8,16", "0,1", "eager" if device == "cpu" else "round_graph"))
    assert list(found) == [
        "ar T=0", "prompt_lookup T=0", "chain T=0", "ddtree 8 T=0", "ddtree 16 T=0",
        "prompt_lookup T=1", "chain T=1", "ddtree 8 T=1", "ddtree 16 T=1",
    ]  # fmt: skip
    for spec in found.values():
        reason = supports(spec, TARGETS["tiny-gqa"], DRAFTERS["tiny-gqa"])
        assert reason is None or "CUDA device" in reason or "GPU" in reason
    assert found["chain T=1"].sampling == "stochastic"
    assert found["prompt_lookup T=1"].executor == "eager"
    assert found["ddtree 8 T=0"].tree_build == ("device" if device == "cuda" else "heap")


@pytest.mark.parametrize("numbers", ["8,many", "", "8,", "0", "-3", "8.5", "nan", "inf"])
def test_budgets_that_are_no_whole_numbers_are_named(numbers: str):
    with pytest.raises(UserError, match="--budgets"):
        list(settings(EngineSpec(target="tiny-gqa"), numbers, "0", "eager"))


def test_a_budget_beyond_what_a_spec_holds_is_named():
    with pytest.raises(UserError, match="ddtree 99999999: node_budget"):
        list(settings(EngineSpec(target="tiny-gqa"), "99999999", "0", "eager"))


@pytest.mark.parametrize("numbers", ["warm", "", "-1", "nan", "inf"])
def test_temperatures_that_are_none_are_named(numbers: str):
    with pytest.raises(UserError, match="--temperatures"):
        list(settings(EngineSpec(target="tiny-gqa"), "8", numbers, "eager"))


def test_sets_are_counted_apart_and_together():
    truths = {row.request_id: row.tokens for row in rows().requests}
    code, chat, both = (set_facts(rows(), name, truths) for name in ("humaneval", "mt-bench", "all"))
    assert code is not None
    assert chat is not None
    assert both is not None
    assert (code["tau"], chat["tau"], both["tau"]) == (3.0, 1.0, round(7 / 3, 4))
    assert both["tau_macro"] == 2.0
    assert both["equal_to_ar"] == 2
    assert set_facts(rows(), "gsm8k-100", truths) is None
    text = table({"requests": {"humaneval": 1}, "settings": {"chain T=0": {"humaneval": code, "all": both}}})
    assert "| chain T=0 | 2 | 3 | 3 |" in text
    assert text.count("## ") == 2


def test_a_result_of_other_questions_is_not_gone_on_with(tmp_path: Path):
    assert begun(tmp_path, {"sets": "humaneval"}) == {"asked": {"sets": "humaneval"}, "settings": {}}
    (tmp_path / RESULT).write_text(json.dumps({"asked": {"sets": "humaneval"}, "settings": {"chain T=0": {}}}))
    assert list(begun(tmp_path, {"sets": "humaneval"})["settings"]) == ["chain T=0"]
    with pytest.raises(UserError, match="take another --out"):
        begun(tmp_path, {"sets": "mt-bench"})


@pytest.mark.parametrize("text", ["{", "[]", "{}", "\xff"])
def test_a_damaged_result_is_named_with_what_to_do(tmp_path: Path, text: str):
    (tmp_path / RESULT).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=f"{RESULT}: .*take another --out"):
        begun(tmp_path, {"sets": "humaneval"})


def test_an_output_that_leaves_plain_decoding_at_a_near_tie_is_counted_as_such():
    """In FP32 no margin is tolerated, in BF16 one that rounding explains; an output that is equal is neither."""
    models = random_models("tiny-gqa")
    request = Request(0, (30, 31, 32), 2)  # whose best two tokens are 1.5 % apart
    row = next_token_logits(EngineSpec(target="tiny-gqa"), models)(request.prompt)
    first, second, *_, last = sorted(range(len(row)), key=lambda token: -row[token])
    spec = EngineSpec(target="tiny-gqa", dtype="bfloat16")
    assert 0 < row[first] - row[second] <= NEAR_TIE["bfloat16"] * abs(row[first])

    def ties(token: int, like: EngineSpec = spec) -> frozenset[int]:
        observed = rows()
        record = observed.requests[0].model_copy(update={"tokens": (token, 3)})
        return near_ties(like, models, [request], {0: (first, 3)}, PassRows([record], [], [], [], {}))

    assert ties(second) == {0}
    assert ties(last) == ties(first) == frozenset()
    assert ties(second, spec.model_copy(update={"dtype": "float32"})) == frozenset()
    facts = set_facts(rows(), "all", {0: (), 1: ()}, frozenset({1}))
    assert facts["near_ties"] == 1
    assert set_facts(rows(), "humaneval", {0: (), 1: ()}, frozenset({1}))["near_ties"] == 0
