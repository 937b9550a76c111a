"""GGUF: values are those of plain loops over the bytes (and of the gguf package, where it is), rows of q and k go back
into halves, digits stay apart, and a damaged file ends in one line.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from ddbench.models.checkpoints.gguf import read_gguf
from ddbench.models.checkpoints.gguf_llama import convert, halves
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import TARGETS, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import load_models
from ddbench.spec import ARMS, EngineSpec

F32, Q4_1, Q8_0 = 0, 3, 8
ALIGNMENT = 32
CHARS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]  # GPT-2's bytes
TOKENS = ["<|end|>", "<|start|>", *CHARS, "ab", "12", "Ġa"]
MERGES = ["a b", "1 2", "Ġ a"]
HEADS = 4
SHAPE = TargetShape(
    **{
        **TARGETS["tiny-gqa"].model_dump(),
        "name": "model",
        "hidden": 64,
        "vocab": len(TOKENS),
        "dense_width": 96,
        "attention": {**TARGETS["tiny-gqa"].attention.model_dump(), "qk_norm": False},
        "norm_eps": 1e-5,
        "rope": {"theta": 1e5, "rotary_dim": 16},
        "max_context": 256,
        "tie_embeddings": True,
        "stop_token_ids": (1,),
    }
)
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 1e5,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, *[1] * (len(TOKENS) - 2)],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ messages }}",
}


# ------------------------------------------------------------------------------------------------ a writer, by the book


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(one: Any) -> bytes:
    """Type and value."""
    if isinstance(one, bool):
        return struct.pack("<IB", 7, one)
    if isinstance(one, int):
        return struct.pack("<II", 4, one)
    if isinstance(one, float):
        return struct.pack("<If", 6, one)
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    if isinstance(one[0], str):
        return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(text, one))
    return struct.pack("<IIQ", 9, 5, len(one)) + struct.pack(f"<{len(one)}i", *one)


def encoded(values: np.ndarray, kind: int) -> bytes:
    """Values quantised in blocks of 32, one at a time."""
    if kind == F32:
        return values.astype("<f4").tobytes()
    blocks = []
    for block in values.reshape(-1, 32).tolist():
        if kind == Q8_0:
            scale = float(np.float16(max(map(abs, block)) / 127 or 1.0))
            blocks.append(struct.pack("<e32b", scale, *(max(-128, min(127, round(one / scale))) for one in block)))
            continue
        low = float(np.float16(min(block)))
        scale = float(np.float16((max(block) - low) / 15 or 1.0))
        nibbles = [max(0, min(15, round((one - low) / scale))) for one in block]
        blocks.append(struct.pack("<ee16B", scale, low, *(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))))
    return b"".join(blocks)


def decoded(raw: bytes, kind: int) -> list[float]:
    """The oracle: bytes to values, one at a time, as the format's description has them."""
    found = []
    if kind == F32:
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    size = 20 if kind == Q4_1 else 34
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        if kind == Q8_0:
            (scale,) = struct.unpack("<e", block[:2])
            found += [float(np.float32(scale) * np.float32(one)) for one in struct.unpack("<32b", block[2:])]
            continue
        scale, low = struct.unpack("<ee", block[:4])
        nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
        found += [float(np.float32(np.float32(scale) * np.float32(one)) + np.float32(low)) for one in nibbles]
    return found


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, int]]) -> None:
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [text(key) + value(one) for key, one in metadata.items()]
    data = b""
    for name, (values, kind) in tensors.items():
        dims = values.shape[::-1]
        head.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data)))
        data += encoded(values, kind)
        data += b"\0" * (-len(data) % ALIGNMENT)
    start = b"".join(head)
    path.write_bytes(start + b"\0" * (-len(start) % ALIGNMENT) + data)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Halves of a head's rows to pairs side by side: 0, d/2, 1, d/2 + 1, ..."""
    found, dim = rows.copy(), len(rows) // heads
    for head in range(heads):
        for i in range(dim // 2):
            found[head * dim + 2 * i] = rows[head * dim + i]
            found[head * dim + 2 * i + 1] = rows[head * dim + dim // 2 + i]
    return found


def llama_tensors(target: Target, kind: int) -> dict[str, tuple[np.ndarray, int]]:
    found = {
        "token_embd.weight": (target.embedding.weight.numpy(), Q8_0 if kind != F32 else F32),
        "output_norm.weight": (target.norm.weight.numpy(), F32),
    }
    for i, layer in enumerate(target.layers):
        a: Any = layer.attention
        gate, up = layer.mlp.gate_up.weight.chunk(2)  # type: ignore[union-attr]
        matrices = {
            "attn_q": interleaved(a.q_proj.weight.numpy(), HEADS),
            "attn_k": interleaved(a.k_proj.weight.numpy(), 2),
            "attn_v": a.v_proj.weight.numpy(),
            "attn_output": a.o_proj.weight.numpy(),
            "ffn_gate": gate.numpy(),
            "ffn_up": up.numpy(),
            "ffn_down": layer.mlp.down.weight.numpy(),  # type: ignore[union-attr]
        }
        found |= {f"blk.{i}.{name}.weight": (values, kind) for name, values in matrices.items()}
        for name, norm in (("attn_norm", layer.input_norm), ("ffn_norm", layer.post_norm)):
            found[f"blk.{i}.{name}.weight"] = (norm.weight.numpy(), F32)
    return found


@pytest.fixture(scope="module")
def target() -> Target:
    target = Target(SHAPE)
    randomize(target, 21)
    return target.requires_grad_(False)


@pytest.fixture
def write(target, tmp_path) -> Callable[..., Path]:
    """`write(kind, **metadata)`: a GGUF of the target."""

    def written(kind: int = F32, drop: str = "", **metadata: Any) -> Path:
        tensors = llama_tensors(target, kind)
        tensors.pop(drop, None)
        path = tmp_path / "model.gguf"
        write_gguf(path, {k: v for k, v in {**METADATA, **metadata}.items() if v is not None}, tensors)
        return path

    return written


def converted(path: Path) -> Path:
    folder = path.parent / "model"
    folder.mkdir(exist_ok=True)
    convert(read_gguf(path), folder)
    return folder


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("kind", [F32, Q4_1, Q8_0])
def test_values_are_those_of_plain_loops(tmp_path, kind):
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((6, 64)) * 10.0 ** rng.integers(-4, 4, (6, 1))).astype(np.float32)
    values[0] = 0
    write_gguf(tmp_path / "x.gguf", {"general.alignment": 32}, {"x": (values, kind)})
    found = read_gguf(tmp_path / "x.gguf").read("x")
    assert found.shape == (6, 64)
    assert found.dtype == np.float32
    assert found.reshape(-1).tolist() == decoded(encoded(values, kind), kind)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(found - values) <= largest * {F32: 0.0, Q4_1: 0.08, Q8_0: 0.006}[kind] + 1e-12).all()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_values_are_those_of_the_gguf_package(tmp_path, kind):
    gguf = pytest.importorskip("gguf", reason="the witness of this test: pip install gguf")
    rng = np.random.default_rng(1)
    values = rng.standard_normal((16, 96)).astype(np.float32)
    number = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(values, number)
    write_gguf(tmp_path / "x.gguf", {"general.alignment": 32}, {"x": (np.zeros((16, 96)), int(number))})
    file = tmp_path / "x.gguf"
    file.write_bytes(file.read_bytes()[: -len(raw.tobytes())] + raw.tobytes())
    assert np.array_equal(read_gguf(file).read("x"), gguf.quants.dequantize(raw, number))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_rows_of_pairs_go_back_into_halves(heads):
    rows = np.arange(heads * 8 * 5, dtype=np.float32).reshape(heads * 8, 5)
    assert np.array_equal(halves(interleaved(rows, heads), heads), rows)
    assert not np.array_equal(interleaved(rows, heads), rows)


