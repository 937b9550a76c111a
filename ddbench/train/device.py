"""Whether the device that a command of `ddbench train` asks for is there."""

from __future__ import annotations

import torch

from ddbench.errors import UserError


def require_device(device: str) -> None:
    """For evaluation, which a CPU does too."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda': torch sees no CUDA device here; use --device cpu")


def require_training_device(device: str) -> None:
    """For training and bulk decoding."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device here; training on a CPU takes days: pass --device cpu only for a rehearsal")
