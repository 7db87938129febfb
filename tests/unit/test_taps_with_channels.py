"""Places of a window and their few channels as one loop: when they are, that it computes the same, compiled too."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.mlir import ir
from tilewright.passes.transforms.taps_with_channels import TapsWithChannels
from tilewright.runtime.tensor import DType

WIDE = TapsWithChannels(bits=32)
BF16 = np.dtype(ml_dtypes.bfloat16)


def text(filters: str = "fijc", kernel: tuple[int, int] = (3, 4), channels: int = 3, strides: tuple[int, int] = (2, 3),
         dilations: tuple[int, int] = (2, 1), kind: str = "f32", swapped: bool = False) -> str:
    """A convolution of 5 filters over images [n, 13, 17, c]; filters: how their axes lie."""
    extents = dict(zip("fijc", (5, *kernel, channels), strict=True))
    h, w = ((size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip((13, 17), kernel, strides, dilations, strict=True))
    image, out = f"tensor<?x13x17x{channels}x{kind}>", f"tensor<?x{h}x{w}x5x{kind}>"
    weights = f"tensor<{'x'.join(str(extents[a]) for a in filters)}x{kind}>"
    places = [f"{x} * {s} + {y} * {d}" for x, y, s, d in zip("hw", "ij", strides, dilations, strict=True)]
    read, by = f"affine_map<(n, h, w, f, i, j, c) -> (n, {', '.join(places)}, c)>", \
        f"affine_map<(n, h, w, f, i, j, c) -> ({', '.join(filters)})>"
    ins, types, maps = ("%x, %w", f"{image}, {weights}", f"{read}, {by}") if not swapped else \
        ("%w, %x", f"{weights}, {image}", f"{by}, {read}")
    add, multiply = ("arith.addi", "arith.muli") if kind[0] == "i" else ("arith.addf", "arith.mulf")
    return f"""func.func @main(%x: {image} {{tw.dims = ["B", 13, 17, {channels}]}}, %w: {weights},
        %z: {out} {{tw.dims = ["B", {h}, {w}, 5]}}) -> {out} {{
      %y = linalg.generic {{indexing_maps = [{maps}, affine_map<(n, h, w, f, i, j, c) -> (n, h, w, f)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}}
        ins({ins} : {types}) outs(%z : {out}) {{ ^bb0(%a: {kind}, %b: {kind}, %t: {kind}):
          %m = {multiply} %a, %b : {kind}
          %s = {add} %t, %m : {kind}
          linalg.yield %s : {kind} }} -> {out}
      return %y : {out}
    }}"""


def joined(source: str, options: TapsWithChannels) -> bool:
    with ir.Context():
        return "tensor.collapse_shape" in str(PassPipeline([options]).run(ir.Module.parse(source)))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("filters", ["fcij", "fijc", "ijcf", "cfji", "jicf"])
def test_it_computes_the_same(filters: str, swapped: bool) -> None:
    """However the filters lie: behind the pass their rows of places and channels are one axis, in front of the filters'."""
    source, rng = text(filters, swapped=swapped), np.random.default_rng(0)
    with ir.Context():
        after = str(PassPipeline([WIDE]).run(ir.Module.parse(source)))
    assert "d2 * 9 + d5" in after and any(f"tensor<{kernel}x5xf32>" in after for kernel in ("3x12", "12x3"))
    extents = dict(zip("fijc", (5, 3, 4, 3), strict=True))
    shapes = ((2, 13, 17, 3), tuple(extents[a] for a in filters), (2, 5, 5, 5))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    (got,), (want,) = evaluate(after, arrays), evaluate(source, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change,options,found", [
    ({}, WIDE, True),
    ({"channels": 4}, TapsWithChannels(channels=4, bits=32), True),
    ({"channels": 4}, TapsWithChannels(channels=3, bits=32), False),
    ({"dilations": (1, 2)}, WIDE, False),  # places of a row are no run
    ({"kernel": (3, 1)}, WIDE, False),
    ({}, TapsWithChannels(), False),  # 32 bits
    ({"kind": "f16"}, TapsWithChannels(), True),
    ({"kind": "i8"}, TapsWithChannels(), True),
], ids=str)
def test_where_it_applies(change: dict[str, object], options: TapsWithChannels, found: bool) -> None:
    assert joined(text(**change), options) is found  # type: ignore[arg-type]


@pytest.mark.parametrize("kind,pairs,found", [("f16", False, False), ("f16", True, False), ("bf16", False, False),
                                              ("bf16", True, True), ("i8", False, True)])
def test_windows_that_winograd_takes_are_left_where_there_are_no_words(kind: str, pairs: bool, found: bool) -> None:
    source = text(kernel=(3, 3), strides=(1, 1), dilations=(1, 1), kind=kind)
    assert joined(source, TapsWithChannels(pairs=pairs)) is found
    assert joined(text(kernel=(3, 3), strides=(2, 1), dilations=(1, 1), kind=kind), TapsWithChannels(pairs=pairs))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("built_here")
@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
@pytest.mark.parametrize("channels,filters,kernel,stride,padding", [(3, 64, 7, 2, 3), (3, 33, 4, 4, 0), (1, 16, 5, 2, 2),
                                                                    (14, 40, 5, 1, 2), (5, 130, 11, 4, 2)])
def test_images_with_channels_first(channels: int, filters: int, kernel: int, stride: int, padding: int, target: str) -> None:
    """bf16, against sums in float64; one place that is no number reaches the windows over it, and no others."""
    rng, (h, w) = np.random.default_rng(1), (26, 31)
    f = (rng.standard_normal((filters, channels, kernel, kernel)) / kernel).astype(BF16)
    g = ops.Graph()
    x = g.input("x", ["B", channels, h, w], DType.BF16)
    g.output(ops.conv2d(x, g.input("w", f.shape, DType.BF16), stride=stride, padding=padding))
    fn = tw.compile(g, {"B": (1, 4)}, target, constants={"w": f})
    for batch, threads in itertools.product((1, 3), (1, 2)):
        a = rng.standard_normal((batch, channels, h, w)).astype(BF16)
        a[-1, channels // 2, 12, 13] = np.nan
        wide = np.pad(a.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
        seen = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
        want = np.einsum("nchwij,fcij->nfhw", seen, f.astype(np.float64))
        assert 0 < np.isnan(want).sum() < want.size // 2
        np.testing.assert_allclose(fn(a, threads=threads).astype(np.float64), want, rtol=1e-2, atol=2e-2)
