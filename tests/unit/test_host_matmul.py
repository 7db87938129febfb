"""The family host_matmul against NumPy: layouts, element types, epilogues, and every kind of odd extent."""

from __future__ import annotations

import dataclasses
import platform

import numpy as np
import pytest
from allpairspy import AllPairs
from kernel_harness import Dim, T, empty, filled, load, workload
from matmul_workloads import AVX2, AVX512, LAYOUTS, check, described, generic, matmul, multiply_add, prepacked_work, windows

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, Pack, space, why_invalid
from tilewright.passes.spaces.host.host_matmul_heuristics import default
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Node, leaves, select

CONFIGS = ("host_matmul{mr=4 nv=2 lanes=8 prefetch=8 exact-tails=true}", "host_matmul{mr=8 nv=3 pack=panel mc=8}",
           "host_matmul{mr=1 nv=3 lanes=8 prefetch=4 stream=4}",
           "host_matmul{mr=3 nv=2 lanes=8 prefetch=2 mc=6 exact-tails=true stream=3}",
           "host_matmul{mr=2 nv=3 lanes=8 mc=4 stream=4}")
PIECES = ("host_matmul{mr=3 nv=2 lanes=8 mc=6 kc=7 panels=2}",
          "host_matmul{mr=4 nv=2 lanes=8 pack=panel prefetch=4 mc=8 kc=16 panels=3 copy-rows=true}",
          "host_matmul{mr=4 nv=3 lanes=8 pack=panel mc=8 exact-tails=true panels=2 copy-rows=true}",
          "host_matmul{mr=3 nv=2 lanes=8 pack=panel mc=6 exact-tails=true panels=2 by-rows=true}")
SIZES = [(1, 1, 1), (1, 47, 5), (2, 48, 16), (3, 49, 1), (5, 16, 17), (7, 33, 31), (8, 97, 3), (9, 15, 40), (17, 50, 19),
         (0, 5, 3), (4, 0, 3), (4, 5, 0)]
