"""Conditions that an actor puts itself under: a full disk, a clock that jumps, foreign floating-point modes."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType

CALM = "calm"
FULL_DISK = "full disk"
CLOCKS = MappingProxyType({"clock ahead": 7 * 3600.0, "clock behind": -5 * 3600.0})  # seconds
FLOATING_POINT = MappingProxyType({"flush to zero": 0x8040, "round down": 0x2000, "round up": 0x4000, "round to zero": 0x6000})
_FILE_BYTES = 2000  # more than a message to the driver, less than a cache entry or a model
_FENV_BYTES, _MXCSR_AT, _CONTROL = 32, 28, 0xFFC0  # fenv_t of glibc on x86-64; the status flags are left out


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process and of those that it starts grows beyond so many bytes: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _clock_moved(seconds: float) -> Iterator[None]:
    """time.time and time.time_ns are off by so many seconds, as after someone set the clock."""
    plain, plain_ns = time.time, time.time_ns
    moved: Callable[[], float] = lambda: plain() + seconds  # noqa: E731
    moved_ns: Callable[[], int] = lambda: plain_ns() + int(seconds * 1e9)  # noqa: E731
    time.time, time.time_ns = moved, moved_ns
    try:
        yield
    finally:
        time.time, time.time_ns = plain, plain_ns


def around_step(name: str) -> AbstractContextManager[None]:
    """What a condition changes for a whole step of the process."""
    if name == FULL_DISK:
        return files_up_to(_FILE_BYTES)
    return _clock_moved(CLOCKS[name]) if name in CLOCKS else nullcontext()


def modes() -> int:
    """Rounding, flushing and masks of this thread: MXCSR without its flags."""
    environment = ctypes.create_string_buffer(_FENV_BYTES)
    _libm().fegetenv(environment)
    return int.from_bytes(environment.raw[_MXCSR_AT:], "little") & _CONTROL


class ModeChangedError(Exception):
    """A call left other floating-point modes behind than it found."""


@contextmanager
def around_call(name: str) -> Iterator[None]:
    """The thread's floating-point modes for one call, and those that it had after it.

    Raises:
        ModeChangedError: the call did not leave the modes as they were.
    """
    if name not in FLOATING_POINT:
        yield
        return
    libm = _libm()
    before = ctypes.create_string_buffer(_FENV_BYTES)
    libm.fegetenv(before)
    word = int.from_bytes(before.raw[_MXCSR_AT:], "little") | FLOATING_POINT[name]
    libm.fesetenv(ctypes.create_string_buffer(before.raw[:_MXCSR_AT] + word.to_bytes(4, "little"), _FENV_BYTES))
    wanted = modes()
    try:
        yield
    finally:
        found = modes()
        libm.fesetenv(before)
    if found != wanted:
        raise ModeChangedError(f"the call left MXCSR {found:#x}, it found {wanted:#x}")


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")
