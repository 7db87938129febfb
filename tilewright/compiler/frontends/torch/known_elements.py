"""Integers that a model takes out of tensors of rank 0 and that follow from sizes all the same, as in torch.tensor(n) - 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tilewright.compiler.frontends.torch.context import operator_name
from tilewright.runtime.shape import Expr


def _add(a: Expr, b: Expr, alpha: int = 1) -> Expr:
    return a + b * alpha


def _subtract(a: Expr, b: Expr, alpha: int = 1) -> Expr:
    return a - b * alpha


def _quotient(a: Expr, b: Expr, rounding_mode: str | None = None) -> Expr | None:
    """None where it is no integer, by what may be 0, and where it is not known to be the same rounded either way."""
    (least, _), (divisor, _) = (e.bounds(dict.fromkeys(e.symbols, (0, math.inf))) for e in (a, b))
    rounded = rounding_mode == "floor" or (rounding_mode == "trunc" and least >= 0)
    return a // b if rounded and divisor > 0 else None


_SAME = ("scalar_tensor.default", "alias.default", "detach.default", "detach_.default", "clone.default", "to.dtype", "to.device",
         "to.dtype_layout", "_to_copy.default", "lift_fresh_copy.default", "view.default", "reshape.default")  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Expr | None]] = {
    **{f"aten.{name}": lambda a, *_, **__: a for name in _SAME},
    "aten.neg.default": lambda a: -a,
    **dict.fromkeys(("aten.add.Tensor", "aten.add.Scalar"), _add),
    **dict.fromkeys(("aten.sub.Tensor", "aten.sub.Scalar"), _subtract),
    **dict.fromkeys(("aten.rsub.Tensor", "aten.rsub.Scalar"), lambda a, b, alpha=1: b - a * alpha),
    **dict.fromkeys(("aten.mul.Tensor", "aten.mul.Scalar"), lambda a, b: a * b),
    **dict.fromkeys(("aten.div.Tensor_mode", "aten.div.Scalar_mode"), _quotient),
    **dict.fromkeys(("aten.floor_divide.default", "aten.floor_divide.Scalar"), partial(_quotient, rounding_mode="floor")),
    "aten.maximum.default": Expr.maximum,
    "aten.minimum.default": Expr.minimum,
}


@dataclass
class KnownElements:
    """The integers that are known, by the node of their tensor or number."""

    found: dict[torch.fx.Node, Expr] = field(default_factory=dict)

    def follow(self, node: torch.fx.Node, args: Sequence[Any]) -> None:
        """Looks at a node that makes an integer tensor of rank 0. args: its arguments, sizes as Exprs."""
        value = node.meta.get("val")
        function = _FUNCTIONS.get(operator_name(node.target))
        if function is None or not isinstance(value, torch.Tensor) or value.ndim or value.is_floating_point():
            return
        operands = [self.found.get(own, given) if isinstance(own, torch.fx.Node) else given
                    for own, given in zip(node.args, args, strict=True)]
        known = [Expr.of(o) if isinstance(o, int) else o for o in operands]
        if known and all(isinstance(k, Expr) for k in (known[:1] if operator_name(node.target)[5:] in _SAME else known)):
            element = function(*known, **{k: v for k, v in node.kwargs.items() if k in ("alpha", "rounding_mode")})
            if element is not None:
                self.found[node] = element
