"""Elements at places that tensors of integers name.

An index outside its axis is not reported when the model runs: it reads the last element along that axis (zero where the axis is
empty), and never another tensor's memory. With `negative` an index from -extent to -1 counts from the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Number, Size, Tensor, axis_of, broadcast, element_type, shown, size
from tilewright.compiler.ops.reshaping import move_axes, reshape, transpose
from tilewright.compiler.ops.slicing import select
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def gather(x: Tensor, indices: Tensor, axis: int = 0, negative: bool = False) -> Tensor:
    """x's slices at `indices` along `axis`, as numpy.take: the axis is replaced by the axes of `indices`, a tensor of integers.

    Raises:
        DTypeError: indices that are not integers. ShapeError: no such axis.
    """
    want_indices("gather", indices)
    at = axis_of("gather", x, axis)
    dims = (*x.dims[:at], *indices.dims, *x.dims[at + 1:])
    inner = range(at, at + indices.rank)

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        found = [region.index(d) for d in range(len(dims)) if d not in inner]
        return element(region, x, [*found[:at], place_of(x, at, scalars[0], negative), *found[at:]])

    graph = x.graph
    into = (graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return graph.generic([(indices, [f"d{d}" for d in inner])], into, ["parallel"] * len(dims), body)


def gather_elements(x: Tensor, indices: Tensor, axis: int = 0, negative: bool = False) -> Tensor:
    """result[c] = x[c with indices[c] in place of c[axis]]: torch.gather, ONNX GatherElements.

    indices: of x's rank; along the other axes its extents are not larger than x's. The result has its shape.
    """
    want_indices("gather_elements", indices)
    at = axis_of("gather_elements", x, axis)
    if indices.rank != x.rank:
        raise ShapeError(f"gather_elements: indices {shown(indices.dims)} for a tensor {shown(x.dims)}; wanted the same rank")
    for a, (d, most) in enumerate(zip(indices.dims, x.dims, strict=True)):
        if a != at and x.graph.bounds(most - d)[1] < 0:
            raise ShapeError(f"gather_elements: axis {a} of the indices {shown(indices.dims)} is longer than of {shown(x.dims)}")

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        chosen = place_of(x, at, scalars[0], negative)
        return element(region, x, [chosen if a == at else region.index(a) for a in range(x.rank)])

    loops = [f"d{i}" for i in range(x.rank)]
    into = (x.graph.empty(x.dtype, indices.dims), loops)
    return x.graph.generic([(indices, loops)], into, ["parallel"] * x.rank, body)


def index(x: Tensor, indices: Sequence[Tensor | None], negative: bool = True) -> Tensor:
    """x[i, :, j] with tensors of integers: `indices` has one tensor or None (all of the axis) for each leading axis of x.

    The tensors are broadcast against each other; their axes stand where the first of them stood when they are next to each other,
    else in front, as in NumPy and torch.

    Raises:
        DTypeError: an index that is not of integers. A mask of i1 selects as many elements as its data say, which is no shape
            that can be compiled: use where() or masked_fill().
        OptionError: no index, or more than x has axes.
    """
    if len(indices) > x.rank or all(i is None for i in indices):
        raise OptionError(f"index: {len(indices)} indices for {shown(x.dims)}; wanted 1 to {x.rank}, one of them a tensor")
    places, grid, maps = aligned_indices("index", x, indices)
    axes = list(places)
    front = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    kept = [a for a in range(x.rank) if a not in places]
    before = [a for a in kept if a < front] if front else []
    after = [a for a in kept if a not in before]
    dims = [*(x.dims[a] for a in before), *grid, *(x.dims[a] for a in after)]
    first = len(before)
    loop_of = {a: n for n, a in enumerate(before)} | {a: first + len(grid) + n for n, a in enumerate(after)}

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        chosen = {a: place_of(x, a, s, negative) for a, s in zip(axes, scalars, strict=True)}
        return element(region, x, [chosen[a] if a in chosen else region.index(loop_of[a]) for a in range(x.rank)])

    inputs = [(places[a], [_moved(m, first) for m in maps[n]]) for n, a in enumerate(axes)]
    into = (x.graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return x.graph.generic(inputs, into, ["parallel"] * len(dims), body)


def take_axes(x: Tensor, places: Mapping[int, Tensor]) -> Tensor:
    """result[.., i, .., j, ..] = x[.., places[a][i], .., places[b][j], ..]: several axes taken from at once.

    places: a row of integers for each axis, none of them negative, which stands for that axis in the result.
    """
    if not places:
        return x
    axes = sorted(places)
    grid: list[Tensor | None] = [None] * (axes[-1] + 1)
    for n, a in enumerate(axes):
        row = places[a]
        grid[a] = reshape(row, [row.dims[0] if i == n else Expr.of(1) for i in range(len(axes))])
    found = index(x, grid, negative=False)
    return found if axes[-1] - axes[0] == len(axes) - 1 else move_axes(found, range(len(axes)), axes)


def gather_nd(x: Tensor, indices: Tensor, batch_axes: int = 0, negative: bool = True) -> Tensor:
    """Slices of x at the places that the last axis of `indices` names, as ONNX GatherND.

    indices: [B..., N..., K] with the first `batch_axes` axes those of x, and K an integer; the result is [B..., N..., rest of x].
    """
    want_indices("gather_nd", indices)
    count = indices.dims[-1].constant if indices.rank else None
    if count is None or batch_axes + count > x.rank or count < 1:
        raise ShapeError(f"gather_nd: indices {shown(indices.dims)} name places of {shown(x.dims)} after {batch_axes} axes; "
                         "wanted a last axis of a fixed extent that fits")
    if indices.dims[:batch_axes] != x.dims[:batch_axes]:
        raise ShapeError(f"gather_nd: the first {batch_axes} axes of {shown(indices.dims)} and {shown(x.dims)} differ")
    parts = [select(indices, -1, k) for k in range(count)]
    grid = indices.dims[:-1]
    dims = [*grid, *x.dims[batch_axes + count:]]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        batch = [region.index(a) for a in range(batch_axes)]
        chosen = [place_of(x, batch_axes + k, s, negative) for k, s in enumerate(scalars)]
        return element(region, x, [*batch, *chosen, *(region.index(d) for d in range(len(grid), len(dims)))])

    loops = [f"d{d}" for d in range(len(dims))]
    into = (x.graph.empty(x.dtype, dims), loops)
    return x.graph.generic([(p, loops[: len(grid)]) for p in parts], into, ["parallel"] * len(dims), body)


def one_hot(
    indices: Tensor, depth: Size, dtype: str | DType = "i64", axis: int = -1, values: tuple[Number, Number] = (0, 1)
) -> Tensor:
    """values[1] where the position along a new axis of extent `depth` is the index, values[0] elsewhere.

    An index that is no position gives values[0] along its whole row. axis: of the result.
    """
    want_indices("one_hot", indices)
    rank = indices.rank + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"one_hot: axis {axis} of a result of rank {rank}")
    at, kind, extent = axis % rank, element_type("one_hot", dtype), size("one_hot", depth)
    graph = indices.graph

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        off, on = (graph.number(region, v, kind.value) for v in values)
        return region.select(scalars[0].cast("i64").compare("eq", region.index(at).cast("i64")), on, off)

    loops = [f"d{d}" for d in range(rank)]
    dims = [*indices.dims[:at], extent, *indices.dims[at:]]
    own = [d for n, d in enumerate(loops) if n != at]
    return graph.generic([(indices, own)], (graph.empty(kind, dims), loops), ["parallel"] * rank, body)


def aligned_indices(
    name: str, x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[dict[int, Tensor], tuple[Expr, ...], list[list[str]]]:
    """The index tensors by axis of x, the extents that they have together, and each one's map over these."""
    places = {a: i for a, i in enumerate(indices) if i is not None}
    for i in places.values():
        want_indices(name, i)
    grid, maps = broadcast(name, x.graph, list(places.values()))
    return places, grid, maps


def place_of(x: Tensor, axis: int, given: Scalar, negative: bool) -> Scalar:
    """An element of an index tensor as a place along an axis of x."""
    at = given.cast("index")
    if not negative or given.is_unsigned:
        return at
    return at.body.select(at.compare("lt", 0), at + x.graph.number(at.body, x.dims[axis], "index"), at)


def want_indices(name: str, indices: Tensor) -> None:
    if indices.dtype is DType.I1:
        raise DTypeError(f"{name}: a mask of i1 as index selects as many elements as its data say, which is no shape that can be "
                         "compiled; use where() or masked_fill(), or an index of integers")
    if indices.dtype.is_float:
        raise DTypeError(f"{name}: wanted integer indices, came {indices.dtype.value}")


def _moved(place: str, by: int) -> str:
    return f"d{int(place[1:]) + by}" if place.startswith("d") else place


def rows_first(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x with these axes in front, in this order."""
    return transpose(x, [*axes, *(a for a in range(x.rank) if a not in axes)])
