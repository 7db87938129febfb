"""How both device tables begin a launch: the functions of word LAUNCH (runtime/device.py), in LLVM IR."""

from __future__ import annotations


def launch_entry(symbol: str, stopped: str, given: str) -> str:
    """The function `symbol`. stopped: the function that says whether nothing more of the call is to be launched. given: what is
    done with `%record`, ready, of `%bx`, `%gy`, `%gz` blocks and `%count` words at `%slots`, which hold the byte it goes by."""
    return _ENTRY.replace("<symbol>", symbol).replace("<stopped>", stopped).replace("<given>", given.strip("\n"))


_ENTRY = """
define void @<symbol>(ptr %table, i64 %number, i64 %gx, i64 %gy, i64 %gz, ptr %slots, i64 %count, i64 %threads, ptr %workspace,
                      i64 %stride) nounwind {
entry:
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %before = call i1 @<stopped>(ptr %context)
  br i1 %before, label %exit, label %size
size:
  %runs = call i1 @has_blocks(ptr %context, i64 %number, i64 %gx, i64 %gy, i64 %gz)
  br i1 %runs, label %find, label %exit
find:
  %record = call ptr @ready(ptr %table, ptr %context, i64 %number)
  %unloaded = icmp eq ptr %record, null
  br i1 %unloaded, label %exit, label %go
go:
  call void @predicate(ptr %context, ptr %record, ptr %slots)
  %bx = call i64 @blocks_along_x(ptr %record, i64 %gx)
<given>
  br label %exit
exit:
  ret void
}
"""
