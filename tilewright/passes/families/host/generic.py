"""Family `generic`: each result element is evaluated on demand, vectorised along the result's unit-stride axis.

A work unit is a chunk along that axis, of all results of equal extents; where a transposition is read, a row of tiles. A
result whose map is no permutation of parallel loops (a scatter) runs its loops in order in one work unit instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.elementwise import refuse_rows_over_operands
from tilewright.passes.codegen.borders import borders
from tilewright.passes.codegen.emit import all_of, byte_width, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.border_parts import Span, each_part
from tilewright.passes.families.host.fourier_walk import FourierEmitter, FourierWalk
from tilewright.passes.families.host.host_walk import SummedEmitter, SummedWalk
from tilewright.passes.families.host.interleaved_tiles import InterleavedEmitter, InterleavedTiles
from tilewright.passes.families.host.ordering import RankEmitter, RankWalk
from tilewright.passes.families.host.running import RunningEmitter, RunningWalk
from tilewright.passes.families.host.transpose_tiles import TileEmitter, TransposeTiles
from tilewright.passes.families.host.updates import UpdateEmitter, UpdateWalk
from tilewright.passes.families.scatter import scatters, serial
from tilewright.passes.linalg.data_movement import MOVEMENT_OPS
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.mlir import ir, llvm, operations, owner
from tilewright.passes.spaces.host.generic import GenericConfig
from tilewright.runtime.shape import Expr

_AHEAD = 4  # vectors that are loaded before the last ones are stored
_FEW_OPS = 4  # of arithmetic an element
_LONG, _PAGE, _NEAR = 4096, 4096, 256  # bytes: of a run for memcpy; from its places to those it reads, modulo a page
_VIEWS = ("tensor.cast", "tensor.extract_slice", "tensor.collapse_shape", "tensor.expand_shape", "tensor.empty", "tensor.dim")


@dataclass(frozen=True)
class _ResultGroup:
    """Results of equal extents, one loop over units; axis: along the vectors, None of a scatter, which is alone.

    walk: how the elements are found where each is not computed for itself.
    """

    members: tuple[int, ...]
    dims: tuple[Expr, ...]
    axis: int | None
    walk: TransposeTiles | InterleavedTiles | RunningWalk | SummedWalk | UpdateWalk | RankWalk | FourierWalk | None = None
    row: int | None = None  # the axis of the rows that share a vector's columns

    @property
    def outer(self) -> list[int]:
        return [a for a in range(len(self.dims)) if a not in (self.axis, self.row)]

    @property
    def length(self) -> Expr:
        return self.dims[self.axis] if self.dims and self.axis is not None else Expr.of(1)

    def cuts(self, config: GenericConfig) -> dict[int, int | None]:
        """The axes that units are cut along, with the size of a piece; None: of one place."""
        if self.axis is None or not self.dims:
            return {}
        match self.walk:
            case RunningWalk() | InterleavedTiles() | TransposeTiles():
                return self.walk.cuts(config.lanes, config.chunk)
            case SummedWalk() | FourierWalk():
                return self.walk.cuts(config.lanes)
            case UpdateWalk():
                return self.walk.cuts(config.chunk)
            case RankWalk():
                return self.walk.cuts()
        rows: dict[int, int | None] = {} if self.row is None else {self.row: config.rows}
        return {**dict.fromkeys(self.outer), **rows, self.axis: config.chunk}

    def axes(self, value: ir.Value, cuts: Mapping[int, int | None]) -> dict[str, tuple[int, ...]]:
        """The axes of a result that the parts of a unit run along."""
        return self.walk.axes(value) if isinstance(self.walk, SummedWalk) else {f"d{a}": (a,) for a in cuts}

    def emitter(self, kernel: HostKernel, config: GenericConfig, workspace: ir.Value) -> Callable[[Unit], None]:
        """What emits a work unit."""
        match self.walk:
            case TransposeTiles():
                return TileEmitter(kernel, self.walk, config.lanes).emit
            case InterleavedTiles():
                return InterleavedEmitter(kernel, self.walk, config.lanes).emit
            case RunningWalk():
                return RunningEmitter(kernel, self.walk, config.lanes).emit
            case SummedWalk():
                return SummedEmitter(kernel, self.walk, config.lanes, workspace).emit
            case UpdateWalk():
                return UpdateEmitter(kernel, self.walk, config.lanes).emit
            case RankWalk():
                return RankEmitter(kernel, self.walk, config.lanes, workspace).emit
            case FourierWalk():
                return FourierEmitter(kernel, self.walk, config.lanes, workspace).emit
        return _Chunks(kernel, config, self).emit


def _groups(frame: KernelFrame, config: GenericConfig) -> list[_ResultGroup]:
    found: dict[tuple[Expr, ...], list[int]] = {}
    alone, summed = [], SummedWalk.of(frame)
    if summed is not None:
        dims = frame.shapes.dims(summed.walk.running.op.results[0])
        alone.append(_ResultGroup(summed.members, dims, summed.lane, summed))
    for number, value in enumerate(frame.results):
        if summed is not None and number in summed.members:
            continue
        dims, unit = frame.shapes.dims(value), _unit(frame, number)
        own: UpdateWalk | RankWalk | FourierWalk | None = None
        if dims:
            own = UpdateWalk.of(frame, number, unit) or RankWalk.of(frame, number) or FourierWalk.of(frame, number)
        if scatters(value):
            alone.append(_ResultGroup((number,), dims, None))
        elif own is not None:
            alone.append(_ResultGroup((number,), dims, unit, own))
        else:
            found.setdefault(dims, []).append(number)
    groups = []
    for dims, members in found.items():
        axis = _unit(frame, members[0])
        walk: TransposeTiles | InterleavedTiles | RunningWalk | None = RunningWalk.of(frame, members, axis) if dims else None
        if walk is None and len(members) == 1 and config.lanes > 1 and (tiles := TransposeTiles.of(frame, members[0], axis)):
            walk = InterleavedTiles.of(tiles, dims[axis], config.lanes) or tiles
        if walk is None and len(members) == 1 and config.lanes > 1:
            walk = InterleavedTiles.of_repeated(frame, members[0], axis, config.lanes)
        row = max((a for a in range(len(dims)) if a != axis), default=None) if config.rows > 1 and walk is None else None
        groups.append(_ResultGroup(tuple(members), dims, axis, walk, row))
    return [*groups, *alone]


def _unit(frame: KernelFrame, number: int) -> int:
    """The axis of a result that vectors run along."""
    unit = frame.result_slot(number).unit
    return len(frame.shapes.dims(frame.results[number])) - 1 if unit is None else unit


def tile(frame: KernelFrame, config: GenericConfig, tiler: Tiler) -> None:
    """A loop over units for each group of results."""
    for group in _groups(frame, config):
        _tile(frame, group, group.cuts(config), tiler)


def _tile(frame: KernelFrame, group: _ResultGroup, cuts: Mapping[int, int | None], tiler: Tiler) -> None:
    def parts(place: list[Index]) -> dict[str, Part]:
        return {f"d{a}": Part(x) if size is None else tiler.span(x, size, group.dims[a])
                for (a, size), x in zip(cuts.items(), place, strict=False)}

    counts = [group.dims[a] if size is None else group.dims[a].ceildiv(size) for a, size in cuts.items()] or [Expr.of(1)]
    tiler.loop(counts, parts, {frame.results[n]: group.axes(frame.results[n], cuts) for n in group.members})


def emit(kernel: HostKernel, config: GenericConfig) -> Grid:
    """The whole kernel; results of equal extents share one loop nest."""
    refuse_rows_over_operands(kernel.fn)
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
            first, last = begin.max(low) - low, end.min(high) - low
            if group.walk is None and (chunks := _Chunks(kernel, config, group)).runs_on:
                units.walk_runs(ev, first, last, chunks.emit)
            else:
                units.walk(ev, first, last, group.emitter(kernel, config, workspace))
        taken = Expr.of(0)
        for group in groups:
            if isinstance(group.walk, (RankWalk, SummedWalk)):
                taken = taken.maximum(group.walk.workspace(kernel, config.lanes))
            elif isinstance(group.walk, FourierWalk):
                taken = taken.maximum(group.walk.workspace(config.lanes))
        return Grid(taken)

    return kernel.build(body)


@dataclass(frozen=True)
class _Chunks:
    """Emits the chunks of a group along its axis."""

    kernel: HostKernel
    config: GenericConfig
    group: _ResultGroup

    @property
    def runs_on(self) -> bool:
        """Are pieces of a row that follow one another moved at once? memcpy is the faster the longer its run is; what computes
        anything is not, and took up to a fifth longer over rows of 256 elements."""
        return self._ahead_of_stores and self._joined

    @property
    def _ahead_of_stores(self) -> bool:
        """Are vectors loaded before the ones in front of them are stored?"""
        length = self.group.length.constant
        fits = length is None or length >= 2 * _AHEAD * self.config.lanes
        return self.config.lanes > 1 and self.group.row is None and len(self.group.members) == 1 and fits and self._light

    def emit(self, unit: Unit, last: Unit | None = None) -> None:
        """All elements of a work unit, or of several along a row up to the last one."""
        group = self.group
        where = [unit.first(f"d{a}") if a in group.outer else Index(0) for a in range(len(group.dims))]
        found = borders(self.kernel.shapes, [self.kernel.results[n] for n in group.members])
        across = [b for b in found if b.axis in group.outer]
        spans = {a: unit.span(f"d{a}") for a in (group.axis, group.row) if a is not None}
        if last is not None and group.axis is not None:
            spans[group.axis] = spans[group.axis][0], last.span(f"d{group.axis}")[1]
        each_part(self.kernel.evaluator, [*across, *(b for b in found if b not in across)], where, spans,
                  lambda parts: self._columns(where, parts))

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
                loop(*spans[row], 1, lambda r: self._at([r if a == row else x for a, x in enumerate(where)], c, mask),
                     index=index)

        if lanes == 1:
            loop(lo, hi, 1, lambda c: at(c, None), index=index)
            return
        ahead = self._ahead_of_stores

        def vectors() -> None:
            begin, whole = self._ahead(where, lo, hi) if ahead else lo, hi - (hi - lo) % lanes
            loop(begin, whole, lanes, lambda c: at(Index.ramp(c, lanes), None), index=index)
            left = hi - whole
            when(Index(0).lt(left), lambda: at(Index.ramp(whole, lanes), lane_mask(left, lanes, index)))

        if ahead and self._joined:
            self._moved(where, lo, hi, vectors)
        else:
            vectors()

    @property
    def _joined(self) -> bool:
        """Are whole runs of arguments put together along the vectors, and nothing else?"""
        kernel = self.kernel
        kept = all(op.name in ("tensor.concat", "tensor.dim", "tensor.empty", "arith.constant") for op in kernel.ops())
        output = kernel.outputs[self.group.members[0]]
        return kept and output.stored == output.element and all(unit == self.group.axis for unit in kernel.input_units().values())

    def _moved(self, where: Sequence[Index], lo: Index, hi: Index, vectors: Callable[[], None]) -> None:
        """A long run by memcpy, which reads no line that it writes. Not one whose places begin a few bytes, modulo a page, behind
        those it reads: `rep movsb` takes 12 times as long for that on Zen 3."""
        word, number = integer_type(64), self.group.members[0]
        size = byte_width(self.kernel.outputs[number].stored)

        def run() -> None:
            first = [lo if a == self.group.axis else x for a, x in enumerate(where)]
            with self.kernel.evaluator.kept():
                loaded = owner(self.kernel.evaluator.element(self.kernel.results[number], first, None))
            if loaded is None or loaded.name != llvm.LoadOp.OPERATION_NAME:  # one of many arguments, chosen by its place
                return vectors()
            read, written, count = loaded.operands[0], self.kernel.outputs[number].address(first), (hi - lo) * size
            apart = Index(llvm.PtrToIntOp(word, written).result) - Index(llvm.PtrToIntOp(word, read).result)
            far = ((apart + (_PAGE - 1)) % _PAGE).ge(_NEAR - 1)
            when(all_of([far, count.ge(_LONG)]), lambda: _memcpy(written, read, count.value(word)), vectors)

        when(lo.lt(hi), run)

    @property
    def _light(self) -> bool:
        """Are elements moved, or computed in a few steps?"""
        arithmetic = 0
        for op in self.kernel.ops():
            computes = op.name.startswith("linalg.") and len(op.results) == 1
            if not computes and op.name not in (*MOVEMENT_OPS, *_VIEWS) and not op.name.startswith("arith."):
                return False
            names = [o.name for o in operations(op.regions[0].blocks[0])] if computes else []
            arithmetic += sum(n.startswith("arith.") for n in names)
            if arithmetic > _FEW_OPS or "reduction" in (iterator_kinds(op) if names else ()) or \
                    any(n.startswith(("math.", "tensor.", "scf.")) for n in names):
                return False
        return True

    def _ahead(self, where: Sequence[Index], lo: Index, hi: Index) -> Index:
        """The vectors in groups, each loaded before the one in front of it is stored; gives where they end.

        LLVM makes memcpy of a plain loop, which moves long rows by `rep movsb`; that takes 12 times as long on Zen 3 where the
        result begins a few bytes, modulo 4096, behind what is read. Loads of a loop of vectors would wait for stores there.
        """
        ev, lanes, index = self.kernel.evaluator, self.config.lanes, self.kernel.index
        number = self.group.members[0]
        size = _AHEAD * lanes
        whole = hi - (hi - lo) % size

        def coords(c: Index) -> list[list[Index]]:
            vectors = [Index.ramp(c + i * lanes, lanes) for i in range(_AHEAD)]
            return [[v if a == self.group.axis else x for a, x in enumerate(where)] for v in vectors]

        def load(c: Index) -> list[ir.Value]:
            with ev.kept():
                return [ev.element(self.kernel.results[number], at, None) for at in coords(c)]

        def store(c: Index, values: Sequence[ir.Value]) -> None:
            for at, value in zip(coords(c), values, strict=True):
                self.kernel.outputs[number].store(value, at, None)

        def step(c: Index, *carried: ir.Value) -> list[ir.Value]:
            following = load(c + size)
            store(c, carried)
            return following

        def groups() -> None:
            last = whole - size
            store(last, loop(lo, last, size, step, load(lo), index))

        when(lo.lt(whole), groups)
        return whole

    def _at(self, where: Sequence[Index], c: Index, mask: ir.Value | None) -> None:
        """Elements of all results of the group; all are there before one is stored, which may lie where another one is read."""
        ev, outputs, members = self.kernel.evaluator, self.kernel.outputs, self.group.members
        coords = [c if a == self.group.axis else x for a, x in enumerate(where)]
        with ev.kept():
            found = [ev.element(self.kernel.results[number], coords, mask) for number in members]
        for number, value in zip(members, found, strict=True):
            outputs[number].store(value, coords, mask)



def _memcpy(to: ir.Value, source: ir.Value, count: ir.Value) -> None:
    llvm.MemcpyOp(to, source, count, False)
