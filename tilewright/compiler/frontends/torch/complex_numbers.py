"""Complex tensors, as rotary embeddings and Fourier transforms use them: a pair of real tensors, and the operators that take or
make one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.ops import fourier
from tilewright.compiler.ops.graph import broadcast
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
        "repeat_interleave.self_int",
    )
)  # fmt: skip


def takes_part(args: Any) -> bool:
    """Is a complex tensor among the arguments of a node?"""
    if isinstance(args, (tuple, list)):
        return any(map(takes_part, args))
    return isinstance(args, Complex)


def build(context: Context, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives that takes or makes a complex tensor; IngestError for one that is not known for them."""
    if name in _OPERATORS:
        return _OPERATORS[name](*args)
    if name in _TYPED:
        return _TYPED[name](context, *args)
    if name not in _PARTWISE:
        context.refuse("not known for complex tensors", "write it with real and imaginary parts")
    lowering = lowerings("torch")[name]
    real = lowering(context, *_part(args, "real"), **kwargs)
    imag = lowering(context, *_part(args, "imag"), **kwargs)
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


def _add(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    return Complex(ar + br, ai + bi)


def _subtract(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    return Complex(ar - br, ai - bi)


def _multiply(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    if not isinstance(b, (Complex, complex)):
        return Complex(ar * br, ai * br)
    if not isinstance(a, (Complex, complex)):
        return Complex(ar * br, ar * bi)
    return Complex(ar * br - ai * bi, ar * bi + ai * br)


def _divide(a: Operand, b: Operand) -> Complex:
    (ar, ai), (br, bi) = _pair(a), _pair(b)
    if not isinstance(b, (Complex, complex)):
        return Complex(ar / br, ai / br)
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


def _math(name: str, x: ops.Tensor) -> ops.Tensor:
    return x.graph.pointwise(name, lambda v: v.math(name), x)


def _from_real(x: ops.Tensor) -> Complex:
    """The last axis holds real and imaginary part."""
    return Complex(ops.select(x, -1, 0), ops.select(x, -1, 1))


def _converted(context: Context, x: Operand, *_: Any) -> Complex:
    real = ops.cast(x.real if isinstance(x, Complex) else x, context.dtype())
    return Complex(real, ops.cast(x.imag, context.dtype()) if isinstance(x, Complex) else ops.full_like(real, 0))


def _padded(context: Context, x: Complex, pad: Sequence[Any], value: Operand = 0) -> Complex:
    lowering = lowerings("torch")[context.operator]
    return Complex(*(lowering(context, part, pad, number) for part, number in zip((x.real, x.imag), _pair(value), strict=True)))


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
    "aten.abs.default": lambda x: ops.sqrt(x.real * x.real + x.imag * x.imag),
    "aten.exp.default": _exp,
    "aten.add.Tensor": _add,
    "aten.sub.Tensor": _subtract,
    "aten.mul.Tensor": _multiply,
    "aten.div.Tensor": _divide,
}
