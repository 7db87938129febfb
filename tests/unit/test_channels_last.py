"""Convolutions with channels first: what channels-last leaves to do, and that it computes the same; transposed copies."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_harness import T, at_edge, guarded, load, workload

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.transforms.channels_last import ChannelsLast

IDENTITY = "affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>"
PER_CHANNEL = "affine_map<(d0, d1, d2, d3) -> (d1)>"
EACH_CHANNEL = """{indexing_maps = [affine_map<(n, c, h, w, i, j) -> (n, c, h + i, w + j)>,
    affine_map<(n, c, h, w, i, j) -> (c, i, j)>, affine_map<(n, c, h, w, i, j) -> (n, c, h, w)>],
    iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}"""
MULTIPLY_ADD = """{ ^bb0(%a: f32, %f: f32, %t: f32):
    %m = arith.mulf %a, %f : f32
    %s = arith.addf %t, %m : f32
    linalg.yield %s : f32 }"""
PLAIN = ChannelsLast()


def convolution(name: str, image: str, filters: tuple[int, int, int, int], size: tuple[int, int], stride: int = 1,
                dilation: int = 1, start: str | None = None) -> str:
    """%name = conv of the value %image_in (extents ?xCxHxW of `size`) with %wname; %name has extents ?xFxHxW."""
    f, c, kh, kw = filters
    h, w = ((s - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(size, (kh, kw), strict=True))
    t = f"tensor<?x{f}x{h}x{w}xf32>"
    init = f"%{start}" if start else f"%{name}_z"
    return f"""%{name}_e = tensor.empty(%b) : {t}
      %{name}_z = linalg.fill ins(%zero : f32) outs(%{name}_e : {t}) -> {t}
      %{name} = linalg.conv_2d_nchw_fchw {{
        strides = dense<{stride}> : tensor<2xi64>, dilations = dense<{dilation}> : tensor<2xi64>}}
        ins(%{image}, %w{name} : tensor<?x{c}x{size[0]}x{size[1]}xf32>, tensor<{f}x{c}x{kh}x{kw}xf32>)
        outs({init} : {t}) -> {t}"""


def padded(name: str, image: str, c: int, size: tuple[int, int]) -> str:
    """%name = %image with one zero around rows and columns."""
    return f"""%{name} = tensor.pad %{image} low[0, 0, 1, 1] high[0, 0, 1, 1] {{ ^bb0(%i: index, %j: index, %k: index, %l: index):
        tensor.yield %zero : f32 }} : tensor<?x{c}x{size[0]}x{size[1]}xf32> to tensor<?x{c}x{size[0] + 2}x{size[1] + 2}xf32>"""


def function(arguments: str, body: str, result: str, kind: str) -> str:
    return f"""func.func @main(%x: tensor<?x3x9x10xf32> {{tw.dims = ["B", 3, 9, 10]}}, {arguments}) -> {kind} {{
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0.0 : f32
      %b = tensor.dim %x, %c0 : tensor<?x3x9x10xf32>
      {body}
      return %{result} : {kind}
    }}"""


def rewritten(text: str, options: ChannelsLast = PLAIN) -> str:
    with ir.Context():
        return str(PassPipeline([options]).run(ir.Module.parse(text)))


def check(text: str, shapes: list[tuple[int, ...]], options: ChannelsLast = PLAIN) -> str:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 10), *shapes)]
    after = rewritten(text, options)
    for got, want in zip(evaluate(after, arrays), evaluate(text, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return after


@pytest.mark.parametrize("stride,dilation", [(1, 1), (2, 1), (1, 2)])
def test_a_window_is_computed_with_channels_last(stride: int, dilation: int) -> None:
    body = padded("p", "x", 3, (9, 10)) + convolution("y", "p", (5, 3, 3, 3), (11, 12), stride, dilation)
    h, w = ((s - dilation * 2 - 1) // stride + 1 for s in (11, 12))
    after = check(function("%wy: tensor<5x3x3x3xf32>", body, "y", f"tensor<?x5x{h}x{w}xf32>"), [(5, 3, 3, 3)])
    assert "conv_2d" not in after and after.count(COPY) == 2


def test_a_result_that_is_added_to_is_transposed_too() -> None:
    body = convolution("y", "x", (5, 3, 3, 3), (9, 10), start="s")
    start = '%s: tensor<?x5x7x8xf32> {tw.dims = ["B", 5, 7, 8]}'
    text = function(f"%wy: tensor<5x3x3x3xf32>, {start}", body, "y", "tensor<?x5x7x8xf32>")
    assert check(text, [(5, 3, 3, 3), (2, 5, 7, 8)]).count(COPY) == 3


def test_pixels_of_a_1x1_window_lie_along_the_vectors_where_they_fill_them() -> None:
    pointwise = (5, 3, 1, 1)
    text = function("%wy: tensor<5x3x1x1xf32>", convolution("y", "x", pointwise, (9, 10)), "y", "tensor<?x5x9x10xf32>")
    assert COPY not in check(text, [pointwise])  # 90 pixels in 6 vectors of 16
    strided = function("%wy: tensor<5x3x1x1xf32>", convolution("y", "x", pointwise, (9, 10), 2), "y", "tensor<?x5x5x5xf32>")
    assert check(strided, [pointwise]).count(COPY) == 2


def test_elementwise_operations_between_convolutions_move_nothing() -> None:
    wide = "tensor<?x4x9x10xf32>"
    between = f"""%e = tensor.empty(%b) : {wide}
      %r = linalg.generic {{indexing_maps = [{IDENTITY}, {PER_CHANNEL}, {IDENTITY}],
                           iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
        ins(%y, %bias : {wide}, tensor<4xf32>) outs(%e : {wide}) {{ ^bb0(%u: f32, %v: f32, %o: f32):
          %s = arith.addf %u, %v : f32
          %m = arith.maximumf %s, %zero : f32
          linalg.yield %m : f32 }} -> {wide}"""
    body = "\n".join([padded("p", "x", 3, (9, 10)), convolution("y", "p", (4, 3, 3, 3), (11, 12)), between,
                      padded("q", "r", 4, (9, 10)), convolution("z", "q", (6, 4, 3, 3), (11, 12)),
                      convolution("o", "z", (5, 6, 1, 1), (9, 10))])
    text = function("%wy: tensor<4x3x3x3xf32>, %wz: tensor<6x4x3x3xf32>, %wo: tensor<5x6x1x1xf32>, %bias: tensor<4xf32>", body,
                    "o", "tensor<?x5x9x10xf32>")
    assert check(text, [(4, 3, 3, 3), (6, 4, 3, 3), (5, 6, 1, 1), (4,)]).count(COPY) == 2


@pytest.mark.parametrize("low,high", [(0, 0), (1, 2)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 16, 32), (3, 17, 5), (1, 40, 33)])
def test_transposed_copies_by_tiles(shape: tuple[int, int, int], low: int, high: int) -> None:
    """The last two axes change places after a pad; what follows is computed on the way."""
    b, m, n = shape
    x, y = T("f32", ("B", "M", "N")), T("f32", ("B", "W", "M"))
    body = f"""%c0 = arith.constant 0.0 : f32
      %p = tensor.pad %x low[0, 0, {low}] high[0, 0, {high}] {{ ^bb0(%i: index, %j: index, %k: index): tensor.yield %c0 : f32 }}
        : {x.type()} to {x.type()}
      %e = tensor.empty(%B, %W, %M) : {y.type()}
      %t = linalg.generic {{indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>],
          iterator_types = ["parallel", "parallel", "parallel"]}} ins(%p : {x.type()}) outs(%e : {y.type()}) {{
        ^bb0(%u: f32, %v: f32): linalg.yield %u : f32 }} -> {y.type()}
      %n = linalg.generic {{indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>],
          iterator_types = ["parallel", "parallel", "parallel"]}} ins(%t : {y.type()}) outs(%e : {y.type()}) {{
        ^bb0(%u: f32, %v: f32):
          %g = arith.negf %u : f32
          linalg.yield %g : f32 }} -> {y.type()}"""
    body = body.replace('"W"', f'"N + {low + high}"')
    text = workload({"x": x}, ("B", "M", "N"), body.replace("%W", "%width"), {"n": y})
    text = text.replace('["B", "W", "M"]', f'["B", "N + {low + high}", "M"]')
    width = f"%by = arith.constant {low + high} : index\n%width = arith.addi %N, %by : index\n"
    text = text.replace("%c0 = arith", f"{width}%c0 = arith", 1)
    values = at_edge(np.random.default_rng(1).standard_normal((b, m, n)).astype(np.float32))
    for lanes in (16, 4):
        out = guarded((b, n + low + high, m), np.dtype(np.float32))
        load(text, f"generic{{lanes={lanes}}}")([values], {"B": b, "M": m, "N": n}, [out], 3)
        want = -np.pad(values, ((0, 0), (0, 0), (low, high))).transpose(0, 2, 1)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("backwards", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 5), (40, 33)])
def test_transposed_copies_of_mirrored_axes(shape: tuple[int, int], backwards: tuple[int, ...]) -> None:
    """By tiles, too; what follows is computed on the way."""
    x, y = T("f32", ("M", "N")), T("f32", ("N", "M"))
    places = [f"%b{a}" if a in backwards else f"%i{a}" for a in range(2)]
    body = f"""%one = arith.constant 1 : index
      %l0 = arith.subi %M, %one : index
      %l1 = arith.subi %N, %one : index
      %e = tensor.empty(%N, %M) : {y.type()}
      %n = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>], iterator_types = ["parallel", "parallel"]}}
          outs(%e : {y.type()}) {{
        ^bb0(%v: f32):
          %i0 = linalg.index 0 : index
          %i1 = linalg.index 1 : index
          %b0 = arith.subi %l0, %i0 : index
          %b1 = arith.subi %l1, %i1 : index
          %u = tensor.extract %x[{", ".join(places)}] : {x.type()}
          linalg.yield %u : f32 }} -> {y.type()}"""
    text = workload({"x": x}, ("M", "N"), body, {"n": y})
    values = at_edge(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    for lanes in (16, 4):
        out = guarded(shape[::-1], np.dtype(np.float32))
        load(text, f"generic{{lanes={lanes}}}")([values], dict(zip("MN", shape, strict=True)), [out], 3)
        np.testing.assert_array_equal(out, np.flip(values, backwards).T)


@pytest.mark.parametrize("named", [True, False])
def test_pooling_and_filters_of_each_channel_follow_a_convolution(named: bool) -> None:
    """Three copies: the image, the filters of each channel, the result. Importers' convolutions of each channel are generic."""
    windows = "{strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}"
    body = convolution("y", "x", (5, 3, 3, 3), (9, 10)) + f"""
      %k = tensor.empty() : tensor<2x2xf32>
      %pe = tensor.empty(%b) : tensor<?x5x6x7xf32>
      %pz = linalg.fill ins(%zero : f32) outs(%pe : tensor<?x5x6x7xf32>) -> tensor<?x5x6x7xf32>
      %p = linalg.pooling_nchw_max {windows} ins(%y, %k : tensor<?x5x7x8xf32>, tensor<2x2xf32>)
        outs(%pz : tensor<?x5x6x7xf32>) -> tensor<?x5x6x7xf32>
      %de = tensor.empty(%b) : tensor<?x5x4x6xf32>
      %dz = linalg.fill ins(%zero : f32) outs(%de : tensor<?x5x4x6xf32>) -> tensor<?x5x4x6xf32>
      %d = {"linalg.depthwise_conv_2d_nchw_chw " + windows if named else "linalg.generic " + EACH_CHANNEL}
        ins(%p, %wd : tensor<?x5x6x7xf32>, tensor<5x3x2xf32>) outs(%dz : tensor<?x5x4x6xf32>) {"" if named else MULTIPLY_ADD}
        -> tensor<?x5x4x6xf32>"""
    text = function("%wy: tensor<5x3x3x3xf32>, %wd: tensor<5x3x2xf32>", body, "d", "tensor<?x5x4x6xf32>")
    after = check(text, [(5, 3, 3, 3), (5, 3, 2)])
    assert "pooling" not in after and "depthwise" not in after and after.count(COPY) == 3
    assert "(d0, d1 + d4, d2 + d5, d3)" in after


