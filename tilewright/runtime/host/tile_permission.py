"""May this process use the tile registers of AMX? Linux wants to be asked, once a process: their 8 KB are saved with a thread's
state from then on, as soon as it has used them (Documentation/arch/x86/xstate.rst)."""

from __future__ import annotations

import ctypes
import platform
import sys

from tilewright.runtime.once import once

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # system call, its operation, the part of the state


@once
def may_use_tiles() -> bool:
    """Asks for it. False where the CPU has none, the system knows none, or a thread's stack for signals is too small for them."""
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)
