"""What a multiprocessor does in a cycle: published figures that analytic times and the emulator's clock are made of. MLIR-free.

They scale models. What a search finds on a device comes from measurements; these decide where it looks first, and what runs
untuned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.runtime.limits import MULTIPROCESSOR_THREADS, WARP, GpuLimits

Floats = npt.NDArray[np.float64]
BLOCKS = 32  # of a multiprocessor
SHARED_BYTES = 128  # bytes of shared memory in a cycle
_KEPT = 1024  # shared bytes that the system keeps of each block
_WARP_REGISTERS = 256  # registers of a warp are given in such pieces
_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15}  # blocks of a cluster -> clusters that 132 multiprocessors hold, one block on each
_OF = 132
_TOGETHER = 3  # turns of blocks


@dataclass(frozen=True)
class GpuRates:
    """Of one multiprocessor, in a cycle: warp instructions issued, bytes from the L2 cache and from memory, multiply-adds of
    tensor cores on 16-bit elements.

    l2: where all multiprocessors ask; port: the most that one alone gets; alike: what each gets where all ask and blocks beside
    and below each other read the same. other_blocks: bytes of the shared memory of other blocks of a cluster. mma, wgmma: shares
    of `matrix` that mma.sync and wgmma reach. latency: cycles of a load from memory. launch: cycles of a
    launch that follows another. clock: cycles a second. meeting: cycles in which the
    blocks of a cluster wait for each other to add up their sums. alone: share of the issue slots of its scheduler that a warp by
    itself fills with multiply-adds.
    """

    matrix: float
    memory: float
    clock: float
    issue: float = 4.0
    l2: float = 40.0
    port: float = 64.0
    alike: float = 40.0
    other_blocks: float = 13.0
    mma: float = 1.0
    wgmma: float = 1.0
    latency: float = 600.0
    launch: float = 3000.0
    meeting: float = 2000.0
    alone: float = 0.55

    @staticmethod
    def of(limits: GpuLimits) -> GpuRates:
        """Figures of NVIDIA's data sheets for A100 (sm_80) and H100 SXM (sm_90a); others count as an A100. Luo et al.,
        "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024), give 2.65 TB/s between the
        blocks of clusters of four: 13 bytes a cycle of a multiprocessor. alike and wgmma by 720 times of an H200: requests of
        several multiprocessors for the same meet on their way, and the clock falls under products."""
        if limits.arch.startswith("sm_9"):
            return GpuRates(matrix=2048.0, memory=13.9, clock=1.83e9, l2=5120 / limits.multiprocessors, alike=64.0, mma=0.62,
                            wgmma=0.9)
        return GpuRates(matrix=1024.0, memory=13.4, clock=1.41e9)


def resident(threads: int, registers: int, shared_bytes: int, limits: GpuLimits) -> int:
    """Blocks that a multiprocessor holds at once, at least 1 (NVIDIA's occupancy rules, registers given by the warp)."""
    warps = -(-threads // WARP)
    of_warp = -(-max(registers, 16) * WARP // _WARP_REGISTERS) * _WARP_REGISTERS
    room = limits.shared_bytes + _KEPT
    by_threads, by_registers = MULTIPROCESSOR_THREADS // (warps * WARP), limits.registers // (of_warp * warps)
    return max(1, min(BLOCKS, by_threads, by_registers, room // (shared_bytes + _KEPT)))


def l2_rate(blocks: npt.ArrayLike, limits: GpuLimits, together: npt.ArrayLike = False) -> Floats:
    """Bytes of tiles that a multiprocessor gets of the L2 cache in a cycle where so many blocks run, or take turns; of an array
    of such numbers too. together: do they read the same at once? They do in the first turns, as measured; behind them they are
    taken to be apart."""
    rates, units = GpuRates.of(limits), float(limits.multiprocessors)
    alike = np.asarray(together) & (np.asarray(blocks) <= _TOGETHER * units)
    each = np.where(alike, rates.alike, rates.l2)
    return np.asarray(np.minimum(rates.port, each * units / np.clip(blocks, 1.0, units)))


def reached(cluster: int, limits: GpuLimits) -> int:
    """Multiprocessors that clusters of so many blocks fill: one lies within a part of the chip, and what is left over of each
    part, of 18 or fewer multiprocessors, holds no cluster of 4 or 8. An H200 holds 30 clusters of 4 and 15 of 8, says its
    driver."""
    held = next(clusters for blocks, clusters in _CLUSTERS.items() if cluster <= blocks)
    return max(1, limits.multiprocessors * held // _OF * cluster)