@pytest.mark.parametrize("narrow,lanes,copies", [(10, 3, 3), (9, 3, 0), (10, 4, 0), (0, 3, 0)])
def test_filters_of_each_channel_go_first_over_narrow_rows(narrow: int, lanes: int, copies: int) -> None:
    """Image and result have 10 pixels a row, and there are 3 channels: copies of the image, the filters and the result, where
    that is narrow and those are enough."""
    body = padded("p", "x", 3, (9, 10)) + f"""
      %e = tensor.empty(%b) : tensor<?x3x9x10xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x3x9x10xf32>) -> tensor<?x3x9x10xf32>
      %y = linalg.generic {EACH_CHANNEL} ins(%p, %w : tensor<?x3x11x12xf32>, tensor<3x3x3xf32>)
        outs(%z : tensor<?x3x9x10xf32>) {MULTIPLY_ADD} -> tensor<?x3x9x10xf32>"""
    text = function("%w: tensor<3x3x3xf32>", body, "y", "tensor<?x3x9x10xf32>")
    assert check(text, [(3, 3, 3)], ChannelsLast(narrow=narrow, lanes=lanes)).count(COPY) == copies


@pytest.mark.parametrize("few,lanes,stays", [(3, 8, True), (3, 9, False), (2, 8, False), (0, 8, False)])
def test_images_of_few_channels_stay_where_rows_of_the_result_fill_vectors(few: int, lanes: int, stays: bool) -> None:
    body = convolution("y", "x", (5, 3, 3, 3), (9, 10))
    text = function("%wy: tensor<5x3x3x3xf32>", body, "y", "tensor<?x5x7x8xf32>")
    after = check(text, [(5, 3, 3, 3)], ChannelsLast(few=few, lanes=lanes))
    assert (COPY not in after) == stays == ("conv_2d_nchw" in after)


