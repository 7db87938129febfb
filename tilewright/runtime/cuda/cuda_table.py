"""The device table's functions over the CUDA driver, in LLVM IR, kept in every artifact for a CUDA target.

They call the driver through the pointers of a context, so that a launch runs no Python and links to no library. An error of
the driver is kept in the context, and what would follow it in the call is left out. Words of 8 bytes:

context (word CONTEXT of the table): CONTEXT_FIELDS. `error` is a CUresult, `site` the launch number that met it, or one of SITES.
    `load(context, number)` makes a kernel ready that is launched for the first time, and gives a CUresult. `maps`: address of
    KEPT_MAPS places of KEPT_WORDS for tensor maps made before, zeros at first; 0 for none. The rest are functions of the driver
    by their names.
arena (one per stream, shared by all programs): ARENA_FIELDS. `capture`: id of the capture that may use it, 0 outside of one.
    tw_alloc gives null, the error being 0, when the arena is too small, of another stream or of another capture: `wanted`,
    `wanted_stream` and `wanted_capture` of the context then say what is needed. In a capture the driver refuses to tell a
    stream's id, and the capture is lost to whoever asks: the id is 0 there.
kernels (word KERNELS): by the number of a call the address of as many words as its table has kernels, which lie close together:
    each the address of RECORD_FIELDS, one record per launch. `function`: a CUfunction, or 0 before it is loaded. `most_x`: what
    blocks along x are lowered to; 0 for no bound. `maps`: how many slots are tensor maps; `places`: address of their numbers.
    `threads`: and EARLY where the launch may begin before those in front of it end, which it then does outside of captures and
    graphs. `predicate`: 1 + the number of the slot that takes the address of the byte that the kernel goes by; 0 for none.
    `entries`: 1 + the number of the slot that holds the address of what is passed by value; 0 for none.
controls (word of the context): address of a record for each ControlKernel, loaded. `predicate`: address of the byte that the
    launches now go by; `always`: that of a byte that is 1, where nothing depends on data. `graph`: see graph_table.py.
"""

from __future__ import annotations

from tilewright.runtime.cuda import abi
from tilewright.runtime.cuda.control_table import CONTROL_IR, CONTROL_KEY, CONTROL_SYMBOLS, WHILE_TURNS
from tilewright.runtime.cuda.graph_table import (
    COPY_KEY,
    GRAPH_FIELDS,
    GRAPH_FUNCTIONS,
    GRAPH_IR,
    GRAPH_SYMBOLS,
    NODE_FIELDS,
)
from tilewright.runtime.cuda.launch_entry import launch_entry
from tilewright.runtime.cuda.tensor_map_table import TENSOR_MAP_IR
from tilewright.runtime.device import CONTEXT, CONTROL_WORDS, KERNELS, KERNELS_PER_CALL, ControlOp
from tilewright.runtime.gpu.control_kernels import (
    COPY_BLOCKS,
    COPY_THREADS,
    COPY_UNIT,
    FLAG,
    OTHERWISE,
    ControlKernel,
)
from tilewright.runtime.program.data_branches import AHEAD
from tilewright.runtime.program.tensor_map import ALIGNMENT, DTYPES, HEAD_WORDS, MAP_BYTES, MOST_AXES

FUNCTIONS = ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize",
             "cuStreamGetCaptureInfo", "cuStreamGetId", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
             *GRAPH_FUNCTIONS)
CONTEXT_FIELDS = ("stream", "cuda_context", "error", "site", "arena", "pushed", "load", "maps", "wanted", "wanted_stream",
                  "wanted_capture", "wanted_graph", "graph", "predicate", "always", "controls", *FUNCTIONS)
_KEY_WORDS = HEAD_WORDS + 3 * MOST_AXES  # what a tensor map is made of
KEPT_WORDS = _KEY_WORDS + MAP_BYTES // 8
_KEPT_BITS = 9
KEPT_MAPS = 1 << _KEPT_BITS
ARENA_FIELDS = ("address", "bytes", "stream", "capture")
RECORD_FIELDS = ("function", "threads", "shared_bytes", "cluster_x", "cluster_y", "cluster_z", "maps", "places", "most_x",
                 "predicate", "entries")
