"""Functions of another device table, in LLVM IR: a call updates the nodes of an executable CUDA graph and launches it once.

The host program computes every grid and every parameter, so nothing is kept for a shape: a launch finds its node, and the driver
is told only where the function, the grid, a parameter or a tensor map differs from what the node has, or where entries are passed
by value, of which nothing is kept. Nodes of launches that a call leaves out are disabled. cuda_table.py names the words of
`context`.

graph (word `graph` of the context): GRAPH_FIELDS. `nodes`: address of `count` times NODE_FIELDS, in the order of the program.
    `cursor`: the first node that this call has not passed. `missed`: 1 where a launch of the call has no node: nothing of the
    call is launched then. `updates`, `switches`, `launches`: how often parameters were set, nodes enabled or disabled, and the
    graph launched, since it was made. `ways`: address of a Way for each site of a branch or loop on data (control_table.py).
node: `node`: the driver's. `key`: see `node_key`. `function` to `z`: what the driver knows; function 0: nothing yet. `enabled`:
    0 or 1. `values`: address of the parameters that the driver knows, then the tensor maps among them.
"""

from __future__ import annotations

from tilewright.runtime.cuda.launch_entry import launch_entry

GRAPH_FIELDS = ("exec", "nodes", "count", "cursor", "missed", "updates", "switches", "launches", "ways")
NODE_FIELDS = ("node", "key", "function", "x", "y", "z", "enabled", "values")
GRAPH_FUNCTIONS = ("cuGraphExecKernelNodeSetParams", "cuGraphNodeSetEnabled", "cuGraphLaunch")
GRAPH_SYMBOLS = ("tw_graph_launch", "tw_graph_alloc", "tw_graph_release", "tw_graph_copy")
COPY_KEY = 1 << 40
"""Key of the nodes of copies; they are told apart by their order."""


def node_key(number: int) -> int:
    """Of a launch number: its call, and which launch of the call's kernel it is. Kernels of one call share nodes."""
    return (number & 0xFFFFFF00) | number >> 32


