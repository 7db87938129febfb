"""Texts of products with work on the rows of their results, with their references."""

from __future__ import annotations

import numpy as np
from gpu_workloads import Case, generic
from kernel_harness import NUMPY, T, empty, filled, workload
from tensor_core_workloads import SUMS, shortened, widened

_FULL, _ROW, _COLUMN, _ONE = "(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)", "(d0, d1) -> (d1)", "(d0) -> (d0)"
_ADD = "%ha = arith.addf %x0, %acc : f32\n linalg.yield %ha : f32"
_LOW = "0xFF800000"


def product_rows(kind: str, columns: int, element: str = "f16", out: str = "f32", kept: str = "") -> Case:
    """M x K by K x `columns`, then "softmax", or "layernorm" of the product with a bias and a residual.

    out: the result is rounded to it. kept: the product is, before anything reads it.
    """
    a, b, y, r = T(element, ("M", "K")), T(element, ("K", columns)), T("f32", ("M", columns)), T("f32", ("M",))
    result, stored = T(out, y.dims), T(kept or "f32", y.dims)
    maps = ["(d0, d1, d2) -> (d0, d2)", "(d0, d1, d2) -> (d2, d1)", "(d0, d1, d2) -> (d0, d1)"]
    assert SUMS[element] == "f32"
    body = [filled("z", y, "0.0"), filled("zr", r, "0.0"), empty("e", y), empty("er", r), empty("eo", result),
            generic("m", maps, "ppr", {"a": a, "b": b}, ("z", y), widened(element))]
    value = "m"
    if kept:
        body += [empty("ek", stored), generic("k", [_FULL] * 2, "pp", {"m": y}, ("ek", stored),
                                              f"%ht = arith.truncf %x0 : f32 to {kept}\n linalg.yield %ht : {kept}"),
                 generic("w", [_FULL] * 2, "pp", {"k": stored}, ("e", y),
                         f"%ht = arith.extf %x0 : {kept} to f32\n linalg.yield %ht : f32")]
        value = "w"
    rounded = "%ho" if out == "f32" else "%ht"
    last = ("" if out == "f32" else f"%ht = arith.truncf %ho : f32 to {out}\n") + f" linalg.yield {rounded} : {out}"
    inputs = {"a": a, "b": b}
    if kind == "softmax":
        body += [filled("low", r, _LOW),
                 generic("most", [_FULL, _ROW], "pr", {value: y}, ("low", r),
                         "%ha = arith.maximumf %x0, %acc : f32\n linalg.yield %ha : f32"),
                 generic("p", [_FULL, _ROW, _FULL], "pp", {value: y, "most": r}, ("e", y),
                         "%ha = arith.subf %x0, %x1 : f32\n %hb = math.exp %ha : f32\n linalg.yield %hb : f32"),
                 generic("s", [_FULL, _ROW], "pr", {"p": y}, ("zr", r), _ADD),
                 generic("q", [_FULL, _ROW, _FULL], "pp", {"p": y, "s": r}, ("eo", result),
                         f"%ho = arith.divf %x0, %x1 : f32\n {last}")]
    else:
        inputs |= {"bias": T("f32", (columns,)), "x": T("f32", y.dims)}
        n = f"%hn = arith.constant {float(columns)} : f32\n"
        body += [generic("v", [_FULL, _COLUMN, _FULL, _FULL], "pp", {value: y, "bias": inputs["bias"], "x": y}, ("e", y),
                         "%hs = arith.addf %x0, %x1 : f32\n %ho = arith.addf %hs, %x2 : f32\n linalg.yield %ho : f32"),
                 generic("s", [_FULL, _ROW], "pr", {"v": y}, ("zr", r), _ADD),
                 generic("mu", [_ONE, _ONE], "p", {"s": r}, ("er", r),
                         f"{n} %ha = arith.divf %x0, %hn : f32\n linalg.yield %ha : f32"),
                 generic("d", [_FULL, _ROW, _ROW], "pr", {"v": y, "mu": r}, ("zr", r),
                         "%ha = arith.subf %x0, %x1 : f32\n %hb = arith.mulf %ha, %ha : f32\n "
                         "%hc = arith.addf %hb, %acc : f32\n linalg.yield %hc : f32"),
                 generic("q", [_FULL, _ROW, _ROW, _FULL], "pp", {"v": y, "mu": r, "d": r}, ("eo", result),
                         f"{n} %ha = arith.subf %x0, %x1 : f32\n %hw = arith.divf %x2, %hn : f32\n "
                         f"%hi = arith.constant 1.0e-5 : f32\n %hu = arith.addf %hw, %hi : f32\n "
                         f"%hg = math.rsqrt %hu : f32\n %ho = arith.mulf %ha, %hg : f32\n {last}")]

    def reference(x: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None, residual: np.ndarray | None = None) -> np.ndarray:
        total: np.ndarray = shortened(x) @ shortened(y) if element == "f32" else x @ y
        total = total.astype(NUMPY[kept]).astype(np.float64) if kept else total
        if bias is None:
            p = np.exp(total - total.max(1, keepdims=True, initial=-np.inf))
            shares: np.ndarray = p / p.sum(1, keepdims=True)
            return shares
        total = total + bias + residual
        centred = total - total.mean(1, keepdims=True)
        normal: np.ndarray = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return normal

    return Case(workload(inputs, ["M", "K"], "\n".join(body), {"q": result}), tuple(inputs.values()), (result,), reference)