@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", [*CONFIGS, *PIECES])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_extents(layout: str, config: str) -> None:
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b = T("f32", a_dims), T("f32", b_dims)
    c = T("f32", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    subscripts = maps.replace(" ", "").replace(",", "|").split("|")
    for m, n, k in SIZES:
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", x, y))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86-64-v3")
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_default_configurations_of_avx2(layout: str) -> None:
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b, c = T("f32", a_dims), T("f32", b_dims), T("f32", ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    configs, _ = default(described("M", "N", "K"), AVX2)
    for config in configs:
        assert config.lanes == 8
        for m, n, k in SIZES:
            check(text, config_text(config), {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
                  lambda x, y: x @ (y if layout == "nn" else y.T), target="host:x86-64-v3")


@pytest.mark.parametrize(("columns", "depth", "most", "prefetch", "block"), [
    (64, "K", 7, 0, (2, 4)), (64, 256, 7, 0, (2, 4)), (64, 257, 31, 0, (4, 3)), (33, "K", 31, 0, (4, 3))])
def test_few_columns_are_read_in_place_with_16_registers(columns: int, depth: int | str, most: int, prefetch: int,
                                                         block: tuple[int, int]) -> None:
    configs, root = default(described("M", columns, depth), AVX2)
    kernels = [configs[select(root, {"M": m, "K": 768}).kernel] for m in (1, 2, most, most + 1)]
    assert [c.pack for c in kernels] == [Pack.NONE] * 3 + [Pack.PANEL]
    assert kernels[1] == kernels[2] and kernels[1].prefetch == prefetch
    assert {(c.mr, c.nv) for c in kernels[1:]} == {block}


def test_blocks_of_transposed_columns_follow_their_number() -> None:
    configs, root = default(described("M", "N", "K", transposed=True), AVX2)
    kernels = {n: configs[select(root, {"M": 9, "N": n, "K": 64}).kernel] for n in (4, 5, 16, 17, 24, 25, 32, 33, 48, 49, 900)}
    assert {n for n, c in kernels.items() if (c.mr, c.nv) == (4, 3)} == {17, 24, 33, 48}
    assert {n for n, c in kernels.items() if (c.mr, c.nv) == (6, 2)} == {5, 16, 25, 32, 49, 900}
    few = [configs[select(root, {"M": m, "N": 20, "K": 64}).kernel] for m in (1, 2, 3, 4)]
    assert [(c.mr, c.pack) for c in few] == [(1, Pack.NONE), *[(6, Pack.PANEL)] * 2, (4, Pack.PANEL)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dims", [(3, 40, 64), (8, 48, 7), (16, 96, 5), (1, 1, 9), (9, 63, 4)])
def test_static_extents(dims: tuple[int, int, int], config: str) -> None:
    m, n, k = dims
    a, b, c = T("f32", (m, k)), T("f32", (k, n)), T("f32", (m, n))
    check(matmul(a, b, c, "m k,k n,m n", "ppr"), config, {"a": a, "b": b}, [c], {}, np.matmul)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("maps", ["b m k,b k n,b m n", "b m k,b n k,b m n", "b m k,k n,b m n", "m k,b k n,b m n",
                                  "b k m,k n,m b n"])
def test_batches(maps: str, config: str) -> None:
    letters = [tuple(x.upper() for x in m.split()) for m in maps.split(",")]
    a, b, c = (T("f32", d) for d in letters)
    text = matmul(a, b, c, maps, dims=("B", "M", "N", "K"))
    subscripts = maps.replace(" ", "").split(",")
    for batch, m, n, k in ((1, 1, 1, 1), (3, 5, 17, 18), (2, 9, 50, 7), (0, 3, 3, 3), (5, 2, 31, 33)):
        check(text, config, {"a": a, "b": b}, [c], {"B": batch, "M": m, "N": n, "K": k},
              lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", x, y), parts=3)


@pytest.mark.parametrize("config", ["host_matmul{mr=4 nv=2 lanes=8}", "host_matmul{mr=4 nv=2 lanes=8 pack=panel}"])
@pytest.mark.parametrize("kind", ["f64", "f16", "bf16", "i32", "i64"])
def test_element_types(kind: str, config: str) -> None:
    a, b, c = T(kind, ("M", "K")), T(kind, ("K", 24)), T(kind, ("M", 24))
    text = matmul(a, b, c, "m k,k n,m n", "ppr")
    for m, k in ((1, 3), (7, 33)):
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "K": k}, np.matmul)


@pytest.mark.parametrize("layout", ["k n", "n k"])
@pytest.mark.parametrize("narrow,wide,cast", [("i8", "i32", "extsi"), ("i8", "i32", "extui"), ("f16", "f32", "extf"),
                                              ("bf16", "f32", "extf")])
def test_widening_products(narrow: str, wide: str, cast: str, layout: str) -> None:
    a, b, c = T(narrow, ("M", 19)), T(narrow, (19, "N") if layout == "k n" else ("N", 19)), T(wide, ("M", "N"))
    f = wide[0]
    body = f"""%w0 = arith.{cast} %x0 : {narrow} to {wide}
      %w1 = arith.{cast} %x1 : {narrow} to {wide}
      %p = arith.mul{f} %w0, %w1 : {wide}
      %s = arith.add{f} %p, %acc : {wide}
      linalg.yield %s : {wide}"""
    text = matmul(a, b, c, f"m k,{layout},m n", "ppr", body=body)

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = (x & 255, y & 255) if cast == "extui" else (x, y)
        return x @ (y if layout == "k n" else y.T)

    for m, n in ((1, 5), (6, 37)):
        check(text, "host_matmul{mr=4 nv=2}", {"a": a, "b": b}, [c], {"M": m, "N": n}, reference)


BIAS_RELU = """%s = arith.addf %x0, %x1 : f32
      %zero = arith.constant 0.0 : f32
      %r = arith.maximumf %s, %zero : f32
      %o = arith.addf %r, %x2 : f32
      linalg.yield %o : f32"""


@pytest.mark.parametrize("config", CONFIGS)
def test_epilogue_of_bias_relu_and_residual(config: str) -> None:
    a, b, c, bias = T("f32", ("M", 12)), T("f32", (12, "N")), T("f32", ("M", "N")), T("f32", ("N",))
    ident = "(d0, d1) -> (d0, d1)"
    after = empty("e", c) + "\n" + generic("r", [ident, "(d0, d1) -> (d1)", ident, ident], "pp",
                                           {"m": c, "bias": bias, "x": c}, ("e", c), BIAS_RELU)
    inputs = {"a": a, "b": b, "bias": bias, "x": c}
    text = matmul(a, b, c, "m k,k n,m n", "ppr", inputs, after, {"r": c}, ("M", "N"))
    for m, n in ((1, 1), (11, 47), (9, 96)):
        check(text, config, inputs, [c], {"M": m, "N": n}, lambda x, y, z, w: np.maximum(x @ y + z, 0) + w)


@pytest.mark.parametrize("config", [*CONFIGS, *PIECES])
def test_heavy_epilogue_goes_through_the_workspace(config: str) -> None:
    a, b, c = T("f32", ("B", "M", 12)), T("f32", (12, "N")), T("f32", ("B", "M", "N"))
    ident = "(d0, d1, d2) -> (d0, d1, d2)"
    body = "%t = math.tanh %x0 : f32\n linalg.yield %t : f32"
    after = empty("e", c) + "\n" + generic("r", [ident, ident], "ppp", {"m": c}, ("e", c), body)
    text = matmul(a, b, c, "b m k,k n,b m n", results={"r": c}, after=after)
    for batch, m, n in ((1, 1, 1), (3, 5, 47), (2, 9, 96)):
        check(text, config, {"a": a, "b": b}, [c], {"B": batch, "M": m, "N": n}, lambda x, y: np.tanh(x @ y))


@pytest.mark.parametrize("config", CONFIGS)
def test_two_results_one_of_them_transposed_and_cast(config: str) -> None:
    a, b, c, d = T("f32", ("M", "K")), T("f32", ("K", "N")), T("f32", ("M", "N")), T("f16", ("N", "M"))
    after = empty("e", d) + "\n" + generic("h", ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1, d0)"], "pp", {"m": c}, ("e", d),
                                           "%t = arith.truncf %x0 : f32 to f16\n linalg.yield %t : f16")
    text = matmul(a, b, c, "m k,k n,m n", "ppr", after=after, results={"m": c, "h": d}, dims=("M", "N", "K"))
    for m, n, k in ((1, 1, 1), (9, 35, 20)):
        check(text, config, {"a": a, "b": b}, [c, d], {"M": m, "N": n, "K": k}, lambda x, y: (x @ y, (x @ y).T))


def test_reshaped_result_and_strided_operands() -> None:
    a, b, c = T("f32", ("M", 6), None), T("f32", (6, 24), 0), T("f32", ("M", 24))
    r = T("f32", ("M", 3, 8))
    after = f"%r = tensor.expand_shape %m [[0], [1, 2]] output_shape [%M, 3, 8] : {c.type()} into {r.type()}"
    text = matmul(a, b, c, "m k,k n,m n", "ppr", after=after, results={"r": r})
    for config in CONFIGS:
        check(text, config, {"a": a, "b": b}, [r], {"M": 5}, lambda x, y: (x @ y).reshape(5, 3, 8))


def test_initial_value_prologue_and_constant_operands() -> None:
    """c + (2 a) b, with b a computed operand too."""
    a, b, c = T("f32", ("M", "K")), T("f32", ("K", "N")), T("f32", ("M", "N"))
    ident = "(d0, d1) -> (d0, d1)"
    twice = "%t = arith.addf %x0, %x0 : f32\n linalg.yield %t : f32"
    text = "\n".join([empty("ea", a), empty("eb", b), generic("a2", [ident, ident], "pp", {"a": a}, ("ea", a), twice),
                      generic("b2", [ident, ident], "pp", {"b": b}, ("eb", b), twice),
                      generic("m", ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d2, d1)", "(d0, d1, d2) -> (d0, d1)"], "ppr",
                              {"a2": a, "b2": b}, ("c", c), multiply_add("f32"))])
    inputs = {"a": a, "b": b, "c": c}
    for config in CONFIGS:
        for m, n, k in ((1, 1, 0), (6, 41, 9)):
            check(workload(inputs, ("M", "N", "K"), text, {"m": c}), config, inputs, [c], {"M": m, "N": n, "K": k},
                  lambda x, y, z: z + 4 * (x @ y))


