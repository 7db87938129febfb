"""Conversion to 8-bit floats."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.tensor import DType

FLOAT8_LIMITS = {DType.F8E4M3: 448.0, DType.F8E5M2: 57344.0}


def saturated_float(context: Context, x: ops.Tensor, kind: DType) -> ops.Tensor:
    """Cast to an 8-bit float; what is too large becomes the largest, unless the node's `saturate` is 0."""
    if not context.attribute("saturate", 1):
        return ops.cast(x, kind)
    largest = FLOAT8_LIMITS[kind]

    def scalar(v: Scalar) -> Scalar:
        return v.body.select(v.compare("ne", v), v, v.maximum(-largest).minimum(largest))

    return ops.cast(context.graph.pointwise(context.node.op_type, scalar, x), kind)
