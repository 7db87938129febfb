"""Ragged models on the emulated GPU: every family gets what each sequence gets alone, with races and bounds checked."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate_ragged

WIDTH, HEADS = 32, 2
LENGTHS = (3, 0, 33, 17, 1)


def layer(dtype: str) -> ops.Graph:
    """Attention among the rows of a sequence, and the largest of each column."""
    g = ops.Graph()
    x, w = g.input("x", ["B", "S", WIDTH], dtype), g.input("w", [WIDTH, WIDTH], dtype)
    b, s, _ = x.dims
    heads = ops.transpose(ops.reshape(ops.dense(x, w), (b, s, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))
    mixed = ops.reshape(ops.transpose(ops.attention(heads, heads, heads), (0, 2, 1, 3)), (b, s, WIDTH))
    y = ops.add(x, mixed)
    g.output(y, ops.max(y, 1))
    return g


@pytest.mark.parametrize(("dtype", "families", "tolerance"), [
    ("f32", {"simt", "gpu_rows"}, 1e-5),
    ("f16", {"wgmma", "wgmma_attention"}, 1e-2),
])
def test_families(dtype: str, families: set[str], tolerance: float) -> None:
    numpy = {"f32": np.float32, "f16": np.float16}[dtype]
    fn = tw.compile(layer(dtype), {"B": (0, 8), "S": tw.Ragged(0, 40, over="B")}, target="emulator:sm_90a")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((sum(LENGTHS), WIDTH)).astype(numpy), (rng.standard_normal((WIDTH, WIDTH)) / 6).astype(numpy)
    found = fn(x, w, S_lengths=LENGTHS)
    wanted = evaluate_ragged(fn.program.source, "B", [x, w], {"S": LENGTHS})
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.reshape(-1), b, tolerance, tolerance)
    shown = fn.explain(S=LENGTHS)
    assert families <= {c.family for c in shown.calls}
    assert "5 sequences of a launch each" in str(shown)
    with pytest.raises(tw.errors.ShapeError, match="S = 41 of sequence 0"):
        fn(x, w, S_lengths=[41, 13])
    with pytest.raises(tw.errors.ShapeError, match="S_offsets: wanted"):
        fn.call_flat(x, w, np.array([0, 41, 54]))
    assert fn(x[:0], w, S_lengths=[])[0].shape == (0, WIDTH)