@pytest.mark.parametrize("columns", [100, 96, 31])
def test_prepacked_operand_is_read_panel_by_panel(columns: int) -> None:
    a, b, c = T("f32", ("M", 20)), T("f32", (-(-columns // 48), 20, 48)), T("f32", ("M", columns))
    body = filled("z", c, "0.0") + "\n" + generic(
        "m", ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d1 floordiv 48, d2, d1 mod 48)", "(d0, d1, d2) -> (d0, d1)"], "ppr",
        {"a": a, "b": b}, ("z", c), multiply_add("f32"))
    text = workload({"a": a, "b": b}, ("M",), body, {"m": c})
    for config in ("host_matmul{prefetch=16}", "host_matmul{mr=12 nv=1 pack=panel}", "host_matmul{mr=1 nv=24 stream=4}",
                   "host_matmul{mr=4 lanes=8 exact-tails=true next-panel=true}",
                   "host_matmul{mr=12 nv=1 exact-tails=true low-tail=true}", "host_matmul{mr=12 nv=1 exact-tails=true}",
                   "host_matmul{mr=4 nv=6 prefetch=8 exact-tails=true low-tail=true}", "host_matmul{mr=2 nv=9 prefetch=4}"):
        assert load(text, config).kernel.workspace == "0"
        for m in (1, 13, 28):
            check(text, config, {"a": a, "b": b}, [c], {"M": m},
                  lambda x, y: x @ y.transpose(1, 0, 2).reshape(20, -1)[:, :columns])
    with pytest.raises(BuildError, match="panels of 48 columns"):
        load(text, "host_matmul{mr=6 nv=4}")


@pytest.mark.parametrize("layout", ["nn", "nt", "transposed_result"])
def test_blocks_that_fetch_the_next_rows(layout: str) -> None:
    """Rows that end at the edge of what may be read: fetches beyond it do nothing."""
    a_dims, b_dims, maps = LAYOUTS[layout]
    a, b = T("f32", a_dims), T("f32", b_dims)
    c = T("f32", ("N", "M") if layout == "transposed_result" else ("M", "N"))
    text = matmul(a, b, c, maps, "ppr", dims=("M", "N", "K"))
    subscripts = maps.replace(" ", "").replace(",", "|").split("|")
    for config in ("host_matmul{mr=16 nv=1 mc=32 exact-tails=true next-rows=true}",
                   "host_matmul{mr=3 nv=2 lanes=8 next-rows=true}", "host_matmul{mr=12 nv=1 pack=panel mc=24 next-rows=true}"):
        for m, n, k in SIZES:
            check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k},
                  lambda x, y: np.einsum(f"{subscripts[0]},{subscripts[1]}->{subscripts[2]}", x, y))


