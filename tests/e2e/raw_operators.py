"""Operators of random programs that tilewright.compiler.ops does not build: raw linalg and tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from e2e.random_programs import Draft, Operator, Value

from tilewright.compiler import ops
from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.emitter import tensor_type
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def _loops(x: Value) -> list[str]:
    return [f"d{i}" for i in range(x.rank)]


def _sized(d: Draft, dims: Sequence[Expr]) -> list[Expr]:
    d.check(dims)
    return list(dims)


def transposed_result(d: Draft, x: Value) -> Value:
    """x * x read in order, written through a permuted output map."""
    d.need(x.rank >= 2 and x.dtype is not DType.I1)
    order = d.rng.sample(range(x.rank), x.rank)
    into = d.graph.empty(x.dtype, [x.dims[a] for a in order])
    made = d.graph.generic([(x.tensor, _loops(x))], (into, [f"d{a}" for a in order]), ["parallel"] * x.rank,
                           lambda _, v, __: v[0] * v[0])
    return x.like(made, x.top**2, False)


def window(d: Draft, x: Value) -> Value:
    """Sliding extremum or sum over the last axis with a stride and a dilation: no named operation."""
    d.need(x.rank >= 1 and x.is_float)
    size, stride, dilation = d.rng.randint(1, 4), d.rng.randint(1, 3), d.rng.randint(1, 2)
    reach = x.dims[-1] - (dilation * (size - 1) + 1)
    d.need(d.least(reach) >= 0)
    dims = [*x.dims[:-1], reach // stride + 1]
    adds = d.rng.random() < 0.5
    shape = d.graph.empty(x.dtype, [Expr.of(size)])
    out = d.graph.filled(0 if adds else -float("inf"), x.dtype, dims)
    loops, k = _loops(x), f"d{x.rank}"
    places = [*loops[:-1], f"{loops[-1]} * {stride} + {k} * {dilation}"]

    def body(_: Body, v: Sequence[Scalar], total: Scalar) -> Scalar:
        value = v[0].cast(total.kind)
        return total + value if adds else total.maximum(value)

    made = d.graph.generic([(x.tensor, places), (shape, [k])], (out, loops), ["parallel"] * x.rank + ["reduction"], body)
    return x.like(made, x.top * (size if adds else 1), not adds and x.exact)


def diagonal(d: Draft, x: Value) -> Value:
    """x on the diagonal, or in a column, of a matrix of ones."""
    d.need(x.rank == 1)
    column = d.rng.random() < 0.5
    dims = _sized(d, [x.dims[0], Expr.of(3) if column else x.dims[0]])
    out = d.graph.filled(1, x.dtype, dims)
    place = ["d0", "2" if column else "d0"]
    made = d.graph.generic([(x.tensor, ["d0"])], (out, place), ["parallel"], lambda _, v, __: v[0])
    return x.like(made, max(x.top, 1))


def overlap_add(d: Draft, x: Value) -> Value:
    """out[i + j] += x[i, j]: an output map that is no permutation."""
    d.need(x.rank == 2 and x.dtype in (DType.F32, DType.F64, DType.I32, DType.I64))
    length = x.dims[0] + x.dims[1] - 1
    d.need(d.least(x.dims[0]) > 0 and d.least(x.dims[1]) > 0)
    out = d.graph.filled(0, x.dtype, [length])
    made = d.graph.generic([(x.tensor, ["d0", "d1"])], (out, ["d0 + d1"]), ["reduction"] * 2, lambda _, v, o: o + v[0])
    return x.like(made, x.top * max(d.most(x.dims[0]), 1), False)


def reverse(d: Draft, x: Value) -> Value:
    """x[n - 1 - i] by tensor.extract in the region."""
    at = d.axis(x)
    last = x.dims[at] - 1
    graph = d.graph
    held = graph.emitter.index(last)

    def body(region: Body, _: Sequence[Scalar], __: Scalar) -> Scalar:
        places = [region.index(a) for a in range(x.rank)]
        places[at] = Scalar(region, held, "index") - places[at]
        shown = ", ".join(p.ssa for p in places)
        return region.emit(f"tensor.extract {x.tensor.ssa}[{shown}] : {x.tensor.type}", x.dtype.value)

    return x.like(graph.generic([], (graph.empty(x.dtype, x.dims), _loops(x)), ["parallel"] * x.rank, body))


def add_index(d: Draft, x: Value) -> Value:
    """x plus the index along one axis."""
    at = d.axis(x)
    d.need(x.dtype not in (DType.I1, DType.BF16, DType.F16))

    def body(region: Body, v: Sequence[Scalar], _: Scalar) -> Scalar:
        return v[0] + region.index(at).cast(v[0].kind)

    into = d.graph.empty(x.dtype, x.dims)
    made = d.graph.generic([(x.tensor, _loops(x))], (into, _loops(x)), ["parallel"] * x.rank, body)
    return x.like(made, x.top + max(d.most(x.dims[at]), 0), False)


def triangle(d: Draft, x: Value) -> Value:
    """Zero above a diagonal."""
    d.need(x.rank >= 2)
    shift = d.rng.randint(-1, 2)

    def body(region: Body, v: Sequence[Scalar], _: Scalar) -> Scalar:
        keep = region.index(x.rank - 1).compare("le", region.index(x.rank - 2) + shift)
        return region.select(keep, v[0], 0)

    into = d.graph.empty(x.dtype, x.dims)
    return x.like(d.graph.generic([(x.tensor, _loops(x))], (into, _loops(x)), ["parallel"] * x.rank, body))


def argmax(d: Draft, x: Value) -> Value:
    """Largest element and its place along the last axis, in one reduction with two results; the place is kept."""
    d.need(x.rank >= 1 and x.exact and x.dtype in (DType.F32, DType.F64, DType.I32))
    g, e = d.graph, d.graph.emitter
    start = -float("inf") if x.is_float else -(2**31)
    best, at = g.filled(start, x.dtype, x.dims[:-1]), g.filled(0, DType.I64, x.dims[:-1])
    loops, kept = ", ".join(_loops(x)), ", ".join(_loops(x)[:-1])
    kinds = ", ".join(['"parallel"'] * (x.rank - 1) + ['"reduction"'])
    kind, test = x.dtype.value, "arith.cmpf ogt" if x.is_float else "arith.cmpi sgt"
    m = f"affine_map<({loops}) -> ({loops})>, " + ", ".join([f"affine_map<({loops}) -> ({kept})>"] * 2)
    v, b, p, i, j, c, r, s, name = (e.fresh() for _ in range(9))
    e.lines.append(f"""{name}:2 = linalg.generic {{indexing_maps = [{m}], iterator_types = [{kinds}]}}
      ins({x.tensor.ssa} : {x.tensor.type}) outs({best.ssa}, {at.ssa} : {best.type}, {at.type}) {{
    ^bb0({v}: {kind}, {b}: {kind}, {p}: i64):
      {i} = linalg.index {x.rank - 1} : index
      {j} = arith.index_cast {i} : index to i64
      {c} = {test}, {v}, {b} : {kind}
      {r} = arith.select {c}, {v}, {b} : {kind}
      {s} = arith.select {c}, {j}, {p} : i64
      linalg.yield {r}, {s} : {kind}, i64
    }} -> ({best.type}, {at.type})""")
    place = ops.Tensor(g, f"{name}#1", DType.I64, x.dims[:-1])
    value = ops.Tensor(g, f"{name}#0", x.dtype, x.dims[:-1])
    if d.rng.random() < 0.5:
        d.values.append(x.like(place, 64.0, True))
        return x.like(value)
    return x.like(place, 64.0, True)


def moments(d: Draft, x: Value) -> Value:
    """Sum and sum of squares in one reduction with two results; their sum."""
    d.need(x.rank >= 1 and x.dtype in (DType.F32, DType.F64) and x.top < 1e3)
    at = d.axis(x)
    dims = [e for a, e in enumerate(x.dims) if a != at]
    g, e = d.graph, d.graph.emitter
    total, squares = g.filled(0, x.dtype, dims), g.filled(0.5, x.dtype, dims)
    loops = ", ".join(_loops(x))
    kept = ", ".join(p for a, p in enumerate(_loops(x)) if a != at)
    kinds = ", ".join('"reduction"' if a == at else '"parallel"' for a in range(x.rank))
    m = f"affine_map<({loops}) -> ({loops})>, " + ", ".join([f"affine_map<({loops}) -> ({kept})>"] * 2)
    kind = x.dtype.value
    v, s, q, a, b, c, name = (e.fresh() for _ in range(7))
    e.lines.append(f"""{name}:2 = linalg.generic {{indexing_maps = [{m}], iterator_types = [{kinds}]}}
      ins({x.tensor.ssa} : {x.tensor.type}) outs({total.ssa}, {squares.ssa} : {total.type}, {total.type}) {{
    ^bb0({v}: {kind}, {s}: {kind}, {q}: {kind}):
      {a} = arith.addf {v}, {s} : {kind}
      {b} = arith.mulf {v}, {v} : {kind}
      {c} = arith.addf {b}, {q} : {kind}
      linalg.yield {a}, {c} : {kind}, {kind}
    }} -> ({total.type}, {total.type})""")
    both = [ops.Tensor(g, f"{name}#{i}", x.dtype, tuple(dims)) for i in range(2)]
    count = max(1, d.most(x.dims[at]))
    return x.like(both[0] * 0.01 + both[1], count * (x.top**2 + x.top) + 1, False)


def _named(op: str, forms: Sequence[tuple[str, str, str]]) -> Operator:
    """A named product of x and a new input; letters of (x, other, result) name equal extents."""

    def apply(d: Draft, x: Value) -> Value:
        left, right, result = d.rng.choice(list(forms))
        d.need(x.rank == len(left) and x.dtype not in (DType.I1, DType.F16, DType.BF16, DType.I8))
        sizes = dict(zip(left, x.dims, strict=True))
        sizes |= {letter: d.extent() for letter in right if letter not in sizes}
        y = d.input([sizes[c] for c in right], x.dtype, "weight")
        dims = _sized(d, [sizes[c] for c in result])
        out = d.graph.filled(d.rng.choice((0, 1)), x.dtype, dims)
        summed = [sizes[c] for c in left if c not in result]
        count = 1
        for e in summed:
            count *= max(1, d.most(e))
        return x.like(d.graph.named(f"linalg.{op}", [x.tensor, y.tensor], out), x.top * y.top * count + 1, False)

    return apply


def linalg_reduce(d: Draft, x: Value) -> Value:
    at = d.axis(x)
    d.need(x.dtype not in (DType.I1, DType.F16, DType.BF16))
    dims = [e for a, e in enumerate(x.dims) if a != at]
    out = d.graph.filled(0, x.dtype, dims)
    op = "arith.addf" if x.is_float else "arith.addi"
    text = (f"linalg.reduce {{ {op} }} ins({x.tensor.ssa} : {x.tensor.type}) outs({out.ssa} : {out.type}) "
            f"dimensions = [{at}]")
    made = ops.Tensor(d.graph, d.graph.emitter.emit(text), x.dtype, tuple(dims))
    return x.like(made, x.top * max(1, d.most(x.dims[at])), False)


def linalg_broadcast(d: Draft, x: Value) -> Value:
    d.need(x.rank <= 3)
    at, extent = d.rng.randint(0, x.rank), d.extent()
    dims = _sized(d, [*x.dims[:at], extent, *x.dims[at:]])
    out = d.graph.empty(x.dtype, dims)
    text = (f"linalg.broadcast ins({x.tensor.ssa} : {x.tensor.type}) outs({out.ssa} : {out.type}) dimensions = [{at}]")
    return x.like(ops.Tensor(d.graph, d.graph.emitter.emit(text), x.dtype, tuple(dims)))


def linalg_map(d: Draft, x: Value) -> Value:
    d.need(x.dtype not in (DType.I1, DType.F16, DType.BF16))
    y = d.input(x.dims, x.dtype)
    out = d.graph.empty(x.dtype, x.dims)
    op = "arith.mulf" if x.is_float else "arith.muli"
    text = (f"linalg.map {{ {op} }} ins({x.tensor.ssa}, {y.tensor.ssa} : {x.tensor.type}, {x.tensor.type}) "
            f"outs({out.ssa} : {out.type})")
    return x.like(ops.Tensor(d.graph, d.graph.emitter.emit(text), x.dtype, x.dims), x.top * y.top, False)


def insert_slice(d: Draft, x: Value) -> Value:
    """A new input placed inside x."""
    d.need(x.rank >= 1)
    sizes, offsets, strides = [], [], []
    for e in x.dims:
        room = d.least(e)
        d.need(room > 0)
        offset, step = d.rng.randint(0, room - 1), d.rng.choice((1, 1, 2))
        offsets.append(offset)
        strides.append(step)
        sizes.append(d.rng.randint(1, (room - offset - 1) // step + 1))
    y = d.input([Expr.of(s) for s in sizes], x.dtype)
    text = f"tensor.insert_slice {y.tensor.ssa} into {x.tensor.ssa}{offsets} {sizes} {strides} : {y.tensor.type} into "
    return x.like(d.graph.result(text, x.dtype, x.dims), max(x.top, y.top))


def generate(d: Draft, x: Value) -> Value:
    """x + a tensor.generate of its shape."""
    d.need(x.rank >= 1 and x.dtype in (DType.F32, DType.F64, DType.I32, DType.I64))
    e, kind = d.graph.emitter, x.dtype.value
    indices = [e.fresh() for _ in x.dims]
    wide, value = e.fresh(), e.fresh()
    head = ", ".join(f"{i}: index" for i in indices)
    convert = f"arith.sitofp {wide} : i64 to {kind}" if x.is_float else f"arith.trunci {wide} : i64 to i32"
    if x.dtype is DType.I64:
        convert = f"arith.addi {wide}, {wide} : i64"
    text = (f"tensor.generate {e.dynamic(x.dims)} {{\n    ^bb0({head}):\n"
            f"      {wide} = arith.index_cast {indices[-1]} : index to i64\n      {value} = {convert}\n"
            f"      tensor.yield {value} : {kind}\n    }} : ")
    d.need(any(s.constant is None for s in x.dims))
    return x.like(x.tensor + d.graph.result(text, x.dtype, x.dims), x.top + 300, False)


def table(d: Draft, x: Value) -> Value:
    """x plus a dense constant along its last axis."""
    size = x.dims[-1].constant if x.rank else None
    d.need(size is not None and size > 0 and x.dtype in (DType.F32, DType.F64, DType.I32, DType.I64))
    numbers = [d.rng.randint(-3, 3) for _ in range(size or 0)]
    shown = ", ".join(f"{n}.0" if x.is_float else str(n) for n in numbers)
    kind = tensor_type(x.dtype, [x.dims[-1]])
    made = ops.Tensor(d.graph, d.graph.emitter.emit(f"arith.constant dense<[{shown}]> : {kind}"), x.dtype, (x.dims[-1],))
    return x.like(x.tensor + made, x.top + 3, False)


def _scalar(function: Callable[[Scalar], Scalar], bound: Callable[[float], float], accepts: Callable[[Value], bool],
            exact: bool = False) -> Operator:
    def apply(d: Draft, x: Value) -> Value:
        d.need(accepts(x))
        made = d.graph.pointwise("scalar", function, x.tensor)
        return x.like(made, bound(x.top), exact and x.exact)

    return apply


def _math(name: str, top: float, bound: Callable[[float], float]) -> Operator:
    return _scalar(lambda v: v.math(name), bound, lambda x: x.is_float and x.top <= top)


def _rounding(name: str) -> Operator:
    return _scalar(lambda v: v.math(name), lambda t: t + 1, lambda x: x.is_float and x.exact, exact=True)


def _bits(name: str, other: int) -> Operator:
    return _scalar(lambda v: v.body.emit(f"arith.{name} {v.ssa}, {v.body.value(other, v.kind).ssa} : {v.kind}", v.kind),
                   lambda t: 1e18, lambda x: not x.is_float and x.dtype is not DType.I1)


RAW: MappingProxyType[str, Operator] = MappingProxyType({
    "transposed_result": transposed_result,
    "window": window,
    "overlap_add": overlap_add,
    "diagonal": diagonal,
    "reverse": reverse,
    "add_index": add_index,
    "triangle": triangle,
    "argmax": argmax,
    "moments": moments,
    "matvec": _named("matvec", [("mk", "k", "m")]),
    "vecmat": _named("vecmat", [("k", "kn", "n")]),
    "dot": _named("dot", [("k", "k", "")]),
    "batch_matvec": _named("batch_matvec", [("bmk", "bk", "bm")]),
    "batch_vecmat": _named("batch_vecmat", [("bk", "bkn", "bn")]),
    "batch_reduce_matmul": _named("batch_reduce_matmul", [("bmk", "bkn", "mn")]),
    "linalg_reduce": linalg_reduce,
    "linalg_broadcast": linalg_broadcast,
    "linalg_map": linalg_map,
    "insert_slice": insert_slice,
    "generate": generate,
    "table": table,
})
SCALAR: MappingProxyType[str, Operator] = MappingProxyType({
    "sin": _math("sin", 1e3, lambda t: 1.0),
    "cos": _math("cos", 1e3, lambda t: 1.0),
    "exp2": _math("exp2", 12, lambda t: 2.0**t),
    "expm1": _math("expm1", 9, lambda t: 2.72**t),
    "atan": _math("atan", 1e9, lambda t: 1.6),
    "cbrt": _math("cbrt", 1e9, lambda t: t + 1),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "roundeven": _rounding("roundeven"),
    "andi": _bits("andi", 6),
    "xori": _bits("xori", 5),
    "shrsi": _bits("shrsi", 1),
    "remsi": _bits("remsi", 7),
    "divui": _bits("divui", 3),
    "ceildivsi": _bits("ceildivsi", 4),
    "floordivsi": _bits("floordivsi", 4),
})