@pytest.mark.parametrize("kind,change,copied", [("f16", "arith.truncf", "f16"), ("f64", "arith.extf", "f32")])
def test_elements_are_narrowed_before_they_are_copied(kind: str, change: str, copied: str) -> None:
    """Behind a convolution that no other follows; wider ones are made of what was copied."""
    body = convolution("y", "x", (5, 3, 3, 3), (9, 10)) + f"""
      %re = tensor.empty(%b) : tensor<?x5x7x8x{kind}>
      %r = linalg.generic {{indexing_maps = [{IDENTITY}, {IDENTITY}],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
        ins(%y : tensor<?x5x7x8xf32>) outs(%re : tensor<?x5x7x8x{kind}>) {{ ^bb0(%v: f32, %o: {kind}):
          %n = {change} %v : f32 to {kind}
          linalg.yield %n : {kind} }} -> tensor<?x5x7x8x{kind}>"""
    after = check(function("%wy: tensor<5x3x3x3xf32>", body, "r", f"tensor<?x5x7x8x{kind}>"), [(5, 3, 3, 3)])
    last = [line for line in after.splitlines() if COPY in line][-1]
    assert f"ins(%{last.split('ins(%')[1].split(' ')[0]} : tensor<?x7x8x5x{copied}>)" in last


