"""The table of ONNX operators: importing this folder fills it."""

from tilewright.compiler.frontends.onnx.operators import (
    contractions,
    convolutions,
    elementwise,
    indexing,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    resize,
    shapes,
    spectral,
    training,
    transformer,
)

__all__ = [
    "contractions",
    "convolutions",
    "elementwise",
    "indexing",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reductions",
    "resize",
    "shapes",
    "spectral",
    "training",
    "transformer",
]
