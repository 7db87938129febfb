"""Machine code of GPU kernels: ptxas assembles their PTX where they are built, and tells what they take."""

from __future__ import annotations

import hashlib

import msgspec

from tilewright.compiler.builder.build import BuiltKernel
from tilewright.compiler.builder.ptxas import assemble_ptx, can_assemble
from tilewright.compiler.builder.spill_relief import relieved
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.target import Target, TargetKind


def assembled(built: BuiltKernel, target: Target) -> BuiltKernel:
    """The kernel with its registers and spills, for a CUDA device with machine code beside its PTX.

    It stays as it is for the host, and where there is no ptxas that knows the architecture and the version of the PTX. For CUDA
    devices one that spills gets more registers where there are any.

    Raises:
        BuildError: ptxas refuses the kernel.
    """
    if target.kind is TargetKind.HOST:
        return built
    ptx = GpuImage.of(built.code).ptx.decode()
    if not can_assemble(ptx, target.arch):
        return built
    report = assemble_ptx(ptx, target.arch)
    if target.kind is TargetKind.CUDA:
        ptx, report = relieved(ptx, target.arch, report)
    launched = [report.entries[step.symbol] for step in built.kernel.launches() if step.symbol in report.entries]
    registers = max((e.registers for e in launched), default=0)
    kernel = msgspec.structs.replace(built.kernel, registers=registers, spills=sum(e.spills for e in launched))
    if target.kind is not TargetKind.CUDA:
        return BuiltKernel(kernel, built.code, built.llvm_ir)
    code = GpuImage(ptx.encode(), report.cubin, target.arch).stored()
    return BuiltKernel(msgspec.structs.replace(kernel, object=hashlib.sha256(code).hexdigest()), code, built.llvm_ir)