@pytest.mark.parametrize("kind,channels,filters,pairs,lanes,last", [
    ("f32", 65, 64, False, 16, True),  # more factors than lie near
    ("f32", 64, 31, True, 16, False), ("f32", 16, 32, False, 16, True), ("f32", 15, 32, False, 16, False),
    ("bf16", 5, 16, True, 16, True), ("bf16", 5, 16, False, 16, False),
    ("bf16", 5, 16, True, 17, False), ("bf16", 4, 16, True, 16, False)])
def test_convolutions_over_volumes(kind: str, channels: int, filters: int, pairs: bool, lanes: int, last: bool) -> None:
    g = ops.Graph()
    x, w = g.input("x", ["B", channels, 3, 5, 6], kind), g.input("w", [filters, channels, 2, 1, 3], kind)
    g.output(ops.conv3d(x, w, stride=(1, 2, 3), padding=(1, 0, 1), dilation=(1, 1, 2)))
    with ir.Context():
        before = str(PassPipeline(recover_passes()).run(ir.Module.parse(g.module_text())))
        after = str(PassPipeline([ChannelsLast(lanes=lanes, volumes=4096, pairs=pairs)]).run(ir.Module.parse(before)))
        assert COPY not in str(PassPipeline([ChannelsLast(lanes=lanes, pairs=pairs)]).run(ir.Module.parse(before)))
    assert (COPY in after) is last
    rng, dtype = np.random.default_rng(0), np.dtype(np.float32 if kind == "f32" else ml_dtypes.bfloat16)
    arrays = [rng.standard_normal(s).astype(dtype) for s in ((2, channels, 3, 5, 6), (filters, channels, 2, 1, 3))]
    (got,), (want,) = evaluate(after, arrays), evaluate(before, arrays)
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=1e-2 if kind == "bf16" else 1e-5, atol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("built_here")
@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
@pytest.mark.parametrize("kind,channels,filters,window", [("bf16", 24, 40, (3, 3, 2)), ("f32", 66, 64, (3, 1, 2)),
                                                          ("f32", 20, 18, (3, 3, 3))])  # fmt: skip
