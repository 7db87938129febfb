"""Elements added around a tensor, or cropped off it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.creation import iota
from tilewright.compiler.ops.graph import Size, Tensor, shown
from tilewright.compiler.ops.indexing import take_axes
from tilewright.compiler.ops.joining import concat
from tilewright.compiler.ops.slicing import narrow, window
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MODES = ("constant", "reflect", "replicate", "circular")


def pad(x: Tensor, low: Sequence[Size], high: Sequence[Size], value: float = 0, mode: str = "constant") -> Tensor:
    """`low` and `high` elements before and after every axis; a negative width crops.

    mode: constant (`value`), reflect (mirrored about the last element, which is not repeated), replicate (the last element
    again), circular (from the other end of what is left when it is cropped). Widths are ints or Exprs.

    Raises:
        ShapeError: not one width an axis. OptionError: an unknown mode.
    """
    if not len(low) == len(high) == x.rank:
        raise ShapeError(f"pad: wanted a low and a high width for each of the {x.rank} axes of {shown(x.dims)}")
    if mode not in MODES:
        raise OptionError(f"pad: unknown mode {mode!r}; use one of {', '.join(MODES)}")
    before, after = [_width(w) for w in low], [_width(w) for w in high]
    if mode in ("reflect", "replicate"):
        return _mirrored(x, before, after, mode)
    g, zero = x.graph, Expr.of(0)
    cropped = window(x, [g.larger(-w, zero) for w in before],
                     [d - g.larger(-w, zero) for d, w in zip(x.dims, after, strict=True)], [1] * x.rank)
    before, after = [g.larger(w, zero) for w in before], [g.larger(w, zero) for w in after]
    if all(w == zero for w in (*before, *after)):
        return cropped
    if mode == "circular":
        return _wrapped(cropped, before, after)
    dims = [a + d + b for d, a, b in zip(cropped.dims, before, after, strict=True)]
    emitter, kind = g.emitter, x.dtype.signless.value
    constant = emitter.constant(value, x.dtype.value)
    indices = ", ".join(f"{emitter.fresh()}: index" for _ in dims)
    text = (f"tensor.pad {cropped.ssa} low[{emitter.sizes(before)}] high[{emitter.sizes(after)}] {{\n    ^bb0({indices}):\n"
            f"      tensor.yield {constant} : {kind}\n    }} : {cropped.type} to ")
    return g.result(text, x.dtype, dims)


def _width(given: Size) -> Expr:
    return Expr.parse(given) if isinstance(given, str) else Expr.of(given)


def _wrapped(x: Tensor, before: Sequence[Expr], after: Sequence[Expr]) -> Tensor:
    """Both ends of x joined to it, which moves whole rows. An axis that may be shorter than its widths is read from places."""
    zero = Expr.of(0)
    short = [x.graph.bounds(d - w)[0] < 0 for d, a, b in zip(x.dims, before, after, strict=True) for w in (a, b)]
    far = [any(short[2 * n : 2 * n + 2]) for n in range(x.rank)]
    left, right = ([w if away else zero for w, away in zip(widths, far, strict=True)] for widths in (before, after))
    found = _mirrored(x, left, right, "circular")
    for axis, (a, d, b) in enumerate(zip(before, x.dims, after, strict=True)):
        if not far[axis]:
            found = concat([narrow(found, axis, d - a, a), found, narrow(found, axis, 0, b)], axis)
    return found


def _mirrored(x: Tensor, before: Sequence[Expr], after: Sequence[Expr], mode: str) -> Tensor:
    """Every element of the result is read from the place of x that it repeats."""
    g, zero, places = x.graph, Expr.of(0), dict[int, Tensor]()

    def place(i: Scalar, extent: Scalar, low: Scalar) -> Scalar:
        at = i - low
        if mode == "circular":
            return at.modulo(extent)
        if mode == "replicate":
            return at.maximum(0).minimum(extent - 1)
        period = ((extent - 1) * 2).maximum(1)
        at = at.modulo(period)
        return at.minimum(period - at).minimum(extent - 1)

    for axis, (a, d, b) in enumerate(zip(before, x.dims, after, strict=True)):
        if a != zero or b != zero:
            places[axis] = g.pointwise("pad", place, iota(g, [a + d + b], 0, DType.I64), d, a)
    return take_axes(x, places)
