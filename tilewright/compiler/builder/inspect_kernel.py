"""What ptxas tells of a GPU kernel: the registers and spills that a search learns from."""

from __future__ import annotations

import msgspec

from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target, TargetKind


def inspected(kernel: MicroKernel, code: bytes, target: Target) -> MicroKernel:
    """The kernel with its registers and spills; as it is for the host, and where ptxas is not installed.

    Raises:
        BuildError: ptxas refuses the kernel.
    """
    if target.kind is TargetKind.HOST or find_tool("ptxas") is None:
        return kernel
    entries = assemble_ptx(code.decode(), target.arch).entries
    launched = [entries[step.symbol] for step in kernel.launches() if step.symbol in entries]
    registers = max((e.registers for e in launched), default=0)
    return msgspec.structs.replace(kernel, registers=registers, spills=sum(e.spills for e in launched))
