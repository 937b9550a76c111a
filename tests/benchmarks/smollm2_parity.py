"""SmolLM2-135M as we load it against transformers: its own reading of the same GGUF, and greedy answers to HumanEval.

    PYTHONPATH=. python tests/benchmarks/smollm2_parity.py GGUF [NUM_PROMPTS] [NUM_TOKENS]

Needs `ddbench models fetch smollm2-135m`, `ddbench workloads fetch humaneval`, transformers, gguf and accelerate.
Weights have to be equal bit for bit; so do dequantised tensors with the gguf package, and token ids of text with the
published splitting of digits. A greedy text may differ only where both models' own two best logits are closer together
than their arithmetic. Not a test of the suite: the model is no part of it, and 20 answers take minutes on a CPU.
"""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from ddbench.engine.engine import Engine
from ddbench.harness.workload import build_workload
from ddbench.models.checkpoints.gguf import read_gguf
from ddbench.models.weights import Models, load_models
from ddbench.spec import ARMS, EngineSpec, WorkloadSpec

SPEC = EngineSpec(target="smollm2-135m", **ARMS["ar"])
NEAR_TIE = 1e-3  # logits; those of fp32 differ by 1e-4 here


def same_weights(path: Path, models: Models, theirs: Any) -> int:
    """Tensors of the gguf package and of transformers' loader that are not ours, bit for bit."""
    mine = read_gguf(path)
    wrong = 0
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        wrong += not np.array_equal(mine.read(tensor.name), values.reshape(mine.tensors[tensor.name].shape))
    own = AutoModelForCausalLM.from_pretrained(models.folder, dtype=torch.float32).state_dict()
    return wrong + sum(not torch.equal(own[name], tensor) for name, tensor in theirs.state_dict().items())


def split_digits(tokenizer: Tokenizer) -> bool:
    """Digits one by one, which a reading of tokens and merges alone would join."""
    return tokenizer.encode("in 1234 ways").tokens == ["in", "Ġ", "1", "2", "3", "4", "Ġways"]


@torch.inference_mode()
def is_near_tie(theirs: Any, prompt: list[int], text: list[int], where: int) -> bool:
    logits = theirs(torch.tensor([prompt + text[:where]])).logits[0, -1]
    first, second = logits.topk(2).values.tolist()
    return first - second < NEAR_TIE


@torch.inference_mode()
def main(path: Path, num_prompts: int = 20, num_tokens: int = 64) -> int:
    console = Console(highlight=False, soft_wrap=True)
    models = load_models(SPEC)
    assert models.folder is not None
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(models.folder / "tokenizer.json"))
    wrong = same_weights(path, models, theirs)
    console.print(f"tensors that differ: {wrong}; digits split one by one: {split_digits(tokenizer)}")
    engine, differing, ties = Engine(SPEC, models), 0, 0
    workload = WorkloadSpec(prompts="humaneval", num_requests=num_prompts, max_new_tokens=num_tokens)
    for number, request in enumerate(build_workload(workload, models.target.shape, models.folder, 0).measured):
        prompt, stops = list(request.prompt), models.target.shape.stop_token_ids
        (done,) = engine.run([request], 1)
        given = theirs.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=num_tokens, eos_token_id=stops[0], pad_token_id=2
        )
        expected = given[0, len(prompt) :].tolist()
        ours = list(done.tokens)
        if ours != expected:
            where = next(i for i, pair in enumerate(zip(ours, expected, strict=False)) if pair[0] != pair[1])
            is_tie = is_near_tie(theirs, prompt, expected, where)
            ties, differing = ties + is_tie, differing + (not is_tie)
        text = tokenizer.decode(ours).replace("\n", " ")[:70]
        console.print(f"{number + 1:2d} {'same' if ours == expected else 'DIFFERS'} {len(ours):3d} tokens: {text}")
    console.print(f"{differing} of {num_prompts} answers differ, {ties} more at a near tie")
    return 1 if wrong or differing or not split_digits(tokenizer) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
