"""Every target that has a name, with what a reader has to know of it: the one source of `ddbench models list`, of
`ddbench list` and of the table in the README.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ddbench.models.checkpoints.fetchable import FETCHABLE, Fetchable, fetched_folder
from ddbench.models.lab_format import read_shapes
from ddbench.models.shapes import DRAFTERS, TARGETS, MLAShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import PRETRAINED, count_parameters, target_names

Weights = Literal["shipped", "fetched", "to be fetched", "random"]
BYTES_PER_FLOAT = 2  # bf16


@dataclass(frozen=True, slots=True)
class Entry:
    """A named target. What is counted out of its shape is counted when it is asked for."""

    name: str
    weights: Weights
    licence: str
    has_drafter: bool
    acceptance: str  # what an acceptance length of it is worth; replayed: the profile of another pair
    subject: Fetchable | TargetShape

    @property
    def architecture(self) -> str:
        return self.subject.architecture if isinstance(self.subject, Fetchable) else architecture(self.subject)

    @property
    def num_parameters(self) -> int:
        return self.subject.num_parameters if isinstance(self.subject, Fetchable) else num_parameters(self.subject)

    @property
    def num_bytes(self) -> int:
        """On disk, where the weights are or will be there; else as bf16 with INT4 experts packed."""
        if isinstance(self.subject, Fetchable):
            return self.subject.disk_bytes
        if self.weights == "shipped":
            return (PRETRAINED / self.name / "target.safetensors").stat().st_size
        return weight_bytes(self.subject)


def catalog() -> tuple[Entry, ...]:
    """All of them by name."""
    names = sorted({*target_names(), *FETCHABLE})
    return tuple(_fetchable(FETCHABLE[name]) if name in FETCHABLE else _ours(name) for name in names)


def _fetchable(model: Fetchable) -> Entry:
    has_drafter = (PRETRAINED / f"{model.name}-dflash" / "config.json").is_file()
    return Entry(
        name=model.name,
        weights="to be fetched" if fetched_folder(model.name) is None else "fetched",
        licence=model.licence,
        has_drafter=has_drafter,
        acceptance="measured" if has_drafter else "measured, with --drafter",
        subject=model,
    )


def _ours(name: str) -> Entry:
    folder = PRETRAINED / name
    is_shipped = (folder / "config.json").is_file()
    return Entry(
        name=name,
        weights="shipped" if is_shipped else "random",
        licence="Apache-2.0" if is_shipped else "-",
        has_drafter=is_shipped or name in DRAFTERS,
        acceptance="measured, of this pair only" if is_shipped else "replayed",
        subject=read_shapes(folder)[0] if is_shipped else TARGETS[name],
    )


def architecture(shape: TargetShape) -> str:
    """`36 layers, GQA 32/8, tied`; what decides the cost, in few words."""
    attention = shape.attention
    if isinstance(attention, MLAShape):
        kind = f"MLA {attention.num_heads} heads, latent {attention.kv_lora_rank}"
    else:
        kind = f"GQA {attention.num_heads}/{attention.num_kv_heads}"
    parts = [f"{shape.num_layers} layers", kind]
    if shape.moe is not None:
        held = "" if not shape.moe.is_share else f"{shape.moe.num_held} of "
        packed = " INT4" if shape.moe.weight_format == "int4" else ""
        parts.append(f"{held}{shape.moe.num_experts}{packed} experts, {shape.moe.top_k} at a time")
    return ", ".join([*parts, *(["tied"] if shape.tie_embeddings else [])])


def num_parameters(shape: TargetShape) -> int:
    """Of a target, its share of the experts where it is one."""
    with torch.device("meta"):
        return count_parameters(Target(shape))


def weight_bytes(shape: TargetShape) -> int:
    """Of the weights in bf16, INT4 experts packed."""
    with torch.device("meta"):
        model = Target(shape)
    packed = sum(buffer.nbytes for name, buffer in model.named_buffers() if name.endswith(("_packed", "_scales")))
    return sum(BYTES_PER_FLOAT * parameter.numel() for parameter in model.parameters()) + packed
