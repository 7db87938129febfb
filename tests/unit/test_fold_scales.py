"""Batch norms behind convolutions and dense layers go into their weights: one kernel, and what NumPy computes in f64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(0)


def _compiled(groups: int, kernel: int, bias: bool, layout: str) -> tuple[tw.CompiledFunction, dict[str, np.ndarray]]:
    """relu(batchnorm(conv2d(x))) + x with constants, and these."""
    channels = 8
    shape = (channels, channels // groups, kernel, kernel) if layout == "nchw" else (kernel, kernel, channels // groups, channels)
    given = {"w": RNG.standard_normal(shape), "b": RNG.standard_normal(channels), "mean": RNG.standard_normal(channels),
             "var": RNG.uniform(0.5, 2, channels), "gamma": RNG.uniform(0.5, 2, channels), "beta": RNG.standard_normal(channels)}
    given = {n: v.astype(np.float32) for n, v in given.items()}
    g = ops.Graph()
    image = ["N", channels, "H", 7] if layout == "nchw" else ["N", "H", 7, channels]
    x, tensors = g.input("x", image), {n: g.input(n, list(v.shape)) for n, v in given.items()}
    y = ops.conv2d(x, tensors["w"], tensors["b"] if bias else None, padding=kernel // 2, groups=groups, layout=layout)
    y = ops.batchnorm(y, (tensors["mean"], tensors["var"]), tensors["gamma"], tensors["beta"], axis=image.index(channels))
    g.output(ops.add(ops.relu(y), x))
    bound = {f"arg{1 + i}": v for i, v in enumerate(given.values())}
    return tw.compile(g, {"N": (0, 3), "H": (1, 9)}, constants=bound), given


def _want(x: np.ndarray, given: dict[str, np.ndarray], groups: int, bias: bool, layout: str) -> np.ndarray:
    a = {n: v.astype(np.float64) for n, v in given.items()}
    if layout == "nhwc":
        x, a["w"] = x.transpose(0, 3, 1, 2), a["w"].transpose(3, 2, 0, 1)
    kernel, each = a["w"].shape[2], x.shape[1] // groups
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
    parts = [np.einsum("nchwij,fcij->nfhw", windows[:, k * each : (k + 1) * each], a["w"][k * each : (k + 1) * each])
             for k in range(groups)]
    y = np.concatenate(parts, 1)
    row = {n: v[:, None, None] for n, v in a.items() if n != "w"}
    y = (y + (row["b"] if bias else 0) - row["mean"]) / np.sqrt(row["var"] + 1e-5) * row["gamma"] + row["beta"]
    y = np.maximum(y, 0) + x
    return y if layout == "nchw" else y.transpose(0, 2, 3, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("groups,kernel,bias,layout", [(1, 1, True, "nchw"), (2, 3, True, "nchw"), (8, 3, False, "nchw"),
                                                       (1, 3, True, "nhwc")])
def test_a_norm_is_in_the_weights(groups: int, kernel: int, bias: bool, layout: str) -> None:
    fn, given = _compiled(groups, kernel, bias, layout)
    names = [t.kernels[0].symbol for t in fn.program.tables]
    last = next(n for n in names if "max" in n)
    assert "mul" not in last and "add_max_add" in last, names
    assert len(names) == (2 if layout == "nhwc" else 1), names
    for n, h in ((3, 9), (1, 1), (0, 4)):
        x = RNG.standard_normal((n, 8, h, 7) if layout == "nchw" else (n, h, 7, 8)).astype(np.float32)
        want = _want(x, given, groups, bias, layout)
        assert np.abs(fn(x) - want).max(initial=0) <= 4e-6 * max(1.0, np.abs(want).max(initial=0))


def test_weights_of_16_bits_are_left_as_they_are() -> None:
    g = ops.Graph()
    x, w, s = g.input("x", ["N", 8], "bf16"), g.input("w", [8, 16], "bf16"), g.input("s", [16], "bf16")
    g.output(ops.multiply(ops.dense(x, w), s))
    constants = {"arg1": RNG.standard_normal((8, 16)), "arg2": RNG.uniform(0.5, 2, 16)}
    import ml_dtypes

    fn = tw.compile(g, {"N": (1, 4)}, constants={n: v.astype(ml_dtypes.bfloat16) for n, v in constants.items()})
    assert any("mul" in t.kernels[0].symbol for t in fn.program.tables)
