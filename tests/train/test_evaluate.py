"""What an evaluation counts, checked on rounds written by hand and on the shipped pair."""

from __future__ import annotations

import json

import pytest

from ddbench.harness.observe import PassRows
from ddbench.models.weights import PRETRAINED
from ddbench.records import RequestRecord, RoundRecord
from ddbench.spec import ARMS, EngineSpec
from ddbench.train.evaluate import BUDGETS, arm_facts, arm_specs, evaluate_pair, table
from ddbench.wheels import sha256_of

LOOP = (5, 6, 7) * 8
PLAIN = tuple(range(20, 44))


def request(request_id: int, kind: str, tokens: tuple[int, ...]) -> RequestRecord:
    return RequestRecord(
        pass_name="clean", request_id=request_id, prompt_id=f"{kind}-0", kind=kind, num_prompt_tokens=3,
        tokens=tokens, num_rounds=2, finish_reason="length", admitted_ns=0, first_token_ns=1, last_token_ns=2,
    )  # fmt: skip


def round_of(request_id: int, accepted: int, emitted: int, repeated: int, nodes: int = 7) -> RoundRecord:
    return RoundRecord(
        pass_name="clean", step=0, request_id=request_id, request_round=0, num_nodes=nodes, num_accepted=accepted,
        num_emitted=emitted, num_repeated=repeated, expected_length=1.0, is_identity_path=True,
    )  # fmt: skip


@pytest.fixture
def rows() -> PassRows:
    rounds = [
        round_of(0, accepted=3, emitted=4, repeated=3),  # repeated: 3 of 4
        round_of(0, accepted=1, emitted=2, repeated=1),  # novel: half is not most
        round_of(0, accepted=5, emitted=3, repeated=0),  # cut by the length limit
        round_of(1, accepted=0, emitted=1, repeated=0, nodes=3),
    ]
    requests = [request(0, "code", LOOP), request(1, "prose", PLAIN), request(2, "prose", (9,))]
    return PassRows(requests, rounds, [], [], {})


def test_lengths_are_pooled_over_rounds_and_averaged_over_requests(rows: PassRows):
    facts = arm_facts(rows, {0: LOOP, 1: PLAIN, 2: (9,)})
    assert facts["rounds"] == 4
    assert facts["tau"] == 10 / 4
    assert facts["tau_macro"] == 2.0  # (9/3 + 1/1) / 2; a request without a round has no length
    assert facts["tau_uncut"] == 1 + 9 / 4
    assert facts["accepted_histogram"] == [1, 1, 0, 1, 0, 1]
    assert facts["nodes_per_round"] == 6.0
    assert facts["tau_by_kind"] == {"code": 3.0, "prose": 1.0}


def test_novel_and_repeated_rounds_are_told_apart(rows: PassRows):
    facts = arm_facts(rows, {0: LOOP, 1: PLAIN, 2: (9,)})
    assert facts["tau_repeated"] == 4.0
    assert facts["tau_novel"] == 2.0
    assert facts["repeated_rounds_share"] == 0.25
    novel_only = PassRows(rows.requests, rows.rounds[1:], [], [], {})
    assert arm_facts(novel_only, {0: LOOP, 1: PLAIN, 2: (9,)})["tau_repeated"] is None


def test_looping_outputs_and_equal_outputs_are_counted(rows: PassRows):
    """An output of one token is too short to be judged as a loop."""
    facts = arm_facts(rows, {0: LOOP, 1: (0, *PLAIN[1:]), 2: (9,)})
    assert facts["degenerate_share"] == 0.5
    assert (facts["equal_to_ar"], facts["requests"]) == (2, 3)


def test_the_arms_are_those_a_drafter_is_judged_by():
    specs = arm_specs(EngineSpec(target="nano-k2"))
    assert list(specs) == ["ar", "prompt_lookup", "chain", *(f"ddtree {budget}" for budget in BUDGETS)]
    assert BUDGETS == (8, 16, 32, 64)
    for name, spec in specs.items():
        arm = name.split()[0]
        assert all(getattr(spec, field) == value for field, value in ARMS[arm].items())
        assert (spec.target, spec.sampling, spec.dtype) == ("nano-k2", "greedy", "float32")
    assert [specs[f"ddtree {budget}"].node_budget for budget in BUDGETS] == list(BUDGETS)


@pytest.fixture(scope="module")
def evaluation():
    lines: list[str] = []
    result = evaluate_pair(
        pair="nano-k2", num_prompts=3, max_new_tokens=12, concurrency=3, device="cpu", command="c", report=lines.append
    )
    return result, lines


def test_the_shipped_pair_is_lossless_and_its_trees_accept_more(evaluation):
    result, lines = evaluation
    arms = result["arms"]
    assert all(arm["equal_to_ar"] == arm["requests"] == 3 for arm in arms.values())
    assert arms["ar"]["tau"] == 1.0
    assert arms["ar"]["rounds"] == 3 * 11  # the first token is the prefill's
    assert arms["ddtree 64"]["tau"] >= arms["chain"]["tau"] > 1.2
    for arm in arms.values():
        assert arm["tau"] * arm["rounds"] == pytest.approx(3 * 11, abs=0.01)
        assert sum(arm["accepted_histogram"]) == arm["rounds"]
    assert len(lines) == 7
    assert all("left" in line for line in lines[:-1])


def test_an_evaluation_says_on_what_it_rests(evaluation):
    result, _ = evaluation
    assert result["prompts"]["sha256"] == sha256_of(PRETRAINED / "nano-k2" / "prompts.jsonl")
    assert result["prompts"]["number"] == 3
    assert len(result["target_sha256"]) == len(result["drafter_sha256"]) == 16
    assert (result["sampling"], result["dtype"], result["block_size"]) == ("greedy", "float32", 8)
    assert json.loads(json.dumps(result)) == result


def test_the_table_shows_every_arm_on_a_line_of_its_own(evaluation):
    result, _ = evaluation
    lines = table(result).splitlines()
    assert max(map(len, lines)) <= 120
    for name, facts in result["arms"].items():
        row, shares = (line for line in lines if line.startswith(name + " "))
        assert f"{facts['tau']:.3f}" in row
        assert row.endswith("3/3")
        assert float(sum(map(float, shares.removeprefix(name).split()))) == pytest.approx(100, abs=0.5)
    assert "prompt_lookup" in lines[-1]


def test_the_shipped_card_holds_the_evaluation_of_the_shipped_weights():
    """Numbers that a reader may quote belong to the files that lie beside them."""
    folder = PRETRAINED / "nano-k2"
    evaluation = json.loads((folder / "training-card.json").read_text())["evaluation"]
    assert evaluation["prompts"] == {
        "sha256": sha256_of(folder / "prompts.jsonl"),
        "number": 96,
        "kinds": {"code": 32, "docs": 32, "prose": 32},
    }
    for part in ("target", "drafter"):
        assert sha256_of(folder / f"{part}.safetensors").startswith(evaluation[f"{part}_sha256"])
    arms = evaluation["arms"]
    assert all(arm["equal_to_ar"] == 96 for arm in arms.values())
    assert arms["chain"]["tau"] > arms["prompt_lookup"]["tau"]
