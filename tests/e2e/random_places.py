"""Operators of random programs that find, move and add what lies at places: the first of rows and single ranks, samples of
images, windows put back, rows that go on at their other end, windows of each channel, long joins, and transposed operands."""

from __future__ import annotations

from types import MappingProxyType

from e2e.random_order import ALL
from e2e.random_programs import Draft, Operator, Operators, Value

from tilewright.compiler import ops
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_TAPS = (1, 2, 3, 5, 7, 9)


def topk(d: Draft, x: Value) -> Value:
    """The values, or the places of exact ones, of which each is the first."""
    axis = d.axis(x)
    room = d.least(x.dims[axis])
    d.need(room > 0 and x.dtype is not DType.I1)
    values, places = ops.topk(x.tensor, d.rng.randint(1, min(room, 12)), axis, d.rng.random() < 0.5)
    if x.exact and d.rng.random() < 0.3:
        return x.like(places, 1e5, True)
    return x.like(values)


def kthvalue(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    room = d.least(x.dims[axis])
    d.need(room > 0 and x.dtype is not DType.I1)
    return x.like(ops.kthvalue(x.tensor, d.rng.randint(1, room), axis)[0])


def grid_sample(d: Draft, x: Value) -> Value:
    """Without nearest, which jumps."""
    d.need(x.rank == 4 and x.is_float and x.dtype in (DType.F32, DType.F64) and all(d.least(e) > 0 for e in x.dims[2:]))
    grid = d.input([x.dims[0], d.extent(), d.extent(), Expr.of(2)], x.dtype)
    made = ops.grid_sample(x.tensor, grid.tensor, d.rng.choice(("bilinear", "bicubic")), d.rng.choice(("zeros", "border")),
                           d.rng.random() < 0.5)
    return x.like(made, 4 * x.top, False)


def fold(d: Draft, x: Value) -> Value:
    """An image with one axis of unknown extent where x has one of windows."""
    d.need(x.rank == 3 and x.dtype is not DType.I1 and x.dims[1].constant is not None and x.dims[2].constant is not None)
    kernel = d.rng.choice([k for k in (1, 2, 3, 4, 5) if not (x.dims[1].constant or 1) % (k * k)])
    stride, windows = d.rng.randint(1, 3), x.dims[2].constant or 0
    down = d.rng.choice([n for n in range(1, windows + 1) if not windows % n] or [1])
    padding = d.rng.randint(0, kernel // 2)
    sizes = [(n - 1) * stride + kernel - 2 * padding for n in (down, windows // down)]
    d.need(windows > 0 and all(size > 0 for size in sizes))
    return x.like(ops.fold(x.tensor, sizes, kernel, stride=stride, padding=padding), x.top * kernel**2, False)


def wrap(d: Draft, x: Value) -> Value:
    """Padding from the other end, mirrored, or with the last element."""
    d.need(x.rank > 0)
    mode = d.rng.choice(("circular", "circular", "reflect", "replicate"))
    room = [min(4, d.least(e) - (mode == "reflect")) for e in x.dims]
    d.need(all(r >= 0 for r in room) and any(room))
    low, high = ([d.rng.choice((0, d.rng.randint(0, r))) for r in room] for _ in range(2))
    return x.like(ops.pad(x.tensor, low, high, mode=mode))


def logcumsumexp(d: Draft, x: Value) -> Value:
    d.need(x.is_float and x.top <= 200)
    return x.like(ops.logcumsumexp(x.tensor, d.axis(x)), x.top + 9, False)


def depthwise(d: Draft, x: Value) -> Value:
    """Windows of each channel of an image, of many taps, too."""
    d.need(x.rank == 4 and x.dtype is not DType.I1)
    first = d.rng.random() < 0.6
    channels = x.dims[1 if first else -1].constant or 0
    d.need(channels > 0)
    kernel = [d.rng.choice(_TAPS) for _ in range(2)]
    times = d.rng.choice((1, 1, 2))
    shape = [channels * times, 1, *kernel] if first else [*kernel, 1, channels * times]
    w = d.input([Expr.of(s) for s in shape], x.dtype, "weight")
    padding = [(k // 2, d.rng.randint(0, k)) for k in kernel]
    tensor = ops.conv2d(x.tensor, w.tensor, stride=d.rng.choice((1, 1, 2, 3)), padding=padding,
                        dilation=d.rng.choice((1, 1, 2)), groups=channels, layout="nchw" if first else "nhwc")
    d.need(all(d.least(e) >= 1 for e in (tensor.dims[2:] if first else tensor.dims[1:-1])))
    return x.like(tensor, x.top * 81 + 9, False)


def join(d: Draft, x: Value) -> Value:
    """Tensors of one shape joined along a new axis, which may be the last."""
    d.need(x.rank < 4)
    parts = [x, *(d.input(x.dims, x.dtype) for _ in range(d.rng.randint(1, 3)))]
    d.rng.shuffle(parts)
    return x.like(ops.stack([p.tensor for p in parts], d.rng.randint(0, x.rank)), max(p.top for p in parts))


def add_transposed(d: Draft, x: Value) -> Value:
    d.need(x.rank >= 2 and x.dtype is not DType.I1)
    order = d.rng.sample(range(x.rank), x.rank)
    dims: list[Expr] = [Expr.of(1)] * x.rank
    for axis, at in enumerate(order):
        dims[at] = x.dims[axis]
    y = d.input(dims, x.dtype)
    return x.like(x.tensor + ops.transpose(y.tensor, order), x.top + y.top)


def logsumexp(d: Draft, x: Value) -> Value:
    axis = d.axis(x)
    d.need(x.is_float and x.top <= 200 and d.least(x.dims[axis]) > 0)
    return x.like(ops.logsumexp(x.tensor, [axis]), x.top + 9, False)


PLACES: MappingProxyType[str, Operator] = MappingProxyType({
    f.__name__: f for f in (topk, kthvalue, grid_sample, fold, wrap, logcumsumexp, logsumexp, depthwise, join, add_transposed)})
EVERY: Operators = MappingProxyType({**ALL, "places": PLACES})
