"""Complex tensors, as rotary embeddings and Fourier transforms use them: a pair of real tensors, and the operators that take or
make one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.ops import fourier
from tilewright.compiler.ops.body import Scalar
from tilewright.compiler.ops.graph import broadcast
from tilewright.compiler.ops.scalar_functions import call, constant, select
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Complex:
    """Real and imaginary part, of one shape and element type."""

    real: ops.Tensor
    imag: ops.Tensor


Operand = Any  # a Complex, a real tensor or a number
_PARTWISE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "transpose.int", "permute.default", "t.default", "expand.default",
        "expand_as.default", "slice.Tensor", "select.int", "narrow.default", "split.Tensor", "split_with_sizes.default",
        "chunk.default", "unbind.int", "cat.default", "stack.default", "index.Tensor", "index_select.default",
        "embedding.default", "repeat.default",
        "alias.default", "detach.default", "detach_.default", "contiguous.default", "clone.default",
        "lift_fresh_copy.default", "roll.default", "flip.default", "neg.default", "sum.dim_IntList", "mean.dim",
        "repeat_interleave.self_int", "slice_scatter.default", "select_scatter.default", "index_add.default",
        "index_copy.default", "gather.default", "zeros.default", "zeros_like.default", "new_zeros.default",
        "empty.memory_format", "empty_like.default", "cumsum.default", "tril.default", "triu.default", "diagonal.default",
        "index_put.default", "sum.default", "mean.default",
    )
)  # fmt: skip


_VALUES: Mapping[str, Sequence[int]] = {  # of operators on each part: which arguments are numbers, whose imaginary part may be 0
    "aten.where.self": (1, 2), "aten.masked_fill.Scalar": (2,), "aten.masked_fill.Tensor": (2,), "aten.copy.default": (1,),
    "aten.full.default": (1,), "aten.full_like.default": (1,), "aten.fill.Scalar": (1,), "aten.fill.Tensor": (1,),
    "aten.new_full.default": (2,),
}  # fmt: skip


def takes_part(args: Any) -> bool:
    """Is a complex tensor among the arguments of a node?"""
    if isinstance(args, (tuple, list)):
        return any(map(takes_part, args))
    return isinstance(args, Complex)


def build(context: Context, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives that takes or makes a complex tensor; IngestError for one that is not known for them."""
    factors = {k: v for k, v in kwargs.items() if k in ("alpha", "beta")}
    if name in _OPERATORS:
        return _OPERATORS[name](*args, **factors)
    if name in _TYPED:
        return _TYPED[name](context, *args, **factors)
    if name not in _PARTWISE and name not in _VALUES:
        context.refuse("not known for complex tensors", "write it with real and imaginary parts")
    values = _VALUES.get(name, ())
    pairs = [_pair(a) if i in values else (_part(a, "real"), _part(a, "imag")) for i, a in enumerate(args)]
    real, imag = (lowerings("torch")[name](context, *parts, **kwargs) for parts in zip(*pairs, strict=True))
    if isinstance(real, (tuple, list)):
        return [Complex(r, i) for r, i in zip(real, imag, strict=True)]
    return Complex(real, imag)


def _part(argument: Any, name: str) -> Any:
    if isinstance(argument, (tuple, list)):
        return type(argument)(_part(a, name) for a in argument)
    return getattr(argument, name) if isinstance(argument, Complex) else argument


def _pair(x: Operand) -> tuple[Any, Any]:
    if isinstance(x, (Complex, complex)):
        return x.real, x.imag
    return x, 0


def _made(real: Any, imag: Any) -> Complex:
    """Of tensors and numbers, one tensor at least, as PyTorch broadcasts them."""
    like = real if isinstance(real, ops.Tensor) else imag
    return _of_parts(*(p if isinstance(p, ops.Tensor) else ops.full_like(like, p) for p in (real, imag)))


def _add(a: Operand, b: Operand, alpha: Operand = 1) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b if alpha == 1 else _multiply(b, alpha))
    return _made(ar + br, ai + bi)


def _subtract(a: Operand, b: Operand, alpha: Operand = 1) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b if alpha == 1 else _multiply(b, alpha))
    return _made(ar - br, ai - bi)


