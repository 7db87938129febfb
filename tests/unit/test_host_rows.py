"""The family host_rows against NumPy in float64: softmax, normalisations, reductions along any axis, every odd extent."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import NUMPY, T, at_edge, empty, filled, guarded, load, workload

from tilewright.passes.families.row_exponents import mark_exponents, mark_maxima, mark_shares
from tilewright.passes.mlir import functions, ir, operations
from tilewright.passes.spaces.host.host_rows import HostRowsConfig, space, why_invalid
from tilewright.passes.spaces.host.host_rows_heuristics import default
from tilewright.passes.spaces.workload import Axis, Kind, Loop, Operand, Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

COLUMN = ("host_rows", "host_rows{vectors=8 rows=4}", "host_rows{vectors=8 unroll=2 held=true lanes=32}",
          "host_rows{rows=4 unroll=1 lanes=8 block=8}", "host_rows{lanes=8 unroll=1 vectors=16 rows=4 block=16}")
LANE = ("host_rows{axis=lane block=1}", "host_rows{axis=lane unroll=2 lanes=8}")
SHAPES = ((1, 1), (5, 3), (3, 0), (0, 7), (7, 33), (9, 128), (130, 17), (3, 300))
AVX512 = HostLimits(64, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 2)
AVX2 = HostLimits(32, 16)
INFINITY = {"f32": "0xFF800000", "f64": "0xFFF0000000000000", "f16": "0xFC00", "bf16": "0xFF80"}


def generic(out: str, maps: str, kinds: str, ins: Sequence[tuple[str, T]], init: tuple[str, T], body: str) -> str:
    """A linalg.generic over loops i, j, k, l; block arguments x0, x1, ..., acc; `body` ends in the yielded value %y."""
    loops = ", ".join("ijkl"[: len(kinds)])
    listed = ", ".join(f"affine_map<({loops}) -> ({', '.join(m.split())})>" for m in maps.split(","))
    iterators = ", ".join('"parallel"' if k == "p" else '"reduction"' for k in kinds)
    arguments = ", ".join([*(f"%x{n}: {t.element}" for n, (_, t) in enumerate(ins)), f"%acc: {init[1].element}"])
    return f"""%{out} = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{iterators}]}}
      ins({", ".join(f"%{n}" for n, _ in ins)} : {", ".join(t.type() for _, t in ins)})
      outs(%{init[0]} : {init[1].type()}) {{ ^bb0({arguments}):
      {body}
      linalg.yield %y : {init[1].element} }} -> {init[1].type()}\n"""


def softmax(full: T, row: T, maps: str = "i j, i", kinds: str = "pr") -> str:
    """%m (maxima), %e, %s and %out, the softmax of %x."""
    whole, rows = maps.split(", ")
    f = full.element
    return "\n".join([
        filled("low", row, INFINITY[f]), filled("zero", row, "0.0"), empty("to", full),
        generic("m", f"{whole}, {rows}", kinds, [("x", full)], ("low", row), f"%y = arith.maximumf %x0, %acc : {f}"),
        generic("e", f"{whole}, {rows}, {whole}", "p" * len(kinds), [("x", full), ("m", row)], ("to", full),
                f"%d = arith.subf %x0, %x1 : {f}\n%y = math.exp %d : {f}"),
        generic("s", f"{whole}, {rows}", kinds, [("e", full)], ("zero", row), f"%y = arith.addf %x0, %acc : {f}"),
        generic("out", f"{whole}, {rows}, {whole}", "p" * len(kinds), [("e", full), ("s", row)], ("to", full),
                f"%y = arith.divf %x0, %x1 : {f}"),
    ])


def softmax_of(x: np.ndarray, axis: int) -> np.ndarray:
    wide = x.astype(np.float64)
    if not x.shape[axis]:
        return wide
    e = np.exp(wide - wide.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def run(text: str, config: str, inputs: Sequence[np.ndarray], dims: Mapping[str, int],
        results: Sequence[tuple[T, tuple[int, ...]]], parts: int = 2, target: str = "host") -> list[np.ndarray]:
    """Outputs of the kernel; the same bits in one part and in several."""
    kernel = load(text, config, target)
    assert kernel.kernel.legal(dims), config
    edged = [at_edge(x) for x in inputs]
    runs = []
    for count in (1, parts):
        outputs = [guarded(shape, np.dtype(NUMPY[t.element])) for t, shape in results]
        kernel(edged, dims, outputs, count)
        runs.append(outputs)
    for a, b in zip(*runs, strict=True):
        assert a.tobytes() == b.tobytes()
    return runs[0]


def legal(config: str, columns: int) -> bool:
    """Are there columns for the vectors of the configuration?"""
    return "vectors" not in config or columns <= 128


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(got.astype(np.float64), wanted, tolerance, tolerance)


@pytest.mark.parametrize("config", [*COLUMN, *LANE])
def test_softmax_with_its_maxima(config: str) -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0",))
    text = workload({"x": full}, ["d0", "d1"], softmax(full, row), {"out": full, "m": row})
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        if legal(config, shape[1]):
            x = rng.standard_normal(shape, np.float32)
            out, m = run(text, config, [x], dict(zip(("d0", "d1"), shape, strict=True)), [(full, shape), (row, shape[:1])])
            close(out, softmax_of(x, 1))
            np.testing.assert_array_equal(m, x.max(1, initial=-np.inf))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86-64-v3")
@pytest.mark.parametrize("config", ["host_rows{lanes=8}", "host_rows{lanes=8 vectors=4 rows=4 unroll=4}"])
def test_softmax_for_avx2(config: str) -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0",))
    text = workload({"x": full}, ["d0", "d1"], softmax(full, row), {"out": full})
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (5, 9), (9, 32), (3, 27)):
        x = rng.standard_normal(shape, np.float32)
        dims = dict(zip(("d0", "d1"), shape, strict=True))
        if load(text, config, "host:x86-64-v3").kernel.legal(dims):
            close(run(text, config, [x], dims, [(full, shape)], target="host:x86-64-v3")[0], softmax_of(x, 1))


@pytest.mark.parametrize("config", [*COLUMN[:1], *LANE])
def test_softmax_along_the_middle_axis(config: str) -> None:
    full, row = T("f32", ("d0", "d1", "d2")), T("f32", ("d0", "d2"))
    text = workload({"x": full}, ["d0", "d1", "d2"], softmax(full, row, "i j k, i k", "prp"), {"out": full})
    for shape in ((2, 5, 7), (3, 4, 70), (1, 0, 5), (2, 21, 64), (2, 3, 200)):
        x = np.random.default_rng(2).standard_normal(shape, np.float32)
        (out,) = run(text, config, [x], dict(zip(("d0", "d1", "d2"), shape, strict=True)), [(full, shape)])
        close(out, softmax_of(x, 1))


@pytest.mark.parametrize("config", [COLUMN[0], "host_rows{vectors=2 unroll=2 rows=4}", "host_rows{vectors=1 unroll=1 held=true}"])
def test_static_columns_take_one_variant(config: str) -> None:
    columns = 16 if "=1" in config else 20
    full, row = T("f32", ("d0", columns)), T("f32", ("d0",))
    text = workload({"x": full}, ["d0"], softmax(full, row), {"out": full})
    x = np.random.default_rng(3).standard_normal((11, columns), np.float32)
    (out,) = run(text, config, [x], {"d0": 11}, [(full, x.shape)])
    close(out, softmax_of(x, 1))
    assert not load(text, config).kernel.guards


def normalise(t: str, full: T, row: T, column: T) -> str:
    """%mean and %out: layer normalisation of %x + %res, scaled by %g and shifted by %b; computed in f32."""
    wide = T("f32", full.dims)
    widen = [f"%w{n} = arith.extf %x{n} : {t} to f32" if t in ("f16", "bf16") else f"%w{n} = arith.addf %x{n}, %zero0 : {t}"
             for n in range(5)]
    narrow = f"%y = arith.truncf %o : f32 to {t}" if t in ("f16", "bf16") else f"%y = arith.addf %o, %zero0 : {t}"
    f = "f64" if t == "f64" else "f32"
    wide, row = T(f, full.dims), T(f, row.dims)
    return "\n".join([
        f"%zero0 = arith.constant 0.0 : {f}\n%eps = arith.constant 1.0e-5 : {f}",
        "%n = arith.index_cast %d1 : index to i64\n" + f"%count = arith.sitofp %n : i64 to {f}",
        filled("zero", row, "0.0"), empty("rows", row), empty("wide", wide), empty("to", full),
        generic("sum_in", "i j, i j, i j", "pp", [("x", full), ("res", full)], ("wide", wide),
                f"{widen[0]}\n{widen[1]}\n%y = arith.addf %w0, %w1 : {f}"),
        generic("total", "i j, i", "pr", [("sum_in", wide)], ("zero", row), f"%y = arith.addf %x0, %acc : {f}"),
        generic("mean", "i, i", "p", [("total", row)], ("rows", row), f"%y = arith.divf %x0, %count : {f}"),
        generic("square", "i j, i, i", "pr", [("sum_in", wide), ("mean", row)], ("zero", row),
                f"%d = arith.subf %x0, %x1 : {f}\n%q = arith.mulf %d, %d : {f}\n%y = arith.addf %acc, %q : {f}"),
        generic("scale", "i, i", "p", [("square", row)], ("rows", row),
                f"%v = arith.divf %x0, %count : {f}\n%u = arith.addf %v, %eps : {f}\n%y = math.rsqrt %u : {f}"),
        generic("out", "i j, i, i, j, j, i j", "pp",
                [("sum_in", wide), ("mean", row), ("scale", row), ("g", column), ("b", column)], ("to", full),
                f"""%d = arith.subf %x0, %x1 : {f}
                {widen[3]}
                {widen[4]}
                %z = arith.mulf %d, %x2 : {f}
                %h = arith.mulf %z, %w3 : {f}
                %o = arith.addf %h, %w4 : {f}
                {narrow}"""),
    ])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config,element", [*((c, "f32") for c in (*COLUMN, LANE[0])),
                                            *zip((*COLUMN, LANE[0]), itertools.cycle(["f64", "f16", "bf16"]))])
def test_layer_norm_of_a_sum_with_its_mean(config: str, element: str) -> None:
    tolerance = {"f32": 2e-6, "f64": 1e-13, "f16": 4e-3, "bf16": 3e-2}[element]
    full, column, row = T(element, ("d0", "d1")), T(element, ("d1",)), T("f64" if element == "f64" else "f32", ("d0",))
    text = workload({"x": full, "res": full, "g": column, "b": column}, ["d0", "d1"], normalise(element, full, row, column),
                    {"out": full, "mean": row})
    rng = np.random.default_rng(4)
    for shape in ((6, 40), (3, 1), (5, 100), (2, 768)):
        if not legal(config, shape[1]):
            continue
        x, res = (rng.standard_normal(shape).astype(NUMPY[element]) for _ in range(2))
        g, b = (rng.standard_normal(shape[1]).astype(NUMPY[element]) for _ in range(2))
        out, mean = run(text, config, [x, res, g, b], {"d0": shape[0], "d1": shape[1]}, [(full, shape), (row, shape[:1])])
        y = x.astype(np.float64) + res.astype(np.float64)
        c = y - y.mean(1, keepdims=True)
        wanted = c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * g.astype(np.float64) + b.astype(np.float64)
        if shape[1] > 1:
            close(out, wanted, tolerance)
        close(mean, y.mean(1), tolerance)


REDUCTIONS = {
    "addf": ("f32", "0.0", np.add), "mulf": ("f64", "1.0", np.multiply), "maximumf": ("f32", INFINITY["f32"], np.maximum),
    "minnumf": ("f64", "0x7FF0000000000000", np.fmin), "minimumf": ("f16", "0x7C00", np.minimum),
    "addi": ("i64", "5", np.add), "muli": ("i32", "1", np.multiply), "maxsi": ("i32", "-2147483648", np.maximum),
    "minsi": ("i8", "127", np.minimum), "andi": ("i1", "true", np.logical_and), "ori": ("i1", "false", np.logical_or),
    "xori": ("i32", "0", np.bitwise_xor), "maxnumf": ("f32", INFINITY["f32"], np.fmax),
}


def reduction(name: str, element: str, start: str, axis: int, unit: int = -1) -> tuple[str, T, T]:
    full, row = T(element, ("d0", "d1"), unit), T(element, ("d1" if axis == 0 else "d0",))
    body = filled("start", row, start) if element != "i1" else \
        f"%start_value = arith.constant {start}\n{empty('start_empty', row)}\n" \
        f"%start = linalg.fill ins(%start_value : i1) outs(%start_empty : {row.type()}) -> {row.type()}"
    body += "\n" + generic("out", f"i j, {'ij'[1 - axis]}", "rp" if axis == 0 else "pr", [("x", full)], ("start", row),
                           f"%y = arith.{name} %x0, %acc : {element}")
    return workload({"x": full}, ["d0", "d1"], body, {"out": row}), full, row


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, axis: int) -> None:
    element, start, ufunc = REDUCTIONS[name]
    text, _, row = reduction(name, element, start, axis)
    rng = np.random.default_rng(5)
    for config in (COLUMN[0], COLUMN[1], LANE[0]):
        for shape in ((3, 5), (70, 37), (1, 100), (100, 2), (3, 0), (0, 3)):
            values = rng.standard_normal(shape) if "f" in element else rng.integers(-9, 9, shape)
            x = values.astype(NUMPY[element])
            wide = x.astype(np.float64) if element in ("f32", "f16") and name in ("addf", "mulf") else x
            start_value = {"addi": 5}.get(name)
            if name in ("addf", "mulf", "addi", "muli", "xori", "andi", "ori"):
                wanted = ufunc.reduce(wide, axis, dtype=wide.dtype)
                wanted = wanted + start_value if start_value else wanted
            else:
                top = np.iinfo(x.dtype) if element[0] == "i" else None
                low = -np.inf if name.startswith("max") else np.inf
                wanted = ufunc.reduce(wide, axis, initial=(top.min if name == "maxsi" else top.max) if top else low)
            (out,) = run(text, config, [x], {"d0": shape[0], "d1": shape[1]}, [(row, (shape[1 - axis],))])
            close(out, wanted, 3e-6)


@pytest.mark.parametrize("config", [*COLUMN, *LANE])
def test_softmax_of_rows_with_a_nan_is_nan(config: str) -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0",))
    text = workload({"x": full}, ["d0", "d1"], softmax(full, row), {"out": full})
    x = np.random.default_rng(6).standard_normal((80, 37), np.float32)
    for i in range(37):
        x[2 * i, i] = np.nan
    x[74, :], x[76, 3], x[78, 4] = np.nan, np.inf, -np.inf
    (out,) = run(text, config, [x], {"d0": 80, "d1": 37}, [(full, x.shape)])
    with np.errstate(invalid="ignore"):
        close(out, softmax_of(x, 1))
    assert np.isnan(out[:78:2]).all() and not np.isnan(out[1::2]).any()


@pytest.mark.parametrize("config", [*COLUMN, *LANE])
def test_maximum_and_sum_keep_nan_and_infinity(config: str) -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0",))
    text = workload({"x": full}, ["d0", "d1"], softmax(full, row), {"out": full, "m": row})
    x = np.random.default_rng(6).standard_normal((20, 37), np.float32)
    for i in range(9):
        x[i, 4 * i + i % 3] = np.nan
    x[10, 5], x[11, 36], x[12, :] = -np.inf, -np.inf, -np.inf
    out, m = run(text, config, [x], {"d0": 20, "d1": 37}, [(full, x.shape), (row, (20,))])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(m, x.max(1))
        close(out, softmax_of(x, 1))


def test_half_sums_accumulate_in_f32() -> None:
    for element in ("f16", "bf16"):
        text, _, row = reduction("addf", element, "0.0", 1)
        x = np.full((2, 4096), 1.0, NUMPY[element])
        (out,) = run(text, "host_rows", [x], {"d0": 2, "d1": 4096}, [(row, (2,))])
        np.testing.assert_array_equal(out.astype(np.float64), [4096.0, 4096.0])


@pytest.mark.parametrize("config", ["host_rows", "host_rows{vectors=4 rows=4}"])
def test_rows_of_several_axes_in_strided_views(config: str) -> None:
    """Attention scores of shape (b, h, q, k) seen through a transpose, with a mask per (b, k)."""
    full, mask, row = T("f32", ("d0", "d1", "d2", "d3")), T("f32", ("d0", "d3")), T("f32", ("d0", "d1", "d2"))
    body = empty("masked_to", full) + "\n" + generic(
        "masked", "i j k l, i l, i j k l", "pppp", [("raw", full), ("mask", mask)], ("masked_to", full),
        "%y = arith.addf %x0, %x1 : f32") + softmax(full, row, "i j k l, i j k", "pppr").replace("%x ", "%masked ").replace(
        "%x,", "%masked,")
    text = workload({"raw": full, "mask": mask}, ["d0", "d1", "d2", "d3"], body, {"out": full})
    rng = np.random.default_rng(7)
    memory = at_edge(rng.standard_normal((2, 5, 3, 40), np.float32))
    view = memory[:, ::2].transpose(0, 2, 1, 3)[..., :37]
    added = rng.standard_normal((2, 37), np.float32)
    out = guarded(view.shape, np.dtype(np.float32))
    load(text, config)([view, at_edge(added)], dict(zip(("d0", "d1", "d2", "d3"), view.shape, strict=True)), [out], 3)
    close(out, softmax_of(view + added[:, None, None, :], 3))


@pytest.mark.parametrize("config", ["host_rows", "host_rows{vectors=4 rows=4 unroll=2}", "host_rows{axis=lane}"])
def test_row_scalars_as_columns_of_extent_one(config: str) -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0", 1))
    text = workload({"x": full}, ["d0", "d1"], softmax(full, row, "i j, i 0"), {"out": full, "s": row})
    x = np.random.default_rng(8).standard_normal((9, 50), np.float32)
    out, s = run(text, config, [x], {"d0": 9, "d1": 50}, [(full, x.shape), (row, (9, 1))])
    close(out, softmax_of(x, 1))
    close(s, np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1, keepdims=True))


@pytest.mark.parametrize("config", ["host_rows", "host_rows{rows=4}", "host_rows{axis=lane}"])
def test_two_column_loops(config: str) -> None:
    """Columns that are two axes which do not collapse: a value kept between sweeps, then written."""
    full, row = T("f32", ("d0", "d1", "d2")), T("f32", ("d0",))
    text = workload({"x": full}, ["d0", "d1", "d2"], softmax(full, row, "i j k, i", "prr"), {"out": full})
    for shape in ((3, 4, 21), (2, 1, 64), (1, 3, 100), (2, 0, 4)):
        x = np.random.default_rng(9).standard_normal(shape, np.float32)
        (out,) = run(text, config, [x], dict(zip(("d0", "d1", "d2"), shape, strict=True)), [(full, shape)])
        close(out, softmax_of(x.reshape(shape[0], -1), 1).reshape(shape))


def test_a_whole_tensor_is_one_row() -> None:
    full, scalar = T("f32", ("d0",)), T("f32", ())
    text = workload({"x": full}, ["d0"], filled("zero", scalar, "0.0") + "\n" + generic(
        "out", "i,", "r", [("x", full)], ("zero", scalar), "%y = arith.addf %x0, %acc : f32"), {"out": scalar})
    for count in (0, 1, 1000):
        x = np.random.default_rng(10).standard_normal(count, np.float32)
        (out,) = run(text, "host_rows", [x], {"d0": count}, [(scalar, ())])
        close(out, x.astype(np.float64).sum())


def test_independent_reductions_share_a_sweep() -> None:
    full, row = T("f32", ("d0", "d1")), T("f32", ("d0",))
    body = filled("zero", row, "0.0") + "\n" + generic(
        "s", "i j, i", "pr", [("x", full)], ("zero", row), "%y = arith.addf %x0, %acc : f32") + generic(
        "q", "i j, i", "pr", [("x", full)], ("zero", row), "%p = arith.mulf %x0, %x0 : f32\n%y = arith.addf %p, %acc : f32")
    text = workload({"x": full}, ["d0", "d1"], body, {"s": row, "q": row})
    x = np.random.default_rng(11).standard_normal((5, 77), np.float32)
    s, q = run(text, "host_rows", [x], {"d0": 5, "d1": 77}, [(row, (5,)), (row, (5,))])
    close(s, x.astype(np.float64).sum(1), 1e-5)
    close(q, (x.astype(np.float64) ** 2).sum(1))


def test_refuses_what_is_no_row_program() -> None:
    full, row = T("f32", ("d0", "d0")), T("f32", ("d0",))
    last = generic("out", "i j, i", "pr", [("x", full)], ("zero", row), "%m = arith.mulf %acc, %acc : f32\n"
                   "%y = arith.addf %x0, %m : f32")
    with pytest.raises(BuildError, match="no associative reduction"):
        load(workload({"x": full}, ["d0"], filled("zero", row, "0.0") + "\n" + last, {"out": row}), "host_rows")
    total = generic("s", "i j, i", "pr", [("x", full)], ("zero", row), "%y = arith.addf %x0, %acc : f32")
    crossed = generic("out", "i, j, i j", "pp", [("s", row), ("s", row)], ("to", full), "%y = arith.divf %x0, %x1 : f32")
    body = "\n".join([filled("zero", row, "0.0"), empty("to", full), total, crossed])
    text = workload({"x": full}, ["d0"], body, {"out": full})
    for config in ("host_rows", "host_rows{axis=lane}"):
        with pytest.raises(BuildError, match="another row"):
            load(text, config)


@pytest.mark.parametrize("config", ["host_rows", "host_rows{axis=lane}"])
def test_rows_of_a_result_may_be_columns_of_an_input(config: str) -> None:
    full, row = T("f32", ("d0", "d0")), T("f32", ("d0",))
    body = "\n".join([
        filled("zero", row, "0.0"), empty("to", full),
        generic("s", "i j, i", "pr", [("x", full)], ("zero", row), "%y = arith.addf %x0, %acc : f32"),
        generic("out", "i j, j, i j", "pp", [("x", full), ("s", row)], ("to", full), "%y = arith.divf %x0, %x1 : f32")])
    x = np.random.default_rng(12).random((37, 37), np.float32) + 1
    (out,) = run(workload({"x": full}, ["d0"], body, {"out": full}), config, [x], {"d0": 37}, [(full, x.shape)])
    close(out, x / x.astype(np.float64).sum(1))


def rows_workload(columns: Expr, unit: int = 1, roles: str = "rc", transcendentals: int = 0) -> Workload:
    extents = [Expr.dim("d0"), columns]
    loops = tuple(Loop({"r": "row", "c": "col"}[r], e) for r, e in zip(roles, extents, strict=True))
    operand = Operand(DType("f32"), tuple(extents), unit)
    result = Operand(DType("f32"), tuple(extents), 1)
    found = Workload("", "softmax", Kind.ROWS, "", ("d0", "d1"), (operand,), (result,), loops, Expr.of(1), Expr.of(1),
                     transcendentals=transcendentals)
    axes = (Axis((0,), (1,)), Axis((1,), (1,)))
    return replace(found, inputs=(replace(operand, axes=axes),), outputs=(replace(result, axes=axes),))


def test_space_holds_exactly_the_valid_configurations() -> None:
    workload_ = rows_workload(Expr.dim("d1"))
    for limits in (AVX512, AVX2):
        configs = list(space(workload_, limits))
        assert len(configs) == len(set(configs)) > 20
        assert all(why_invalid(c, workload_, limits) is None for c in configs)
    assert {c.axis for c in space(workload_, AVX512)} == {"column", "lane"}


@pytest.mark.parametrize(("config", "rule"), [
    (HostRowsConfig(axis="row"), "axis-known"), (HostRowsConfig(lanes=12), "lanes-power-of-two"),
    (HostRowsConfig(lanes=128), "lanes-fit"), (HostRowsConfig(unroll=0), "counts-positive"),
    (HostRowsConfig("lane", rows=4), "lane-columns"), (HostRowsConfig(vectors=32), "vectors-bounded"),
    (HostRowsConfig("lane", held=True), "held-sums"),
    (HostRowsConfig(vectors=16, unroll=2), "long-unrolled-lean"), (HostRowsConfig(vectors=2), "unroll-used"),
    (HostRowsConfig(held=True), "held-one-row"), (HostRowsConfig(rows=8, block=4), "block-whole"),
])
def test_rules_name_themselves(config: HostRowsConfig, rule: str) -> None:
    assert (why_invalid(config, rows_workload(Expr.dim("d1")), AVX512) or "").startswith(rule + ":")


def test_static_columns_must_fit() -> None:
    config = HostRowsConfig(vectors=4)
    assert (why_invalid(config, rows_workload(Expr.of(768)), AVX512) or "").startswith("vectors-cover:")
    assert why_invalid(config, rows_workload(Expr.of(64)), AVX512) is None


def test_default_dispatches_on_the_length_of_rows() -> None:
    for limits, bound in ((AVX512, 128), (AVX2, 64)):
        configs, root = default(rows_workload(Expr.dim("d1")), limits)
        table = DispatchTable("", "softmax", ("d0", "d1"), (), root)
        assert [configs[table.select({"d0": 9, "d1": n}).kernel].vectors for n in (5, bound, bound + 1)] == [8, 8, 0]
        few = configs[table.select({"d0": 9, "d1": 4}).kernel]
        assert (few.axis, few.lanes) == (("lane", 16) if limits == AVX512 else ("column", 8))
        assert all(why_invalid(c, rows_workload(Expr.dim("d1")), limits) is None for c in configs)
    (long,), _ = default(rows_workload(Expr.of(768)), AVX512)
    assert long.vectors == 0
    assert {c.axis for c in default(rows_workload(Expr.of(5) * Expr.dim("d1")), AVX512)[0]} == {"column"}  # never so few
    (lane,), _ = default(rows_workload(Expr.dim("d1"), roles="cr"), AVX512)
    assert lane.axis == "lane"


def test_sums_are_held_by_cpus_that_compute_on_two_lines_a_cycle() -> None:
    whole = rows_workload(Expr.of(768))
    parts = replace(whole.outputs[0], axes=(Axis((0,), (0,)), Axis((1,), (1,))))
    sums = replace(whole, outputs=(parts,), reductions=1, part_rows=64)
    for limits, held in ((AVX512, True), (replace(AVX512, multiply_adds=1), False), (AVX2, False)):
        configs, _ = default(sums, limits)
        assert {c.held for c in configs if c.axis == "lane"} == {held}
        assert {c.held for c in space(sums, limits) if c.axis == "lane"} == {False, True}
        assert all(why_invalid(c, sums, limits) is None for c in configs)


@pytest.mark.parametrize("columns", [Expr.dim("d1"), Expr.of(100), Expr.of(256), Expr.of(5000)])
def test_exponentials_leave_few_registers_to_accumulators(columns: Expr) -> None:
    curved, plain = (default(rows_workload(columns, transcendentals=n), AVX2)[0][-1] for n in (1, 0))
    assert (curved.unroll, curved.rows) == (1, 4) and plain.unroll > 1
    assert default(rows_workload(columns, transcendentals=1), AVX512)[0][-1].unroll > 1
    every, root = default(rows_workload(Expr.dim("d1"), transcendentals=1), AVX2)
    table = DispatchTable("", "softmax", ("d0", "d1"), (), root)
    picked = [every[table.select({"d0": 9, "d1": n}).kernel] for n in (5, 6, 128, 129)]
    assert [(c.axis, c.vectors) for c in picked] == [("lane", 0), ("column", 16), ("column", 16), ("column", 0)]
    assert all(why_invalid(c, rows_workload(Expr.dim("d1")), AVX2) is None for c in every)


@pytest.mark.parametrize(("maps", "second", "marked"), [("i j, i", "x", True), ("i j, i", "z", False), ("j i, i", "x", True)])
def test_exponentials_of_distances_to_the_maximum_are_marked(maps: str, second: str, marked: bool) -> None:
    full, row = T("f32", ("M", "N")), T("f32", ("M",))
    if maps.startswith("j"):
        full = T("f32", ("N", "M"))
    text = softmax(full, row, maps).replace("ins(%x, %m :", f"ins(%{second}, %m :")
    text = workload({"x": full, "z": full}, ["M", "N"], text, {"out": full})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_exponents(ops)
        assert ("tw.nonpositive" in str(module)) == marked


@pytest.mark.parametrize(("change", "result", "marked"), [
    (("", ""), "out", True),
    (("", ""), "s", True),
    (("", ""), "m", False),
    (("", ""), "e", False),
    (("ins(%x, %m :", "ins(%z, %m :"), "out", False),  # exponentials of others
    (("ins(%e :", "ins(%z :"), "out", False),  # a sum of others
    (("arith.addf %x0, %acc", "arith.mulf %x0, %acc"), "out", False),
    (("arith.divf %x0, %x1", "arith.maximumf %x0, %x1"), "out", False),
])  # fmt: skip
def test_maxima_whose_nan_is_seen_in_a_sum_are_marked(change: tuple[str, str], result: str, marked: bool) -> None:
    full, row = T("f32", ("M", "N")), T("f32", ("M",))
    text = softmax(full, row).replace(*change) if change[0] else softmax(full, row)
    text = workload({"x": full, "z": full}, ["M", "N"], text, {result: full if result in ("out", "e") else row})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_maxima(ops, list(ops[-1].operands))
        assert ("tw.nan_elsewhere" in str(module)) == marked


@pytest.mark.parametrize(("old", "new", "marked"), [
    ("", "", True),
    ("math.exp %d", "math.exp2 %d", False),  # whose arguments are not looked at
    ("ins(%x, %m :", "ins(%z, %m :", False),  # exponentials of others
    ("ins(%e, %s :", "ins(%z, %s :", False),  # parts of others
    ("ins(%e :", "ins(%z :", False),  # a sum of others
    ("arith.addf %x0, %acc", "arith.mulf %x0, %acc", False),
    ("arith.constant 0.0 :", "arith.constant -1.0 :", False),  # a sum that begins below 0
])
def test_shares_of_a_sum_of_exponentials_are_marked(old: str, new: str, marked: bool) -> None:
    full, row = T("f32", ("M", "N")), T("f32", ("M",))
    text = softmax(full, row)
    assert old in text
    text = workload({"x": full, "z": full}, ["M", "N"], text.replace(old, new) if old else text, {"out": full})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_exponents(ops)
        mark_shares(ops)
        assert ("tw.share" in str(module)) == marked
