"""Products by tiles (AMX) as they are compiled: constants, windows, chains of operations, and in an order of sums that no batch
changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.tensor import DType

BF16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = [pytest.mark.usefixtures("built_here"),
              pytest.mark.skipif(not {"amx-tile", "amx-int8", "amx-bf16"} <= cpu_features() or not may_use_tiles(),
                                 reason="the CPU has no tiles, or the system keeps them back")]


def tiled(fn: tw.DynamicFunction) -> bool:
    """Does any kernel of it use tiles?"""
    return any(kernel.tiles for table in fn.program.tables for kernel in table.kernels)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("k,n", [(64, 96), (96, 47), (50, 40)])
def test_linear_layers(k: int, n: int, constant: bool) -> None:
    """With what follows them."""
    rng = np.random.default_rng(0)
    w, bias = rng.standard_normal((k, n)).astype(BF16), rng.standard_normal(n).astype(BF16)
    g = ops.Graph()
    x, wv, b = g.input("x", ["T", k], DType.BF16), g.input("w", [k, n], DType.BF16), g.input("b", [n], DType.BF16)
    g.output(ops.relu(ops.matmul(x, wv) + b))
    fn = tw.compile(g, {"T": (1, 200)}, constants={"w": w, "b": bias} if constant else {})
    assert tiled(fn)
    for t in (1, 2, 5, 17, 64, 199):
        a = rng.standard_normal((t, k)).astype(BF16)
        want = np.maximum(a.astype(np.float64) @ w.astype(np.float64) + bias.astype(np.float64), 0)
        for threads in (1, 2):
            got = fn(a, *(() if constant else (w, bias)), threads=threads)
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("named", [False, True])
def test_batches_of_constants(named: bool) -> None:
    """One matrix for each of the batch, or those that data name."""
    rng = np.random.default_rng(6)
    w = rng.standard_normal((5, 64, 70)).astype(BF16)
    g = ops.Graph()
    x, wv, at = g.input("x", [5, "T", 64], DType.BF16), g.input("w", w.shape, DType.BF16), g.input("at", [5], "i64")
    g.output(ops.matmul(x, ops.gather(wv, at) if named else wv), *([] if named else [at + 1]))
    fn = tw.compile(g, {"T": (1, 100)}, constants={"w": w})
    assert tiled(fn)
    places = np.array([3, 0, 0, 4, 2])
    for t in (1, 2, 17, 100):
        a = rng.standard_normal((5, t, 64)).astype(BF16)
        got = fn(a, places) if named else fn(a, places)[0]
        want = a.astype(np.float64) @ (w[places] if named else w).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=5e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [32, 16, 6, 3])
def test_convolutions_read_their_windows_as_rows(channels: int) -> None:
    rng = np.random.default_rng(1)
    f = rng.standard_normal((3, 3, channels, 24)).astype(BF16)
    g = ops.Graph()
    x, w = g.input("x", ["B", 9, 9, channels], DType.BF16), g.input("w", f.shape, DType.BF16)
    g.output(ops.conv2d(x, w, padding=1, layout="nhwc"))
    fn = tw.compile(g, {"B": (1, 4)}, constants={"w": f})
    for batch in (1, 3):
        a = rng.standard_normal((batch, 9, 9, channels)).astype(BF16)
        padded = np.pad(a.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
        want = np.einsum("nhwcij,ijcf->nhwf", seen, f.astype(np.float64))
        np.testing.assert_allclose(fn(a).astype(np.float64), want, rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("channels,words", [(3, False), (4, True)])
def test_filters_of_part_words_are_laid_out_plainly(channels: int, words: bool) -> None:
    f = np.random.default_rng(4).standard_normal((3, 3, channels, 64)).astype(BF16)
    g = ops.Graph()
    x, w = g.input("x", ["B", 9, 9, channels], DType.BF16), g.input("w", f.shape, DType.BF16)
    g.output(ops.conv2d(x, w, padding=1, layout="nhwc"))
    fn = tw.compile(g, {"B": (1, 4)}, constants={"w": f})
    configs = [kernel.config for table in fn.program.tables for kernel in table.kernels]
    assert any("pairs=true" in c for c in configs) is words


@pytest.mark.parametrize("constant", [True, False])
def test_bytes_are_exact(constant: bool) -> None:
    rng = np.random.default_rng(2)
    w = rng.integers(-128, 128, (128, 40)).astype(np.int8)
    g = ops.Graph()
    x, wv = g.input("x", ["T", 128], DType.U8), g.input("w", [128, 40], DType.I8)
    g.output(ops.matmul(ops.cast(x, DType.I32), ops.cast(wv, DType.I32)))
    fn = tw.compile(g, {"T": (1, 100)}, constants={"w": w} if constant else {})
    assert tiled(fn)
    for t in (1, 9, 40, 100):
        a = rng.integers(0, 256, (t, 128)).astype(np.uint8)
        np.testing.assert_array_equal(fn(a, *(() if constant else (w,))), a.astype(np.int64) @ w.astype(np.int64))


def test_no_batch_changes_bits() -> None:
    rng = np.random.default_rng(3)
    w = rng.standard_normal((64, 48)).astype(BF16)
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["T", 64], DType.BF16), g.input("w", [64, 48], DType.BF16)))
    fn = tw.compile(g, {"T": (1, 100)}, constants={"w": w}, options={"deterministic": "batch"})
    a = rng.standard_normal((100, 64)).astype(BF16)
    whole = fn(a)
    for t in (1, 3, 17, 64):
        assert fn(a[:t].copy()).tobytes() == whole[:t].tobytes()


def test_values_that_are_no_numbers_stay_in_their_row() -> None:
    """Beside rows, columns and values of k that leave part of a tile."""
    w, a = np.ones((33, 17), BF16), np.ones((19, 33), BF16)
    a[4, 32], a[18, 0] = np.nan, np.inf
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["T", 33], DType.BF16), g.input("w", [33, 17], DType.BF16)))
    got = tw.compile(g, {"T": (4, 100)})(a, w).astype(np.float32)
    assert np.isnan(got[4]).all() and np.isposinf(got[18]).all()
    rest = np.delete(got, [4, 18], axis=0)
    assert (rest == 33).all()
