"""Padded convolutions, compiled and called: padding left out, transforms, layouts, constant and other filters, varying sizes."""

from __future__ import annotations

import numpy as np
import pytest
from allpairspy import AllPairs

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import compare, evaluate

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(3)
CHANNELS, FILTERS = 160, 48


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def graph(layout: str, size: tuple[int | str, int | str], stride: int, dilation: int) -> ops.Graph:
    """relu(conv3x3(x) + bias), padded so that the filter's middle passes over every pixel."""
    g = ops.Graph()
    image = (CHANNELS, *size) if layout == "nchw" else (*size, CHANNELS)
    filters = (FILTERS, CHANNELS, 3, 3) if layout == "nchw" else (3, 3, CHANNELS, FILTERS)
    x, w, b = g.input("x", ["B", *image]), g.input("w", list(filters)), g.input("b", [FILTERS])
    g.output(ops.relu(ops.conv2d(x, w, b, stride=stride, padding=dilation, dilation=dilation, layout=layout)))
    return g


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stride,dilation,layout,constant", [
    (*steps, *rest) for steps, *rest in AllPairs([[(1, 1), (2, 1), (1, 2)], ["nchw", "nhwc"], [True, False]])])
def test_small_images(layout: str, constant: bool, stride: int, dilation: int) -> None:
    g = graph(layout, (7, 5), stride, dilation)
    shape = (CHANNELS, 7, 5) if layout == "nchw" else (7, 5, CHANNELS)
    w = f32(*((FILTERS, CHANNELS, 3, 3) if layout == "nchw" else (3, 3, CHANNELS, FILTERS)))
    b = f32(FILTERS)
    given = {"constants": {"arg1": w, "arg2": b}} if constant else {}
    text = g.module_text()
    results = []
    for threads in (1, 2):
        options = tw.CompileOptions(threads=threads)
        fn = tw.compile(text, {"B": (1, 4)}, options=options, **given)  # type: ignore[arg-type]
        assert "taps=true" in str(fn.explain(B=2))
        for batch in (1, 3):
            x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
            got = fn(x) if constant else fn(x, w, b)
            results.append(got.tobytes())
            assert compare(got, evaluate(text, [x, w, b])[0]).ok()
    assert results[:2] == results[2:]


def test_sizes_that_vary() -> None:
    """Small images take taps one by one, large ones whole windows; both are right."""
    g = graph("nhwc", ("H", "W"), 1, 1)
    text, w, b = g.module_text(), f32(3, 3, CHANNELS, FILTERS), f32(FILTERS)
    fn = tw.compile(text, {"B": (1, 2), "H": (1, 60), "W": (1, 60)}, constants={"arg1": w, "arg2": b})
    assert "taps=true" in str(fn.explain(B=1, H=7, W=7)) and "taps=true" not in str(fn.explain(B=1, H=60, W=60))
    for size in ((1, 1), (1, 9), (7, 6), (40, 3)):
        x = f32(2, *size, CHANNELS)
        assert compare(fn(x), evaluate(text, [x, w, b])[0]).ok()


@pytest.mark.parametrize("layout,constant", [("nchw", True), ("nhwc", False)])
def test_larger_images_are_transformed_unless_told_not_to(layout: str, constant: bool) -> None:
    text, b = graph(layout, (19, 22), 1, 1).module_text(), f32(FILTERS)
    w = f32(*((FILTERS, CHANNELS, 3, 3) if layout == "nchw" else (3, 3, CHANNELS, FILTERS)))
    given = {"constants": {"arg1": w, "arg2": b}} if constant else {}
    x = f32(3, *((CHANNELS, 19, 22) if layout == "nchw" else (19, 22, CHANNELS)))
    for winograd in (True, False):
        results = []
        for threads in (1, 2):
            options = tw.CompileOptions(threads=threads, winograd=winograd)
            fn = tw.compile(text, {"B": (1, 4)}, options=options, **given)  # type: ignore[arg-type]
            assert ("host_winograd" in str(fn.explain(B=2))) == winograd
            results.append(fn(x) if constant else fn(x, w, b))
        assert results[0].tobytes() == results[1].tobytes()
        assert compare(results[0], evaluate(text, [x, w, b])[0]).ok()


@pytest.mark.parametrize("window,step,filters,transformed", [
    (3, 1, 48, True), (3, 2, 64, True), (2, 2, 48, False), (5, 1, 48, True), (7, 1, 48, False)])
def test_sequences_are_transformed_where_that_saves_products(window: int, step: int, filters: int, transformed: bool) -> None:
    g = ops.Graph()
    x, w = g.input("x", ["B", CHANNELS, "W"]), g.input("w", [filters, CHANNELS, window])
    g.output(ops.relu(ops.conv1d(x, w, stride=step, padding=window // 2)))
    text, weight = g.module_text(), f32(filters, CHANNELS, window)
    for winograd in (True, False):
        results = []
        for threads in (1, 2):
            options = tw.CompileOptions(threads=threads, winograd=winograd)
            fn = tw.compile(text, {"B": (1, 4), "W": (7, 300)}, options=options, constants={"arg1": weight})
            found = "host_winograd" in str(fn.explain(B=2, W=200))
            assert found == (transformed and winograd) or (step > 1 and not found)  # by steps of two: as the CPU's caches are
            for size in (7, 64, 200):
                data = np.random.default_rng(size).standard_normal((2, CHANNELS, size)).astype(np.float32)
                got = fn(data)
                results.append(got.tobytes())
                assert compare(got, evaluate(text, [data, weight])[0]).ok()
        assert results[:3] == results[3:]
