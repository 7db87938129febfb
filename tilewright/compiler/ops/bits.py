"""Values rounded to whole numbers of as many bits as a call says."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Number, Scalar
from tilewright.compiler.ops.graph import Tensor, shown
from tilewright.compiler.ops.reductions import max as largest_of
from tilewright.compiler.ops.reductions import min as least_of
from tilewright.passes.spaces.byte_rows import SMALLEST
from tilewright.runtime.errors import DTypeError, OptionError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MOST_BITS = 8


def round_to_bits(x: Tensor, bits: int | Expr, *, per: str = "tensor",
                  span: tuple[float, float] | None = None) -> tuple[Tensor, Tensor]:
    """x as `values * scale`, the values whole numbers that `bits` bits tell apart, as f32, with 0 among them.

    With `bits = graph.dim("A")`, a dim of range (1, 8), one compiled model serves all widths. Products of the values with
    weights out of a pool of si8 (`decode_pool`) are sums of integers, and kernels take less time for fewer bits. Multiply the
    product's result by the scale. The bits tell 2 ** bits numbers apart from the least value, or 0, to the largest, or 0. A NaN
    or an infinity makes the scale NaN.

    Args:
        x: f32. bits: 1 to 8, or a dim. per: "tensor", scale [], or "row", a scale for each row of the last axis.
        span: the least and the largest value, where they are known; values beyond are cut off. Default: of the data.
    Raises:
        OptionError, DTypeError: bits, per, span or x are none of these.
    """
    if isinstance(bits, int) and not 1 <= bits <= MOST_BITS:
        raise OptionError(f"round_to_bits: bits={bits}; wanted 1 to {MOST_BITS}, or a dim of that range")
    if per not in ("tensor", "row") or (per == "row" and x.rank < 2):
        raise OptionError(f"round_to_bits: per={per!r} of a tensor {shown(x.dims)}; wanted 'tensor', or "
                          "'row' of two axes or more")
    if x.dtype is not DType.F32:
        raise DTypeError(f"round_to_bits: a tensor of {x.dtype.value}; wanted f32")
    if span is not None and not (span[0] <= 0.0 <= span[1] and span[0] < span[1]):
        raise OptionError(f"round_to_bits: span={span}; wanted a least and a largest value, with 0 between them")
    graph, axis = x.graph, None if per == "tensor" else -1
    dims = () if per == "tensor" else x.dims[:-1]
    if span is None:
        low, high = least_of(x, axis), largest_of(x, axis)
    else:
        low, high = (graph.filled(v, DType.F32, dims) for v in span)

    def mask(region: Body) -> Scalar:
        shift = graph.number(region, bits, "i32")
        return (region.value(1, "i32") << shift) - 1

    def step(a: Scalar, b: Scalar) -> Scalar:
        body = a.body
        width = (b.maximum(0.0) - a.minimum(0.0)) / mask(body).cast("f32")
        return body.select(width.compare("lt", SMALLEST), 0.0, width + width * 0.0)

    scale = graph.pointwise("round_to_bits", step, low, high)
    factor = graph.pointwise("round_to_bits", lambda s: s.body.select(s.compare("gt", 0.0), 1.0 / s, s * 0.0), scale)

    def code(body: Body, value: Scalar, by: Scalar, least: Scalar) -> Scalar:
        top = mask(body).cast("f32")
        zero = (least.minimum(0.0) * by * -1.0).math("roundeven")
        found = ((value * by).math("roundeven") + zero).maximum(0.0).minimum(top)
        safe = body.select(found.compare("ge", 0.0), found, 0.0)
        whole = body.emit(f"arith.fptosi {safe.ssa} : f32 to i32", "i32")
        return body.emit(f"arith.trunci {whole.ssa} : i32 to i8", "ui8")

    loops = [f"d{i}" for i in range(x.rank)]
    outer = loops[:-1] if per == "row" else []
    codes = graph.generic([(x, loops), (factor, outer), (low, outer)], (graph.empty(DType.U8, x.dims), loops),
                          ["parallel"] * x.rank, lambda body, given, _: code(body, *given))
    zeros = graph.generic([(factor, outer), (low, outer)], (graph.empty(DType.U8, dims), outer), ["parallel"] * len(outer),
                          lambda body, given, _: code(body, given[0] * 0.0, given[0], given[1]))

    def whole(body: Body, given: Sequence[Scalar], _: Scalar) -> Scalar:
        kept: list[Number] = [v.cast("i32") & mask(body) for v in given]
        return body.value(kept[0], "i32") - kept[1]

    into = (graph.empty(DType.F32, x.dims), loops)
    values = graph.generic([(codes, loops), (zeros, outer)], into, ["parallel"] * x.rank, whole)
    return values, scale
