"""Elements written at places that tensors of integers name.

Nothing is written out of order: every element of the result takes the updates that are meant for it, in their order. So the
result does not depend on threads, and of several updates of one place the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in, is_float
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Number, Operand, Size, Tensor, axis_of, shown, size, want_equal
from tilewright.compiler.ops.indexing import aligned_indices, place_of, rows_first, want_indices
from tilewright.compiler.ops.joining import broadcast_to
from tilewright.compiler.ops.pointwise import cast, compare, maximum, where
from tilewright.compiler.ops.reductions import limits_of
from tilewright.compiler.ops.reshaping import product_of, reshape, unsqueeze
from tilewright.compiler.ops.slicing import clamped, window
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

REDUCTIONS = ("set", "add", "multiply", "max", "min", "mean")
Combine = Callable[[Scalar, Scalar], Scalar]
_COMBINE: dict[str, Combine] = {"add": Scalar.__add__, "mean": Scalar.__add__, "multiply": Scalar.__mul__,
                                "max": Scalar.maximum, "min": Scalar.minimum}  # fmt: skip


def scatter(
    x: Tensor, indices: Tensor, updates: Operand, axis: int = 0, *, reduce: str = "set", include_self: bool = True,
    negative: bool = False,
) -> Tensor:
    """x with updates[c] written at (c with indices[c] in place of c[axis]): torch.scatter and scatter_reduce, ONNX
    ScatterElements.

    indices: of x's rank, its extents along the other axes not larger than x's. updates: a number, or a tensor of at least the
    shape of `indices` (what is beyond is not used). reduce: set (the last one wins), add, multiply, max, min or mean of the
    updates and, with include_self, of x's element.

    Raises:
        ShapeError: ranks or extents do not fit. OptionError: an unknown `reduce`. DTypeError: indices that are not integers.
    """
    at = axis_of("scatter", x, axis)
    want_indices("scatter", indices)
    _known("scatter", reduce)
    zero = Expr.of(0)
    given = updates if isinstance(updates, Tensor) else x.graph.full(indices.dims, _number("scatter", updates), x.dtype)
    if indices.rank != x.rank or given.rank != x.rank:
        raise ShapeError(f"scatter: indices {shown(indices.dims)} and updates {shown(given.dims)} for {shown(x.dims)}; "
                         "wanted one rank")
    given = cast(window(given, [zero] * x.rank, indices.dims, [1] * x.rank), x.dtype)
    region_dims = [x.dims[a] if a == at else indices.dims[a] for a in range(x.rank)]
    part = window(x, [zero] * x.rank, region_dims, [1] * x.rank)
    loops = [f"d{a}" for a in range(x.rank)]
    along = [f"d{x.rank}" if a == at else d for a, d in enumerate(loops)]

    def hits(region: Body, place: Scalar) -> Scalar:
        return place_of(x, at, place, negative).compare("eq", region.index(at))

    def chosen(region: Body, winner: Scalar) -> Scalar:
        return element(region, given, [winner if a == at else region.index(a) for a in range(x.rank)])

    found = _Scattered(part, [(indices, along)], (given, along), hits, loops).result(reduce, include_self, chosen)
    return found if tuple(region_dims) == x.dims else insert(x, found, [zero] * x.rank, [1] * x.rank)


def index_put(
    x: Tensor, indices: Sequence[Tensor | None], updates: Operand, *, reduce: str = "set", include_self: bool = True,
    negative: bool = True,
) -> Tensor:
    """x with x[indices] set to (or reduced with) `updates`: torch.index_put, index_copy, index_add; ONNX ScatterND.

    indices: a tensor of integers or None (all of the axis) for each leading axis of x. updates: a number, or a tensor that is
    broadcast to the shape of x[indices]. reduce: as for `scatter`.
    """
    _known("index_put", reduce)
    if len(indices) > x.rank or all(i is None for i in indices):
        raise OptionError(f"index_put: {len(indices)} indices for {shown(x.dims)}; wanted 1 to {x.rank}, one of them a tensor")
    places, grid, maps = aligned_indices("index_put", x, indices)
    axes = list(places)
    kept = [a for a in range(x.rank) if a not in places]
    given = _rows(x, updates, axes, grid)
    count = product_of(grid)
    flat = [_flat(places[a], grid, m) for a, m in zip(axes, maps, strict=True)]
    loops = [f"d{a}" for a in range(x.rank)]

    def hits(region: Body, *chosen: Scalar) -> Scalar:
        tests = [place_of(x, a, c, negative).compare("eq", region.index(loop_of[a])) for a, c in zip(axes, chosen, strict=True)]
        whole = tests[0]
        for t in tests[1:]:
            whole = whole & t
        return whole

    def chosen(region: Body, winner: Scalar) -> Scalar:
        return element(region, given, [winner, *(region.index(a) for a in kept)])

    if reduce != "set":
        loop_of = {a: a for a in axes}
        rows = (given, [f"d{x.rank}", *(f"d{a}" for a in kept)])
        scattered = _Scattered(x, [(f, [f"d{x.rank}"]) for f in flat], rows, hits, loops)
        return scattered.result(reduce, include_self, chosen)
    # which update wins depends on the indexed axes alone
    loop_of = {a: n for n, a in enumerate(axes)}
    k = f"d{len(axes)}"
    winner = _winners(x, [x.dims[a] for a in axes], [(f, [k]) for f in flat], hits, count)
    return _taken(x, (winner, [f"d{a}" for a in axes]), chosen)


def _rows(x: Tensor, updates: Operand, axes: Sequence[int], grid: tuple[Expr, ...]) -> Tensor:
    """The updates as [updates of one row, axes of x that are not indexed]."""
    kept = [a for a in range(x.rank) if a not in axes]
    rest = [x.dims[a] for a in kept]
    count = product_of(grid)
    if not isinstance(updates, Tensor):
        return x.graph.full([count, *rest], _number("index_put", updates), x.dtype)
    front = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    before = [a for a in kept if a < front]
    whole = [*(x.dims[a] for a in before), *grid, *(x.dims[a] for a in kept if a not in before)]
    wide = broadcast_to(cast(updates, x.dtype), whole)
    moved = rows_first(wide, range(len(before), len(before) + len(grid)))
    return reshape(moved, [count, *rest])


def _flat(indices: Tensor, grid: tuple[Expr, ...], access: list[str]) -> Tensor:
    """An index tensor broadcast to the grid, as one row."""
    loops = [f"d{i}" for i in range(len(grid))]
    if access == loops:
        return reshape(indices, [product_of(grid)])
    g = indices.graph
    wide = g.generic([(indices, access)], (g.empty(indices.dtype, grid), loops), ["parallel"] * len(grid), lambda _, v, __: v[0])
    return reshape(wide, [product_of(grid)])


class _Scattered:
    """Updates on their way into x: the loops are x's and one over the updates of a row."""

    def __init__(
        self, x: Tensor, indices: Sequence[tuple[Tensor, list[str]]], updates: tuple[Tensor, list[str]],
        hits: Callable[..., Scalar], loops: list[str],
    ) -> None:
        self.x, self.indices, self.updates, self.hits, self.loops = x, indices, updates, hits, loops
        self.count = updates[0].dims[updates[1].index(f"d{x.rank}")]

    def result(self, reduce: str, include_self: bool, chosen: Callable[[Body, Scalar], Scalar]) -> Tensor:
        x = self.x
        if reduce == "set":
            winner = _winners(x, x.dims, self.indices, self.hits, self.count)
            return _taken(x, (winner, self.loops), chosen)
        total = self._reduced(reduce, x if include_self else None)
        if include_self and reduce != "mean":
            return cast(total, x.dtype)
        hit = self._counted()
        if reduce == "mean":
            many = hit + 1 if include_self else maximum(hit, 1)
            total = total.graph.pointwise("scatter", _quotient, total, cast(many, total.dtype))
        return cast(where(compare(hit, 0, "gt"), total, cast(x, total.dtype)), x.dtype)

    def _reduced(self, reduce: str, start: Tensor | None) -> Tensor:
        """The reduction of the updates of every place, from x's element or from the neutral one on."""
        g, x = self.x.graph, self.x
        wide = computed_in(x.dtype)
        lowest, highest = limits_of(wide)
        neutral = {"add": 0, "mean": 0, "multiply": 1, "max": lowest, "min": highest}[reduce]
        into = g.filled(neutral, wide, x.dims) if start is None else cast(start, wide)

        def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
            *places, value = scalars
            return region.select(self.hits(region, *places), _COMBINE[reduce](out, value), out)

        return g.generic([*self.indices, self.updates], (into, self.loops), ["parallel"] * x.rank + ["reduction"], body)

    def _counted(self) -> Tensor:
        """How many updates every place gets, as i32."""
        g, x = self.x.graph, self.x

        def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
            return region.select(self.hits(region, *scalars), out + 1, out)

        into = (g.filled(0, DType.I32, x.dims), self.loops)
        return g.generic(self.indices, into, ["parallel"] * x.rank + ["reduction"], body)


