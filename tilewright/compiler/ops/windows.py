"""Reductions over windows of any number of axes whose begin and end are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.reductions import Reduction
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Place = Callable[[Scalar], Scalar]
# of an element of x, its place along every axis that has windows, and the elements of further operands at the window
Element = Callable[[Scalar, Sequence[Scalar], Sequence[Scalar]], Scalar]


@dataclass(frozen=True)
class WindowAxis:
    """Window o of an axis holds its elements begin(o) + k * dilation for 0 <= k < length, as far as they lie on the axis and
    below end(o).

    begin, end: of and as index values. end None: nothing but the axis ends a window.
    """

    begin: Place
    length: Expr
    dilation: int = 1
    end: Place | None = None

    def count(self, o: Scalar) -> Scalar:
        """How many elements a window has that ends by itself, on the axis."""
        assert self.end is not None
        return self.end(o) - self.begin(o)


def strided(x: Tensor, stride: int, low: int | Expr, kernel: int, dilation: int = 1) -> WindowAxis:
    """Windows of `kernel` elements of an axis of x, `stride` apart; the first begins `low` before the axis."""
    return WindowAxis(lambda o: o * stride - x.graph.number(o.body, Expr.of(low), "index"), Expr.of(kernel), dilation)


def adaptive(x: Tensor, axis: int, count: Expr) -> WindowAxis:
    """`count` windows that cover an axis of x: o from floor(o extent / count) to ceil((o + 1) extent / count)."""
    extent = x.dims[axis]

    def numbers(o: Scalar) -> tuple[Scalar, Scalar]:
        return x.graph.number(o.body, extent, "index"), x.graph.number(o.body, count, "index")

    def begin(o: Scalar) -> Scalar:
        n, m = numbers(o)
        return o * n / m

    def end(o: Scalar) -> Scalar:
        n, m = numbers(o)
        return ((o + 1) * n + m - 1) / m

    even = extent.constant is not None and count.constant is not None and extent.constant % count.constant == 0
    return WindowAxis(begin, extent.ceildiv(count) + (0 if even else 1), end=end)


def reduce_windows(
    x: Tensor, axes: Mapping[int, WindowAxis], dims: Sequence[Expr], reduction: Reduction, dtype: DType,
    element_of: Element | None = None, operands: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """A reduction over the windows of some axes of x: a tensor of the extents `dims` and of element type `dtype`.

    element_of: what of an element is reduced; default itself. operands: tensors of the extents `dims` that it gets.
    """
    g, rank = x.graph, len(dims)
    loops = [f"d{i}" for i in range(rank)]
    kind = computed_in(dtype)
    kernel = (g.empty(kind, [a.length for a in axes.values()]), [f"d{rank + i}" for i in range(len(axes))])

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        places = [region.index(i) for i in range(rank)]
        inside = None
        for i, (at, axis) in enumerate(axes.items()):
            o = region.index(at)
            place = axis.begin(o) + region.index(rank + i) * axis.dilation
            last = g.number(region, x.dims[at], "index") - 1
            valid = place.compare("ge", 0) & place.compare("le", last)
            if axis.end is not None:
                valid = valid & place.compare("lt", axis.end(o))
            inside = valid if inside is None else inside & valid
            places[at] = place.maximum(0).minimum(last)
        assert inside is not None
        found = element(region, x, places)
        value = found if element_of is None else element_of(found, [places[a] for a in axes], scalars[:-1])
        return region.select(inside, reduction.combine(out, value.cast(kind.value)), out)

    inputs = [*((t, loops) for t in operands), kernel]
    start = g.filled(reduction.start, kind, dims)
    made = g.generic(inputs, (start, loops), ["parallel"] * rank + ["reduction"] * len(axes), body)
    return made if kind is dtype else g.pointwise("round", lambda v: v, made, dtype=dtype)
