"""LaunchBudget: how long a launch may run before it is taken for one that does not end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tilewright.runtime.emulator.ptx_program import PtxProgram

_INSTRUCTIONS = 1_000_000  # of a batch of blocks, of a kernel that touches little
_EACH = 1_000  # times that each instruction of the code runs on top of that
_PER_BYTE = 16  # instructions on top for each byte of device memory in use, which a loop may walk along
_SECONDS, _PER_BATCH, _MOST = 60.0, 0.1, 1200.0


@dataclass(frozen=True)
class LaunchBudget:
    """instructions: of each batch of blocks. seconds: of processor time of all of them, which is the same on a busy machine;
    end: by time.thread_time."""

    instructions: int
    seconds: float
    end: float

    @staticmethod
    def of(kernel: PtxProgram, memory_bytes: int, batches: int, instructions: int | None, seconds: float | None) -> LaunchBudget:
        """As given; from the size of the launch where it is None."""
        if instructions is None:
            instructions = _INSTRUCTIONS + _EACH * kernel.instructions + _PER_BYTE * memory_bytes
        if seconds is None:
            seconds = min(_SECONDS + _PER_BATCH * batches, _MOST)
        return LaunchBudget(instructions, seconds, time.thread_time() + seconds)

    def spent(self, steps: int) -> str:
        """What of it is used up after so many instructions of a batch; empty where there is some left."""
        if steps > self.instructions:
            return f"more than {self.instructions} instructions were executed"
        return f"the launch runs for more than {self.seconds:g} s" if time.thread_time() > self.end else ""