def test_compiled_volumes(kind: str, channels: int, filters: int, window: tuple[int, ...], target: str) -> None:
    dtype, rng = np.dtype(np.float32 if kind == "f32" else ml_dtypes.bfloat16), np.random.default_rng(1)
    f = (rng.standard_normal((filters, channels, *window)) / 16).astype(dtype)
    g = ops.Graph()
    x, w = g.input("x", ["B", channels, "D", 7, 6], kind), g.input("w", f.shape, kind)
    g.output(ops.conv3d(x, w, stride=2, padding=1))
    fn = tw.compile(g, {"B": (1, 3), "D": (3, 9)}, target, constants={"w": f})
    for batch, depth in ((1, 3), (2, 8)):
        a = rng.standard_normal((batch, channels, depth, 7, 6)).astype(dtype)
        wide = np.pad(a.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(wide, window, (2, 3, 4))[:, :, ::2, ::2, ::2]
        want = np.einsum("ncdhwijk,fcijk->nfdhw", seen, f.astype("f8"))
        np.testing.assert_allclose(fn(a).astype("f8"), want, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("window,stride,apart,kind,channels,goes", [
    ((2, 3, 3), (1, 1, 1), 1, "f32", 16, True), ((3, 4, 5), (1, 2, 1), 2, "f32", 16, True),
    ((1, 3, 3), (1, 1, 1), 1, "f32", 16, True), ((3, 1, 3), (1, 1, 1), 1, "f32", 16, False),
    ((2, 3, 3), (1, 1, 3), 1, "f32", 16, False), ((2, 3, 3), (1, 1, 1), 1, "f32", 15, False),
    ((2, 3, 3), (1, 1, 1), 1, "bf16", 16, False)])  # fmt: skip
def test_volumes_by_their_planes(window: tuple[int, ...], stride: tuple[int, ...], apart: int, kind: str, channels: int,
                                 goes: bool) -> None:
    """Of filters whose windows save multiplications in a plane, whatever they do from plane to plane."""
    g = ops.Graph()
    x, w = g.input("x", ["B", channels, 5, 15, 12], kind), g.input("w", [16, channels, *window], kind)
    g.output(ops.conv3d(x, w, stride=stride, padding=1, dilation=(apart, 1, 1)))
    with ir.Context():
        before = str(PassPipeline(recover_passes()).run(ir.Module.parse(g.module_text())))
        after = str(PassPipeline([ChannelsLast(winograd=True)]).run(ir.Module.parse(before)))
    assert (COPY in after) is goes
    rng, dtype = np.random.default_rng(0), np.dtype(np.float32 if kind == "f32" else ml_dtypes.bfloat16)
    arrays = [rng.standard_normal(s).astype(dtype) for s in ((2, channels, 5, 15, 12), (16, channels, *window))]
    (got,), (want,) = evaluate(after, arrays), evaluate(before, arrays)
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=1e-2 if kind == "bf16" else 1e-5, atol=1e-3)


def test_a_convolution_of_few_channels_that_another_reads_is_channels_last() -> None:
    body = convolution("y", "x", (4, 3, 3, 3), (9, 10)) + convolution("z", "y", (5, 4, 3, 3), (7, 8))
    text = function("%wy: tensor<4x3x3x3xf32>, %wz: tensor<5x4x3x3xf32>", body, "z", "tensor<?x5x5x6xf32>")
    after = check(text, [(4, 3, 3, 3), (5, 4, 3, 3)], ChannelsLast(few=4, lanes=4))
    assert after.count(COPY) == 2 and "conv_2d" not in after


def test_products_of_lower_rank_are_left() -> None:
    row = "affine_map<(i, k) -> (k)>, affine_map<(i, k) -> (i)>"
    text = f"""func.func @main(%x: tensor<?x4xf32> {{tw.dims = ["B", 4]}}, %y: tensor<4xf32>, %z: tensor<?xf32>,
        %one: tensor<f32>) -> (tensor<?xf32>, tensor<f32>) {{
      %rows = linalg.generic {{indexing_maps = [affine_map<(i, k) -> (i, k)>, {row}], iterator_types = ["parallel", "reduction"]}}
        ins(%x, %y : tensor<?x4xf32>, tensor<4xf32>) outs(%z : tensor<?xf32>) {MULTIPLY_ADD} -> tensor<?xf32>
      %dot = linalg.generic {{indexing_maps = [affine_map<(k) -> (k)>, affine_map<(k) -> (k)>, affine_map<(k) -> ()>],
        iterator_types = ["reduction"]}} ins(%y, %y : tensor<4xf32>, tensor<4xf32>) outs(%one : tensor<f32>) {MULTIPLY_ADD}
        -> tensor<f32>
      return %rows, %dot : tensor<?xf32>, tensor<f32>
    }}"""
    assert rewritten(text).count("linalg.generic") == text.count("linalg.generic")


@pytest.mark.parametrize("short,lanes,copies", [(8, 4, 2), (8, 8, 0), (3, 4, 0), (0, 4, 0)])
@pytest.mark.parametrize("stride,dilation", [(1, 1), (2, 1), (1, 2)])
def test_filters_lie_along_the_vectors_of_short_rows(short: int, lanes: int, copies: int, stride: int, dilation: int) -> None:
    """Five filters of rows of 4 to 7 pixels, of a padded image of one axis."""
    n = (11 - 2 * dilation - 1) // stride + 1
    text = f"""func.func @main(%x: tensor<?x3x9xf32> {{tw.dims = ["B", 3, 9]}}, %w: tensor<5x3x3xf32>) -> tensor<?x5x{n}xf32> {{
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0.0 : f32
      %b = tensor.dim %x, %c0 : tensor<?x3x9xf32>
      %p = tensor.pad %x low[0, 0, 1] high[0, 0, 1] {{ ^bb0(%i: index, %j: index, %k: index):
        tensor.yield %zero : f32 }} : tensor<?x3x9xf32> to tensor<?x3x11xf32>
      %e = tensor.empty(%b) : tensor<?x5x{n}xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x5x{n}xf32>) -> tensor<?x5x{n}xf32>
      %y = linalg.conv_1d_ncw_fcw {{strides = dense<{stride}> : tensor<1xi64>, dilations = dense<{dilation}> : tensor<1xi64>}}
        ins(%p, %w : tensor<?x3x11xf32>, tensor<5x3x3xf32>) outs(%z : tensor<?x5x{n}xf32>) -> tensor<?x5x{n}xf32>
      return %y : tensor<?x5x{n}xf32>
    }}"""
    options = ChannelsLast(lanes=lanes, short=short)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9), (5, 3, 3))]
    after = rewritten(text, options)
    np.testing.assert_allclose(evaluate(after, arrays)[0], evaluate(text, arrays)[0], rtol=1e-5, atol=1e-5)
    assert after.count(COPY) == (copies if n <= short else 0)


