"""The floating-point environment of all calls: round to nearest, subnormal numbers kept, exceptions masked.

The bits of a result then depend neither on the mode of the thread that calls nor on that of the thread which made the pool's
workers. A host program enters it where a call begins and gives the caller's mode back where it ends, a worker enters it once,
and what the compiler computes in Python (constants, the float64 reference) runs inside `float_environment()`.

On x86-64 the mode of SSE and AVX code is the register MXCSR; kernels have no x87 code, and calls leave its state alone. For other
architectures, given in LLVM's words, the emitted code does nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MXCSR = 0x1F80  # all exceptions masked, none raised; nearest; neither flush-to-zero nor denormals-are-zero
RAISED = 0x3F  # its bits that tell which exceptions were raised since they were cleared; they change no result

_ENVIRONMENT = 64  # bytes, at least sizeof(fenv_t)
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl

_ENTER = {"x86_64": f"""
@floats = internal constant i32 {MXCSR}
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @enter_environment() alwaysinline nounwind {{
  call void @llvm.x86.sse.ldmxcsr(ptr @floats)
  ret void
}}
"""}
_OTHER_ENTER = """
define internal void @enter_environment() alwaysinline nounwind {
  ret void
}
"""
_IS_IN = {"x86_64": f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
define internal i1 @in_environment() alwaysinline nounwind {{
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %word = load i32, ptr %place
  %mode = and i32 %word, {~RAISED}
  %found = icmp eq i32 %mode, {MXCSR}
  ret i1 %found
}}
"""}
_OTHER_IS_IN = """
define internal i1 @in_environment() alwaysinline nounwind {
  ret i1 true
}
"""


def enter_ir(arch: str) -> str:
    """LLVM IR that defines `void enter_environment()`."""
    return _ENTER.get(arch, _OTHER_ENTER)


def is_in_ir(arch: str) -> str:
    """LLVM IR that defines `i1 in_environment()`: is this thread in the environment already?"""
    return _IS_IN.get(arch, _OTHER_IS_IN)


@contextmanager
def float_environment() -> Iterator[None]:
    """This thread's environment inside the block; that of before it afterwards, whatever happens. Also a decorator."""
    library, kept = _library(), ctypes.create_string_buffer(_ENVIRONMENT)
    library.fegetenv(kept)
    library.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        library.fesetenv(kept)


@functools.cache
def _library() -> Any:
    """The C library with the functions of <fenv.h>. They are short, so the GIL is kept."""
    return ctypes.PyDLL(None)
