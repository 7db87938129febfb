"""What a function of the PyTorch table is given: the graph under construction and the facts of the node that it builds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from tilewright.compiler import ops
from tilewright.compiler.frontends.torch.sizes import Sizes
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

DTYPES = {
    torch.bool: DType.I1,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float8_e4m3fn: DType.F8E4M3,
    torch.float8_e5m2: DType.F8E5M2,
    torch.complex64: DType.F32,  # of the parts
    torch.complex128: DType.F64,
}
_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True)
class Context:
    """The node that is built: `graph` takes its operations; shapes and element types of its results are PyTorch's own."""

    graph: ops.Graph
    sizes: Sizes
    node: torch.fx.Node

    @property
    def operator(self) -> str:
        """The operator as it is registered, such as "aten.gelu.default"."""
        return operator_name(self.node.target)

    def shape(self, result: int = 0) -> tuple[Expr, ...]:
        """The extents of a result."""
        return tuple(self.sizes.expr(d) for d in self._result(result).shape)

    def dtype(self, result: int = 0) -> DType:
        """The element type of a result."""
        return self.element_type(self._result(result).dtype)

    @property
    def results(self) -> int:
        """How many results the node has."""
        value = self.node.meta["val"]
        return len(value) if isinstance(value, (tuple, list)) else 1

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """What PyTorch knows of the results, for one result and for several."""
        value = self.node.meta["val"]
        return [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]

    def element_type(self, dtype: torch.dtype) -> DType:
        if dtype not in DTYPES:
            self.refuse(f"the element type {dtype} is not supported", f"use one of {', '.join(d.value for d in DType)}")
        return DTYPES[dtype]

    def refuse(self, reason: str, remedy: str) -> NoReturn:
        """Raise IngestError that names the operator and the line of the user's model."""
        raise IngestError(f"{self.operator} at {location(self.node)}: {reason}; {remedy}")

    def _result(self, number: int) -> torch.Tensor:
        value = self.node.meta["val"]
        found = value[number] if isinstance(value, (tuple, list)) else value
        assert isinstance(found, torch.Tensor)
        return found


def operator_name(target: Any) -> str:
    """How the table names what a node calls."""
    return target.__name__ if not isinstance(target, torch._ops.OpOverload) and hasattr(target, "__name__") else str(target)


def location(node: torch.fx.Node) -> str:
    """The line of the user's model that a node comes from, and the module that it runs in."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not f[0].startswith((_TORCH, "<"))]  # "<": code that torch made
    at = f"{own[-1][0]}:{own[-1][1]} in {own[-1][2]}" if own else f"node {node.name}"
    stack: Sequence[tuple[str, Any]] = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return f"{at} (module {path})" if path else at


def refuse_unknown(context: Context) -> NoReturn:
    """Raise IngestError for an operator that the table does not have: what it does that cannot be compiled, or how to add it."""
    target = context.node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        context.refuse("this operator over functions is not compiled", "use torch.cond, while_loop or scan")
    tags = getattr(target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags:
        context.refuse("the shape of its result depends on data", "return a padded tensor and its length, or a mask")
    if torch.Tag.nondeterministic_seeded in tags:
        context.refuse("random numbers are not compiled", "make them outside and pass them as an argument")
    context.refuse("the operator is not known", "write a function that builds it from tw.ops and register it: "
                   f'@tw.frontends.register("torch", "{context.operator}")')
