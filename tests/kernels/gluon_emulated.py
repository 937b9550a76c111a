"""The child process that runs the Hopper kernel of tree attention on a CPU: its own source, with stand-ins for what it
takes from Gluon. Partitions are threads, barriers have the phases of PTX mbarriers, a product reads its operands when
it is waited for, bf16 is fp32. A partition that waits for ever, or two arrivals of one partition in a phase, fail.
The launcher and the combine kernel are the product's, interpreted. Answers with JSON: case -> "" or what went wrong."""

from __future__ import annotations

import json
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy_scalars  # noqa: F401 what it changes is all it does
import torch

from ddbench.kernels import tree_attention_gluon as hopper
from ddbench.kernels import tree_attention_triton as launcher
from ddbench.kernels.tree_attention_plan import TILES_HOPPER, Plan, cut, tree_attention_plan
from ddbench.reference import tree_attention as spec
from ddbench.testing import poison, relative_error

PATIENCE = 20.0  # seconds
PROBLEMS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
DTYPES = {"int32": np.int32, "int64": np.int64, "uint32": np.uint32, "uint64": np.uint64}
DTYPES |= {"float32": np.float32, "bfloat16": np.float32}


class Value(np.ndarray):
    def __array_wrap__(self, array, context=None, return_scalar=False):
        return np.asarray(array).view(Value)

    def to(self, dtype, bitcast=False):
        return self.view(dtype) if bitcast else self.astype(dtype)

    def __iadd__(self, other):  # a name is bound anew; partitions share no variables
        return self + other

    def __isub__(self, other):
        return self - other


def value(x) -> Value:
    return np.asarray(x).view(Value)


class Pointer:
    def __init__(self, memory: np.ndarray, offset=0) -> None:
        self.memory, self.offset = memory, offset
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)


def flat(tensor: torch.Tensor) -> Pointer:
    return Pointer(tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0).numpy())


def load(pointer, mask=True, other=0):
    at = np.asarray(pointer.offset)
    there = np.broadcast_to(mask, np.broadcast_shapes(at.shape, np.shape(mask)))
    at = np.broadcast_to(at, there.shape)
    assert np.all((at[there] >= 0) & (at[there] < pointer.memory.size)), "a read outside of its tensor"
    return value(np.where(there, pointer.memory[np.where(there, at, 0)], np.asarray(other, pointer.memory.dtype)))


def store(pointer, data, mask):
    at = np.asarray(pointer.offset)
    there = np.broadcast_to(mask, np.broadcast_shapes(at.shape, np.shape(data)))
    at = np.broadcast_to(at, there.shape)[there]
    assert np.all((at >= 0) & (at < pointer.memory.size)), "a write outside of its tensor"
    pointer.memory[at] = np.broadcast_to(data, there.shape)[there]


class Shared:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def index(self, i):
        return Shared(self.array[int(i)])

    def slice(self, start, length, dim):
        return Shared(self.array[:, start : start + length] if dim == 1 else self.array[start : start + length])

    def permute(self, order):
        return Shared(self.array.transpose(order))

    def load(self, layout):
        return value(self.array.copy())

    def store(self, data):
        self.array[...] = data


class Barrier:
    def __init__(self) -> None:
        self.changed, self.count, self.phase = threading.Condition(), 0, 0

    def init(self, count):
        assert self.count == 0, "a barrier initialised twice"
        self.count, self.pending, self.bytes, self.arrived = count, count, 0, set()

    def step(self, arrivals, num_bytes):
        with self.changed:
            assert self.count > 0, "a barrier used before its initialisation"
            if arrivals:
                me = threading.get_ident()
                assert me not in self.arrived, "a second arrival in one phase"
                self.arrived.add(me)
            self.pending, self.bytes = self.pending - arrivals, self.bytes + num_bytes
            if self.pending == 0 and self.bytes == 0:
                self.pending, self.phase, self.arrived = self.count, self.phase + 1, set()
                self.changed.notify_all()

    def wait(self, parity):
        with self.changed:
            assert self.count > 0, "a barrier used before its initialisation"
            assert self.changed.wait_for(lambda: self.phase % 2 != int(parity) % 2, PATIENCE), "waits for ever"


class Barriers:
    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, i):
        return self.all[int(i)]


PENDING = threading.local()