EARLY = 1 << 32  # of the word `threads`
SITES = {"tensor map": -1, "arena": -2, "copy": -3, "graph": -4, "control": -5, "loop": -6}
SYMBOLS = ("tw_cuda_launch", "tw_cuda_alloc", "tw_cuda_release", "tw_cuda_tensor_map", "tw_cuda_copy", "tw_cuda_returned",
           *GRAPH_SYMBOLS, *CONTROL_SYMBOLS)
_INVALID_VALUE, _CAPTURED = 1, 900


def cuda_table_ir() -> str:
    """LLVM IR that defines SYMBOLS; the same for every machine. tw_cuda_returned(flag) sets a word: the graph that used an
    arena is gone."""
    text = _FUNCTIONS + launch_entry("tw_cuda_launch", "failed", _LAUNCHED) + TENSOR_MAP_IR + GRAPH_IR + CONTROL_IR
    for prefix, fields in (("C", CONTEXT_FIELDS), ("A", ARENA_FIELDS), ("R", RECORD_FIELDS), ("G", GRAPH_FIELDS),
                           ("N", NODE_FIELDS), ("W", CONTROL_WORDS)):
        for number, field in enumerate(fields):
            text = text.replace(f"${prefix}.{field}$", str(number))
    for name, value in _numbers().items():
        text = text.replace(f"${name}$", str(value))
    return text


def _numbers() -> dict[str, int | str]:
    """What stands between dollars in the text, besides the fields."""
    sites = {f"{name.upper().replace('TENSOR MAP', 'MAP')}_SITE": site for name, site in SITES.items()}
    kernels = {k.name: int(k) for k in ControlKernel if k is not ControlKernel.SETTLE}
    ops = {op.name: int(op) for op in ControlOp if op is not ControlOp.TURN}
    copies = {"COPY_EACH": COPY_UNIT * COPY_THREADS, "COPY_LESS": COPY_UNIT * COPY_THREADS - 1, "COPY_BLOCKS": COPY_BLOCKS}
    return {**sites, **kernels, **ops, **copies,
            "SETTLE_KERNEL": int(ControlKernel.SETTLE), "TURN_OP": int(ControlOp.TURN), "RECORD": len(RECORD_FIELDS),
            "CONTEXT": CONTEXT, "KERNELS": KERNELS, "KERNELS_PER_CALL": KERNELS_PER_CALL, "CLUSTER": abi.CLUSTER_DIMENSION,
            "PROGRAMMATIC": abi.PROGRAMMATIC, "INVALID": _INVALID_VALUE,
            "CAPTURED": _CAPTURED, "AXES": MOST_AXES, "ALIGNMENT": ALIGNMENT, "PROMOTION": abi.PROMOTE_L2_128,
            "ACTIVE": abi.CAPTURE_ACTIVE, "KINDS": len(DTYPES), "KEPT_WORDS": KEPT_WORDS, "KEY_WORDS": _KEY_WORDS,
            "MAP_BYTES": MAP_BYTES, "MAP_WORDS": MAP_BYTES // 8, "KEPT_SHIFT": 64 - _KEPT_BITS, "HEAD": HEAD_WORDS,
            "NODE": len(NODE_FIELDS), "COPY_KEY": COPY_KEY, "CONTROL_KEY": CONTROL_KEY, "FLAG": FLAG, "OTHERWISE": OTHERWISE,
            "AHEAD": AHEAD, "AFTER_WHILE": WHILE_TURNS + 1,
            "TYPES": ", ".join(f"i32 {t}" for t in abi.MAP_TYPES), "BYTES": ", ".join(f"i64 {d.bytes}" for d in DTYPES)}


