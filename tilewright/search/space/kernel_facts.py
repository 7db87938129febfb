"""KernelFacts: what a built kernel tells that its configuration does not."""

from __future__ import annotations

import msgspec

from tilewright.runtime.program.kernel import MicroKernel


class KernelFacts(msgspec.Struct, frozen=True):
    """registers of a thread and bytes that are spilled to memory, 0 where no assembler told; shared bytes of a block; guards."""

    registers: int = 0
    spills: int = 0
    shared_bytes: int = 0
    guards: tuple[str, ...] = ()

    @staticmethod
    def of(kernel: MicroKernel) -> KernelFacts:
        """Of all launches of a kernel together."""
        shared = max(step.shared_bytes for step in kernel.launches())
        return KernelFacts(kernel.registers, kernel.spills, shared, kernel.guards)
