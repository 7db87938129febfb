"""Images at places of a grid, against torch: modes, paddings, ends, and places that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops.grid_sampling import MODES, PADDINGS
from tilewright.runtime.errors import OptionError, ShapeError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("built_here")


class Sample(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(x, grid, **self.options)


def places(n: int, h: int, w: int) -> np.ndarray:
    """In and around an image, both ends among them."""
    found = np.random.default_rng(1).uniform(-2.6, 2.6, (n, h, w, 2)).astype(np.float32)
    found[0, 0, 0], found[0, 0, 1] = (-1, 1), (1, -1)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_torch_models(mode: str, padding: str, align: bool) -> None:
    x, grid = torch.randn(2, 3, 6, 9), torch.from_numpy(places(2, 5, 7))
    module = Sample(mode=mode, padding_mode=padding, align_corners=align).eval()
    fn = tw.compile(module, args=(x, grid))
    np.testing.assert_allclose(np.asarray(fn(x, grid)), module(x, grid).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["f64", "bf16"])
def test_element_types_and_dynamic_images(kind: str) -> None:
    """Weights alone are computed from the grid."""
    g = ops.Graph()
    x, grid = g.input("x", ["B", 2, "H", "W"], kind), g.input("grid", ["B", "P", 4, 2], kind)
    g.output(ops.grid_sample(x, grid, padding="border"))
    fn = tw.compile(g, {"B": (1, 3), "H": (1, 20), "W": (1, 20), "P": (1, 9)})
    dtype = {"f64": torch.float64, "bf16": torch.bfloat16}[kind]
    for b, h, w, p in ((1, 1, 1, 3), (3, 20, 7, 9)):
        a, at = torch.randn(b, 2, h, w).to(dtype), torch.from_numpy(places(b, p, 4)).to(dtype)
        want = torch.nn.functional.grid_sample(a.double(), at.double(), padding_mode="border", align_corners=False)
        got = torch.as_tensor(fn(a, at)).double()
        torch.testing.assert_close(got, want, rtol=1e-2 if kind == "bf16" else 1e-9, atol=1e-2 if kind == "bf16" else 1e-9)


def test_what_lies_outside_is_not_read() -> None:
    """Infinities of an image reach the places beside them alone; a place that is no number gives zero."""
    g = ops.Graph()
    g.output(ops.grid_sample(g.input("x", [1, 1, 4, 4]), g.input("grid", [1, 1, 4, 2])))
    x, grid = np.ones((1, 1, 4, 4), np.float32), np.array([[[[-3, -3], [np.nan, 0], [0, np.inf], [0.5, 0.5]]]], np.float32)
    x[0, 0, 0, 0] = x[0, 0, 3, 3] = np.inf
    np.testing.assert_array_equal(tw.compile(g, {})(x, grid).ravel(), [0, 0, 0, np.inf])


def test_messages() -> None:
    g = ops.Graph()
    x = g.input("x", [1, 2, 4, 4])
    with pytest.raises(OptionError, match="use bilinear, nearest, bicubic and zeros, border, reflection"):
        ops.grid_sample(x, g.input("a", [1, 3, 3, 2]), "linear")
    with pytest.raises(ShapeError, match="wanted two coordinates in the last axis"):
        ops.grid_sample(x, g.input("b", [1, 3, 3, 3]))


@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_channels_that_are_read_at_once(kind: str) -> None:
    """16 channels or more, no multiple of the lanes of a vector; of values that are no numbers none that lies beside
    a place comes in."""
    dtype = {"f32": torch.float32, "f16": torch.float16, "f64": torch.float64}[kind]
    for mode, padding in (("bilinear", "zeros"), ("bicubic", "border")):
        g = ops.Graph()
        x, grid = g.input("x", ["B", 19, 6, "W"], kind), g.input("grid", ["B", "P", 4, 2], kind)
        g.output(ops.grid_sample(x, grid, mode, padding))
        fn = tw.compile(g, {"B": (1, 3), "W": (1, 20), "P": (1, 9)})
        for b, w, p in ((1, 1, 1), (3, 20, 9)):
            a, at = torch.randn(b, 19, 6, w).to(dtype), torch.from_numpy(places(b, p, 4)).to(dtype)
            a[0, 0, 0, 0] = torch.nan if mode == "bilinear" else 1
            want = torch.nn.functional.grid_sample(a.double(), at.double(), mode, padding, align_corners=False)
            bound = {"f32": 1e-4, "f16": 2e-2, "f64": 1e-9}[kind]
            torch.testing.assert_close(torch.as_tensor(fn(a, at)).double(), want, rtol=bound, atol=bound, equal_nan=True)


def test_channels_share_what_depends_on_a_place_alone() -> None:
    """Few channels: vectors along the places walk down the channels."""
    g = ops.Graph()
    g.output(ops.grid_sample(g.input("x", [2, 3, 16, 16]), g.input("grid", [2, 16, 16, 2])))
    assert "rows=8}" in str(tw.compile(g, {}).explain())
