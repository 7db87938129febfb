"""Elements at places that a tensor of integers names."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.graph import Tensor, axis_of
from tilewright.runtime.errors import DTypeError


def gather(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """x's slices at `indices` (an integer tensor of any rank, values in [0, extent)) along `axis`, as numpy.take."""
    if indices.dtype.is_float or indices.dtype.value == "i1":
        raise DTypeError(f"gather: wanted integer indices, came {indices.dtype.value}")
    at = axis_of("gather", x, axis)
    dims = (*x.dims[:at], *indices.dims, *x.dims[at + 1:])
    inner = range(at, at + indices.rank)

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        loops = [d for d in range(len(dims)) if d not in inner]
        found = [region.index(d).ssa for d in loops]
        place = [*found[:at], scalars[0].cast("index").ssa, *found[at:]]
        return region.emit(f"tensor.extract {x.ssa}[{', '.join(place)}] : {x.type}", x.dtype.value)

    graph = x.graph
    into = (graph.empty(x.dtype, dims), [f"d{d}" for d in range(len(dims))])
    return graph.generic([(indices, [f"d{d}" for d in inner])], into, ["parallel"] * len(dims), body)
