"""StageRing: tiles on their way to stages of shared memory by asynchronous copies, in turn.

While a step is computed the copies of the next ones are under way: `stages - 1` steps before the loop, then in each step the one
that takes the stage which the step before it has left. Copies of a step are one group of cp.async; that of a step is there when
all but the `stages - 2` latest groups are. What cannot be copied asynchronously is computed into registers before the
arithmetic of a step and stored behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir, nvvm

Store = Callable[[], None]  # stores what was computed into registers


@dataclass(frozen=True)
class Steps:
    """Steps from number `first` up to `end`, each of `depth` positions along k; step 0 begins at `origin`."""

    first: Index
    end: Index
    depth: int
    origin: Index


@dataclass(frozen=True)
class StageRing:
    """copy(stage, k): starts the copies of the step at k; gives what is left to store. bounded: only steps before the end are
    copied; else those behind it are too, and every copy masks what is outside. after_group: a group of copies was begun before
    `fill`, which `wait_for_earlier` waits for."""

    kernel: GpuKernel
    stages: int
    steps: Steps
    copy: Callable[[Index, Index], Sequence[Store]]
    bounded: bool = False
    after_group: bool = False

    def fill(self) -> None:
        """Copies of the first steps, where there are any."""

        def copies() -> None:
            for step in range(self.stages - 1):
                self._finish(self._begin(self.steps.first + step))

        def empty() -> None:
            for _ in range(self.stages - 1):
                nvvm.cp_async_commit_group()

        when(self.steps.first.lt(self.steps.end), copies, empty if self.after_group else None)

    def wait_for_earlier(self) -> None:
        """What was copied before `fill` is there for all threads."""
        nvvm.cp_async_wait_group(self.stages - 1)
        self.kernel.barrier()

    def step(self, step: Index, compute: Callable[[Index], list[ir.Value]]) -> list[ir.Value]:
        """What `compute(stage)` makes of the tiles of a step, while those of a later one are copied."""
        nvvm.cp_async_wait_group(self.stages - 2)
        self.kernel.barrier()
        pending = self._begin(step + (self.stages - 1))
        found = compute(self._stage(step))
        self._finish(pending)
        return found

    def drain(self) -> None:
        """Waits for the copies of steps behind the last one; needed before the stages are used for anything else."""
        nvvm.cp_async_wait_group(0)

    def _stage(self, step: Index) -> Index:
        return (step - self.steps.first) % self.stages

    def _begin(self, step: Index) -> list[Store]:
        stage, k = self._stage(step), self.steps.origin + step * self.steps.depth
        pending: list[Store] = []
        when(step.lt(self.steps.end) if self.bounded else True, lambda: pending.extend(self.copy(stage, k)))
        nvvm.cp_async_commit_group()
        return pending

    @staticmethod
    def _finish(pending: Sequence[Store]) -> None:
        for store in pending:
            store()