def test_what_was_written_is_what_is_loaded(write, target):
    """A GGUF in float32 says exactly what the model said, the rotary rows of q and k included."""
    folder = converted(write())
    loaded = load_models(EngineSpec(target=str(folder), **ARMS["ar"])).target
    assert loaded.shape == SHAPE
    for name, tensor in target.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_quantised_model_stays_near_the_one_it_was_made_of(write, target, make_ids):
    folder = converted(write(Q4_1))
    loaded = load_models(EngineSpec(target=str(folder), **ARMS["ar"])).target
    ids = make_ids(24)[None]
    mine, theirs = loaded.head(loaded.full(ids)[0]), target.head(target.full(ids)[0])
    assert torch.nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.98


def test_rows_left_as_they_are_would_be_noticed(write, target, make_ids):
    """A positive control of the permutation."""
    other = Target(SHAPE)
    other.load_state_dict(target.state_dict())
    for layer in other.layers:
        a: Any = layer.attention
        for projection, heads in ((a.q_proj, HEADS), (a.k_proj, 2)):
            projection.weight.data = torch.from_numpy(interleaved(projection.weight.detach().numpy(), heads))
    ids = make_ids(24)[None]
    with torch.no_grad():
        assert (other.head(other.full(ids)[0]) - target.head(target.full(ids)[0])).abs().max() > 0.1


