"""The function of a call's code that makes room for a result that becomes a tensor of PyTorch, as LLVM IR."""

from __future__ import annotations

from tilewright.compiler.host.call_words import word
from tilewright.runtime.call.dlpack import CPU, ELEMENT, MANAGED, RANK_AT, SHAPE_AT
from tilewright.runtime.call.torch_blocks import ALIGN, BLOCKS, DELETER, MANAGED_BYTES

# room: for a DLTensor with extents and an element type a DLManagedTensorVersioned with memory: a block of our own, or what
# PyTorch allocates where there is no table, or no memory, which it says. Not 0 where it refuses.
ROOM = f"""
@{BLOCKS} = global [2 x i64] zeroinitializer, align 64
define internal i32 @room(ptr %wish, ptr %managed) nounwind {{
entry:
  %exchange = {word("exchange")}
  %allocate = load ptr, ptr @{BLOCKS}
  %unknown = icmp eq ptr %allocate, null
  br i1 %unknown, label %theirs, label %sized
sized:
  %rank_at = getelementptr i8, ptr %wish, i64 {RANK_AT}
  %rank32 = load i32, ptr %rank_at
  %rank = sext i32 %rank32 to i64
  %shape_at = getelementptr i8, ptr %wish, i64 {SHAPE_AT}
  %shape = load ptr, ptr %shape_at
  %element_at = getelementptr i8, ptr %wish, i64 {ELEMENT}
  %element = load i32, ptr %element_at
  %bits_shifted = lshr i32 %element, 11
  %bytes32 = and i32 %bits_shifted, 31
  %bytes = zext i32 %bytes32 to i64
  %size = call i64 @bytes(ptr %shape, i64 %rank, i64 %bytes)
  %described = mul i64 %rank, 16
  %front = add i64 %described, {MANAGED_BYTES + ALIGN - 1}
  %head = and i64 %front, -{ALIGN}
  %all = add i64 %head, %size
  %up = add i64 %all, {ALIGN - 1}
  %whole = and i64 %up, -{ALIGN}
  %block = call ptr %allocate(i64 {ALIGN}, i64 %whole)
  %none = icmp eq ptr %block, null
  br i1 %none, label %theirs, label %made
made:
  %version = load i64, ptr %exchange
  store i64 %version, ptr %block
  %context_at = getelementptr i8, ptr %block, i64 8
  store ptr null, ptr %context_at
  %free = load ptr, ptr getelementptr (i8, ptr @{BLOCKS}, i64 8)
  %deleter_at = getelementptr i8, ptr %block, i64 {DELETER}
  store ptr %free, ptr %deleter_at
  %flags_at = getelementptr i8, ptr %block, i64 24
  store i64 0, ptr %flags_at
  %tensor = getelementptr i8, ptr %block, i64 {MANAGED}
  %data = getelementptr i8, ptr %block, i64 %head
  store ptr %data, ptr %tensor
  %device_at = getelementptr i8, ptr %tensor, i64 8
  store i64 {CPU}, ptr %device_at
  %own_rank_at = getelementptr i8, ptr %tensor, i64 {RANK_AT}
  store i32 %rank32, ptr %own_rank_at
  %own_element_at = getelementptr i8, ptr %tensor, i64 {ELEMENT}
  store i32 %element, ptr %own_element_at
  %extents = getelementptr i8, ptr %block, i64 {MANAGED_BYTES}
  %own_shape_at = getelementptr i8, ptr %tensor, i64 {SHAPE_AT}
  store ptr %extents, ptr %own_shape_at
  %strides = getelementptr i64, ptr %extents, i64 %rank
  %own_strides_at = getelementptr i8, ptr %tensor, i64 {SHAPE_AT + 8}
  store ptr %strides, ptr %own_strides_at
  %offset_at = getelementptr i8, ptr %tensor, i64 {SHAPE_AT + 16}
  store i64 0, ptr %offset_at
  store ptr %block, ptr %managed
  br label %copy
copy:
  %left = phi i64 [ %rank, %made ], [ %last, %one ]
  %stride = phi i64 [ 1, %made ], [ %longer, %one ]
  %ended = icmp eq i64 %left, 0
  br i1 %ended, label %done, label %one
one:
  %last = sub i64 %left, 1
  %from = getelementptr i64, ptr %shape, i64 %last
  %count = load i64, ptr %from
  %to = getelementptr i64, ptr %extents, i64 %last
  store i64 %count, ptr %to
  %stride_to = getelementptr i64, ptr %strides, i64 %last
  store i64 %stride, ptr %stride_to
  %least = call i64 @llvm.smax.i64(i64 %count, i64 1)
  %longer = mul i64 %stride, %least
  br label %copy
done:
  ret i32 0
theirs:
  %theirs_at = getelementptr i8, ptr %exchange, i64 16
  %their = load ptr, ptr %theirs_at
  %refused = call i32 %their(ptr %wish, ptr %managed, ptr null, ptr @unsaid)
  ret i32 %refused
}}
"""
