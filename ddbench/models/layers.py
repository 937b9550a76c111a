"""Building blocks shared by target and drafter: RMSNorm, rotary tables, SwiGLU.

Letters: B batch rows, N tokens, M hidden, I MLP width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from ddbench.kernels import rope as rope_kernel
from ddbench.models.kernel_set import TORCH
from ddbench.models.shapes import Llama3Shape, RopeShape


@dataclass(frozen=True, slots=True)
class Parts:
    """A product whose sum over its first dim is left to whoever reads it."""

    sums: torch.Tensor  # [S, ..., M] fp32, S > 1


# What a layer adds to the residual stream, [..., M], or two such, or parts: whose sum is left to the norm that follows.
Addend = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | Parts


class Projection(nn.Linear):
    """A bias-free projection by the product of a set of kernels."""

    kernels = TORCH
    is_join = False  # launched behind a join or a fork of streams: the usual way, whatever else it is

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
        return self.kernels.linear(x, self.weight, is_join=is_join or self.is_join)

    def parts(self, x: torch.Tensor) -> torch.Tensor | Parts:
        """[..., I] -> [..., O], or its parts, where the kernels split it."""
        return _product(x, self.kernels.linear_parts(x, self.weight, is_join=self.is_join))


def _product(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor | Parts:
    """What `linear_parts` made of x: parts have a dim more."""
    return Parts(out) if out.dim() > x.dim() else out


def linear(in_features: int, out_features: int) -> Projection:
    """A bias-free projection."""
    return Projection(in_features, out_features)


class JoinedProjections:
    """Projections of one input, as one product where `join` has put their weights into one matrix.

    Checkpoints keep them apart; a GPU reads one large matrix at a better rate than several small ones.
    """

    def __init__(self, *linears: Projection) -> None:
        self._linears = linears
        self._weight: torch.Tensor | None = None
        self._is_joined = False

    def join(self, wanted: bool) -> None:
        """Put the weights together, theirs becoming views of the whole; or go back to one product each.

        Once together they stay where they are: graphs that were recorded know their addresses.
        """
        self._is_joined = wanted
        if wanted and not self._is_whole():
            self._weight = torch.cat([one.weight.detach() for one in self._linears])
            for one, rows in zip(self._linears, self._weight.split(self._sizes), strict=True):
                one.weight.data = rows

    def _is_whole(self) -> bool:
        """The weights lie together, and nobody has moved or replaced one since."""
        whole = self._weight
        if whole is None:
            return False
        views = zip(self._linears, whole.split(self._sizes), strict=True)
        return all(one.weight.is_set_to(rows) for one, rows in views)

    @property
    def linears(self) -> tuple[Projection, ...]:
        """The projections, in the order of the results."""
        return self._linears

    @property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """What the products read: the whole where joined."""
        return tuple(one.weight for one in self._linears) if self._joined is None else (self._joined,)

    @property
    def _joined(self) -> torch.Tensor | None:
        return self._weight if self._is_joined else None

    @property
    def _sizes(self) -> list[int]:
        return [one.out_features for one in self._linears]

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """[..., M] -> each projection's [..., rows]; views of one tensor where joined."""
        if self._joined is None:
            return [one(x) for one in self._linears]
        return self._linears[0].kernels.linear(x, self._joined).split(self._sizes, dim=-1)

    def parts(self, x: torch.Tensor) -> torch.Tensor | Parts | None:
        """[..., M] -> [..., all rows], or its parts; None where they are not joined."""
        if self._joined is None:
            return None
        return _product(x, self._linears[0].kernels.linear_parts(x, self._joined))


class RMSNorm(nn.Module):
    """`weight * x / rms(x)`, fp32 inside, over the last dim."""

    kernels = TORCH

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: Addend, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """-> (the norm of `x + residual`, the sum itself), both [..., M]; without a residual the sum is x."""
        if isinstance(x, Parts):
            assert residual is not None, "parts are added to a stream"
            return self.kernels.add_rms_norm(x.sums, residual, self.weight, self.eps, in_parts=True)
        x, more = x if isinstance(x, tuple) else (x, None)
        if residual is None:
            x = x if more is None else x + more
            return self(x), x
        if more is None:
            return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps, more)


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`, gate and up in one matrix (gate rows first)."""

    kernels = TORCH

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = linear(hidden, 2 * width)
        self.down = linear(width, hidden)

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up.parts(x)
        if isinstance(gate_up, Parts):
            return self.kernels.swiglu(gate_up.sums, in_parts=True, dtype=x.dtype)
        return self.kernels.swiglu(gate_up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._hidden(x))

    def addend(self, x: torch.Tensor) -> Addend:
        """The same, its sum left to the norm that follows where it is split."""
        return self.down.parts(self._hidden(x))


class FixedPrecision(nn.Module):
    """A module some of whose buffers follow it to other devices but keep their dtype and values in every precision."""

    FIXED: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        kept = {name: getattr(self, name) for name in self.FIXED if name in self._buffers}
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            setattr(self, name, tensor.to(getattr(self, name).device))
        return self


class RotaryTable(FixedPrecision):
    """cos and sin of every position; `rows` picks those of the tokens at hand.

    Always fp32: bf16 angles go wrong within a few hundred positions.
    """

    FIXED = ("cos", "sin")
    cos: torch.Tensor  # [positions, rotary_dim/2]
    sin: torch.Tensor

    def __init__(self, shape: RopeShape, num_positions: int) -> None:
        super().__init__()
        yarn = shape.yarn
        scale = 1.0
        if yarn is not None:
            scale = rope_kernel.yarn_mscale(yarn.factor, yarn.mscale)
            scale /= rope_kernel.yarn_mscale(yarn.factor, yarn.mscale_all_dim)
        freq = rope_kernel.inv_freq(shape.rotary_dim, shape.theta, None if yarn is None else yarn.model_dump())
        if shape.llama3 is not None:
            freq = slowed(freq, shape.llama3)
        cos, sin = rope_kernel.cos_sin(freq, num_positions, scale)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin rows of `positions` [B, N], each [B, N, 1, rotary_dim/2]."""
        return self.cos[positions][:, :, None], self.sin[positions][:, :, None]


def slowed(freq: torch.Tensor, shape: Llama3Shape) -> torch.Tensor:
    """Llama 3.1's frequencies of plain ones, [pairs] fp32.

    Pairs of more than `high_freq_factor` turns within the original context keep their frequency, those of fewer than
    `low_freq_factor` are slowed by `factor`; in between a share of each, linear in the turns.
    """
    plain = freq.double()
    turns = shape.original_context * plain / (2 * math.pi)
    kept = ((turns - shape.low_freq_factor) / (shape.high_freq_factor - shape.low_freq_factor)).clamp(0, 1)
    return (plain * kept + plain / shape.factor * (1 - kept)).float()


def attention_scale(head_dim: int, rope: RopeShape) -> float:
    """Softmax scale `head_dim^-0.5`, times YaRN's squared attention temperature where the context is extended."""
    scale = head_dim**-0.5
    if rope.yarn is not None:
        scale *= rope_kernel.yarn_mscale(rope.yarn.factor, rope.yarn.mscale_all_dim) ** 2
    return scale