def warpgroup_mma(a, b, acc, *, use_acc=True, is_async=True):
    token = types.SimpleNamespace(operands=(a, b, acc, use_acc), result=None)
    PENDING.__dict__.setdefault("tokens", []).append(token)
    return token


def warpgroup_mma_wait(left, deps):
    tokens = PENDING.tokens
    while len(tokens) > left:
        token = tokens.pop(0)
        a, b, acc, use_acc = token.operands
        a, b = (x.array if isinstance(x, Shared) else np.asarray(x) for x in (a, b))
        token.result = value(a @ b + (np.asarray(acc) if use_acc else 0))
    assert deps[0].result is not None
    return deps[0].result


def copy(desc, where, barrier, to):
    row, column = (int(x) for x in where)
    box = desc.memory[row : row + to.array.shape[0], column : column + to.array.shape[1]]
    to.array[...] = 0
    to.array[: box.shape[0]] = box
    barrier.step(0, -desc.block_type.nbytes)


def specialize(partitions, warps, registers):
    errors: list[str] = []

    def run(function, arguments):
        try:
            function(*arguments)
            assert not PENDING.__dict__.get("tokens"), "a product that nobody waits for"
        except PROBLEMS:
            errors.append(traceback.format_exc())

    assert len(warps) == len(registers) == len(partitions) - 1
    threads = [threading.Thread(target=run, args=partition, daemon=True) for partition in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)


def shared_memory(dtype, shape, layout):
    return Barriers(shape[0]) if dtype is np.int64 else Shared(np.full(shape, np.nan, np.float32))


def nothing(*_, **__):
    return None


PROGRAM = [0]
LANGUAGE = types.SimpleNamespace(
    **DTYPES, constexpr=object, load=load, store=store, allocate_shared_memory=shared_memory, static_range=range,
    warp_specialize=specialize, program_id=lambda axis: value(np.int32(PROGRAM[axis])),
    arange=lambda low, high, layout: value(np.arange(low, high, dtype=np.int32)),
    where=lambda condition, a, b: value(np.where(condition, a, b)),
    minimum=lambda a, b: value(np.minimum(a, b)), maximum=lambda a, b: value(np.maximum(a, b)),
    max=lambda x, axis: value(x.max(axis)), sum=lambda x, axis: value(x.sum(axis, dtype=x.dtype)),
    exp2=lambda x: value(np.exp2(x)), cast=lambda x, dtype: value(np.asarray(x, dtype)),
    expand_dims=lambda x, axis: value(np.expand_dims(x, axis)),
    zeros=lambda shape, dtype, layout: value(np.zeros(shape, dtype)),
    convert_layout=lambda x, layout: x, associative_scan=lambda x, axis, add: value(np.cumsum(x, axis, dtype=x.dtype)),
    **dict.fromkeys(
        ("NVMMASharedLayout", "BlockedLayout", "SliceLayout", "DotOperandLayout", "NVMMADistributedLayout"), nothing
    ),
)  # fmt: skip
STAND_INS = {
    "gl": LANGUAGE,
    "mbarrier": types.SimpleNamespace(
        init=lambda barrier, count: barrier.init(count), wait=lambda barrier, parity: barrier.wait(parity),
        arrive=lambda barrier, count: barrier.step(count, 0), expect=lambda barrier, size: barrier.step(1, size),
        MBarrierLayout=nothing,
    ),
    "tma": types.SimpleNamespace(async_copy_global_to_shared=copy), "fence_async_shared": nothing,
    "thread_barrier": nothing, "warpgroup_mma": warpgroup_mma, "warpgroup_mma_wait": warpgroup_mma_wait,
    "gdc_launch_dependents": nothing, "gdc_wait": nothing,
}  # fmt: skip
for name in ("_add", "_word_pair", "_masked", "_produce", "_consume", "_tree_attention_hopper_kernel"):
    source = getattr(hopper, name).fn
    STAND_INS[name] = types.FunctionType(source.__code__, STAND_INS | {"__builtins__": __builtins__}, name)
for name in ("_word_pair", "_masked", "_produce", "_consume", "_tree_attention_hopper_kernel"):
    STAND_INS[name].__globals__.update(STAND_INS)


class Box(NamedTuple):
    """A matrix in memory, read by blocks."""

    base: torch.Tensor
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    layout: object


