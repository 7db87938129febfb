"""tilewright.compiler.reference against NumPy written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError

DATA = Path(__file__).parents[1] / "data"
RNG = np.random.default_rng(7)


def one(text: str, *inputs: Any, **options: Any) -> np.ndarray:
    (result,) = evaluate(text, inputs, **options)
    return result


def body(signature: str, lines: str) -> str:
    return f"func.func @main{signature} {{\n{lines}\n}}"


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


MATMUL = body("(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>, %c: tensor<?x?xf32>) -> tensor<?x?xf32>", """
  %0 = linalg.matmul ins(%a, %b : tensor<?x?xf16>, tensor<?x?xf16>) outs(%c : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>""")


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (3, 5, 7), (0, 4, 2), (3, 4, 0), (64, 33, 300)])
def test_matmul_accumulates_into_its_output(m: int, n: int, k: int) -> None:
    a, b, c = f32(m, k).astype("f2"), f32(k, n).astype("f2"), f32(m, n)
    want = c + a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(one(MATMUL, a, b, c), want, rtol=1e-12)
    assert one(MATMUL, a, b, c, dtype_outputs=True).dtype == np.float32


def test_float_arguments_are_rounded_to_the_declared_type() -> None:
    text = body("(%a: tensor<2xbf16>, %s: f16) -> (tensor<2xbf16>, f16)", "return %a, %s : tensor<2xbf16>, f16")
    a, s = evaluate(text, [np.array([1.001, 3.0]), 0.1])
    assert a[0] == 1.0 and s == float(np.float16(0.1)) and a.dtype == np.float64
    assert evaluate(text, [np.array([1.5, 3.0]), 0.1], dtype_outputs=True)[0].dtype == ml_dtypes.bfloat16


def test_integer_matmul_is_exact_and_wraps() -> None:
    text = MATMUL.replace("f16", "i8").replace("f32", "i32")
    a, b = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((9, 40), (40, 6)))
    c = np.full((9, 6), 2**31 - 1, np.int32)
    want = (c.astype(np.int64) + a.astype(np.int64) @ b).astype(np.int32)
    np.testing.assert_array_equal(one(text, a, b, c), want)
    narrow = MATMUL.replace("f16", "i8").replace("f32", "i8")
    np.testing.assert_array_equal(one(narrow, a, b, c.astype(np.int8)), want.astype(np.int8))


@pytest.mark.parametrize(("name", "extra", "maps"), [
    ("linalg.matmul", (), ("m,n,k", "m,k", "n,k", "m,n")),
    ("linalg.batch_matmul", (), ("b,m,n,k", "b,m,k", "k,n", "b,m,n")),
    ("linalg.contract", (), ("a,b,m,n,k", "m,a,k,b", "b,n,k,a", "a,n,b,m")),
])
def test_contractions_with_maps(name: str, extra: tuple[str, ...], maps: tuple[str, ...]) -> None:
    sizes = {"a": 2, "b": 3, "m": 4, "n": 5, "k": 6}
    loops, *axes = [m.split(",") for m in maps]
    a, b, c = (f32(*(sizes[d] for d in ax)) for ax in axes)
    kinds = [f"tensor<{'?x' * len(ax)}f32>" for ax in axes]
    affine = ", ".join(f"affine_map<({','.join(loops)}) -> ({','.join(ax)})>" for ax in axes)
    text = body(f"(%a: {kinds[0]}, %b: {kinds[1]}, %c: {kinds[2]}) -> {kinds[2]}", f"""
      %0 = {name} indexing_maps = [{affine}] ins(%a, %b : {kinds[0]}, {kinds[1]}) outs(%c : {kinds[2]}) -> {kinds[2]}
      return %0 : {kinds[2]}""")
    letters = ["".join(ax) for ax in axes]
    want = c + np.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", a.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(one(text, a, b, c), want, rtol=1e-10)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_convolution_and_pooling(stride: int, dilation: int) -> None:
    x, w = f32(2, 11, 9, 3), f32(3, 2, 3, 4)
    oh, ow = (11 - 2 * dilation - 1) // stride + 1, (9 - dilation - 1) // stride + 1
    window = f"{{strides = dense<{stride}> : tensor<2xi64>, dilations = dense<{dilation}> : tensor<2xi64>}}"
    text = body(f"(%x: tensor<?x11x9x3xf32>, %w: tensor<3x2x3x4xf32>, %o: tensor<?x{oh}x{ow}x4xf32>, "
                f"%z: tensor<?x{oh}x{ow}x3xf32>) -> (tensor<?x{oh}x{ow}x4xf32>, tensor<?x{oh}x{ow}x3xf32>)", f"""
      %0 = linalg.conv_2d_nhwc_hwcf {window} ins(%x, %w : tensor<?x11x9x3xf32>, tensor<3x2x3x4xf32>)
           outs(%o : tensor<?x{oh}x{ow}x4xf32>) -> tensor<?x{oh}x{ow}x4xf32>
      %k = tensor.empty() : tensor<3x2xf32>
      %1 = linalg.pooling_nhwc_max {window} ins(%x, %k : tensor<?x11x9x3xf32>, tensor<3x2xf32>)
           outs(%z : tensor<?x{oh}x{ow}x3xf32>) -> tensor<?x{oh}x{ow}x3xf32>
      return %0, %1 : tensor<?x{oh}x{ow}x4xf32>, tensor<?x{oh}x{ow}x3xf32>""")
    start = f32(2, oh, ow, 4)
    conv, pool = evaluate(text, [x, w, start, np.full((2, oh, ow, 3), -1e30)])
    for i in range(oh):
        for j in range(ow):
            rows, cols = i * stride + dilation * np.arange(3), j * stride + dilation * np.arange(2)
            patch = x[:, rows][:, :, cols].astype("f8")
            want = start[:, i, j] + np.einsum("nhwc,hwcf->nf", patch, w.astype("f8"))
            np.testing.assert_allclose(conv[:, i, j], want, rtol=1e-10, atol=1e-12)
            np.testing.assert_array_equal(pool[:, i, j], patch.max(axis=(1, 2)))


ARGMAX = body("(%x: tensor<?x?xf32>, %m: tensor<?xf32>, %i: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>)", """
  %r:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x?xf32>) outs(%m, %i : tensor<?xf32>, tensor<?xi64>) {
  ^bb0(%in: f32, %out: f32, %at: i64):
    %k = linalg.index 1 : index
    %j = arith.index_cast %k : index to i64
    %v = arith.maximumf %in, %out : f32
    %c = arith.cmpf ogt, %in, %out : f32
    %s = arith.select %c, %j, %at : i64
    linalg.yield %v, %s : f32, i64
  } -> (tensor<?xf32>, tensor<?xi64>)
  return %r#0, %r#1 : tensor<?xf32>, tensor<?xi64>""")