@pytest.mark.parametrize("element,lanes", [("f32", 16), ("f32", 8), ("f64", 8), ("i32", 16), ("f32", 4), ("f64", 2)])
@pytest.mark.parametrize("rows,columns", [(6, 4), (3, 4), (3, 8), (2, 2), (5, 1), (1, 4)])
def test_dot_products_of_several_rows(element: str, lanes: int, rows: int, columns: int) -> None:
    """Also of fewer rows, columns and values of k than a block, and of more than a unit."""
    a, b, c = T(element, ("M", "K")), T(element, ("N", "K")), T(element, ("M", "N"))
    text = matmul(a, b, c, LAYOUTS["nt"][2], "ppr", dims=("M", "N", "K"))
    config = f"host_matmul{{mr={rows} nv=2 lanes={lanes} mc={2 * rows} exact-tails=true stream={columns}}}"
    for m, n, k in (*SIZES, (6, 64, 64), (25, 37, 100)):
        check(text, config, {"a": a, "b": b}, [c], {"M": m, "N": n, "K": k}, lambda x, y: x @ y.T, parts=3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op,steps,config", list(AllPairs([
    ["nhwc_hwcf", "nhwc_fhwc", "nchw_fchw", "ngchw_gfchw", "depthwise_nhwc_hwc"], [(1, 1), (2, 1), (1, 2)],
    [*CONFIGS[:2], PIECES[1]]])))
