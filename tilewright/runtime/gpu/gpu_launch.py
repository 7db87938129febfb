"""One micro-kernel on an accelerator, a GPU or its emulator: its operands placed, its launches in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.gpu.accelerator import Accelerator
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.tensor_map import TensorMap
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


@dataclass(frozen=True)
class Operands:
    """A kernel's operands in device memory; what else it is given there, its workspace first; and its launch arguments."""

    pointers: tuple[int, ...]
    further: tuple[int, ...]
    args: tuple[int | bytes, ...]


def place(device: Accelerator, kernel: MicroKernel, dims: Mapping[str, int], arrays: Sequence[np.ndarray]) -> Operands:
    """Copy operands in, with the strides that they have here. Scalars are 0.

    arrays: inputs, then outputs; of an output shape, strides and type count, its values are what its memory begins with.
    """
    return given_to(device, kernel, dims, arrays, copied_in(device, arrays))


def copied_in(device: Accelerator, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Addresses of copies of arrays, gaps between their elements as zeros."""
    pointers = []
    for a in arrays:
        pointers.append(device.alloc(room_of(a)))
        if a.size:
            device.copy_in(pointers[-1], _memory(a))
    return tuple(pointers)


def given_to(device: Accelerator, kernel: MicroKernel, dims: Mapping[str, int], arrays: Sequence[np.ndarray],
             pointers: tuple[int, ...]) -> Operands:
    """A kernel's operands where they are in memory already."""
    workspace = device.alloc(max(1, Expr.parse(kernel.workspace).evaluate(dims)))
    further = [workspace]
    strides = [tuple(s // a.itemsize for s in a.strides) for a in arrays]
    args: list[int | bytes] = []
    for p in kernel.params:
        if p.kind == "pointer":
            args.append(pointers[p.index])
        elif p.kind == "stride":
            args.append(strides[p.index][p.axis])
        elif p.kind == "dim":
            args.append(dims[p.name])
        elif p.kind == "workspace":
            args.append(workspace)
        elif p.kind == "tensor_map":
            a = arrays[p.index]
            wanted = TensorMap.of_operand(p, DType.of(a.dtype), pointers[p.index], a.shape, strides[p.index])
            args.append(device.tensor_map(wanted))
        elif p.kind == "predicate":
            further.append(device.alloc(1))
            device.copy_in(further[-1], np.ones(1, np.uint8))
            args.append(further[-1])
        elif p.kind == "table":
            further += _table_of_one(device, kernel, dims, strides)
            args.append(further[-1])
        elif p.kind == "entries":
            args.append(_entries_of_one(kernel, dims, strides, p.bytes))
        else:
            args.append(0)
    return Operands(pointers, tuple(further), tuple(args))


def _table_of_one(device: Accelerator, kernel: MicroKernel, dims: Mapping[str, int],
                  strides: Sequence[Sequence[int]]) -> list[int]:
    """The entry and the block table of a kernel for all sequences of a batch, where the operands are those of one sequence."""
    words = [0, *_differing(kernel, dims, strides)]
    blocks = kernel.launches()[0].blocks(dims)[0]
    entry, table = device.alloc(8 * len(words)), device.alloc(8 * max(1, blocks))
    device.copy_in(entry, np.array(words, np.int64))
    device.copy_in(table, np.full(max(1, blocks), entry, np.int64))
    return [entry, table]


def _differing(kernel: MicroKernel, dims: Mapping[str, int], strides: Sequence[Sequence[int]]) -> list[int]:
    """What a kernel reads from an entry."""
    return [dims[p.name] if p.kind == "dim" else strides[p.index][p.axis] if p.kind == "stride" else 0
            for p in kernel.params if p.by_sequence]


def _entries_of_one(kernel: MicroKernel, dims: Mapping[str, int], strides: Sequence[Sequence[int]], size: int) -> bytes:
    """The entries of a kernel for many tensors, where the first member has all blocks."""
    own = _differing(kernel, dims, strides)
    members = size // 8 // (1 + len(own))
    blocks = kernel.launches()[0].blocks(dims)[0]
    return np.array([0, *[blocks] * (members - 1), *own * members], np.int64).tobytes()


def enqueue(device: Accelerator, kernel: MicroKernel, image: Any, dims: Mapping[str, int], operands: Operands,
            **options: Any) -> None:
    """Every launch of a kernel, in order. image: what `device.load` gave; options: for `device.launch`."""
    for step in kernel.launches():
        blocks = step.blocks(dims)
        if 0 not in blocks:
            entry = image.kernel(step.symbol)
            device.launch(entry, device.grid(entry, step, blocks), (step.threads, 1, 1), step.shared_bytes, operands.args,
                          step.cluster, **options)


def release(device: Accelerator, operands: Operands) -> None:
    """Free what `place` took."""
    for address in (*operands.pointers, *operands.further):
        device.free(address)


def fetch(device: Accelerator, operands: Operands, index: int, like: np.ndarray) -> np.ndarray:
    """Operand `index` as it is now, of the shape and strides of the array that was placed."""
    return _viewed(device.copy_out(operands.pointers[index], (span(like),), like.dtype), like)


def span(a: np.ndarray) -> int:
    """Elements from the first of a view to its last."""
    if min(a.strides, default=0) < 0:
        raise DeviceError(f"an operand of strides {a.strides} goes backwards in memory; pass numpy.ascontiguousarray of it")
    return 1 + sum((n - 1) * (s // a.itemsize) for n, s in zip(a.shape, a.strides, strict=True)) if a.size else 0


def room_of(a: np.ndarray) -> int:
    """Bytes of an operand on the device, at least 1."""
    return max(1, span(a) * a.itemsize)


def _memory(a: np.ndarray) -> np.ndarray:
    """The elements that a view spans, gaps as zeros."""
    if a.flags.c_contiguous:
        return a
    room = np.zeros(span(a), a.dtype)
    _viewed(room, a)[...] = a
    return room


def _viewed(memory: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(memory, like.shape, like.strides) if like.size else memory.reshape(like.shape)
