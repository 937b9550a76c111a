"""The next layer's weights on their way into the L2 cache while a layer runs: a branch beside a forward of few tokens.

Where in the flow: DRAFT, VERIFY, and a prefill as short as they are. The branch is forked at the start of every layer
but the last and joined once, before the head's product; a recorded graph holds it as it is. What is asked for changes
no result.

It pays where products wait for memory although there is enough of it: layers so small that this layer's weights, the
next one's and what a round writes lie in the cache side by side, in a model that does not stay there as a whole. Large
layers lose by it, models that stay in the cache have nothing to wait for (`kernels/prefetch_triton.py` has the
numbers). Experts are not known before they are chosen: a model that has some is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ddbench.models.kernel_set import TORCH, KernelSet
from ddbench.models.layers import Projection, SwiGLU

HOPPER = 9  # the generation of GPUs that `kernels/prefetch_triton.py` asks
FEW_TOKENS = 528  # measured up to so many: 35 to 97 us less for a round, 3 to 11 %
LAYERS_IN_CACHE = 4  # the L2 holds so many of the largest layer, or no layer is asked for


class Layer(Protocol):
    """What the target's and the drafter's layers have in common."""

    attention: Any  # with `projections`
    mlp: Any

    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[torch.Tensor]: ...


def weights(layer: Layer) -> list[torch.Tensor]:
    """The matrices that a dense layer's products read, in their order; joined projections are one."""
    joined = layer.attention.projections
    others = [one for one in layer.modules() if isinstance(one, Projection) and one not in joined.linears]
    return [*joined.weights, *(one.weight for one in others)]


def num_bytes(layer: Layer) -> int:
    """Of all that a layer holds, experts too."""
    return sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))


def are_small(layers: Sequence[Layer], cache_bytes: int) -> bool:
    """Whether a cache has room for the next of these layers beside what runs."""
    is_dense = all(isinstance(layer.mlp, SwiGLU) for layer in layers)
    return is_dense and LAYERS_IN_CACHE * max(map(num_bytes, layers)) <= cache_bytes


class Prefetch:
    """A model's: whether its layers are to be asked for is decided when it is given its kernels."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._kernels = TORCH
        self._stream: torch.cuda.Stream | None = None  # where the layers are small
        self._outgrows_cache = False
        self._asked: tuple[list[torch.Tensor], ...] = ()  # each layer's weights, once a branch needs them

    def use(self, kernels: KernelSet, side_stream: torch.cuda.Stream | None) -> None:
        """`side_stream` is None where nothing runs beside anything: on a CPU, and in plain torch."""
        self._kernels = kernels
        self._stream = None
        self._asked = ()  # other kernels join other projections
        if side_stream is not None and torch.cuda.get_device_capability(side_stream.device)[0] == HOPPER:
            self.decide(side_stream, torch.cuda.get_device_properties(side_stream.device).L2_cache_size)

    def decide(self, side_stream: torch.cuda.Stream, cache_bytes: int) -> None:
        """For a device whose L2 has so many bytes."""
        self._stream = side_stream if are_small(self._layers, cache_bytes) else None
        self._outgrows_cache = sum(map(num_bytes, self._layers)) > cache_bytes

    def is_wanted(self, num_tokens: int, *, behind: Prefetch | None = None) -> bool:
        """For a forward of so many tokens.

        `behind` is another model's whose layers run between two forwards of this one: they may be what puts this one's
        out of the cache.
        """
        is_cold = self._outgrows_cache or (behind is not None and behind._outgrows_cache)
        return self._stream is not None and is_cold and num_tokens <= FEW_TOKENS

    def branch(self, num_tokens: int, *, behind: Prefetch | None = None) -> Branch:
        """Of one forward, one that does nothing where it is not wanted."""
        if not self.is_wanted(num_tokens, behind=behind):
            return Branch((), self._kernels, None)
        self._asked = self._asked or tuple(map(weights, self._layers))
        return Branch(self._asked, self._kernels, self._stream)


class Branch:
    """Beside one forward; nothing where there is no stream for it."""

    def __init__(
        self,
        asked: Sequence[Sequence[torch.Tensor]],  # the weights of each layer
        kernels: KernelSet,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._asked, self._kernels, self._stream = asked, kernels, stream
        self._is_open = False

    def fork(self, layer: int) -> None:
        """At the start of a layer: ask for the weights of the one behind it."""
        if self._stream is None or layer + 1 >= len(self._asked):
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._kernels.prefetch(self._asked[layer + 1])
        self._is_open = True

    def join(self) -> bool:
        """Before the forward's last launches. -> Whether the next one is the first behind a join of streams."""
        if self._stream is None or not self._is_open:
            return False
        torch.cuda.current_stream().wait_stream(self._stream)
        self._is_open = False
        return True
