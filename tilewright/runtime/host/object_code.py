"""From LLVM IR text (as llvmlite's LLVM spells it) to relocatable object code. Loads llvmlite when it is called.

LLVM runs at O3 without loop and SLP vectorisation and without unrolling: kernels arrive vectorised and unrolled. Innermost loops
begin on a cache line: equal loops else differed by up to 28 % in slow spells of a shared core, by where they lay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tilewright.runtime.errors import BuildError
from tilewright.runtime.host import host_cpu
from tilewright.runtime.host.host_target import HostTarget
from tilewright.runtime.host.llvm_module import llvm_module, optimise
from tilewright.runtime.host.object_symbols import undefined_symbols
from tilewright.runtime.host.soft_float import SOFT_FLOAT, soft_float_ir

# What a kernel or the thread pool may call. Anything else would be found missing only when the code is loaded.
_LIBM = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs floor
    fma fmax fmin fmod frexp ldexp log log10 log1p log2 lrint lround llrint llround modf nearbyint pow remainder rint
    round roundeven sin sincos sinh sqrt tan tanh tgamma trunc"""
_LIBC = """_GLOBAL_OFFSET_TABLE_ abort free memcmp memcpy memmove memset posix_memalign sched_yield
    clock_gettime sched_getcpu pthread_create pthread_cond_broadcast pthread_cond_init
    pthread_cond_wait pthread_detach pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock"""
_CALLABLE = frozenset(name + suffix for name in _LIBM.split() for suffix in ("", "f")) | frozenset(_LIBC.split())

_ALIGNED = "-x86-experimental-pref-innermost-loop-alignment=6"  # log2 of bytes

# Intrinsics and what they need: LLVM ends the process where it cannot select one.
_INTRINSICS = {"@llvm.x86.avx2.": "avx2", "@llvm.x86.avx512.": "avx512f", "@llvm.x86.avx512bf16.": "avx512bf16",
               "@llvm.x86.avx512.pmaddw.": "avx512bw", "@llvm.x86.avx512.vpdpbusd.": "avx512vnni",
               "@llvm.x86.tile": "amx-tile", "@llvm.x86.tdpbs": "amx-int8", "@llvm.x86.tdpbu": "amx-int8",
               "@llvm.x86.tdpbf16ps": "amx-bf16"}
_OF_ONE = {"@llvm.x86.": "x86_64", "@llvm.aarch64.": "aarch64"}


def emit_object(text: str, host: HostTarget, opt_level: int = 3) -> bytes:
    """Relocatable, position-independent object code of an LLVM IR module.

    Raises:
        BuildError: the text does not parse or verify, or the code calls something that no library provides.
    """
    code = _emit(text, host, opt_level)
    missing = undefined_symbols(code) - _CALLABLE
    soft = missing & SOFT_FLOAT
    if soft:
        code = _emit(text + soft_float_ir(soft), host, opt_level)
        missing = undefined_symbols(code) - _CALLABLE
    if missing:
        raise BuildError(
            f"the code for {host.cpu} calls {', '.join(sorted(missing))}, which libc and libm do not have; "
            "expand the operation before code generation",
            text,
        )
    return code


def emit_assembly(text: str, host: HostTarget, opt_level: int = 3) -> str:
    """The assembly of what `emit_object` gives, to read."""
    with _optimised(text, host, opt_level) as (module, machine):
        return str(machine.emit_assembly(module))


def optimised_ir(text: str, host: HostTarget, opt_level: int = 3) -> str:
    """The LLVM IR after optimisation, to read."""
    with _optimised(text, host, opt_level) as (module, _):
        return str(module)


def _emit(text: str, host: HostTarget, opt_level: int) -> bytes:
    with _optimised(text, host, opt_level) as (module, machine):
        return bytes(machine.emit_object(module))


@contextmanager
def _optimised(text: str, host: HostTarget, opt_level: int) -> Iterator[tuple[Any, Any]]:
    for name, arch in _OF_ONE.items():
        if name in text and arch != host.arch:
            raise BuildError(f"the code has instructions of {arch}, and is to run on {host.arch}", text)
    for name, feature in _INTRINSICS.items():
        if name in text and feature not in host.required():
            raise BuildError(f"the code has instructions of {feature}, which {host.cpu} lacks", text)
    llvm = _llvm()
    with llvm_module(llvm, text) as (module, _):
        module.triple = host.triple
        machine = llvm.Target.from_triple(host.triple).create_target_machine(
            cpu=host.cpu, features=host.features, opt=opt_level, reloc="pic", codemodel="small"
        )
        module.data_layout = str(machine.target_data)
        module.verify()
        optimise(llvm, module, machine, opt_level)
        yield module, machine


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if host_cpu.machine() == "x86_64":
        llvm.set_option("", _ALIGNED)
    return llvm
