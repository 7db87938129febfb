"""Where threads of the pool run, in LLVM IR: the caller says on which core it is, and a worker that finds itself there moves."""

from __future__ import annotations

import sys


def places_ir() -> str:
    """Defines settle, which the caller of a loop calls, and spread, which each worker does; they share the pool's @core."""
    return _SPREAD if sys.platform == "linux" else _STAY


_SPREAD = """
@only = internal global i32 0
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @settle() nounwind {
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr @core monotonic, align 4
  ret void
}

; Excludes the core from the thread's affinity for a moment; not asked again where it has no other.
define internal void @spread() nounwind {
entry:
  %kept = alloca [128 x i8], align 8
  %other = alloca [128 x i8], align 8
  %here = call i32 @sched_getcpu()
  %there = load atomic i32, ptr @core monotonic, align 4
  %same = icmp eq i32 %here, %there
  %known = icmp ult i32 %here, 1024
  %shared = and i1 %same, %known
  %only = load atomic i32, ptr @only monotonic, align 4
  %free = icmp eq i32 %only, 0
  %apart = and i1 %shared, %free
  br i1 %apart, label %ask, label %exit
ask:
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %kept)
  %none = icmp ne i32 %failed, 0
  br i1 %none, label %exit, label %move
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %other, ptr %kept, i64 128, i1 false)
  %byte = lshr i32 %here, 3
  %place = getelementptr i8, ptr %other, i32 %byte
  %old = load i8, ptr %place
  %low = and i32 %here, 7
  %bit = shl i32 1, %low
  %narrow = trunc i32 %bit to i8
  %clear = xor i8 %narrow, -1
  %new = and i8 %old, %clear
  store i8 %new, ptr %place
  %away = call i32 @sched_setaffinity(i32 0, i64 128, ptr %other)
  %refused = icmp ne i32 %away, 0
  br i1 %refused, label %stuck, label %moved
stuck:
  store atomic i32 1, ptr @only monotonic, align 4
  br label %exit
moved:
  %back = call i32 @sched_setaffinity(i32 0, i64 128, ptr %kept)
  br label %exit
exit:
  ret void
}
"""
_STAY = """
define internal void @settle() nounwind {
  ret void
}
define internal void @spread() nounwind {
  ret void
}
"""
