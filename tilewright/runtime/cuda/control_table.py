"""Branches and loops that depend on data, as functions of the device tables, in LLVM IR (runtime/device.py, word CONTROL).

Both tables launch the kernels of runtime/gpu/control_kernels.py and let what follows go by a byte. On a stream a loop is enqueued
AHEAD turns at a time, then the number of turns is read. In a capture of the user's nothing can be read, so a loop is enqueued as
often as it may run. In a graph of ours a loop of way 1 is a WHILE node: its first turn stands before the node and the next two
are the node's body, so that what it carries lies where it lay when the body begins again.

words: CONTROL_WORDS, see runtime/device.py. `ways` of the graph: one word for each site: see WAYS.
"""

from __future__ import annotations

from enum import IntEnum

from tilewright.runtime.device import CONTROL_WORDS

WHILE_TURNS = 3  # turns of a loop that a graph holds: one before the WHILE node, two in it
CONTROL_KEY = 2 << 40
"""Key of a control kernel's node, with the kernel's number; they are told apart by their order."""


class Way(IntEnum):
    """How a graph holds a branch or loop on data. PREDICATED: all of it, kernels go by a byte. CONDITIONAL: an IF node with both
    sides, or a WHILE node. TWO_NODES: an IF node for each side, where the driver has no ELSE."""

    PREDICATED = 0
    CONDITIONAL = 1
    TWO_NODES = 2


CONTROL_SYMBOLS = ("tw_cuda_control", "tw_graph_control")


def control_fields() -> dict[str, int]:
    """Place of each of CONTROL_WORDS."""
    return {name: number for number, name in enumerate(CONTROL_WORDS)}


