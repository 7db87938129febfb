"""Images summed from windows, and padding that goes around, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError, ShapeError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("built_here")

# image, kernel, stride, padding, dilation
WINDOWS = [
    ((9, 7), 3, 1, 1, 1),  # the whole kernel at once
    ((8, 12), 4, 4, 0, 1),  # nothing overlaps
    ((10, 10), 4, 2, 1, 1),  # whole steps
    ((13, 11), (5, 3), (2, 3), (2, 0), 1),  # steps that a kernel is no multiple of
    ((12, 14), 5, 1, 2, 1),  # rows after columns
    ((11, 9), (2, 3), 1, (0, 1), (3, 2)),
    ((11, 12), 3, 2, 3, 2),  # elements between those of a kernel, and steps
    ((8, 9), 2, 3, 1, 1),  # places that no window covers
    ((1, 1), 1, 1, 0, 1),
]


class Fold(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__()
        self.given = given

    def forward(self, x: Any) -> Any:
        shape, kernel, stride, padding, dilation = self.given
        return torch.nn.functional.fold(x, shape, kernel, dilation, padding, stride)


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def windows_of(given: tuple[Any, ...], n: int, c: int, dtype: Any) -> Any:
    shape, kernel, stride, padding, dilation = given
    counts = [(s + 2 * p - d * (k - 1) - 1) // t + 1
              for s, k, t, p, d in zip(shape, pair(kernel), pair(stride), pair(padding), pair(dilation), strict=True)]
    return torch.randn(n, c * pair(kernel)[0] * pair(kernel)[1], counts[0] * counts[1]).to(dtype)


@pytest.mark.parametrize("given", WINDOWS, ids=str)
def test_fold(given: tuple[Any, ...]) -> None:
    x, module = windows_of(given, 3, 2, torch.float32), Fold(given).eval()
    fn = tw.compile(module, args=(x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=4)},))
    for part in (x, x[:1]):
        torch.testing.assert_close(torch.as_tensor(fn(part)), module(part), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_fold_of_other_types_without_a_batch(kind: str) -> None:
    given = ((9, 7), 3, 1, 1, 1)
    x, module = windows_of(given, 1, 2, getattr(torch, kind))[0], Fold(given).eval()
    got = torch.as_tensor(tw.compile(module, args=(x,))(x))
    want = torch.nn.functional.fold(x.double(), (9, 7), 3, 1, 1, 1)
    assert got.dtype is x.dtype
    bound = 1e-12 if kind == "float64" else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound)


def test_fold_of_dynamic_images_and_values_that_are_no_numbers() -> None:
    """A window's NaN or infinity is in the elements that it covers alone."""
    g = ops.Graph()
    image = g.input("y", ["H", "W"])
    g.output(ops.fold(g.input("x", ["N", 12, "(H - 1) * (W - 1)"]), ["H", "W"], 2) + image)
    fn = tw.compile(g, {"N": (1, 2), "H": (2, 9), "W": (2, 40)})
    for n, h, w in ((1, 2, 2), (2, 9, 5), (1, 3, 40)):
        x = torch.randn(n, 12, (h - 1) * (w - 1))
        x[0, 0, 0], x[0, 5, -1] = torch.nan, torch.inf
        y = torch.randn(h, w)
        want = torch.nn.functional.fold(x, (h, w), 2) + y
        torch.testing.assert_close(torch.as_tensor(fn(y, x)), want, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("widths", [(2, 2, 2, 2), (0, 3), (1, 2, 0, 0, 3, 1), (-1, 2, 0, -2), (5, 5)], ids=str)
def test_circular_padding(widths: tuple[int, ...], kind: str) -> None:
    class Pad(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.pad(x, widths, mode="circular")

    shape = (3, 2, 4, 5, 6) if len(widths) == 6 else (3, 2, 5, 6) if len(widths) == 4 else (3, 2, 5)
    x = (torch.randn(shape) * 9).to(getattr(torch, kind))
    fn = tw.compile(Pad().eval(), args=(x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=4)},))
    for part in (x, x[:1]):
        assert torch.equal(torch.as_tensor(fn(part)), Pad()(part))


def test_circular_padding_of_axes_that_may_be_shorter() -> None:
    """Goes around as often as the width wants; along the last axis only within it."""
    g = ops.Graph()
    g.output(ops.pad(g.input("x", ["H", "W"]), [5, 2], [1, 3], mode="circular"))
    fn = tw.compile(g, {"H": (1, 9), "W": (3, 40)})
    for h, w in ((1, 3), (2, 40), (9, 17)):
        x = np.random.default_rng(h).standard_normal((h, w)).astype(np.float32)
        np.testing.assert_array_equal(np.asarray(fn(x)), np.pad(x, ((5, 1), (2, 3)), mode="wrap"))


def test_mistakes() -> None:
    g = ops.Graph()
    x = g.input("x", [1, 12, 16])
    with pytest.raises(ShapeError, match="multiple of the 9"):
        ops.fold(x, (6, 6), 3)
    with pytest.raises(ShapeError, match="height and width"):
        ops.fold(x, (6,), 2)
    with pytest.raises(OptionError, match="stride"):
        ops.fold(x, (5, 5), 2, stride=0)
    with pytest.raises(ShapeError):
        ops.fold(x, (9, 9), 2)
