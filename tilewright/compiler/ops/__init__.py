"""Python builders of linalg-level IR for dynamic shapes. Public as `tilewright.ops`.

    g = ops.Graph()
    x, w = g.input("x", ["B", "S", 768]), g.input("w", [768, 3072])
    g.output(ops.dense(x, w, activation="gelu"))
    fn = tw.compile(g, {"B": (1, 8), "S": (1, 512)})
"""

from tilewright.compiler.ops.attention import attention
from tilewright.compiler.ops.bits import round_to_bits
from tilewright.compiler.ops.codes import decode, quantise
from tilewright.compiler.ops.contractions import batch_matmul, dense, matmul
from tilewright.compiler.ops.control import cond, fori_loop, scan, while_loop
from tilewright.compiler.ops.convolutions import conv1d, conv2d, conv3d, conv_transpose
from tilewright.compiler.ops.creation import arange, eye, full, full_like, iota, ones, triangle, tril, triu, zeros
from tilewright.compiler.ops.einsum import einsum
from tilewright.compiler.ops.folding import fold
from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.grid_sampling import grid_sample
from tilewright.compiler.ops.grouping import grouped_matmul
from tilewright.compiler.ops.histograms import histogram
from tilewright.compiler.ops.indexing import gather, gather_elements, gather_nd, index, one_hot
from tilewright.compiler.ops.interpolation import InterpolationOptions, interpolate
from tilewright.compiler.ops.joining import broadcast_to, concat, repeat, roll, stack, tile
from tilewright.compiler.ops.normalization import (
    batchnorm,
    groupnorm,
    instancenorm,
    layernorm,
    log_softmax,
    rmsnorm,
    softmax,
)
from tilewright.compiler.ops.packed_weight import PackedWeight
from tilewright.compiler.ops.padding import pad
from tilewright.compiler.ops.paged_attention import paged_attention
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
from tilewright.compiler.ops.pooled_weight import PooledWeight
from tilewright.compiler.ops.pooling import (
    adaptive_avg_pool,
    adaptive_max_pool,
    adaptive_max_pool_with_indices,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_pool_with_indices,
    sum_pool,
)
from tilewright.compiler.ops.pools import decode_pool
from tilewright.compiler.ops.promotion import Promotion, promote_types, result_type
from tilewright.compiler.ops.recurrent import gru_step, lstm_step, recurrence
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
from tilewright.compiler.ops.roi_align import roi_align
from tilewright.compiler.ops.scans import cummax, cummin, cumprod, cumsum, logcumsumexp
from tilewright.compiler.ops.scatter import index_put, masked_fill, scatter, select_scatter, slice_scatter
from tilewright.compiler.ops.slicing import chunk, flip, narrow, select, slice, slice_axis, split, unbind  # noqa: A004
from tilewright.compiler.ops.sliding_windows import WindowOptions
from tilewright.compiler.ops.sorting import argsort, kthvalue, searchsorted, sort, topk
from tilewright.compiler.ops.statistics import all, any, argmax, argmin, count_nonzero, logsumexp, norm, std, var  # noqa: A004
from tilewright.compiler.ops.transformer import EncoderWeights, transformer_encoder_layer

__all__ = [
    "EncoderWeights",
    "Graph",
    "InterpolationOptions",
    "PackedWeight",
    "PooledWeight",
    "Promotion",
    "Tensor",
    "WindowOptions",
    "absolute",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "adaptive_max_pool_with_indices",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_matmul",
    "batchnorm",
    "broadcast_to",
    "cast",
    "chunk",
    "compare",
    "concat",
    "cond",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "decode",
    "decode_pool",
    "dense",
    "divide",
    "einsum",
    "erf",
    "exp",
    "eye",
    "flatten",
    "flip",
    "fold",
    "fori_loop",
    "full",
    "full_like",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "grid_sample",
    "grouped_matmul",
    "groupnorm",
    "gru_step",
    "histogram",
    "index",
    "index_put",
    "instancenorm",
    "interpolate",
    "iota",
    "kthvalue",
    "layernorm",
    "log",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "lstm_step",
    "masked_fill",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_indices",
    "maximum",
    "mean",
    "min",
    "minimum",
    "move_axes",
    "multiply",
    "narrow",
    "norm",
    "one_hot",
    "ones",
    "pad",
    "paged_attention",
    "prod",
    "promote_types",
    "quantise",
    "recurrence",
    "relu",
    "repeat",
    "reshape",
    "result_type",
    "rmsnorm",
    "roi_align",
    "roll",
    "round_to_bits",
    "rsqrt",
    "scan",
    "scatter",
    "searchsorted",
    "select",
    "select_scatter",
    "sigmoid",
    "silu",
    "slice",
    "slice_axis",
    "slice_scatter",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "sum_pool",
    "swap_axes",
    "tanh",
    "tile",
    "topk",
    "transformer_encoder_layer",
    "transpose",
    "triangle",
    "tril",
    "triu",
    "unbind",
    "unflatten",
    "unsqueeze",
    "var",
    "where",
    "while_loop",
    "with_dims",
    "zeros",
]
