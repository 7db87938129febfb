"""Weights in few bits: tensors decoded from packed codes, with a scale and a zero point for each group."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor, shown, want_float, want_rank
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.slicing import slice_axis
from tilewright.passes.spaces.byte_rows import LARGEST_BYTE, SMALLEST
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

WIDTHS = (1, 2, 4, 8)  # bits of a code, of which whole ones fill a byte
PLANES = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}  # other bits, as codes of these, the low bits of a code first


def planes(bits: int) -> tuple[int, ...]:
    """Bits of the tensors of codes that codes of so many bits are stored as; none where there is no such format."""
    return (bits,) if bits in WIDTHS else PLANES.get(bits, ())


def decode(codes: Tensor | Sequence[Tensor], scale: Tensor, zero: Tensor | float | None = None, *, bits: int = 4, group: int = 0,
           depth: int | None = None) -> Tensor:
    """The weight [N, K] whose element [n, k] is (code[n, k] - zero[n, k // group]) * scale[n, k // group].

    Bound at compile time and multiplied, as in `dense(x, decode(...), transposed=True)`, the weight stays in codes: they are what
    is stored, and kernels decode them as they read.

    Args:
        codes: ui8 [N, bytes], 8 / bits codes a byte, the first in its low bits. Bytes beyond K codes are not read. Or si8 [N, K],
            codes of 8 bits with a sign, as `quantise` gives them. Codes of 3, 5, 6 and 7 bits are several such tensors, each with
            some of their bits, the low ones first: 2 and 1, 4 and 1, 4 and 2, or 4, 2 and 1 bits.
        scale: [N, groups], or [N] where all of a row share one; of the type of the result, or a narrower float. Products of few
            rows multiply the sums of a group by it, so that one that is not finite may give infinity in place of NaN.
        zero: float or ui8 like the scale, or one number for all; default 2 ** (bits - 1), the middle of the codes, or 0 where
            they have a sign.
        bits: 1 to 8. group: codes along K that share a scale; 0 for all of them. depth: K; default all codes.
    Raises:
        OptionError: another number of bits, or of tensors for them, a negative group. DTypeError, ShapeError: an operand does not
            fit.
    """
    if group < 0:
        raise OptionError(f"decode: groups of {group} codes; wanted 1 or more, or 0 for one scale a row")
    widths = planes(bits)
    if not widths:
        raise OptionError(f"decode: codes of {bits} bits; wanted 1 to 8")
    given = [codes] if isinstance(codes, Tensor) else list(codes)
    if len(given) != len(widths):
        raise OptionError(f"decode: {len(given)} tensors for codes of {bits} bits; wanted {len(widths)}, of "
                          f"{' and '.join(map(str, widths))} bits")
    if len(widths) > 1:
        return _decoded_in_planes(given, widths, scale, zero, group, depth)
    (codes,) = given
    want_rank("decode", "the tensor of codes", codes, 2)
    want_float("decode", scale)
    if codes.dtype is not DType.U8 and (codes.dtype is not DType.I8 or bits != 8):
        raise DTypeError(f"decode: codes of {codes.dtype.value}; wanted ui8, packed bytes, or si8 where bits=8")
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
    middle = (float(1 << (bits - 1)) if codes.dtype is DType.U8 else 0.0) if zero is None else zero

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


def _decoded_in_planes(codes: Sequence[Tensor], widths: Sequence[int], scale: Tensor, zero: Tensor | float | None, group: int,
                       depth: int | None) -> Tensor:
    """The low bits, and the others as multiples of their place (distribute-codes).

    The middle of all codes is the middle of the highest bits.
    """
    for c in codes:
        want_rank("decode", "the tensor of codes", c, 2)
    held = min((c.dims[1].constant or 0) * (8 // b) for c, b in zip(codes, widths, strict=True))
    total = held if depth is None else depth
    if any(c.dims[0] != codes[0].dims[0] for c in codes):
        raise ShapeError(f"decode: codes of {' and '.join(shown(c.dims) for c in codes)}; wanted equal numbers of rows")
    rest = [0.0] * (len(codes) - 1)
    points = [*rest, None] if zero is None else [zero, *rest]
    parts = [decode(c, scale, p, bits=b, group=group, depth=total) for c, p, b in zip(codes, points, widths, strict=True)]

    def summed(*values: Scalar) -> Scalar:
        found, place = values[0], widths[0]
        for value, width in zip(values[1:], widths[1:], strict=True):
            found, place = found + value * float(1 << place), place + width
        return found

    return scale.graph.pointwise("decode", summed, *parts)


def quantise(x: Tensor, group: int = 0) -> tuple[Tensor, Tensor]:
    """x [M, K] as codes si8 [M, K] and an f32 scale [M, groups], or [M] where a row is one group.

    `decode(*quantise(x, g), bits=8, group=g)` is x, each value off by half a scale at most; NaN throughout a group that holds NaN
    or an infinity; 0 where all of a group is below 1e-30. The scale of a group is its largest magnitude over 127. Products of it
    and `decode`d constants, of groups that nest, are sums of integers on hosts that multiply bytes.

    Args:
        x: f32 [M, K], K static. group: values along K that share a scale, a divisor of K; 0 for all of a row.
    Raises:
        DTypeError, ShapeError: x is no such tensor. OptionError: groups that do not divide K.
    """
    want_rank("quantise", "the tensor", x, 2)
    depth = x.dims[1].constant
    if x.dtype is not DType.F32:
        raise DTypeError(f"quantise: a tensor of {x.dtype.value}; wanted f32")
    if depth is None:
        raise ShapeError(f"quantise: the tensor is {shown(x.dims)}; wanted a static number of values a row")
    if group < 0 or (group and depth % group):
        raise OptionError(f"quantise: group={group}; wanted a divisor of the {depth} values of a row, or 0 for one group")
    size = group or depth
    parts = reshape(x, [x.dims[0], depth // size if size else 1, size])
    start = x.graph.filled(0.0, DType.F32, parts.dims[:2])
    top = x.graph.generic([(parts, ["d0", "d1", "d2"])], (start, ["d0", "d1"]), ["parallel", "parallel", "reduction"],
                          lambda _, values, total: total.maximum(values[0].math("absf")))
    factor = x.graph.pointwise("quantise", lambda t: t.body.select(t.compare("ge", SMALLEST), LARGEST_BYTE / t, t * 0.0), top)

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        value, by = scalars
        code = (value * by).math("roundeven")
        safe = region.select(code.compare("ge", -LARGEST_BYTE), code, 0.0)
        whole = region.emit(f"arith.fptosi {safe.ssa} : f32 to i32", "i32")
        return region.emit(f"arith.trunci {whole.ssa} : i32 to i8", "i8")

    into = x.graph.empty(DType.I8, parts.dims)
    codes = x.graph.generic([(parts, ["d0", "d1", "d2"]), (factor, ["d0", "d1"])], (into, ["d0", "d1", "d2"]), ["parallel"] * 3,
                            body)
    scale = top * (1.0 / LARGEST_BYTE)
    return reshape(codes, x.dims), scale if group else reshape(scale, [x.dims[0]])


def _first(t: Tensor, columns: int) -> Tensor:
    """The first columns of a tensor that may hold more: a loop over all of them would be longer than the result."""
    return t if t.dims[1].constant == columns else slice_axis(t, 1, 0, columns)


def _fits(t: Tensor, rows: Expr, groups: int) -> bool:
    """Is there an element for each group of each row?"""
    if t.rank == 1 and groups <= 1:
        return t.dims[0] == rows
    return t.rank == 2 and t.dims[0] == rows and (t.dims[1].constant or 0) >= groups
