"""KernelFacts: what a built kernel tells that its configuration does not."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tilewright.runtime.program.kernel import MicroKernel

Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class KernelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """registers of a thread and bytes that are spilled to memory, 0 where no assembler told; shared bytes of a block; guards."""

    registers: Amount = 0
    spills: Amount = 0
    shared_bytes: Amount = 0
    guards: tuple[str, ...] = ()

    @staticmethod
    def of(kernel: MicroKernel) -> KernelFacts:
        """Of all launches of a kernel together."""
        shared = max(step.shared_bytes for step in kernel.launches())
        return KernelFacts(kernel.registers, kernel.spills, shared, kernel.guards)
