"""Transposed copies by square tiles: vectors along the source's unit axis, transposed in registers, stored along the result's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.passes.analysis.loop_axes import has_loops, unit_axis
from tilewright.passes.analysis.placement import axis_name, place
from tilewright.passes.codegen.borders import borders
from tilewright.passes.codegen.emit import byte_width, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.border_parts import Spans, each_part
from tilewright.passes.families.host.host_matmul_panel import transpose
from tilewright.passes.linalg.data_movement import movement
from tilewright.passes.linalg.structured import inputs, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

_MIDDLE = 64  # stands for extents that are not known


@dataclass(frozen=True)
class Read:
    """An operand of an elementwise operation. axes: the result's axis at each of its own; held: what a tile holds elements of,
    the operand or, where its elements are only moved, what they are moved to. mirrored: the operand is what is moved itself, of
    which some axes run backwards in a table; the table, and the result's axis at each of its own."""

    source: ir.Value
    axes: tuple[int, ...]
    held: ir.Value
    mirrored: tuple[ir.Value, tuple[int, ...]] | None = None

    @property
    def table(self) -> ir.Value:
        """What memory holds."""
        return self.source if self.mirrored is None else self.mirrored[0]

    @property
    def table_axes(self) -> tuple[int, ...]:
        return self.axes if self.mirrored is None else self.mirrored[1]


