"""Rows rounded to as many bits as a call says, times weights out of pools of bytes: exact integers from one compiled model."""

from __future__ import annotations

import numpy as np
import pytest
from codes_workloads import rounded

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.host.host_pools import NARROW_BITS, sums_in_16_bits
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.host.host_cpu import cpu_features

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(8)
PERMUTED = ((1, 64, 100, 2400), (2, 130, 97, 1200), (1, 100, 300, 4096))  # more groups than are added in 16 bits at once
needs_permutes = pytest.mark.skipif("avx512vbmi" not in cpu_features(), reason="the CPU has no AVX-512 VBMI")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("books,entries,n,k,target", [(1, 40, 40, 72, "host:x86-64-v3"), (2, 256, 264, 24, "host:x86-64-v3"),
                                                      (1, 16, 300, 200, "host:x86-64-v2"),
                                                      *(pytest.param(*c, "host", marks=needs_permutes) for c in PERMUTED)])
def test_every_width_is_exact(books: int, entries: int, n: int, k: int, target: str) -> None:
    g = ops.Graph()
    values, _ = ops.round_to_bits(g.input("x", ["M", k]), g.dim("A"), per="row")
    index = [RNG.integers(0, entries, (n, k // 8), dtype=np.uint8) for _ in range(books)]
    pools = [RNG.integers(-128, 128, (entries, 8)).astype(np.int8) for _ in range(books)]
    pools[0][0], pools[0][1] = -128, 127
    w = ops.decode_pool([g.constant(i) for i in index], [g.constant(p) for p in pools])
    g.output(ops.dense(values, w, transposed=True))
    fn = tw.compile(g, {"M": (1, 64), "A": tw.Dim(1, 8)}, target=target)
    weight = sum(p.astype(np.int64)[i].reshape(n, k) for p, i in zip(pools, index, strict=True))
    x = RNG.standard_normal((37, k)).astype(np.float32)
    x[3], x[4] = 1.0, np.abs(x[4])  # all of the largest code, and no zero point
    for bits in range(1, 9):
        want = rounded(x, bits, "row")[0].astype(np.int64) @ weight.T
        for rows in (1, 3, 8, 16, 37):
            assert np.array_equal(fn(x[:rows], bits), want[:rows]), (bits, rows)
    if target == "host":
        assert {"bits=5 permute", "bits=8 permute"} <= {str(fn.explain(M=1, A=a)).partition("mc=1 ")[2][:14] for a in (5, 6)}
    if target.endswith("v3"):
        texts = {str(fn.explain(M=32, A=bits)).partition("bits=")[2][:1] for bits in range(1, 9)}
        assert "8" in texts and len(texts) > 1


def test_a_sum_in_16_bits_holds_what_is_added() -> None:
    for bits in range(1, NARROW_BITS + 1):
        assert sums_in_16_bits(bits) >= 1 and sums_in_16_bits(bits) * ((1 << bits) - 1) * 8 * 128 <= 32767
        assert 2 * (2 * ((1 << bits) - 1)) * 128 <= 32767  # a pair of products, of rows without a sign


def test_scales_of_data_and_of_a_span() -> None:
    x = RNG.standard_normal((5, 24)).astype(np.float32)
    x[2] = 0
    g = ops.Graph()
    for per, span in (("tensor", None), ("row", None), ("tensor", (-1.0, 2.0))):
        values, scale = ops.round_to_bits(g.input(f"x{len(g.constants)}{per}{span is None}", [5, 24]), 5, per=per, span=span)
        g.output(values)
        g.output(scale)
    found = tw.compile(g)(x, x, x)
    for n, (per, span) in enumerate((("tensor", None), ("row", None), ("tensor", (-1.0, 2.0)))):
        values, scale = rounded(x, 5, per, span)
        assert np.array_equal(found[2 * n], values) and np.allclose(found[2 * n + 1], scale, rtol=1e-6)
    bad = x.copy()
    bad[0, 0] = np.nan
    assert np.isnan(tw.compile(g)(bad, bad, x)[1]).all()


def test_mistakes_are_named() -> None:
    g = ops.Graph()
    x = g.input("x", ["M", 16])
    for wrong, message in (({"bits": 9}, "bits=9"), ({"bits": 0}, "bits=0"), ({"bits": 4, "per": "column"}, "per='column'"),
                           ({"bits": 4, "span": (1.0, 2.0)}, "span=")):
        with pytest.raises(OptionError, match=message):
            ops.round_to_bits(x, **wrong)
    values, _ = ops.round_to_bits(x, g.dim("A"))
    g.output(values)
    fn = tw.compile(g, {"M": (1, 4), "A": tw.Dim(1, 8)})
    with pytest.raises(ShapeError, match="A"):
        fn(np.zeros((2, 16), np.float32), 9)
