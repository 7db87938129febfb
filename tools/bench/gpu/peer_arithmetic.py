"""What cuBLAS, FlashAttention-3 and Triton need for an operator, by literature arithmetic: nothing here was measured by us.

cuBLAS: the kernels of CUTLASS 3's documentation for Hopper (tiles of 64, 128 or 256 rows and columns, operands by tensor copies
of which two blocks share one side, two warpgroups in turn so that results are stored under the other's products), the best tile
and the best cut of k in up to 8, with a loop at 0.95 of the peak: 4096^3 then comes to some 0.9 of it. FlashAttention-3 (Shah
et al. 2024, figure 5, forward, f16, no mask, sequences of 16k): 497 TFLOP/s for heads of 64, 648 for 128; shorter sequences are
slower. Rows: the bytes at 0.93 of the bandwidth, as Triton's tutorial on softmax finds for long rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from tilewright.passes.spaces.gpu.gpu_rates import GpuRates, l2_rate
from tilewright.runtime.limits import GpuLimits

LOOP_SHARE, BANDWIDTH_SHARE = 0.95, 0.93
FLASH_TFLOPS = {64: 497.0, 128: 648.0}
_DEEPEST_CUT = 8


@dataclass(frozen=True)
class Peer:
    """How long it takes, and what the figure comes from."""

    name: str
    us: float


def cublas(rows: int, columns: int, depth: int, size: int, limits: GpuLimits) -> Peer:
    """A product of matrices of elements of `size` bytes on tensor cores."""
    rates, units = GpuRates.of(limits), limits.multiprocessors
    memory = (rows * depth + depth * columns + rows * columns) * size / (rates.memory * units * BANDWIDTH_SHARE)
    best = math.inf
    for bm, bn, parts in product((64, 128, 256), (64, 128, 256), (1, 2, 4, _DEEPEST_CUT)):
        if bm * bn > 128 * 256:
            continue
        tiles = math.ceil(rows / bm) * math.ceil(columns / bn) * parts
        rate = rates.matrix * 2 / size * LOOP_SHARE
        loop = bm * bn * math.ceil(depth / parts) / rate
        busy = min(tiles, units)
        l2 = float(l2_rate(busy, limits, True))
        brought = (bm + bn - max(bm, bn) / 2) * math.ceil(depth / parts) * size / l2
        store = bm * bn * (size if parts == 1 else 4) / l2
        waves = math.ceil(tiles / units)
        best = min(best, waves * max(loop, brought) + store * (1 if parts == 1 else 2) + 2 * rates.latency)
    return Peer("cuBLAS by arithmetic of CUTLASS tiles", 1e6 * max(best, memory + rates.latency) / rates.clock)


def flash_attention(flops: float, head: int, memory_us: float) -> Peer:
    return Peer("FlashAttention-3 at its published rate", max(flops / FLASH_TFLOPS[head] / 1e6, memory_us))


def bandwidth(memory_us: float) -> Peer:
    return Peer("Triton at its published share of bandwidth", memory_us / BANDWIDTH_SHARE)
