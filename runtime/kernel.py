"""MicroKernel: a built parametric kernel with all that must travel to whoever launches it.

Native convention on the host:  `void kernel(const uint64_t *slots, int64_t begin, int64_t end, void *workspace)`.
`slots` holds one 8-byte word per Param, in the order of `params`: pointers of the operands (inputs, then outputs; already
offset to the first element), strides in elements of the axes that have no static stride, local dims, scalars (bit pattern,
zero-extended). Work units [begin, end) of `grid[0]` are done; units are independent and give the same bits in any order.
`workspace` points to `workspace` bytes that belong to this thread, 64-byte aligned. On a GPU each slot is one parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from runtime.shape import Expr


class Param(msgspec.Struct, frozen=True):
    """One launch slot. `index` counts operands (inputs, then outputs) or scalars; `name` is a local dim."""

    kind: Literal["pointer", "stride", "dim", "scalar"]
    index: int = 0
    axis: int = 0
    name: str = ""


class MicroKernel(msgspec.Struct, frozen=True):
    """A parametric kernel: tile sizes fixed, shapes free. Expressions are texts of Expr over the workload's local dims.

    grid: work units per axis (the host uses the first only). guards: expressions that must be 0 for the kernel to be legal.
    workspace: bytes per host thread. threads, shared_bytes: per block, GPU only. object: sha256 of the code.
    """

    symbol: str
    workload: str
    family: str
    config: str
    params: tuple[Param, ...]
    grid: tuple[str, str, str]
    object: str = ""
    workspace: str = "0"
    threads: int = 1
    shared_bytes: int = 0
    guards: tuple[str, ...] = ()

    def units(self, dims: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = (Expr.parse(g).evaluate(dims) for g in self.grid)
        return x, y, z

    def legal(self, dims: Mapping[str, int]) -> bool:
        return all(Expr.parse(g).evaluate(dims) == 0 for g in self.guards)
