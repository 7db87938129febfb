"""What a multiprocessor does in a cycle: published figures that analytic times and the emulator's clock are made of.

They scale models. What a search finds on a device comes from measurements; these decide only where it looks first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.runtime.limits import MULTIPROCESSOR_THREADS, WARP, GpuLimits

BLOCKS = 32  # of a multiprocessor
_KEPT = 1024  # shared bytes that the system keeps of each block
_WARP_REGISTERS = 256  # registers of a warp are given in such pieces


@dataclass(frozen=True)
class GpuRates:
    """Of one multiprocessor, in a cycle: warp instructions issued, bytes from the L2 cache and from memory, multiply-adds of
    tensor cores on 16-bit elements.

    mma: share of `matrix` that mma.sync reaches. latency: cycles of a load from memory. launch: cycles of a launch that follows
    another. clock: cycles a second.
    """

    matrix: float
    memory: float
    clock: float
    issue: float = 4.0
    l2: float = 40.0
    mma: float = 1.0
    latency: float = 600.0
    launch: float = 3000.0

    @staticmethod
    def of(limits: GpuLimits) -> GpuRates:
        """Figures of NVIDIA's data sheets for A100 (sm_80) and H100 SXM (sm_90a); others count as an A100."""
        if limits.arch.startswith("sm_9"):
            return GpuRates(matrix=2048.0, memory=13.9, clock=1.83e9, l2=32.0, mma=0.62)
        return GpuRates(matrix=1024.0, memory=13.4, clock=1.41e9)


def resident(threads: int, registers: int, shared_bytes: int, limits: GpuLimits) -> int:
    """Blocks that a multiprocessor holds at once, at least 1 (NVIDIA's occupancy rules, registers given by the warp)."""
    warps = -(-threads // WARP)
    of_warp = -(-max(registers, 16) * WARP // _WARP_REGISTERS) * _WARP_REGISTERS
    room = limits.shared_bytes + _KEPT
    by_threads, by_registers = MULTIPROCESSOR_THREADS // (warps * WARP), limits.registers // (of_warp * warps)
    return max(1, min(BLOCKS, by_threads, by_registers, room // (shared_bytes + _KEPT)))
