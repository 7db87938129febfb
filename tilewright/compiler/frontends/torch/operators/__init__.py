"""The table of ATen operators, one file a group; importing this package fills it."""

from tilewright.compiler.frontends.torch.operators import (  # noqa: F401
    activations,
    attention,
    contractions,
    creation,
    normalization,
    pointwise,
    reductions,
    special,
    views,
)
