"""MicroKernel: a built parametric kernel with all that must travel to whoever launches it.

Native convention on the host:  `void kernel(const uint64_t *slots, int64_t begin, int64_t end, void *workspace)`.
`slots` holds one 8-byte word per Param, in the order of `params`: pointers of the operands (inputs, then outputs; already
offset to the first element), strides in elements of the axes that have no static stride, local dims, scalars (bit pattern,
zero-extended). Work units [begin, end) of `grid[0]` are done; units are independent and give the same bits in any order.
`workspace` points to `workspace` bytes that belong to this thread, 64-byte aligned.

On a GPU each slot is one parameter of the entry; a slot of kind "workspace" points to `workspace` bytes of the whole launch,
256-byte aligned, one of kind "tensor_map" is a structure of tensor_map.py. `grid` counts blocks; a grid with a zero
is not launched. The launches of `then` follow in order, with the same slots. Grids and guards are over local dims; guards
also over the layout of operands (`layout` names the symbols): buffers begin 256-byte aligned, and an operand's view of its
buffer has an offset and strides, in elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tilewright.runtime.shape import Expr

OUTER = -1
PARAMETER_BYTES = 32764  # of all parameters of a kernel, from CUDA 12.1 and PTX 8.1 on
PLAIN_PARAMETER_BYTES = 4096  # before
LARGE_PARAMETERS_SINCE = 12010  # as the driver tells its version
_WORD, _TENSOR_MAP = 8, 128  # bytes


class Param(msgspec.Struct, frozen=True):
    """One launch slot. `index` counts operands (inputs, then outputs) or scalars; `name` is a local dim. A predicate, which
    is the last, is the address of a byte: where that is 0 the kernel does nothing.

    Of a tensor map: `axes` of the operand, the one of stride 1 first, with the elements of a `box` along each; `swizzle` in
    bytes.

    by_sequence: the kernel serves all sequences of a batch in one launch, and this differs from one to the next: a block reads it
    from the entry of its sequence, of a pointer the bytes that the sequence begins behind the slot's. A table, the last slot of
    such a kernel, is the address of its block table: for each block the address of its entry, 0 where it has nothing to do. An
    entry is 8-byte words: the sequence's first block, then the slots that are by sequence, in their order. A tensor map is one
    for all sequences then: its entry is where the sequence begins along `axis` of the operand, whose extent is that of all, or,
    where an axis of number OUTER comes last, along that: the sequences as the slowest axis.

    Entries, the last slot of a kernel that serves equal operators on many tensors, are `bytes` that the launch passes by value
    (PARAMETER_BYTES at most with all other slots); the slot holds their address on the host. The first block of each member comes
    first, as 8-byte words in their order, then, for each member, its slots that are by sequence.
    """

    kind: Literal["pointer", "stride", "dim", "scalar", "workspace", "tensor_map", "predicate", "table", "entries"]
    index: int = 0
    axis: int = 0
    name: str = ""
    axes: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    swizzle: int = 0
    by_sequence: bool = False
    bytes: int = 0


class Launch(msgspec.Struct, frozen=True):
    """One launch of an entry of a GPU image: blocks per axis as texts of Expr, threads and dynamic shared bytes per block, blocks
    of a cluster. persistent: blocks take work in turn until there is none, as many as there are along x; who launches it lowers
    that to what the device holds at once, by whole clusters. early: it waits itself for the launches in front of it, so that it
    may begin before they have ended."""

    symbol: str
    grid: tuple[str, str, str]
    threads: int
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    persistent: bool = False
    early: bool = False

    def blocks(self, dims: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = (Expr.parse(g).evaluate(dims) for g in self.grid)
        return x, y, z


class MicroKernel(msgspec.Struct, frozen=True):
    """A parametric kernel: tile sizes fixed, shapes free. Expressions are texts of Expr over the workload's local dims.

    grid: work units per axis (the host uses the first only). guards: expressions that must be 0 for the kernel to be legal.
    workspace: bytes per host thread, or per launch on a GPU. threads, shared_bytes, cluster, persistent, early, then, and what an
    assembler told of all launches, registers of a thread and bytes spilled (0: not asked): GPU only. tiles: does it use the tile
    registers of AMX, which a process has to ask for (host/tile_permission.py)? joins: host only; results in parts whose stride
    from one to the next is 0 are added up onto 0: never, where there is one part, or all parts. object: sha256 of the code.
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
    then: tuple[Launch, ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    registers: int = 0
    spills: int = 0
    persistent: bool = False
    early: bool = False
    tiles: bool = False
    joins: Literal["", "one", "all"] = ""

    def launches(self) -> tuple[Launch, ...]:
        """Everything that a GPU runs for this kernel, in order."""
        first = Launch(self.symbol, self.grid, self.threads, self.shared_bytes, self.cluster, self.persistent, self.early)
        return (first, *self.then)

    def units(self, dims: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = (Expr.parse(g).evaluate(dims) for g in self.grid)
        return x, y, z

    def parameter_bytes(self) -> int:
        """Of all parameters of a launch on a GPU."""
        return sum(p.bytes or (_TENSOR_MAP if p.kind == "tensor_map" else _WORD) for p in self.params)

    def legal(self, dims: Mapping[str, int]) -> bool:
        """Do all guards hold? `dims`: local dims, and the layout of the operands where a guard names it."""
        return all(Expr.parse(g).evaluate(dims) == 0 for g in self.guards)


def stride_symbol(operand: int, axis: int) -> str:
    """How guards name a stride."""
    return f"operand{operand}.stride{axis}"


def offset_symbol(operand: int) -> str:
    """How guards name the offset of an operand in its buffer."""
    return f"operand{operand}.offset"


def layout(operand: int, strides: Sequence[int], offset: int = 0) -> dict[str, int]:
    """Values of an operand's layout symbols; strides of all axes and the offset in elements."""
    return {offset_symbol(operand): offset, **{stride_symbol(operand, axis): s for axis, s in enumerate(strides)}}
