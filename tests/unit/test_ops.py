"""tilewright.compiler.ops: every builder, evaluated by the reference at several shapes, against NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from tilewright.compiler import ops
from tilewright.compiler.reference import compare, evaluate
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Build = Callable[..., ops.Tensor]
RNG = np.random.default_rng(11)


def array(dtype: str, shape: Sequence[int]) -> np.ndarray:
    kind = DType(dtype)
    if kind is DType.I1:
        return RNG.integers(0, 2, shape).astype(bool)
    if not kind.is_float:
        return RNG.integers(-9, 10, shape).astype(kind.numpy)
    return RNG.standard_normal(shape).astype(kind.numpy)


def check(
    build: Build,
    inputs: Sequence[Sequence[int | str]],
    want: Callable[..., Any],
    shapes: Sequence[Mapping[str, int]],
    dtypes: str | Sequence[str] = "f32",
    arrays: Mapping[int, Callable[..., np.ndarray]] | None = None,
) -> None:
    """Build once, verify, and compare with `want` of the float64 (or integer) arrays at every shape."""
    kinds = [dtypes] * len(inputs) if isinstance(dtypes, str) else list(dtypes)
    g = ops.Graph()
    g.output(build(*(g.input(f"x{i}", dims, kind) for i, (dims, kind) in enumerate(zip(inputs, kinds, strict=True)))))
    verify(g)
    for dims in shapes:
        sizes = [[Expr.parse(str(d)).evaluate(dims) for d in axes] for axes in inputs]
        given = [(arrays or {}).get(i, array)(kind, s) for i, (kind, s) in enumerate(zip(kinds, sizes, strict=True))]
        wide = [a.astype("f8") if DType(k).is_float else a for a, k in zip(given, kinds, strict=True)]
        reference = np.asarray(want(*wide))
        (got,) = evaluate(g.module_text(), given)
        assert got.shape == reference.shape, dims
        if got.dtype.kind == "i":
            reference = reference.astype(got.dtype)  # a product may leave the range of its type
        assert compare(got, reference).ok(3e-7, 3e-7), (dims, compare(got, reference))


def verify(g: ops.Graph) -> None:
    """The text parses and verifies, and every extent is an expression of the dims."""
    with ir.Context():
        module = ir.Module.parse(g.module_text())
        module.operation.verify()
        (fn,) = functions(module)
        last = list(fn.regions[0].blocks[0].operations)[-1].operation
        symbolic = SymbolicShapes(fn)
        for value, tensor in zip(last.operands, g._outputs, strict=True):
            assert symbolic.dims(value) == tensor.dims


TWO = [{"B": 1, "S": 1}, {"B": 2, "S": 7}, {"B": 3, "S": 16}]


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("a", "b"), [
    ((), ()), (("B",), ("B",)), (("B",), ()), ((), ("B",)), (("B", 3), ("B", 3)), (("B", 2), ()),
])
def test_matmul(a: tuple[Any, ...], b: tuple[Any, ...], ta: bool, tb: bool) -> None:
    left = [*a, 6, "S"] if ta else [*a, "S", 6]
    right = [*b, 5, 6] if tb else [*b, 6, 5]

    def want(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x.swapaxes(-1, -2) if ta else x) @ (y.swapaxes(-1, -2) if tb else y)

    check(lambda x, y: ops.matmul(x, y, ta, tb), [left, right], want, TWO)


def test_matmul_of_narrow_types_accumulates_in_wide_ones() -> None:
    g = ops.Graph()
    for kind in ("f16", "bf16", "i8"):
        x, y = g.input(f"x{kind}", ["M", 4], kind), g.input(f"y{kind}", [4, "N"], kind)
        g.output(ops.matmul(x, y))
    verify(g)
    text = g.module_text()
    assert text.count("-> tensor<?x?xf32>\n") >= 4 and text.count("arith.truncf") == 2
    assert [t.dtype.value for t in g._outputs] == ["f16", "bf16", "i32"]
    check(ops.matmul, [["M", 40], [40, 3]], lambda a, b: a.astype("i4") @ b, [{"M": 5}], "i8")
    check(ops.matmul, [["M", 40], [40, 3]], lambda a, b: a @ b, [{"M": 5}], "bf16")


def test_batch_matmul() -> None:
    check(lambda a, b: ops.batch_matmul(a, b, transpose_b=True), [["B", "S", 4], ["B", 3, 4]],
          lambda a, b: a @ b.transpose(0, 2, 1), TWO)


ACTIVATIONS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "gelu": lambda v: v * 0.5 * (1 + scipy.special.erf(v / math.sqrt(2))),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rank", [2, 3])
def test_dense(activation: str | None, rank: int) -> None:
    function = ACTIVATIONS[activation]
    x = ["B", "S", 6][3 - rank:]
    check(lambda x, w, b: ops.dense(x, w, b, activation), [x, [6, 5], [5]], lambda x, w, b: function(x @ w + b), TWO)
    check(lambda x, w: ops.dense(x, w, activation=activation), [x, [6, 5]], lambda x, w: function(x @ w), TWO)


def test_dense_of_f16_rounds_once() -> None:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["B", 8], "f16"), g.input("w", [8, 4], "f16"), g.input("b", [4], "f16"), "gelu"))
    verify(g)
    assert g.module_text().count("truncf") == 1


def windows(x: np.ndarray, kernel: Sequence[int], stride: int, dilation: int) -> np.ndarray:
    """[N, C, out..., kernel...] of an [N, C, spatial...] array."""
    reach = [dilation * (k - 1) + 1 for k in kernel]
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=axes)
    outer = (np.s_[:], np.s_[:], *[np.s_[::stride]] * len(kernel))
    return view[(*outer, *[np.s_[::dilation]] * len(kernel))]


def conv_reference(x: np.ndarray, w: np.ndarray, stride: int, pads: Any, dilation: int, groups: int) -> np.ndarray:
    """Channels-first convolution in float64."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    parts = []
    for i in range(groups):
        c, f = x.shape[1] // groups, w.shape[0] // groups
        view = windows(x[:, i * c:(i + 1) * c], w.shape[2:], stride, dilation)
        letters = "hw"[: w.ndim - 2], "ij"[: w.ndim - 2]
        parts.append(np.einsum(f"nc{letters[0]}{letters[1]},fc{letters[1]}->nf{letters[0]}",
                               view, w[i * f:(i + 1) * f]))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups", "filters"), [
    (1, 0, 1, 1, 5), (2, 1, 1, 1, 3), (1, ((2, 0), (1, 1)), 2, 1, 4), (2, 1, 1, 2, 6), (1, 1, 2, 4, 4), (1, 2, 1, 4, 8),
])
def test_convolution(first: bool, rank: int, stride: int, padding: Any, dilation: int, groups: int, filters: int) -> None:
    padding = padding[:rank] if isinstance(padding, tuple) else padding
    pads = padding if isinstance(padding, tuple) else ((padding, padding),) * rank
    spatial, kernel, depth = ["H", 9][2 - rank:] if rank == 2 else ["H"], [3, 2][:rank], 4 // groups
    x: list[Any] = ["N", 4, *spatial] if first else ["N", *spatial, 4]
    w = [filters, depth, *kernel] if first else [*kernel, depth, filters]
    layout = ("n" + "c" * first + "hw"[2 - rank:] + "c" * (not first))
    function = ops.conv2d if rank == 2 else ops.conv1d

    def want(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not first:
            x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, (-1, -2), (0, 1))
        y = conv_reference(x, w, stride, pads, dilation, groups) + b.reshape(-1, *[1] * rank)
        return y if first else np.moveaxis(y, 1, -1)

    check(lambda x, w, b: function(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout),
          [x, w, [filters]], want, [{"N": 1, "H": 7}, {"N": 2, "H": 12}])


