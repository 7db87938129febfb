"""Rows divided by a root that they have in common, as norms do: one reciprocal a row."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import T, empty, filled, load, workload
from matmul_workloads import generic

from tilewright.passes.families.row_exponents import mark_shares
from tilewright.passes.mlir import functions, ir, operations

FULL, ROW = T("f32", ("M", "N")), T("f32", ("M",))
FULL_MAP, ROW_MAP = "(i, j) -> (i, j)", "(i, j) -> (i)"
CONFIGS = ["host_rows{vectors=8 rows=4 block=32}", "host_rows{lanes=16 unroll=2}", "host_rows{axis=lane}"]


def gives(operation: str, element: str = "f32") -> str:
    return f"%y = {operation} : {element}\nlinalg.yield %y : {element}"


def divided(element: str = "f32") -> str:
    """%s, the sums of rows of %x; %r, roots of %q; %out, %x over these."""
    full, row = T(element, FULL.dims), T(element, ROW.dims)
    return "\n".join([
        filled("zero", row, "0.0"), empty("to", full), empty("rows", row),
        generic("s", [FULL_MAP, ROW_MAP], "pr", {"x": full}, ("zero", row), gives("arith.addf %x0, %acc", element)),
        generic("r", ["(i) -> (i)"] * 2, "p", {"q": row}, ("rows", row), gives("math.sqrt %x0", element)),
        generic("out", [FULL_MAP, ROW_MAP, FULL_MAP], "pp", {"x": full, "r": row}, ("to", full),
                gives("arith.divf %x0, %x1", element)),
    ])


@pytest.mark.parametrize(("old", "new", "element", "marked"), [
    ("", "", "f32", True),
    ("math.sqrt", "math.exp", "f32", False),  # whose reciprocal may be subnormal
    ("arith.divf %x0, %x1", "arith.divf %x1, %x0", "f32", False),  # a root over elements
    ("", "", "f64", False),  # not computed by the reciprocal
])
def test_divisions_by_the_root_of_a_row_are_marked(old: str, new: str, element: str, marked: bool) -> None:
    full, row = T(element, FULL.dims), T(element, ROW.dims)
    text = divided(element)
    assert old in text
    text = workload({"x": full, "q": row}, ["M", "N"], text.replace(old, new) if old else text, {"out": full, "s": row})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        mark_shares(operations(next(functions(module)).regions[0].blocks[0]))
        assert ("tw.share" in str(module)) == marked


def test_a_root_of_each_element_is_divided_by_as_it_is() -> None:
    text = "\n".join([
        filled("zero", ROW, "0.0"), empty("to", FULL),
        generic("s", [FULL_MAP, ROW_MAP], "pr", {"x": FULL}, ("zero", ROW), gives("arith.addf %x0, %acc")),
        generic("r", [FULL_MAP] * 2, "pp", {"x": FULL}, ("to", FULL), gives("math.sqrt %x0")),
        generic("out", [FULL_MAP] * 3, "pp", {"x": FULL, "r": FULL}, ("to", FULL), gives("arith.divf %x0, %x1")),
    ])
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(workload({"x": FULL}, ["M", "N"], text, {"out": FULL, "s": ROW}))
        mark_shares(operations(next(functions(module)).regions[0].blocks[0]))
        assert "tw.share" not in str(module)


@pytest.mark.parametrize("config", CONFIGS)
def test_quotients_are_a_last_place_from_the_exact_ones_and_special_where_these_are(config: str) -> None:
    text = workload({"x": FULL, "q": ROW}, ["M", "N"], divided(), {"out": FULL, "s": ROW})
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38, 1e-38, 1.0], np.float32)
    x = (rng.standard_normal((40, 70)) * 10.0 ** rng.integers(-20, 20, (40, 70))).astype(np.float32)
    x[:, :10] = special
    q = (10.0 ** rng.uniform(-37, 38, 40)).astype(np.float32)
    q[:8] = [0.0, -0.0, np.inf, np.nan, 1e-45, 3.4e38, -1.0, 1e-38]
    kernel = load(text, config)
    out, sums = np.empty_like(x), np.empty_like(q)
    kernel([x, q], {"M": 40, "N": 70}, [out, sums])
    with np.errstate(all="ignore"):
        wanted = x / np.sqrt(q)[:, None]
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(out[~finite], wanted[~finite])
    distance = np.abs(out[finite].astype(np.float64) - wanted[finite]) / np.spacing(np.abs(wanted[finite])).astype(np.float64)
    assert 0 < distance.max() <= 2
