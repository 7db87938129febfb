"""A search over products out of a pool: what it certifies counts rows and bits of activations, and explain says what is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.search.database.records import TuningLog
from tools.bench.search.trusted import measured_again

N, K, ENTRIES = 768, 512, 64


def model() -> ops.Graph:
    """Rows rounded to A bits times a pooled weight [N, K]."""
    rng, g = np.random.default_rng(0), ops.Graph()
    pool, index = rng.integers(-127, 128, (ENTRIES, 8), dtype=np.int8), rng.integers(0, ENTRIES, (N, K // 8), dtype=np.uint8)
    values, _ = ops.round_to_bits(g.input("x", ["M", K]), g.dim("A"), span=(-4.0, 4.0))
    g.output(ops.dense(values, ops.decode_pool(g.constant(index), g.constant(pool)), transposed=True))
    return g


DIMS = {"M": tw.Dim(1, 24), "A": tw.Dim(1, 8)}


def test_a_certificate_counts_rows_and_bits(tmp_path: Path) -> None:
    """Every pair of them is a shape, shapes of several of both are held out, and the regret there is measured again."""
    fn = tw.compile(model(), DIMS, options={"threads": 1, "trials": 80, "seed": 1, "log": tmp_path / "log.jsonl"})
    found = next(c for t in fn.program.tables if t.codes for c in fn.program.certificates if c.workload == t.workload)
    assert "over 192 shapes" in str(found)
    held = [tuple(s.values()) for s in found.held_out]
    assert {len(s) for s in held} == {2} and min(len({s[i] for s in held}) for i in (0, 1)) > 1
    again = measured_again(found, fn.program, TuningLog(tmp_path / "log.jsonl"), 1)
    assert len(again) == len(held) and all(np.isfinite(again))


def test_explain_says_what_is_read() -> None:
    """The kernel's algorithm, and the bytes of indices and pool as they are stored."""
    shown = str(tw.compile(model(), DIMS).explain(M=1, A=4))
    assert "host_pools{" in shown and f"weights of {N * K // 8 + ENTRIES * 8:,} bytes are read" in shown
