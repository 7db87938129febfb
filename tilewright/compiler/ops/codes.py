"""Weights in few bits: tensors decoded from packed codes, with a scale and a zero point for each group."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor, shown, want_float, want_rank
from tilewright.compiler.ops.slicing import slice_axis
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

WIDTHS = (1, 2, 4, 8)  # bits of a code, of which whole ones fill a byte


def decode(codes: Tensor, scale: Tensor, zero: Tensor | float | None = None, *, bits: int = 4, group: int = 0,
           depth: int | None = None) -> Tensor:
    """The weight [N, K] whose element [n, k] is (code[n, k] - zero[n, k // group]) * scale[n, k // group].

    Bound at compile time and multiplied, as in `dense(x, decode(...), transposed=True)`, the weight stays in codes: they are what
    is stored, and kernels decode them as they read.

    Args:
        codes: ui8 [N, bytes], 8 / bits codes a byte, the first in its low bits. Bytes beyond K codes are not read.
        scale: [N, groups], or [N] where all of a row share one; of the type of the result, or a narrower float. Products of few
            rows multiply the sums of a group by it, so that one that is not finite may give infinity in place of NaN.
        zero: float or ui8 like the scale, or one number for all; default 2 ** (bits - 1), the middle of the codes.
        bits: 1, 2, 4 or 8. group: codes along K that share a scale; 0 for all of them. depth: K; default all codes.
    Raises:
        OptionError: another number of bits, a negative group. DTypeError, ShapeError: an operand does not fit.
    """
    if group < 0:
        raise OptionError(f"decode: groups of {group} codes; wanted 1 or more, or 0 for one scale a row")
    if bits not in WIDTHS:
        raise OptionError(f"decode: codes of {bits} bits; wanted {', '.join(map(str, WIDTHS[:-1]))} or {WIDTHS[-1]}; store 3-bit "
                          "codes in 4 bits and 5 to 7-bit codes in 8")
    want_rank("decode", "the tensor of codes", codes, 2)
    want_float("decode", scale)
    if codes.dtype is not DType.U8:
        raise DTypeError(f"decode: codes of {codes.dtype.value}; wanted ui8, packed bytes")
    each = 8 // bits
    rows, held = codes.dims[0], codes.dims[1] * each
    if held.constant is None:
        raise ShapeError(f"decode: the codes are {shown(codes.dims)}; wanted a static number of bytes a row")
    total = held.constant if depth is None else depth
    if not 0 <= total <= held.constant:
        raise ShapeError(f"decode: depth {total}, but the rows of {shown(codes.dims)} bytes hold {held.constant} codes")
    size = group or max(1, total)
    groups = -(-total // size)
    for what, t in (("scale", scale), ("zero point", zero)):
        if isinstance(t, Tensor) and not _fits(t, rows, groups):
            raise ShapeError(f"decode: a {what} of {shown(t.dims)}; wanted [{rows}, {groups}], one for "
                             f"each {size} of {total} codes")
    if isinstance(zero, Tensor) and not (zero.dtype.is_float or zero.dtype is DType.U8):
        raise DTypeError(f"decode: zero points of {zero.dtype.value}; wanted ui8 or a float type")
    middle = float(1 << (bits - 1)) if zero is None else zero

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        code, factor, *point = scalars
        if each > 1:
            shift = (region.index(1).remainder(each) * bits).cast("ui8")
            code = (code >> shift) & ((1 << bits) - 1)
        centred = code.cast("f32")
        if point:
            centred = centred - point[0].cast("f32")
        elif middle != 0.0 and not isinstance(middle, Tensor):
            centred = centred - float(middle)
        return centred * factor.cast("f32")

    codes = _first(codes, total) if each == 1 else codes
    if size == 1 and groups > 1:
        scale = _first(scale, total)
        zero = _first(zero, total) if isinstance(zero, Tensor) else zero
    along = ["d0", f"d1 floordiv {size}" if groups > 1 else "0"]
    inputs = [(codes, ["d0", f"d1 floordiv {each}" if each > 1 else "d1"]), (scale, along[: scale.rank])]
    if isinstance(zero, Tensor):
        inputs.append((zero, along[: zero.rank]))
    result = codes.graph.empty(DType.F32, [rows, Expr.of(total)])
    return codes.graph.generic(inputs, (result, ["d0", "d1"]), ["parallel", "parallel"], body)


def _first(t: Tensor, columns: int) -> Tensor:
    """The first columns of a tensor that may hold more: a loop over all of them would be longer than the result."""
    return t if t.dims[1].constant == columns else slice_axis(t, 1, 0, columns)


def _fits(t: Tensor, rows: Expr, groups: int) -> bool:
    """Is there an element for each group of each row?"""
    if t.rank == 1 and groups <= 1:
        return t.dims[0] == rows
    return t.rank == 2 and t.dims[0] == rows and (t.dims[1].constant or 0) >= groups
