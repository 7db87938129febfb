"""Matrix products."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, operator
from tilewright.compiler.frontends.onnx.operators.shapes import broadcast_to
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Zero = Known | ops.Tensor  # a zero point


@operator("MatMul")
def matmul(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    return ops.cast(product(context, a, b), a.dtype)


def product(context: Context, a: ops.Tensor, b: ops.Tensor, transpose_a: bool = False, transpose_b: bool = False) -> ops.Tensor:
    """numpy.matmul, the last two axes of an operand swapped on request; batch axes broadcast."""
    context.require(a.rank > 0 and b.rank > 0, "an operand of rank 0")
    row, column = a.rank == 1, b.rank == 1
    left = ops.reshape(a, [1, *a.dims]) if row else a
    right = ops.reshape(b, [*b.dims, 1]) if column else b
    inner = left.dims[-2 if transpose_a else -1]
    right = context.restated(right, [*right.dims[:-2], *((right.dims[-2], inner) if transpose_b else (inner, right.dims[-1]))])
    left, right = context.fit(left, right, skip=2)
    if left.rank > 2 and right.rank > 2:
        left, right = _same_batch(context, left, right)
    found = ops.matmul(left, right, transpose_a, transpose_b)
    dims = list(found.dims)
    if row:
        del dims[-1 if column else -2]
    if column:
        del dims[-1]
    return ops.reshape(found, dims) if row or column else found


def _same_batch(context: Context, a: ops.Tensor, b: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Both with the same batch axes. A batch of extent 1 throughout is left out, so that it is not copied."""
    if a.dims[:-2] == b.dims[:-2]:
        return a, b
    one = Expr.of(1)
    if b.rank <= a.rank and all(d == one for d in b.dims[:-2]):
        return a, ops.reshape(b, b.dims[-2:])
    batch = _broadcast(a.dims[:-2], b.dims[:-2])
    return (broadcast_to(context, a, [*batch, *a.dims[-2:]]), broadcast_to(context, b, [*batch, *b.dims[-2:]]))


def _broadcast(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> list[Expr]:
    one, rank = Expr.of(1), max(len(a), len(b))
    left, right = (one,) * (rank - len(a)) + a, (one,) * (rank - len(b)) + b
    return [y if x == one else x for x, y in zip(left, right, strict=True)]


@operator("Gemm")
def gemm(context: Context, a: ops.Tensor, b: ops.Tensor, c: ops.Tensor | None = None) -> ops.Tensor:
    context.require(a.rank == b.rank == 2, f"operands of rank {a.rank} and {b.rank}; wanted 2")
    found = product(context, a, b, bool(context.attribute("transA", 0)), bool(context.attribute("transB", 0)))
    alpha, beta = context.attribute("alpha", 1.0), context.attribute("beta", 1.0)
    found = scaled(ops.cast(found, a.dtype), alpha)
    return found if c is None else context.binary("Gemm", lambda x, y: x + y, found, scaled(c, beta))


def scaled(x: ops.Tensor, factor: float) -> ops.Tensor:
    """x * factor; integers take whole factors."""
    return x if factor == 1 else x * (factor if x.dtype.is_float else int(factor))


@operator("com.microsoft.FusedMatMul")
def fused_matmul(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    context.require(
        not context.attribute("transBatchA", 0) and not context.attribute("transBatchB", 0),
        "transposed batch axes",
        "Export without this fusion",
    )
    found = product(context, a, b, bool(context.attribute("transA", 0)), bool(context.attribute("transB", 0)))
    return scaled(ops.cast(found, a.dtype), context.attribute("alpha", 1.0))


@operator("Einsum")
def einsum(context: Context, *tensors: ops.Tensor) -> ops.Tensor:
    return ops.cast(ops.einsum(context.attribute("equation"), *tensors), tensors[0].dtype)


@operator("MatMulInteger", either=[2, 3])
def matmul_integer(
    context: Context, a: ops.Tensor, b: ops.Tensor, zero_a: Zero | None = None, zero_b: Zero | None = None
) -> ops.Tensor:
    left = centred(context, a, zero_a, -2)
    right = centred(context, b, zero_b, -1)
    return product(context, left, right)


def zero_point(context: Context, zero: Zero | None) -> ops.Tensor | None:
    """A zero point as a tensor: None where it is known to be 0, one element where it is known to be the same for all."""
    if zero is None or isinstance(zero, ops.Tensor):
        return zero
    if zero.elements.size and not zero.elements.any():
        return None
    alike = zero.elements.size > 1 and (zero.elements == zero.elements.flat[0]).all()
    return context.tensor(Known(zero.elements.reshape(-1)[:1].reshape(()), zero.dtype) if alike else zero)


def centred(context: Context, x: ops.Tensor, zero: Zero | None, axis: int) -> ops.Tensor:
    """x - zero as i32; a vector of zero points runs along `axis`."""
    wide, point = ops.cast(x, DType.I32), zero_point(context, zero)
    if point is None:
        return wide
    shift = ops.cast(point, DType.I32)
    if shift.rank == 1 and shift.dims[0] != Expr.of(1):
        at = context.axis(x.rank, axis)
        shift = ops.reshape(shift, [shift.dims[0] if a == at else Expr.of(1) for a in range(x.rank)])
    elif shift.rank == 1:
        shift = ops.reshape(shift, ())
    return context.binary(context.node.op_type, lambda v, z: v - z, wide, shift)
