"""Python builders of linalg-level IR for dynamic shapes. Public as `tilewright.ops`.

    g = ops.Graph()
    x, w = g.input("x", ["B", "S", 768]), g.input("w", [768, 3072])
    g.output(ops.dense(x, w, activation="gelu"))
    fn = tw.compile(g, {"B": (1, 8), "S": (1, 512)})
"""

from tilewright.compiler.ops.contractions import batch_matmul, dense, matmul
from tilewright.compiler.ops.convolutions import conv1d, conv2d
from tilewright.compiler.ops.creation import arange, eye, full, full_like, iota, ones, triangle, tril, triu, zeros
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.indexing import gather, gather_elements, gather_nd, index, one_hot
from tilewright.compiler.ops.joining import broadcast_to, concat, repeat, stack, tile
from tilewright.compiler.ops.normalization import layernorm, rmsnorm, softmax
from tilewright.compiler.ops.padding import pad
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
from tilewright.compiler.ops.reshaping import (
    flatten,
    move_axes,
    reshape,
    squeeze,
    swap_axes,
    transpose,
    unflatten,
    unsqueeze,
    with_dims,
)
from tilewright.compiler.ops.scatter import index_put, masked_fill, scatter, select_scatter, slice_scatter
from tilewright.compiler.ops.slicing import chunk, flip, narrow, roll, select, slice, slice_axis, split, unbind  # noqa: A004
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
    "chunk",
    "compare",
    "concat",
    "conv1d",
    "conv2d",
    "dense",
    "divide",
    "erf",
    "exp",
    "eye",
    "flatten",
    "flip",
    "full",
    "full_like",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "index",
    "index_put",
    "iota",
    "layernorm",
    "log",
    "masked_fill",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "move_axes",
    "multiply",
    "narrow",
    "one_hot",
    "ones",
    "pad",
    "prod",
    "promote_types",
    "relu",
    "repeat",
    "reshape",
    "result_type",
    "rmsnorm",
    "roll",
    "rsqrt",
    "scatter",
    "select",
    "select_scatter",
    "sigmoid",
    "silu",
    "slice",
    "slice_axis",
    "slice_scatter",
    "softmax",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "swap_axes",
    "tanh",
    "tile",
    "transformer_encoder_layer",
    "transpose",
    "triangle",
    "tril",
    "triu",
    "unbind",
    "unflatten",
    "unsqueeze",
    "where",
    "with_dims",
    "zeros",
]
