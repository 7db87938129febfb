"""Rows of a host matmul: the heights that a range of them is cut into, and the loop coordinates of consecutive ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.codegen.emit import all_of, loop, when
from tilewright.passes.codegen.index import Index, delinearize, select
from tilewright.passes.mlir import ir, llvm

Loops = list[Index | None]
_SHARED = 4  # least rows of a block that is shared out


def row_blocks(low: Index, high: Index, mr: int, exact: bool, index: ir.Type, run: Callable[[Index, int], None],
               shared: bool = True) -> None:
    """run(first row, height) for blocks of mr rows, then for what is left: one block of its height (`exact`), or one of each
    power of two in it. Exact and `shared`, a few rows that are left share two blocks with the mr rows before them, since a low
    block takes as long as reading its columns."""
    whole = high - (high - low) % mr
    if exact and shared:
        few = _few(high - whole, whole - low, mr)
        whole = select(few, whole - mr, whole)
    if whole.const is None or whole.const != low.const:
        loop(low, whole, mr, lambda row: run(row, mr), index=index)
    row, over = opaque(whole, index), high - whole
    if exact and not shared:
        for height in range(1, mr):
            when(over.eq(height), _bound(run, row, height))
        return
    if exact:
        first = select(few, over.ceildiv(2), over)
        for height in range(1, mr):
            when(first.eq(height), _bound(run, row, height))
        second = over - first
        for height in range((mr + 1) // 2, (mr + mr // 3) // 2 + 1) if mr >= _SHARED else ():
            when(second.eq(height), _bound(run, row + first, height))
        return
    for height in (h for h in (8, 4, 2, 1) if h < mr):
        has = over.ge(height)
        when(has, _bound(run, row, height))
        row, over = opaque(select(has, row + height, row), index), select(has, over - height, over)


def _few(over: Index, before: Index, mr: int) -> ir.Value | bool:
    """Are there rows left, no more than a third of a block, and a whole block before them?"""
    if mr < _SHARED:
        return False
    return all_of([Index(0).lt(over), over.le(mr // 3), Index(0).lt(before)])


def row_points(loops: Loops, dims: Sequence[int], sizes: Sequence[Index], row: Index, height: int) -> list[Loops]:
    """`loops` with the coordinates of consecutive rows, which run along `dims` as one space; the first row is divided out,
    the others carry from it."""
    coords = delinearize(row, list(sizes))
    found = []
    for i in range(height):
        if i and len(sizes) == 1:
            coords = [row + i]
        elif i:
            coords = _next(coords, sizes)
        point = list(loops)
        for d, x in zip(dims, coords, strict=True):
            point[d] = x
        found.append(point)
    return found


def opaque(row: Index, index: ir.Type) -> Index:
    """The same number through empty assembly, so that LLVM keeps it in a register: it would compute addresses that start from
    the remainder of a division, or from the lesser of two numbers, again in every pass of the loop over k."""
    if row.const is not None:
        return row
    kept = llvm.InlineAsmOp(index, [row.value(index)], "", "=r,0").results[0]
    return Index(kept).known_multiple(row.multiple)


def forget_constants() -> None:
    """Empty assembly that changes all vector registers of x86: no constant of what follows stays in one while the sums before it
    need them all. LLVM moves constants out of every loop, and one that is left in a register puts a sum into memory."""
    changed = ",".join(f"~{{xmm{i}}}" for i in range(32))
    llvm.InlineAsmOp(None, [], "", changed, has_side_effects=True)


def forget_memory() -> None:
    """Empty assembly that may change memory: loads that come after it stay there."""
    llvm.InlineAsmOp(None, [], "", "~{memory}", has_side_effects=True)


def _bound(run: Callable[[Index, int], None], row: Index, height: int) -> Callable[[], None]:
    return lambda: run(row, height)


def _next(coords: Sequence[Index], sizes: Sequence[Index]) -> list[Index]:
    """The point after `coords` in a box, last axis fastest."""
    found = list(coords)
    carry: ir.Value | bool = True
    for axis in reversed(range(1, len(sizes))):
        moved = select(carry, found[axis] + 1, found[axis])
        over = moved.eq(sizes[axis])
        found[axis] = select(over, Index(0), moved)
        carry = over
    if found:
        found[0] = select(carry, found[0] + 1, found[0])
    return found
