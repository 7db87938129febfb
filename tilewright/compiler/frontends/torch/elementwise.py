"""Operators that work element by element: operands converted as PyTorch converts them, one scalar function of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind  # noqa: N811
from torch._prims_common import elementwise_dtypes

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import Lowering, register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.tensor import DType

DEFAULT, TO_FLOAT, TO_INTEGER = Kind.DEFAULT, Kind.INT_TO_FLOAT, Kind.BOOL_TO_LONG
Function = Callable[..., Scalar]


def met(context: Context, positions: Sequence[int], kind: Kind = DEFAULT) -> DType:
    """The type in which PyTorch computes with the arguments at these positions of the node."""
    values = [_example(context.node.args[i]) for i in positions]
    return context.element_type(elementwise_dtypes(*values, type_promotion_kind=kind)[0])


def _example(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def elementwise(context: Context, function: Function, operands: Sequence[Any], compute: DType) -> ops.Tensor:
    """`function` of the operands' elements, converted to `compute`; the result has the node's element type."""

    def converted(*scalars: Scalar) -> Scalar:
        return function(*(s.cast(compute.value) for s in scalars))

    found = context.graph.map_elements(context.operator, converted, operands, context.dtype(), compute)
    return found


def names(*operators: str, overloads: Sequence[str] = ("default",)) -> list[str]:
    """ATen's names of operators with each of the overloads."""
    return [f"aten.{name}.{overload}" for name in operators for overload in overloads]


def register_unary(operators: Sequence[str], function: Function, kind: Kind = TO_FLOAT) -> None:
    """Operators of one tensor; further arguments are the function's parameters."""

    def lowering(context: Context, x: ops.Tensor, *parameters: Any, **named: Any) -> ops.Tensor:
        def run(v: Scalar) -> Scalar:
            return function(v, *parameters, **named)

        return elementwise(context, run, [x], met(context, [0], kind))

    register("torch", *operators)(lowering)


def register_binary(operators: Sequence[str], function: Function, kind: Kind = DEFAULT) -> None:
    """Operators of two tensors, or a tensor and a number."""

    def lowering(context: Context, a: Any, b: Any) -> ops.Tensor:
        return elementwise(context, function, [a, b], met(context, [0, 1], kind))

    register("torch", *operators)(lowering)


def register_ternary(operators: Sequence[str], function: Function, kind: Kind = DEFAULT) -> None:
    """Operators of three tensors or numbers; `value` scales the product or quotient of the last two."""

    def lowering(context: Context, a: Any, b: Any, c: Any, value: float = 1) -> ops.Tensor:
        def run(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
            return function(x, y, z) if value == 1 else function(x, y * value, z)

        return elementwise(context, run, [a, b, c], met(context, [0, 1, 2], kind))

    register("torch", *operators)(lowering)


__all__ = ["DEFAULT", "TO_FLOAT", "TO_INTEGER", "Kind", "Lowering", "elementwise", "met", "names", "register_binary",
           "register_ternary", "register_unary"]  # fmt: skip
