"""Code generation for the host: LLVM IR text to relocatable object code. Imports no MLIR."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tilewright.compiler.builder.calibration_file import calibrated_limits
from tilewright.compiler.builder.llvm_bridge import to_llvm22
from tilewright.runtime.cuda.cuda_device import arch_of, limits_of
from tilewright.runtime.cuda.cuda_table import cuda_table_ir
from tilewright.runtime.cuda.driver import unavailable
from tilewright.runtime.host.host_cpu import host_limits, machine
from tilewright.runtime.host.host_target import HostTarget, host_target, lowest_level
from tilewright.runtime.host.object_code import emit_assembly, emit_object, optimised_ir
from tilewright.runtime.host.thread_pool import runtime_object_ir
from tilewright.runtime.limits import GpuLimits, HostLimits
from tilewright.runtime.target import Target, TargetKind

__all__ = ["HostTarget", "compile_assembly", "compile_object", "cuda_table_object", "host_target", "limits", "lowest_target",
           "optimise", "runtime_object"]


def lowest_target() -> Target:
    """Code that every machine of this architecture runs."""
    return Target(TargetKind.HOST, {"x86_64": "x86-64", "aarch64": "aarch64"}.get(machine(), ""))


def limits(target: Target, threads: int | None = None) -> HostLimits | GpuLimits:
    """What tile rules need to know: of a GPU its architecture, and its own limits where one like it is here; of a CPU the
    vector width, and its caches, cores and calibrated thresholds when native. threads: most of a call; None: as many as cores."""
    if target.kind is TargetKind.CUDA and not unavailable() and arch_of(0) == target.arch:
        return limits_of(0)
    if target.kind is not TargetKind.HOST:
        return GpuLimits.of(target.arch)
    host = host_target(target)
    found = host_limits(host.required(), host.arch, host.native)
    found = calibrated_limits(host.cpu, found) if host.native else found
    return replace(found, threads=found.cores) if threads is None else replace(found, threads=min(found.cores, threads))


def compile_object(llvm_text: str, target: Target, opt_level: int = 3) -> bytes:
    """Relocatable, position-independent object code of an LLVM IR module in LLVM 24's or 22's spelling.

    Raises:
        BuildError: the text does not parse or verify, or the code calls something that no library provides.
    """
    return emit_object(to_llvm22(llvm_text), host_target(target), opt_level)


def compile_assembly(llvm_text: str, target: Target, opt_level: int = 3) -> str:
    """The assembly of what `compile_object` gives, to read."""
    return emit_assembly(to_llvm22(llvm_text), host_target(target), opt_level)


def optimise(llvm_text: str, target: Target, opt_level: int = 3) -> str:
    """The LLVM IR after optimisation, to read."""
    return optimised_ir(to_llvm22(llvm_text), host_target(target), opt_level)


def runtime_object(target: Target) -> bytes:
    """Object code of the host device's native parts, for the lowest level of the target's architecture."""
    return _runtime_object(host_target(target).arch)


@cache
def cuda_table_object(target: Target) -> bytes:
    """Object code of the CUDA device's native parts for a host. The same for every model, so made once in a process."""
    return compile_object(cuda_table_ir(), target)


@cache
def _runtime_object(arch: str) -> bytes:
    """The same for every model, so made once in a process."""
    return emit_object(runtime_object_ir(arch), lowest_level(arch))