@pytest.mark.parametrize("shape", [(4, 9), (1, 1), (3, 0), (0, 5)])
def test_a_general_reduction_with_two_results(shape: tuple[int, int]) -> None:
    x = f32(*shape)
    value, at = evaluate(ARGMAX, [x, np.full(shape[0], -np.inf), np.zeros(shape[0], np.int64)])
    if shape[1]:
        np.testing.assert_array_equal(value, x.max(axis=1))
        np.testing.assert_array_equal(at, x.argmax(axis=1))
    else:
        assert np.all(np.isneginf(value)) and not at.any()


def test_reduce_map_broadcast_transpose_and_named_elementwise() -> None:
    text = body("(%x: tensor<?x4xf32>, %v: tensor<4xf32>, %n: index) -> "
                "(tensor<?xf32>, tensor<4x?xf32>, tensor<?x4xf32>)", """
      %e = tensor.empty(%n) : tensor<?x4xf32>
      %b = linalg.broadcast ins(%v : tensor<4xf32>) outs(%e : tensor<?x4xf32>) dimensions = [0]
      %p = linalg.map { arith.mulf } ins(%x, %b : tensor<?x4xf32>, tensor<?x4xf32>) outs(%e : tensor<?x4xf32>)
      %c = arith.constant 2.5 : f32
      %i0 = tensor.empty(%n) : tensor<?xf32>
      %i = linalg.fill ins(%c : f32) outs(%i0 : tensor<?xf32>) -> tensor<?xf32>
      %r = linalg.reduce { arith.addf } ins(%p : tensor<?x4xf32>) outs(%i : tensor<?xf32>) dimensions = [1]
      %te = tensor.empty(%n) : tensor<4x?xf32>
      %t = linalg.transpose ins(%p : tensor<?x4xf32>) outs(%te : tensor<4x?xf32>) permutation = [1, 0]
      %q = linalg.exp ins(%p : tensor<?x4xf32>) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
      return %r, %t, %q : tensor<?xf32>, tensor<4x?xf32>, tensor<?x4xf32>""")
    x, v = f32(3, 4), f32(4)
    r, t, q = evaluate(text, [x, v, 3])
    product = x.astype("f8") * v
    np.testing.assert_allclose(r, 2.5 + product.sum(axis=1))
    np.testing.assert_array_equal(t, product.T)
    np.testing.assert_array_equal(q, np.exp(product))