_UPDATED = """
  %call_bits = and i64 %number, 4294967040
  %step = lshr i64 %number, 32
  %key = or i64 %call_bits, %step
  call void @update_node(ptr %context, ptr %record, i64 %key, i64 %bx, i64 %gy, i64 %gz, ptr %slots, i64 %count, i64 %number)
"""
GRAPH_IR = launch_entry("tw_graph_launch", "given_up", _UPDATED) + """
declare i64 @llvm.vector.reduce.or.v$MAP_WORDS$i64(<$MAP_WORDS$ x i64>)
declare i64 @llvm.vector.reduce.or.v4i64(<4 x i64>)
%node_params = type { ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr, ptr }

; Enables (1) or disables (0) a node of the executable; what the driver refuses leaves it as it was.
define internal void @switch_node(ptr %context, ptr %graph, ptr %node, i64 %on, i64 %site) nounwind {
  %exec = call ptr @function(ptr %graph, i64 $G.exec$)
  %handle = call ptr @function(ptr %node, i64 $N.node$)
  %on32 = trunc i64 %on to i32
  %switch = call ptr @function(ptr %context, i64 $C.cuGraphNodeSetEnabled$)
  %code = call i32 %switch(ptr %exec, ptr %handle, i32 %on32)
  call void @note(ptr %context, i32 %code, i64 %site)
  %refused = icmp ne i32 %code, 0
  %before = call i64 @word(ptr %node, i64 $N.enabled$)
  %now = select i1 %refused, i64 %before, i64 %on
  call void @set(ptr %node, i64 $N.enabled$, i64 %now)
  call void @count(ptr %graph, i64 $G.switches$)
  ret void
}

define internal void @count(ptr %graph, i64 %field) alwaysinline nounwind {
  %before = call i64 @word(ptr %graph, i64 %field)
  %after = add i64 %before, 1
  call void @set(ptr %graph, i64 %field, i64 %after)
  ret void
}

; Passes the nodes from the cursor on, which this call does not launch, up to the one with the key; null where there is none.
define internal ptr @find_node(ptr %context, ptr %graph, i64 %key, i64 %site) nounwind {
entry:
  %nodes = call ptr @function(ptr %graph, i64 $G.nodes$)
  %total = call i64 @word(ptr %graph, i64 $G.count$)
  %from = call i64 @word(ptr %graph, i64 $G.cursor$)
  br label %seek
seek:
  %i = phi i64 [ %from, %entry ], [ %i1, %next ]
  %left = icmp ult i64 %i, %total
  br i1 %left, label %look, label %miss
look:
  %at = mul i64 %i, $NODE$
  %node = getelementptr i64, ptr %nodes, i64 %at
  %its = call i64 @word(ptr %node, i64 $N.key$)
  %same = icmp eq i64 %its, %key
  %i1 = add i64 %i, 1
  br i1 %same, label %found, label %pass
pass:
  %on = call i64 @word(ptr %node, i64 $N.enabled$)
  %is_on = icmp ne i64 %on, 0
  br i1 %is_on, label %disable, label %next
disable:
  call void @switch_node(ptr %context, ptr %graph, ptr %node, i64 0, i64 %site)
  br label %next
next:
  br label %seek
found:
  call void @set(ptr %graph, i64 $G.cursor$, i64 %i1)
  ret ptr %node
miss:
  ret ptr null
}

; The next launch of the call: the node with the key gets what differs.
define internal void @update_node(ptr %context, ptr %record, i64 %key, i64 %gx, i64 %gy, i64 %gz, ptr %slots, i64 %count,
                                  i64 %site) nounwind {
entry:
  %params = alloca %node_params
  %graph = call ptr @function(ptr %context, i64 $C.graph$)
  %node = call ptr @find_node(ptr %context, ptr %graph, i64 %key, i64 %site)
  %none = icmp eq ptr %node, null
  br i1 %none, label %miss, label %compare
miss:
  call void @set(ptr %graph, i64 $G.missed$, i64 1)
  ret void
compare:
  %function = call i64 @word(ptr %record, i64 $R.function$)
  %maps = call i64 @word(ptr %record, i64 $R.maps$)
  %places = call ptr @function(ptr %record, i64 $R.places$)
  %values = call ptr @function(ptr %node, i64 $N.values$)
  %its_function = call i64 @word(ptr %node, i64 $N.function$)
  %its_x = call i64 @word(ptr %node, i64 $N.x$)
  %its_y = call i64 @word(ptr %node, i64 $N.y$)
  %its_z = call i64 @word(ptr %node, i64 $N.z$)
  %df = xor i64 %function, %its_function
  %dx = xor i64 %gx, %its_x
  %dy = xor i64 %gy, %its_y
  %dz = xor i64 %gz, %its_z
  %d1 = or i64 %df, %dx
  %d2 = or i64 %dy, %dz
  %d3 = or i64 %d1, %d2
  br label %map
map:
  %j = phi i64 [ 0, %compare ], [ %j1, %mapped ]
  %d4 = phi i64 [ %d3, %compare ], [ %d6, %mapped ]
  %another = icmp ult i64 %j, %maps
  br i1 %another, label %one_map, label %wide_first
one_map:
  %place = call i64 @word(ptr %places, i64 %j)
  %map_at = call ptr @function(ptr %slots, i64 %place)
  %map_word = call i64 @word(ptr %slots, i64 %place)
  call void @set(ptr %values, i64 %place, i64 %map_word)
  %kept_words = mul i64 %j, $MAP_WORDS$
  %kept_place = add i64 %kept_words, %count
  %kept_at = getelementptr i64, ptr %values, i64 %kept_place
  %new_map = load <$MAP_WORDS$ x i64>, ptr %map_at, align 8
  %old_map = load <$MAP_WORDS$ x i64>, ptr %kept_at, align 8
  %map_bits = xor <$MAP_WORDS$ x i64> %new_map, %old_map
  %map_word_bits = call i64 @llvm.vector.reduce.or.v$MAP_WORDS$i64(<$MAP_WORDS$ x i64> %map_bits)
  %d6 = or i64 %d4, %map_word_bits
  br label %mapped
mapped:
  %j1 = add i64 %j, 1
  br label %map
wide_first:
  %whole = and i64 %count, -4
  br label %wide
wide:
  %w = phi i64 [ 0, %wide_first ], [ %w4, %four ]
  %bits = phi <4 x i64> [ zeroinitializer, %wide_first ], [ %bits1, %four ]
  %wide_more = icmp ult i64 %w, %whole
  br i1 %wide_more, label %four, label %wide_last
four:
  %new_at = getelementptr i64, ptr %slots, i64 %w
  %old_at = getelementptr i64, ptr %values, i64 %w
  %new_four = load <4 x i64>, ptr %new_at, align 8
  %old_four = load <4 x i64>, ptr %old_at, align 8
  %four_bits = xor <4 x i64> %new_four, %old_four
  %bits1 = or <4 x i64> %bits, %four_bits
  %w4 = add i64 %w, 4
  br label %wide
wide_last:
  %wide_bits = call i64 @llvm.vector.reduce.or.v4i64(<4 x i64> %bits)
  %d5 = or i64 %d4, %wide_bits
  br label %words
words:
  %i = phi i64 [ %whole, %wide_last ], [ %i1, %one_word ]
  %d7 = phi i64 [ %d5, %wide_last ], [ %d8, %one_word ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one_word, label %decide
one_word:
  %new = call i64 @word(ptr %slots, i64 %i)
  %old = call i64 @word(ptr %values, i64 %i)
  %dw = xor i64 %new, %old
  %d8 = or i64 %d7, %dw
  %i1 = add i64 %i, 1
  br label %words
decide:
  %entries = call i64 @word(ptr %record, i64 $R.entries$)
  %d9 = or i64 %d7, %entries
  %differs = icmp ne i64 %d9, 0
  br i1 %differs, label %tell, label %wake
tell:
  %pointers = alloca ptr, i64 %count
  br label %fill
fill:
  %a = phi i64 [ 0, %tell ], [ %a1, %point ]
  %unfilled = icmp ult i64 %a, %count
  br i1 %unfilled, label %point, label %filled
point:
  %slot = getelementptr i64, ptr %slots, i64 %a
  %pointer = getelementptr ptr, ptr %pointers, i64 %a
  store ptr %slot, ptr %pointer
  %a1 = add i64 %a, 1
  br label %fill
filled:
  %bytes = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %values, ptr %slots, i64 %bytes, i1 false)
  br label %keep
keep:
  %b = phi i64 [ 0, %filled ], [ %b1, %by_value ]
  %mapped_left = icmp ult i64 %b, %maps
  br i1 %mapped_left, label %by_value, label %put
by_value:
  %which = call i64 @word(ptr %places, i64 %b)
  %made = call ptr @function(ptr %slots, i64 %which)
  %passed = getelementptr ptr, ptr %pointers, i64 %which
  store ptr %made, ptr %passed
  %map_skip = mul i64 %b, $MAP_WORDS$
  %map_place = add i64 %map_skip, %count
  %map_kept = getelementptr i64, ptr %values, i64 %map_place
  call void @llvm.memcpy.p0.p0.i64(ptr %map_kept, ptr %made, i64 $MAP_BYTES$, i1 false)
  %b1 = add i64 %b, 1
  br label %keep
put:
  call void @pass_entries(ptr %record, ptr %slots, ptr %pointers)
  store %node_params zeroinitializer, ptr %params
  %kernel = inttoptr i64 %function to ptr
  store ptr %kernel, ptr %params
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
  %p1 = getelementptr %node_params, ptr %params, i32 0, i32 1
  store i32 %x, ptr %p1
  %p2 = getelementptr %node_params, ptr %params, i32 0, i32 2
  store i32 %y, ptr %p2
  %p3 = getelementptr %node_params, ptr %params, i32 0, i32 3
  store i32 %z, ptr %p3
  %p4 = getelementptr %node_params, ptr %params, i32 0, i32 4
  %block = call i64 @word(ptr %record, i64 $R.threads$)
  %block32 = trunc i64 %block to i32
  store i32 %block32, ptr %p4
  %p5 = getelementptr %node_params, ptr %params, i32 0, i32 5
  store i32 1, ptr %p5
  %p6 = getelementptr %node_params, ptr %params, i32 0, i32 6
  store i32 1, ptr %p6
  %p7 = getelementptr %node_params, ptr %params, i32 0, i32 7
  %shared = call i64 @word(ptr %record, i64 $R.shared_bytes$)
  %shared32 = trunc i64 %shared to i32
  store i32 %shared32, ptr %p7
  %p8 = getelementptr %node_params, ptr %params, i32 0, i32 8
  store ptr %pointers, ptr %p8
  %exec = call ptr @function(ptr %graph, i64 $G.exec$)
  %handle = call ptr @function(ptr %node, i64 $N.node$)
  %setter = call ptr @function(ptr %context, i64 $C.cuGraphExecKernelNodeSetParams$)
  %code = call i32 %setter(ptr %exec, ptr %handle, ptr %params)
  call void @note(ptr %context, i32 %code, i64 %site)
  call void @count(ptr %graph, i64 $G.updates$)
  call void @set(ptr %node, i64 $N.x$, i64 %gx)
  call void @set(ptr %node, i64 $N.y$, i64 %gy)
  call void @set(ptr %node, i64 $N.z$, i64 %gz)
  %refused = icmp ne i32 %code, 0
  %known = select i1 %refused, i64 0, i64 %function
  call void @set(ptr %node, i64 $N.function$, i64 %known)
  br label %wake
wake:
  %awake = call i64 @word(ptr %node, i64 $N.enabled$)
  %asleep = icmp eq i64 %awake, 0
  br i1 %asleep, label %enable, label %exit
enable:
  call void @switch_node(ptr %context, ptr %graph, ptr %node, i64 1, i64 %site)
  br label %exit
exit:
  ret void
}

; Is this call's graph of no use any more, by an error or by a launch that has no node?
define internal i1 @given_up(ptr %context) alwaysinline nounwind {
  %graph = call ptr @function(ptr %context, i64 $C.graph$)
  %missed = call i64 @word(ptr %graph, i64 $G.missed$)
  %error = call i64 @word(ptr %context, i64 $C.error$)
  %either = or i64 %missed, %error
  %bad = icmp ne i64 %either, 0
  ret i1 %bad
}

; The arena, as of a call whose launches go to the stream; null in a capture of the user's.
define ptr @tw_graph_alloc(ptr %table, i64 %bytes) nounwind {
entry:
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %graph = call ptr @function(ptr %context, i64 $C.graph$)
  call void @set(ptr %graph, i64 $G.cursor$, i64 0)
  call void @set(ptr %graph, i64 $G.missed$, i64 0)
  %arena = call ptr @tw_cuda_alloc(ptr %table, i64 %bytes)
  %none = icmp eq ptr %arena, null
  br i1 %none, label %nothing, label %whose
whose:
  %words = call ptr @function(ptr %context, i64 $C.arena$)
  %capture = call i64 @word(ptr %words, i64 $A.capture$)
  %captured = icmp ne i64 %capture, 0
  br i1 %captured, label %leave, label %good
leave:
  call void @tw_cuda_release(ptr %table, ptr null)
  br label %nothing
nothing:
  ret ptr null
good:
  ret ptr %arena
}

; Disables what the call did not launch, and launches the graph. A call that launches nothing, or whose stream has come to be
; captured since it began, launches no graph.
define void @tw_graph_release(ptr %table, ptr %arena) nounwind {
entry:
  %status = alloca i32
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %graph = call ptr @function(ptr %context, i64 $C.graph$)
  %given_up = call i1 @given_up(ptr %context)
  br i1 %given_up, label %exit, label %look
look:
  %cursor = call i64 @word(ptr %graph, i64 $G.cursor$)
  %idle = icmp eq i64 %cursor, 0
  br i1 %idle, label %exit, label %rest
rest:
  %found = call ptr @find_node(ptr %context, ptr %graph, i64 -1, i64 $GRAPH_SITE$)
  %stream = call ptr @function(ptr %context, i64 $C.stream$)
  store i32 0, ptr %status
  %info = call ptr @function(ptr %context, i64 $C.cuStreamGetCaptureInfo$)
  %told = call i32 %info(ptr %stream, ptr %status, ptr null, ptr null, ptr null, ptr null, ptr null)
  call void @note(ptr %context, i32 %told, i64 $GRAPH_SITE$)
  %state = load i32, ptr %status
  %free = icmp eq i32 %state, 0
  br i1 %free, label %launch, label %refuse
refuse:
  call void @note(ptr %context, i32 $CAPTURED$, i64 $GRAPH_SITE$)
  br label %exit
launch:
  %bad = call i1 @failed(ptr %context)
  br i1 %bad, label %exit, label %go
go:
  %exec = call ptr @function(ptr %graph, i64 $G.exec$)
  %launcher = call ptr @function(ptr %context, i64 $C.cuGraphLaunch$)
  %code = call i32 %launcher(ptr %exec, ptr %stream)
  call void @note(ptr %context, i32 %code, i64 $GRAPH_SITE$)
  call void @count(ptr %graph, i64 $G.launches$)
  br label %exit
exit:
  call void @tw_cuda_release(ptr %table, ptr %arena)
  ret void
}

define void @tw_graph_copy(ptr %table, ptr %target, ptr %source, i64 %bytes) nounwind {
entry:
  %slots = alloca [4 x i64]
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %before = call i1 @given_up(ptr %context)
  %none = icmp eq i64 %bytes, 0
  %skip = or i1 %before, %none
  br i1 %skip, label %exit, label %copy
copy:
  %record = call ptr @copy_slots(ptr %context, ptr %slots, ptr %target, ptr %source, i64 %bytes)
  %blocks = call i64 @copy_blocks(i64 %bytes)
  call void @update_node(ptr %context, ptr %record, i64 $COPY_KEY$, i64 %blocks, i64 1, i64 1, ptr %slots, i64 4,
                         i64 $COPY_SITE$)
  br label %exit
exit:
  ret void
}
"""
