"""Transposed convolutions with steps: which form their phases get, and what they compute, in the reference and compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.transforms.channels_last import ChannelsLast
from tilewright.passes.transforms.sink_reshapes import SinkReshapes

pytestmark = pytest.mark.usefixtures("built_here")

DIMS = {"N": (0, 4), "H": (1, 40), "W": (1, 40)}


Sizes = Sequence["int | str"]


def transposed(places: Sizes, filters: Sequence[int], stride: int, padding: int = 0,
               before: bool = False) -> tuple[ops.Graph, list[Sizes]]:
    """x [N, C, places], w [C, F, taps], bias [F], and their extents; before: x comes from a convolution by c [C, C, 3, 3]."""
    g, c = ops.Graph(), filters[0]
    extents: list[Sizes] = [["N", c, *places], filters, [filters[1]], *([[c, c, 3, 3]] if before else [])]
    x, w, b, *more = (g.input(f"i{n}", list(dims)) for n, dims in enumerate(extents))
    if before:
        x = ops.relu(ops.conv2d(x, more[0], padding=1))
    g.output(ops.conv_transpose(x, w, b, stride=stride, padding=padding))
    return g, extents


def forms(name: str) -> str:
    graph, _ = CASES[name]
    with ir.Context():
        return str(PassPipeline([*recover_passes(), ChannelsLast(), SinkReshapes()]).run(ir.Module.parse(graph.module_text())))


CASES = {
    "one tap": transposed(["H", "W"], (5, 3, 2, 2), 2), "two taps": transposed(["H", "W"], (5, 3, 4, 4), 2, 1),
    "fewer than steps": transposed(["H", "W"], (5, 1, 2, 2), 3), "row": transposed(["H"], (6, 4, 3), 3),
    "row, two taps": transposed(["H"], (6, 4, 8), 4, 2), "volume": transposed(["H", 2, "W"], (4, 2, 4, 2, 4), 2, 1),
    "behind": transposed(["H", "W"], (8, 3, 2, 2), 2, before=True), "odd": transposed(["H", "W"], (5, 3, 5, 5), 2, 2),
    "odd row, wide steps": transposed(["H", "W"], (5, 3, 3, 7), 3, 1), "three taps": transposed(["H", "W"], (5, 3, 3, 3), 2, 1),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    graph, extents = CASES[name]
    used = {str(d) for dims in extents for d in dims} & DIMS.keys()
    fn, random = tw.compile(graph, {n: DIMS[n] for n in used}), np.random.default_rng(0)
    slack = 2e-3 if name in ("behind", "odd") else 0
    for sizes in ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 9, "W": 17}, {"N": 0, "H": 3, "W": 2}, {"N": 3, "H": 40, "W": 5}):
        shapes = [[sizes.get(str(d), d) for d in dims] for dims in extents]
        arrays = [random.integers(-4, 5, shape).astype("f4") for shape in shapes]  # exact sums, but by Winograd
        want = evaluate(graph.module_text(), arrays)[0]
        for threads in (1, 5):
            np.testing.assert_allclose(fn(*arrays, threads=threads), want, rtol=1e-5, atol=slack)


def test_one_tap_is_one_product_of_all_pixels_and_a_copy() -> None:
    text = forms("one tap")
    assert text.count(COPY) == 1 and "tensor<?x5x?xf32>, tensor<5x12xf32>" in text  # pixels; the phases of three filters
    assert "affine_map<(d0, d1, d2, d3) -> (d3, d1)>" in text


def test_phases_of_unlike_taps_read_one_image_and_are_joined_with_channels_last() -> None:
    """So it is copied once, with its padding, and so is what they make."""
    text = forms("three taps")
    copies = [line for line in text.splitlines() if COPY in line]
    assert len(copies) == 2 and "outs(" in copies[0] and "x5xf32>" in copies[0].split("outs(")[1]
    assert "x3xf32>" in copies[1].split("ins(")[1].split(")")[0]
    assert text.count("-> (d6, d3, d4, d5)>") == 1  # filters [c, f, row, column], of four convolutions
    assert text.count("tensor.concat") == 3


def test_the_bias_behind_the_copy_has_the_axes_of_the_copy() -> None:
    """So both are one kernel; the copy stays a kernel of its own beside the product."""
    text = forms("one tap")
    assert "tensor<?x3x?x2x?x2xf32>, tensor<3xf32>" in text


def test_several_taps_of_a_row_are_a_convolution_by_the_phases_of_all_filters() -> None:
    text = forms("row, two taps")
    assert "tensor<?x6x?xf32>, tensor<16x6x2xf32>" in text and text.count(COPY) == 2  # of the filters and the result


def test_few_zeros_make_odd_windows_one_contraction() -> None:
    """5x5 as 6x6, 1.44 times the products; 3x3 as 4x4 were 1.78 times, and stay four."""
    assert [forms(n).count("arith.mulf") for n in ("two taps", "odd", "three taps")] == [1, 1, 4]


def test_behind_a_convolution_phases_stay_channels_last() -> None:
    """Copies of the image and the result, none of what lies between."""
    text = forms("behind")
    assert text.count(COPY) == 2 and "tensor<?x?x2x?x2x3xf32>" in text


def test_what_is_added_to_another_tensor_is_left() -> None:
    """Another start than zeros has the axes of the result, which the product has not."""
    text = """
    #x = affine_map<(n, f, p, r, c, t) -> (n, c, p + t)>
    #w = affine_map<(n, f, p, r, c, t) -> (c, f, t, r)>
    #y = affine_map<(n, f, p, r, c, t) -> (n, f, p, r)>
    func.func @main(%x: tensor<2x3x9xf32>, %w: tensor<3x4x1x2xf32>, %s: tensor<2x4x9x2xf32>) -> tensor<2x4x9x2xf32> {
      %y = linalg.generic {indexing_maps = [#x, #w, #y],
                           iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
        ins(%x, %w : tensor<2x3x9xf32>, tensor<3x4x1x2xf32>) outs(%s : tensor<2x4x9x2xf32>) { ^bb0(%a: f32, %b: f32, %o: f32):
          %m = arith.mulf %a, %b : f32
          %r = arith.addf %o, %m : f32
          linalg.yield %r : f32 } -> tensor<2x4x9x2xf32>
      return %y : tensor<2x4x9x2xf32>
    }"""
    with ir.Context():
        assert COPY not in str(PassPipeline([ChannelsLast()]).run(ir.Module.parse(text)))