def test_softmax_of_a_fully_masked_row_is_nan() -> None:
    text = body("(%x: tensor<?x4xf32>) -> tensor<?x4xf32>", """
      %0 = linalg.softmax dimension(1) ins(%x : tensor<?x4xf32>) outs(%x : tensor<?x4xf32>) -> tensor<?x4xf32>
      return %0 : tensor<?x4xf32>""")
    x = f32(2, 4).astype("f8")
    x[1] = -np.inf
    result = one(text, x)
    np.testing.assert_allclose(result[0], np.exp(x[0]) / np.exp(x[0]).sum())
    assert np.isnan(result[1]).all()


def test_index_arithmetic_and_gather_in_a_body() -> None:
    text = body("(%x: tensor<?x3xf32>, %i: tensor<?xi64>, %n: index) -> tensor<?x3xf32>", """
      %e = tensor.empty(%n) : tensor<?x3xf32>
      %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]} ins(%i : tensor<?xi64>) outs(%e : tensor<?x3xf32>) {
      ^bb0(%in: i64, %out: f32):
        %r = arith.index_cast %in : i64 to index
        %c = linalg.index 1 : index
        %f = affine.apply affine_map<(d0) -> (2 - d0)>(%c)
        %v = tensor.extract %x[%r, %f] : tensor<?x3xf32>
        linalg.yield %v : f32
      } -> tensor<?x3xf32>
      return %0 : tensor<?x3xf32>""")
    x = f32(5, 3)
    i = np.array([4, 0, 0, 2])
    np.testing.assert_array_equal(one(text, x, i, 4), x[i, ::-1])
    with pytest.raises(ShapeError, match=r"index 5 on axis 0 of 5"):
        one(text, x, np.array([5]), 1)


def test_maps_with_strides_division_and_a_diagonal() -> None:
    text = body("(%x: tensor<8x6xf32>, %d: tensor<3x3xf32>, %e: tensor<3x4xf32>) -> tensor<3x4xf32>", """
      %0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0 * 2 + 1, d1 floordiv 2)>,
          affine_map<(d0, d1) -> (d0, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}
          ins(%x, %d : tensor<8x6xf32>, tensor<3x3xf32>) outs(%e : tensor<3x4xf32>) {
      ^bb0(%a: f32, %b: f32, %out: f32):
        %v = arith.subf %a, %b : f32
        linalg.yield %v : f32
      } -> tensor<3x4xf32>
      return %0 : tensor<3x4xf32>""")
    x, d = f32(8, 6), f32(3, 3)
    want = x.astype("f8")[np.arange(3) * 2 + 1][:, [0, 0, 1, 1]] - np.diag(d)[:, None]
    np.testing.assert_array_equal(one(text, x, d, f32(3, 4)), want)


