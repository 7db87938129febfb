"""MbarrierRing: stages of shared memory that tensor copies fill, each with two mbarriers.

Who copies waits until a stage is empty, who reads until it is full. The steps go on across tiles of the result, so that copies
run ahead; the phase of a step's mbarriers alternates each time that its stage is filled.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir, nvvm
from tilewright.passes.spaces.gpu.wgmma import BARRIER

_TICKS = 10_000_000  # nanoseconds that a wait may suspend at once


@dataclass(frozen=True)
class MbarrierRing:
    """A step takes stage `step % stages`. full: completed by the bytes of its copies; empty: by the arrivals of its readers."""

    stages: int
    stage_bytes: int
    base: ir.Value
    barriers: GpuMemory

    @staticmethod
    def of(kernel: GpuKernel, stages: int, stage_bytes: int) -> MbarrierRing:
        tiles = kernel.shared(integer_type(8), [stages * stage_bytes])
        barriers = kernel.shared(integer_type(8 * BARRIER), [2 * stages])
        return MbarrierRing(stages, stage_bytes, tiles.pointer, barriers)

    def full(self, step: Index) -> ir.Value:
        return self.barriers.address([step % self.stages])

    def empty(self, step: Index) -> ir.Value:
        return self.barriers.address([step % self.stages + self.stages])

    def stage(self, step: Index) -> ir.Value:
        """Address of the stage of a step."""
        return gep(self.base, (step % self.stages * self.stage_bytes).value(self.barriers.index), integer_type(8))

    def parity(self, step: Index) -> Index:
        """Of the phase in which the stage is filled."""
        return step // self.stages % 2

    def start(self, readers: int) -> None:
        for stage in range(self.stages):
            nvvm.mbarrier_init(self.full(Index(stage)), _i32(1))
            nvvm.mbarrier_init(self.empty(Index(stage)), _i32(readers))
        nvvm.fence_mbarrier_init()

    def wait(self, barrier: ir.Value, parity: Index) -> None:
        nvvm.mbarrier_try_wait_parity(barrier, parity.value(integer_type(32)), _i32(_TICKS))


def _i32(number: int) -> ir.Value:
    return Index(number).value(integer_type(32))