def test_convolutions(op: str, steps: tuple[int, int], config: str) -> None:
    stride, dilation = steps
    h = w = 11
    out = (h - dilation * 2 - 1) // stride + 1
    dims: dict[str, tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]]] = {
        "nhwc_hwcf": (("B", h, w, 5), (3, 3, 5, 19), ("B", out, out, 19)),
        "nhwc_fhwc": (("B", h, w, 5), (19, 3, 3, 5), ("B", out, out, 19)),
        "nchw_fchw": (("B", 5, h, w), (19, 5, 3, 3), ("B", 19, out, out)),
        "ngchw_gfchw": (("B", 2, 5, h, w), (2, 7, 5, 3, 3), ("B", 2, 7, out, out)),
        "depthwise_nhwc_hwc": (("B", h, w, 19), (3, 3, 19), ("B", out, out, 19))}
    a, b, c = (T("f32", d) for d in dims[op])
    name = op if op.startswith("depthwise") else f"2d_{op}"
    name = "linalg.depthwise_conv_2d_nhwc_hwc" if op.startswith("depthwise") else f"linalg.conv_{name}"
    body = filled("z", c, "0.0") + f"""
      %m = {name} {{strides = dense<{stride}> : tensor<2xi64>, dilations = dense<{dilation}> : tensor<2xi64>}}
        ins(%a, %b : {a.type()}, {b.type()}) outs(%z : {c.type()}) -> {c.type()}"""

    def reference(x: np.ndarray, f: np.ndarray) -> np.ndarray:
        if op == "ngchw_gfchw":
            seen = [windows(x[:, g].transpose(0, 2, 3, 1), 3, 3, stride, dilation) for g in (0, 1)]
            return np.stack([np.einsum("nhwijc,fcij->nfhw", s, f[g]) for g, s in enumerate(seen)], 1)
        seen = windows(x.transpose(0, 2, 3, 1) if op == "nchw_fchw" else x, 3, 3, stride, dilation)
        sums = {"nhwc_hwcf": "nhwijc,ijcf->nhwf", "nhwc_fhwc": "nhwijc,fijc->nhwf", "nchw_fchw": "nhwijc,fcij->nfhw",
                "depthwise_nhwc_hwc": "nhwijc,ijc->nhwc"}
        return np.einsum(sums[op], seen, f)

    for batch in (1, 3):
        check(workload({"a": a, "b": b}, ("B",), body, {"m": c}), config, {"a": a, "b": b}, [c], {"B": batch}, reference, parts=2)


def test_matrix_times_vector_and_vector_times_matrix() -> None:
    for op, sums in (("matvec", "mk,k->m"), ("vecmat", "k,km->m"), ("batch_matvec", "bmk,bk->bm")):
        a, b, c = (T("f32", tuple(letters.upper())) for letters in sums.replace("->", ",").split(","))
        types = f"ins(%a, %b : {a.type()}, {b.type()}) outs(%z : {c.type()}) -> {c.type()}"
        body = filled("z", c, "0.0") + f"\n%m = linalg.{op} {types}"
        text = workload({"a": a, "b": b}, ("B", "M", "K"), body, {"m": c})
        for m, k in ((1, 1), (35, 37)):
            check(text, CONFIGS[0], {"a": a, "b": b}, [c], {"B": 2, "M": m, "K": k}, lambda x, y, s=sums: np.einsum(s, x, y))


def test_bits_do_not_depend_on_how_units_are_split() -> None:
    a, b, c = T("f32", ("M", "K")), T("f32", ("K", "N")), T("f32", ("M", "N"))
    text = matmul(a, b, c, "m k,k n,m n", "ppr", dims=("M", "N", "K"))
    dims = {"M": 37, "N": 130, "K": 65}
    for config in ("host_matmul{mr=4 nv=2 lanes=8 mc=8}", CONFIGS[1], *PIECES):
        got = [check(text, config, {"a": a, "b": b}, [c], dims, np.matmul, parts)[0].tobytes() for parts in (1, 2, 7)]
        assert got[0] == got[1] == got[2]


@pytest.mark.parametrize("body,message", [
    ("%s = arith.maximumf %x0, %acc : f32\n linalg.yield %s : f32", "one contraction"),
    ("%p = arith.mulf %x0, %x1 : f32\n %s = arith.subf %acc, %p : f32\n linalg.yield %s : f32", "one contraction"),
    ("%p = arith.mulf %x0, %x0 : f32\n %s = arith.addf %acc, %p : f32\n linalg.yield %s : f32", "one contraction")])
def test_other_bodies_are_left_to_another_family(body: str, message: str) -> None:
    a, b, c = T("f32", ("M", 4)), T("f32", (4, 8)), T("f32", ("M", 8))
    with pytest.raises(BuildError, match=message):
        load(matmul(a, b, c, "m k,k n,m n", "ppr", body=body), "host_matmul")


