"""Long rows, so many that the caches hardly hold them: the next one is fetched meanwhile, the results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.families.host.host_row_columns import RowColumns
from tilewright.passes.spaces.host import host_rows_heuristics
from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.runtime.program.dispatch import Leaf

pytestmark = pytest.mark.usefixtures("built_here")


def log_of_sum(columns: int) -> ops.Graph:
    g = ops.Graph()
    x = g.input("x", ["T", columns])
    most = ops.max(x, [1], keepdims=True)
    raised = ops.exp(x - most)
    g.output(raised)
    g.output(ops.log(ops.sum(raised, [1], keepdims=True)) + most)
    return g


@pytest.mark.parametrize("columns", [8192, 8200])
def test_many_long_rows_fetch_the_next_one_and_give_the_same(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3 * 2^20 elements on; the last row has none behind it."""
    fetched: list[int] = []
    fetch = RowColumns._fetch_next
    monkeypatch.setattr(RowColumns, "_fetch_next", lambda self, at: fetched.append(1) or fetch(self, at))
    monkeypatch.setattr(host_rows_heuristics, "default", lambda workload, limits: ((HostRowsConfig(lanes=8),), Leaf(0)))
    fn = tw.compile(log_of_sum(columns), {"T": (1, 1024)})
    assert fetched
    for rows in (1, 2, 383, 384, 401):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        raised, found = fn(x)
        wide = x.astype(np.float64)
        most = wide.max(1, keepdims=True)
        np.testing.assert_allclose(raised, np.exp(wide - most), rtol=1e-5)
        np.testing.assert_allclose(found, np.log(np.exp(wide - most).sum(1, keepdims=True)) + most, rtol=1e-5)
        for one, two in zip((raised, found), fn(x, threads=2), strict=True):
            assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("rows", [(1, 4096), (300, 300)])
def test_shorter_rows_do_not(rows: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("fetches a row of 8191 columns")

    monkeypatch.setattr(RowColumns, "_fetch_next", refused)
    tw.compile(log_of_sum(8191), {"T": rows})
