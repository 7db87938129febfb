"""Elements of a convolution's window that stand on padding alone wherever it stands are left out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from unit.test_ops import conv_reference

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.ops.sliding_windows import SlidingWindow, layout_of
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.target import Target

RNG = np.random.default_rng(6)
FORM = layout_of("conv1d", "ncw", 1)


def window(most: int, extent: int, stride: int, dilation: int, pads: tuple[int, int]) -> tuple[SlidingWindow, tuple[int, int]]:
    """A window over an axis of up to so many elements, and what of it is left."""
    g = ops.Graph(ranges={"W": (0, most)})
    x = g.input("x", [1, 1, "W"])
    cut, [left] = SlidingWindow.of("conv1d", x, FORM, [extent], stride=stride, dilation=dilation, padding=[pads]).cut(x, FORM)
    return cut, left


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("most", "extent"), [*product(range(1, 5), range(1, 8))])
def test_results_are_the_same(most: int, extent: int) -> None:
    """All axes of up to `most` elements, whatever the padding, the steps and the dilation."""
    w = RNG.standard_normal((1, 1, extent))
    for low, high, stride, dilation in product(range(5), range(5), (1, 2, 3), (1, 2, 3)):
        cut, (begin, end) = window(most, extent, stride, dilation, (low, high))
        assert min(cut.padding[0]) >= 0 and cut.extents == (end - begin,)
        for width in range(1, most + 1):
            if width + low + high > dilation * (extent - 1):
                x = RNG.standard_normal((1, 1, width))
                whole = conv_reference(x, w, stride, [(low, high)], dilation, 1)
                np.testing.assert_array_equal(conv_reference(x, w[..., begin:end], stride, cut.padding, dilation, 1), whole)


@pytest.mark.parametrize(("most", "extent", "pads", "left"), [
    (2, 16, (8, 8), (6, 10)), (2, 5, (2, 2), (1, 4)), (1, 3, (1, 1), (1, 2)), (4, 5, (2, 2), (0, 5)), (3, 5, (2, 2), (0, 5)),
    (100, 3, (1, 1), (0, 3)), (1, 3, (2, 0), (2, 3)), (1, 3, (0, 2), (0, 1)), (2, 2, (0, 0), (0, 2)),
])
def test_what_is_left(most: int, extent: int, pads: tuple[int, int], left: tuple[int, int]) -> None:
    assert window(most, extent, 1, 1, pads)[1] == left


def graph(ranges: dict[str, tuple[int, int]], groups: int = 1) -> ops.Graph:
    g = ops.Graph(ranges=ranges)
    x, w = g.input("x", ["N", 4, "H", 2]), g.input("w", [4, 4 // groups, 7, 5])
    g.output(ops.conv2d(x, w, padding=(3, 2), groups=groups))
    return g


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_compiled_and_by_the_reference(groups: int) -> None:
    """Taps of both axes, of which H is one to three elements."""
    g, options = graph({"N": (1, 4), "H": (1, 3)}, groups), tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    assert "cf.assert" in g.module_text()
    fn = tw.compile(g, {"N": (1, 4), "H": (1, 3)}, options=options)
    assert not fn.program.checks
    w = RNG.standard_normal((4, 4 // groups, 7, 5)).astype(np.float32)
    for n, h in ((1, 1), (2, 2), (4, 3)):
        x = RNG.standard_normal((n, 4, h, 2)).astype(np.float32)
        wanted = conv_reference(x.astype("f8"), w.astype("f8"), 1, ((3, 3), (2, 2)), 1, groups)
        assert compare(evaluate(g.module_text(), [x, w])[0].astype("f4"), wanted).ok() and compare(fn(x, w), wanted).ok()


def test_a_call_outside_the_range_is_refused() -> None:
    """Where others run: the elements that it would need are gone."""
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")), out_of_range="fallback")
    fn = tw.compile(graph({"N": (1, 4), "H": (1, 3)}), {"N": (1, 4), "H": (1, 3)}, options=options)
    w = RNG.standard_normal((4, 4, 7, 5)).astype(np.float32)
    x = RNG.standard_normal((9, 4, 3, 2)).astype(np.float32)
    assert compare(fn(x, w), conv_reference(x.astype("f8"), w.astype("f8"), 1, ((3, 3), (2, 2)), 1, 1)).ok()
    with pytest.raises(ShapeError, match="axis 2 is longer than its range says"):
        fn(RNG.standard_normal((1, 4, 4, 2)).astype(np.float32), w)
