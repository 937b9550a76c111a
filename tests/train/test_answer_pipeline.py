"""The commands in a row on a toy chat model in the published format: prompts, answers, drafter; then the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.errors import UserError
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import TARGETS, GQAShape, RopeShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import load_models
from ddbench.spec import ARMS, EngineSpec
from ddbench.train.answer_pipeline import require_16_bit_tokens
from ddbench.train.answers import MOST_TOKEN_IDS, load_answers
from ddbench.train.chat import encode_prompts
from ddbench.train.chat_prompts import ChatPrompt, write_chat_prompts
from ddbench.train.tokenizer import load_tokenizer

TEMPLATE = "{% for m in messages %}<|mask|>{{ m['content'] }}{% endfor %}<|pad|>"
SHAPE = TargetShape(
    name="toy-chat", num_layers=3, hidden=32, vocab=320, dense_width=48, tie_embeddings=True, norm_eps=1e-5,
    attention=GQAShape(num_heads=4, num_kv_heads=2, head_dim=8), rope=RopeShape(theta=1e4, rotary_dim=8),
    max_context=256, stop_token_ids=(0,),
)  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 320,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True, "max_position_embeddings": 256,
    "hidden_act": "silu", "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def chat(toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it would be downloaded: weights, tokenizer, chat template."""
    folder = tmp_path_factory.mktemp("chat")
    target = Target(SHAPE)
    randomize(target, 3)
    tensors = {"model.embed_tokens.weight": target.embedding.weight, "model.norm.weight": target.norm.weight}
    for i, layer in enumerate(target.layers):
        gate, up = layer.mlp.gate_up.weight.chunk(2)
        rows = {
            "input_layernorm": layer.input_norm.weight, "post_attention_layernorm": layer.post_norm.weight,
            **{f"self_attn.{n}_proj": getattr(layer.attention, f"{n}_proj").weight for n in "qkvo"},
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.mlp.down.weight,
        }  # fmt: skip
        tensors |= {f"model.layers.{i}.{name}.weight": weight for name, weight in rows.items()}
    stored = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes(toy.tokenizer.read_bytes())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl.xz"
    texts = [f"{'amber basin cedar delta'.split()[i % 4]} {i} ridge" for i in range(24)]
    write_chat_prompts(path, [ChatPrompt(kind="chat", text=text) for text in texts])
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["train", *map(str, words)], catch_exceptions=False)