class Emulated:
    """In the place of the kernel in the product's `launch`."""

    def __getitem__(self, grid):
        def launched(*args, num_warps, launch_pdl, **constexprs):
            assert num_warps == 4
            assert launch_pdl
            values = [given(x) for x in args]
            for pid in range(grid[0]):
                PROGRAM[0] = pid
                STAND_INS["_tree_attention_hopper_kernel"](*values, **constexprs)

        return launched


def given(x):
    if isinstance(x, torch.Tensor):
        return flat(x) + x.storage_offset()
    if hasattr(x, "block_shape"):
        matrix = torch.as_strided(x.base, x.shape, x.strides, x.base.storage_offset()).numpy()
        size = 4 * x.block_shape[0] * x.block_shape[1]
        return types.SimpleNamespace(memory=matrix, block_type=types.SimpleNamespace(nbytes=size))
    return x if isinstance(x, float) else value(np.int32(x))


def check(num_new: int, lengths: tuple[int, ...], plan: Plan, kind: str, group: int, kv_heads: int, seed: int) -> None:
    """NaN in every row that no token can see, in the workspace and in the result."""
    generator, batch, rows = torch.Generator().manual_seed(seed), len(lengths), max(lengths) + num_new + 3
    q = torch.randn(batch, num_new, group * kv_heads, 128, generator=generator)
    k, v = torch.randn(2, batch, rows, kv_heads, 128, generator=generator)
    visible = (torch.rand(batch, num_new, num_new, generator=generator) < 0.3) | torch.eye(num_new, dtype=torch.bool)
    visible = visible if kind == "tree" else None
    for b, length in enumerate(lengths):
        poison(k[b, length + num_new :])
        poison(v[b, length + num_new :])
    at = torch.tensor(lengths)
    workspace = poison(torch.empty(max(1, launcher.workspace_elements(plan, 128))))
    out = poison(torch.empty_like(q))
    launcher.tree_attention_triton(q, k, v, at, visible, 0.09, out=out, workspace=workspace, plan=plan)
    error = relative_error(out, spec.tree_attention(q, k, v, at, visible, 0.09))
    assert error < 2e-6, error


def cases() -> dict[str, tuple]:
    narrow, wide, long, tall = TILES_HOPPER.values()
    ragged, alone, found = (70, 0, 64), (200,), {}
    for num_new, tile, programs, lengths in (
        (65, wide, 7, alone), (65, long, 3, alone), (65, tall, 5, alone), (33, wide, 6, alone), (33, tall, 5, ragged),
        (33, long, 5, (130, 0)), (32, long, 5, alone), (9, narrow, 7, ragged), (1, wide, 3, alone),
        (1, narrow, 9, ragged), (17, narrow, 3, ragged), (33, tall, 2, (130, 0)), (20, tall, 6, alone),
    ):  # fmt: skip
        plan = cut(len(lengths), 2, num_new * 4, tile, programs)
        name = f"{num_new} new, tile {tile.rows} x {tile.block}, {programs} programs, batch {len(lengths)}"
        found[name] = (num_new, lengths, plan, "tree", 4, 2)
    for num_new in (33, 65):  # what the product plans, for a chip of 8 SMs
        plan = tree_attention_plan(1, num_new, 8, 2, 128, 1500, 2, 8, on_hopper=True)
        found[f"{num_new} new, planned"] = (num_new, (300,), plan, "tree", 4, 2)
    found["idle requests"] = (9, (0, 0, 70, 0), cut(4, 2, 36, narrow, 6), "tree", 4, 2)
    found["more programs than blocks"] = (33, (0, 3), cut(2, 2, 132, long, 50), "causal", 4, 2)
    found["groups of 8, causal"] = (19, (61, 90), cut(2, 1, 152, wide, 3), "causal", 8, 1)
    found["groups of 3: rows that straddle tiles"] = (45, (61, 90), cut(2, 1, 135, wide, 3), "tree", 3, 1)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    np.seterr(invalid="ignore", over="ignore")
    hopper._tree_attention_hopper_kernel = Emulated()
    hopper.TensorDescriptor = Box  # Triton's own refuses fp32 where the layout says bf16
    hopper.suits = lambda *_: True
    launcher.is_hopper = lambda _: True
    launcher.ROWS_AT_ONCE = 0  # the interpreter takes milliseconds for a program
    answers = {}
    for number, (name, case) in enumerate(cases().items()):
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            continue
        try:
            check(*case, number)
            answers[name] = ""
        except PROBLEMS:
            answers[name] = traceback.format_exc()
    sys.stdout.write("ANSWER" + json.dumps(answers))
