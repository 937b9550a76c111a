"""The training card of a shipped model: what was trained, on what, by which command, with which curve."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def software() -> dict[str, str]:
    """Versions and device that a rerun would need to match."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"python": platform.python_version(), "torch": torch.__version__, "device": device}


def update_card(folder: Path, part: str, facts: Mapping[str, Any]) -> Path:
    """Put `facts` under `part` ('target', 'drafter', 'evaluation') in the folder's training-card.json."""
    path = folder / "training-card.json"
    card = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    card[part] = dict(facts)
    path.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path