def _multiply(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    if not isinstance(b, (Complex, complex)):
        return _made(ar * br, ai * br)
    if not isinstance(a, (Complex, complex)):
        return _made(ar * br, ar * bi)
    return Complex(ar * br - ai * bi, ar * bi + ai * br)


def _divide(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    if not isinstance(b, (Complex, complex)):
        return _made(ar / br, ai / br)
    size = br * br + bi * bi
    return Complex((ar * br + ai * bi) / size, (ai * br - ar * bi) / size)


def _polar(length: ops.Tensor, angle: ops.Tensor) -> Complex:
    return Complex(length * _math("cos", angle), length * _math("sin", angle))


def _of_parts(real: ops.Tensor, imag: ops.Tensor) -> Complex:
    dims, _ = broadcast("complex", real.graph, [real, imag])
    return Complex(ops.broadcast_to(real, dims), ops.broadcast_to(imag, dims))


def _exp(x: Complex) -> Complex:
    return _polar(ops.exp(x.real), x.imag)


def _conjugate(x: Complex) -> Complex:
    return Complex(x.real, -x.imag)


def _size(x: Complex) -> ops.Tensor:
    return ops.sqrt(x.real * x.real + x.imag * x.imag)


def _angle(x: Complex) -> ops.Tensor:
    return x.real.graph.pointwise("angle", partial(call, "math.atan2"), x.imag, x.real)


def _sign(x: Complex) -> Complex:
    def of(part: Scalar, size: Scalar) -> Scalar:
        return select(size.compare("ne", 0), part / size, constant(part, 0))

    size = _size(x)
    return Complex(*(size.graph.pointwise("sgn", of, part, size) for part in (x.real, x.imag)))


def _logarithm(x: Complex) -> Complex:
    return Complex(ops.log(_size(x)), _angle(x))


def _power(x: Complex, exponent: Operand) -> Complex:
    """By factors where they are few, else by length and angle."""
    if isinstance(exponent, complex):
        return _exp(_multiply(_logarithm(x), exponent))
    if exponent in range(1, 9):
        found = x
        for _ in range(int(exponent) - 1):
            found = _multiply(found, x)
        return found
    size = _size(x)
    return _polar(size.graph.pointwise("pow", lambda v: v.power(exponent), size), _angle(x) * exponent)


def _swapped(x: Complex) -> Complex:
    """With its last two axes the other way round."""
    order = [*range(x.real.rank - 2), x.real.rank - 1, x.real.rank - 2]
    return Complex(ops.transpose(x.real, order), ops.transpose(x.imag, order))


def _math(name: str, x: ops.Tensor) -> ops.Tensor:
    return x.graph.pointwise(name, lambda v: v.math(name), x)


def _from_real(x: ops.Tensor) -> Complex:
    """The last axis holds real and imaginary part."""
    return Complex(ops.select(x, -1, 0), ops.select(x, -1, 1))


def _converted(context: Context, x: Operand, *_: Any) -> Complex:
    real = ops.cast(x.real if isinstance(x, Complex) else x, context.dtype())
    return Complex(real, ops.cast(x.imag, context.dtype()) if isinstance(x, Complex) else ops.full_like(real, 0))


def _sum_with_product(context: Context, x: Operand, a: Operand, b: Operand, beta: Operand = 1, alpha: Operand = 1) -> Complex:
    product = _multiply(_product(context, a, b, ops.matmul), alpha)
    return product if beta == 0 else _add(_multiply(x, beta), product)


def _linear(context: Context, x: Operand, weight: Operand, bias: Operand | None = None) -> Complex:
    product = _product(context, x, weight)
    return product if bias is None else _add(product, bias)


def _ones(context: Context, *_: Any) -> Complex:
    real = context.graph.full(context.shape(), 1, context.dtype())
    return Complex(real, ops.full_like(real, 0))


def _padded(context: Context, x: Complex, pad: Sequence[Any], value: Operand = 0) -> Complex:
    lowering = lowerings("torch")[context.operator]
    return Complex(*(lowering(context, part, pad, number) for part, number in zip((x.real, x.imag), _pair(value), strict=True)))


def _product(context: Context, a: Operand, b: Operand, multiplied: Callable[..., ops.Tensor] | None = None) -> Complex:
    """Of matrices: four real ones, or two where one side is real; as the node's own operator multiplies real ones."""
    of = multiplied or partial(lowerings("torch")[context.operator], context)
    if not isinstance(a, Complex):
        return Complex(of(a, b.real), of(a, b.imag))
    if not isinstance(b, Complex):
        return Complex(of(a.real, b), of(a.imag, b))
    return Complex(of(a.real, b.real) - of(a.imag, b.imag), of(a.real, b.imag) + of(a.imag, b.real))


def _padded_so(context: Context, x: Complex, pad: Sequence[Any], mode: str = "constant", value: Operand = None) -> Complex:
    numbers = _pair(value or 0) if mode == "constant" else (None, None)
    lowering = lowerings("torch")[context.operator]
    return Complex(*(lowering(context, part, pad, mode, number) for part, number in zip((x.real, x.imag), numbers, strict=True)))


def _of_complex(context: Context, x: Operand, axes: Sequence[int], norm: int, forward: bool) -> Complex:
    real, imag = _pair(x)
    for axis in axes:
        real, imag = _along(axis, real, imag, real.dims[axis], real.dims[axis], not forward)
    sizes = [real.dims[a] for a in axes]
    return Complex(_scaled(real, sizes, norm), _scaled(imag, sizes, norm))


def _of_real(context: Context, x: ops.Tensor, axes: Sequence[int], norm: int, onesided: bool) -> Complex:
    *others, last = axes
    size = x.dims[last]
    found = Complex(*_along(last, x, None, size, size // 2 + 1 if onesided else size, False))
    sizes = [x.dims[a] for a in axes]
    found = _of_complex(context, found, others, 0, True)
    return Complex(_scaled(found.real, sizes, norm), _scaled(found.imag, sizes, norm))


def _to_real(context: Context, x: Complex, axes: Sequence[int], norm: int, _: Any) -> ops.Tensor:
    *others, last = axes
    x = _of_complex(context, x, others, 0, False)
    size = context.shape()[last]
    order = _last(x.real.rank, last)
    bins = size // 2 + 1
    real, imag = (ops.transpose(ops.narrow(part, last, 0, bins), order) for part in (x.real, x.imag))
    made = ops.transpose(fourier.real_inverse(real, imag, size), order)
    return _scaled(made, [made.dims[a] for a in axes], norm)


def _along(axis: int, real: ops.Tensor, imag: ops.Tensor | None, size: Expr, bins: Expr, inverse: bool) -> list[ops.Tensor]:
    order = _last(real.rank, axis)
    moved = None if imag is None else ops.transpose(imag, order)
    return [ops.transpose(part, order) for part in fourier.transform(ops.transpose(real, order), moved, size, bins, inverse)]


def _last(rank: int, axis: int) -> list[int]:
    """The permutation that swaps an axis with the last one."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def _scaled(x: ops.Tensor, sizes: Sequence[Expr], norm: int) -> ops.Tensor:
    """Divided by the number of elements of a transform (2), by its root (1), or not (0)."""
    if norm == 0:
        return x
    count = math.prod(sizes, start=Expr.of(1))
    return x.graph.pointwise("fourier", lambda v, n: v / (n.math("sqrt") if norm == 1 else n), x, count)


_TYPED: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("aten.mm.default", "aten.bmm.default", "aten.matmul.default"), _product),
    **dict.fromkeys(("aten.addmm.default", "aten.baddbmm.default"), _sum_with_product),
    "aten.linear.default": _linear,
    "aten.linalg_vector_norm.default": lambda context, x, *more: lowerings("torch")[context.operator](context, _size(x), *more),
    **dict.fromkeys(("aten.ones.default", "aten.ones_like.default"), _ones),
    "aten.pad.default": _padded_so,
    **dict.fromkeys(("aten._to_copy.default", "aten.to.dtype"), _converted),
    "aten.constant_pad_nd.default": _padded,
    "aten._fft_c2c.default": _of_complex,
    "aten._fft_r2c.default": _of_real,
    "aten._fft_c2r.default": _to_real,
}
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "aten.view_as_complex.default": _from_real,
    "aten.view_as_real.default": lambda x: ops.stack([x.real, x.imag], -1),
    "aten.complex.default": _of_parts,
    "aten.polar.default": _polar,
    "aten.real.default": lambda x: x.real,
    "aten.imag.default": lambda x: x.imag,
    **dict.fromkeys(("aten.conj.default", "aten._conj.default", "aten.conj_physical.default"), _conjugate),
    **dict.fromkeys(("aten.resolve_conj.default", "aten.resolve_neg.default"), lambda x: x),
    "aten.abs.default": _size,
    **dict.fromkeys(("aten.mH.default", "aten.adjoint.default"), lambda x: _conjugate(_swapped(x))),
    "aten.mT.default": _swapped,
    "aten.angle.default": _angle,
    "aten.log.default": _logarithm,
    "aten.pow.Tensor_Scalar": _power,
    **dict.fromkeys(("aten.rsub.Tensor", "aten.rsub.Scalar"), lambda a, b, alpha=1: _subtract(b, a, alpha)),
    "aten.sgn.default": _sign,
    "aten.sqrt.default": lambda x: _polar(ops.sqrt(_size(x)), _angle(x) * 0.5),
    "aten.exp.default": _exp,
    "aten.reciprocal.default": lambda x: _divide(Complex(ops.full_like(x.real, 1), ops.full_like(x.real, 0)), x),
    "aten.square.default": lambda x: _multiply(x, x),
    **dict.fromkeys(("aten.add.Tensor", "aten.add.Scalar"), _add),
    **dict.fromkeys(("aten.sub.Tensor", "aten.sub.Scalar"), _subtract),
    **dict.fromkeys(("aten.mul.Tensor", "aten.mul.Scalar"), _multiply),
    **dict.fromkeys(("aten.div.Tensor", "aten.div.Scalar"), _divide),
}
