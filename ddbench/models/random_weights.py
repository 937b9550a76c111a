"""Seeded random weights made where they are used: tensor by tensor on the device, in the final dtype.

For named shapes of billions of parameters, whose values are made anew in every case's process: a host copy of a rank of
Kimi-K2.6 would be 95 GiB and take minutes. Every tensor depends on the seed, its name and the kind of device (a GPU's
generator draws other numbers than a CPU's), not on the tensors around it. `randomize` is the way for small shapes,
whose weights have to be the same everywhere: it draws on the host, in fp32.

The successor is planted: where embedding and head are apart, the head's row of token t+1 holds a copy of the embedding
of token t beside its noise. What a layer adds to the residual stream is damped, so that the stream keeps the embedding
of the token at hand through 61 layers (three quarters of its length; undamped, 14 %). Greedy decoding therefore
continues t with t+1, t+2, ... by a wide margin, whatever order sums are taken in. Outputs of such weights are no
evidence about a model's arithmetic; the times and the traffic are.
Letters: M hidden, V vocabulary.
"""

from __future__ import annotations

import zlib

import torch
from torch import nn

from ddbench.kernels import int4
from ddbench.models.drafter import Drafter
from ddbench.models.layers import FixedPrecision, RotaryTable
from ddbench.models.moe import RoutedExperts
from ddbench.models.shapes import DrafterShape, TargetShape
from ddbench.models.target import Target

# Of the 16 values -8..7 of an INT4 nibble, all equally likely. Scales of either sign take the mean of -1/2 away.
NIBBLE_MEAN_SQUARE = sum(value * value for value in range(-8, 8)) / 16
# Of every projection into the residual stream, whatever the depth: a slice has the very weights of the whole.
RESIDUAL_SCALE = 1 / 8
_INTO_RESIDUAL = (".o_proj.weight", ".down.weight", ".experts.down", ".down_scales")


def random_pair(
    target_shape: TargetShape, drafter_shape: DrafterShape, *, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Target, Drafter]:
    """Both models on `device`, ready to run; nothing of their size is ever on the host."""
    with torch.device("meta"):
        target = Target(target_shape, drafter_shape.target_layer_ids)
        drafter = Drafter(drafter_shape, target_shape.max_context)
    for module, offset in ((target, 0), (drafter, 1)):
        allocate(module, dtype, device)
        # The tables are no weights: the values themselves, from the host's fp64.
        module.rotary = RotaryTable(module.shape.rope, len(module.rotary.cos)).to(device)
        fill(module, seed * 2 + offset)
        module.requires_grad_(False).eval()
    if has_planted_successor(target_shape):
        plant_successor(target)
    return target, drafter


def has_planted_successor(shape: TargetShape) -> bool:
    """Whether embedding and head are apart; one matrix cannot hold both."""
    return not shape.tie_embeddings


def allocate(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Give every tensor of a module on the meta device memory of `device`, in the dtype that it will have there."""
    made: dict[int, nn.Parameter] = {}  # by the old tensor: a tied one is one again
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=device))
            setattr(child, name, made[id(parameter)])
        fixed = child.FIXED if isinstance(child, FixedPrecision) else ()
        for name, buffer in child.named_buffers(recurse=False):
            is_fixed = name in fixed or not buffer.is_floating_point()
            setattr(child, name, torch.empty(buffer.shape, dtype=buffer.dtype if is_fixed else dtype, device=device))


@torch.no_grad()
def fill(module: nn.Module, seed: int) -> None:
    """Weights of variance 1/fan-in (less where they lead into the residual stream), norms near one, selection biases
    near zero; packed experts as random words.
    """
    packed = {id(words) for words in _packed(module)}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name.endswith((".cos", ".sin")):
            continue
        generator = torch.Generator(tensor.device).manual_seed(_tensor_seed(seed, name))
        if id(tensor) in packed:
            tensor.random_(-(2**31), 2**31, generator=generator)
        elif name.endswith("norm.weight"):
            tensor.normal_(1.0, 0.1, generator=generator)
        elif name.endswith(".bias"):
            tensor.normal_(0.0, 0.01, generator=generator)
        else:
            tensor.normal_(0.0, _deviation(module, name, tensor), generator=generator)


def _tensor_seed(seed: int, name: str) -> int:
    return seed * 1_000_003 + zlib.crc32(name.encode())


def _packed(module: nn.Module) -> list[torch.Tensor]:
    experts = (child for child in module.modules() if isinstance(child, RoutedExperts) and child.is_packed)
    return [words for child in experts for words in (child.gate_up_packed, child.down_packed)]


def _deviation(module: nn.Module, name: str, tensor: torch.Tensor) -> float:
    if "embedding" in name:
        return 1.0
    damping = RESIDUAL_SCALE if name.endswith(_INTO_RESIDUAL) else 1.0
    if name.endswith("_scales"):
        experts = module.get_submodule(name.rpartition(".")[0])
        assert isinstance(experts, RoutedExperts), name
        columns = tensor.shape[-1] * experts.shape.group_size
        return damping * float((columns * NIBBLE_MEAN_SQUARE) ** -0.5)
    return damping * float(tensor.shape[-1] ** -0.5)


@torch.no_grad()
def plant_successor(target: Target) -> None:
    """Add the embedding of token v-1 (of the last token for v = 0), scaled by M^-1/2, to the head's row of token v."""
    head, embedding = target.lm_head.weight, target.embedding.weight  # [V, M] each
    scale = target.shape.hidden**-0.5
    head[1:].add_(embedding[:-1], alpha=scale)
    head[:1].add_(embedding[-1:], alpha=scale)


# ---------------------------------------------------------------------------------------------- small, on the host


def randomize(module: nn.Module, seed: int) -> None:
    """Fill weights in place, each from its own name and the seed: variance 1/fan-in, norms near one."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        generator = torch.Generator().manual_seed(_tensor_seed(seed, name))
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor.data.copy_(1 + 0.1 * values)
        elif name.endswith(".bias"):
            tensor.data.copy_(0.01 * values)
        elif tensor.is_floating_point() and not name.endswith(("_scales", "cos", "sin")):
            tensor.data.copy_(values * (1.0 if "embedding" in name else tensor.shape[-1] ** -0.5))
    for name, child in module.named_modules():
        if isinstance(child, RoutedExperts) and child.is_packed:
            _randomize_packed(child, _tensor_seed(seed, name))


def _randomize_packed(experts: RoutedExperts, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name in ("gate_up", "down"):
        packed, scales = getattr(experts, f"{name}_packed"), getattr(experts, f"{name}_scales")
        columns = packed.shape[-1] * 8
        weights = torch.randn(*packed.shape[:-1], columns, generator=generator) * columns**-0.5
        words, new_scales = int4.quantize(weights, experts.shape.group_size)
        packed.copy_(words)
        scales.copy_(new_scales)
