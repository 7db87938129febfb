"""Order along an axis: sorting, the largest elements, medians, places in sorted sequences, counts of bins."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.scalar_functions import is_nan, select
from tilewright.runtime.tensor import DType

_FEW = 8  # smallest elements that are found in order; of more the last one alone


def _sorted(x: ops.Tensor, axis: int, descending: bool) -> list[ops.Tensor]:
    return list(ops.sort(x, axis, descending)) if x.rank else [x, x.graph.filled(0, DType.I64, [])]


@register("torch", "aten.sort.default")
def sort(context: Context, x: ops.Tensor, axis: int = -1, descending: bool = False) -> list[ops.Tensor]:
    """The elements in order, and where they stood."""
    if x.dtype is DType.I1 and any(n.target is operator.getitem and n.args[1] == 1 for n in context.node.users):
        context.refuse("equal booleans stand in no order that PyTorch promises", "call it with stable=True")
    return _sorted(x, axis, descending)


@register("torch", "aten.sort.stable")
def sort_stable(
    context: Context, x: ops.Tensor, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> list[ops.Tensor]:
    """The elements in order, and where they stood; equal ones keep their order."""
    return _sorted(x, dim, descending)


@register("torch", *names("topk"))
def topk(context: Context, x: ops.Tensor, k: Any, axis: int = -1, largest: bool = True, sorted: bool = True) -> list[ops.Tensor]:  # noqa: A002
    """The k largest or smallest elements in order, and where they stood."""
    if x.rank:
        return list(ops.topk(x, k, axis, largest))
    return [ops.reshape(ops.slice_axis(ops.reshape(t, [1]), 0, 0, k), context.shape()) for t in _sorted(x, 0, largest)]


@register("torch", *names("kthvalue"))
def kthvalue(context: Context, x: ops.Tensor, k: int, axis: int = -1, keepdims: bool = False) -> list[ops.Tensor]:
    """The k-th smallest element, and where it stands."""
    if not x.rank:
        return _sorted(x, axis, False)
    if k > _FEW:
        return _shaped(ops.kthvalue(x, k, axis), axis, keepdims)
    values, places = ops.topk(x, k, axis, largest=False)
    return _shaped([ops.select(t, axis, k - 1) for t in (values, places)], axis, keepdims)


def _shaped(found: Sequence[ops.Tensor], axis: int, keepdims: bool) -> list[ops.Tensor]:
    """Elements without the axis, or with one of it."""
    return [ops.unsqueeze(t, axis) for t in found] if keepdims else list(found)


def _ranked(x: ops.Tensor, axis: int, keepdims: bool, skip: bool) -> list[ops.Tensor]:
    """The lower median; NaN where there is one, or among the numbers alone when `skip`."""
    if not x.rank:
        return [x, x.graph.filled(0, DType.I64, [])]
    at = axis % x.rank
    if not x.dtype.is_float:
        return _shaped(ops.kthvalue(x, (x.dims[at] + 1) // 2, at), at, keepdims)
    missing = ops.sum(ops.cast(x.graph.pointwise("nan", is_nan, x, dtype=DType.I1), DType.I64), at)

    def middle(n: Scalar, extent: Scalar) -> Scalar:
        low = (extent - 1 - n).maximum(0) / 2 + 1
        return low if skip else select(n.compare("gt", 0), extent - n + 1, low)

    place = x.graph.pointwise("place", middle, missing, x.dims[at])
    return _shaped(ops.kthvalue(x, place, at), at, keepdims)


@register("torch", "aten.median.dim", "aten.nanmedian.dim")
def median(context: Context, x: ops.Tensor, axis: int, keepdims: bool = False) -> list[ops.Tensor]:
    """The lower of both middle elements, and where it stands."""
    return _ranked(x, axis, keepdims, context.operator.startswith("aten.nan"))


@register("torch", "aten.median.default", "aten.nanmedian.default")
def median_all(context: Context, x: ops.Tensor) -> ops.Tensor:
    """The lower of both middle elements."""
    return _ranked(ops.reshape(x, [-1]) if x.rank else x, 0, False, context.operator.startswith("aten.nan"))[0]


# -- places in sorted sequences


def _places(context: Context, boundaries: ops.Tensor, values: Any, right: bool) -> ops.Tensor:
    """How many boundaries of the last axis are below (right: not above) each value."""
    g = context.graph
    x = values if isinstance(values, ops.Tensor) else g.full([], values, boundaries.dtype)
    if boundaries.rank == 1:
        return ops.cast(ops.searchsorted(boundaries, x, right), context.dtype())
    kind = g.common_type("searchsorted", boundaries, x)
    row, wide = (ops.unsqueeze(ops.cast(t, kind), axis) for t, axis in ((boundaries, -2), (x, -1)))
    below = ops.compare(row, wide, "le" if right else "lt")
    return ops.cast(ops.sum(ops.cast(below, DType.I64), -1), context.dtype())


@register("torch", "aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    context: Context, values: Any, boundaries: ops.Tensor, *, out_int32: bool = False, right: bool = False
) -> ops.Tensor:
    """The bucket of each value between sorted boundaries."""
    return _places(context, boundaries, values, right)


@register("torch", "aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    context: Context, boundaries: ops.Tensor, values: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None,
    sorter: ops.Tensor | None = None,
) -> ops.Tensor:  # fmt: skip
    """Where each value would be inserted in a sorted sequence."""
    row = boundaries if sorter is None else ops.gather_elements(boundaries, sorter, -1)
    return _places(context, row, values, right or side == "right")


@register("torch", "aten.histc.default")
def histc(context: Context, x: ops.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> ops.Tensor:  # noqa: A002
    """How many elements fall into each of some bins; a least and a largest end that are equal stand for those of the data."""
    return ops.cast(ops.histogram(x, bins, (min, max)), context.dtype())
