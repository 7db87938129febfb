"""Tensors joined, repeated, broadcast and rotated."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Size, Tensor, axis_of, shown, size, want_equal
from tilewright.compiler.ops.indexing import take_axes
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reshaping import reshape, unsqueeze
from tilewright.compiler.ops.slicing import narrow
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_MOST_JOINED = 64  # at once: kernels on GPUs ask of each argument whether it lies within reach


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Joined along one axis, in the element type in which all meet; the other extents are equal.

    Raises:
        OptionError: no tensor. ShapeError: ranks or other extents differ.
    """
    if not tensors:
        raise OptionError("concat: wanted at least one tensor")
    first = tensors[0]
    common = first.graph.common_type("concat", *tensors)
    at = axis_of("concat", first, axis)
    total = first.dims[at]
    for t in tensors[1:]:
        if t.rank != first.rank:
            raise ShapeError(f"concat: tensors of rank {first.rank} and {t.rank}")
        for a in range(t.rank):
            if a != at:
                want_equal("concat", f"the extents of axis {a}", first.dims[a], t.dims[a])
        total = total + t.dims[at]
    parts = [cast(t, common) for t in tensors if t.dims[at] != Expr.of(0)] or [cast(first, common)]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > _MOST_JOINED:
        return concat([concat(parts[i : i + _MOST_JOINED], at) for i in range(0, len(parts), _MOST_JOINED)], at)
    dims = [total if a == at else d for a, d in enumerate(first.dims)]
    operands, types = ", ".join(t.ssa for t in parts), ", ".join(t.type for t in parts)
    return first.graph.result(f"tensor.concat dim({at}) {operands} : ({types}) -> ", common, dims)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Joined along a new axis of the result; all extents are equal."""
    if not tensors:
        raise OptionError("stack: wanted at least one tensor")
    rank = tensors[0].rank + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"stack: axis {axis} of a result of rank {rank}")
    return concat([unsqueeze(t, axis % rank) for t in tensors], axis % rank)


def broadcast_to(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Repeated along new leading axes and along axes of extent 1; -1 keeps an extent."""
    offset, one = len(shape) - x.rank, Expr.of(1)
    if offset < 0:
        raise ShapeError(f"broadcast_to: {shown(x.dims)} has more axes than {list(shape)}")
    dims = [x.dims[a - offset] if isinstance(d, int) and d == -1 and a >= offset else size("broadcast_to", d)
            for a, d in enumerate(shape)]
    for d, wanted in zip(x.dims, dims[offset:], strict=True):
        if d not in (one, wanted):
            raise ShapeError(f"broadcast_to: {shown(x.dims)} does not broadcast to {shown(dims)}")
    if tuple(dims) == x.dims:
        return x
    maps = ["0" if d == one and dims[offset + a] != one else f"d{offset + a}" for a, d in enumerate(x.dims)]
    into = (x.graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return x.graph.generic([(x, maps)], into, ["parallel"] * len(dims), lambda _, v, __: v[0])


def tile(x: Tensor, counts: Sequence[Size]) -> Tensor:
    """x repeated counts[i] times along axis i, as numpy.tile: missing leading counts are 1, missing leading axes are added."""
    repeats = [size("tile", c) for c in counts]
    repeats = [Expr.of(1)] * (x.rank - len(repeats)) + repeats
    dims = [Expr.of(1)] * (len(repeats) - x.rank) + list(x.dims)
    if all(r == Expr.of(1) for r in repeats):
        return reshape(x, dims)
    pairs = [d for r, n in zip(repeats, dims, strict=True) for d in (r, n)]
    apart = reshape(x, [d for n in dims for d in (Expr.of(1), n)])
    return reshape(broadcast_to(apart, pairs), [r * n for r, n in zip(repeats, dims, strict=True)])


def repeat(x: Tensor, count: Size, axis: int) -> Tensor:
    """Every element repeated `count` times in a row along one axis, as numpy.repeat."""
    at, times = axis_of("repeat", x, axis), size("repeat", count)
    apart = unsqueeze(x, at + 1)
    wide = broadcast_to(apart, [times if a == at + 1 else d for a, d in enumerate(apart.dims)])
    return reshape(wide, [d * times if a == at else d for a, d in enumerate(x.dims)])


def roll(x: Tensor, shifts: Size | Sequence[Size], axes: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved `shift` places on along each axis, those that leave at the end coming back at the start.

    Shifts are ints or Exprs, one for each of `axes`. axes: None rotates all elements as if they stood in one row.

    Raises:
        OptionError: another number of shifts than of axes.
    """
    given = [shifts] if isinstance(shifts, (int, str, Expr)) else list(shifts)
    moves = [Expr.parse(s) if isinstance(s, str) else Expr.of(s) for s in given]
    if axes is None:
        return reshape(roll(reshape(x, [-1]) if x.rank else reshape(x, [1]), moves, [0]), x.dims)
    chosen = [axis_of("roll", x, a) for a in ([axes] if isinstance(axes, int) else axes)]
    if len(moves) != len(chosen):
        raise OptionError(f"roll: {len(moves)} shifts for {len(chosen)} axes")
    total = {a: Expr.of(0) for a in chosen}
    for a, s in zip(chosen, moves, strict=True):
        total[a] = total[a] + s
    last = total.pop(x.rank - 1, None)
    g, places = x.graph, dict[int, Tensor]()
    for a, s in total.items():
        places[a] = g.pointwise("roll", lambda i, s, n: (i - s).modulo(n), iota(g, [x.dims[a]], 0, DType.I64), s, x.dims[a])
    found = take_axes(x, places)
    if last is None:
        return found
    kept = x.dims[-1] - last % g.larger(x.dims[-1], Expr.of(1))  # elements that come behind those that leave
    return concat([narrow(found, -1, kept, x.dims[-1] - kept), narrow(found, -1, 0, kept)], -1)
