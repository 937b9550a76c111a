"""A profile recorded from the shipped pair, on a few prompts, and its replay in the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from ddbench.cli import main
from ddbench.engine.engine import Engine
from ddbench.engine.profiles import read_blocks, walk
from ddbench.engine.types import Request
from ddbench.harness.replay import replayed_lengths
from ddbench.harness.workload import build_workload
from ddbench.models.weights import Models, checkpoint_folder, load_models
from ddbench.spec import ARMS, EngineSpec, WorkloadSpec
from ddbench.train.profile import answers, by_depth, num_places, record_blocks, table

torch.set_num_threads(1)
BASE = EngineSpec(target="nano-k2")


@pytest.fixture(scope="module")
def models() -> Models:
    return load_models(BASE)


def test_blocks_recorded_at_every_position_are_those_that_the_chain_drafts(models: Models) -> None:
    """Walked through from the first token on, they give the rounds that the engine runs, request by request."""
    asked = WorkloadSpec(num_requests=3, max_new_tokens=14)
    requests = build_workload(asked, models.target.shape, checkpoint_folder("nano-k2"), 0).measured
    truth = answers(BASE, models, requests, concurrency=2)
    assert {len(said) for said in truth.values()} == {14 + 7}
    ranks, log_probs = record_blocks(BASE, models, requests, truth, concurrency=2)
    assert ranks.shape == (3, 13, 7)
    assert log_probs.shape == (3, 13, 7, 32)
    assert (log_probs.diff(dim=3) <= 0).all()
    accepted = (ranks == 0).long().cumprod(2).sum(2).tolist()
    finished = Engine(BASE.model_copy(update=ARMS["chain"]), models).run(requests, 3)
    assert [len(walk(row)) for row in accepted] == [done.num_rounds for done in finished]
    assert [done.tokens for done in finished] == [tuple(truth[r.request_id][:14]) for r in requests]


def test_an_answer_has_places_up_to_its_stop() -> None:
    request = Request(0, (1,), max_new_tokens=5, stop_token_ids=(9,))
    assert num_places(request, {0: [1, 2, 3, 4, 5, 6, 9]}) == 4, "nothing is drafted after the last token"
    assert num_places(request, {0: [1, 2, 9, 4, 5, 6, 7]}) == 2
    assert num_places(request, {0: [9, 2, 3, 4, 5, 6, 7]}) == 0, "ended by the prefill's token: no round"


def test_the_command_writes_a_file_with_its_card_and_shows_both_lengths(tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    words = ["--prompts", "2", "--max-new-tokens", "10", "--out", str(out)]
    result = CliRunner().invoke(main, ["train", "profile", *words])
    assert result.exit_code == 0, result.output
    blocks = read_blocks(str(out))
    card = blocks.card
    assert card.command == "ddbench train profile --out p.safetensors --prompts 2 --max-new-tokens 10"
    assert (card.pair, card.prompts, card.num_prompts, card.num_tokens) == ("nano-k2", "held-out", 2, 18)
    assert sum(card.kinds.values()) == 2
    assert "oracle, ddtree 64: " in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("chain"))
    assert line.split() == ["chain", *[f"{card.acceptance_lengths['chain']:.4f}"] * 2, "+0.0%"]
    assert replayed_lengths(blocks)["chain"] == pytest.approx(card.acceptance_lengths["chain"], abs=1e-4)


def test_shares_of_ranks_sum_to_one_misses_included() -> None:
    lines = [line.split() for line in by_depth(read_blocks("nano-k2-blocks")).splitlines()[1:]]
    assert [line[0] for line in lines] == ["1", "2", "3", "4", "5", "6", "7"]
    assert [sum(map(float, line[2:])) for line in lines] == pytest.approx([1.0] * 7, abs=3e-3)
    assert float(lines[6][-1]) > 0.1, "true tokens beyond the ranks that are kept"


def test_the_table_says_how_far_off_an_oracle_is() -> None:
    lines = table({"chain": 2.0, "ddtree 8": 4.0}, {"chain": 2.1, "ddtree 8": 3.8}).splitlines()
    assert lines[1].split() == ["chain", "2.0000", "2.1000", "+5.0%"]
    assert lines[2].split() == ["ddtree", "8", "4.0000", "3.8000", "-5.0%"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pair", "tiny-gqa"], "pair 'tiny-gqa' has no trained drafter; pass a shipped pair or a pair folder"),
        (["--workload", "no-such-set"], "prompts: unknown source 'no-such-set'"),
        (["--prompts", "5000"], "lower num_requests"),
        (["--out", "p.json"], "--out p.json: expected a .safetensors file"),
    ],
)
def test_what_cannot_be_recorded_is_told(words: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["train", "profile", "--out", str(tmp_path / "p.safetensors"), *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())