@pytest.fixture(scope="module")
def made(chat: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("answers") / "out"
    setting = ("--rows", 6, "--total", 64, "--shard", 20, "--max-repetition", 1, "--device", "cpu")
    result = run("answers", "--target", chat, "--prompts", prompts, "--out", out, *setting)
    assert result.exit_code == 0, result.output
    return out


def test_prompts_become_the_targets_chat_and_spelled_out_special_tokens_do_not(chat: Path):
    messages = ["amber ridge", "ends <|end|> here", "long " * 40, "  basin\n"]
    encoded, places = encode_prompts(chat, [ChatPrompt(kind="chat", text=text) for text in messages], 30)
    assert places == [0, 3]
    tokenizer = load_tokenizer(chat / "tokenizer.json")
    for ids, text in zip(encoded, ("amber ridge", "basin"), strict=True):
        assert (ids[0], ids[-1]) == (1, 2)  # the template's own special tokens
        assert tokenizer.decode(ids[1:-1]) == text


def test_every_prompt_has_a_greedy_and_a_sampled_answer(made: Path):
    answers = load_answers(made)
    assert len(answers) == 48
    assert sorted(answers.places.tolist()) == sorted([*range(24)] * 2)
    assert int(answers.is_greedy.sum()) == 24
    assert len(list(made.glob("answers-*.npz"))) == 3


def test_shards_that_are_there_stay_and_others_are_made_the_same(made: Path, chat: Path, prompts: Path):
    before = load_answers(made).digest
    kept = (made / "answers-0000.npz").stat().st_mtime_ns
    (made / "answers-0001.npz").unlink()
    setting = ("--rows", 6, "--total", 64, "--shard", 20, "--max-repetition", 1, "--device", "cpu")
    result = run("answers", "--target", chat, "--prompts", prompts, "--out", made, *setting)
    assert "shard 0 is there" in result.output
    assert (made / "answers-0000.npz").stat().st_mtime_ns == kept
    assert load_answers(made).digest == before
    other = run("answers", "--target", chat, "--prompts", prompts, "--out", made, *setting, "--total", 72)
    assert other.exit_code == 2
    assert "begun with total 64, now it is 72" in other.output


def test_a_drafter_of_the_answers_loads_and_serves_its_target(made: Path, chat: Path, tmp_path: Path):
    setting = ("--steps", 12, "--tokens-per-step", 1024, "--anchor-share", 0.05, "--heldout-every", 4)
    words = ("drafter", "--answers", made, "--out", tmp_path, "--layers", 2, "--block", 4, "--device", "cpu", *setting)
    result = run(*words)
    assert result.exit_code == 0, result.output
    card = json.loads((tmp_path / "training-card.json").read_text())["drafter"]
    assert card["data"]["answers"] == 36
    assert card["data"]["heldout"] == 6
    assert set(card["heldout"]) == {"chain_tau_float", "chain_tau_int8", "answers"}
    assert card["command"].startswith("ddbench train drafter --answers out")
    assert (tmp_path / "curve.md").read_text().startswith("| step |")
    models = load_models(EngineSpec(target=str(chat), drafter=str(tmp_path), **ARMS["chain"]))
    assert models.drafter.shape.block_size == 4
    requests = [Request(i, (1, 40 + i, 2), 12) for i in range(3)]
    chain = Engine(EngineSpec(target=str(chat), drafter=str(tmp_path), **ARMS["chain"]), models).run(requests, 3)
    plain = Engine(EngineSpec(target=str(chat), drafter=str(tmp_path), **ARMS["ar"]), models).run(requests, 3)
    assert [one.tokens for one in chain] == [one.tokens for one in plain]
    again = run("drafter", "--answers", made, "--out", tmp_path / "b", "--init", tmp_path, "--layers", 2, "--block", 4,
                "--device", "cpu", *setting)  # fmt: skip
    assert again.exit_code == 0, again.output


def test_prompts_that_leave_no_room_for_answers_are_an_error(chat: Path, prompts: Path, tmp_path: Path):
    path = tmp_path / "long.jsonl.xz"
    write_chat_prompts(path, [ChatPrompt(kind="chat", text="amber " * 40)])
    result = run("answers", "--target", chat, "--prompts", path, "--out", tmp_path, "--total", 32, "--device", "cpu")
    assert result.exit_code == 2
    assert "raise --total" in result.output


def test_answers_of_a_vocabulary_beyond_16_bits_are_refused():
    shape = TARGETS["tiny-gqa"]
    require_16_bit_tokens(shape.model_copy(update={"vocab": MOST_TOKEN_IDS}))
    with pytest.raises(UserError, match="token ids"):
        require_16_bit_tokens(shape.model_copy(update={"vocab": MOST_TOKEN_IDS + 1}))


def test_a_drafter_wants_answers_or_a_corpus_not_both(made: Path, toy, tmp_path: Path):
    for words, expected in (
        ((), "--answers FOLDER, or on --corpus"),
        (("--answers", made, "--corpus", toy.corpus), "--corpus does not go with --answers"),
        (("--answers", made, "--batch-rows", 4), "--batch-rows does not go with --answers"),
        (("--corpus", toy.corpus, "--heldout", toy.heldout, "--block", 4), "--block does not go with --corpus"),
        (("--answers", tmp_path, "--device", "cpu"), "answers.json"),
    ):
        result = run("drafter", "--out", tmp_path, *words)
        assert result.exit_code == 2
        assert expected in result.output
