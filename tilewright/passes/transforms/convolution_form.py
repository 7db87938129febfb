"""What a convolution of images with their channels first looks like: as an operation of linalg, or as a generic."""

from __future__ import annotations

from tilewright.passes.analysis.contraction import linear_terms, product_of
from tilewright.passes.mlir import ir, maps_of, position

CONVOLUTION = "linalg.conv_2d_nchw_fchw"


def is_pointwise(op: ir.Operation) -> bool:
    """A window of one pixel, with steps of one, along any number of axes."""
    window = list(ir.RankedTensorType(op.operands[1].type).shape)[2:]
    return window == [1] * len(window) == steps_of(op)[0]


def is_convolution(op: ir.Operation, axes: int = 2, swapped: bool = False) -> bool:
    """Of images [n, c, row, column] and filters [f, c, row, column], or of more axes; as a generic, whose factors may be widened
    each its way. swapped: of filters [c, f, row, column]."""
    if op.name == CONVOLUTION:
        return axes == 2 and not swapped
    if op.name != "linalg.generic" or len(op.operands) != 3 or product_of(op) is None:
        return False
    image, filters, result = ([position(e) for e in m.results] for m in maps_of(op))
    if {len(result), len(image), len(filters)} != {axes + 2} or None in (*filters, *result):
        return False
    n, f, *places = result
    by = [image[1], f] if swapped else [f, image[1]]
    same = image[0] == n and filters[:2] == by and image[2:] == [None] * axes
    return same and len({*result, *filters}) == 3 + 2 * axes == maps_of(op)[0].n_dims and all(
        terms is not None and set(terms) == {places[i], filters[2 + i]}
        for i, terms in enumerate(linear_terms(e) for e in list(maps_of(op)[0].results)[2:]))


def steps_of(op: ir.Operation) -> tuple[list[int], list[int]]:
    """Strides and dilations of a convolution along each axis of its window."""
    image, filters, result = maps_of(op)
    terms = [linear_terms(e) or {} for e in list(image.results)[2:]]
    moved = [[position(m.results[2 + i]) for i in range(len(terms))] for m in (result, filters)]
    strides, dilations = ([found[d] for found, d in zip(terms, loops, strict=True) if d is not None] for loops in moved)
    return strides, dilations
