"""Family `generic`: each result element is evaluated on demand, vectorised along the result's unit-stride axis.

A work unit is a chunk along that axis, of all results of equal extents; where a transposition is read, a row of square tiles. A
result whose map is no permutation of parallel loops (a scatter) runs its loops in order in one work unit instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.borders import Border, borders
from tilewright.passes.codegen.emit import all_of, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.transpose_tiles import TileEmitter, TransposeTiles
from tilewright.passes.families.scatter import scatters, serial
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.generic import GenericConfig
from tilewright.runtime.shape import Expr


Span = tuple[Index, Index]  # begin and end


@dataclass(frozen=True)
class _ResultGroup:
    """Results of equal extents, one loop over units; axis: along the vectors, None of a scatter, which is alone."""

    members: tuple[int, ...]
    dims: tuple[Expr, ...]
    axis: int | None
    tiles: TransposeTiles | None
    row: int | None = None  # the axis of the rows that share a vector's columns

    @property
    def outer(self) -> list[int]:
        return [a for a in range(len(self.dims)) if a not in (self.axis, self.row)]

    @property
    def length(self) -> Expr:
        return self.dims[self.axis] if self.dims and self.axis is not None else Expr.of(1)


def _groups(frame: KernelFrame, config: GenericConfig) -> list[_ResultGroup]:
    found: dict[tuple[Expr, ...], list[int]] = {}
    scattered = []
    for number, value in enumerate(frame.results):
        if scatters(value):
            scattered.append(_ResultGroup((number,), frame.shapes.dims(value), None, None))
        else:
            found.setdefault(frame.shapes.dims(value), []).append(number)
    groups = []
    for dims, members in found.items():
        unit = frame.result_slot(members[0]).unit
        axis = len(dims) - 1 if unit is None else unit
        tiles = TransposeTiles.of(frame, members[0], axis) if len(members) == 1 and config.lanes > 1 else None
        row = max((a for a in range(len(dims)) if a != axis), default=None) if config.rows > 1 and tiles is None else None
        groups.append(_ResultGroup(tuple(members), dims, axis, tiles, row))
    return [*groups, *scattered]


def tile(frame: KernelFrame, config: GenericConfig, tiler: Tiler) -> None:
    """A loop over units for each group of results."""
    for group in _groups(frame, config):
        _tile(frame, config, tiler, group)


def _tile(frame: KernelFrame, config: GenericConfig, tiler: Tiler, group: _ResultGroup) -> None:
    cut = group.axis if group.tiles is None else group.tiles.across
    step = config.chunk if group.tiles is None else config.lanes
    outer = group.outer if group.tiles is None else group.tiles.outer()
    along = {cut: step} if group.dims and cut is not None else {}
    if group.row is not None:
        along = {group.row: config.rows, **along}
    if group.axis is None:
        outer = []

    def parts(place: list[Index]) -> dict[str, Part]:
        found = {f"d{a}": Part(x) for a, x in zip(outer, place, strict=False)}
        pieces = zip(along.items(), place[len(outer):], strict=False)
        return found | {f"d{a}": tiler.span(x, size, group.dims[a]) for (a, size), x in pieces}

    counts = [*(group.dims[a] for a in outer), *(group.dims[a].ceildiv(size) for a, size in along.items())] or [Expr.of(1)]
    axes = {f"d{a}": (a,) for a in (*outer, *along)}
    tiler.loop(counts, parts, {frame.results[n]: axes for n in group.members})


def emit(kernel: HostKernel, config: GenericConfig) -> Grid:
    """The whole kernel; results of equal extents share one loop nest."""
    kernel.permutes = config.permute
    groups = _groups(kernel, config)

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        ev, start = kernel.evaluator, Expr.of(0)
        for group, units in zip(groups, kernel.loops, strict=True):
            low, high = ev.emit(start), ev.emit(start + units.total)
            start = start + units.total
            if group.axis is None:
                when(all_of([begin.le(low), low.lt(end)]), lambda group=group: serial(kernel, group.members[0]))  # type: ignore[misc]
                continue
            run = TileEmitter(kernel, group.tiles, config.lanes).emit if group.tiles else _Chunks(kernel, config, group).emit
            units.walk(ev, begin.max(low) - low, end.min(high) - low, run)
        return Grid()

    return kernel.build(body)


@dataclass(frozen=True)
class _Chunks:
    """Emits the chunks of a group along its axis."""

    kernel: HostKernel
    config: GenericConfig
    group: _ResultGroup

    def emit(self, unit: Unit) -> None:
        """All elements of a work unit."""
        group = self.group
        where = [unit.first(f"d{a}") if a in group.outer else Index(0) for a in range(len(group.dims))]
        found = borders(self.kernel.shapes, [self.kernel.results[n] for n in group.members])
        across = [b for b in found if b.axis in group.outer]
        spans = {a: unit.span(f"d{a}") for a in (group.axis, group.row) if a is not None}
        self._parts([*across, *(b for b in found if b not in across)], where, spans)

    def _parts(self, left: Sequence[Border], where: Sequence[Index], spans: Mapping[int, Span]) -> None:
        """The elements of a span of columns, and of rows: loops for each part that the borders leave, and for what lies in one
        part alone a choice in front of them."""
        if not left:
            self._columns(where, spans)
            return
        ev, border = self.kernel.evaluator, left[0]
        ends, key = [ev.emit(e) for e in border.ends], (border.op, border.own)

        def part(number: int, spans: Mapping[int, Span]) -> None:
            ev.parts[key] = number
            self._parts([b for b in left[1:] if b.op != border.op or not border.settles(number)], where, spans)
            del ev.parts[key]

        def choose(number: int) -> None:
            if number == len(ends):
                part(number, spans)
            else:
                when(where[border.axis].lt(ends[number]), lambda: part(number, spans), lambda: choose(number + 1))

        if border.axis not in spans:
            choose(0)
            return
        lo, hi = spans[border.axis]
        begins = [lo, *(e.max(lo) for e in ends)]
        for number, (first, last) in enumerate(zip(begins, [*ends, hi], strict=True)):
            part(number, {**spans, border.axis: (first, last.min(hi).max(first))})

    def _columns(self, where: Sequence[Index], spans: Mapping[int, Span]) -> None:
        row, index = self.group.row, self.kernel.index
        assert self.group.axis is not None
        lo, hi = spans[self.group.axis]
        length, lanes = self.group.length.constant, self.config.lanes
        if length is not None and length < lanes:
            lanes = 1

        def at(c: Index, mask: ir.Value | None) -> None:
            """All rows of some columns."""
            if row is None:
                self._at(where, c, mask)
            else:
                loop(*spans[row], 1, lambda r: self._at([r if a == row else x for a, x in enumerate(where)], c, mask), index=index)

        if lanes == 1:
            loop(lo, hi, 1, lambda c: at(c, None), index=index)
            return
        whole = hi - (hi - lo) % lanes
        loop(lo, whole, lanes, lambda c: at(Index.ramp(c, lanes), None), index=index)
        left = hi - whole
        when(Index(0).lt(left), lambda: at(Index.ramp(whole, lanes), lane_mask(left, lanes, index)))

    def _at(self, where: Sequence[Index], c: Index, mask: ir.Value | None) -> None:
        """Elements of all results of the group."""
        ev = self.kernel.evaluator
        coords = [c if a == self.group.axis else x for a, x in enumerate(where)]
        with ev.kept():
            for number in self.group.members:
                self.kernel.outputs[number].store(ev.element(self.kernel.results[number], coords, mask), coords, mask)