CONTROL_IR = """
define internal ptr @control_record(ptr %context, i64 %kernel) alwaysinline nounwind {
  %records = call ptr @function(ptr %context, i64 $C.controls$)
  %skip = mul i64 %kernel, $RECORD$
  %record = getelementptr i64, ptr %records, i64 %skip
  ret ptr %record
}

; Launches a control kernel, or updates its node.
define internal void @run_control(ptr %context, i64 %kernel, i64 %blocks, ptr %slots, i64 %count, i1 %graph) nounwind {
entry:
  %record = call ptr @control_record(ptr %context, i64 %kernel)
  br i1 %graph, label %node, label %stream
node:
  %key = or i64 %kernel, $CONTROL_KEY$
  call void @update_node(ptr %context, ptr %record, i64 %key, i64 %blocks, i64 1, i64 1, ptr %slots, i64 %count,
                         i64 $CONTROL_SITE$)
  ret void
stream:
  call void @launch(ptr %context, ptr %record, i64 %blocks, i64 1, i64 1, ptr %slots, i64 %count, i64 $CONTROL_SITE$)
  ret void
}

; The node that sets a condition: its handle is the one that it was made with.
define internal void @set_condition(ptr %context, i64 %flag, ptr %slots) nounwind {
entry:
  %graph = call ptr @function(ptr %context, i64 $C.graph$)
  %key = or i64 $CONDITION$, $CONTROL_KEY$
  %before = call i64 @word(ptr %graph, i64 $G.cursor$)
  %node = call ptr @find_node(ptr %context, ptr %graph, i64 %key, i64 $CONTROL_SITE$)
  %none = icmp eq ptr %node, null
  br i1 %none, label %miss, label %go
miss:
  call void @set(ptr %graph, i64 $G.missed$, i64 1)
  ret void
go:
  %after = call i64 @word(ptr %graph, i64 $G.cursor$)
  %here = sub i64 %after, 1
  call void @set(ptr %graph, i64 $G.cursor$, i64 %here)
  %values = call ptr @function(ptr %node, i64 $N.values$)
  %handle = call i64 @word(ptr %values, i64 0)
  call void @set(ptr %slots, i64 0, i64 %handle)
  call void @set(ptr %slots, i64 1, i64 %flag)
  call void @run_control(ptr %context, i64 $CONDITION$, i64 1, ptr %slots, i64 2, i1 true)
  ret void
}

define internal i64 @copy_blocks(i64 %bytes) alwaysinline nounwind {
  %more = add i64 %bytes, $COPY_LESS$
  %units = udiv i64 %more, $COPY_EACH$
  %blocks = call i64 @llvm.umin.i64(i64 %units, i64 $COPY_BLOCKS$)
  ret i64 %blocks
}

define internal ptr @copy_slots(ptr %context, ptr %slots, ptr %target, ptr %source, i64 %bytes) alwaysinline nounwind {
  %to = ptrtoint ptr %target to i64
  %from = ptrtoint ptr %source to i64
  %flag = call i64 @word(ptr %context, i64 $C.predicate$)
  call void @set(ptr %slots, i64 0, i64 %to)
  call void @set(ptr %slots, i64 1, i64 %from)
  call void @set(ptr %slots, i64 2, i64 %bytes)
  call void @set(ptr %slots, i64 3, i64 %flag)
  %record = call ptr @control_record(ptr %context, i64 $COPY$)
  ret ptr %record
}

; How often a loop ran, once the launches so far are done; 0 after an error.
define internal i64 @read_count(ptr %context, i64 %state) nounwind {
entry:
  %host = alloca i64
  store i64 0, ptr %host
  %stream = call ptr @function(ptr %context, i64 $C.stream$)
  %copy = call ptr @function(ptr %context, i64 $C.cuMemcpyDtoHAsync$)
  %copied = call i32 %copy(ptr %host, i64 %state, i64 8, ptr %stream)
  call void @note(ptr %context, i32 %copied, i64 $CONTROL_SITE$)
  %uncopied = icmp ne i32 %copied, 0
  br i1 %uncopied, label %exit, label %wait
wait:
  %finish = call ptr @function(ptr %context, i64 $C.cuStreamSynchronize$)
  %done = call i32 %finish(ptr %stream)
  call void @note(ptr %context, i32 %done, i64 $CONTROL_SITE$)
  br label %exit
exit:
  %value = load i64, ptr %host
  ret i64 %value
}

define internal i64 @control(ptr %context, i64 %op, ptr %words, i1 %graph) nounwind {
entry:
  %slots = alloca [8 x i64]
  %bad = call i1 @failed(ptr %context)
  br i1 %bad, label %nothing, label %known
known:
  %state = call i64 @word(ptr %words, i64 $W.state$)
  %flag = add i64 %state, $FLAG$
  %other = add i64 %state, $OTHERWISE$
  %byte = call i64 @word(ptr %words, i64 $W.byte$)
  %outer = call i64 @word(ptr %words, i64 $W.outer$)
  %here = call i64 @word(ptr %context, i64 $C.predicate$)
  br i1 %graph, label %ask_way, label %choose
ask_way:
  %of = call ptr @function(ptr %context, i64 $C.graph$)
  %ways = call ptr @function(ptr %of, i64 $G.ways$)
  %site = call i64 @word(ptr %words, i64 $W.site$)
  %found_way = call i64 @word(ptr %ways, i64 %site)
  br label %choose
choose:
  %way = phi i64 [ 0, %known ], [ %found_way, %ask_way ]
  switch i64 %op, label %nothing [ i64 $BRANCH$, label %branch i64 $ELSE$, label %else i64 $JOIN$, label %leave
                                   i64 $LOOP$, label %loop i64 $TURN_OP$, label %turn i64 $DONE$, label %done
                                   i64 $SETTLE$, label %settle ]
nothing:
  ret i64 0
branch:
  call void @set(ptr %words, i64 $W.outer$, i64 %here)
  call void @set(ptr %slots, i64 0, i64 %flag)
  call void @set(ptr %slots, i64 1, i64 %here)
  call void @set(ptr %slots, i64 2, i64 %byte)
  call void @set(ptr %slots, i64 3, i64 0)
  call void @run_control(ptr %context, i64 $TEST$, i64 1, ptr %slots, i64 4, i1 %graph)
  call void @set(ptr %context, i64 $C.predicate$, i64 %flag)
  %is_node = icmp ne i64 %way, 0
  br i1 %is_node, label %branch_node, label %both
branch_node:
  call void @set_condition(ptr %context, i64 %flag, ptr %slots)
  br label %both
both:
  ret i64 3
else:
  call void @set(ptr %slots, i64 0, i64 %other)
  call void @set(ptr %slots, i64 1, i64 %outer)
  call void @set(ptr %slots, i64 2, i64 %flag)
  call void @set(ptr %slots, i64 3, i64 1)
  call void @run_control(ptr %context, i64 $TEST$, i64 1, ptr %slots, i64 4, i1 %graph)
  call void @set(ptr %context, i64 $C.predicate$, i64 %other)
  %is_second = icmp eq i64 %way, 2
  br i1 %is_second, label %else_node, label %nothing
else_node:
  call void @set_condition(ptr %context, i64 %other, ptr %slots)
  ret i64 0
leave:
  call void @set(ptr %context, i64 $C.predicate$, i64 %outer)
  ret i64 0
loop:
  call void @set(ptr %words, i64 $W.outer$, i64 %here)
  call void @set(ptr %words, i64 $W.turn$, i64 0)
  call void @set(ptr %words, i64 $W.count$, i64 -1)
  call void @set(ptr %slots, i64 0, i64 %flag)
  call void @set(ptr %slots, i64 1, i64 %here)
  call void @set(ptr %slots, i64 2, i64 %state)
  call void @run_control(ptr %context, i64 $BEGIN$, i64 1, ptr %slots, i64 3, i1 %graph)
  call void @set(ptr %context, i64 $C.predicate$, i64 %flag)
  ret i64 0
turn:
  call void @set(ptr %slots, i64 0, i64 %flag)
  call void @set(ptr %slots, i64 1, i64 %byte)
  call void @set(ptr %slots, i64 2, i64 %state)
  call void @run_control(ptr %context, i64 $TURN$, i64 1, ptr %slots, i64 3, i1 %graph)
  %turns = call i64 @word(ptr %words, i64 $W.turn$)
  %t = add i64 %turns, 1
  call void @set(ptr %words, i64 $W.turn$, i64 %t)
  %limit = call i64 @word(ptr %words, i64 $W.limit$)
  %unbounded = icmp slt i64 %limit, 0
  %within = icmp sle i64 %t, %limit
  %may = or i1 %unbounded, %within
  %may64 = zext i1 %may to i64
  %is_while = icmp eq i64 %way, 1
  br i1 %is_while, label %while, label %how
while:
  %is_second_turn = icmp eq i64 %t, 2
  %is_last_turn = icmp eq i64 %t, $AFTER_WHILE$
  %sets = or i1 %is_second_turn, %is_last_turn
  br i1 %sets, label %while_node, label %while_on
while_node:
  call void @set_condition(ptr %context, i64 %flag, ptr %slots)
  br label %while_on
while_on:
  %on = icmp ult i64 %t, $AFTER_WHILE$
  %on64 = zext i1 %on to i64
  ret i64 %on64
how:
  br i1 %graph, label %bounded, label %whose
whose:
  %arena = call ptr @function(ptr %context, i64 $C.arena$)
  %capture = call i64 @word(ptr %arena, i64 $A.capture$)
  %captured = icmp ne i64 %capture, 0
  br i1 %captured, label %capturing, label %running
capturing:
  br i1 %unbounded, label %refuse, label %bounded
refuse:
  call void @note(ptr %context, i32 $CAPTURED$, i64 $LOOP_SITE$)
  ret i64 0
bounded:
  ret i64 %may64
running:
  br i1 %may, label %look, label %nothing
look:
  %rest = urem i64 %t, $AHEAD$
  %due = icmp eq i64 %rest, 0
  br i1 %due, label %read, label %more
more:
  ret i64 1
read:
  %ran = call i64 @read_count(ptr %context, i64 %state)
  call void @set(ptr %words, i64 $W.count$, i64 %ran)
  %all = icmp eq i64 %ran, %t
  %all64 = zext i1 %all to i64
  ret i64 %all64
done:
  call void @set(ptr %context, i64 $C.predicate$, i64 %outer)
  br i1 %graph, label %unknown, label %done_where
done_where:
  %arena2 = call ptr @function(ptr %context, i64 $C.arena$)
  %capture2 = call i64 @word(ptr %arena2, i64 $A.capture$)
  %captured2 = icmp ne i64 %capture2, 0
  br i1 %captured2, label %unknown, label %told
unknown:
  ret i64 -1
told:
  %count = call i64 @word(ptr %words, i64 $W.count$)
  %turns2 = call i64 @word(ptr %words, i64 $W.turn$)
  %is_known = icmp ne i64 %count, -1
  %is_less = icmp ult i64 %count, %turns2
  %is_final = and i1 %is_known, %is_less
  br i1 %is_final, label %final, label %reread
final:
  ret i64 %count
reread:
  %last = call i64 @read_count(ptr %context, i64 %state)
  ret i64 %last
settle:
  %target = call i64 @word(ptr %words, i64 $W.target$)
  %start = call i64 @word(ptr %words, i64 $W.start$)
  %second = call i64 @word(ptr %words, i64 $W.second$)
  %bytes = call i64 @word(ptr %words, i64 $W.bytes$)
  %blocks = call i64 @copy_blocks(i64 %bytes)
  %empty = icmp eq i64 %bytes, 0
  br i1 %empty, label %nothing, label %move
move:
  call void @set(ptr %slots, i64 0, i64 %target)
  call void @set(ptr %slots, i64 1, i64 %start)
  call void @set(ptr %slots, i64 2, i64 %second)
  call void @set(ptr %slots, i64 3, i64 %bytes)
  call void @set(ptr %slots, i64 4, i64 %state)
  call void @set(ptr %slots, i64 5, i64 %here)
  call void @run_control(ptr %context, i64 $SETTLE_KERNEL$, i64 %blocks, ptr %slots, i64 6, i1 %graph)
  ret i64 0
}

define i64 @tw_cuda_control(ptr %table, i64 %op, ptr %words) nounwind {
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %result = call i64 @control(ptr %context, i64 %op, ptr %words, i1 false)
  ret i64 %result
}

define i64 @tw_graph_control(ptr %table, i64 %op, ptr %words) nounwind {
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %result = call i64 @control(ptr %context, i64 %op, ptr %words, i1 true)
  ret i64 %result
}
"""
