"""The function of the device table that makes tensor maps, in LLVM IR; cuda_table.py names the words of `context`."""

from __future__ import annotations

TENSOR_MAP_IR = """
; Words: address, number of the element type, axes, swizzle; then size, stride in elements and box of each axis. A map is a
; function of them, unless an axis is empty, so it is kept at the place that they hash to and found there again.
define void @tw_cuda_tensor_map(ptr %table, ptr %target, ptr %words) nounwind {
entry:
  %sizes = alloca [$AXES$ x i64]
  %strides = alloca [$AXES$ x i64]
  %box = alloca [$AXES$ x i32]
  %steps = alloca [$AXES$ x i32]
  %context = call ptr @function(ptr %table, i64 $CONTEXT$)
  %before = call i1 @failed(ptr %context)
  br i1 %before, label %exit, label %read
read:
  %address = call i64 @word(ptr %words, i64 0)
  %kind = call i64 @word(ptr %words, i64 1)
  %rank = call i64 @word(ptr %words, i64 2)
  %swizzle = call i64 @word(ptr %words, i64 3)
  %type_at = getelementptr i32, ptr @types, i64 %kind
  %type = load i32, ptr %type_at
  %bytes = call i64 @word(ptr @sizes, i64 %kind)
  br label %look
look:
  %i = phi i64 [ 0, %read ], [ %i1, %looked ]
  %empty = phi i1 [ false, %read ], [ %empty1, %looked ]
  %hash = phi i64 [ %address, %read ], [ %hash2, %looked ]
  %more = icmp ult i64 %i, %rank
  br i1 %more, label %looked, label %place
looked:
  %at = mul i64 %i, 3
  %field = add i64 %at, 4
  %extent = call i64 @word(ptr %words, i64 %field)
  %nothing = icmp eq i64 %extent, 0
  %empty1 = or i1 %empty, %nothing
  %hash1 = mul i64 %hash, -7046029254386353131
  %hash2 = xor i64 %hash1, %extent
  %i1 = add i64 %i, 1
  br label %look
place:
  %kept = call ptr @function(ptr %context, i64 $C.maps$)
  %nowhere = icmp eq ptr %kept, null
  %unkept = or i1 %empty, %nowhere
  %mixed = mul i64 %hash, -7046029254386353131
  %slot = lshr i64 %mixed, $KEPT_SHIFT$
  %skip = mul i64 %slot, $KEPT_WORDS$
  %entry_at = getelementptr i64, ptr %kept, i64 %skip
  %map_at = getelementptr i64, ptr %entry_at, i64 $KEY_WORDS$
  %for_axes = mul i64 %rank, 3
  %key = add i64 %for_axes, $HEAD$
  %key_bytes = shl i64 %key, 3
  br i1 %unkept, label %axes, label %compare
compare:
  %k = phi i64 [ 0, %place ], [ %k1, %alike ]
  %more_words = icmp ult i64 %k, %key
  br i1 %more_words, label %alike, label %hit
alike:
  %wanted = call i64 @word(ptr %words, i64 %k)
  %held = call i64 @word(ptr %entry_at, i64 %k)
  %same = icmp eq i64 %wanted, %held
  %k1 = add i64 %k, 1
  br i1 %same, label %compare, label %axes
hit:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %map_at, i64 $MAP_BYTES$, i1 false)
  br label %exit
axes:
  %j = phi i64 [ 0, %place ], [ 0, %alike ], [ %j1, %stored ]
  %another = icmp ult i64 %j, %rank
  br i1 %another, label %axis, label %describe
axis:
  %from = mul i64 %j, 3
  %size_field = add i64 %from, 4
  %stride_field = add i64 %from, 5
  %box_field = add i64 %from, 6
  %given = call i64 @word(ptr %words, i64 %size_field)
  %size = call i64 @llvm.umax.i64(i64 %given, i64 1)
  %size_at = getelementptr i64, ptr %sizes, i64 %j
  store i64 %size, ptr %size_at
  %tile = call i64 @word(ptr %words, i64 %box_field)
  %tile32 = trunc i64 %tile to i32
  %box_at = getelementptr i32, ptr %box, i64 %j
  store i32 %tile32, ptr %box_at
  %step_at = getelementptr i32, ptr %steps, i64 %j
  store i32 1, ptr %step_at
  %innermost = icmp eq i64 %j, 0
  br i1 %innermost, label %stored, label %outer
outer:
  %elements = call i64 @word(ptr %words, i64 %stride_field)
  %pitch = mul i64 %elements, %bytes
  %single = icmp eq i64 %given, 1
  %any = or i1 %single, %empty
  %stride = select i1 %any, i64 $ALIGNMENT$, i64 %pitch
  %before_j = sub i64 %j, 1
  %stride_at = getelementptr i64, ptr %strides, i64 %before_j
  store i64 %stride, ptr %stride_at
  br label %stored
stored:
  %j1 = add i64 %j, 1
  br label %axes
describe:
  %arena = call ptr @function(ptr %context, i64 $C.arena$)
  %anywhere = call i64 @word(ptr %arena, i64 $A.address$)
  %base = select i1 %empty, i64 %anywhere, i64 %address
  %pointer = inttoptr i64 %base to ptr
  %rank32 = trunc i64 %rank to i32
  %plain = icmp eq i64 %swizzle, 0
  %log = call i64 @llvm.cttz.i64(i64 %swizzle, i1 false)
  %mode = sub i64 %log, 4
  %swizzled = select i1 %plain, i64 0, i64 %mode
  %swizzle32 = trunc i64 %swizzled to i32
  %encode = call ptr @function(ptr %context, i64 $C.cuTensorMapEncodeTiled$)
  %code = call i32 %encode(ptr %target, i32 %type, i32 %rank32, ptr %pointer, ptr %sizes, ptr %strides, ptr %box, ptr %steps,
                           i32 0, i32 %swizzle32, i32 $PROMOTION$, i32 0)
  call void @note(ptr %context, i32 %code, i64 $MAP_SITE$)
  %bad = icmp ne i32 %code, 0
  %lost = or i1 %bad, %unkept
  br i1 %lost, label %exit, label %keep
keep:
  call void @llvm.memcpy.p0.p0.i64(ptr %entry_at, ptr %words, i64 %key_bytes, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %map_at, ptr %target, i64 $MAP_BYTES$, i1 false)
  br label %exit
exit:
  ret void
}
"""
