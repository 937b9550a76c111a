"""Lets Triton 3.6 interpret `range` over a kernel's own bounds with numpy 2.4; children that interpret import it.

Scalars are arrays of one element to the interpreter. Triton 3.6 hands `range` int(array) of them, which numpy refuses
from 2.4 on; Triton 3.7 squeezes them first.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_and_index(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


if triton.__version__.startswith("3.6."):
    interpreter._patch_lang_tensor = _patch_tensor_and_index
