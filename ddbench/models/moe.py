"""Mixture of experts: a sigmoid router with selection bias, routed experts (float or INT4), shared experts.

Letters: T tokens, M hidden, E experts, k chosen experts, I expert width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ddbench.kernels import int4
from ddbench.models.kernel_set import TORCH
from ddbench.models.layers import FixedPrecision, SwiGLU
from ddbench.models.routing import grouped_route
from ddbench.models.shapes import MoEShape

_MATRICES = ("gate_up", "down")
OVERLAPPED_TOKENS = 256  # up to so many, the products of the experts wait for memory and not for arithmetic


class RoutedExperts(FixedPrecision):
    """E SwiGLU experts stacked, those held here of a router's choices (`MoEShape`): the others' add nothing.

    INT4 keeps packed words and scales; `dequantize` unpacks them once, for good.
    """

    kernels = TORCH
    FIXED = ("gate_up_scales", "down_scales")  # bf16 as stored, whatever precision the model computes in
    gate_up: torch.Tensor  # [E, 2I, M], gate rows first; where the experts are float
    down: torch.Tensor  # [E, M, I]
    gate_up_packed: torch.Tensor  # [E, 2I, M/8] int32; where they are packed
    gate_up_scales: torch.Tensor  # [E, 2I, M/group] bf16
    down_packed: torch.Tensor  # [E, M, I/8] int32
    down_scales: torch.Tensor  # [E, M, I/group] bf16

    def __init__(self, hidden: int, shape: MoEShape) -> None:
        super().__init__()
        self.shape = shape
        self.is_packed = shape.weight_format == "int4"
        # Where all experts are here, nothing is asked of the ids: not one op more.
        self.share = {"first_expert": shape.first_expert} if shape.is_share else {}
        sizes = {"gate_up": (2 * shape.expert_width, hidden), "down": (hidden, shape.expert_width)}
        for name, (rows, columns) in sizes.items():
            if self.is_packed:
                words = torch.zeros(shape.num_held, rows, columns // 8, dtype=torch.int32)
                scales = torch.zeros(shape.num_held, rows, columns // shape.group_size, dtype=torch.bfloat16)
                self.register_buffer(f"{name}_packed", words)
                self.register_buffer(f"{name}_scales", scales)
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(shape.num_held, rows, columns)))

    def dequantize(self, dtype: torch.dtype) -> None:
        """Replace packed words by float weights of the same values."""
        assert self.is_packed, "experts are not packed"
        for name in _MATRICES:
            packed, scales = getattr(self, f"{name}_packed"), getattr(self, f"{name}_scales")
            delattr(self, f"{name}_packed")
            delattr(self, f"{name}_scales")
            weights = int4.dequantize(packed, scales, self.shape.group_size, dtype)
            self.register_parameter(name, nn.Parameter(weights, requires_grad=False))
        self.is_packed = False

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self.is_packed:
            return self.kernels.moe_experts_int4(
                x, ids, weights, self.gate_up_packed, self.gate_up_scales, self.down_packed, self.down_scales,
                self.shape.group_size, **self.share,
            )  # fmt: skip
        return self.kernels.moe_experts(x, ids, weights, self.gate_up, self.down, **self.share)


class MoE(FixedPrecision):
    """Router, routed experts and shared experts (one SwiGLU of `num_shared` times the expert width)."""

    kernels = TORCH
    FIXED = ("bias",)
    bias: torch.Tensor  # [E] fp32, added to the scores for the choice only

    def __init__(self, hidden: int, shape: MoEShape) -> None:
        super().__init__()
        self.shape = shape
        self.is_wide = False  # run all experts on all tokens: for thousands of rows, where no host sync is wanted
        self.gate = nn.Parameter(torch.empty(shape.num_experts, hidden))
        self.register_buffer("bias", torch.zeros(shape.num_experts))
        self.experts = RoutedExperts(hidden, shape)
        self.shared = SwiGLU(hidden, shape.num_shared * shape.expert_width)
        self.shared.gate_up.is_join = True  # the first launch behind the fork (kernels/dependent_launch_triton.py)
        self.side_stream: torch.cuda.Stream | None = None  # on a GPU: what the shared experts run on beside the others

    @property
    def plain_ops(self) -> tuple[str, ...]:
        """Ops of a kernel set that are plain torch here: no set has a routing that is limited to groups."""
        return ("moe_route",) if self.shape.num_groups > 1 else ()

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, M] -> (expert ids [T, k], weights [T, k] fp32)."""
        if self.shape.num_groups > 1:  # see `plain_ops`
            return grouped_route(x, self.gate, self.bias, self.shape)
        return self.kernels.moe_route(x, self.gate, self.bias, self.shape.top_k, self.shape.routed_scaling)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., M] -> [..., M]."""
        addend = self.addend(x)
        return addend if isinstance(addend, torch.Tensor) else addend[0] + addend[1]

    def addend(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """What is to be added up: the routed experts' and the shared ones' outputs; one tensor in the wide form."""
        if self.is_wide:
            return self.full(x)[0]
        flat = x.flatten(0, -2)  # [T, M]
        if self.side_stream is not None and len(flat) <= OVERLAPPED_TOKENS:
            routed, shared = self._overlapped(flat, self.side_stream)
        else:
            routed, shared = self.experts(flat, *self.route(flat)), self.shared(flat)
        return routed.view_as(x), shared.view_as(x)

    def _overlapped(self, flat: torch.Tensor, side_stream: torch.cuda.Stream) -> tuple[torch.Tensor, torch.Tensor]:
        """Shared experts beside the routed ones, on a stream of their own: for few tokens both wait for memory.

        Fork and join order every use of a tensor on either stream, so that the allocator needs no more to know.
        """
        main = torch.cuda.current_stream()
        side_stream.wait_stream(main)
        with torch.cuda.stream(side_stream):
            shared = self.shared(flat)
        ids, weights = self.route(flat)
        routed = self.experts(flat, ids, weights)
        main.wait_stream(side_stream)
        return routed, shared

    def full(self, x: torch.Tensor, fake_quantize: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """All experts on all tokens, masked by the routing weights: one wide MLP, the fast form for training.

        x [..., M] -> (output, tokens per expert [E]). `fake_quantize` rounds the experts to INT4 with a
        straight-through gradient, so that what is trained is what will be stored.
        """
        assert not self.experts.is_packed, "the wide form needs float experts"
        assert not self.shape.is_share, "the wide form needs every expert"
        flat = x.flatten(0, -2)
        with torch.autocast(x.device.type, enabled=False):  # bf16 scores would choose other experts than inference
            ids, chosen = self.route(flat.float())
        gate_up, down = self.experts.gate_up, self.experts.down
        if fake_quantize:
            gate_up, down = (int4.fake_quantize(w, self.shape.group_size) for w in (gate_up, down))
        out = _wide(flat, ids, chosen, gate_up, down)
        load = torch.zeros_like(self.bias).index_add(0, ids.flatten(), torch.ones_like(chosen.flatten()))
        return (out + self.shared(flat)).view_as(x), load


def _wide(
    x: torch.Tensor, ids: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Every expert as a slice of one SwiGLU of width E*I, unchosen slices multiplied by zero. x [T, M] -> [T, M]."""
    num_experts = gate_up.shape[0]
    weights = torch.zeros(len(x), num_experts, device=x.device, dtype=chosen.dtype).scatter(1, ids, chosen)  # [T, E]
    gate, up = gate_up.to(x.dtype).chunk(2, dim=1)  # [E, I, M] each
    hidden = F.silu(F.linear(x, gate.flatten(0, 1))) * F.linear(x, up.flatten(0, 1))  # [T, E*I]
    hidden = hidden.unflatten(1, (num_experts, -1)) * weights.to(hidden.dtype)[..., None]
    return F.linear(hidden.flatten(1), down.to(x.dtype).permute(1, 0, 2).flatten(1))