@dataclass(frozen=True)
class TransposeTiles:
    """Result `number` is computed element by element from operands of which some have another unit axis.

    across: the axis of the result along which these, `reads`, have unit stride; along: the result's own axis of unit stride.
    block: which of the two units have a few tiles of; they walk along the other. line: elements of a line of memory.
    """

    number: int
    rank: int
    across: int
    along: int
    reads: tuple[Read, ...] = ()
    block: int = -1
    line: int = 1

    @staticmethod
    def of(kernel: KernelFrame, number: int, along: int) -> TransposeTiles | None:
        """None where the result follows from no permutation with another unit axis, or not element by element."""
        result = kernel.results[number]
        rank = ir.RankedTensorType(result.type).rank
        found: dict[int, list[Read]] = {}
        for op in kernel.ops():
            for read in _reads(kernel, op, result):
                unit = unit_axis(_unpadded(read.table), kernel.input_units())
                if unit is not None and read.table_axes[unit] != along:
                    found.setdefault(read.table_axes[unit], []).append(read)
        for across, reads in found.items():
            return _walked(kernel, TransposeTiles(number, rank, across, along, tuple(reads)))
        return None

    @property
    def moving(self) -> int:
        """The axis that units walk along."""
        return self.across if self.block == self.along else self.along

    def outer(self) -> list[int]:
        return [a for a in range(self.rank) if a not in (self.across, self.along)]

    def cuts(self, lanes: int, chunk: int) -> dict[int, int | None]:
        """The axes that units are cut along, about `chunk` elements in each."""
        wide = lanes * self.abreast(lanes)
        return {**dict.fromkeys(self.outer()), self.block: wide, self.moving: max(1, chunk // wide // lanes) * lanes}

    def abreast(self, lanes: int) -> int:
        """Tiles that fill lines of memory."""
        return max(1, self.line // lanes)


@dataclass(frozen=True)
class TileEmitter:
    """Emits the tiles of work units, `lanes` by `lanes` elements, at one point of the other axes."""

    kernel: HostKernel
    tiles: TransposeTiles
    lanes: int

    def emit(self, unit: Unit) -> None:
        """All tiles of a work unit, apart by the borders of the result: whole ones have no mask."""
        tiles, result = self.tiles, self.kernel.results[self.tiles.number]
        where = [unit.first(f"d{a}") if a in tiles.outer() else Index(0) for a in range(tiles.rank)]
        spans = {a: unit.span(f"d{a}") for a in (tiles.across, tiles.along)}
        found = borders(self.kernel.shapes, [result])
        ordered = [*(b for b in found if b.axis not in spans), *(b for b in found if b.axis in spans)]
        each_part(self.kernel.evaluator, ordered, where, spans, lambda parts: self._part(where, parts))

    def _part(self, where: Sequence[Index], spans: Spans) -> None:
        """Whole tiles, as many side by side as fill lines of memory, then single ones; then what is left along the way, then
        beside it."""
        tiles, lanes, index, abreast = self.tiles, self.lanes, self.kernel.index, self.tiles.abreast(self.lanes)
        (low, high), (first, last) = spans[tiles.block], spans[tiles.moving]
        ends = {axis: end for axis, (_, end) in spans.items()}
        whole, lone = last - (last - first) % lanes, high - (high - low) % lanes
        full = high - (high - low) % (lanes * abreast)

        def tile(b: Index, m: Index, masked: bool) -> None:
            place = {tiles.block: b, tiles.moving: m}
            self._tile([place.get(a, x) for a, x in enumerate(where)], ends if masked else None)

        def walk(b: Index, count: int) -> None:
            def step(m: Index) -> None:
                for n in range(count):
                    tile(b + n * lanes, m, False)

            loop(first, whole, lanes, step, index=index)

        def last_tiles() -> None:
            loop(low, high, lanes, lambda b: tile(b, whole, True), index=index)

        def narrow_tiles() -> None:
            loop(first, whole, lanes, lambda m: tile(lone, m, True), index=index)

        loop(low, full, lanes * abreast, lambda b: walk(b, abreast), index=index)
        if abreast > 1:
            loop(full, lone, lanes, lambda b: walk(b, 1), index=index)
        when(whole.lt(last), last_tiles)
        when(lone.lt(high), narrow_tiles)

    def _tile(self, place: list[Index], ends: Mapping[int, Index] | None) -> None:
        """The tile whose first element is at a place. ends: where the result ends across and along, None for a whole tile."""
        ev, index, tiles, lanes = self.kernel.evaluator, self.kernel.index, self.tiles, self.lanes
        first, start = place[tiles.across], place[tiles.along]
        across = None if ends is None else ends[tiles.across] - first
        kept = None if ends is None else lane_mask(ends[tiles.along] - start, lanes, index)
        mask = None if across is None else lane_mask(across, lanes, index)

        def rows(read: Read) -> list[ir.Value]:
            found = []
            for i in range(lanes):
                here = list(place)
                row = start + i
                here[tiles.along] = row if ends is None else row.min(ends[tiles.along] - 1)
                here[tiles.across] = Index.ramp(first, lanes)
                found.append(ev.element(read.source, [here[a] for a in read.axes], mask))
            return transpose(found)

        def store(i: int, held: Sequence[ir.Value]) -> None:
            here = list(place)
            here[tiles.along], here[tiles.across] = Index.ramp(start, lanes), first + i
            for read, row in zip(tiles.reads, held, strict=True):
                ev.known[read.held] = lambda _, row=row: row  # type: ignore[misc]
            self.kernel.outputs[tiles.number].store(ev.element(self.kernel.results[tiles.number], here, kept), here, kept)

        for i, held in enumerate(zip(*(rows(read) for read in tiles.reads), strict=True)):
            if across is None:
                store(i, held)
            else:
                when(Index(i).lt(across), lambda i=i, held=held: store(i, held))  # type: ignore[misc]
        for read in tiles.reads:
            ev.known.pop(read.held)


def _reads(kernel: KernelFrame, op: ir.Operation, result: ir.Value) -> list[Read]:
    """The operands that an operation reads by a permutation, where a result of as many axes follows from it element by element.

    An operand of which other elements are read as well is none, unless the operation only moves it.
    """
    rank = ir.RankedTensorType(result.type).rank
    if not has_loops(op) or len(op.results) != 1 or ir.RankedTensorType(op.results[0].type).rank != rank or \
            "reduction" in iterator_kinds(op):
        return []
    maps, ops = maps_of(op), kernel.ops()
    moved = movement(op) is not None
    found = [(v, m) for v, m in zip(inputs(op), maps, strict=False) if isinstance(v.type, ir.RankedTensorType)
             and m.is_permutation and (moved or _readers(v) == 1)]  # fmt: skip
    mirrored = _mirrored(op)
    if not (found or mirrored) or not maps[-1].is_permutation:
        return []
    try:
        at = place(kernel.shapes, op.results[0], ops[ops.index(op) + 1 :], [result])[0]
    except ValueError:  # the result is no elementwise function of this one
        return []
    names = [axis_name(a) for a in range(rank)]
    if sorted(str(e) for e in at) != sorted(names):
        return []
    axis_of = {position(e): [str(c) for c in at].index(n) for e, n in zip(maps[-1].results, names, strict=True)}
    if mirrored is not None:
        own = tuple(axis_of[position(e)] for e in maps[-1].results)
        table, loops = mirrored
        return [Read(op.results[0], own, op.results[0], (table, tuple(axis_of[d] for d in loops)))]
    return [Read(v, tuple(axis_of[position(e)] for e in m.results), op.results[0] if moved else v) for v, m in found]


def _mirrored(op: ir.Operation) -> tuple[ir.Value, tuple[int, ...]] | None:
    """The tensor that an operation only moves, some axes backwards, and the loop at each of its axes; None of another one."""
    body = list(operations(op.regions[0].blocks[0])) if op.name == "linalg.generic" and not inputs(op) else []
    if len(body) < 2 or body[-2].name != "tensor.extract" or list(body[-1].operands) != [body[-2].results[0]]:
        return None
    *steps, taken, _ = body
    loops = []
    for value in list(taken.operands)[1:]:
        at = owner(value)
        if at is not None and at.name == "arith.subi" and at in steps:
            extent, at = owner(at.operands[0]), owner(at.operands[1])
            if extent is not None and extent in steps:
                return None
        if at is None or at.name != "linalg.index":
            return None
        loops.append(integer(at.attributes["dim"]))
    return (taken.operands[0], tuple(loops)) if sorted(loops) == list(range(maps_of(op)[0].n_dims)) else None


def _readers(value: ir.Value) -> int:
    """How often elements of a value are read."""
    return sum(use.owner.name != "tensor.dim" for use in value.uses)


def _walked(kernel: KernelFrame, tiles: TransposeTiles) -> TransposeTiles:
    """With the way that units walk: along the axis whose neighbours lie closer, so that of what lies further apart a unit has few
    rows, which it stays in. Each other row is another page, and with a pitch of a power of two another line of the same set."""
    read, result = tiles.reads[0], kernel.results[tiles.number]
    apart = _pitch(kernel.shapes.dims(read.table), read.table_axes.index(tiles.along))
    far = apart > _pitch(kernel.shapes.dims(result), tiles.across)
    size = max(byte_width(ir.RankedTensorType(v.type).element_type) for v in (read.source, result))
    return replace(tiles, block=tiles.along if far else tiles.across, line=LINE // size)


def _pitch(dims: Sequence[Expr], axis: int) -> int:
    """Elements from one place along an axis to the next in a dense tensor, dims being of a middle size."""
    found = 1
    for extent in dims[axis + 1 :]:
        found *= extent.evaluate(dict.fromkeys(extent.symbols, _MIDDLE))
    return found


def _unpadded(value: ir.Value) -> ir.Value:
    op = owner(value)
    return _unpadded(op.operands[0]) if op is not None and op.name == "tensor.pad" else value
