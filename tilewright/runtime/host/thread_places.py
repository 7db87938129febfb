"""Where threads of the pool run, in LLVM IR: the caller says on which core it is, and a worker that finds itself there moves.

It moves by handing over to a thread that it starts. Linux looks for an idle core when a thread is made; when one is woken it does
not where the cores that share a cache were busy before (SIS_UTIL: with two cores it leaves most bursts of loops to one of them),
and it takes long to part two threads that never sleep. The new thread has the affinity, priority and groups of the one before. To
exclude the core from the own affinity for a moment would undo what another process sets in that moment.
"""

from __future__ import annotations

import sys


def places_ir() -> str:
    """Defines settle, which the caller of a loop calls, and hand_over, which each worker does and whose answer is whether another
    thread is that worker now; they share the pool's @core."""
    return _MOVE if sys.platform == "linux" else _STAY


_MOVE = """
@moves = internal global [1024 x [2 x i64]] zeroinitializer, align 64
declare i32 @sched_getcpu()
declare i32 @clock_gettime(i32, ptr)

define internal void @settle() nounwind {
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr @core monotonic, align 4
  ret void
}

; A worker's entry of @moves has when it moved last, and how long it stays from then on, in nanoseconds: a millisecond, and twice
; as long each time that moving was of no use, as where others keep all the other cores.
define internal i1 @hand_over(i64 %thread, i64 %seen) nounwind {
entry:
  %time = alloca [2 x i64]
  %here = call i32 @sched_getcpu()
  %there = load atomic i32, ptr @core monotonic, align 4
  %same = icmp eq i32 %here, %there
  br i1 %same, label %ask, label %stay
ask:
  %told = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %fraction = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %fraction
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %last_of = getelementptr [1024 x [2 x i64]], ptr @moves, i64 0, i64 %thread
  %last = load i64, ptr %last_of
  %wait_of = getelementptr i64, ptr %last_of, i64 1
  %wait = load i64, ptr %wait_of
  %since = sub i64 %now, %last
  %due = icmp sge i64 %since, %wait
  br i1 %due, label %leave, label %stay
leave:
  %long = shl i64 %wait, 2
  %again = icmp slt i64 %since, %long
  %double = shl i64 %wait, 1
  %bounded = call i64 @llvm.smin.i64(i64 %double, i64 128000000)
  %next = select i1 %again, i64 %bounded, i64 1000000
  store i64 %now, ptr %last_of
  store i64 %next, ptr %wait_of
  %made = call i1 @start(i64 %thread, i64 %seen)
  ret i1 %made
stay:
  ret i1 false
}
"""
_STAY = """
define internal void @settle() nounwind {
  ret void
}
define internal i1 @hand_over(i64 %thread, i64 %seen) nounwind {
  ret i1 false
}
"""