def test_result_joined_with_its_transpose_is_refused() -> None:
    a, b, c = T("f32", (8, 4)), T("f32", (4, 8)), T("f32", (8, 8))
    ident, flip = "(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1, d0)"
    after = empty("e", c) + "\n" + generic("r", [ident, flip, ident], "pp", {"m": c, "m ": c}, ("e", c),
                                           "%s = arith.addf %x0, %x1 : f32\n linalg.yield %s : f32")
    with pytest.raises(BuildError, match="different elements"):
        load(matmul(a, b, c, "m k,k n,m n", "ppr", after=after, results={"r": c}), "host_matmul")


@pytest.mark.parametrize("config,rule", [
    (HostMatmulConfig(mr=0), "block-positive"), (HostMatmulConfig(lanes=12), "lanes-power-of-two"),
    (HostMatmulConfig(lanes=32), "lanes-fit"), (HostMatmulConfig(mr=10), "register-budget"),
    (HostMatmulConfig(low_tail=True), "low-tail"),
    (HostMatmulConfig(mc=12), "chunk-whole-blocks"), (HostMatmulConfig(kc=512), "pieces-need-chunk"),
    (HostMatmulConfig(mc=8, kc=30000), "pieces-of-k"), (HostMatmulConfig(mc=64, kc=512, panels=200), "chunk-fits-l2"),
    (HostMatmulConfig(panels=0), "counts-positive"), (HostMatmulConfig(mc=64, kc=512, panels=8, copy_rows=True), None),
    (HostMatmulConfig(pack=Pack.PANEL), "panel-fits-l2"),
    (HostMatmulConfig(stream=4), "stream-in-place"), (HostMatmulConfig(mr=1, nv=512, stream=4), "stream-fits-l1"),
    (HostMatmulConfig(mr=6, nv=16, stream=4, mc=30), "stream-fits-l1"),
    (HostMatmulConfig(mr=8, nv=8, stream=4, mc=8), "register-budget"),
    (HostMatmulConfig(mr=6, nv=16, stream=4, mc=24), None),
    (HostMatmulConfig(mr=3, nv=2, stream=4, mc=6, panels=2), "stream-whole-k"),
    (HostMatmulConfig(mr=1, nv=48, stream=4), None), (HostMatmulConfig(), None)])
def test_rules_name_what_is_broken(config: HostMatmulConfig, rule: str | None) -> None:
    reason = why_invalid(config, described("M", 96, 30000), AVX512)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule)


@pytest.mark.parametrize("limits", [AVX512, AVX2, HostLimits(16, 32)])
@pytest.mark.parametrize("m,n,k", [("M", 2304, 768), (1, 768, 768), ("M", 10, 50000), ("M", "M", 64), (300, 64, "M")])
def test_default_configurations_are_legal_and_in_the_tree(m: Dim, n: Dim, k: Dim, limits: HostLimits) -> None:
    work = described(m, n, k)
    configs, root = default(work, limits)
    assert [why_invalid(c, work, limits) for c in configs] == [None] * len(configs)
    assert {leaf.kernel for leaf in leaves(root)} == set(range(len(configs)))


def test_results_of_few_products_each_are_written_in_wide_pieces() -> None:
    for work, block in ((described("M", "N", 16, transposed=True), (4, 6)), (described("M", "N", 128, transposed=True), (8, 3)),
                        (described("M", 64, 16), (6, 4)), (described("M", 96, 16), (4, 6))):
        assert {(c.mr, c.nv) for c in default(work, AVX512)[0] if not c.stream} == {block}
    assert (4, 6) not in {(c.mr, c.nv) for c in default(described("M", "N", 16, transposed=True), AVX2)[0]}


def test_whole_rows_of_columns_or_long_pieces_for_one_row_and_more_streams_of_long_ones() -> None:
    """Threads cut it too, but do not change the order of its sums."""

    def one(columns: int, depth: int, threads: int = 1) -> HostMatmulConfig:
        configs, root = default(described("M", columns, depth), dataclasses.replace(AVX2, cores=2, threads=threads))
        return configs[select(root, {"M": 1}).kernel]

    found = [one(1024, 1024), one(1024, 1024, 2), one(4096, 512), one(4096, 512, 2), one(6144, 512), one(1024, 8192)]
    assert [(c.columns, c.stream) for c in found] == [(1024, 4), (512, 4), (4096, 8), (2048, 8), (3072, 8), (1024, 12)]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86-64-v3")
