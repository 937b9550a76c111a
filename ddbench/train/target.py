"""Training of a small target language model from scratch: next-token loss on a text corpus.

Routing is balanced without an auxiliary loss (DeepSeek-V3): the selection bias of an expert moves against its load.
Routed experts are rounded to INT4 in the last part of training, so that the stored weights are the trained ones.
Letters: B rows, T window, V vocabulary, E experts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from ddbench.kernels import int4
from ddbench.models.moe import MoE
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import DrafterShape, TargetShape
from ddbench.models.target import Target
from ddbench.train.loop import Budget, Report, TrainingRun, make_optimizer, run_steps, shape_key
from ddbench.train.tokens import TokenStream, Windows

BALANCE_RATE = 1e-3  # step of an expert's selection bias per training step
SAMPLED_WINDOWS = 256  # of a stream, at most, for a look at its compression


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    """Everything that decides the trained weights besides the data."""

    batch_rows: int = 128
    window: int = 512
    peak_rate: float = 2e-3
    warmup_steps: int = 300
    weight_decay: float = 0.1
    quantize_from: float = 0.75  # fraction of training after which the experts are rounded in the forward pass
    steps: int = 12000
    minutes: float | None = None
    seed: int = 0


def float_shape(shape: TargetShape) -> TargetShape:
    """The same shape with float experts: what is trained before it is packed."""
    if shape.moe is None:
        return shape
    return shape.model_copy(update={"moe": shape.moe.model_copy(update={"weight_format": "float"})})


def initialize(model: Target, seed: int) -> None:
    """Small normal weights, unit norms, zero selection bias; residual branches start scaled down."""
    randomize(model, seed)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.fill_(1.0)
        elif "embedding" in name or "lm_head" in name:
            parameter.data.mul_(0.02 / parameter.data.std())
        elif name.endswith(("o_proj.weight", "down.weight", ".down")):
            parameter.data.mul_((2 * model.shape.num_layers) ** -0.5)
    for child in model.modules():
        if isinstance(child, MoE):
            child.bias.zero_()


def next_token_loss(model: Target, ids: torch.Tensor, fake_quantize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of ids [B, T+1] in nats per token, and the expert loads [MoE layers, E]."""
    hidden, _, loads = model.full(ids[:, :-1], fake_quantize)
    logits = model.head(hidden)  # [B, T, V]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), loads


def balance(model: Target, loads: torch.Tensor) -> None:
    """Move every expert's selection bias one step towards the mean load."""
    layers = [child for child in model.modules() if isinstance(child, MoE)]
    for layer, load in zip(layers, loads, strict=True):
        layer.bias.add_(BALANCE_RATE * torch.sign(load.mean() - load))


def bits_per_byte(model: Target, stream: TokenStream, window: int, fake_quantize: bool = False) -> float:
    """Held-out compression: cross-entropy in bits over the text's UTF-8 bytes (whole windows, an even sample)."""
    tokens = torch.from_numpy(stream.tokens.astype("int64"))
    device = next(model.parameters()).device
    window = min(window, len(tokens) - 1)
    count = (len(tokens) - 1) // window
    chosen = torch.linspace(0, count - 1, min(count, SAMPLED_WINDOWS)).long().unique()
    total = 0.0
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for part in chosen.split(32):
            ids = tokens[(part * window)[:, None] + torch.arange(window + 1)].to(device)
            total += next_token_loss(model, ids, fake_quantize)[0].item() * len(part)
    nats_per_token = total / len(chosen)
    return nats_per_token / math.log(2) * len(tokens) / stream.num_bytes


def train_target(
    shape: TargetShape,
    drafter: DrafterShape,
    train: TokenStream,
    heldout: TokenStream,
    recipe: TargetRecipe,
    folder: Path,
    device: str,
    report: Report,
) -> tuple[Target, list[dict[str, float]]]:
    """Train (or resume in `folder`) and return the packed target with its held-out curve."""
    model = Target(float_shape(shape), drafter.target_layer_ids)
    initialize(model, recipe.seed)
    model.to(device)
    windows = Windows(train, device, recipe.seed)
    optimizer = make_optimizer(model, recipe.peak_rate, recipe.weight_decay)
    identity = {"shape": shape_key(shape), **asdict(recipe), "corpus": train.digest}
    run = TrainingRun(model, optimizer, {"windows": windows.generator}, folder, identity)
    if run.resume():
        report(f"resumed at step {run.step}")
    is_int4 = shape.moe is not None and shape.moe.weight_format == "int4"

    def step(fraction: float) -> torch.Tensor:
        ids = windows.sample(recipe.batch_rows, recipe.window + 1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss, loads = next_token_loss(model, ids, is_int4 and fraction >= recipe.quantize_from)
        if loads.numel():
            balance(model, loads)
        return loss

    def evaluate() -> dict[str, float]:
        return {"bits_per_byte": bits_per_byte(model, heldout, recipe.window, fake_quantize=is_int4)}

    budget = Budget(recipe.steps, recipe.minutes)
    run_steps(run, budget, step, evaluate, report, peak=recipe.peak_rate, warmup_steps=recipe.warmup_steps)
    return pack(model, shape), run.curve


def pack(model: Target, shape: TargetShape) -> Target:
    """The trained float model as the stored shape: experts packed to INT4, everything else as it is, on the CPU."""
    packed = Target(shape, model.capture_ids)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    if shape.moe is not None and shape.moe.weight_format == "int4":
        for name in [name for name in state if name.endswith((".experts.gate_up", ".experts.down"))]:
            words, scales = int4.quantize(state.pop(name), shape.moe.group_size)
            state[f"{name}_packed"], state[f"{name}_scales"] = words, scales
    packed.load_state_dict(state)
    return packed.requires_grad_(False).eval()
