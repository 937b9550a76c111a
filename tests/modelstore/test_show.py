"""`ddbench models list` and `show`: every name once, numbers that are those of the weights, faults as when loading."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.models.catalog import architecture, catalog, num_parameters, weight_bytes
from ddbench.models.checkpoints.drafter_store import save_drafter
from ddbench.models.checkpoints.fetchable import FETCHABLE
from ddbench.models.lab_format import save_pair
from ddbench.models.shapes import TARGETS
from ddbench.models.weights import PRETRAINED, load_models, random_models
from ddbench.spec import EngineSpec


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["models", *words], env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def nothing_fetched(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_every_target_with_a_name_is_listed_once():
    names = [one.name for one in catalog()]
    assert names == sorted({*TARGETS, *FETCHABLE, "nano-k2"})
    output = call("list").output
    assert all(name in output for name in names)


def test_the_list_is_whole_on_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = call("list").output
    assert "\u2026" not in output
    assert "Apache-2.0" in output
    assert "measured," in output


def test_the_list_says_what_loading_says():
    facts = load_models(EngineSpec(experts="packed")).facts
    entry = next(one for one in catalog() if one.name == "nano-k2")
    assert entry.num_parameters == facts.num_target_parameters
    assert entry.num_bytes == (PRETRAINED / "nano-k2" / "target.safetensors").stat().st_size
    assert (entry.weights, entry.has_drafter, entry.licence) == ("shipped", True, "Apache-2.0")


def test_parameters_of_published_shapes_are_the_published_ones():
    """Billions, as their makers give them: 671 (without the layer of multi-token prediction), 8.03, 8.19, 1,026."""
    published = {"deepseek-v3": 671.0, "llama-3.1-8b": 8.03, "qwen3-8b": 8.19, "qwen3-4b": 4.02, "kimi-k2.6": 1026.0}
    for name, billions in published.items():
        assert num_parameters(TARGETS[name]) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_packed_experts_count_as_they_lie_there():
    shape = TARGETS["kimi-k2.6"]
    experts = 60 * 384 * 3 * 7168 * 2048
    others = num_parameters(shape) - experts
    assert weight_bytes(shape) == 2 * others + experts // 2 + 2 * experts // 32


def test_an_architecture_is_told_in_few_words():
    assert architecture(TARGETS["qwen3-4b"]) == "36 layers, GQA 32/8, tied"
    assert architecture(TARGETS["k2.6-ep8-rank-l8"]) == (
        "8 layers, MLA 64 heads, latent 512, 48 of 384 INT4 experts, 8 at a time"
    )


def test_a_shape_a_pair_and_a_folder_are_shown(tmp_path):
    models = random_models("tiny-gqa")
    save_pair(tmp_path / "pair", models.target, models.drafter)
    for name, words in (
        ("tiny-gqa", ("its weights are random", "78,768", "tiny-gqa-dflash")),
        ("nano-k2", ("09e77632fffbe62a", "nano-k2-dflash", "routed_scaling")),
        (str(tmp_path / "pair"), ("78,768", "attention.num_kv_heads")),
    ):
        result = call("show", name)
        assert result.exit_code == 0, result.output
        assert all(word in result.output for word in words)


def test_a_published_drafter_is_shown_beside_its_target(tmp_path):
    models = random_models("tiny-gqa")
    save_pair(tmp_path / "pair", models.target, models.drafter)
    save_drafter(tmp_path / "drafter", models.drafter, models.target.shape)
    result = call("show", str(tmp_path / "drafter"), "--target", str(tmp_path / "pair"))
    assert result.exit_code == 0, result.output
    assert "target_layer_ids" in result.output
    assert "BF16" in result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "nano"), "did you mean 'nano-k2'"),
        (("show", "{drafter}"), "is a DFlash drafter, not a target"),
        (("show", "{nowhere}", "--target", "nano-k2"), "is no folder"),
        (("show", "{drafter}", "--target", "nano-k2"), "num_target_layers: is 3, target 'nano-k2' has 6"),
        (("fetch", "nano-k2"), "cannot be fetched"),
        (("lst",), "no such command"),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path: Path, words, expected):
    models = random_models("tiny-gqa")
    save_drafter(tmp_path / "drafter", models.drafter, models.target.shape)
    places = {"drafter": str(tmp_path / "drafter"), "nowhere": str(tmp_path / "nowhere")}
    result = call(*(word.format(**places) for word in words))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr.lower() or expected in result.stderr
