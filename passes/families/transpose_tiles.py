"""Transposed copies by square tiles: vectors along the source's unit axis, transposed in registers, stored along the result's."""

from __future__ import annotations

from dataclasses import dataclass

from passes.data_movement import movement
from passes.emit import lane_mask, loop, when
from passes.families.host_matmul_panel import transpose
from passes.host_kernel import HostKernel
from passes.index import Index, delinearize
from passes.loop_axes import unit_axis
from passes.mlir import ir, maps_of, owner, position
from passes.placement import axis_name, place
from runtime.shape import Expr


@dataclass(frozen=True)
class TransposeTiles:
    """Result `number` follows elementwise from `root`, a permutation of its operand.

    across: the axis of the result along which the operand has unit stride; along: the result's own axis of unit stride.
    axes: the result's axis at each axis of the root.
    """

    kernel: HostKernel
    number: int
    root: ir.Operation
    across: int
    along: int
    axes: tuple[int, ...]

    @staticmethod
    def of(kernel: HostKernel, number: int, along: int) -> TransposeTiles | None:
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
                return TransposeTiles(kernel, number, root, axes[moved], along, axes)
        return None

    def units(self, lanes: int) -> Expr:
        """One for each vector across, at each point of the other axes."""
        dims = self.kernel.shapes.dims(self.kernel.results[self.number])
        total = dims[self.across].ceildiv(lanes)
        for axis in self._outer():
            total = total * dims[axis]
        return total

    def emit(self, unit: Index, lanes: int) -> None:
        """All tiles of a work unit."""
        ev = self.kernel.evaluator
        dims = [ev.emit(e) for e in self.kernel.shapes.dims(self.kernel.results[self.number])]
        tiles = dims[self.across].ceildiv(lanes)
        coords = [Index(0)] * len(dims)
        for axis, x in zip(self._outer(), delinearize(unit // tiles, [dims[a] for a in self._outer()]), strict=True):
            coords[axis] = x
        first = unit % tiles * lanes
        left = dims[self.across] - first

        def along(c: Index) -> None:
            when(left.ge(lanes), lambda: self._tile(coords, first, c, dims, lanes, None),
                 lambda: self._tile(coords, first, c, dims, lanes, left))

        loop(0, dims[self.along], lanes, along, index=self.kernel.index)

    def _outer(self) -> list[int]:
        return [a for a in range(len(self.axes)) if a not in (self.across, self.along)]

    def _tile(self, coords: list[Index], first: Index, start: Index, dims: list[Index], lanes: int, left: Index | None) -> None:
        """left: how many there are across, None when as many as lanes."""
        ev, index = self.kernel.evaluator, self.kernel.index
        source = self.root.operands[0]
        read, written = maps_of(self.root)
        mask = None if left is None else lane_mask(left, lanes, index)
        last = dims[self.along] - 1
        rows = []
        for i in range(lanes):
            here = list(coords)
            here[self.along], here[self.across] = (start + i).min(last), Index.ramp(first, lanes)
            at = [here[a] for a in self.axes]
            loops = dict(zip((position(e) for e in written.results), at, strict=True))
            rows.append(ev.element(source, [loops[position(e)] for e in read.results], mask))
        kept = lane_mask(dims[self.along] - start, lanes, index)

        def store(i: int, row: ir.Value) -> None:
            here = list(coords)
            here[self.along], here[self.across] = Index.ramp(start, lanes), first + i
            ev.known[self.root.results[0]] = lambda _: row
            self.kernel.outputs[self.number].store(ev.element(self.kernel.results[self.number], here, kept), here, kept)

        for i, row in enumerate(transpose(rows)):
            if left is None:
                store(i, row)
            else:
                when(Index(i).lt(left), lambda i=i, row=row: store(i, row))  # type: ignore[misc]
        ev.known.pop(self.root.results[0])


def _unpadded(value: ir.Value) -> ir.Value:
    op = owner(value)
    return _unpadded(op.operands[0]) if op is not None and op.name == "tensor.pad" else value
