"""Sums of elements of images at places that tensors give, each with a weight along every axis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.reshaping import reshape
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Taps:
    """The elements along one axis of the images that each place reads.

    elements: of each tap the number of the element, -1 outside, and its weight, None for 1. loops: the loops of the result that
    these tensors run along, "d0" its images, "d1" its channels.
    """

    elements: Sequence[tuple[Tensor, Tensor | None]]
    loops: Sequence[str]


def weighted_elements(
    x: Tensor, axes: Sequence[Taps], places: Sequence[Expr], image: Tensor | None = None, largest: bool = False
) -> Tensor:
    """[images, channels, *places] of x [N, C, ...], in what it computes in: each a sum over the taps of all axes.

    Args:
        axes: of every axis of x behind the first two.
        image: [images], the image that each of the result reads; None: its own.
        largest: the largest of the weighted elements, in place of their sum.
    """
    g, kind = x.graph, computed_in(x.dtype)
    counts = [len(taps.elements) for taps in axes]
    given = [(t, list(taps.loops)) for taps in axes for tap in taps.elements for t in tap if t is not None]
    extents = x.dims[2:]
    flat = reshape(x, [*x.dims[:2], _product(extents)])

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        values = iter(scalars)
        read = [(next(values), None if w is None else next(values)) for taps in axes for _, w in taps.elements]
        first = next(values).cast("index") if image is not None else region.index(0)
        steps = [g.number(region, _product(extents[a + 1 :]), read[0][0].kind) for a in range(len(axes) - 1)]
        total: Scalar | None = None
        starts = list(itertools.accumulate(counts, initial=0))
        for chosen in itertools.product(*(read[a:b] for a, b in itertools.pairwise(starts))):
            numbers = [tap[0] for tap in chosen]
            inside = functools.reduce(Scalar.__and__, [number.compare("ge", 0) for number in numbers])
            place = numbers[-1]
            for number, step in zip(numbers[:-1], steps, strict=True):
                place = number * step + place
            at = region.select(inside, place, 0)
            value = element(region, flat, [first, region.index(1), at.cast("index")]).cast(kind.value)
            value = region.select(inside, value, 0.0)
            weights = [w for _, w in chosen if w is not None]
            if weights:
                value = value * region.select(inside, functools.reduce(Scalar.__mul__, weights), 0.0)
            total = value if total is None else total.maximum(value) if largest else total + value
        assert total is not None
        return total.cast(x.dtype.value)

    count = image.dims[0] if image is not None else x.dims[0]
    dims = [count, x.dims[1], *places]
    loops = [f"d{a}" for a in range(len(dims))]
    inputs = given if image is None else [*given, (image, ["d0"])]
    return g.generic(inputs, (g.empty(x.dtype, dims), loops), ["parallel"] * len(dims), body)


def _product(extents: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for extent in extents:
        total = total * extent
    return total
