"""Tiles for elementwise work that reads operands across the result: in along their fast axis, out along the result's.

An operand whose unit-stride axis is another axis of the result than the fastest goes through shared memory, so that a warp reads
and writes neighbouring elements. The tile's pitch is odd, so that a warp reads every bank once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory, all_of, choose, constant, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel, Grid
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.scatter import scatters
from tilewright.passes.mlir import ir
from tilewright.runtime.shape import Expr

Coords = tuple[Index, ...]


@dataclass(frozen=True)
class Crossing:
    """fast: the unit-stride axis of the results; across: that of the operands that are read across it."""

    fast: int
    across: int
    operands: tuple[ir.Value, ...]


def crossing_of(kernel: GpuKernel) -> Crossing | None:
    """The operands read across the results; None when there are none, or the results do not share their extents.

    Emits code that nothing uses: the coordinates of reads are those that the evaluator asks for.
    """
    dims = {kernel.shapes.dims(v) for v in kernel.results}
    if len(dims) != 1 or any(map(scatters, kernel.results)):
        return None
    strides = kernel.outputs[0].strides
    fast = next((a for a in reversed(range(len(strides))) if strides[a].const == 1), None)
    if fast is None:
        return None
    at = tuple(Index(kernel.thread().value(kernel.index)) for _ in strides)
    found: dict[int, list[ir.Value]] = {}
    for value, memory in kernel.evaluator.memories.items():
        unit = next((a for a in reversed(range(len(memory.strides))) if memory.strides[a].const == 1), None)
        for coords in _reads(kernel, value, at) if unit is not None else []:
            axis = _which(coords[unit], at) if unit is not None else None
            if axis is not None and axis != fast and _which_all(coords, at):
                found.setdefault(axis, []).append(value)
    if not found:
        return None
    across = max(found, key=lambda a: len(found[a]))
    return Crossing(fast, across, tuple(dict.fromkeys(found[across])))


def crossing_axes(frame: KernelFrame) -> Crossing | None:
    """The same for a region that is still to be cut, without the operands: found on a copy, whose kernel nobody uses."""
    copy = ir.Module.create()
    copy.body.append(frame.fn.clone())
    kernel, found = GpuKernel(copy, "scratch", 64), list[Crossing | None]()

    def body() -> Grid:
        found.append(crossing_of(kernel))
        return Expr.of(1), Expr.of(1), Expr.of(1)

    kernel.launch(1, body)
    kernel.finish()
    return None if found[0] is None else Crossing(found[0].fast, found[0].across, ())


def tile_crossing(frame: KernelFrame, tiler: Tiler, crossing: Crossing, tile: int) -> None:
    """Units of a square of the results at one point of the other axes."""
    dims = frame.shapes.dims(frame.results[0])
    cut = (crossing.across, crossing.fast)
    others = [a for a in range(len(dims)) if a not in cut]

    def parts(place: list[Index]) -> dict[str, Part]:
        axes = zip((*others, *cut), place, strict=True)
        return {f"d{a}": tiler.span(x, tile, dims[a]) if a in cut else Part(x) for a, x in axes}

    counts = [*(dims[a] for a in others), *(dims[a].ceildiv(tile) for a in cut)]
    tiler.loop(counts, parts, {v: {f"d{a}": (a,) for a in range(len(dims))} for v in frame.results})


def tiled(kernel: GpuKernel, crossing: Crossing, tile: int) -> Grid:
    """Emits all results, tiles of `tile` x `tile` elements a block."""
    return _Tiles(kernel, crossing, tile).emit()


class _Tiles:
    def __init__(self, kernel: GpuKernel, crossing: Crossing, tile: int) -> None:
        self.kernel, self.crossing, self.tile = kernel, crossing, tile
        self.dims = kernel.shapes.dims(kernel.results[0])
        self.rows = kernel.threads // tile

    def emit(self) -> Grid:
        kernel, ev, c = self.kernel, self.kernel.evaluator, self.crossing
        units = kernel.loops[0]
        kernel.bound(units.total)
        unit = units.numbers(ev)(kernel.block_id())
        base = [unit.first(f"d{a}") for a in range(len(self.dims))]
        thread = kernel.thread()
        lane, row = thread % self.tile, thread // self.tile
        boxes = {v: kernel.shared(ev.memories[v].element, [self.tile, self.tile + 1]) for v in c.operands}
        for i in range(self.tile // self.rows):
            for value, box in boxes.items():
                self._read(value, box, base, row + i * self.rows, lane)
        kernel.barrier()
        for i in range(self.tile // self.rows):
            self._write(boxes, base, lane, row + i * self.rows)
        return units.total, Expr.of(1), Expr.of(1)

    def _at(self, base: Sequence[Index], fast: Index, across: Index) -> tuple[Coords, ir.Value | bool]:
        """Coordinates in the results, and whether they are inside."""
        c, ev = self.crossing, self.kernel.evaluator
        at = list(base)
        at[c.fast], at[c.across] = base[c.fast] + fast, base[c.across] + across
        return tuple(at), all_of([at[a].lt(ev.emit(self.dims[a])) for a in (c.fast, c.across)])

    def _read(self, value: ir.Value, box: GpuMemory, base: Sequence[Index], fast: Index, across: Index) -> None:
        memory = self.kernel.evaluator.memories[value]
        at, inside = self._at(base, fast, across)
        coords = next(c for c in _reads(self.kernel, value, at) if _crosses(memory, c, at[self.crossing.across]))
        element = choose(inside, memory.element, lambda: memory.load(coords), lambda: constant(memory.element, 0))
        box.store(element, [fast, across])

    def _write(self, boxes: dict[ir.Value, GpuMemory], base: Sequence[Index], fast: Index, across: Index) -> None:
        kernel, ev = self.kernel, self.kernel.evaluator
        at, inside = self._at(base, fast, across)
        for value, box in boxes.items():
            memory = ev.memories[value]

            def known(coords: Sequence[Index], memory: Memory = memory, box: GpuMemory = box) -> ir.Value:
                here = _crosses(memory, coords, at[self.crossing.across])
                return box.load([fast, across]) if here else memory.load(coords)

            ev.known[value] = known

        def store() -> None:
            with ev.kept():
                made = [ev.element(value, at) for value in kernel.results]
                for memory, element in zip(kernel.outputs, made, strict=True):
                    memory.store(element, at)

        when(inside, store)
        for value in boxes:
            del ev.known[value]


def _reads(kernel: GpuKernel, value: ir.Value, at: Coords) -> list[Coords]:
    """Where results at `at` read an operand."""
    found: list[Coords] = []
    element = ir.RankedTensorType(value.type).element_type

    def record(coords: Sequence[Index]) -> ir.Value:
        found.append(tuple(coords))
        return constant(element, 0)

    ev = kernel.evaluator
    ev.known[value] = record
    for result in kernel.results:
        ev.element(result, at)
    del ev.known[value]
    return found


def _crosses(memory: Memory, coords: Sequence[Index], across: Index) -> bool:
    unit = next(a for a in reversed(range(len(memory.strides))) if memory.strides[a].const == 1)
    return _same(coords[unit], across)


def _same(a: Index, b: Index) -> bool:
    if a.is_vector or b.is_vector or a.type is None or b.type is None:
        return a.const is not None and a.const == b.const
    return bool(a.value(a.type) == b.value(b.type))


def _which(c: Index, at: Coords) -> int | None:
    """The axis whose coordinate `c` is."""
    return next((axis for axis, x in enumerate(at) if _same(c, x)), None)


def _which_all(coords: Coords, at: Coords) -> bool:
    """Is every coordinate one of the result's, or a constant?"""
    return all(c.const is not None or _which(c, at) is not None for c in coords)
