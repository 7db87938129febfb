"""Transposed copies by square tiles: vectors along the source's unit axis, transposed in registers, stored along the result's."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.loop_axes import unit_axis
from tilewright.passes.analysis.placement import axis_name, place
from tilewright.passes.codegen.emit import lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import Unit
from tilewright.passes.families.host.host_matmul_panel import transpose
from tilewright.passes.linalg.data_movement import movement
from tilewright.passes.mlir import ir, maps_of, owner, position


@dataclass(frozen=True)
class TransposeTiles:
    """Result `number` follows elementwise from `root`, a permutation of its operand.

    across: the axis of the result along which the operand has unit stride; along: the result's own axis of unit stride.
    axes: the result's axis at each axis of the root.
    """

    number: int
    root: ir.Operation
    across: int
    along: int
    axes: tuple[int, ...]

    @staticmethod
    def of(kernel: KernelFrame, number: int, along: int) -> TransposeTiles | None:
        """None where the result follows from no permutation with another unit axis, or not element by element."""
        result = kernel.results[number]
        ops = kernel.ops()
        rank = ir.RankedTensorType(result.type).rank
        for root in ops:
            source = movement(root)
            if source is None or not source.is_permutation or ir.RankedTensorType(root.results[0].type).rank != rank:
                continue
            unit = unit_axis(_unpadded(root.operands[0]), kernel.input_units())
            if unit is None:
                continue
            try:
                at = place(kernel.shapes, root.results[0], ops[ops.index(root) + 1 :], [result])[0]
            except ValueError:  # the result is no elementwise function of the root
                continue
            names = [axis_name(a) for a in range(rank)]
            if sorted(str(e) for e in at) != sorted(names):
                continue
            axes = tuple([str(e) for e in at].index(n) for n in names)
            moved = position(source.results[unit])
            if moved is not None and axes[moved] != along:
                return TransposeTiles(number, root, axes[moved], along, axes)
        return None

    def outer(self) -> list[int]:
        return [a for a in range(len(self.axes)) if a not in (self.across, self.along)]


@dataclass(frozen=True)
class TileEmitter:
    """Emits the tiles of work units: all along the result, `lanes` across it, at one point of the other axes."""

    kernel: HostKernel
    tiles: TransposeTiles
    lanes: int

    def emit(self, unit: Unit) -> None:
        """All tiles of a work unit."""
        ev, tiles, lanes = self.kernel.evaluator, self.tiles, self.lanes
        dims = [ev.emit(e) for e in self.kernel.shapes.dims(self.kernel.results[tiles.number])]
        coords = [unit.first(f"d{a}") if a in tiles.outer() else Index(0) for a in range(len(dims))]
        first = unit.first(f"d{tiles.across}")
        left = dims[tiles.across] - first

        def along(c: Index) -> None:
            when(left.ge(lanes), lambda: self._tile(coords, first, c, dims, None),
                 lambda: self._tile(coords, first, c, dims, left))

        loop(0, dims[tiles.along], lanes, along, index=self.kernel.index)

    def _tile(self, coords: list[Index], first: Index, start: Index, dims: list[Index], left: Index | None) -> None:
        """left: how many there are across, None when as many as lanes."""
        ev, index, tiles, lanes = self.kernel.evaluator, self.kernel.index, self.tiles, self.lanes
        source = tiles.root.operands[0]
        read, written = maps_of(tiles.root)
        mask = None if left is None else lane_mask(left, lanes, index)
        last = dims[tiles.along] - 1
        rows = []
        for i in range(lanes):
            here = list(coords)
            here[tiles.along], here[tiles.across] = (start + i).min(last), Index.ramp(first, lanes)
            at = [here[a] for a in tiles.axes]
            loops = dict(zip((position(e) for e in written.results), at, strict=True))
            rows.append(ev.element(source, [loops[position(e)] for e in read.results], mask))
        kept = lane_mask(dims[tiles.along] - start, lanes, index)

        def store(i: int, row: ir.Value) -> None:
            here = list(coords)
            here[tiles.along], here[tiles.across] = Index.ramp(start, lanes), first + i
            ev.known[tiles.root.results[0]] = lambda _: row
            self.kernel.outputs[tiles.number].store(ev.element(self.kernel.results[tiles.number], here, kept), here, kept)

        for i, row in enumerate(transpose(rows)):
            if left is None:
                store(i, row)
            else:
                when(Index(i).lt(left), lambda i=i, row=row: store(i, row))  # type: ignore[misc]
        ev.known.pop(tiles.root.results[0])


def _unpadded(value: ir.Value) -> ir.Value:
    op = owner(value)
    return _unpadded(op.operands[0]) if op is not None and op.name == "tensor.pad" else value
