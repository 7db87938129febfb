"""Python builders of linalg-level IR for dynamic shapes. Public as `tilewright.ops`.

    g = ops.Graph()
    x, w = g.input("x", ["B", "S", 768]), g.input("w", [768, 3072])
    g.output(ops.dense(x, w, activation="gelu"))
    fn = tw.compile(g, {"B": (1, 8), "S": (1, 512)})
"""

from tilewright.compiler.ops.array_manipulation import broadcast_to, concat, gather, pad, reshape, slice, transpose  # noqa: A004
from tilewright.compiler.ops.contractions import batch_matmul, dense, matmul
from tilewright.compiler.ops.convolutions import conv1d, conv2d
from tilewright.compiler.ops.creation import arange, eye, full, full_like, iota, ones, triangle, tril, triu, zeros
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.normalization import layernorm, rmsnorm, softmax
from tilewright.compiler.ops.pointwise import (
    absolute,
    add,
    cast,
    compare,
    divide,
    erf,
    exp,
    gelu,
    log,
    maximum,
    minimum,
    multiply,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    subtract,
    tanh,
    where,
)
from tilewright.compiler.ops.pooling import avg_pool2d, max_pool2d
from tilewright.compiler.ops.promotion import Promotion, promote_types, result_type
from tilewright.compiler.ops.reductions import max, mean, min, prod, sum  # noqa: A004
from tilewright.compiler.ops.transformer import EncoderWeights, attention, transformer_encoder_layer

__all__ = [
    "EncoderWeights",
    "Graph",
    "Promotion",
    "Tensor",
    "absolute",
    "add",
    "arange",
    "attention",
    "avg_pool2d",
    "batch_matmul",
    "broadcast_to",
    "cast",
    "compare",
    "concat",
    "conv1d",
    "conv2d",
    "dense",
    "divide",
    "erf",
    "exp",
    "eye",
    "full",
    "full_like",
    "gather",
    "gelu",
    "iota",
    "layernorm",
    "log",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "ones",
    "pad",
    "prod",
    "promote_types",
    "relu",
    "reshape",
    "result_type",
    "rmsnorm",
    "rsqrt",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "sqrt",
    "subtract",
    "sum",
    "tanh",
    "transformer_encoder_layer",
    "transpose",
    "triangle",
    "tril",
    "triu",
    "where",
    "zeros",
]
