"""ONNX's quantised operators compiled for the host: bytes are multiplied, and results are those of integers, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_workloads import windows

import tilewright as tw
from tilewright.runtime.host.host_cpu import cpu_features

pytestmark = pytest.mark.usefixtures("built_here")

onnx = pytest.importorskip("onnx")
HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'


def compiled(text: str, target: str, **constants: np.ndarray) -> Any:
    model = onnx.parser.parse_model(HEAD + text)
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return tw.compile(model, {"B": tw.Dim(1, 4)}, target=target)


@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
def test_convolution_pads_with_the_zero_point(target: str) -> None:
    """u8 images about 120, filters of s8 with a bias for each, then codes of u8; extremes in both."""
    rng = np.random.default_rng(0)
    x = rng.choice(np.array([0, 120, 255], np.uint8), (2, 5, 9, 9))
    w = rng.choice(np.array([-128, 127], np.int8), (19, 5, 3, 3))
    scales = (0.001 + 0.01 * rng.random(19)).astype(np.float32)
    bias = rng.integers(-1000, 1000, 19).astype(np.int32)
    fn = compiled("""g (uint8[B, 5, 9, 9] x) => (uint8[B, 19, 5, 5] y) {
        y = QLinearConv<pads = [1, 1, 1, 1], strides = [2, 2], kernel_shape = [3, 3]>(x, sx, zx, w, sw, zw, sy, zy, b)
    }""", target, w=w, sw=scales, zw=np.zeros(19, np.int8), b=bias, sx=np.float32(0.02), zx=np.uint8(120), sy=np.float32(0.4),
                  zy=np.uint8(3))
    assert ("quads" if target == "host" and "avx512vnni" in cpu_features() else "pairs") in str(fn.explain(B=2))
    padded = np.pad(x.astype(np.int64) - 120, ((0, 0), (0, 0), (1, 1), (1, 1))).transpose(0, 2, 3, 1)
    total = np.einsum("nhwijc,fcij->nfhw", windows(padded, 3, 3, 2, 1), w.astype(np.int64)) + bias[:, None, None]
    scaled = total.astype(np.float32) * (np.float32(0.02) * scales)[:, None, None] / np.float32(0.4)
    np.testing.assert_array_equal(fn(x), np.clip(np.rint(scaled) + 3, 0, 255).astype(np.uint8))


def test_product_between_quantised_tensors() -> None:
    """DequantizeLinear on both sides, a scale for each column, a bias: integers are summed, then scaled once."""
    rng = np.random.default_rng(1)
    w = rng.integers(-128, 128, (40, 33)).astype(np.int8)
    scales = (0.001 + 0.01 * rng.random(33)).astype(np.float32)
    bias = rng.standard_normal(33).astype(np.float32)
    fn = compiled("""g (uint8[B, 40] x, float s, uint8 z) => (float[B, 33] y) {
        a = DequantizeLinear(x, s, z)
        c = DequantizeLinear<axis = 1>(w, sw, zw)
        m = MatMul(a, c)
        y = Add(m, b)
    }""", "host", w=w, sw=scales, zw=np.zeros(33, np.int8), b=bias)
    x = rng.choice(np.array([0, 255], np.uint8), (4, 40))
    scale, zero = np.float32(0.03), np.uint8(77)
    total = (x.astype(np.int64) - 77) @ w.astype(np.int64)
    wanted = total * scale.astype(np.float64) * scales + bias
    np.testing.assert_allclose(fn(x, np.array(scale), np.array(zero)), wanted, rtol=3e-7, atol=1e-5)


@pytest.mark.parametrize("kind,axis,block,zeros", [("INT4", 0, 16, True), ("UINT4", 1, 16, False), ("INT4", 1, 0, True),
                                                   ("UINT4", 0, 32, True)])  # fmt: skip
def test_weights_of_four_bits_stay_in_codes(kind: str, axis: int, block: int, zeros: bool) -> None:
    """DequantizeLinear of a constant [K, N], or [N, K] read transposed, with blocks along K or a scale for each column."""
    rng, k, n = np.random.default_rng(2), 64, 24
    low, high = (-8, 8) if kind == "INT4" else (0, 16)
    shape = (n, k) if block and axis == 1 else (k, n)
    at = (n,) if not block else (k // block, n) if axis == 0 else (n, k // block)
    codes, points = rng.integers(low, high, shape), rng.integers(low, high, at)
    scales = (0.1 + rng.random(at)).astype(np.float32)

    def stored(name: str, array: np.ndarray) -> Any:
        return onnx.helper.make_tensor(name, getattr(onnx.TensorProto, kind), array.shape, array.reshape(-1))

    swap = "t = Transpose(c)" if shape == (n, k) else "t = Identity(c)"
    model = onnx.parser.parse_model(HEAD + f"""g (float[B, {k}] x) => (float[B, {n}] y) {{
        c = DequantizeLinear<axis = {axis}, block_size = {block}>(w, s{', z' if zeros else ''})
        {swap}
        y = MatMul(x, t)
    }}""")
    model.graph.initializer.extend([stored("w", codes), onnx.numpy_helper.from_array(scales, "s")])
    model.graph.initializer.extend([stored("z", points)] if zeros else [])
    fn = tw.compile(model, {"B": tw.Dim(1, 4)})
    spread = (lambda a: np.repeat(a, block, axis)) if block else (lambda a: a[None])
    want = (codes - (spread(points) if zeros else 0)) * spread(scales.astype(np.float64))
    x = rng.standard_normal((3, k)).astype(np.float32)
    assert "host_codes" in str(fn.explain(B=3))
    np.testing.assert_allclose(fn(x), x @ (want.T if shape == (n, k) else want), rtol=1e-4, atol=1e-3)
