"""A toy corpus with its tokenizer, and shapes small enough to train in a second."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddbench.models.shapes import DrafterShape, TargetShape
from ddbench.train.corpus import Document, write_documents
from ddbench.train.tokenizer import Prompt, train_tokenizer, write_prompts
from ddbench.train.tokens import TokenStream, load_tokens

WORDS = "amber basin cedar delta ember fjord grove heath inlet jetty knoll ledge marsh oasis prairie ridge".split()

TARGET: dict[str, Any] = {
    "name": "toy",
    "num_layers": 2,
    "hidden": 32,
    "vocab": 320,
    "dense_width": 48,
    "num_dense_layers": 1,
    "attention": {
        "kind": "mla", "num_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 8,
        "v_head_dim": 8,
    },
    "rope": {"theta": 1e4, "rotary_dim": 8},
    "moe": {"num_experts": 4, "top_k": 2, "expert_width": 32, "weight_format": "int4"},
    "max_context": 256,
    "stop_token_ids": [0],
}  # fmt: skip
DRAFTER: dict[str, Any] = {
    "name": "toy-dflash",
    "num_layers": 2,
    "hidden": 32,
    "width": 32,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "block_size": 4,
    "mask_token_id": 1,
    "target_layer_ids": [0, 1],
    "num_target_layers": 2,
    "target_hidden": 32,
    "rope": {"theta": 1e4, "rotary_dim": 16},
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
}


@dataclass(frozen=True)
class Toy:
    """Files of a toy training: corpus, held-out documents, tokenizer, shapes, prompts."""

    corpus: Path
    heldout: Path
    tokenizer: Path
    shape: Path
    prompts: Path


def text(number: int, sentences: int = 24) -> str:
    """Prose of a small vocabulary; every number gives another text."""
    pick = [WORDS[(number * 7 + i * (number % 5 + 3) + i * i) % 16] for i in range(sentences * 6)]
    lines = (" ".join(pick[6 * i : 6 * i + 6]).capitalize() + f" {number}." for i in range(sentences))
    return " ".join(lines) + "\n"


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    folder = tmp_path_factory.mktemp("toy")
    kinds = ("code", "prose", "docs")
    documents = [
        Document.model_validate(
            {"text": text(i), "source": "toy", "kind": kinds[i % 3], "licence": "MIT", "path": f"{i}.txt"}
        )
        for i in range(40)
    ]
    write_documents(folder / "train.jsonl.xz", documents[:34])
    write_documents(folder / "heldout.jsonl.xz", documents[34:])
    train_tokenizer([d.text for d in documents[:34]], 300, folder / "tokenizer.json")
    (folder / "shape.json").write_text(json.dumps({"target": TARGET, "drafter": DRAFTER}))
    rows = [
        {"id": f"{kinds[i % 3]}-0{i}", "kind": kinds[i % 3], "source": "toy", "licence": "MIT", "text": text(60 + i, 2)}
        for i in range(6)
    ]
    write_prompts(folder / "prompts.jsonl", [Prompt.model_validate(row) for row in rows])
    names = ("train.jsonl.xz", "heldout.jsonl.xz", "tokenizer.json", "shape.json", "prompts.jsonl")
    return Toy(*(folder / name for name in names))


@pytest.fixture(scope="session")
def toy_shapes() -> tuple[TargetShape, DrafterShape]:
    return TargetShape(**TARGET), DrafterShape(**DRAFTER)


@pytest.fixture(scope="session")
def toy_stream(toy: Toy) -> TokenStream:
    return load_tokens(toy.corpus, toy.tokenizer, None, print)
