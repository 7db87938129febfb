"""The family host_matmul on bf16 in pairs (AVX-512 BF16): layouts, odd extents, copies, prepacked constants, rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_harness import Dim, T, empty, filled, load, workload
from matmul_workloads import AVX512, LAYOUTS, check, described, generic, matmul, windows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, Pack, prepacked, space, why_invalid
from tilewright.passes.spaces.host.host_matmul_heuristics import default
from tilewright.passes.spaces.workload import Operand, Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

pytestmark = pytest.mark.usefixtures("built_here")

needs_tiles = pytest.mark.skipif(not {"amx-tile", "amx-bf16"} <= cpu_features() or not may_use_tiles(),
                                 reason="the CPU has no tiles of bf16, or the system keeps them back")
needs_pairs = pytest.mark.skipif("avx512bf16" not in cpu_features(), reason="the CPU has no AVX-512 BF16")
PAIRS = dataclasses.replace(AVX512, bf16_pairs=True)
TILED = dataclasses.replace(PAIRS, bf16_tiles=True)
IN_PLACE, PANEL, STREAM, CHUNK, PIECES = (
    "host_matmul{mr=4 nv=2 lanes=8 prefetch=8 exact-tails=true pairs=true}",
    "host_matmul{mr=8 nv=3 pack=panel mc=8 exact-tails=true pairs=true}",
    "host_matmul{mr=1 nv=3 lanes=8 prefetch=4 stream=4 pairs=true}",
    "host_matmul{mr=3 nv=2 lanes=8 mc=6 exact-tails=true stream=4 pairs=true}",
    "host_matmul{mr=4 nv=2 lanes=4 pack=panel prefetch=4 mc=8 kc=16 panels=3 copy-rows=true pairs=true}")
TILES, LOW_TILES, WIDE_TILES = (
    f"host_matmul{{{block} pack=panel mc=64 panels={panels} copy-rows=true pairs=true tiles=true}}"
    for block, panels in (("mr=32 nv=2", 2), ("mr=16 nv=1", 1), ("mr=32 nv=3", 1)))
BY_BLOCK = TILES.replace("tiles=true", "tiles=true by-block=true")
SIZES = [(1, 1, 1), (3, 47, 5), (8, 97, 31), (17, 33, 66), (0, 5, 3), (4, 0, 3), (4, 5, 0)]
WIDENING = """%w0 = arith.extf %x0 : bf16 to f32
  %w1 = arith.extf %x1 : bf16 to f32
  %p = arith.mulf %w0, %w1 : f32
  %s = arith.addf %acc, %p : f32
  linalg.yield %s : f32"""


@needs_pairs
@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", [IN_PLACE, PANEL, STREAM, CHUNK, PIECES])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_extents(layout: str, config: str) -> None:
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b, c = T("bf16", a_dims), T("bf16", b_dims), T("bf16", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    subscripts = maps.replace(" ", "").replace(",", "|").split("|")
    for m, n, k in SIZES:
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", x, y))


@pytest.mark.sampled(6)
@needs_tiles
@pytest.mark.parametrize("config", [TILES, LOW_TILES, WIDE_TILES, BY_BLOCK])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles(layout: str, config: str) -> None:
    """Rows, columns and k that leave part of a tile, or a whole one."""
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b, c = T("bf16", a_dims), T("bf16", b_dims), T("bf16", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    assert load(text, config).kernel.tiles
    subscripts = maps.replace(" ", "").replace(",", "|").split("|")
    for m, n, k in [*SIZES, (70, 101, 129), (33, 33, 64), (16, 16, 32), (100, 96, 34)]:
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", x, y))


@needs_tiles
@pytest.mark.parametrize("columns", [128, 96, 41])
def test_prepacked_tiles(columns: int) -> None:
    """Rows of a block that are copied as they are multiplied, or all of a unit before; the same bits."""
    a, c, (b, layout) = T("bf16", ("M", 64)), T("f32", ("M", columns)), packed(64, columns, 32)
    body = filled("z", c, "0.0") + "\n" + generic(
        "m", ["(d0, d1, d2) -> (d0, d2)", layout, "(d0, d1, d2) -> (d0, d1)"], "ppr", {"a": a, "b": b}, ("z", c), WIDENING)
    text = workload({"a": a, "b": b}, ("M",), body, {"m": c})
    for config in (TILES, BY_BLOCK):
        config = config.replace("pack=panel ", "")
        assert load(text, config).kernel.tiles
        for m in (1, 16, 33, 150):
            check(text, config, {"a": a, "b": b}, [c], {"M": m}, lambda x, y: x @ unpacked(y, 64, columns))


def packed(k: int, columns: int, tile: int) -> tuple[T, str]:
    """A [k, columns] operand laid out in pairs, and its map."""
    b = T("bf16", (-(-columns // tile), -(-k // 2), tile, 2))
    return b, f"(d0, d1, d2) -> (d1 floordiv {tile}, d2 floordiv 2, d1 mod {tile}, d2 mod 2)"


def unpacked(y: np.ndarray, k: int, columns: int) -> np.ndarray:
    return y.transpose(1, 3, 0, 2).reshape(2 * y.shape[1], -1)[:k, :columns]


@needs_pairs
@pytest.mark.parametrize("columns", [100, 96, 31])
def test_prepacked_operand_is_read_panel_by_panel(columns: int) -> None:
    a, c, (b, layout) = T("bf16", ("M", 20)), T("bf16", ("M", columns)), packed(20, columns, 48)
    body = filled("z", c, "0.0") + "\n" + generic(
        "m", ["(d0, d1, d2) -> (d0, d2)", layout, "(d0, d1, d2) -> (d0, d1)"], "ppr", {"a": a, "b": b}, ("z", c),
        "%p = arith.mulf %x0, %x1 : bf16\n %s = arith.addf %acc, %p : bf16\n linalg.yield %s : bf16")
    text = workload({"a": a, "b": b}, ("M",), body, {"m": c})
    for config in ("host_matmul{prefetch=16 pairs=true}", "host_matmul{mr=12 nv=1 pairs=true}", "host_matmul"):
        assert load(text, config).kernel.workspace == "0"
        for m in (1, 13):
            check(text, config, {"a": a, "b": b}, [c], {"M": m}, lambda x, y: x @ unpacked(y, 20, columns))
    with pytest.raises(BuildError, match="prepacked in pairs or fours"):
        load(text, "host_matmul{lanes=2 nv=3}")


@needs_pairs
def test_rows_rounded_on_the_way_are_copied_as_pairs() -> None:
    """f32 rows rounded to bf16, an odd k, an f32 result."""
    x, a, c, (b, layout) = T("f32", ("M", 21)), T("bf16", ("M", 21)), T("f32", ("M", 50)), packed(21, 50, 16)
    ident = "(d0, d1) -> (d0, d1)"
    rounded = "%t = arith.truncf %x0 : f32 to bf16\n linalg.yield %t : bf16"
    text = workload({"x": x, "b": b}, ("M",), "\n".join([
        empty("e", a), generic("a", [ident, ident], "pp", {"x": x}, ("e", a), rounded), filled("z", c, "0.0"),
        generic("m", ["(d0, d1, d2) -> (d0, d2)", layout, "(d0, d1, d2) -> (d0, d1)"], "ppr", {"a": a, "b": b}, ("z", c),
                WIDENING)]), {"m": c})
    for config in ("host_matmul{mr=4 nv=1 mc=8 panels=2 copy-rows=true pairs=true}", "host_matmul{mr=4 nv=1 pairs=true}"):
        for m in (1, 13):
            check(text, config, {"x": x, "b": b}, [c], {"M": m},
                  lambda v, y: v.astype(ml_dtypes.bfloat16).astype(np.float64) @ unpacked(y, 21, 50))


@needs_pairs
@pytest.mark.parametrize("config", [IN_PLACE, PANEL])
@pytest.mark.parametrize("channels", [4, 5])
def test_convolution_pairs_channels(channels: int, config: str) -> None:
    a, b, c = T("bf16", ("B", 9, 9, channels)), T("bf16", (3, 3, channels, 19)), T("bf16", ("B", 7, 7, 19))
    body = filled("z", c, "0.0") + f"""
      %m = linalg.conv_2d_nhwc_hwcf {{strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}}
        ins(%a, %b : {a.type()}, {b.type()}) outs(%z : {c.type()}) -> {c.type()}"""

    def reference(x: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.einsum("nhwijc,ijcf->nhwf", windows(x, 3, 3, 1, 1), f)

    check(workload({"a": a, "b": b}, ("B",), body, {"m": c}), config, {"a": a, "b": b}, [c], {"B": 2}, reference, parts=2)


@needs_pairs
def test_bits_do_not_depend_on_how_units_are_split() -> None:
    a, b, c = T("bf16", ("M", "K")), T("bf16", ("K", "N")), T("f32", ("M", "N"))
    text = matmul(a, b, c, "m k,k n,m n", "ppr", dims=("M", "N", "K"), body=WIDENING)
    for config in (IN_PLACE, PANEL, STREAM, PIECES):
        got = [check(text, config, {"a": a, "b": b}, [c], {"M": 37, "N": 130, "K": 65}, np.matmul, parts)[0].tobytes()
               for parts in (1, 2, 7)]
        assert got[0] == got[1] == got[2]


@needs_pairs
@pytest.mark.parametrize("element,maps", [("f32", "m k,k n,m n"), ("f16", "m k,k n,m n"), ("bf16", "m k n,k n,m n")])
def test_other_products_are_left_as_they_are(element: str, maps: str) -> None:
    letters = [tuple(x.upper() for x in m.split()) for m in maps.split(",")]
    a, b, c = (T(element, d) for d in letters)
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    check(text, IN_PLACE, {"a": a, "b": b}, [c], {"M": 5, "N": 21, "K": 7},
          lambda x, y: np.einsum(maps.replace(" ", "").replace("n,m", "n->m"), x, y))


def test_code_for_other_cpus_is_refused() -> None:
    a, b, c = T("bf16", ("M", "K")), T("bf16", ("K", "N")), T("bf16", ("M", "N"))
    with pytest.raises(BuildError, match="avx512bf16"):
        load(matmul(a, b, c, "m k,k n,m n", "ppr", dims=("M", "N", "K")), IN_PLACE, "host:x86-64-v4")


def bf16(m: Dim, n: Dim, k: Dim, tile: int = 0, paired: bool = False) -> Workload:
    work = described(m, n, k)
    a, b = (dataclasses.replace(o, dtype=DType.BF16) for o in work.inputs)
    if tile:
        assert isinstance(n, int) and isinstance(k, int)
        shape = (-(-n // tile), -(-k // 2), tile, 2) if paired else (-(-n // tile), k, tile)
        b = Operand(DType.BF16, tuple(map(Expr.of, shape)), len(shape) - 1, True, tile)
    factors = tuple(dataclasses.replace(f, dtype=DType.BF16) for f in work.factors)
    return dataclasses.replace(work, inputs=(a, b), factors=factors)


@pytest.mark.parametrize("limits", [AVX512, PAIRS, TILED, HostLimits(32, 16)])
@pytest.mark.parametrize("work", [bf16("M", 2304, 768), bf16(1, 768, 768), bf16("M", 10, 50000), bf16("M", "M", 64),
                                  bf16("M", 2304, 768, 48)])
def test_defaults_use_pairs_where_the_target_has_them(work: Workload, limits: HostLimits) -> None:
    if prepacked(work):
        limits = dataclasses.replace(limits, vector_bytes=64, vector_registers=32)
    configs, _ = default(work, limits)
    assert [why_invalid(c, work, limits) for c in configs] == [None] * len(configs)
    assert {c.pairs for c in configs} == {limits.bf16_pairs and not prepacked(work)}


def test_defaults_and_space_of_operands_prepacked_in_pairs() -> None:
    work = bf16("M", 2304, 768, 48, paired=True)
    configs, _ = default(work, PAIRS)
    assert [(c.pairs, c.copy_rows, why_invalid(c, work, PAIRS)) for c in configs] == [(True, False, None)] * len(configs)
    found = list(space(work, PAIRS))
    assert found and all(c.pairs for c in found)
    rounded = dataclasses.replace(work, inputs=(dataclasses.replace(work.inputs[0], dtype=DType.F32), work.inputs[1]),
                                  factors=(dataclasses.replace(work.factors[0], source=None), work.factors[1]))
    configs, _ = default(rounded, PAIRS)
    assert [(c.pairs, c.copy_rows, why_invalid(c, rounded, PAIRS)) for c in configs] == [(True, True, None)]


@pytest.mark.parametrize("work,config,rule", [
    (described("M", 96, 3000), HostMatmulConfig(pairs=True), "words"),
    (bf16("M", 96, 3000, 48), HostMatmulConfig(pairs=True), "words"),
    (bf16("M", 96, 3000, 48, paired=True), HostMatmulConfig(), "prepacked-words"),
    (bf16("M", 96, 3000), HostMatmulConfig(mc=64, kc=501, pairs=True), "words-whole"),
    (bf16("M", 96, 3000), HostMatmulConfig(mr=1, nv=12, stream=3, pairs=True), "words-whole"),
    (bf16("M", 96, 3000), HostMatmulConfig(mc=64, kc=500, pairs=True), None)])
def test_rules_name_what_is_broken(work: Workload, config: HostMatmulConfig, rule: str | None) -> None:
    reason = why_invalid(config, work, PAIRS)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule)


@pytest.mark.parametrize("element,copied", [("f16", True), ("f32", False)])
def test_rows_of_16_bits_are_widened_once_for_several_panels(element: str, copied: bool) -> None:
    """Beyond a few rows."""
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["T", 64], element), graph.input("w", [64, 640], element)))
    w = np.random.default_rng(0).standard_normal((64, 640)).astype(np.dtype("f2" if element == "f16" else "f4"))
    for constants in ({}, {"w": w}):
        fn = tw.compile(graph, {"T": (1, 99)}, constants=constants, target="host:x86-64-v3")
        *few, many = [kernel.config for table in fn.program.tables for kernel in table.kernels]
        assert (few or not copied) and ("copy-rows=true" in many) is copied and not any("copy-rows=true" in c for c in few)
        x = np.random.default_rng(1).standard_normal((40, 64)).astype(w.dtype)
        want = x.astype("f8") @ w.astype("f8")
        np.testing.assert_allclose(fn(x, *(() if constants else (w,))).astype("f8"), want, rtol=2e-3, atol=2e-2)


WHOLE = HostMatmulConfig(32, 2, 16, Pack.PANEL, mc=64, copy_rows=True, pairs=True, tiles=True)


@pytest.mark.parametrize("work,changes,rule", [
    (bf16("M", 96, 3000), {}, None),
    (bf16("M", 96, 3000), {"mr": 24, "mc": 48}, "tiles-fit"),
    (bf16("M", 96, 3000), {"nv": 4}, "tiles-fit"),
    (bf16("M", 96, 3000), {"copy_rows": False}, "tiles-of-copies"),
    (bf16("M", 96, 3000), {"pack": Pack.NONE}, "tiles-of-panels"),
    (bf16("M", 96, 3040, 32, paired=True), {"pack": Pack.NONE}, None),
    (bf16("M", 96, 3000), {"by_block": True}, None),
    (bf16("M", 96, 3000), {"by_block": True, "tiles": False, "mr": 8}, "blocks-of-tiles"),
    (bf16("M", 96, 3000, 32, paired=True), {"pack": Pack.NONE}, "tiles-of-k"),
    (described("M", 96, 3000), {}, "words")])
def test_rules_of_tiles(work: Workload, changes: dict[str, Any], rule: str | None) -> None:
    reason = why_invalid(dataclasses.replace(WHOLE, **changes), work, TILED)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule)
    assert str(why_invalid(WHOLE, bf16("M", 96, 3000), PAIRS)).startswith("tiles:")
    found = {c.mr for c in space(bf16("M", 96, 3000), TILED) if c.tiles}
    assert found == {16, 32}


@pytest.mark.parametrize("rows,columns,depth,cores,mc,panels,by_block", [
    ("M", 64, 147, 2, 512, 1, True),  # there may be few rows: panels are units of their own
    ("M", 512, 147, 2, 512, 4, False),
    (12544, 64, 147, 2, 512, 2, True),  # rows for all cores: their copies serve all panels
    (784, 128, 576, 2, 192, 4, False),  # in smaller chunks; the panels would leave no place beside a block of rows
    (196, 128, 576, 2, 448, 1, False),
    (12544, 64, 147, 64, 96, 2, True),
    (12544, 64, 147, 1, 512, 2, True)])
def test_rows_that_there_are_for_certain_serve_all_panels(rows: Dim, columns: int, depth: int, cores: int, mc: int, panels: int,
                                                          by_block: bool) -> None:
    configs, _ = default(bf16(rows, columns, depth), dataclasses.replace(TILED, cores=cores))
    assert (configs[-1].tiles, configs[-1].mc, configs[-1].panels, configs[-1].by_block) == (True, mc, panels, by_block)


@pytest.mark.parametrize(("target", "precision"), [("host", "f32"), ("host", "bf16"), ("host:x86-64-v3", "bf16")])
def test_compiled_with_constant_and_argument_weights(target: str, precision: str) -> None:
    """bf16 models, and f32 models in bf16; constants are paired on targets that multiply pairs."""
    given = "bf16" if precision == "f32" else "f32"
    numbers = ml_dtypes.bfloat16 if given == "bf16" else np.float32
    graph = ops.Graph()
    graph.output(ops.dense(graph.input("x", ["T", 75], given), graph.input("w", [75, 130], given)))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((75, 130)).astype(numbers)
    for constants in ({}, {"arg1": w}):
        fn = tw.compile(graph, {"T": tw.Dim(1, 40)}, target=target, constants=constants,
                        options=tw.CompileOptions(precision=precision))
        paired = target == "host" and "avx512bf16" in cpu_features()
        assert [len(c.shape) for c in fn.program.constants] == ([4 if paired else 3] if constants else [])
        for t in (1, 3, 40):
            x = rng.standard_normal((t, 75)).astype(numbers)
            wanted = x.astype(np.float64) @ w.astype(np.float64)
            found = np.asarray(fn(x) if constants else fn(x, w)).astype(np.float64)
            assert np.linalg.norm(found - wanted) <= 4e-3 * np.linalg.norm(wanted)