_LAUNCHED = """
  call void @launch(ptr %context, ptr %record, i64 %bx, i64 %gy, i64 %gz, ptr %slots, i64 %count, i64 %number)
"""
_FUNCTIONS = """
%config = type { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, i32 }
%attribute = type { i32, [4 x i8], i32, i32, i32, [52 x i8] }
@types = internal constant [$KINDS$ x i32] [$TYPES$]
@sizes = internal constant [$KINDS$ x i64] [$BYTES$]
declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @word(ptr %base, i64 %field) alwaysinline nounwind {
  %place = getelementptr i64, ptr %base, i64 %field
  %value = load i64, ptr %place
  ret i64 %value
}

define internal void @set(ptr %base, i64 %field, i64 %value) alwaysinline nounwind {
  %place = getelementptr i64, ptr %base, i64 %field
  store i64 %value, ptr %place
  ret void
}

define internal ptr @function(ptr %context, i64 %field) alwaysinline nounwind {
  %place = getelementptr i64, ptr %context, i64 %field
  %value = load ptr, ptr %place
  ret ptr %value
}

; Keeps an error of the driver.
define internal void @note(ptr %context, i32 %code, i64 %site) nounwind {
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %keep, label %exit
keep:
  %wide = zext i32 %code to i64
  call void @set(ptr %context, i64 $C.error$, i64 %wide)
  call void @set(ptr %context, i64 $C.site$, i64 %site)
  br label %exit
exit:
  ret void
}

define internal i1 @failed(ptr %context) alwaysinline nounwind {
  %code = call i64 @word(ptr %context, i64 $C.error$)
  %bad = icmp ne i64 %code, 0
  ret i1 %bad
}

; Are there blocks to launch? A grid that no device takes is an error.
define internal i1 @has_blocks(ptr %context, i64 %site, i64 %gx, i64 %gy, i64 %gz) alwaysinline nounwind {
entry:
  %x0 = icmp eq i64 %gx, 0
  %y0 = icmp eq i64 %gy, 0
  %z0 = icmp eq i64 %gz, 0
  %xy0 = or i1 %x0, %y0
  %none = or i1 %xy0, %z0
  br i1 %none, label %no, label %bounds
bounds:
  %xy = or i64 %gx, %gy
  %xyz = or i64 %xy, %gz
  %huge = icmp ugt i64 %xyz, 2147483647
  br i1 %huge, label %refuse, label %yes
refuse:
  call void @note(ptr %context, i32 $INVALID$, i64 %site)
  br label %no
no:
  ret i1 false
yes:
  ret i1 true
}

; The record of a launch, loaded now where it is the first; null where it cannot be.
define internal ptr @ready(ptr %table, ptr %context, i64 %number) alwaysinline nounwind {
entry:
  %kernels = call ptr @function(ptr %table, i64 $KERNELS$)
  %low = and i64 %number, 4294967295
  %step = lshr i64 %number, 32
  %call = udiv i64 %low, $KERNELS_PER_CALL$
  %kernel = urem i64 %low, $KERNELS_PER_CALL$
  %of_call = call ptr @function(ptr %kernels, i64 %call)
  %records = call ptr @function(ptr %of_call, i64 %kernel)
  %skip = mul i64 %step, $RECORD$
  %record = getelementptr i64, ptr %records, i64 %skip
  %known = call i64 @word(ptr %record, i64 $R.function$)
  %first = icmp eq i64 %known, 0
  br i1 %first, label %load, label %good
load:
  %loader = call ptr @function(ptr %context, i64 $C.load$)
  %loaded = call i32 %loader(ptr %context, i64 %number)
  call void @note(ptr %context, i32 %loaded, i64 %number)
  %unloaded = icmp ne i32 %loaded, 0
  br i1 %unloaded, label %bad, label %good
bad:
  ret ptr null
good:
  ret ptr %record
}

; Points the parameter of entries at them, where a kernel has some.
define internal void @pass_entries(ptr %record, ptr %slots, ptr %parameters) alwaysinline nounwind {
entry:
  %slot = call i64 @word(ptr %record, i64 $R.entries$)
  %none = icmp eq i64 %slot, 0
  br i1 %none, label %exit, label %put
put:
  %number = sub i64 %slot, 1
  %entries = call ptr @function(ptr %slots, i64 %number)
  %parameter = getelementptr ptr, ptr %parameters, i64 %number
  store ptr %entries, ptr %parameter
  br label %exit
exit:
  ret void
}

; Puts the byte that the current launches go by into the slot of a kernel that asks for it.
define internal void @predicate(ptr %context, ptr %record, ptr %slots) alwaysinline nounwind {
entry:
  %slot = call i64 @word(ptr %record, i64 $R.predicate$)
  %none = icmp eq i64 %slot, 0
  br i1 %none, label %exit, label %put
put:
  %place = sub i64 %slot, 1
  %byte = call i64 @word(ptr %context, i64 $C.predicate$)
  call void @set(ptr %slots, i64 %place, i64 %byte)
  br label %exit
exit:
  ret void
}

define internal i64 @blocks_along_x(ptr %record, i64 %gx) alwaysinline nounwind {
  %most = call i64 @word(ptr %record, i64 $R.most_x$)
  %unbounded = icmp eq i64 %most, 0
  %lowered = call i64 @llvm.umin.i64(i64 %gx, i64 %most)
  %bx = select i1 %unbounded, i64 %gx, i64 %lowered
  ret i64 %bx
}

; Launches a loaded record on the stream.
define internal void @launch(ptr %context, ptr %record, i64 %gx, i64 %gy, i64 %gz, ptr %slots, i64 %count, i64 %site) nounwind {
entry:
  %config = alloca %config
  %attributes = alloca [2 x %attribute]
  %parameters = alloca ptr, i64 %count
  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %i1, %one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %filled
one:
  %slot = getelementptr i64, ptr %slots, i64 %i
  %parameter = getelementptr ptr, ptr %parameters, i64 %i
  store ptr %slot, ptr %parameter
  %i1 = add i64 %i, 1
  br label %fill
filled:
  %maps = call i64 @word(ptr %record, i64 $R.maps$)
  %places = call ptr @function(ptr %record, i64 $R.places$)
  br label %map
map:
  %j = phi i64 [ 0, %filled ], [ %j1, %by_value ]
  %another = icmp ult i64 %j, %maps
  br i1 %another, label %by_value, label %last
by_value:
  %at = call i64 @word(ptr %places, i64 %j)
  %made = call ptr @function(ptr %slots, i64 %at)
  %passed = getelementptr ptr, ptr %parameters, i64 %at
  store ptr %made, ptr %passed
  %j1 = add i64 %j, 1
  br label %map
last:
  call void @pass_entries(ptr %record, ptr %slots, ptr %parameters)
  br label %configure
configure:
  store %config zeroinitializer, ptr %config
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
  store i32 %x, ptr %config
  %c1 = getelementptr %config, ptr %config, i32 0, i32 1
  store i32 %y, ptr %c1
  %c2 = getelementptr %config, ptr %config, i32 0, i32 2
  store i32 %z, ptr %c2
  %c3 = getelementptr %config, ptr %config, i32 0, i32 3
  %block = call i64 @word(ptr %record, i64 $R.threads$)
  %block32 = trunc i64 %block to i32
  store i32 %block32, ptr %c3
  %c4 = getelementptr %config, ptr %config, i32 0, i32 4
  store i32 1, ptr %c4
  %c5 = getelementptr %config, ptr %config, i32 0, i32 5
  store i32 1, ptr %c5
  %c6 = getelementptr %config, ptr %config, i32 0, i32 6
  %shared = call i64 @word(ptr %record, i64 $R.shared_bytes$)
  %shared32 = trunc i64 %shared to i32
  store i32 %shared32, ptr %c6
  %c7 = getelementptr %config, ptr %config, i32 0, i32 7
  %stream = call ptr @function(ptr %context, i64 $C.stream$)
  store ptr %stream, ptr %c7
  %kx = call i64 @word(ptr %record, i64 $R.cluster_x$)
  %ky = call i64 @word(ptr %record, i64 $R.cluster_y$)
  %kz = call i64 @word(ptr %record, i64 $R.cluster_z$)
  %c8 = getelementptr %config, ptr %config, i32 0, i32 8
  store ptr %attributes, ptr %c8
  %c9 = getelementptr %config, ptr %config, i32 0, i32 9
  store [2 x %attribute] zeroinitializer, ptr %attributes
  %kxy = mul i64 %kx, %ky
  %kxyz = mul i64 %kxy, %kz
  %clustered = icmp ugt i64 %kxyz, 1
  br i1 %clustered, label %cluster, label %order
cluster:
  store i32 $CLUSTER$, ptr %attributes
  %a2 = getelementptr %attribute, ptr %attributes, i32 0, i32 2
  %kx32 = trunc i64 %kx to i32
  store i32 %kx32, ptr %a2
  %a3 = getelementptr %attribute, ptr %attributes, i32 0, i32 3
  %ky32 = trunc i64 %ky to i32
  store i32 %ky32, ptr %a3
  %a4 = getelementptr %attribute, ptr %attributes, i32 0, i32 4
  %kz32 = trunc i64 %kz to i32
  store i32 %kz32, ptr %a4
  store i32 1, ptr %c9
  br label %order
order:
  %early = lshr i64 %block, 32
  %room = call ptr @function(ptr %context, i64 $C.arena$)
  %graph = call i64 @word(ptr %room, i64 $A.capture$)
  %waits = icmp ne i64 %early, 0
  %outside = icmp eq i64 %graph, 0
  %programmatic = and i1 %waits, %outside
  br i1 %programmatic, label %overlap, label %go
overlap:
  %given = load i32, ptr %c9
  %next = getelementptr %attribute, ptr %attributes, i32 %given
  store i32 $PROGRAMMATIC$, ptr %next
  %allowed = getelementptr %attribute, ptr %next, i32 0, i32 2
  store i32 1, ptr %allowed
  %given1 = add i32 %given, 1
  store i32 %given1, ptr %c9
  br label %go
go:
  %kernel = call ptr @function(ptr %record, i64 $R.function$)
  %launch = call ptr @function(ptr %context, i64 $C.cuLaunchKernelEx$)
  %code = call i32 %launch(ptr %config, ptr %kernel, ptr %parameters, ptr null)
  call void @note(ptr %context, i32 %code, i64 %site)
  ret void
}

; Makes the device's context current for the call, then gives the stream's arena, or null.
define ptr @tw_cuda_alloc(ptr %table, i64 %bytes) nounwind {
entry:
  %current = alloca ptr
  %status = alloca i32
  %capture_id = alloca i64
  %graph_at = alloca i64
  %stream_id = alloca i64
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %wanted = call ptr @function(ptr %context, i64 $C.cuda_context$)
  %get = call ptr @function(ptr %context, i64 $C.cuCtxGetCurrent$)
  %got = call i32 %get(ptr %current)
  call void @note(ptr %context, i32 %got, i64 $ARENA_SITE$)
  call void @set(ptr %context, i64 $C.pushed$, i64 0)
  %unknown = icmp ne i32 %got, 0
  br i1 %unknown, label %nothing, label %compare
compare:
  %is = load ptr, ptr %current
  %same = icmp eq ptr %is, %wanted
  br i1 %same, label %ask, label %switch
switch:
  %push = call ptr @function(ptr %context, i64 $C.cuCtxPushCurrent$)
  %pushed = call i32 %push(ptr %wanted)
  call void @note(ptr %context, i32 %pushed, i64 $ARENA_SITE$)
  %unpushed = icmp ne i32 %pushed, 0
  br i1 %unpushed, label %nothing, label %note_push
note_push:
  call void @set(ptr %context, i64 $C.pushed$, i64 1)
  br label %ask
ask:
  %stream = call ptr @function(ptr %context, i64 $C.stream$)
  store i32 0, ptr %status
  store i64 0, ptr %capture_id
  store i64 0, ptr %graph_at
  store i64 0, ptr %stream_id
  %info = call ptr @function(ptr %context, i64 $C.cuStreamGetCaptureInfo$)
  %told = call i32 %info(ptr %stream, ptr %status, ptr %capture_id, ptr %graph_at, ptr null, ptr null, ptr null)
  call void @note(ptr %context, i32 %told, i64 $ARENA_SITE$)
  %state = load i32, ptr %status
  %active = icmp eq i32 %state, $ACTIVE$
  br i1 %active, label %known, label %identify
identify:
  %identifier = call ptr @function(ptr %context, i64 $C.cuStreamGetId$)
  %identified = call i32 %identifier(ptr %stream, ptr %stream_id)
  call void @note(ptr %context, i32 %identified, i64 $ARENA_SITE$)
  br label %known
known:
  %untold = call i1 @failed(ptr %context)
  br i1 %untold, label %leave, label %decide
decide:
  %id = load i64, ptr %capture_id
  %owner = select i1 %active, i64 %id, i64 0
  %arena = call ptr @function(ptr %context, i64 $C.arena$)
  %have = call i64 @word(ptr %arena, i64 $A.bytes$)
  %of = call i64 @word(ptr %arena, i64 $A.capture$)
  %on = call i64 @word(ptr %arena, i64 $A.stream$)
  %this = load i64, ptr %stream_id
  %enough = icmp ule i64 %bytes, %have
  %ours = icmp eq i64 %of, %owner
  %here = icmp eq i64 %on, %this
  %fits = and i1 %enough, %ours
  %good = and i1 %fits, %here
  br i1 %good, label %found, label %ask_for_more
found:
  %address = call ptr @function(ptr %arena, i64 $A.address$)
  ret ptr %address
ask_for_more:
  call void @set(ptr %context, i64 $C.wanted$, i64 %bytes)
  call void @set(ptr %context, i64 $C.wanted_stream$, i64 %this)
  call void @set(ptr %context, i64 $C.wanted_capture$, i64 %owner)
  %graph = load i64, ptr %graph_at
  call void @set(ptr %context, i64 $C.wanted_graph$, i64 %graph)
  br label %leave
leave:
  call void @tw_cuda_release(ptr %table, ptr null)
  br label %nothing
nothing:
  ret ptr null
}

define void @tw_cuda_release(ptr %table, ptr %arena) nounwind {
entry:
  %popped = alloca ptr
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %pushed = call i64 @word(ptr %context, i64 $C.pushed$)
  %other = icmp ne i64 %pushed, 0
  br i1 %other, label %restore, label %exit
restore:
  call void @set(ptr %context, i64 $C.pushed$, i64 0)
  %pop = call ptr @function(ptr %context, i64 $C.cuCtxPopCurrent$)
  %code = call i32 %pop(ptr %popped)
  %before = call i1 @failed(ptr %context)
  br i1 %before, label %exit, label %keep
keep:
  call void @note(ptr %context, i32 %code, i64 $ARENA_SITE$)
  br label %exit
exit:
  ret void
}

define void @tw_cuda_copy(ptr %table, ptr %target, ptr %source, i64 %bytes) nounwind {
entry:
  %slots = alloca [4 x i64]
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %before = call i1 @failed(ptr %context)
  %none = icmp eq i64 %bytes, 0
  %skip = or i1 %before, %none
  br i1 %skip, label %exit, label %copy
copy:
  %flag = call i64 @word(ptr %context, i64 $C.predicate$)
  %always = call i64 @word(ptr %context, i64 $C.always$)
  %unconditional = icmp eq i64 %flag, %always
  br i1 %unconditional, label %move, label %maybe
move:
  %stream = call ptr @function(ptr %context, i64 $C.stream$)
  %mover = call ptr @function(ptr %context, i64 $C.cuMemcpyDtoDAsync$)
  %code = call i32 %mover(ptr %target, ptr %source, i64 %bytes, ptr %stream)
  call void @note(ptr %context, i32 %code, i64 $COPY_SITE$)
  br label %exit
maybe:
  %record = call ptr @copy_slots(ptr %context, ptr %slots, ptr %target, ptr %source, i64 %bytes)
  %blocks = call i64 @copy_blocks(i64 %bytes)
  call void @launch(ptr %context, ptr %record, i64 %blocks, i64 1, i64 1, ptr %slots, i64 4, i64 $COPY_SITE$)
  br label %exit
exit:
  ret void
}

define void @tw_cuda_returned(ptr %flag) nounwind {
  store atomic i64 1, ptr %flag release, align 8
  ret void
}
"""
