"""Convolutions over volumes as convolutions over their planes: the planes that a window reads lie side by side as channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.copies import copied, transposed
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.structured import inputs, loop_map, rebuild
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.winograd_form import Form
from tilewright.passes.transforms.convolution_form import is_convolution, steps_of

_FEWEST = 128  # pixels of a result; 32 to 98 with 64 to 512 channels took .81 to 1.39 times as long, 128 and more .36 to 1.01


@dataclass(frozen=True)
class VolumePlanes:
    """A convolution of images [n, c, plane, row, column] and filters [f, c, plane, row, column], whose windows save
    multiplications in their planes (host_winograd). steps: of the window along each axis, and between its planes."""

    op: ir.Operation
    steps: Sequence[int]
    apart: int

    @staticmethod
    def of(op: ir.Operation, shapes: SymbolicShapes, lanes: int) -> VolumePlanes | None:
        """None of anything else, where filters or channels fill no vector of so many lanes, and of few pixels."""
        if not is_convolution(op, 3):
            return None
        filters, channels, _, *window = (d.constant or 0 for d in shapes.dims(inputs(op)[1]))
        (along, *steps), (apart, *dilations) = steps_of(op)
        kinds = {str(ir.RankedTensorType(v.type).element_type) for v in op.operands}
        served = dilations == [1, 1] and kinds == {"f32"} and Form.of(list(zip(window, steps, strict=True))) is not None
        enough = min(filters, channels) >= lanes and shapes.bounds(product(shapes.dims(op.results[0])[2:]))[1] >= _FEWEST
        return VolumePlanes(op, [along, *steps], apart) if served and enough else None

    def convolved(self, views: Reshaper, image: ir.Value, start: ir.Value) -> ir.Value:
        """[n, plane, row, column, f]. image, start: likewise with channels last, the image padded."""
        filters, dims = inputs(self.op)[1], views.shapes.dims
        n, planes, *places, f = dims(start)
        _, c, taps, *window = dims(filters)
        rows, columns = dims(image)[2:4]
        read = views.reshape(self._side_by_side(views, image), [n * planes, rows, columns, taps * c])
        by = views.reshape(transposed(views, filters, (0, 2, 1, 3, 4)), [f, taps * c, *window])
        d, (_, down, right) = [ir.AffineExpr.get_dim(i) for i in range(7)], self.steps
        access = ir.AffineMap.get(7, 0, [d[0], d[1] * down + d[4], d[2] * right + d[5], d[6]])
        made = rebuild(self.op, [read, by], [views.reshape(start, [n * planes, *places, f])],
                       [access, loop_map(7, 3, 6, 4, 5), loop_map(7, 0, 1, 2, 3)], ["parallel"] * 4 + ["reduction"] * 3)
        return views.reshape(made.results[0], [n, planes, *places, f])

    def _side_by_side(self, views: Reshaper, image: ir.Value) -> ir.Value:
        """[n, plane of the result, row, column, plane of the window, c]; the image itself where a window has one plane."""
        n, _, rows, columns, c = views.shapes.dims(image)
        planes, taps = views.shapes.dims(self.op.results[0])[2], views.shapes.dims(inputs(self.op)[1])[2]
        along = self.steps[0]
        if taps.constant == along == 1:
            return image
        d = [ir.AffineExpr.get_dim(i) for i in range(6)]
        return copied(views, image, [n, planes, rows, columns, taps, c],
                      [d[0], d[1] * along + d[4] * self.apart, d[2], d[3], d[5]])