def test_a_few_rows_pass_chunk_by_chunk_over_streamed_columns() -> None:
    a, b, c = T("f32", ("M", 515)), T("f32", (515, 1000)), T("f32", ("M", 1000))
    text = matmul(a, b, c, "m k,k n,m n", "ppr", dims=("M",))
    for limits, target in ((AVX2, "host:x86-64-v3"), (AVX512, "host:x86-64-v4")):
        configs, _ = default(described("M", 1000, 515), limits)
        chunked = [config for config in configs if config.stream and config.mc]
        assert chunked
        for config in chunked if limits is AVX2 or "avx512f" in cpu_features() else ():
            for m in (0, 1, 2, config.mc - 1, config.mc, config.mc + 4):
                check(text, config_text(config), {"a": a, "b": b}, [c], {"M": m}, np.matmul, target=target)


@pytest.mark.parametrize("limits,tile", [(AVX512, 48), (AVX512, 64), (AVX512, 32), (AVX2, 24), (AVX2, 16), (AVX2, 8),
                                         (HostLimits(16, 32), 8)])
def test_default_configurations_fit_prepacked_panels(limits: HostLimits, tile: int) -> None:
    work = prepacked_work("M", tile)
    configs, _ = default(work, limits)
    assert [why_invalid(c, work, limits) for c in configs] == [None] * len(configs)
    assert str(why_invalid(HostMatmulConfig(1, 5, 4), work, limits)).startswith("prepacked-panels")


def test_space_is_legal_and_holds_the_defaults_of_many_rows() -> None:
    work = described("M", 2304, 768)
    found = list(space(work, AVX512))
    assert all(why_invalid(c, work, AVX512) is None for c in found)
    assert HostMatmulConfig(8, 3, 16, Pack.PANEL) in found
    assert len(found) == len(set(found))


def test_result_with_transposed_unit_axis_swaps_rows_and_columns() -> None:
    _, root = default(described("M", 5, 64, unit=0), AVX512)
    assert {leaf.kernel for leaf in leaves(root)} == {0}


def test_many_rows_that_lie_side_by_side_are_copied() -> None:
    """From the rows on where it was measured to pay, and on the registers that it was measured with."""
    configs, root = default(described("M", "N", "K", across=True), AVX2)
    kernels = [configs[select(root, {"M": m, "N": 900, "K": 900}).kernel] for m in (383, 384)]
    assert [c.copy_rows for c in kernels] == [False, True] and kernels[1].panels > 1
    assert all(why_invalid(c, described("M", "N", "K", across=True), AVX2) is None for c in configs)
    for other, limits in ((described("M", "N", "K"), AVX2), (described("M", "N", "K", across=True), AVX512),
                          (described("M", "N", "K", transposed=True, across=True), AVX2)):
        assert not any(c.copy_rows for c in default(other, limits)[0])


def test_few_transposed_columns_are_dot_products() -> None:
    def one(n: Dim) -> tuple[tuple[HostMatmulConfig, ...], Node]:
        return default(described("M", n, 64, transposed=True), AVX512)

    configs, root = one("N")
    few = select(root, {"M": 100, "N": 8}).kernel
    assert configs[few].stream and configs[few].lanes == 8 and select(root, {"M": 100, "N": 9}).kernel != few
    assert one(8)[0] == (configs[few],) and configs[few] not in one(9)[0]
    assert all(why_invalid(c, described("M", "N", 64), AVX512) is None for c in configs)


@pytest.mark.parametrize("limits", [AVX512, AVX2])
@pytest.mark.parametrize("columns", [768, 776, 1024])
def test_transposed_weights_are_dot_products_for_few_rows_then_panels(limits: HostLimits, columns: int) -> None:
    """Square ones too: the extents of k and n say nothing about which of them memory runs along."""
    work = described("M", columns, 768 if columns == 776 else columns, transposed=True)
    configs, root = default(work, limits)
    assert [why_invalid(c, work, limits) for c in configs] == [None] * len(configs)
    kernels = [configs[select(root, {"M": m, "N": columns, "K": 768}).kernel] for m in (1, 3, 12, 13, 100)]
    assert [bool(c.stream) for c in kernels] == [True, True, True, False, False]
    assert columns == 776 or columns % kernels[0].columns == 0