def test_convolution_of_f16_accumulates_in_f32() -> None:
    check(lambda x, w: ops.conv2d(x, w, padding=1), [["N", 3, "H", 5], [4, 3, 3, 3]],
          lambda x, w: conv_reference(x, w, 1, ((1, 1), (1, 1)), 1, 1), [{"N": 1, "H": 1}, {"N": 2, "H": 4}], "f16")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(2, None, 0, 1), ((3, 2), 2, 1, 1), (2, 1, 1, 2)])
def test_pooling(first: bool, kernel: Any, stride: Any, padding: int, dilation: int) -> None:
    x: list[Any] = ["N", 3, "H", 8] if first else ["N", "H", 8, 3]
    layout = "nchw" if first else "nhwc"
    extents = (kernel, kernel) if isinstance(kernel, int) else kernel
    step = stride or extents[0]

    def pooled(reduce: Callable[..., np.ndarray], fill: float, spread: int) -> Callable[[np.ndarray], np.ndarray]:
        def want(x: np.ndarray) -> np.ndarray:
            x = x if first else np.moveaxis(x, -1, 1)
            x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
            y = reduce(windows(x, extents, step, spread), axis=(4, 5))
            return y if first else np.moveaxis(y, 1, -1)

        return want

    shapes = [{"N": 1, "H": 3}, {"N": 2, "H": 9}]
    check(lambda x: ops.max_pool2d(x, kernel, stride, padding, dilation, layout), [x],
          pooled(np.max, -np.inf, dilation), shapes)
    check(lambda x: ops.avg_pool2d(x, kernel, stride, padding, layout=layout), [x], pooled(np.mean, 0, 1), shapes)
    check(lambda x: ops.avg_pool2d(x, kernel, stride, padding, False, layout), [x],
          pooled(np.nanmean, np.nan, 1), shapes)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    power = np.exp(x - x.max(axis=axis, keepdims=True))
    return power / power.sum(axis=axis, keepdims=True)


