"""Family `generic`: each result element is evaluated on demand, vectorised along the result's unit-stride axis.

A result whose map is no permutation of parallel loops (a scatter) runs its loops in order in one work unit instead.
"""

from __future__ import annotations

from passes.emit import all_of, lane_mask, loop, when
from passes.families.scatter import scatters, serial
from passes.families.transpose_tiles import TransposeTiles
from passes.host_kernel import Grid, HostKernel
from passes.index import Index, delinearize
from passes.mlir import ir
from passes.spaces.generic import GenericConfig
from runtime.shape import Expr


def emit(kernel: HostKernel, config: GenericConfig) -> Grid:
    """The whole kernel; results of equal extents share one loop nest."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        groups: dict[tuple[Expr, ...], list[int]] = {}
        scattered = []
        for number, value in enumerate(kernel.results):
            if scatters(value):
                scattered.append(number)
            else:
                groups.setdefault(kernel.shapes.dims(value), []).append(number)
        start = Expr.of(0)
        for dims, members in groups.items():
            start = start + _dense(kernel, config, dims, members, begin, end, start)
        for number in scattered:
            first = kernel.evaluator.emit(start)
            here = [begin.le(first), first.lt(end)]
            when(all_of(here), lambda number=number: serial(kernel, number))  # type: ignore[misc]
            start = start + 1
        return Grid(units=start)

    return kernel.build(body)


def _dense(kernel: HostKernel, config: GenericConfig, dims: tuple[Expr, ...], members: list[int], begin: Index, end: Index,
           start: Expr) -> Expr:
    """Emits the part of [begin, end) that falls on these results; returns how many units they take."""
    ev = kernel.evaluator
    memory = kernel.outputs[members[0]]
    axis = next((a for a in reversed(range(len(dims))) if memory.strides[a].const == 1), len(dims) - 1)
    tiles = TransposeTiles.of(kernel, members[0], axis) if len(members) == 1 and config.lanes > 1 else None
    if tiles is not None:
        units = tiles.units(config.lanes)
        low, high = ev.emit(start), ev.emit(start + units)
        loop(begin.max(low), end.min(high), 1, lambda u: tiles.emit(u - low, config.lanes), index=kernel.index)
        return units
    outer = [a for a in range(len(dims)) if a != axis]
    length = dims[axis] if dims else Expr.of(1)
    chunks = length.ceildiv(config.chunk) if dims else Expr.of(1)
    if length.constant is not None and length.constant > 0:
        chunks = Expr.of(-(-length.constant // config.chunk))
    units = chunks
    for a in outer:
        units = units * dims[a]
    lanes = config.lanes if length.constant is None or length.constant >= config.lanes else 1
    first, last = ev.emit(start), ev.emit(start + units)
    row_chunks, extent = ev.emit(chunks), ev.emit(length)

    def unit(u: Index) -> None:
        local = u - first
        where = delinearize(local // row_chunks, [ev.emit(dims[a]) for a in outer])
        lo = (local % row_chunks) * config.chunk
        hi = (lo + config.chunk).min(extent)

        def at(c: Index, mask: ir.Value | None) -> None:
            coords: list[Index] = [Index(0)] * len(dims)
            for a, x in zip(outer, where, strict=True):
                coords[a] = x
            if dims:
                coords[axis] = c
            with ev.kept():
                for number in members:
                    kernel.outputs[number].store(ev.element(kernel.results[number], coords, mask), coords, mask)

        if lanes == 1:
            loop(lo, hi, 1, lambda c: at(c, None), index=kernel.index)
            return
        whole = hi - (hi - lo) % lanes
        loop(lo, whole, lanes, lambda c: at(Index.ramp(c, lanes), None), index=kernel.index)
        left = hi - whole
        when(Index(0).lt(left), lambda: at(Index.ramp(whole, lanes), lane_mask(left, lanes, kernel.index)))

    loop(begin.max(first), end.min(last), 1, lambda u: unit(u), index=kernel.index)
    return units
