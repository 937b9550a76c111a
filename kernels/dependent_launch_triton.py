"""Launches that begin while the launch before them ends: programmatic dependent launch, on Hopper.

Where in the flow: every Triton launch of a round. A graph of small kernels spends as much on their beginnings (node to
node, parameters, first instructions) as on their work; a dependent launch has that behind it when the launch before it
ends. In a stream it follows whatever was launched before it; captured, that becomes a programmatic edge of the graph.

What makes it right, for every kernel that is launched so (`tests/kernels/test_dependent_launch.py` reads the machine
code):
1. Every program waits, on every path and before it returns, and neither reads nor writes what an earlier launch writes
   or reads until then. `griddepcontrol.wait` ends when the launch before is complete and its writes are visible.
2. It lets its own dependents begin only after that. So when a kernel begins, every launch but the one before it is
   complete: no chain of early starts reaches further back than one launch.
3. Then a value may be read before the wait only if the launch before cannot write it: where the same launcher made that
   launch and its kernel does not (a combining kernel's lengths, a router's choice), or nobody does in any launch.
   Weights that a caller may just have made are not such values.
Products, copies and fills are launched the usual way: they wait for the whole of what was launched before them, and a
kernel behind one of them waits for its end. So does the first launch on a side stream, and the first behind a join.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_launch_before(IS_DEPENDENT: tl.constexpr):
    """The launch before is complete; the one behind may begin, and will wait for this one here."""
    if IS_DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@cache
def _generation(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0]


def is_hopper(tensor: torch.Tensor) -> bool:
    """Whether kernels on this tensor are compiled for such a GPU: not interpreted, and not for another kind."""
    return not triton.knobs.runtime.interpret and tensor.is_cuda and _generation(tensor.device) == 9


def dependence(tensor: torch.Tensor, *, is_join: bool = False) -> dict[str, Any]:
    """What a launch on this tensor's device is told: IS_DEPENDENT for its kernel, and the launch's own option.

    The first launch behind a join of streams waits as launches do for all that is before it, and finds its own wait
    over.
    """
    if not is_hopper(tensor):
        return {"IS_DEPENDENT": False}
    return {"IS_DEPENDENT": True} if is_join else {"IS_DEPENDENT": True, "launch_pdl": True}
