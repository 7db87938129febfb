"""Rows whose scalars need a logarithm are finished four at a time, a row a lane."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY, T, empty, filled, load, workload
from unit.test_host_rows import INFINITY, close, generic, legal, run

CONFIGS = ("host_rows{rows=4 unroll=1 lanes=8 block=8}", "host_rows{vectors=8 rows=4}", "host_rows{rows=4 lanes=32 block=3}",
           "host_rows{rows=4 lanes=8 unroll=1 vectors=4 block=16}", "host_rows")
SHAPES = ((1, 1), (2, 5), (3, 0), (0, 7), (4, 8), (7, 33), (9, 30), (130, 17), (5, 300))


def log_softmax(t: str) -> str:
    """%m, %s, %l (maxima and logarithms of sums, less a number of each row) and %out."""
    full, row = T(t, ("d0", "d1")), T(t, ("d0",))
    return "\n".join([
        filled("low", row, INFINITY[t]), filled("zero", row, "0.0"), empty("to", full), empty("rows", row),
        generic("m", "i j, i", "pr", [("x", full)], ("low", row), f"%y = arith.maximumf %x0, %acc : {t}"),
        generic("e", "i j, i, i j", "pp", [("x", full), ("m", row)], ("to", full),
                f"%d = arith.subf %x0, %x1 : {t}\n%y = math.exp %d : {t}"),
        generic("s", "i j, i", "pr", [("e", full)], ("zero", row), f"%y = arith.addf %x0, %acc : {t}"),
        generic("l", "i, i, i, i", "p", [("s", row), ("m", row), ("b", row)], ("rows", row),
                f"%g = math.log %x0 : {t}\n%a = arith.addf %g, %x1 : {t}\n%y = arith.subf %a, %x2 : {t}"),
        generic("out", "i j, i, i j", "pp", [("x", full), ("l", row)], ("to", full), f"%y = arith.subf %x0, %x1 : {t}"),
    ])


@pytest.mark.parametrize(("element", "tolerance"), [("f32", 2e-6), ("f64", 1e-6), ("f16", 0.02), ("bf16", 0.15)])
@pytest.mark.parametrize("config", CONFIGS)
def test_log_softmax_with_an_operand_and_a_result_of_each_row(config: str, element: str, tolerance: float) -> None:
    """Operands end, and results lie, at pages that nobody may touch."""
    full, row = T(element, ("d0", "d1")), T(element, ("d0",))
    text = workload({"x": full, "b": row}, ["d0", "d1"], log_softmax(element), {"out": full, "l": row})
    rng, kind = np.random.default_rng(4), NUMPY[element]
    for shape in SHAPES:
        if not legal(config, shape[1]) or not load(text, config).kernel.legal(dict(zip(("d0", "d1"), shape, strict=True))):
            continue
        x, b = (rng.standard_normal(s).astype(kind) for s in (shape, shape[:1]))
        out, found = run(text, config, [x, b], dict(zip(("d0", "d1"), shape, strict=True)), [(full, shape), (row, shape[:1])])
        wide = x.astype(np.float64)
        top = wide.max(1, initial=-np.inf)
        with np.errstate(divide="ignore"):
            wanted = np.log(np.exp(wide - top[:, None]).sum(1)) + top - b.astype(np.float64)
        close(found, wanted, tolerance)
        close(out, wide - wanted[:, None], tolerance)