def layernorm(x: np.ndarray, g: np.ndarray, b: np.ndarray | float = 0.0, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * g + b


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_normalizations(dtype: str) -> None:
    dims = [["B", "S", 6]]
    check(ops.softmax, dims, softmax, TWO, dtype)
    check(lambda x: ops.softmax(x, axis=1), dims, lambda x: softmax(x, 1), TWO, dtype)
    check(ops.layernorm, [*dims, [6], [6]], layernorm, TWO, dtype)
    check(lambda x, g: ops.layernorm(x, g, eps=0.1), [["B", "S"], ["S"]], lambda x, g: layernorm(x, g, eps=0.1), TWO,
          dtype)
    check(ops.rmsnorm, [*dims, [6]], lambda x, g: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * g, TWO, dtype)


def positive(dtype: str, shape: Sequence[int]) -> np.ndarray:
    return np.abs(array(dtype, shape)) + np.asarray(0.1, DType(dtype).numpy)


@pytest.mark.parametrize(("build", "want"), [
    (ops.exp, np.exp), (ops.log, np.log), (ops.tanh, np.tanh), (ops.erf, scipy.special.erf), (ops.sqrt, np.sqrt),
    (ops.rsqrt, lambda v: 1 / np.sqrt(v)), (ops.sigmoid, scipy.special.expit), (ops.silu, ACTIVATIONS["silu"]),
    (ops.gelu, ACTIVATIONS["gelu"]), (ops.relu, ACTIVATIONS["relu"]), (ops.absolute, np.abs),
    (lambda x: -x, np.negative),
])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_functions(build: Build, want: Callable[..., Any], dtype: str) -> None:
    needs_positive = build in (ops.log, ops.sqrt, ops.rsqrt)
    check(build, [["B", "S"]], want, [*TWO, {"B": 0, "S": 3}], dtype, {0: positive} if needs_positive else None)


@pytest.mark.parametrize(("build", "want"), [
    (lambda a, b: a + b, np.add), (lambda a, b: a - b, np.subtract), (lambda a, b: a * b, np.multiply),
    (ops.maximum, np.maximum), (ops.minimum, np.minimum), (ops.add, np.add), (ops.subtract, np.subtract),
    (ops.multiply, np.multiply), (lambda a, b: 2 * a + b - 1, lambda a, b: 2 * a + b - 1),
    (lambda a, b: 3 - a * b, lambda a, b: 3 - a * b),
])
@pytest.mark.parametrize("dtype", ["f32", "i32", "i64"])
@pytest.mark.parametrize(("a", "b"), [(["B", "S"], ["B", "S"]), (["B", "S"], ["S"]), (["B", 1], [4, 1, "S"])])
def test_arithmetic_broadcasts(build: Build, want: Callable[..., Any], dtype: str, a: Any, b: Any) -> None:
    check(build, [a, b], want, TWO, dtype)


def test_division_comparison_selection_and_casts() -> None:
    pair = [["B", "S"], ["B", 1]]
    check(lambda a, b: a / b, pair, np.divide, TWO)
    check(ops.divide, pair, lambda a, b: np.trunc(a / b).astype("i4"), TWO, "i32",
          {1: lambda kind, shape: array(kind, shape) * 2 + 1})
    check(lambda a: 1 / a, pair[:1], np.reciprocal, TWO, arrays={0: positive})
    for predicate, want in {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                            "ge": np.greater_equal}.items():
        for kind in ("f32", "i8", "i1"):
            check(lambda a, b, p=predicate: ops.compare(a, b, p), pair, want, TWO, kind)
    check(lambda c, a: ops.where(c, a, 0.5), [["B", "S"], ["S"]], lambda c, a: np.where(c, a, 0.5), TWO, ["i1", "f16"])
    check(lambda c, a, b: ops.where(c, a, b), [["S"], ["B", "S"], ["B", 1]], np.where, TWO, ["i1", "i64", "i64"])
    for source, target in [("f32", "i32"), ("i32", "f32"), ("i1", "f32"), ("i8", "i64"), ("i64", "i8"),
                           ("f16", "bf16"), ("f32", "i1"), ("i1", "i32"), ("f64", "f16")]:
        numpy = np.dtype("f8") if DType(target).is_float else DType(target).numpy
        check(lambda x, t=target: ops.cast(x, t), [["S"]], lambda x, n=numpy: x.astype(n), TWO, source)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_reductions(axis: Any, keepdims: bool, dtype: str) -> None:
    dims, shapes = [["B", "S", 3]], [{"B": 1, "S": 1}, {"B": 4, "S": 2}]
    pairs = [(ops.sum, np.sum), (ops.prod, np.prod), (ops.max, np.max), (ops.min, np.min)]
    for build, want in pairs + ([(ops.mean, np.mean)] if dtype != "i32" else []):
        check(lambda x, f=build: f(x, axis, keepdims), dims, lambda x, f=want: f(x, axis=axis, keepdims=keepdims),
              shapes, dtype)


def test_reductions_of_nothing_and_of_booleans() -> None:
    check(lambda x: ops.max(x, 0), [["B", "S"]], lambda x: np.max(x, axis=0, initial=-np.inf), [{"B": 0, "S": 3}])
    check(lambda x: ops.sum(x, 0), [["B", "S"]], lambda x: x.sum(axis=0), [{"B": 0, "S": 3}])
    check(lambda x: ops.max(x, 1), [["B", 4]], lambda x: x.max(axis=1), [{"B": 5}], "i1")
    check(lambda x: ops.min(x, 1), [["B", 4]], lambda x: x.min(axis=1), [{"B": 5}], "i1")
    check(lambda x: ops.sum(x, 1), [["B", 400]], lambda x: x.sum(axis=1).astype("i4"), [{"B": 5}], "i8")


def test_gather() -> None:
    def indices(_: str, shape: Sequence[int]) -> np.ndarray:
        return RNG.integers(0, 5, shape)

    for axis, dims in ((0, [5, "S"]), (1, ["B", 5, 3]), (-1, ["S", 5])):
        for at in (["B"], ["B", 2], []):
            for kind in ("i64", "i32"):
                check(lambda x, i, a=axis: ops.gather(x, i, a), [dims, at], lambda x, i, a=axis: np.take(x, i, axis=a),
                      TWO, ["f32", kind], {1: indices})


def test_views() -> None:
    x = [["B", "S", 6]]
    check(ops.transpose, x, np.transpose, TWO)
    check(lambda x: ops.transpose(x, (1, 0, -1)), x, lambda x: x.transpose(1, 0, 2), TWO)
    check(lambda x: ops.pad(x, [0, 1, 2], [3, 0, 1], 2.5), x,
          lambda x: np.pad(x, ((0, 3), (1, 0), (2, 1)), constant_values=2.5), TWO)
    check(lambda x, y: ops.concat([x, y, x], 1), [["B", "S", 2], ["B", 4, 2]],
          lambda x, y: np.concatenate([x, y, x], axis=1), TWO)
    check(lambda x, y: ops.broadcast_to(x, [4, "B", "S"]) + y, [["B", 1], ["S"]],
          lambda x, y: x[None] + y + np.zeros((4, 1, 1)), TWO)
    check(lambda x: ops.slice(x, (0, 1, 1), (None, None, -1), (1, 2, 3)), x, lambda x: x[:, 1::2, 1:-1:3],
          [{"B": 1, "S": 1}, {"B": 2, "S": 7}])
    check(lambda x: ops.slice(x, (None, "S - 1", 0), ("B", None, 2)), x, lambda x: x[:, -1:, :2], TWO)


@pytest.mark.parametrize(("dims", "shape"), [
    (["B", "S", 6], ["B*S", 6]), (["B", "S", 6], ["B", "S", 2, 3]), (["B", "S", 6], ["B", "S*6"]), (["B", 6], [-1]),
    (["B", "S", 6], ["B*S", 2, 3]), (["B", 4, 6], ["B", 3, -1]), (["B", "S"], [1, "B", 1, "S", 1]), ([1, "S"], ["S"]),
    ([2, 3], [3, 2]), ([1, 1], []), ([], [1, 1]), (["B", "S"], ["S", "B"]), ([0, 3], [7, 0]), (["B"], ["B"]),
])
def test_reshape(dims: list[Any], shape: list[Any]) -> None:
    for point in TWO:
        target = [int(Expr.parse(str(d)).evaluate(point)) for d in shape]
        extra = [["B", "S"]]
        check(lambda x, _: ops.reshape(x, shape), [dims, *extra], lambda x, _, t=target: x.reshape(t), [point])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", ["S", "T"])
def test_attention(causal: bool, keys: str) -> None:
    def want(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        s, t = scores.shape[2:]
        if causal:
            scores = np.where(np.arange(t) <= np.arange(s)[:, None] + t - s, scores, -np.inf)
        return softmax(scores) @ v

    shapes = [{"B": 1, "S": 1, "T": 1}, {"B": 2, "S": 3, "T": 8}]
    dims = [["B", 2, "S", 4], ["B", 2, keys, 4], ["B", 2, keys, 4]]
    check(lambda q, k, v: ops.attention(q, k, v, causal), dims, want, shapes)
    check(lambda q, k, v: ops.attention(q, k, v, causal, 0.5), dims, lambda q, k, v: want(q, k, v), shapes, "f16")


def encoder(x: np.ndarray, w: Sequence[np.ndarray], heads: int, causal: bool, norm_first: bool) -> np.ndarray:
    qkv_w, qkv_b, out_w, out_b, up_w, up_b, down_w, down_b, g1, b1, g2, b2 = w
    b, s, e = x.shape
    inner = layernorm(x, g1, b1) if norm_first else x
    q, k, v = (inner @ qkv_w + qkv_b).reshape(b, s, 3, heads, e // heads).transpose(2, 0, 3, 1, 4)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(e // heads)
    scores = np.where(np.tril(np.ones((s, s), bool)), scores, -np.inf) if causal else scores
    x = x + (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, s, e) @ out_w + out_b
    x = x if norm_first else layernorm(x, g1, b1)
    inner = layernorm(x, g2, b2) if norm_first else x
    x = x + ACTIVATIONS["gelu"](inner @ up_w + up_b) @ down_w + down_b
    return x if norm_first else layernorm(x, g2, b2)


@pytest.mark.parametrize(("causal", "norm_first"), [(False, False), (True, True)])
def test_transformer_encoder_layer(causal: bool, norm_first: bool) -> None:
    g = ops.Graph()
    x = g.input("x", ["B", "S", 12])
    weights = ops.EncoderWeights.inputs(g, 12, 20, "layer0.")
    g.output(ops.transformer_encoder_layer(x, weights, 3, causal=causal, norm_first=norm_first))
    verify(g)
    assert g.dims == ("B", "S") and 'tw.name = "layer0.qkv_weight"' in g.module_text()
    shapes = [(12, 36), (36,), (12, 12), (12,), (12, 20), (20,), (20, 12), *[(12,)] * 5]
    for point in TWO:
        given = [array("f32", (point["B"], point["S"], 12)), *(array("f32", s) for s in shapes)]
        wide = [a.astype("f8") for a in given]
        (got,) = evaluate(g.module_text(), given)
        assert compare(got, encoder(wide[0], wide[1:], 3, causal, norm_first)).ok(1e-6, 1e-6)


def test_graph_arguments_dims_and_results() -> None:
    g = ops.Graph()
    t = g.dim("T")
    x = g.input("x", ["2*S + 1", "S", 4])
    g.output(ops.sum(x, 0), ops.broadcast_to(g.input("y", [1], "f64"), [t]))
    text = g.module_text()
    assert 'func.func @main(%arg0: index {tw.dims = ["T"], tw.name = "T"}' in text
    assert '%arg1: tensor<?x?x4xf32> {tw.dims = ["2*S + 1", "S", 4], tw.name = "x"}' in text
    assert g.dims == ("T", "S")
    verify(g)
    data = array("f32", (7, 3, 4))
    total, row = evaluate(text, [5, data, np.array([2.0])])
    np.testing.assert_allclose(total, data.astype("f8").sum(axis=0))
    assert row.tolist() == [2.0] * 5


def make(*dims: int | str, dtype: str = "f32") -> ops.Tensor:
    return ops.Graph().input("x", dims, dtype)


def pair(a: Sequence[int | str], b: Sequence[int | str], kinds: tuple[str, str] = ("f32", "f32")) -> tuple[Any, Any]:
    g = ops.Graph()
    return g.input("a", a, kinds[0]), g.input("b", b, kinds[1])


@pytest.mark.parametrize(("build", "error", "message"), [
    (lambda: ops.matmul(*pair([2, 3], [4, 5])), ShapeError, "matmul: the summed extents .* are 3 and 4"),
    (lambda: ops.matmul(*pair(["M", "K"], ["J", 5])), ShapeError, "matmul: .* K and J"),
    (lambda: ops.matmul(*pair([3], [3, 5])), ShapeError, "matmul: the first operand has rank 1"),
    (lambda: ops.matmul(*pair([2, 3, 4], [3, 4, 5])), ShapeError, "matmul: the batch axes"),
    (lambda: ops.batch_matmul(*pair([3, 4], [4, 5])), ShapeError, "batch_matmul: .* rank 2"),
    (lambda: ops.matmul(*pair([2, 3], [3, 2], ("f32", "f16"))), DTypeError, "matmul: operands of f32 and f16"),
    (lambda: ops.dense(*pair([2, 3], [3, 2]), activation="swish"), OptionError, "dense: unknown activation 'swish'"),
    (lambda: ops.dense(*pair([2, 3], [3, 2, 1])), ShapeError, "dense: the weight has rank 3"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 8], [4, 2, 3, 3])), ShapeError, "conv2d: 3 input channels in 1 groups"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 8], [4, 3, 3, 3]), layout="chwn"), OptionError,
     "conv2d: unknown layout 'chwn'"),
    (lambda: ops.conv1d(*pair([1, 3, 8], [4, 3, 3]), layout="nchw"), OptionError, "conv1d: unknown layout"),
    (lambda: ops.conv2d(*pair([1, 3, 8], [4, 3, 3, 3])), ShapeError, "conv2d: the input has rank 3"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 2], [4, 3, 3, 3])), ShapeError, "conv2d: a window of 3 .* axis 3"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 8], [4, 3, 3, 3]), stride=0), OptionError, "conv2d: stride 0"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 8], [4, 3, "K", 3])), ShapeError, "conv2d: a kernel extent is K"),
    (lambda: ops.conv2d(*pair([1, 3, 8, 8], [4, 3, 3, 3]), padding=-1), OptionError, "conv2d: padding"),
    (lambda: ops.max_pool2d(make(1, 2, 8, 8), (2, 2, 2)), OptionError, "max_pool2d: kernel"),
    (lambda: ops.avg_pool2d(make(2, 8, 8), 2), ShapeError, "avg_pool2d: the input has rank 3"),
    (lambda: ops.softmax(make(2, 3), axis=2), ShapeError, "softmax: axis 2 of a tensor of rank 2"),
    (lambda: ops.softmax(make(2, dtype="i32")), DTypeError, "softmax: wanted a float"),
    (lambda: ops.layernorm(*pair([2, 3], [4])), ShapeError, "layernorm: .* 3 and 4"),
    (lambda: ops.add(*pair([2, 3], [4])), ShapeError, r"add: shapes \[2, 3\] and \[4\] do not broadcast: 3 against 4"),
    (lambda: ops.add(*pair(["B"], ["C"])), ShapeError, "add: .* B against C"),
    (lambda: ops.add(1, 2), OptionError, "add: wanted at least one tensor"),
    (lambda: ops.add(make(2), make(2)), OptionError, "add: .* different graphs"),
    (lambda: ops.where(*pair([2], [2]), 0), DTypeError, "where: wanted an i1 condition"),
    (lambda: ops.compare(*pair([2], [2]), "less"), OptionError, "compare: unknown predicate 'less'"),
    (lambda: ops.cast(make(2), "f31"), OptionError, "cast: unknown element type 'f31'"),
    (lambda: ops.exp(make(2, dtype="i32")), DTypeError, "exp: wanted a float"),
    (lambda: ops.sum(make(2, 3), (0, -2)), OptionError, "sum: axis .* twice"),
    (lambda: ops.sum(make(2, dtype="i1")), DTypeError, "sum: i1"),
    (lambda: ops.mean(make(2, dtype="i32")), DTypeError, "mean: wanted a float"),
    (lambda: ops.gather(*pair([2], [2])), DTypeError, "gather: wanted integer indices"),
    (lambda: ops.concat(pair([2, 3], [2, 4]), 0), ShapeError, "concat: the extents of axis 1 are 3 and 4"),
    (lambda: ops.concat(pair([2, 3], [2]), 0), ShapeError, "concat: tensors of rank 2 and 1"),
    (lambda: ops.concat([]), OptionError, "concat: wanted at least one"),
    (lambda: ops.transpose(make(2, 3), (0, 0)), OptionError, "transpose: .* no permutation"),
    (lambda: ops.reshape(make("B", 6), [-1, -1]), OptionError, "reshape: .* more than one"),
    (lambda: ops.reshape(make("B", 6), ["B", 5]), ShapeError, r"reshape: \[B, 6\] has 6\*B elements"),
    (lambda: ops.slice(make(4, 3), (0, 0), (5, 3)), ShapeError, "slice: elements 0 to 5 of axis 0"),
    (lambda: ops.slice(make(4), (0, 0), (2, 3)), ShapeError, "slice: wanted a begin"),
    (lambda: ops.slice(make(4), (0,), (2,), (0,)), OptionError, "slice: steps"),
    (lambda: ops.pad(make(4), [1, 1], [0]), ShapeError, "pad: wanted a low"),
    (lambda: ops.broadcast_to(make(4), [2, 3]), ShapeError, "broadcast_to"),
    (lambda: ops.attention(make(2, 3), make(2, 3), make(2, 3)), ShapeError, "attention: q has rank 2"),
    (lambda: make("B", "B +"), OptionError, "cannot read the size expression"),
    (lambda: make(-1), ShapeError, "input x: an extent of -1"),
    (lambda: make(2.5), OptionError, "input x: wanted an integer"),  # type: ignore[arg-type]
    (lambda: make(2, dtype="float"), OptionError, "input x: unknown element type 'float'"),
    (lambda: ops.Graph().module_text(), OptionError, "no output"),
    (lambda: ops.broadcast_to(make(1), ["Z"]), OptionError, "dim Z cannot be read"),
])
def test_bad_input_names_the_operator(build: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_names_are_unique_and_outputs_belong_to_the_graph() -> None:
    g = ops.Graph()
    g.input("x", [2])
    with pytest.raises(OptionError, match="input x: the name is taken"):
        g.input("x", [2])
    with pytest.raises(OptionError, match="another graph"):
        g.output(make(2))
    with pytest.raises(OptionError, match="wanted a name"):
        g.dim("A + 1")


def test_named_operations_are_used_where_there_are_any() -> None:
    g = ops.Graph()
    x, y = g.input("x", ["N", 8, "H", "W"]), g.input("y", ["N", "H", "W", 8])
    m = g.input("m", ["N", 8])
    g.output(
        ops.conv2d(x, g.input("a", [4, 8, 3, 3])), ops.conv2d(y, g.input("b", [3, 3, 8, 4]), layout="nhwc"),
        ops.conv2d(x, g.input("c", [8, 1, 3, 3]), groups=8),
        ops.conv2d(y, g.input("d", [3, 3, 1, 8]), groups=8, layout="nhwc"),
        ops.max_pool2d(x, 2), ops.avg_pool2d(y, 2, layout="nhwc"), ops.matmul(m, m, transpose_b=True), ops.softmax(m),
    )
    verify(g)
    for name in ("conv_2d_nchw_fchw", "conv_2d_nhwc_hwcf", "depthwise_conv_2d_nchw_chw", "depthwise_conv_2d_nhwc_hwc",
                 "pooling_nchw_max", "pooling_nhwc_sum", "matmul indexing_maps", "softmax", "fill"):
        assert f"linalg.{name}" in g.module_text(), name


def test_building_needs_no_mlir() -> None:
    import subprocess
    import sys

    code = ("import sys; from compiler import ops; g = ops.Graph(); g.output(ops.exp(g.input('x', ['B']))); "
            "g.module_text(); print([m for m in ('torch_mlir', 'llvmlite', 'scipy') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=str(Path(__file__).parents[2]))
    assert done.stdout.strip() == "[]"