def test_views_and_tensor_operations() -> None:
    text = body("(%x: tensor<?x6xf32>, %n: index) -> (tensor<?xf32>, tensor<?x2x3xf32>, tensor<?x9xf32>, "
                "tensor<?x6xf32>, tensor<?x6xf32>, tensor<3x?xf32>)", """
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %z = arith.constant 7.0 : f32
      %s = tensor.extract_slice %x[0, 1] [%n, 1] [1, 1] : tensor<?x6xf32> to tensor<?xf32>
      %e = tensor.expand_shape %x [[0], [1, 2]] output_shape [%n, 2, 3] : tensor<?x6xf32> into tensor<?x2x3xf32>
      %p = tensor.pad %x low[0, 1] high[0, %c2] {
      ^bb0(%i: index, %j: index):
        tensor.yield %z : f32
      } : tensor<?x6xf32> to tensor<?x?xf32>
      %q = tensor.cast %p : tensor<?x?xf32> to tensor<?x9xf32>
      %k = tensor.concat dim(0) %x, %x : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x6xf32>
      %u = tensor.splat %z[%n] : tensor<?x6xf32>
      %w = tensor.insert_slice %s into %u[0, 2] [%n, 1] [1, 1] : tensor<?xf32> into tensor<?x6xf32>
      %g = tensor.generate %n {
      ^bb0(%i: index, %j: index):
        %v = tensor.extract %x[%j, %i] : tensor<?x6xf32>
        tensor.yield %v : f32
      } : tensor<3x?xf32>
      return %s, %e, %q, %k, %w, %g : tensor<?xf32>, tensor<?x2x3xf32>, tensor<?x9xf32>, tensor<?x6xf32>,
                                      tensor<?x6xf32>, tensor<3x?xf32>""")
    for n in (1, 4, 0):
        x = f32(n, 6)
        s, e, q, k, w, g = evaluate(text, [x, n])
        np.testing.assert_array_equal(s, x[:, 1])
        np.testing.assert_array_equal(e, x.reshape(n, 2, 3))
        np.testing.assert_array_equal(q, np.pad(x, ((0, 0), (1, 2)), constant_values=7.0))
        np.testing.assert_array_equal(k, np.concatenate([x, x]))
        filled = np.full((n, 6), 7.0)
        filled[:, 2] = x[:, 1]
        np.testing.assert_array_equal(w, filled)
        np.testing.assert_array_equal(g, x.T[:3])


def test_tensors_of_rank_zero() -> None:
    text = body("(%x: tensor<?xf32>, %s: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>)", """
      %z = arith.constant 1.5 : f32
      %d = linalg.dot ins(%x, %x : tensor<?xf32>, tensor<?xf32>) outs(%s : tensor<f32>) -> tensor<f32>
      %w = tensor.insert_slice %d into %s[] [] [] : tensor<f32> into tensor<f32>
      %e = linalg.exp ins(%s : tensor<f32>) outs(%s : tensor<f32>) -> tensor<f32>
      %i = tensor.insert %z into %s[] : tensor<f32>
      return %d, %w, %e, %i : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>""")
    for n in (0, 1, 5):
        x, s = f32(n), f32()
        dot, inserted, power, number = evaluate(text, [x, s])
        assert dot == inserted == pytest.approx(float(s) + float(x.astype("f8") @ x), rel=1e-12)
        assert power == np.exp(float(s)) and number == 1.5


