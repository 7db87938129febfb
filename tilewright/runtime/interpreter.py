"""The Python interpreter: whether it can run compiled models, and how its global lock goes round while long work is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.runtime.errors import DeviceError

_QUICK = 2e-4  # seconds


@contextmanager
def quick_switches() -> Iterator[None]:
    """While this thread does long work in Python, others get the interpreter's lock within 0.2 ms, and not Python's usual 5."""
    before = sys.getswitchinterval()
    if before <= _QUICK:
        yield
        return
    sys.setswitchinterval(_QUICK)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check_interpreter() -> None:
    """DeviceError, in one line, in a subinterpreter and where free-threaded Python runs without its lock.

    NumPy is for one interpreter a process; the native call path and what Python keeps of a call rely on the lock.
    """
    number = _number()
    if number:
        raise DeviceError(f"Tilewright runs in the main interpreter of a process, and this is subinterpreter {number}; call it "
                          "from threads or from processes")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise DeviceError("Tilewright needs Python's global interpreter lock, and this free-threaded Python runs without it; "
                          "start it with PYTHON_GIL=1 or -X gil=1, or use the ordinary build")


def _number() -> int:
    """Which interpreter of the process this is; 0: the main one. 0 too where Python is another than CPython."""
    if sys.implementation.name != "cpython":
        return 0
    try:
        import ctypes
    except ImportError as error:  # it does not load in interpreters with a lock of their own
        raise DeviceError(f"Tilewright runs in the main interpreter of a process, and here {error}; call it from threads or from "
                          "processes") from None
    current, number = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_GetID
    current.restype, number.restype, number.argtypes = ctypes.c_void_p, ctypes.c_int64, (ctypes.c_void_p,)
    return int(number(current()))
