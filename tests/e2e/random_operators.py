"""The operators of random programs: each applies to the latest value, with new inputs where it needs more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import MappingProxyType

from e2e.random_programs import Draft, Input, Operator, Operators, RefusedError, Value
from e2e.raw_operators import RAW, SCALAR

from tilewright.compiler import ops
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def chain_extent(d: Draft, dims: list[Expr] | tuple[Expr, ...]) -> int:
    """The largest product of extents."""
    size = Expr.of(1)
    for e in dims:
        size = size * e
    return max(1, d.most(size))


def _unary(build: Callable[[ops.Tensor], ops.Tensor], bound: Callable[[float], float], most: float = 1e30) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.is_float and x.top <= most)
        return x.like(build(x.tensor), bound(x.top), False)

    return apply


def _of_positive(build: Callable[[ops.Tensor], ops.Tensor], bound: Callable[[float], float]) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.is_float)
        return x.like(build(ops.absolute(x.tensor) + 0.5), bound(x.top + 0.5), False)

    return apply


def _other(d: Draft, x: Value, fill: str = "normal") -> Value:
    """A second operand: an earlier value of equal extents, or an input that broadcasts."""
    same = [v for v in d.values[:-1] if v.dims == x.dims and v.dtype is x.dtype]
    if same and fill == "normal" and d.rng.random() < 0.3:
        return d.rng.choice(same)
    dims = [e if d.rng.random() < 0.75 else Expr.of(1) for e in x.dims]
    return d.input(dims[d.rng.randint(0, len(dims)):] if d.rng.random() < 0.5 else dims, x.dtype, fill)


def _binary(build: Callable[..., ops.Tensor], bound: Callable[[float, float], float], fill: str = "normal",
            keeps: bool = False, of_bits: bool = False) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.dtype is not DType.I1 or of_bits)
        if fill == "normal" and x.dtype is not DType.I1 and d.rng.random() < 0.2:
            return x.like(build(x.tensor, 3), bound(x.top, 3), keeps and x.exact)
        y = _other(d, x, fill)
        a, b = (x, y) if fill == "positive" or d.rng.random() < 0.6 else (y, x)
        return x.like(build(a.tensor, b.tensor), bound(x.top, y.top), keeps and x.exact and y.exact)

    return apply


def compare(d: Draft, x: Value) -> Value:
    """An i1 tensor, or the chosen one of two operands."""
    y = _other(d, x)
    d.need(x.exact and y.exact)
    flags = ops.compare(x.tensor, y.tensor, d.rng.choice(("eq", "ne", "lt", "le", "gt", "ge")))
    if d.rng.random() < 0.3:
        return x.like(flags, 1.0, True)
    z = d.input(x.dims, x.dtype)
    return x.like(ops.where(flags, x.tensor, z.tensor), max(x.top, z.top), True)


def cast(d: Draft, x: Value) -> Value:
    """To another element type. Rounded values become no integers, large ones no small integers."""
    to = DType(d.rng.choice([t for t in ("i1", "i8", "i32", "i64", "f16", "bf16", "f32", "f64") if t != x.dtype.value]))
    if x.is_float and not to.is_float:
        d.need(x.exact and x.top < 100)
    if to.is_float and not x.is_float:
        d.need(x.top < 1e4)
    narrows = to.is_float and to.bytes < x.dtype.bytes
    return x.like(ops.cast(x.tensor, to), 1.0 if to is DType.I1 else x.top, x.exact and not narrows and x.is_float)


def _axes(d: Draft, x: Value) -> list[int]:
    return sorted(d.rng.sample(range(x.rank), d.rng.randint(1, x.rank)))


def _reduction(build: Callable[..., ops.Tensor], kind: str) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.rank > 0 and (x.dtype is not DType.I1 or kind == "extreme") and (x.is_float or kind != "mean"))
        axes = _axes(d, x)
        count = chain_extent(d, [x.dims[a] for a in axes])
        if kind == "prod" and x.is_float:
            factor = d.input(x.dims, x.dtype, "positive")
            d.need(count <= (12 if x.dtype is DType.F16 else 30))
            return x.like(build(factor.tensor, axes, d.rng.random() < 0.5), 2.0**count, False)
        if kind != "sum":
            d.need(kind == "prod" or all(d.least(x.dims[a]) > 0 for a in axes))
        top = x.top * count if kind in ("sum", "prod") else x.top
        tensor = build(x.tensor, axes if len(axes) < x.rank else None, d.rng.random() < 0.5)
        return x.like(tensor, 1e30 if kind == "prod" else top, kind == "extreme" and x.exact)

    return apply


def softmax(d: Draft, x: Value) -> Value:
    d.need(x.is_float and x.top <= 200)
    axis = d.axis(x)
    return x.like(ops.softmax(x.tensor, axis), 1.0, False)


def _norm(build: Callable[..., ops.Tensor]) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.rank > 0 and x.is_float and x.top < 100)
        gamma = d.input(x.dims[-1:], x.dtype)
        wants_beta = build is ops.layernorm and d.rng.random() < 0.7
        beta = [d.input(x.dims[-1:], x.dtype).tensor] if wants_beta else []
        top = 3 * chain_extent(d, x.dims[-1:]) + 3
        fresh = x if build is ops.rmsnorm else _plus(d, x)
        return x.like(build(fresh.tensor, gamma.tensor, *beta), top, False)

    return apply


def _plus(d: Draft, x: Value) -> Value:
    """x plus an input of its shape: rows that are constant would be all cancellation."""
    noise = d.input(x.dims, x.dtype)
    return x.like(x.tensor + noise.tensor, x.top + 3, False)


def _product(d: Draft, x: Value, y: Value, tensor: ops.Tensor, k: Expr) -> Value:
    return x.like(tensor, x.top * y.top * chain_extent(d, [k]), False)


def matmul(d: Draft, x: Value) -> Value:
    """All transposes; batch axes on both sides, on one, or none; x on either side."""
    d.need(x.rank >= 2 and x.dtype is not DType.I1)
    ta, tb = d.rng.random() < 0.3, d.rng.random() < 0.3
    n, batch = d.extent(), list(x.dims[:-2]) if d.rng.random() < 0.5 else []
    if d.rng.random() < 0.7:
        k = x.dims[-2] if ta else x.dims[-1]
        y = d.input([*batch, n, k] if tb else [*batch, k, n], x.dtype, "weight")
        return _product(d, x, y, ops.matmul(x.tensor, y.tensor, ta, tb), k)
    k = x.dims[-1] if tb else x.dims[-2]
    y = d.input([*batch, k, n] if ta else [*batch, n, k], x.dtype, "weight")
    return _product(d, x, y, ops.matmul(y.tensor, x.tensor, ta, tb), k)


def batch_matmul(d: Draft, x: Value) -> Value:
    d.need(x.rank >= 3 and x.dtype is not DType.I1)
    k, n = x.dims[-1], d.extent()
    y = d.input([*x.dims[:-2], k, n], x.dtype, "weight")
    return _product(d, x, y, ops.batch_matmul(x.tensor, y.tensor), k)


def dense(d: Draft, x: Value) -> Value:
    d.need(x.rank >= 2 and x.dtype is not DType.I1)
    k, n = x.dims[-1], d.extent()
    w = d.input([k, n], x.dtype, "weight")
    bias = d.input([n], x.dtype).tensor if d.rng.random() < 0.7 else None
    activation = d.rng.choice((None, "relu", "gelu", "silu", "tanh") if x.is_float else (None, "relu"))
    y = _product(d, x, w, ops.dense(x.tensor, w.tensor, bias, activation), k)
    return y.like(y.tensor, y.top + 9)


def _padding(d: Draft, spatial: int, most: int) -> int | list[int | tuple[int, int]]:
    if d.rng.random() < 0.5:
        return d.rng.randint(0, most)
    return [(d.rng.randint(0, most), d.rng.randint(0, most)) for _ in range(spatial)]


def _convolution(build: Callable[..., ops.Tensor], spatial: int) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(x.rank == spatial + 2 and x.dtype is not DType.I1)
        letters = "hw"[2 - spatial:]
        first = d.rng.random() < 0.5
        channels = x.dims[1 if first else -1]
        d.need(channels.constant is not None)
        c = channels.constant or 0
        groups = d.rng.choice([g for g in (1, 1, 1, 2, 3, 4, c) if g and c % g == 0])
        filters = c if groups == c and d.rng.random() < 0.5 else groups * d.rng.randint(1, 4)
        kernel = [d.rng.randint(1, 3) for _ in range(spatial)]
        shape = [filters, c // groups, *kernel] if first else [*kernel, c // groups, filters]
        w = d.input([Expr.of(s) for s in shape], x.dtype, "weight")
        bias = d.input([Expr.of(filters)], x.dtype).tensor if d.rng.random() < 0.5 else None
        tensor = build(x.tensor, w.tensor, bias, stride=d.rng.randint(1, 3), padding=_padding(d, spatial, 2),
                       dilation=d.rng.randint(1, 2), groups=groups, layout=f"nc{letters}" if first else f"n{letters}c")
        places = tensor.dims[2:] if first else tensor.dims[1:-1]
        d.need(all(d.least(e) >= 1 for e in places))
        return x.like(tensor, x.top * 27 * 33 + 9, False)

    return apply


def pooling(d: Draft, x: Value) -> Value:
    d.need(x.rank == 4 and x.is_float)
    kernel, stride, padding = d.rng.choice((1, 2, 3, (3, 2))), d.rng.choice((None, 1, 2)), _padding(d, 2, 1)
    layout = d.rng.choice(("nchw", "nhwc"))
    if d.rng.random() < 0.5:
        tensor = ops.max_pool2d(x.tensor, kernel, stride, padding, d.rng.randint(1, 2), layout)
        d.need(kernel != 1 or padding == 0)  # a window of padding alone is -inf
    else:
        counts = d.rng.random() < 0.5
        d.need(counts or kernel != 1 or padding == 0)
        tensor = ops.avg_pool2d(x.tensor, kernel, stride, padding, counts, layout)
    places = tensor.dims[2:] if layout == "nchw" else tensor.dims[1:-1]
    d.need(all(d.least(e) >= 1 for e in places))
    return x.like(tensor, exact=False)


def transpose(d: Draft, x: Value) -> Value:
    d.need(x.rank >= 2)
    return x.like(ops.transpose(x.tensor, d.rng.sample(range(x.rank), x.rank)))


def reshape(d: Draft, x: Value) -> Value:
    """Two adjacent axes merged, or a static one split."""
    if x.rank >= 2 and d.rng.random() < 0.6:
        at = d.rng.randrange(x.rank - 1)
        return x.like(ops.reshape(x.tensor, [*x.dims[:at], x.dims[at] * x.dims[at + 1], *x.dims[at + 2:]]))
    at = d.axis(x)
    size = x.dims[at].constant or 0
    d.need(size > 0 and x.rank < 5)
    factor = d.rng.choice([f for f in range(1, size + 1) if size % f == 0])
    return x.like(ops.reshape(x.tensor, [*x.dims[:at], factor, size // factor, *x.dims[at + 1:]]))


def slice_(d: Draft, x: Value) -> Value:
    """Fixed ends, ends counted from the back, a scalar argument as end, steps."""
    d.need(x.rank > 0)
    begin: list[Expr | int | None] = [None] * x.rank
    end: list[Expr | int | None] = [None] * x.rank
    step = [1] * x.rank
    for a in _axes(d, x):
        room = d.least(x.dims[a])
        d.need(room > 0)
        begin[a] = d.rng.randint(0, room - 1) or None
        left = room - (begin[a] or 0)  # type: ignore[operator]
        how = d.rng.choice(("full", "fixed", "back", "dim"))
        if how == "fixed":
            end[a] = room - d.rng.randint(0, left)
        elif how == "back" and left > 1:
            end[a] = -d.rng.randint(1, left)
        elif how == "dim":
            end[a] = d.scalar_dim(left) + (begin[a] or 0)
        step[a] = d.rng.choice((1, 1, 1, 2, 3))
    return x.like(ops.slice(x.tensor, begin, end, step))


def pad(d: Draft, x: Value) -> Value:
    d.need(x.rank > 0)
    low, high = ([d.rng.choice((0, 0, 1, 3)) for _ in x.dims] for _ in range(2))
    value = 0 if x.dtype is DType.I1 else d.rng.choice((0, 1, -2))
    return x.like(ops.pad(x.tensor, low, high, value), max(x.top, 2))


def concat(d: Draft, x: Value) -> Value:
    at = d.axis(x)
    parts = [x]
    for _ in range(d.rng.randint(1, 2)):
        parts.append(x if d.rng.random() < 0.2 else d.input([*x.dims[:at], d.extent(), *x.dims[at + 1:]], x.dtype))
    d.rng.shuffle(parts)
    return x.like(ops.concat([p.tensor for p in parts], at), max(p.top for p in parts))


def gather(d: Draft, x: Value) -> Value:
    at = d.axis(x)
    d.need(d.least(x.dims[at]) > 0)
    dims = [d.extent() for _ in range(d.rng.randint(0, 2))]
    d.need(x.rank - 1 + len(dims) <= 5)
    indices = d.input(dims, d.rng.choice((DType.I32, DType.I64)), "index", x.dims[at])
    return x.like(ops.gather(x.tensor, indices.tensor, at))


def broadcast_to(d: Draft, x: Value) -> Value:
    dims = [d.extent() if e == Expr.of(1) else e for e in x.dims]
    lead = [d.extent() for _ in range(d.rng.randint(0 if dims != list(x.dims) else 1, 2))]
    d.need(len(lead) + len(dims) <= 5)
    return x.like(ops.broadcast_to(x.tensor, [*lead, *dims]))


def attention(d: Draft, x: Value) -> Value:
    d.need(x.rank == 4 and x.is_float and x.top <= 30)
    batch, heads, _, width = x.dims
    length, value = d.extent(), d.extent()
    d.need(d.least(length) > 0)
    causal = d.rng.random() < 0.4
    if causal:
        length = x.dims[2]
        d.need(d.least(length) > 0)
    k = d.input([batch, heads, length, width], x.dtype, "weight")
    v = d.input([batch, heads, length, value], x.dtype)
    return x.like(ops.attention(x.tensor, k.tensor, v.tensor, causal, 0.1), v.top, False)


def encoder(d: Draft, x: Value) -> Value:
    d.need(x.rank == 3 and x.is_float and x.top <= 30 and x.dims[2].constant is not None and d.least(x.dims[1]) > 0)
    width = x.dims[2].constant or 0
    heads = d.rng.choice([h for h in (1, 2, 3, 4) if width % h == 0])
    before = len(d.graph._names)
    weights = ops.EncoderWeights.inputs(d.graph, width, d.rng.choice((4, 9, 16)), f"e{before}", x.dtype)
    d.inputs += [Input("weight", x.dtype, t.dims) for t in (getattr(weights, f.name) for f in fields(weights))]
    fresh = _plus(d, x)
    tensor = ops.transformer_encoder_layer(fresh.tensor, weights, heads, d.rng.random() < 0.3,
                                           d.rng.choice(("gelu", "relu", "silu")), d.rng.random() < 0.5)
    return x.like(tensor, 400.0, False)


def _times_half(x: ops.Tensor) -> ops.Tensor:
    return x * 0.5


OPERATORS: Operators = MappingProxyType({
    "pointwise": {
        "exp": _unary(ops.exp, lambda t: 2.72**min(t, 700), 9),
        "tanh": _unary(ops.tanh, lambda t: 1.0),
        "erf": _unary(ops.erf, lambda t: 1.0),
        "sigmoid": _unary(ops.sigmoid, lambda t: 1.0, 80),
        "silu": _unary(ops.silu, lambda t: t, 80),
        "gelu": _unary(ops.gelu, lambda t: t),
        "negate": lambda d, x: x.like(-x.tensor) if x.dtype is not DType.I1 else _refuse(),
        "relu": lambda d, x: x.like(ops.relu(x.tensor)),
        "absolute": lambda d, x: x.like(ops.absolute(x.tensor)) if x.dtype is not DType.I1 else _refuse(),
        "log": _of_positive(ops.log, lambda t: 2.0 + t),
        "sqrt": _of_positive(ops.sqrt, lambda t: t + 1),
        "rsqrt": _of_positive(ops.rsqrt, lambda t: 2.0),
        "halve": _unary(_times_half, lambda t: t / 2),
        "add": _binary(ops.add, lambda a, b: a + b),
        "subtract": _binary(ops.subtract, lambda a, b: a + b),
        "multiply": _binary(ops.multiply, lambda a, b: a * b),
        "divide": _binary(ops.divide, lambda a, b: 2 * a, "positive"),
        "maximum": _binary(ops.maximum, max, keeps=True, of_bits=True),
        "minimum": _binary(ops.minimum, max, keeps=True, of_bits=True),
        "compare": compare,
        "cast": cast,
    },
    "rows": {
        "sum": _reduction(ops.sum, "sum"),
        "mean": _reduction(ops.mean, "mean"),
        "prod": _reduction(ops.prod, "prod"),
        "max": _reduction(ops.max, "extreme"),
        "min": _reduction(ops.min, "extreme"),
        "softmax": softmax,
        "layernorm": _norm(ops.layernorm),
        "rmsnorm": _norm(ops.rmsnorm),
    },
    "products": {
        "matmul": matmul,
        "batch_matmul": batch_matmul,
        "dense": dense,
        "attention": attention,
        "encoder": encoder,
    },
    "windows": {
        "conv1d": _convolution(ops.conv1d, 1),
        "conv2d": _convolution(ops.conv2d, 2),
        "pooling": pooling,
    },
    "moves": {
        "transpose": transpose,
        "reshape": reshape,
        "slice": slice_,
        "pad": pad,
        "concat": concat,
        "gather": gather,
        "broadcast_to": broadcast_to,
    },
    "raw": RAW,
    "scalar": SCALAR,
})


def _refuse() -> Value:
    raise RefusedError
