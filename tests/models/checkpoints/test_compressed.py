"""INT4 as compressed-tensors packs it: our unpacking is that of a numpy oracle and, where it is installed, of its own
library.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddbench.kernels import int4

ROWS, COLUMNS, GROUP = 6, 96, 32


def random_words() -> tuple[torch.Tensor, torch.Tensor]:
    """Nibbles of every value, and scales of either sign."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(-8, 8, (ROWS, COLUMNS), generator=generator, dtype=torch.int8)
    scales = torch.randn(ROWS, COLUMNS // GROUP, generator=generator).bfloat16()
    return values, scales


def packed(values: torch.Tensor) -> torch.Tensor:
    """By the book: value + 8, eight to a word, the first one in the lowest bits."""
    unsigned = (values.numpy().astype(np.int64) + 8).astype(np.uint64).reshape(ROWS, -1, 8)
    words = sum(unsigned[:, :, i] << np.uint64(4 * i) for i in range(8))
    return torch.from_numpy(np.asarray(words).astype(np.uint32).view(np.int32))


def test_unpacking_is_that_of_numpy():
    values, scales = random_words()
    expected = values.numpy().astype(np.float32) * np.repeat(scales.float().numpy(), GROUP, axis=1)
    found = int4.dequantize(packed(values), scales, GROUP, torch.float32)
    assert np.array_equal(found.numpy(), expected)
    assert {int(one) for one in values.unique()} == set(range(-8, 8))


def test_unpacking_is_that_of_the_library():
    library = pytest.importorskip("compressed_tensors.compressors", reason="pip install compressed-tensors")
    values, scales = random_words()
    words = library.pack_to_int32(values, 4)
    assert torch.equal(words, packed(values))
    unpacked = library.unpack_from_int32(words, 4, torch.Size((ROWS, COLUMNS)))
    assert torch.equal(unpacked, values)
    expected = unpacked.float() * scales.float().repeat_interleave(GROUP, dim=1)
    assert torch.equal(int4.dequantize(words, scales, GROUP, torch.float32), expected)
