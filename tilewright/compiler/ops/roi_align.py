"""Boxes of images, each brought to one size by bilinear samples of its cells (He et al., Mask R-CNN, 2017, section 3)."""

from __future__ import annotations

from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Tensor, shown, want_equal, want_float, want_rank
from tilewright.compiler.ops.indexing import want_indices
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reductions import max as largest_of
from tilewright.compiler.ops.reductions import mean
from tilewright.compiler.ops.reshaping import reshape, unsqueeze
from tilewright.compiler.ops.slicing import select
from tilewright.compiler.ops.weighted_elements import Taps, weighted_elements
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_NAME = "roi_align"


def roi_align(
    x: Tensor, boxes: Tensor, images: Tensor, cells: tuple[int, int, int], scale: float = 1.0, aligned: bool = True,
    largest: bool = False,
) -> Tensor:
    """x [N, C, H, W] in boxes [R, 4] of the images [R]: [R, C, rows, columns], the mean of samples x samples places of each cell.

    A box is the columns and rows of two corners, (x1, y1, x2, y2). A place more than one element outside of its image counts as
    zero.

    Args:
        cells: rows, columns, and the samples along each axis of a cell, at least 1.
        scale: of the boxes' numbers to elements of x.
        aligned: elements have their middles at halves, and a box may be smaller than an element; else their middles are whole
            numbers, and a box has an element at least.
        largest: of every sample the largest of its four weighted elements, and of a cell the largest of these, as ONNX's RoiAlign
            defines mode="max".
    Raises:
        ShapeError: ranks or extents do not fit. DTypeError: x or boxes are no floats, images no integers. OptionError: no
            samples.
    """
    want_rank(_NAME, "the images", x, 4)
    want_rank(_NAME, "the boxes", boxes, 2)
    want_float(_NAME, x, boxes)
    want_indices(_NAME, images)
    want_rank(_NAME, "the numbers of images", images, 1)
    want_equal(_NAME, "the boxes and the numbers of images", boxes.dims[0], images.dims[0])
    if boxes.dims[1] != Expr.of(4):
        raise ShapeError(f"{_NAME}: boxes {shown(boxes.dims)}; wanted four numbers in the last axis")
    rows, columns, samples = cells
    if samples < 1:
        raise OptionError(f"{_NAME}: samples={samples}; wanted 1 or more along each axis of a cell")
    corners = cast(boxes, computed_in(x.dtype))
    taps = []
    for axis, count in enumerate((rows, columns)):
        first, last = (select(corners, 1, 1 - axis + k) for k in (0, 2))
        places = _places(first, last, count * samples, scale, aligned)
        taps.append(Taps(_taps(places, x.dims[2 + axis]), ["d0", f"d{2 + axis}"]))
    sampled = weighted_elements(x, taps, [Expr.of(rows * samples), Expr.of(columns * samples)], images, largest)
    grouped = reshape(sampled, [boxes.dims[0], x.dims[1], rows, samples, columns, samples])
    return (largest_of if largest else mean)(grouped, [3, 5])


def _places(first: Tensor, last: Tensor, count: int, scale: float, aligned: bool) -> Tensor:
    """[R, count] places along an axis."""
    g = first.graph
    number = cast(iota(g, [1, count], 1, DType.I64), first.dtype)

    def place(a: Scalar, b: Scalar, at: Scalar) -> Scalar:
        offset = 0.5 if aligned else 0.0
        begin, end = a * scale - offset, b * scale - offset
        length = end - begin if aligned else (end - begin).maximum(1.0)
        return begin + (at + 0.5) * (length * (1.0 / count))

    return g.pointwise(_NAME, place, unsqueeze(first, 1), unsqueeze(last, 1), number)


def _taps(places: Tensor, extent: Expr) -> list[tuple[Tensor, Tensor | None]]:
    """The two elements around each place, and what they weigh."""
    g = places.graph

    def inside(p: Scalar, size: Scalar) -> Scalar:
        return p.compare("ge", -1.0) & p.compare("le", size)

    def low(p: Scalar, size: Scalar) -> Scalar:
        return p.maximum(0.0).math("floor").minimum(size - 1)

    def rest(p: Scalar, size: Scalar) -> Scalar:
        return (p.maximum(0.0) - low(p, size)).minimum(1.0) * _whole(low(p, size).compare("lt", size - 1))

    def element(up: int) -> Tensor:
        def number(p: Scalar, size: Scalar) -> Scalar:
            return p.body.select(inside(p, size), (low(p, size) + float(up)).minimum(size - 1), -1.0)

        return cast(g.pointwise(_NAME, number, places, extent), DType.I32)

    return [(element(0), g.pointwise(_NAME, lambda p, size: 1 - rest(p, size), places, extent)),
            (element(1), g.pointwise(_NAME, rest, places, extent))]  # fmt: skip


def _whole(condition: Scalar) -> Scalar:
    """1.0 where it holds, else 0.0."""
    return condition.body.select(condition, 1.0, 0.0)