def _quotient(total: Scalar, count: Scalar) -> Scalar:
    return total / count if is_float(total.kind) else total.floor_divide(count)


def _winners(
    x: Tensor, dims: Sequence[Expr], indices: Sequence[tuple[Tensor, list[str]]], hits: Callable[..., Scalar], count: Expr
) -> Tensor:
    """For every place the number of its last update, or -1: i64."""
    g, rank = x.graph, len(dims)

    def body(region: Body, scalars: Sequence[Scalar], out: Scalar) -> Scalar:
        return region.select(hits(region, *scalars), region.index(rank).cast("i64"), out)

    loops = [f"d{i}" for i in range(rank)]
    return g.generic(indices, (g.filled(-1, DType.I64, dims), loops), ["parallel"] * rank + ["reduction"], body)


def _taken(x: Tensor, winner: tuple[Tensor, list[str]], chosen: Callable[[Body, Scalar], Scalar]) -> Tensor:
    """The winning update where there is one, else x's element."""
    loops = [f"d{a}" for a in range(x.rank)]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        number, own = scalars
        there = number.compare("ge", 0)
        value = chosen(region, number.maximum(0).cast("index")).cast(own.kind)
        return region.select(there, value, own)

    return x.graph.generic([winner, (x, loops)], (x.graph.empty(x.dtype, x.dims), loops), ["parallel"] * x.rank, body)


