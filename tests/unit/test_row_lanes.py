"""Rows a lane: along which axis of a region its vectors run, and what it computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.host.host_cpu import cpu_features

pytestmark = pytest.mark.skipif("avx512bw" not in cpu_features(), reason="the CPU has no AVX-512")


def weighted(dims: Sequence[int | str]) -> ops.Graph:
    """Sums along the middle axis of elements times weights without the last axis, over numbers of the first axis."""
    g = ops.Graph()
    x, w, n = g.input("x", list(dims)), g.input("w", [*dims[:2], 1]), g.input("n", [dims[0], 1])
    g.output(ops.sum(x * w, [1]) / n)
    return g


@pytest.mark.parametrize("columns", [40, "T"], ids=["other extent", "equal extents"])
def test_lanes_run_along_the_unit_axis_of_what_is_read(columns: int | str) -> None:
    fn = tw.compile(weighted([8, "T", columns]), {"T": (1, 512)}, "host:x86-64-v4")
    shape = (8, 130, 40 if columns == 40 else 130)
    random = np.random.default_rng(1)
    x, w, n = (random.uniform(0.5, 2, s).astype(np.float32) for s in (shape, (*shape[:2], 1), (8, 1)))
    np.testing.assert_allclose(fn(x, w, n), (x.astype(np.float64) * w).sum(1) / n, rtol=1e-5)
    [kernel] = [k for t in fn.program.tables for k in t.kernels]
    units = 8 * -(-shape[2] // 64)
    assert "axis=lane" in kernel.config and f" {units} " in str(fn.explain(T=130)), "vectors do not run along the last axis"


def test_lanes_run_along_the_rows_of_a_table_that_are_added() -> None:
    """Not along the numbers of the rows, with a gather for each column of the table; a number is one for all lanes."""
    g = ops.Graph()
    table, numbers = g.input("table", [100, 70]), g.input("numbers", ["T", 20], "i64")
    g.output(ops.sum(ops.gather(table, numbers), [1]))
    fn = tw.compile(g, {"T": (1, 64)}, "host:x86-64-v4")
    random = np.random.default_rng(2)
    table, numbers = random.standard_normal((100, 70)).astype(np.float32), random.integers(0, 100, (9, 20))
    np.testing.assert_allclose(fn(table, numbers), table[numbers].astype(np.float64).sum(1), rtol=1e-4, atol=1e-5)
    [kernel] = [k for t in fn.program.tables for k in t.kernels]
    assert kernel.config == "host_rows{axis=lane block=1}"
