"""Floating-point modes of this thread, for tests: MXCSR and the control word of the x87, as <fenv.h> keeps them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.runtime.float_environment import MXCSR, RAISED

FTZ, DAZ = 0x8000, 0x0040
ROUND_DOWN, ROUND_UP, ROUND_TO_ZERO = 0x2000, 0x4000, 0x6000
MODES = {
    "flush to zero": MXCSR | FTZ,
    "denormals are zero": MXCSR | DAZ,
    "both": MXCSR | FTZ | DAZ,
    "down": MXCSR | ROUND_DOWN,
    "up": MXCSR | ROUND_UP,
    "to zero": MXCSR | ROUND_TO_ZERO,
    "up, both": MXCSR | ROUND_UP | FTZ | DAZ,
    "traps": MXCSR & ~0x1F80 | 0x1000,  # all exceptions but "inexact" end the process
}
_X87_SINGLE_UP = 0x0A7F & ~0x0300 | 0x3F  # 24 bits of precision, rounded up
_LIBRARY = ctypes.PyDLL(None)


def state() -> tuple[int, int]:
    """(control word of the x87, MXCSR without the exceptions raised)."""
    kept = ctypes.create_string_buffer(64)
    _LIBRARY.fegetenv(kept)
    return int.from_bytes(kept.raw[:2], "little"), int.from_bytes(kept.raw[28:32], "little") & ~RAISED


def enter(mxcsr: int, x87: int = _X87_SINGLE_UP) -> None:
    """Change both; `MXCSR` with 0x37F is what threads begin with."""
    room = ctypes.create_string_buffer(64)
    _LIBRARY.fegetenv(room)
    room[0:2], room[28:32] = x87.to_bytes(2, "little"), mxcsr.to_bytes(4, "little")
    _LIBRARY.fesetenv(room)


def leave() -> None:
    enter(MXCSR, 0x37F)


@contextmanager
def mode(name: str) -> Iterator[None]:
    enter(MODES[name])
    try:
        yield
    finally:
        leave()
