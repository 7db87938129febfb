"""Builds one kernel from the text of a workload and a tile configuration, and calls it on NumPy arrays.

Every operand ends at an unreadable page, so a read or write beyond it stops the process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gpu_operands import NUMPY as NUMPY
from gpu_operands import Dim as Dim
from gpu_operands import T as T

from tilewright.compiler.builder.build import build_kernel
from tilewright.runtime.device import LoadedCode
from tilewright.runtime.host.elf import load_object
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target


def empty(name: str, t: T) -> str:
    """`%name = tensor.empty` of the type; dynamic dims are arguments named like the dim."""
    return f"%{name} = tensor.empty({', '.join(f'%{d}' for d in t.dims if isinstance(d, str))}) : {t.type()}"


def filled(name: str, t: T, number: str) -> str:
    """`%name`: a tensor filled with a constant."""
    return f"%{name}_value = arith.constant {number} : {t.element}\n{empty(name + '_empty', t)}\n" \
           f"%{name} = linalg.fill ins(%{name}_value : {t.element}) outs(%{name}_empty : {t.type()}) -> {t.type()}"


def workload(inputs: Mapping[str, T], dims: Sequence[str], body: str, results: Mapping[str, T]) -> str:
    """The text of @workload: arguments and results by SSA name, local dims, operations."""
    arguments = [f"%{name}: {t.type()} {t.attributes()}" for name, t in inputs.items()]
    arguments += [f'%{d}: index {{tw.dims = ["{d}"]}}' for d in dims]
    returned = ", ".join(f"{t.type()} {t.attributes()}" for t in results.values())
    types = ", ".join(t.type() for t in results.values())
    values = ", ".join(f"%{name}" for name in results)
    return f"func.func @workload({', '.join(arguments)}) -> ({returned}) {{\n{body}\nreturn {values} : {types}\n}}"


@dataclass(frozen=True)
class Loaded:
    """A kernel in memory."""

    kernel: MicroKernel
    code: LoadedCode

    def __call__(self, inputs: Sequence[np.ndarray], dims: Mapping[str, int], outputs: Sequence[np.ndarray],
                 parts: int = 1) -> None:
        """Runs all units into `outputs`, in `parts` calls, the last units first."""
        operands = [*inputs, *outputs]
        words: list[int] = []
        for p in self.kernel.params:
            array = operands[p.index] if p.kind in ("pointer", "stride") else None
            if array is None:
                words.append(dims[p.name])
            else:
                words.append(array.ctypes.data if p.kind == "pointer" else array.strides[p.axis] // array.itemsize)
        slots = (ctypes.c_uint64 * max(1, len(words)))(*[w & (2**64 - 1) for w in words])
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
            self.code.address(self.kernel.symbol))
        units = self.kernel.units(dims)[0]
        scratch = guarded((workspace_bytes(self.kernel, dims),), np.dtype(np.uint8))
        cuts = [units * i // parts for i in range(parts + 1)]
        for low, high in reversed(list(itertools.pairwise(cuts))):
            entry(ctypes.addressof(slots), low, high, scratch.ctypes.data)


def workspace_bytes(kernel: MicroKernel, dims: Mapping[str, int]) -> int:
    """Bytes of a thread's workspace, rounded up to its alignment."""
    return -(-Expr.parse(kernel.workspace).evaluate(dims) // 64) * 64


@functools.cache
def load(text: str, config: str, target: str = "host") -> Loaded:
    """Build for a host target and load here; one kernel of a text and configuration is built once."""
    built = build_kernel(text, "", "kernel", config, Target.parse(target))
    return Loaded(built.kernel, load_object([built.code]))


def guarded(shape: tuple[int, ...], dtype: np.dtype, front: bool = False) -> np.ndarray:
    """An array of 0xAA bytes whose last byte lies before an unreadable page; with `front`, whose first lies behind one."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    page = mmap.PAGESIZE
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    base = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for unreadable in (0, pages + 1):
        assert protect(base.ctypes.data + unreadable * page, page, 0) == 0
    start = page if front else (pages + 1) * page - size
    used = base[start : start + size]
    used[:] = 0xAA
    return used.view(dtype).reshape(shape)


def at_edge(array: np.ndarray, front: bool = False) -> np.ndarray:
    """A copy in guarded memory, laid out in memory in the same order of axes."""
    order = sorted(range(array.ndim), key=lambda a: (-array.strides[a], a)) if array.size else list(range(array.ndim))
    copy = guarded(tuple(array.shape[a] for a in order), array.dtype, front).transpose(np.argsort(order))
    copy[...] = array
    return copy
