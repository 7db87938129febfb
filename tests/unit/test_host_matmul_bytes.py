"""The family host_matmul on bytes in words of two or four values of k: exact for all signs, layouts, odd extents and copies."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import T, filled, load, workload
from matmul_workloads import LAYOUTS, check, generic, matmul, windows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.tensor import DType

pytestmark = pytest.mark.usefixtures("built_here")

needs_quads = pytest.mark.skipif("avx512vnni" not in cpu_features(), reason="the CPU has no AVX-512 VNNI")
needs_tiles = pytest.mark.skipif(not {"amx-tile", "amx-int8"} <= cpu_features() or not may_use_tiles(),
                                 reason="the CPU has no tiles of bytes, or the system keeps them back")
SIGNS = {"u8s8": (False, True), "s8u8": (True, False), "s8s8": (True, True), "u8u8": (False, False)}
IN_PLACE, PANEL, STREAM, CHUNK, PIECES = (
    "host_matmul{mr=4 nv=2 lanes=8 prefetch=8 exact-tails=true",
    "host_matmul{mr=4 nv=2 lanes=8 pack=panel mc=8 exact-tails=true copy-rows=true",
    "host_matmul{mr=1 nv=3 lanes=8 prefetch=4 stream=4",
    "host_matmul{mr=3 nv=2 lanes=8 mc=6 exact-tails=true stream=4",
    "host_matmul{mr=4 nv=2 lanes=4 pack=panel prefetch=4 mc=8 kc=16 panels=3 copy-rows=true")
TILES = "host_matmul{mr=32 nv=2 pack=panel mc=64 panels=2 copy-rows=true quads=true tiles=true}"
SIZES = [(1, 1, 1), (3, 47, 6), (9, 33, 31), (17, 33, 66), (0, 5, 3), (4, 0, 3), (4, 5, 0)]


def widened(signs: tuple[bool, bool]) -> str:
    casts = [f"%w{i} = arith.ext{'s' if signed else 'u'}i %x{i} : i8 to i32" for i, signed in enumerate(signs)]
    return "\n".join([*casts, "%p = arith.muli %w0, %w1 : i32", "%s = arith.addi %acc, %p : i32", "linalg.yield %s : i32"])


def read(x: np.ndarray, signed: bool) -> np.ndarray:
    return x if signed else x & 255


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", ["pairs", pytest.param("quads", marks=needs_quads)])
@pytest.mark.parametrize("config,layout,signs", [
    (IN_PLACE, "nn", "s8s8"), (IN_PLACE, "transposed_result", "s8u8"), (PANEL, "tt", "u8s8"), (STREAM, "nt", "u8s8"),
    (CHUNK, "nn", "s8u8"), (PIECES, "nn", "u8s8")])
def test_layouts_and_extents(config: str, layout: str, signs: str, words: str) -> None:
    """Of two signed or unsigned factors quads are no products, and plain ones are made."""
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b, c = T("i8", a_dims), T("i8", b_dims), T("i32", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"), body=widened(SIGNS[signs]))
    subscripts = maps.replace(" ", "").split(",")
    for m, n, k in SIZES:
        check(text, config + f" {words}=true}}", {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", read(x, SIGNS[signs][0]),
                                     read(y, SIGNS[signs][1])))


@pytest.mark.sampled(2)
@needs_tiles
@pytest.mark.parametrize("by_block", ["true", "false"])
@pytest.mark.parametrize("layout,signs", [("nn", "u8s8"), ("nt", "s8u8"), ("transposed_result", "u8s8")])
def test_tiles(layout: str, signs: str, by_block: str) -> None:
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b, c = T("i8", a_dims), T("i8", b_dims), T("i32", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"), body=widened(SIGNS[signs]))
    config = TILES.replace("tiles=true", f"tiles=true by-block={by_block}")
    assert load(text, config).kernel.tiles
    subscripts = maps.replace(" ", "").split(",")
    for m, n, k in [*SIZES, (70, 101, 257), (33, 33, 128), (16, 16, 64)]:
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", read(x, SIGNS[signs][0]),
                                     read(y, SIGNS[signs][1])))


@pytest.mark.parametrize("side", [2, pytest.param(4, marks=needs_quads)])
@pytest.mark.parametrize("columns", [100, 31])
def test_prepacked_operand_is_read_panel_by_panel(columns: int, side: int) -> None:
    k, tile = 21, 16
    a, c, b = T("i8", ("M", k)), T("i32", ("M", columns)), T("i8", (-(-columns // tile), -(-k // side), tile, side))
    layout = f"(d0, d1, d2) -> (d1 floordiv {tile}, d2 floordiv {side}, d1 mod {tile}, d2 mod {side})"
    body = filled("z", c, "0") + "\n" + generic("m", ["(d0, d1, d2) -> (d0, d2)", layout, "(d0, d1, d2) -> (d0, d1)"], "ppr",
                                                {"a": a, "b": b}, ("z", c), widened((False, True)))
    text = workload({"a": a, "b": b}, ("M",), body, {"m": c})
    lanes = 16 if "avx512bw" in cpu_features() else 8
    whole = f"host_matmul{{mr=4 nv={16 // lanes} lanes={lanes}}}"
    for config in (whole, "host_matmul{mr=4 nv=2 lanes=8 mc=8 panels=2 copy-rows=true}"):
        for m in (1, 13):
            check(text, config, {"a": a, "b": b}, [c], {"M": m},
                  lambda x, y: (x & 255) @ y.transpose(1, 3, 0, 2).reshape(-1, tile * y.shape[0])[:k, :columns])


@needs_quads
@pytest.mark.parametrize("channels", [4, 5])
def test_convolution_joins_channels(channels: int) -> None:
    a, b, c = T("i8", ("B", 9, 9, channels)), T("i8", (3, 3, channels, 19)), T("i32", ("B", 7, 7, 19))
    maps = ["(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)", "(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)",
            "(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)"]
    body = filled("z", c, "0") + "\n" + generic("m", maps, "pppprrr", {"a": a, "b": b}, ("z", c), widened((False, True)))
    text = workload({"a": a, "b": b}, ("B",), body, {"m": c})
    for config in (IN_PLACE, PANEL):
        check(text, config + " quads=true}", {"a": a, "b": b}, [c], {"B": 2},
              lambda x, f: np.einsum("nhwijc,ijcf->nhwf", windows(x & 255, 3, 3, 1, 1), f), parts=2)


@pytest.mark.parametrize("signs,constant,target", [
    ("s8s8", True, "host"), ("u8u8", False, "host"), ("s8u8", True, "host:x86-64-v3")])
def test_compiled_with_zero_points_at_extremes(signs: str, constant: bool, target: str) -> None:
    """(a - za) @ (b - zb) of all-extreme bytes; za differs by row, zb by column, known at run time alone; and without."""
    kinds = [DType.I8 if signed else DType.U8 for signed in SIGNS[signs]]
    graph, k, n = ops.Graph(), 75, 37
    a, b = graph.input("a", ["T", k], kinds[0]), graph.input("b", [k, n], kinds[1])
    za, zb = graph.input("za", ["T", 1], DType.I32), graph.input("zb", [n], DType.I32)
    wide = [ops.cast(x, DType.I32) for x in (a, b)]
    graph.output(ops.matmul(wide[0] - za, wide[1] - zb))
    graph.output(ops.matmul(*wide))
    rng = np.random.default_rng(0)
    ends = [np.array([t.limits[0], t.limits[1]], t.numpy) for t in kinds]
    w = rng.choice(ends[1], (k, n))
    w[:, 0] = ends[1][0]
    fn = tw.compile(graph, {"T": tw.Dim(1, 40)}, target=target, constants={"b": w} if constant else {})
    for t in (1, 7, 40):
        x = rng.choice(ends[0], (t, k))
        x[0] = ends[0][0]
        zeros = [rng.integers(-255, 256, shape).astype(np.int32) for shape in ((t, 1), (n,))]
        shifted, plain = fn(x, *(() if constant else (w,)), *zeros)
        np.testing.assert_array_equal(plain, x.astype(np.int64) @ w.astype(np.int64))
        np.testing.assert_array_equal(shifted, (x.astype(np.int64) - zeros[0]) @ (w.astype(np.int64) - zeros[1]))
