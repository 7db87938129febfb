"""Functions that walk the tables of a program's arrays, as LLVM IR: they look at arrays, make and release those of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.compiler.host.call_words import word
from tilewright.runtime.call.dlpack import BYTE_OFFSET, DLPACK_TYPES, ELEMENT, MANAGED, RANK_AT, SHAPE_AT, TENSOR_BYTES
from tilewright.runtime.call.python_abi import DATA, WORDS
from tilewright.runtime.host.native_call import TABLE
from tilewright.runtime.tensor import DType

_ROW = 32  # bytes of a row of the table: position, rank, element type and nothing in 4 bytes each; extents; bytes of an element


class Row(NamedTuple):
    """An array: its place among the arguments, or in `out`. An extent below 0 is that of `known` with the number -1 - extent."""

    position: int
    dtype: DType
    extents: tuple[int, ...]


def walks_ir(rows: Sequence[Row], inputs: int, pointers: int) -> str:
    """The tables, and the functions.

    Args:
        rows: of the inputs, then of the results.
        inputs: how many of these there are.
        pointers: in front of the results in `tensors`.
    """
    lines, extents = [], [e for row in rows for e in row.extents]
    start = 0
    for row in rows:
        lines.append(f"{{ i32, i32, i32, i32, ptr, i64 }} {{ i32 {row.position}, i32 {len(row.extents)}, i32 "
                     f"{DLPACK_TYPES[row.dtype]}, i32 0, ptr getelementptr (i64, ptr @extents, i64 {start}), "
                     f"i64 {row.dtype.bytes} }}")
        start += len(row.extents)
    text = _FUNCTIONS
    rank = max(1, *(len(row.extents) for row in rows))
    for name, number in (("COUNT", len(rows)), ("INPUTS", inputs), ("OUTPUTS", len(rows) - inputs), ("POINTERS", pointers),
                         ("RANK", rank)):
        text = text.replace(f"${name}$", str(number))
    return "\n".join([
        f"@extents = internal constant [{max(1, len(extents))} x i64] [{', '.join(f'i64 {e}' for e in extents or [0])}]",
        f"@arrays = internal constant [{len(rows)} x {{ i32, i32, i32, i32, ptr, i64 }}] [", ",\n".join(lines), "]", text])


# look: fills the records of arrays [first, end), whose objects lie in `items` at their positions; the kinds that @tensor tells of
# them, one bit each, or 0 where one is not taken.
# fit: are their extents those of the table? Notes where they lie and their bytes.
# make: fresh results; 0, 1 where Python has to make them, 2 where an exception was set. drop: releases those made so far.
# collected: a tuple of them, or the only one.
_FUNCTIONS = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i32 @look(ptr %items, i64 %first, i64 %end, i32 %flags, ptr %records) nounwind {{
entry:
  br label %next
next:
  %n = phi i64 [ %first, %entry ], [ %n1, %good ]
  %kinds = phi i32 [ 0, %entry ], [ %with, %good ]
  %more = icmp slt i64 %n, %end
  br i1 %more, label %take, label %done
take:
  %row_at = mul i64 %n, {_ROW}
  %row = getelementptr i8, ptr @arrays, i64 %row_at
  %position32 = load i32, ptr %row
  %position = zext i32 %position32 to i64
  %rank_at = getelementptr i8, ptr %row, i64 4
  %rank = load i32, ptr %rank_at
  %element_at = getelementptr i8, ptr %row, i64 8
  %element = load i32, ptr %element_at
  %item = getelementptr ptr, ptr %items, i64 %position
  %object = load ptr, ptr %item
  %words = getelementptr i64, ptr getelementptr (i8, ptr @{TABLE}, i64 {8 * len(WORDS)}), i64 %n
  %dtype = load ptr, ptr %words
  %record_at = mul i64 %n, {TENSOR_BYTES}
  %record = getelementptr i8, ptr %records, i64 %record_at
  %kind = call i32 @tensor(ptr %object, ptr %dtype, i32 %element, i32 %flags, ptr %record)
  %taken = icmp ne i32 %kind, 0
  br i1 %taken, label %ranked, label %odd
ranked:
  %found_at = getelementptr i8, ptr %record, i64 {RANK_AT}
  %found = load i32, ptr %found_at
  %same = icmp eq i32 %found, %rank
  br i1 %same, label %good, label %odd
good:
  %with = or i32 %kinds, %kind
  %n1 = add i64 %n, 1
  br label %next
done:
  ret i32 %kinds
odd:
  ret i32 0
}}

define internal i64 @wanted(ptr %extents, i64 %axis, ptr %known) alwaysinline nounwind {{
  %at = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %at
  %computed = icmp slt i64 %extent, 0
  %number = xor i64 %extent, -1
  %whole = select i1 %computed, i64 %number, i64 0
  %known_at = getelementptr i64, ptr %known, i64 %whole
  %place = select i1 %computed, ptr %known_at, ptr %at
  %wanted = load i64, ptr %place
  ret i64 %wanted
}}

define internal i1 @fit(i64 %first, i64 %end, ptr %records, ptr %known, ptr %ranges, ptr %tensors) nounwind {{
entry:
  br label %next
next:
  %n = phi i64 [ %first, %entry ], [ %n1, %placed ]
  %more = icmp slt i64 %n, %end
  br i1 %more, label %array, label %done
array:
  %row_at = mul i64 %n, {_ROW}
  %row = getelementptr i8, ptr @arrays, i64 %row_at
  %rank_at = getelementptr i8, ptr %row, i64 4
  %rank32 = load i32, ptr %rank_at
  %rank = zext i32 %rank32 to i64
  %extents_at = getelementptr i8, ptr %row, i64 16
  %extents = load ptr, ptr %extents_at
  %each_at = getelementptr i8, ptr %row, i64 24
  %each = load i64, ptr %each_at
  %record_at = mul i64 %n, {TENSOR_BYTES}
  %record = getelementptr i8, ptr %records, i64 %record_at
  %shape_at = getelementptr i8, ptr %record, i64 {SHAPE_AT}
  %shape = load ptr, ptr %shape_at
  br label %axes
axes:
  %axis = phi i64 [ 0, %array ], [ %axis1, %right ]
  %bytes = phi i64 [ %each, %array ], [ %product, %right ]
  %some = icmp slt i64 %axis, %rank
  br i1 %some, label %look, label %placed
look:
  %wanted = call i64 @wanted(ptr %extents, i64 %axis, ptr %known)
  %found_at = getelementptr i64, ptr %shape, i64 %axis
  %found = load i64, ptr %found_at
  %same = icmp eq i64 %wanted, %found
  br i1 %same, label %right, label %odd
right:
  %product = mul i64 %bytes, %wanted
  %axis1 = add i64 %axis, 1
  br label %axes
placed:
  %data = load ptr, ptr %record
  %begin_at = getelementptr i64, ptr %ranges, i64 %n
  store ptr %data, ptr %begin_at
  %length_number = add i64 %n, $COUNT$
  %length_at = getelementptr i64, ptr %ranges, i64 %length_number
  store i64 %bytes, ptr %length_at
  %is_input = icmp slt i64 %n, $INPUTS$
  %behind = add i64 %n, $POINTERS$
  %result_number = sub i64 %behind, $INPUTS$
  %number = select i1 %is_input, i64 %n, i64 %result_number
  %place = getelementptr ptr, ptr %tensors, i64 %number
  store ptr %data, ptr %place
  %n1 = add i64 %n, 1
  br label %next
done:
  ret i1 true
odd:
  ret i1 false
}}

define internal i32 @make(i32 %kinds, ptr %known, ptr %made, ptr %tensors) nounwind {{
entry:
  %shape = alloca [$RANK$ x i64]
  %wish = alloca [{TENSOR_BYTES} x i8], align 8
  %managed = alloca ptr
  %foreign = icmp uge i32 %kinds, 2
  %exchange = {word("exchange")}
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %n1, %kept ]
  %more = icmp slt i64 %n, $OUTPUTS$
  br i1 %more, label %array, label %done
array:
  %number = add i64 %n, $INPUTS$
  %row_at = mul i64 %number, {_ROW}
  %row = getelementptr i8, ptr @arrays, i64 %row_at
  %rank_at = getelementptr i8, ptr %row, i64 4
  %rank32 = load i32, ptr %rank_at
  %rank = zext i32 %rank32 to i64
  %element_at = getelementptr i8, ptr %row, i64 8
  %element = load i32, ptr %element_at
  %extents_at = getelementptr i8, ptr %row, i64 16
  %extents = load ptr, ptr %extents_at
  %object_at = getelementptr ptr, ptr %made, i64 %n
  br label %axes
axes:
  %axis = phi i64 [ 0, %array ], [ %axis1, %size ]
  %some = icmp slt i64 %axis, %rank
  br i1 %some, label %size, label %shaped
size:
  %wanted = call i64 @wanted(ptr %extents, i64 %axis, ptr %known)
  %size_at = getelementptr i64, ptr %shape, i64 %axis
  store i64 %wanted, ptr %size_at
  %axis1 = add i64 %axis, 1
  br label %axes
shaped:
  br i1 %foreign, label %tensor, label %array_of_numpy
array_of_numpy:
  %words = getelementptr i64, ptr getelementptr (i8, ptr @{TABLE}, i64 {8 * len(WORDS)}), i64 %number
  %dtype = load ptr, ptr %words
  %incref = {word("incref")}
  call void %incref(ptr %dtype)
  %each_at = getelementptr i8, ptr %row, i64 24
  %each = load i64, ptr %each_at
  %fresh = call ptr @fresh(i32 %rank32, ptr %shape, ptr %dtype, i64 %each)
  store ptr %fresh, ptr %object_at
  %no_array = icmp eq ptr %fresh, null
  br i1 %no_array, label %failed, label %filled
filled:
  %fresh_data_at = getelementptr i8, ptr %fresh, i64 {DATA}
  %fresh_data = load ptr, ptr %fresh_data_at
  br label %kept
tensor:
  store ptr null, ptr %wish
  %wish_device = getelementptr i8, ptr %wish, i64 8
  store i64 1, ptr %wish_device
  %wish_rank = getelementptr i8, ptr %wish, i64 {RANK_AT}
  store i32 %rank32, ptr %wish_rank
  %wish_element = getelementptr i8, ptr %wish, i64 {ELEMENT}
  store i32 %element, ptr %wish_element
  %wish_shape = getelementptr i8, ptr %wish, i64 {SHAPE_AT}
  store ptr %shape, ptr %wish_shape
  %wish_strides = getelementptr i8, ptr %wish, i64 {SHAPE_AT + 8}
  store ptr null, ptr %wish_strides
  %wish_offset = getelementptr i8, ptr %wish, i64 {BYTE_OFFSET}
  store i64 0, ptr %wish_offset
  %refused = call i32 @room(ptr %wish, ptr %managed)
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %python, label %allocated
allocated:
  %held = load ptr, ptr %managed
  %base_at = getelementptr i8, ptr %held, i64 {MANAGED}
  %base = load ptr, ptr %base_at
  %offset_at = getelementptr i8, ptr %held, i64 {MANAGED + BYTE_OFFSET}
  %offset = load i64, ptr %offset_at
  %tensor_data = getelementptr i8, ptr %base, i64 %offset
  %wrap_at = getelementptr i8, ptr %exchange, i64 32
  %wrap = load ptr, ptr %wrap_at
  %unwrapped = call i32 %wrap(ptr %held, ptr %object_at)
  %is_unwrapped = icmp ne i32 %unwrapped, 0
  br i1 %is_unwrapped, label %failed, label %kept
kept:
  %data = phi ptr [ %fresh_data, %filled ], [ %tensor_data, %allocated ]
  %place_number = add i64 %n, $POINTERS$
  %place = getelementptr ptr, ptr %tensors, i64 %place_number
  store ptr %data, ptr %place
  %n1 = add i64 %n, 1
  br label %next
done:
  ret i32 0
python:
  ret i32 1
failed:
  ret i32 2
}}

define internal void @drop(ptr %made) nounwind {{
entry:
  %decref = {word("decref")}
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %n1, %one ]
  %more = icmp slt i64 %n, $OUTPUTS$
  br i1 %more, label %one, label %done
one:
  %at = getelementptr ptr, ptr %made, i64 %n
  %object = load ptr, ptr %at
  call void %decref(ptr %object)
  %n1 = add i64 %n, 1
  br label %next
done:
  ret void
}}

define internal ptr @collected(ptr %made) nounwind {{
entry:
  %single = icmp eq i64 $OUTPUTS$, 1
  br i1 %single, label %only, label %several
only:
  %object = load ptr, ptr %made
  ret ptr %object
several:
  %tuple_new = {word("tuple_new")}
  %set_item = {word("tuple_set_item")}
  %results = call ptr %tuple_new(i64 $OUTPUTS$)
  %none = icmp eq ptr %results, null
  br i1 %none, label %done, label %next
next:
  %n = phi i64 [ 0, %several ], [ %n1, %one ]
  %more = icmp slt i64 %n, $OUTPUTS$
  br i1 %more, label %one, label %done
one:
  %at = getelementptr ptr, ptr %made, i64 %n
  %item = load ptr, ptr %at
  %status = call i32 %set_item(ptr %results, i64 %n, ptr %item)
  %n1 = add i64 %n, 1
  br label %next
done:
  ret ptr %results
}}
"""
