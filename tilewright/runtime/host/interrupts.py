"""Ctrl-C while native code loops, as LLVM IR: `poll` of the device's table asks Python whether a SIGINT has come.

Nothing of Python runs in it: a signal that has come is put back, so that its handler runs where the call returns.
"""

from __future__ import annotations

import ctypes

WORDS = ("PyGILState_Ensure", "PyOS_InterruptOccurred", "PyErr_SetInterrupt", "PyGILState_Release")


def interrupts_ir() -> str:
    """Defines `i64 tw_poll(ptr table)` and `tw_python`, the addresses of WORDS; without them the answer is no."""
    return _POLL


def addresses() -> list[int]:
    """Of WORDS, in this interpreter."""
    return [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in WORDS]


_POLL = """
@tw_python = global [4 x ptr] zeroinitializer, align 8

define i64 @tw_poll(ptr %table) nounwind {
entry:
  %enter = load ptr, ptr @tw_python
  %none = icmp eq ptr %enter, null
  br i1 %none, label %no, label %ask
ask:
  %state = call i32 %enter()
  %look_at = getelementptr ptr, ptr @tw_python, i64 1
  %look = load ptr, ptr %look_at
  %came = call i32 %look()
  %some = icmp ne i32 %came, 0
  br i1 %some, label %again, label %leave
again:
  %set_at = getelementptr ptr, ptr @tw_python, i64 2
  %set = load ptr, ptr %set_at
  call void %set()
  br label %leave
leave:
  %release_at = getelementptr ptr, ptr @tw_python, i64 3
  %release = load ptr, ptr %release_at
  call void %release(i32 %state)
  %answer = zext i1 %some to i64
  ret i64 %answer
no:
  ret i64 0
}
"""
