"""How many elements fall into bins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Tensor
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reductions import max as largest_of
from tilewright.compiler.ops.reductions import min as least_of
from tilewright.compiler.ops.reshaping import product_of, reshape
from tilewright.compiler.ops.scatter import scatter
from tilewright.compiler.ops.slicing import slice_axis
from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def histogram(x: Tensor, bins: int, span: tuple[float, float] = (0, 0)) -> Tensor:
    """How many elements of x fall into each of `bins` intervals of one width between the ends of `span`: [bins] of i64, as
    torch.histc counts.

    The last bin has the upper end too; elements outside and NaN count nowhere. Places are computed in x's type, f32 for 16-bit
    floats, as (x - low) * bins / (high - low). Ends that are equal stand for the least and the largest element, or, where these
    are equal too, for one less and one more.

    Raises:
        OptionError: no bins, ends that are not finite, or a first one above the second.
    """
    low, high = span
    if bins < 1 or not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OptionError(f"histogram: {bins} bins between {low} and {high}; wanted at least one, and finite ends, the lower "
                          "first")
    kind = computed_in(x.dtype)
    wide = cast(x, kind if kind.is_float else DType.F64)
    graph = x.graph
    flat = reshape(wide, [product_of(wide.dims)])
    ends = [graph.filled(v, wide.dtype, []) for v in span] if low < high else _ends_of_data(flat, low)

    def place(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        value, first, last = scalars
        at = (value - first) * float(bins) / (last - first)
        inside = value.compare("ge", first) & value.compare("le", last)
        whole = region.select(inside, at, 0.0).cast("i64").minimum(bins - 1)
        return region.select(inside, whole, bins)

    loops = ["d0"]
    into = (graph.empty(DType.I64, flat.dims), loops)
    places = graph.generic([(flat, loops), (ends[0], []), (ends[1], [])], into, ["parallel"], place)
    counts = scatter(graph.filled(0, DType.I64, [Expr.of(bins + 1)]), places, 1, reduce="add")
    return slice_axis(counts, 0, 0, bins)


def _ends_of_data(flat: Tensor, empty: float) -> list[Tensor]:
    """The least and the largest element, moved apart where they are equal; around `empty` where there is no element."""
    g, least, largest = flat.graph, least_of(flat), largest_of(flat)

    def end(by: float) -> Tensor:
        def moved(low: Scalar, high: Scalar) -> Scalar:
            none = g.number(low.body, flat.dims[0], "index").compare("eq", 0)
            own = low if by < 0 else high
            return low.body.select(none, empty + by, low.body.select(low.compare("eq", high), own + by, own))

        return g.pointwise("histogram", moved, least, largest)

    return [end(-1.0), end(1.0)]
