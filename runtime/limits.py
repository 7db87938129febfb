"""HostLimits: what tile rules need to know of a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostLimits:
    """Vector width in bytes, vector registers, cache sizes in bytes (per core, l3 shared), cores."""

    vector_bytes: int = 32
    vector_registers: int = 16
    l1: int = 32 * 1024
    l2: int = 512 * 1024
    l3: int = 16 * 1024 * 1024
    cores: int = 1

    def lanes(self, element_bytes: int) -> int:
        """Elements per vector register."""
        return self.vector_bytes // element_bytes
