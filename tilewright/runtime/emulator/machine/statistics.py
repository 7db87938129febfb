"""What a launch did: warp instructions by class, bytes by space. A deterministic clock model reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Statistics:
    """Counts of one launch.

    instructions: warp instructions issued, by opcode class (`fma.f32`, `ld.shared`); predicated-off ones count.
    bytes_read, bytes_written: bytes that threads asked for, by state space. sectors: distinct 32-byte sectors of global
    memory per warp instruction; shared_wavefronts: shared-memory cycles with bank conflicts, shared_ideal without them
    (these three only when the device profiles). batches: groups of blocks that executed together; steps: instructions that the
    longest of them took.
    """

    instructions: Counter[str] = field(default_factory=Counter)
    bytes_read: Counter[str] = field(default_factory=Counter)
    bytes_written: Counter[str] = field(default_factory=Counter)
    sectors: int = 0
    shared_wavefronts: int = 0
    shared_ideal: int = 0
    barriers: int = 0
    batches: int = 0
    steps: int = 0
    seconds: float = 0.0
    profile: bool = False

    @property
    def warp_instructions(self) -> int:
        return sum(self.instructions.values())
