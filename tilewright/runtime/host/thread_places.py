"""Where threads of the pool run, in LLVM IR: the caller says on which core it is, and a worker that finds itself there moves.

It moves by sleeping. To exclude the core from its affinity for a moment would undo what another process sets in that moment.
"""

from __future__ import annotations

import sys


def places_ir() -> str:
    """Defines settle, which the caller of a loop calls, and spread, which each worker does; they share the pool's @core."""
    return _SPREAD if sys.platform == "linux" else _STAY


_SPREAD = """
@moment = internal constant [2 x i64] [i64 0, i64 1000]
declare i32 @sched_getcpu()
declare i32 @nanosleep(ptr, ptr)

define internal void @settle() nounwind {
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr @core monotonic, align 4
  ret void
}

; Sleeps for a moment: the caller goes on at once, and the scheduler wakes the thread on a core that is idle.
define internal void @spread() nounwind {
entry:
  %here = call i32 @sched_getcpu()
  %there = load atomic i32, ptr @core monotonic, align 4
  %same = icmp eq i32 %here, %there
  br i1 %same, label %leave, label %exit
leave:
  %slept = call i32 @nanosleep(ptr @moment, ptr null)
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
