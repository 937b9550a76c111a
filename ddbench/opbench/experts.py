"""Routed experts in INT4: the share that one rank of an expert-parallel group holds.

Tokens choose among all experts; a rank computes the choices that fall into its share. Choices are random, drawn again
until as many fall into the share as do on average, so that shapes compare: how many experts that makes is left open,
and every set of inputs has choices of its own. Letters: T tokens, M hidden, E experts held here, I expert width, k
chosen per token.
"""

from __future__ import annotations

import torch

from ddbench.kernels.moe_experts import moe_experts_int4
from ddbench.models.shapes import target_shape
from ddbench.opbench.records import Target
from ddbench.opbench.shapes import BenchOp, Implementation, Inputs, Place, Shape, plain
from ddbench.opbench.triton_calls import launch, triton_kernel
from ddbench.ops import OPS

TARGETS = (Target(metric="share_of_read", limit=0.6),)
NIBBLE_STD = 4.6  # of a uniform nibble, less 8
WEIGHTS = ("gate_up_packed", "gate_up_scales", "down_packed", "down_scales")


def choices(seed: int, tokens: int, top_k: int, num_experts: int, first: int, held: int) -> torch.Tensor:
    """Expert ids [T, k], distinct within a token, of which `T * k * held / num_experts` (rounded) are held here."""
    generator = torch.Generator().manual_seed(seed)
    expected = round(tokens * top_k * held / num_experts)
    while True:
        ids = torch.rand(tokens, num_experts, generator=generator).argsort(dim=1)[:, :top_k]
        if int(((ids >= first) & (ids < first + held)).sum()) == expected:
            return ids.contiguous()


def build(place: Place, seed: int, **dims: int) -> Inputs:
    """Words at random; scales that give an expert's output the size of its input."""
    generator = place.generator(seed)
    held, hidden, width, group = (dims[name] for name in ("held", "hidden", "width", "group"))

    def packed(rows: int, columns: int) -> torch.Tensor:
        sizes = (held, rows, columns // 8)
        limits = (-(1 << 31), (1 << 31) - 1)
        return torch.randint(*limits, sizes, generator=generator, device=place.device, dtype=torch.int32)

    def scales(rows: int, columns: int) -> torch.Tensor:
        values = torch.rand(held, rows, columns // group, generator=generator, device=place.device)
        return ((0.5 + values) * columns**-0.5 / NIBBLE_STD).to(torch.bfloat16)

    routing = {"tokens": dims["tokens"], "top_k": dims["top_k"], "num_experts": dims["experts"]}
    ids = choices(seed, first=dims["first"], held=held, **routing)
    return {
        "x": place.randn(generator, dims["tokens"], hidden),
        "expert_ids": ids.to(place.device),
        "weights": torch.rand(ids.shape, generator=generator, device=place.device),
        "gate_up_packed": packed(2 * width, hidden),
        "gate_up_scales": scales(2 * width, hidden),
        "down_packed": packed(hidden, width),
        "down_scales": scales(hidden, width),
        "group": group,
        "first_expert": dims["first"],
        "num_experts": dims["experts"],
    }


def _other_choices(inputs: Inputs, index: int) -> Inputs:
    """The same weights, other choices."""
    tokens, top_k = inputs["expert_ids"].shape
    first, held = inputs["first_expert"], inputs["gate_up_packed"].shape[0]
    ids = choices(1000 + index, tokens, top_k, inputs["num_experts"], first, held)
    return inputs | {"expert_ids": ids.to(inputs["x"].device)}


ARGUMENTS = ("x", "expert_ids", "weights", *WEIGHTS, "group", "first_expert")
_grouped = plain(moe_experts_int4, *ARGUMENTS, form="grouped")


def _cost(inputs: Inputs) -> dict[str, int]:
    """Of the choices held here only."""
    ids, first = inputs["expert_ids"].cpu(), inputs["first_expert"]
    here = ids[(ids >= first) & (ids < first + inputs["gate_up_packed"].shape[0])]
    chosen = {name: inputs[name] for name in ("x", "weights", *WEIGHTS, "group")}
    return OPS["moe_experts_int4"].cost(**chosen, expert_ids=here)


def _shape(target: str, tokens: int, ranks: int = 1) -> Shape:
    whole = target_shape(target)
    moe = whole.moe
    assert moe is not None, f"{target} has no experts"
    held = moe.num_experts // ranks
    rank = f"-ep{ranks}" if ranks > 1 else ""
    return Shape(
        name=f"{target}{rank}-t{tokens}",
        about=f"{held} of {moe.num_experts} experts, {tokens} token{'s' * (tokens > 1)}",
        tier="default" if ranks > 1 else "quick",
        dims={
            "tokens": tokens,
            "hidden": whole.hidden,
            "held": held,
            "experts": moe.num_experts,
            "first": held if ranks > 1 else 0,  # the second rank's
            "top_k": moe.top_k,
            "width": moe.expert_width,
            "group": moe.group_size,
        },
        targets=TARGETS if ranks > 1 else (),
    )


EXPERTS = (
    BenchOp(
        name="moe_experts_int4",
        build=build,
        cost=_cost,
        oracle=lambda inputs: _grouped(inputs)(),
        another=_other_choices,
        is_shared=True,
        implementations=(
            triton_kernel(launch("moe_experts", "moe_experts_int4_triton", *ARGUMENTS)),
            Implementation("grouped", "torch", _grouped, has_host_sync=True),
        ),
        shapes=(
            *(_shape("kimi-k2.6", tokens, ranks=8) for tokens in (1, 4, 8, 16, 32, 64)),
            *(_shape("nano-k2", tokens) for tokens in (1, 17)),
        ),
    ),
)
