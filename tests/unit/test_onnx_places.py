"""ONNX operators that read or write at computed places: boxes, volumes at a grid, frames of a signal, undone pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.errors import IngestError

onnx = pytest.importorskip("onnx")
ORT = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("built_here")

from onnx.reference import ReferenceEvaluator  # noqa: E402

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(signature: str, line: str, opset: int = 20) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g ({signature}) => (y) {{ {line} }}')


def same(got: Any, want: np.ndarray, bound: float = 1e-5) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(1.0, float(np.abs(want).max(initial=0))))


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_boxes_of_images(mode: str, coordinates: str) -> None:
    """Dynamic images and numbers of boxes, of which some lie outside, are less than an element, or turned over."""
    text = model("float[n, 3, h, w] x, float[r, 4] boxes, int64[r] of",
                 f'y = RoiAlign<output_height = 3, output_width = 2, sampling_ratio = 2, spatial_scale = 0.5, mode = "{mode}", '
                 f'coordinate_transformation_mode = "{coordinates}">(x, boxes, of)', 16)  # fmt: skip
    fn = tw.compile(text, {"n": (1, 4), "h": (1, 20), "w": (1, 20), "r": (0, 9)})
    session = ORT.InferenceSession(text.SerializeToString())
    for n, h, w, r in ((1, 1, 1, 1), (3, 7, 20, 9), (2, 16, 5, 5), (1, 4, 4, 0)):
        corner, size = RNG.uniform(-8, 2.2 * w, (r, 2)), RNG.uniform(-1, 2 * w, (r, 2))
        given = {"x": floats(n, 3, h, w), "boxes": np.hstack([corner, corner + size]).astype(np.float32),
                 "of": RNG.integers(0, n, r)}  # fmt: skip
        same(fn(**given), session.run(None, given)[0] if r else np.zeros((0, 3, 3, 2), np.float32))


def test_boxes_whose_samples_they_decide_are_refused() -> None:
    with pytest.raises(IngestError, match=r"RoiAlign.*sampling_ratio=0.*Export with a sampling_ratio of 1 or more"):
        tw.compile(model("float[1, 3, 8, 8] x, float[2, 4] boxes, int64[2] of", "y = RoiAlign(x, boxes, of)", 16))


@pytest.mark.parametrize(("mode", "padding", "align"),
                         [("linear", "zeros", 0), ("nearest", "border", 1), ("linear", "reflection", 1)])  # fmt: skip
def test_volumes_at_the_places_of_a_grid(mode: str, padding: str, align: int) -> None:
    text = model("float[n, 2, d, h, w] x, float[n, p, q, 3, 3] at",
                 f'y = GridSample<mode = "{mode}", padding_mode = "{padding}", align_corners = {align}>(x, at)')  # fmt: skip
    fn, session = tw.compile(text, dict.fromkeys("ndhwpq", (1, 9))), ORT.InferenceSession(text.SerializeToString())
    for n, d, h, w, p, q in ((1, 1, 1, 1, 1, 1), (2, 3, 7, 5, 4, 9), (1, 9, 2, 1, 3, 1)):
        given = {"x": floats(n, 2, d, h, w), "at": RNG.uniform(-1.4, 1.4, (n, p, q, 3, 3)).astype(np.float32)}
        same(fn(**given), session.run(None, given)[0], 1e-4)


@pytest.mark.parametrize("size", [16, 15, 64])
@pytest.mark.parametrize("window", [True, False])
def test_transforms_of_frames(size: int, window: bool) -> None:
    text = model(f"float[b, l, 1] x, float[{size}] w", "step = Constant<value_int = 5>() "
                 f"length = Constant<value_int = {size}>() y = STFT<onesided = 1>(x, step, {'w' if window else ', length'})", 17)
    fn, reference = tw.compile(text, {"b": (1, 4), "l": (64, 200)}), ReferenceEvaluator(text)
    for b, length in ((1, 64), (3, 101), (2, 200)):
        given = {"x": floats(b, length, 1), "w": np.hanning(size).astype(np.float32)}
        want = reference.run(None, given)[0] if window else _transformed(given["x"][..., 0], size, 5)
        same(fn(**given), want.astype(np.float32), 1e-4)


def _transformed(x: np.ndarray, size: int, step: int) -> np.ndarray:
    frames = np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]
    found = np.fft.rfft(frames.astype(np.float64))
    return np.stack([found.real, found.imag], -1)


def test_transforms_of_complex_frames() -> None:
    text = model("float[b, l, 2] x, float[12] w", "step = Constant<value_int = 4>() y = STFT<onesided = 0>(x, step, w)", 17)
    fn, session = tw.compile(text, {"b": (1, 4), "l": (12, 50)}), ORT.InferenceSession(text.SerializeToString())
    for b, length in ((1, 12), (3, 49)):
        given = {"x": floats(b, length, 2), "w": floats(12)}
        same(fn(**given), session.run(None, given)[0], 1e-4)


@pytest.mark.parametrize("larger", [False, True])
def test_pooling_is_undone(larger: bool) -> None:
    shape = ", s" if larger else ""
    text = model("float[n, 2, h, w] x", "s = Shape(x) v, i = MaxPool<kernel_shape = [2, 3], strides = [2, 3]>(x) "
                 f"y = MaxUnpool<kernel_shape = [2, 3], strides = [2, 3]>(v, i{shape})")  # fmt: skip
    fn, reference = tw.compile(text, {"n": (1, 3), "h": (2, 9), "w": (3, 9)}), ReferenceEvaluator(text)
    for n, h, w in ((1, 2, 3), (3, 8, 9)) if not larger else ((1, 2, 3), (2, 8, 6)):
        given = {"x": floats(n, 2, h, w)}
        same(fn(**given), reference.run(None, given)[0])
