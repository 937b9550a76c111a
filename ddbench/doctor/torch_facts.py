"""What torch can do here, asked in a process of its own: a broken driver may hang it or end it.

Run as `python -m ddbench.doctor.torch_facts`; the answer is one line of JSON, the fields of `machine.TorchFacts`.
"""

from __future__ import annotations

import json
import sys

from ddbench.errors import shown


def read_facts() -> dict[str, str | None]:
    """Version, CUDA, and the GPU if it computes what it should."""
    import torch

    facts: dict[str, str | None] = {"version": torch.__version__, "cuda": torch.version.cuda}
    try:
        if torch.version.cuda is not None and torch.cuda.device_count():
            total = torch.ones(1024, device="cuda").sum().item()
            if total != 1024:
                return {**facts, "error": f"the GPU computes wrongly: expected 1024, got {total}"}
            major, minor = torch.cuda.get_device_capability(0)
            return {**facts, "device": torch.cuda.get_device_name(0), "capability": f"{major}.{minor}"}
    except (RuntimeError, AssertionError) as error:
        return {**facts, "error": shown((str(error).splitlines() or [type(error).__name__])[0], 200)}
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_facts()) + "\n")
