"""Weights out of a pool of short vectors: a byte names the vector that several values along the sum are."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Tensor, shown, want_float, want_rank
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MOST_ENTRIES = 256  # that a byte tells apart


def decode_pool(index: Tensor | Sequence[Tensor], pool: Tensor | Sequence[Tensor], scale: Tensor | float = 1.0) -> Tensor:
    """The weight [N, ..., C] whose element [n, ..., c] is pool[index[n, ..., c // V], c % V] * scale[n], V values a vector.

    Bound at compile time and multiplied, as in `dense(x, decode_pool(...), transposed=True)` or as the filters of a convolution,
    the weight stays indices: they are what is stored. On the host a kernel multiplies each group of V values of a row by all
    vectors of the pool once, and then adds up what the indices name. Several indices and pools are books whose vectors are added,
    as of AQLM. One pool tensor may serve many weights.

    Args:
        index: ui8 [N, ..., C / V], the last axis along what is summed. pool: f32, f16 or si8 [entries, V], 1 to 256 entries.
        scale: [N], f32 or a narrower float, one an output; or one number for all.
    Raises:
        ShapeError, DTypeError: an operand does not fit. OptionError: books of different number, or a constant index beyond
            the pool.
    """
    indices, pools = ([t] if isinstance(t, Tensor) else list(t) for t in (index, pool))
    if len(indices) != len(pools) or not indices:
        raise OptionError(f"decode_pool: {len(indices)} tensors of indices and {len(pools)} pools; wanted as many of each")
    for t in pools:
        want_rank("decode_pool", "the pool", t, 2)
        if t.dtype not in (DType.F32, DType.F16, DType.BF16, DType.I8):
            raise DTypeError(f"decode_pool: a pool of {t.dtype.value}; wanted f32, f16, bf16 or si8")
    entries, vector = (d.constant for d in pools[0].dims)
    if entries is None or vector is None or not 1 <= entries <= MOST_ENTRIES or vector < 1:
        raise ShapeError(f"decode_pool: a pool {shown(pools[0].dims)}; wanted [entries, values], static, 1 to {MOST_ENTRIES} "
                         "entries, which a byte tells apart")
    for t in pools:
        if t.dims != pools[0].dims or t.dtype is not pools[0].dtype:
            raise ShapeError(f"decode_pool: pools {shown(t.dims)} and {shown(pools[0].dims)}; wanted books of one shape and type")
    for t in indices:
        _check_index(t, indices[0], entries)
    if isinstance(scale, Tensor):
        want_float("decode_pool", scale)
        if scale.rank != 1 or scale.dims[0] != indices[0].dims[0]:
            raise ShapeError(f"decode_pool: a scale {shown(scale.dims)}; wanted [{indices[0].dims[0]}], one an output")
    rank = indices[0].rank
    loops = [f"d{i}" for i in range(rank)]

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        place = region.index(rank - 1).remainder(vector)
        total: Scalar | None = None
        for named, values in zip(scalars, pools, strict=False):
            found = element(region, values, [named.cast("index"), place]).cast("f32")
            total = found if total is None else total + found
        assert total is not None
        if isinstance(scale, Tensor):
            return total * scalars[-1].cast("f32")
        return total if scale == 1.0 else total * float(scale)

    inputs = [(t, [*loops[:-1], f"{loops[-1]} floordiv {vector}"]) for t in indices]
    if isinstance(scale, Tensor):
        inputs.append((scale, ["d0"]))
    graph = indices[0].graph
    result = graph.empty(DType.F32, [*indices[0].dims[:-1], indices[0].dims[-1] * Expr.of(vector)])
    return graph.generic(inputs, (result, loops), ["parallel"] * rank, body)


def _check_index(index: Tensor, first: Tensor, entries: int) -> None:
    if index.dtype is not DType.U8:
        raise DTypeError(f"decode_pool: indices of {index.dtype.value}; wanted ui8")
    if index.rank < 2 or index.dims != first.dims:
        raise ShapeError(f"decode_pool: indices {shown(index.dims)}; wanted [N, ..., C / V], the same for every book")
    known = index.graph.value_of(index)
    if known is not None and known.size and int(known.max()) >= entries:
        raise OptionError(f"decode_pool: index {int(known.max())} of a pool of {entries} entries; wanted 0 to {entries - 1}")
