"""An oracle accepts what its pair accepts, in the simulation that says so and in the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.profiles import SHIPPED, read_blocks, write_blocks
from ddbench.engine.types import Request
from ddbench.harness import check
from ddbench.harness.check import check_replay
from ddbench.harness.environment import environment_of
from ddbench.harness.parity import outputs_of
from ddbench.harness.replay import TOLERANCE, replayed_lengths
from ddbench.harness.summary import replayed_from
from ddbench.harness.sweep import case_ids
from ddbench.models.weights import random_models
from ddbench.spec import ARMS, Case, EngineSpec, WorkloadSpec

torch.set_num_threads(1)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_reproduces_its_pair(name: str) -> None:
    """Within 3 % in every arm; the chain to the round, since every answer is replayed once."""
    blocks = read_blocks(name)
    replayed = replayed_lengths(blocks)
    assert set(replayed) == {"chain", "ddtree 8", "ddtree 16", "ddtree 32", "ddtree 64"}
    for arm, measured in blocks.card.acceptance_lengths.items():
        assert replayed[arm] == pytest.approx(measured, rel=TOLERANCE), arm
    assert replayed["chain"] == pytest.approx(blocks.card.acceptance_lengths["chain"], rel=2e-3)


def test_a_profile_without_the_rhythm_of_difficulty_is_found_out() -> None:
    """The same blocks at shuffled positions: every share by depth and confidence is right, the lengths are not."""
    blocks = read_blocks("nano-k2-blocks")
    order = torch.randperm(blocks.ranks[..., 0].numel(), generator=torch.Generator().manual_seed(0))
    ranks, levels = (values.flatten(0, 1)[order].view(values.shape) for values in (blocks.ranks, blocks.levels))
    chain = blocks.card.model_copy(update={"acceptance_lengths": {"chain": 0.0}})
    shuffled = replayed_lengths(replace(blocks, card=chain, ranks=ranks, levels=levels))["chain"]
    assert shuffled > 1.1 * blocks.card.acceptance_lengths["chain"]


def test_the_check_fails_on_lengths_that_are_not_the_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = read_blocks("nano-k2-blocks")
    lengths = {"chain": blocks.card.acceptance_lengths["chain"], "ddtree 8": 4.0}
    write_blocks(
        tmp_path / "x.safetensors",
        replace(blocks, card=blocks.card.model_copy(update={"acceptance_lengths": lengths})),
    )
    monkeypatch.setattr(check, "SHIPPED", {str(tmp_path / "x.safetensors"): tmp_path / "x.safetensors"})
    rows = list(check_replay("cpu"))
    assert [row.status for row in rows] == ["ok", "failed"]
    assert "of the pair 4.000: -" in rows[1].detail
    monkeypatch.setattr(check, "SHIPPED", {"gone": tmp_path / "gone.safetensors"})
    assert [row.status for row in check_replay("cpu")] == ["skipped"]


def test_a_file_written_anew_under_its_name_is_another_case_and_is_named_in_the_warning(tmp_path: Path) -> None:
    blocks, path = read_blocks("nano-k2-blocks"), tmp_path / "x.safetensors"
    environment = environment_of("cpu")
    found = []
    for seed in (0, 1):
        card = blocks.card.model_copy(update={"recorded_at": f"2026-01-0{seed + 1}"})
        write_blocks(path, replace(blocks, card=card))
        case = Case(
            arm="chain",
            engine=EngineSpec(target="tiny-gqa", draft="oracle", oracle_profile=str(path), **ARMS["chain"]),
            workload=WorkloadSpec(prompts="random"),
        )
        found.append((case_ids([case], environment), replayed_from(case.engine)))
    assert found[0][0] != found[1][0]
    assert found[1][1] == f"the recorded profile 'x.safetensors' ({read_blocks(str(path)).digest})"
    counts = EngineSpec(draft="oracle")
    assert replayed_from(counts) == "the recorded profile 'nano-k2'"


@pytest.mark.parametrize("arm", ["chain", "ddtree"])
def test_the_engine_accepts_what_the_simulation_says(arm: str) -> None:
    """On a random target, each request replaying an answer of its own, concurrency and executor of no consequence."""
    blocks = read_blocks("nano-k2-blocks")
    few = replace(
        blocks, lengths=blocks.lengths[::16].clamp(max=24), ranks=blocks.ranks[::16, :24, :4],
        levels=blocks.levels[::16, :24, :4], probabilities=blocks.probabilities[:4],
    )  # fmt: skip
    named = {"chain": 0.0} if arm == "chain" else {"ddtree 8": 0.0}
    few = replace(few, card=few.card.model_copy(update={"acceptance_lengths": named, "block_size": 5}))
    models = random_models("tiny-gqa")
    requests = [Request(index, (3 + index, 5), 25) for index in range(6)]
    spec = EngineSpec(target="tiny-gqa", **{"node_budget": 8, **ARMS[arm]})  # type: ignore[arg-type]
    plain = Engine(spec.model_copy(update=ARMS["ar"]), models)
    truth = outputs_of(plain, [replace(request, max_new_tokens=30) for request in requests], 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddbench.engine.profiles.read_blocks", lambda name: few)
        oracle = spec.model_copy(update={"draft": "oracle", "oracle_profile": "nano-k2-blocks"})
        engine = Engine(oracle, models, continuations=truth)
    runs = [engine.run(requests, concurrency) for concurrency in (6, 2)]
    assert [[done.tokens for done in run] for run in runs] == [[truth[i][:25] for i in range(6)]] * 2
    assert [done.num_rounds for done in runs[0]] == [done.num_rounds for done in runs[1]]
    length = 6 * 24 / sum(done.num_rounds for done in runs[0])
    assert length == pytest.approx(next(iter(replayed_lengths(few, vocab=96).values())), rel=1e-6)
