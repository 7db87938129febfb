"""Products of groups of rows on the emulator, against a loop over the groups in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

GROUPS, DEPTH, COLUMNS = 4, 32, 48


@pytest.mark.usefixtures("built_here")
def test_rows_meet_the_weight_of_their_group() -> None:
    """Places of rows are computed in 64 bits, of which coordinates keep 32."""
    g, rng = ops.Graph(ranges={"S": (0, 60)}), np.random.default_rng(0)
    x, w = g.input("x", ["S", DEPTH], "f16"), g.input("w", [GROUPS, DEPTH, COLUMNS], "f16")
    g.output(ops.grouped_matmul(x, w, g.input("ends", [GROUPS], "i64")))
    weights = rng.standard_normal((GROUPS, DEPTH, COLUMNS)).astype(np.float16)
    fn = tw.compile(g, {"S": (0, 60)}, constants={"w": weights}, target="emulator:sm_90a")
    for counts in ((0, 0, 0, 0), (0, 1, 0, 0), (3, 0, 1, 5), (0, 60, 0, 0)):
        ends = np.cumsum(counts)
        a = rng.standard_normal((int(ends[-1]), DEPTH)).astype(np.float16)
        group = np.repeat(np.arange(GROUPS), counts)
        want = np.einsum("sk,skn->sn", a.astype(np.float64), weights.astype(np.float64)[group])
        np.testing.assert_allclose(fn(a, ends).astype(np.float64), want, rtol=2e-2, atol=2e-2)
