"""Python floats that follow from sizes, such as 1 / math.sqrt(x.shape[-1]), as tensors of rank 0."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.compiler import ops
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr

_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{f: f for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg)},
    torch.sym_float: lambda x: x,
    torch.sym_max: ops.maximum,
    torch.sym_min: ops.minimum,
    torch._sym_sqrt: ops.sqrt,
    math.sqrt: ops.sqrt,
}


def build(graph: ops.Graph, function: Any, args: Sequence[Any], where: str) -> ops.Tensor:
    """A function of sizes and floats; IngestError for one that is not known. where: the line of the model."""
    if function is operator.pow and args[1] == 0.5:
        function, args = math.sqrt, args[:1]
    if function not in _FUNCTIONS:
        name = getattr(function, "__name__", str(function))
        raise IngestError(f"{name} of a size at {where} is not compiled: use + - * / and sqrt, or compute it in a tensor")
    return _FUNCTIONS[function](*(graph.scalar(a, "f64") if isinstance(a, Expr) else a for a in args))  # type: ignore[no-any-return]
