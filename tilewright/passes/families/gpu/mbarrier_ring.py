"""MbarrierRing: stages of shared memory that tensor copies fill, each with two mbarriers.

Who copies waits until a stage is empty, who reads until it is full. The steps go on across tiles of the result, so that copies
run ahead; the phase of a step's mbarriers alternates each time that its stage is filled. A step is divided into its place once a
tile; from then on places follow each other, so that a loop over steps divides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.mlir import ir, nvvm
from tilewright.passes.spaces.gpu.wgmma import BARRIER

_TICKS = 10_000_000  # nanoseconds that a wait may suspend at once


@dataclass(frozen=True)
class RingPlace:
    """Where a step is in a ring: its stage, and the parity of the phase of its mbarriers in which the stage is filled."""

    stage: Index
    parity: Index

    def values(self) -> list[ir.Value]:
        """What a loop over steps carries."""
        return [self.stage.value(integer_type(32)), self.parity.value(integer_type(32))]

    @staticmethod
    def of(values: Sequence[ir.Value]) -> RingPlace:
        stage, parity = values
        return RingPlace(Index(stage), Index(parity))


@dataclass(frozen=True)
class MbarrierRing:
    """full: completed by the bytes of a stage's copies; empty: by the arrivals of its readers. Rings of `of` have one more behind
    them, at which a reader arrives in its first step as it does in others at `empty` of the step before; nobody waits for it."""

    stages: int
    stage_bytes: int
    base: ir.Value
    barriers: GpuMemory

    @staticmethod
    def of(kernel: GpuKernel, stages: int, stage_bytes: int) -> MbarrierRing:
        tiles = kernel.shared(integer_type(8), [stages * stage_bytes])
        barriers = kernel.shared(integer_type(8 * BARRIER), [2 * stages + 1])
        return MbarrierRing(stages, stage_bytes, tiles.pointer, barriers)

    def place(self, step: Index) -> RingPlace:
        """Of a step, numbered from 0 on."""
        return RingPlace(step % self.stages, step // self.stages % 2)

    def after(self, place: RingPlace) -> RingPlace:
        """Of the next step."""
        last = place.stage.eq(self.stages - 1)
        i32 = integer_type(32)
        return RingPlace(select(last, Index(0), place.stage + 1, type_=i32),
                         select(last, 1 - place.parity, place.parity, type_=i32))

    @property
    def none(self) -> Index:
        """What stands for the stage before the first step: its `empty` is the one that nobody waits for."""
        return Index(self.stages)

    def full(self, stage: Index) -> ir.Value:
        return self.barriers.address([stage])

    def empty(self, stage: Index) -> ir.Value:
        return self.barriers.address([stage + self.stages])

    def at(self, stage: Index) -> ir.Value:
        """Address of a stage."""
        return gep(self.base, (stage * self.stage_bytes).value(self.barriers.index), integer_type(8))

    def wait_full(self, place: RingPlace) -> None:
        self._wait(self.full(place.stage), place.parity)

    def wait_empty(self, place: RingPlace) -> None:
        """Until what was in the stage before has been read; at once where nothing was."""
        self._wait(self.empty(place.stage), 1 - place.parity)

    def start(self, readers: int) -> None:
        self.initialise(readers)
        nvvm.mbarrier_init(self.empty(self.none), _i32(readers))
        nvvm.fence_mbarrier_init()

    def initialise(self, readers: int) -> None:
        """What `start` does before the fence, which may be one for several rings."""
        for stage in range(self.stages):
            nvvm.mbarrier_init(self.full(Index(stage)), _i32(1))
            nvvm.mbarrier_init(self.empty(Index(stage)), _i32(readers))

    def _wait(self, barrier: ir.Value, parity: Index) -> None:
        nvvm.mbarrier_try_wait_parity(barrier, parity.value(integer_type(32)), _i32(_TICKS))


def _i32(number: int) -> ir.Value:
    return Index(number).value(integer_type(32))
