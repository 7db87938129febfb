"""Exponentials that only the logarithm of their sum is made of, as in log-softmax: cheaper ones, in a sum of at least 1."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import T, empty, filled, load, workload
from matmul_workloads import generic

from tilewright.passes.families.row_exponents import mark_exponents, mark_maxima, mark_summed
from tilewright.passes.mlir import functions, ir, operations

FULL_MAP, ROW_MAP, SAME_ROW = "(i, j) -> (i, j)", "(i, j) -> (i)", "(i) -> (i)"
CONFIGS = ["host_rows{lanes=8 unroll=1 rows=4}", "host_rows{lanes=16 unroll=2}", "host_rows{axis=lane}",
           "host_rows{vectors=8 rows=4}"]


def log_softmax(element: str = "f32") -> str:
    """%m, maxima of the rows of %x; %d, distances to them; %e, their exponentials; %s, sums; %l, logarithms; %lse, %m more than
    these; %out, %d less these."""
    full, row = T(element, ("M", "N")), T(element, ("M",))

    def gives(operation: str) -> str:
        return f"%y = {operation} : {element}\nlinalg.yield %y : {element}"

    low = {"f32": "0xFF800000", "f64": "0xFFF0000000000000"}[element]
    return "\n".join([
        filled("low", row, low), filled("zero", row, "0.0"), empty("to", full), empty("rows", row),
        generic("m", [FULL_MAP, ROW_MAP], "pr", {"x": full}, ("low", row), gives("arith.maximumf %x0, %acc")),
        generic("d", [FULL_MAP, ROW_MAP, FULL_MAP], "pp", {"x": full, "m": row}, ("to", full), gives("arith.subf %x0, %x1")),
        generic("e", [FULL_MAP] * 2, "pp", {"d": full}, ("to", full), gives("math.exp %x0")),
        generic("s", [FULL_MAP, ROW_MAP], "pr", {"e": full}, ("zero", row), gives("arith.addf %x0, %acc")),
        generic("l", [SAME_ROW] * 2, "p", {"s": row}, ("rows", row), gives("math.log %x0")),
        generic("lse", [SAME_ROW] * 3, "p", {"l": row, "m": row}, ("rows", row), gives("arith.addf %x0, %x1")),
        generic("out", [FULL_MAP, ROW_MAP, FULL_MAP], "pp", {"d": full, "l": row}, ("to", full), gives("arith.subf %x0, %x1")),
    ])


@pytest.mark.parametrize(("old", "new", "result", "marked"), [
    ("", "", "out", True),
    ("", "", "l", True),
    ("", "", "s", False),  # the sum itself is a result
    ("", "", "e", False),
    ("math.log %x0", "math.sqrt %x0", "out", False),
    ("arith.addf %x0, %acc", "arith.maximumf %x0, %acc", "out", False),
    ("arith.constant 0.0 :", "arith.constant -1.0 :", "out", False),  # a sum that begins below 0
    ("ins(%d, %l", "ins(%e, %l", "out", False),  # the exponentials are used again
    ("ins(%x, %m", "ins(%z, %m", "out", False),  # distances from the maximum of others
])  # fmt: skip
def test_exponentials_that_only_the_logarithm_of_their_sum_is_made_of_are_marked(
    old: str, new: str, result: str, marked: bool
) -> None:
    full, row = T("f32", ("M", "N")), T("f32", ("M",))
    text = log_softmax()
    assert old in text
    text = workload({"x": full, "z": full}, ["M", "N"], text.replace(old, new) if old else text,
                    {result: row if result in ("l", "s") else full})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_exponents(ops)
        mark_summed(ops, list(ops[-1].operands))
        assert ("tw.summed" in str(module)) == marked


def test_exponentials_that_are_summed_over_other_elements_than_their_maximum_are_not_marked() -> None:
    """Of such a sum, which may be 0, the logarithm is -inf."""
    full, column, text = T("f32", ("M", "N")), T("f32", ("N",)), log_softmax()
    body = "%y = arith.addf %x0, %acc : f32\nlinalg.yield %y : f32"
    log = "%y = math.log %x0 : f32\nlinalg.yield %y : f32"
    down = "\n".join([
        text[: text.index("%s = ")], filled("none", column, "0.0"), empty("columns", column),
        generic("s", [FULL_MAP, "(i, j) -> (j)"], "rp", {"e": full}, ("none", column), body),
        generic("l", [SAME_ROW] * 2, "p", {"s": column}, ("columns", column), log),
    ])
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(workload({"x": full}, ["M", "N"], down, {"l": column}))
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_exponents(ops)
        mark_summed(ops, list(ops[-1].operands))
        assert "tw.nonpositive" in str(module) and "tw.summed" not in str(module)


@pytest.mark.parametrize(("old", "new", "result", "marked"), [
    ("", "", "out", True),
    ("", "", "lse", True),
    ("", "", "m", False),
    ("", "", "d", False),
    ("arith.addf %x0, %x1", "arith.maxnumf %x0, %x1", "lse", False),  # the maximum where the logarithm is NaN
    ("arith.addf %x0, %acc", "arith.maxnumf %x0, %acc", "out", False),
    ("math.log %x0", "math.copysign %x0, %x0", "out", False),
])  # fmt: skip
def test_maxima_whose_nan_is_seen_in_a_logarithm_are_marked(old: str, new: str, result: str, marked: bool) -> None:
    full, row = T("f32", ("M", "N")), T("f32", ("M",))
    text = log_softmax()
    assert old in text
    text = workload({"x": full}, ["M", "N"], text.replace(old, new) if old else text,
                    {result: row if result in ("lse", "m") else full})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        ops = operations(next(functions(module)).regions[0].blocks[0])
        mark_maxima(ops, list(ops[-1].operands))
        assert ("tw.nan_elsewhere" in str(module)) == marked


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("element", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_log_softmax_is_near_the_exact_one_and_special_where_this_is(config: str, element: str, dtype: type) -> None:
    full, columns = T(element, ("M", "N")), 128 if "vectors" in config and element == "f32" else 61
    if "vectors" in config:
        columns = 8 * int(32 / np.dtype(dtype).itemsize)
        config = config.replace("vectors=8", f"lanes={columns // 8} vectors=8")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((64, columns)) * 10.0 ** rng.uniform(-3, 3, (64, 1))).astype(dtype)
    x[1], x[2] = -np.inf, 3.5
    x[3, 5], x[4, 5], x[5, 5], x[6, 1:] = -np.inf, np.inf, np.nan, -np.inf
    x[7, :9], x[8, 1:] = -1e30, x[8, 0] - 87.4
    x[9, 1:] = x[9, 0] - 1e4
    out, lse = np.empty_like(x), np.empty(64, dtype)
    text = workload({"x": full}, ["M", "N"], log_softmax(element), {"out": full, "lse": T(element, ("M",))})
    load(text, config)([x], {"M": 64, "N": columns}, [out, lse])
    with np.errstate(all="ignore"):
        distances = x.astype(np.longdouble)
        greatest = distances.max(1, keepdims=True)
        distances = distances - greatest
        logarithms = np.log(np.exp(distances).sum(1, keepdims=True))
    for got, exact in ((out, distances - logarithms), (lse, (logarithms + greatest)[:, 0])):
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(got[~finite], exact[~finite].astype(dtype))
        error = np.abs(got[finite] - exact[finite]) / np.finfo(dtype).eps / np.maximum(np.abs(exact[finite]), 1)
        assert 0 < error.max() <= 3
