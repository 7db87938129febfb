"""Block tables of ragged programs for GPUs: bounds of grids, sizes in PTX, what a workload says of its sequences."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.host.block_tables import summed_bound
from tilewright.compiler.host.ptx_writer import PtxWriter
from tilewright.passes.spaces.gpu.gpu_attention import GpuAttentionConfig
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.passes.spaces.gpu.wgmma_attention import WgmmaAttentionConfig
from tilewright.passes.spaces.segments import Segments, for_sequences
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.program.kernel import Param
from tilewright.runtime.shape import Expr

S, T, B, H = map(Expr.dim, "STBH")
RANGES = {"S": (0, 40), "T": (1, 9)}
SIZES = (S, S.ceildiv(16), H * S.ceildiv(16) * 2, S.ceildiv(8) * T.ceildiv(4), (H * S).ceildiv(64), (S + T).ceildiv(4),
         Expr.of(3), S.minimum(8) * H, (S - T).maximum(0), S * T, (S * T).ceildiv(16), (3 * S + 5).ceildiv(7) - 1,
         S.ceildiv(4) * S.ceildiv(4))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bounds(size: Expr) -> None:
    """No less than the sum over the sequences, from the number of these and the sums of their lengths alone."""
    bound, rng = summed_bound(size, B, RANGES), np.random.default_rng(0)
    assert not bound.symbols & RANGES.keys()
    for count in (0, 1, 2, 7, 30):
        for _ in range(20):
            s, t = rng.integers(0, 41, count), rng.integers(1, 10, count)
            dims = {"B": count, "H": 3, "sum(S)": int(s.sum()), "sum(T)": int(t.sum())}
            total = sum(max(0, size.evaluate({"S": int(a), "T": int(b), "H": 3})) for a, b in zip(s, t, strict=True))
            assert total <= bound.evaluate(dims)


def test_bounds_are_near() -> None:
    """Of tiles: at most one more for each sequence."""
    dims = {"B": 32, "sum(S)": 3000}
    assert summed_bound(S.ceildiv(64), B, {"S": (0, 512)}).evaluate(dims) <= 3000 // 64 + 32


@pytest.mark.parametrize("size", [S // 7, S % 7, (S - 40) // 7, (S - 40) % 7, S // 8, (S - 40) % 8, (S - 40) // 8,
                                  (S - T) * 3 + 1, S.minimum(T), (S - 20).maximum(T) * S, S // T, S.ceildiv(T) - T % 3], ids=str)
def test_sizes_in_ptx(size: Expr) -> None:
    """As Python floors."""
    ptx = PtxWriter()
    out, s, t = (ptx.parameter(i) for i in range(3))
    ptx.store(ptx.expr(size, {"S": s, "T": t}), out)
    device = EmulatorDevice()
    kernel = device.load(ptx.entry("size", 3, 32)).kernel("size")
    for a, b in ((0, 1), (5, 3), (13, 2), (39, 9), (40, 7)):
        at = device.alloc(8)
        device.launch(kernel, (1, 1, 1), (32, 1, 1), 0, [at, a, b], only=None)
        assert device.copy_out(at, 1, np.int64)[0] == size.evaluate({"S": a, "T": b})


def test_segments_as_text() -> None:
    segments = Segments((0, 2), ((0, 1),), ("d0", "d3"), ((2, 0),), ((1, 4096),))
    assert Segments.parse(str(segments)) == segments
    assert segments.has(Param("stride", 0, 1))
    assert not segments.has(Param("stride", 2, 1))
    assert segments.has(Param("dim", name="d3"))
    assert not segments.has(Param("pointer", 1))


def test_configurations_of_one_launch() -> None:
    """Without parts that a second launch joins, and without blocks that go on to further tiles."""
    turns = WgmmaConfig(64, 128, consumers=2, pingpong=True, cluster_m=2)
    assert for_sequences(turns) == WgmmaConfig(64, 128, consumers=1, blocks=0)
    assert for_sequences(GpuAttentionConfig(split_kv=8)) == GpuAttentionConfig()
    assert for_sequences(WgmmaAttentionConfig(blocks=132, pingpong=True, copied=True)) == WgmmaAttentionConfig()
    assert for_sequences(GpuRowsConfig(blocks=16)) == GpuRowsConfig()
