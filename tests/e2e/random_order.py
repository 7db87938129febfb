"""Operators of random programs along an axis and by index: scans, scatters, sorts, gathers of elements, moved elements;
and attention under masks."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from e2e.random_operators import OPERATORS
from e2e.random_programs import Draft, Operator, Operators, Value

from tilewright.compiler import ops
from tilewright.runtime.tensor import DType


def _scan(build: Callable[..., ops.Tensor], adds: bool) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.dtype is not DType.I1)
        axis = d.axis(x)
        if adds:
            count = max(1, d.most(x.dims[axis]))
            tensor = build(x.tensor, axis, exclusive=d.rng.random() < 0.3, reverse=d.rng.random() < 0.3)
            return x.like(tensor, x.top * count, False)
        made = build(x.tensor, axis)
        return x.like(made[0] if isinstance(made, tuple) else made)

    return apply


def scatter(d: Draft, x: Value) -> Value:
    """Updates at random places of an axis; several at one place where they are combined."""
    axis = d.axis(x)
    d.need(d.least(x.dims[axis]) > 0 and x.dtype is not DType.I1)
    reduce = d.rng.choice(("add", "max", "min"))
    indices = d.input(x.dims, d.rng.choice((DType.I32, DType.I64)), "index", x.dims[axis])
    updates = d.input(x.dims, x.dtype)
    made = ops.scatter(x.tensor, indices.tensor, updates.tensor, axis, reduce=reduce)
    count = max(1, d.most(x.dims[axis]))
    return x.like(made, x.top + 9.0 * count, x.exact and reduce != "add")


def gather_elements(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    d.need(d.least(x.dims[axis]) > 0)
    indices = d.input(x.dims, d.rng.choice((DType.I32, DType.I64)), "index", x.dims[axis])
    return x.like(ops.gather_elements(x.tensor, indices.tensor, axis))


def sort(d: Draft, x: Value) -> Value:
    """The values: places of equal rounded elements are not comparable."""
    d.need(x.dtype is not DType.I1)
    return x.like(ops.sort(x.tensor, d.axis(x), d.rng.random() < 0.5)[0])


def flip(d: Draft, x: Value) -> Value:
    return x.like(ops.flip(x.tensor, d.axis(x)))


def roll(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    d.need(d.least(x.dims[axis]) > 0)
    return x.like(ops.roll(x.tensor, d.rng.randint(-3, 3), axis))


def masked_attention(d: Draft, x: Value) -> Value:
    """With a mask of bits, where a query may see no key, or one of numbers that are added to the scores."""
    d.need(x.rank == 4 and x.is_float and x.top <= 30)
    batch, heads, queries, width = x.dims
    keys = d.extent()
    d.need(d.least(keys) > 0)
    k, v = d.input([batch, heads, keys, width], x.dtype, "weight"), d.input([batch, heads, keys, d.extent()], x.dtype)
    of_bits = d.rng.random() < 0.5
    mask = d.input([queries, keys], DType.I1 if of_bits else x.dtype)
    return x.like(ops.attention(x.tensor, k.tensor, v.tensor, d.rng.random() < 0.3 and "top-left", 0.1, mask.tensor, safe=True),
                  v.top, False)


def log_softmax(d: Draft, x: Value) -> Value:
    d.need(x.is_float and x.top <= 200)
    axis = d.axis(x)
    d.need(d.least(x.dims[axis]) > 0)
    return x.like(ops.log_softmax(x.tensor, axis), 2 * x.top + 9, False)


ORDER: MappingProxyType[str, Operator] = MappingProxyType({
    "cumsum": _scan(ops.cumsum, adds=True),
    "cummax": _scan(ops.cummax, adds=False),
    "cummin": _scan(ops.cummin, adds=False),
    "scatter": scatter,
    "gather_elements": gather_elements,
    "sort": sort,
    "flip": flip,
    "roll": roll,
    "log_softmax": log_softmax,
    "masked_attention": masked_attention,
})
ALL: Operators = MappingProxyType({**OPERATORS, "order": ORDER})
"""Every operator of random programs. `OPERATORS` is kept apart so that a seed goes on to mean the same program."""
UNSIGNED: Operators = MappingProxyType({name: group for name, group in ALL.items() if name not in ("raw", "scalar")})
"""Those that unsigned integers may go through: the others are text of MLIR, whose arithmetic there is signed."""