# ------------------------------------------------------------------------------------------------------------ tokenizer


def test_digits_are_split_one_by_one(write):
    """The trap: tokens and merges would join 1 and 2, the splitting that the file names forbids it."""
    tokenizer = Tokenizer.from_file(str(converted(write()) / "tokenizer.json"))
    assert tokenizer.encode("ab 12 ab").tokens == ["ab", "Ġ", "1", "2", "Ġ", "ab"]
    assert tokenizer.decode(tokenizer.encode("x 12 ab\n\t9é").ids) == "x 12 ab\n\t9é"


def test_control_tokens_are_special_and_keep_their_ids(write):
    folder = converted(write())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|start|>ab<|end|>").ids == [1, TOKENS.index("ab"), 0]
    assert tokenizer.get_vocab_size() == len(TOKENS)
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|start|>"


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'; known: 'llama'"),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.type: an unknown field"),
        ({"llama.expert_count": 8}, "llama.expert_count: an unknown field"),
        ({"llama.block_count": 4}, "misses tensor 'blk.3.attn_k.weight'"),
        ({"llama.block_count": 2}, "unused tensor 'blk.2.attn_k.weight'"),
        ({"llama.embedding_length": None}, "llama.embedding_length: expected a whole number, got None"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8: expected 64/4"),
        ({"llama.rope.freq_base": 5}, "llama.rope.freq_base: expected a number, got 5"),
        ({"tokenizer.ggml.pre": "default"}, "tokenizer 'gpt2' with splitting 'default'; known: gpt2, smollm"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama'"),
        ({"tokenizer.ggml.tokens": ["a"] * len(TOKENS)}, "tokens that stand there twice"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "merges of unknown ones"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "merges of unknown ones"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type: expected"),
        ({"general.alignment": "x"}, "general.alignment is 'x'"),
    ],
    ids=str,
)
def test_what_cannot_be_converted_is_named(write, complaint, metadata, words):
    path = write(**metadata)
    assert words in complaint(lambda: converted(path))


def test_a_head_of_its_own_is_taken(write, target, tmp_path):
    tensors = llama_tensors(target, F32)
    tensors["output.weight"] = (target.embedding.weight.numpy() * 2, F32)
    write_gguf(tmp_path / "model.gguf", METADATA, tensors)
    loaded = load_models(EngineSpec(target=str(converted(tmp_path / "model.gguf")), **ARMS["ar"])).target
    assert torch.equal(loaded.lm_head.weight, 2 * loaded.embedding.weight)


def test_a_matrix_of_another_shape_is_named(write, target, tmp_path, complaint):
    tensors = llama_tensors(target, F32)
    tensors["blk.0.attn_v.weight"] = (np.zeros((16, 64), np.float32), F32)
    write_gguf(tmp_path / "model.gguf", METADATA, tensors)
    folder = converted(tmp_path / "model.gguf")
    line = complaint(lambda: load_models(EngineSpec(target=str(folder), **ARMS["ar"])))
    assert "v_proj.weight' has shape [16, 64], config.json asks for [32, 64]" in line


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is no GGUF file"),
        (b"GGU", "is no GGUF file"),
        (b"PK\3\4" + bytes(40), "is no GGUF file"),
        (b"GGUF", "damaged at byte 4"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1; known: 2, 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "entries are announced"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "are left"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77) + bytes(9), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "array of values of type 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 6, 2**60), "entries are announced"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<IQ", 4, 1), "no UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 32, 2, 0), "is of type 2; known"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 30, 8, 0),
            "no rows of whole blocks",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 32, 8, 0), "ends at byte"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 0, 8, 2**63), "ends at byte"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 9) + bytes(20), "has 9 dims"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, complaint, raw, words):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    line = complaint(lambda: read_gguf(path))
    assert "x.gguf" in line
    assert words in line


def test_a_decimal_is_the_one_that_was_meant(write):
    """float32's 9.999999747378752e-06 was written for 1e-05."""
    config = json.loads((converted(write()) / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert math.isclose(config["rope_theta"], 1e5, rel_tol=0)