@pytest.mark.parametrize("waste,copies", [(15, 2), (300, 1)])
def test_a_1x1_window_with_steps_reads_a_copy_of_its_pixels(waste: int, copies: int) -> None:
    """25 pixels of 90, in two vectors of 16 with 7 lanes off."""
    text = function("%wy: tensor<5x3x1x1xf32>", convolution("y", "x", (5, 3, 1, 1), (9, 10), 2), "y", "tensor<?x5x5x5xf32>")
    assert check(text, [(5, 3, 1, 1)], ChannelsLast(waste=waste)).count(COPY) == copies


def permuted(name: str, value: str, before: str, after: str, axes: str) -> str:
    """%name = %value with the axes `axes` of its loops a, b, c, d, as a generic."""
    return f"""%{name}_e = tensor.empty(%b) : {after}
      %{name} = linalg.generic {{indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> {axes}>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}} ins(%{value} : {before}) outs(%{name}_e : {after}) {{
      ^bb0(%in: f32, %out: f32): linalg.yield %in : f32 }} -> {after}"""


def test_transposes_of_the_model_to_and_from_channels_last_move_nothing() -> None:
    """%x is 3 rows of 9 pixels with 10 channels."""
    first, last = "tensor<?x5x3x9xf32>", "tensor<?x3x9x5xf32>"
    body = permuted("t", "x", "tensor<?x3x9x10xf32>", "tensor<?x10x3x9xf32>", "(a, d, b, c)") + padded("p", "t", 10, (3, 9)) \
        + convolution("y", "p", (5, 10, 3, 3), (5, 11)) + permuted("r", "y", first, last, "(a, c, d, b)")
    after = check(function("%wy: tensor<5x10x3x3xf32>", body, "r", last), [(5, 10, 3, 3)])
    assert COPY not in after