def insert(x: Tensor, part: Tensor, starts: Sequence[Expr], steps: Sequence[int]) -> Tensor:
    """x with a window (from `starts`, every `step`-th element) replaced by `part`, which lies inside."""
    emitter = x.graph.emitter
    if Expr.of(0) in part.dims:
        return x
    place = f"[{emitter.sizes(starts)}] [{emitter.sizes(part.dims)}] {list(steps)}"
    return x.graph.result(f"tensor.insert_slice {part.ssa} into {x.ssa}{place} : {part.type} into ", x.dtype, x.dims)


def slice_scatter(
    x: Tensor, part: Tensor, axis: int = 0, begin: Size | None = None, end: Size | None = None, step: int = 1
) -> Tensor:
    """x with x[begin:end:step] along one axis, by Python's rules, replaced by `part`.

    Raises:
        ShapeError: `part` has not the shape of that slice.
    """
    at = axis_of("slice_scatter", x, axis)
    if step < 1:
        raise OptionError(f"slice_scatter: a step of {step}; wanted 1 or more")
    g, inside = x.graph, (Expr.of(0), x.dims[at])
    first, last = clamped(g, x.dims[at], begin, inside[0], inside), clamped(g, x.dims[at], end, inside[1], inside)
    wanted = [(g.larger(last, first) - first).ceildiv(step) if a == at else d for a, d in enumerate(x.dims)]
    if part.rank != x.rank:
        raise ShapeError(f"slice_scatter: {shown(part.dims)} into {shown(x.dims)}; wanted one rank")
    for a, (d, w) in enumerate(zip(part.dims, wanted, strict=True)):
        g.require_equal(d, w, f"slice_scatter: axis {a} of {shown(part.dims)} in place of a slice of {w} of {shown(x.dims)}")
    starts = [first if a == at else Expr.of(0) for a in range(x.rank)]
    return insert(x, cast(part, x.dtype), starts, [step if a == at else 1 for a in range(x.rank)])


def select_scatter(x: Tensor, part: Tensor, axis: int, place: Size) -> Tensor:
    """x with x[..., place, ...] along one axis replaced by `part`, which lacks that axis; a negative int counts from the end."""
    at = axis_of("select_scatter", x, axis)
    if part.rank != x.rank - 1:
        raise ShapeError(f"select_scatter: {shown(part.dims)} into {shown(x.dims)}; wanted one axis less")
    start = x.dims[at] + place if isinstance(place, int) and place < 0 else size("select_scatter", place)
    for a, d in enumerate(x.dims):
        if a != at:
            want_equal("select_scatter", f"axis {a} and its part", d, part.dims[a - (a > at)])
    starts = [start if a == at else Expr.of(0) for a in range(x.rank)]
    return insert(x, unsqueeze(cast(part, x.dtype), at), starts, [1] * x.rank)


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """`value` (a number, or a tensor of rank 0) where the i1 tensor `mask` holds, else x; both are broadcast, x's type stays."""
    fill = cast(value, x.dtype) if isinstance(value, Tensor) else value
    return cast(where(mask, fill, x), x.dtype)


def _number(name: str, updates: Operand) -> Number:
    if isinstance(updates, (int, float, Expr)):
        return updates
    raise OptionError(f"{name}: wanted a tensor or a number as updates, came {type(updates).__name__}")


def _known(name: str, reduce: str) -> None:
    if reduce not in REDUCTIONS:
        raise OptionError(f"{name}: unknown reduction {reduce!r}; use one of {', '.join(REDUCTIONS)}")
