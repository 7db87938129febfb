"""Values of a model while it is imported: tensors of the graph, and small ones whose elements are known now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tilewright.compiler import ops
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_WIDENED = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8, "float4_e2m1fn": np.float32}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Known:
    """A value whose elements are known at import.

    elements: an array of numbers, or of Exprs (dtype object) where some depend on the dims. dtype: of the ONNX value.
    """

    elements: Array
    dtype: np.dtype[Any]

    @staticmethod
    def of(array: Array) -> Known:
        return Known(array, array.dtype)

    @staticmethod
    def sizes(values: Sequence[Expr | int] | Array, dtype: Any = np.int64, shape: Sequence[int] | None = None) -> Known:
        """Sizes, as numbers where all of them are."""
        exprs = [Expr.of(v) for v in values]
        constants = [e.constant for e in exprs]
        extents = (len(exprs),) if shape is None else tuple(shape)
        if None not in constants:
            return Known(np.array(constants, dtype).reshape(extents), np.dtype(dtype))
        cells = np.empty(len(exprs), object)
        cells[:] = exprs
        return Known(cells.reshape(extents), np.dtype(dtype))

    @property
    def symbolic(self) -> bool:
        return bool(self.elements.dtype == object)

    def exprs(self) -> list[Expr]:
        """The elements of an integer value, flat."""
        return [v if isinstance(v, Expr) else Expr.of(int(v)) for v in self.elements.reshape(-1)]


Value = Union[ops.Tensor, Known]


def dims_of(value: Value) -> tuple[Expr, ...]:
    """The shape."""
    return value.dims if isinstance(value, ops.Tensor) else tuple(Expr.of(n) for n in value.elements.shape)


def dtype_of(value: Value) -> DType:
    """The element type; DTypeError when the compiler has none such."""
    return value.dtype if isinstance(value, ops.Tensor) else DType.of(value.dtype)


def tensor_of(graph: ops.Graph, value: Value, name: str | None = None) -> ops.Tensor:
    """The value as a tensor of the graph: numbers as a constant, sizes computed from the dims."""
    if isinstance(value, ops.Tensor):
        return value
    if not value.symbolic:
        narrow = _WIDENED.get(value.dtype.name)
        return graph.constant(value.elements if narrow is None else value.elements.astype(narrow), name)
    dtype = DType.of(value.dtype)
    parts = [ops.full(graph, [1], e, dtype) for e in value.exprs()]
    return ops.reshape(ops.concat(parts) if len(parts) > 1 else parts[0], value.elements.shape)
