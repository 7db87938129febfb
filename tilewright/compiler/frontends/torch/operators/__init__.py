"""The table of ATen operators, one file a group; importing this package fills it."""

from tilewright.compiler.frontends.torch.operators import (  # noqa: F401
    activations,
    attention,
    contractions,
    convolution,
    creation,
    embedding_bags,
    indexing,
    linear_algebra,
    normalization,
    pointwise,
    pooling,
    quantization,
    recurrent,
    reductions,
    resampling,
    scans,
    sorting,
    special,
    strided,
    views,
)