@pytest.mark.parametrize("filters,stride,pads,begin,copies", [
    (16, 1, True, 1, 2), (16, 1, False, 1, 2), (16, 1, True, 0, 0), (15, 1, True, 1, 0),
    (16, 2, True, 1, 0), (32, 2, True, 1, 2), (32, 2, True, 0, 0), (16, 1, True, 2, 0), (32, 1, True, 2, 2),
    (32, 2, True, 2, 0)])
def test_groups_whose_windows_save_products_go_last(filters: int, stride: int, pads: bool, begin: int, copies: int) -> None:
    """Three groups of one channel; by steps of two twice as many filters make up for the copies, as where two registers are
    wanted."""
    (h, w), edge = (11, 12) if pads else (9, 10), "cut"
    cut, rest = "tensor<?x3x1x9x10xf32>", f"tensor<?x3x1x{h}x{w}xf32>"
    oh, ow = (h - 3) // stride + 1, (w - 3) // stride + 1
    made, kind = f"tensor<?x3x{filters}x{oh}x{ow}xf32>", f"tensor<?x{3 * filters}x{oh}x{ow}xf32>"
    body = f"""%cut = tensor.expand_shape %x [[0], [1, 2], [3], [4]] output_shape [%b, 3, 1, 9, 10]
        : tensor<?x3x9x10xf32> into {cut}"""
    if pads:
        edge = "p"
        body += f"""
      %p = tensor.pad %cut low[0, 0, 0, 1, 1] high[0, 0, 0, 1, 1] {{
      ^bb0(%i: index, %j: index, %k: index, %l: index, %m: index): tensor.yield %zero : f32 }} : {cut} to {rest}"""
    body += f"""
      %e = tensor.empty(%b) : {made}
      %z = linalg.fill ins(%zero : f32) outs(%e : {made}) -> {made}
      %y = linalg.generic {{indexing_maps = [
        affine_map<(n, g, f, y, x, c, i, j) -> (n, g, c, y * {stride} + i, x * {stride} + j)>,
        affine_map<(n, g, f, y, x, c, i, j) -> (g, f, c, i, j)>, affine_map<(n, g, f, y, x, c, i, j) -> (n, g, f, y, x)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}}
        ins(%{edge}, %w : {rest}, tensor<3x{filters}x1x3x3xf32>) outs(%z : {made}) {MULTIPLY_ADD} -> {made}
      %r = tensor.collapse_shape %y [[0], [1, 2], [3], [4]] : {made} into {kind}"""
    options = ChannelsLast(groups=begin)
    after = check(function(f"%w: tensor<3x{filters}x1x3x3xf32>", body, "r", kind), [(3, filters, 1, 3, 3)], options)
    assert after.count(COPY) == copies