@pytest.mark.parametrize(("kind", "dtype"), [("i8", np.int8), ("i32", np.int32), ("i64", np.int64)])
def test_integer_arithmetic_wraps_like_the_type(kind: str, dtype: type[np.signedinteger[Any]]) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, -7, 7, -1], dtype)
    b = np.array([3, 2, 2, -2, 3], dtype)
    names = ["addi", "muli", "divsi", "remsi", "floordivsi", "ceildivsi", "divui", "maxui", "shrui", "shrsi"]
    lines = "\n".join(f"%{n} = arith.{n} %a, %b : tensor<5x{kind}>" for n in names)
    results = ", ".join(f"tensor<5x{kind}>" for _ in names)
    text = body(f"(%a: tensor<5x{kind}>, %b: tensor<5x{kind}>) -> ({results})",
                f"{lines}\nreturn {', '.join('%' + n for n in names)} : {results}")
    got = dict(zip(names, evaluate(text, [a, b]), strict=True))
    bits, big = info.bits, [int(x) for x in a]
    other = [int(x) for x in b]

    def wrapped(values: list[int]) -> np.ndarray:
        return np.array([(v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) for v in values], dtype)

    def raw(v: int) -> int:
        return v % (1 << bits)

    pairs = list(zip(big, other, strict=True))
    want = {
        "addi": [x + y for x, y in pairs], "muli": [x * y for x, y in pairs],
        "divsi": [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs],
        "remsi": [abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in pairs],
        "floordivsi": [x // y for x, y in pairs], "ceildivsi": [-(-x // y) for x, y in pairs],
        "divui": [raw(x) // raw(y) for x, y in pairs], "maxui": [max(raw(x), raw(y)) for x, y in pairs],
    }
    for name, values in want.items():
        np.testing.assert_array_equal(got[name], wrapped(values), err_msg=name)
    np.testing.assert_array_equal(got["shrui"][:3], wrapped([raw(x) >> y for x, y in pairs[:3]]))
    np.testing.assert_array_equal(got["shrsi"][:3], wrapped([x >> y for x, y in pairs[:3]]))


def test_small_integers_booleans_and_conversions() -> None:
    text = body("(%a: tensor<3xi8>, %f: tensor<3xf32>) -> (tensor<3xi4>, tensor<3xi1>, tensor<3xi32>, tensor<3xf32>, "
                "tensor<3xi16>, tensor<3xi32>)", """
      %0 = arith.trunci %a : tensor<3xi8> to tensor<3xi4>
      %z = arith.constant dense<0> : tensor<3xi8>
      %1 = arith.cmpi ugt, %a, %z : tensor<3xi8>
      %2 = arith.extsi %1 : tensor<3xi1> to tensor<3xi32>
      %3 = arith.uitofp %a : tensor<3xi8> to tensor<3xf32>
      %4 = arith.fptosi %f : tensor<3xf32> to tensor<3xi16>
      %5 = arith.bitcast %f : tensor<3xf32> to tensor<3xi32>
      return %0, %1, %2, %3, %4, %5 : tensor<3xi4>, tensor<3xi1>, tensor<3xi32>, tensor<3xf32>, tensor<3xi16>,
                                      tensor<3xi32>""")
    f = np.array([1.9, -1.9, 100.0], np.float32)
    nibble, truth, extended, wide, whole, bits = evaluate(text, [np.array([-1, 0, 9], np.int8), f])
    assert nibble.tolist() == [-1, 0, -7]
    assert truth.tolist() == [True, False, True] and truth.dtype == bool
    assert extended.tolist() == [-1, 0, -1]
    assert wide.tolist() == [255.0, 0.0, 9.0]
    assert whole.tolist() == [1, -1, 100]
    np.testing.assert_array_equal(bits, f.view(np.int32))


def test_dense_constants_of_every_width() -> None:
    text = body("() -> (tensor<2xbf16>, tensor<2xi1>, tensor<2x2xi4>, tensor<3xf8E4M3FN>, tensor<2xf16>)", """
      %0 = arith.constant dense<[1.5, 0xFF80]> : tensor<2xbf16>
      %1 = arith.constant dense<[true, false]> : tensor<2xi1>
      %2 = arith.constant dense<[[1, -2], [7, -8]]> : tensor<2x2xi4>
      %3 = arith.constant dense<-2.0> : tensor<3xf8E4M3FN>
      %4 = arith.constant dense<[0.5, 0.1]> : tensor<2xf16>
      return %0, %1, %2, %3, %4 : tensor<2xbf16>, tensor<2xi1>, tensor<2x2xi4>, tensor<3xf8E4M3FN>, tensor<2xf16>""")
    a, b, c, d, e = evaluate(text, [])
    assert a.tolist() == [1.5, -np.inf] and b.tolist() == [True, False] and c.tolist() == [[1, -2], [7, -8]]
    assert d.tolist() == [-2.0] * 3 and e.tolist() == [0.5, float(np.float16(0.1))]


@pytest.mark.parametrize(("name", "function"), [
    ("math.tanh", np.tanh), ("math.exp", np.exp), ("math.rsqrt", lambda x: 1 / np.sqrt(x)), ("math.absf", np.abs),
    ("math.floor", np.floor), ("math.roundeven", np.rint), ("math.cos", np.cos), ("math.log1p", np.log1p),
])
def test_math(name: str, function: Any) -> None:
    text = body("(%x: tensor<9xf64>) -> tensor<9xf64>", f"%0 = {name} %x : tensor<9xf64>\nreturn %0 : tensor<9xf64>")
    x = np.linspace(0.3, 3.7, 9)
    np.testing.assert_array_equal(one(text, x), function(x))


def test_erf_and_float_comparisons_with_nan() -> None:
    import math

    text = body("(%x: f64, %y: f64) -> (f64, i1, i1, i1, f64, f64)", """
      %0 = math.erf %x : f64
      %1 = arith.cmpf olt, %x, %y : f64
      %2 = arith.cmpf ult, %x, %y : f64
      %3 = arith.cmpf une, %x, %y : f64
      %4 = arith.maximumf %x, %y : f64
      %5 = arith.maxnumf %x, %y : f64
      return %0, %1, %2, %3, %4, %5 : f64, i1, i1, i1, f64, f64""")
    e, olt, ult, une, top, number = evaluate(text, [0.5, np.nan])
    assert e == pytest.approx(math.erf(0.5), rel=1e-15)
    assert (bool(olt), bool(ult), bool(une)) == (False, True, True)
    assert np.isnan(top) and number == 0.5


def test_control_flow_and_calls() -> None:
    text = """
    func.func private @twice(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = arith.addf %x, %x : tensor<?xf32>
      return %0 : tensor<?xf32>
    }
    func.func @main(%x: tensor<?xf32>, %c: i1, %n: index) -> (tensor<?xf32>, index) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %0 = scf.if %c -> tensor<?xf32> {
        %1 = func.call @twice(%x) : (tensor<?xf32>) -> tensor<?xf32>
        scf.yield %1 : tensor<?xf32>
      } else {
        scf.yield %x : tensor<?xf32>
      }
      %s = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0) -> index {
        %2 = arith.addi %a, %i : index
        scf.yield %2 : index
      }
      return %0, %s : tensor<?xf32>, index
    }"""
    x = f32(3)
    for condition in (True, False):
        doubled, total = evaluate(text, [x, condition, 5])
        np.testing.assert_array_equal(doubled, x * (2.0 if condition else 1.0))
        assert total == 10
    np.testing.assert_array_equal(evaluate(text, [x], function="twice")[0], x.astype("f8") * 2)


def test_a_branch_inside_a_body_chooses_per_element() -> None:
    text = body("(%x: tensor<?xf32>, %n: index) -> tensor<?xf32>", """
      %z = arith.constant 0.0 : f32
      %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          outs(%x : tensor<?xf32>) {
      ^bb0(%out: f32):
        %i = linalg.index 0 : index
        %c1 = arith.constant 1 : index
        %j = arith.addi %i, %c1 : index
        %c = arith.cmpi slt, %j, %n : index
        %v = scf.if %c -> f32 {
          %e = tensor.extract %x[%j] : tensor<?xf32>
          scf.yield %e : f32
        } else {
          scf.yield %z : f32
        }
        linalg.yield %v : f32
      } -> tensor<?xf32>
      return %0 : tensor<?xf32>""")
    x = f32(5)
    np.testing.assert_array_equal(one(text, x, 5), [*x[1:], 0.0])


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


def encoder_layer(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    """The layer of the bert_layer files: 12 heads, GELU, layer norm after each residual."""
    import scipy.special

    qkv_w, qkv_b, out_w, out_b, up_w, up_b, down_w, down_b, g1, b1, g2, b2 = weights
    b, s, h = x.shape
    qkv = (x @ qkv_w + qkv_b).reshape(b, s, 3, 12, h // 12).transpose(2, 0, 3, 1, 4)
    q, k, v = qkv
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(h // 12)
    power = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (power / power.sum(axis=-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, s, h)
    x = layer_norm(x + mixed @ out_w + out_b, g1, b1)
    up = x @ up_w + up_b
    return layer_norm(x + (up * 0.5 * (1 + scipy.special.erf(up / np.sqrt(2)))) @ down_w + down_b, g2, b2)


@pytest.mark.parametrize(("name", "batch", "length"), [
    ("bert_layer_dyn_seq", 1, 1), ("bert_layer_dyn_seq", 1, 13),
    ("bert_layer_dyn_batch_seq", 1, 1), ("bert_layer_dyn_batch_seq", 3, 5),
])
def test_exported_encoder_layers(name: str, batch: int, length: int) -> None:
    shapes = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), *[(768,)] * 5]
    arrays = [f32(batch, length, 768), *(f32(*s) * np.float32(0.1 if len(s) == 1 else 0.03) for s in shapes)]
    got = one((DATA / f"{name}.mlir").read_text(), *arrays)
    assert compare(got, encoder_layer(*(a.astype("f8") for a in arrays))).ok(1e-7, 1e-7)


def test_exported_residual_block() -> None:
    x, w1, b1, w2, b2 = f32(2, 64, 56, 56), f32(64, 64, 3, 3), f32(64), f32(64, 64, 3, 3), f32(64)
    got = one((DATA / "resnet_block_dyn_batch.mlir").read_text(), x, w1, b1, w2, b2)

    def conv(y: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::9, ::9]
        return np.einsum("nchwij,fcij->nfhw", windows, w.astype("f8"), optimize=True) + b[:, None, None]

    full = conv(np.maximum(conv_dense(x, w1, b1), 0), w2, b2)
    np.testing.assert_allclose(got[:, :, ::9, ::9], np.maximum(full + x[:, :, ::9, ::9], 0), rtol=1e-9, atol=1e-9)


def conv_dense(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """3x3 convolution, nchw, padding 1, by nine shifted products."""
    n, _, height, width = x.shape
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = np.zeros((n, w.shape[0], height, width)) + b[:, None, None]
    for i in range(3):
        for j in range(3):
            shifted = padded[:, :, i:i + height, j:j + width].reshape(n, x.shape[1], -1)
            total += (w[:, :, i, j].astype("f8") @ shifted).reshape(total.shape)
    return total


def test_errors_say_what_is_wrong() -> None:
    check = body("(%x: tensor<?xf32>) -> tensor<?xf32>", """
      %c0 = arith.constant 0 : index
      %d = tensor.dim %x, %c0 : tensor<?xf32>
      %t = arith.cmpi ne, %d, %c0 : index
      cf.assert %t, "must not be empty"
      return %x : tensor<?xf32>""")
    with pytest.raises(ShapeError, match="must not be empty"):
        evaluate(check, [f32(0)])
    with pytest.raises(ShapeError, match="takes 1 arguments, 2 came"):
        evaluate(check, [f32(1), f32(1)])
    with pytest.raises(ShapeError, match="argument 0: wanted tensor<\\?xf32>"):
        evaluate(check, [f32(1, 1)])
    with pytest.raises(OptionError, match="@other was asked for"):
        evaluate(check, [f32(1)], function="other")
    with pytest.raises(DTypeError, match="wanted integers"):
        evaluate(check.replace("f32", "i32"), [f32(1)])
    with pytest.raises(ShapeError, match="loop d1 runs over 3 and over 4"):
        evaluate(MATMUL, [f32(2, 5), f32(5, 3), f32(2, 4)])
    pack = body("(%x: tensor<4x4xf32>, %o: tensor<2x2x2x2xf32>) -> tensor<2x2x2x2xf32>", """
      %0 = linalg.pack %x inner_dims_pos = [0, 1] inner_tiles = [2, 2] into %o : tensor<4x4xf32> -> tensor<2x2x2x2xf32>
      return %0 : tensor<2x2x2x2xf32>""")
    with pytest.raises(IngestError, match=r"linalg.pack at .* does not evaluate"):
        evaluate(pack, [f32(4, 4), f32(2, 2, 2, 2)])


def test_compare() -> None:
    want = np.array([3.0, 4.0, np.inf, np.nan])
    same = compare(want.astype(np.float32), want)
    assert same.ok(0.0, 0.0) and same.norm_error == same.max_error == 0.0
    off = compare(np.array([3.0, 4.5, np.inf, np.nan]), want)
    assert off.norm_error == pytest.approx(0.1) and off.max_error == pytest.approx(0.125) and off.nonfinite_match
    assert not off.ok() and off.ok(0.1001, 0.126)
    assert not compare(np.array([3.0, 4.0, -np.inf, np.nan]), want).nonfinite_match
    assert not compare(np.array([3.0, np.nan, np.inf, np.nan]), want).ok(1, 1)
    assert compare(np.array([np.inf], np.float16), np.array([1e6])).ok()
    assert compare(np.zeros(2), np.zeros(2)).ok(0, 0) and compare(np.zeros((0, 2)), np.zeros((0, 2))).ok(0, 0)
    big = np.array([2**62 + 1])
    assert compare(big, big).ok(0, 0) and not compare(big - 1, big).ok(0, 0)
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        compare(np.zeros(2), np.zeros(3))
