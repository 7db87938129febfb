"""ONNX's quantised operators compiled for the host: bytes are multiplied, and results are those of integers, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matmul_workloads import windows

import tilewright as tw
from tilewright.runtime.host.host_cpu import cpu_features

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
