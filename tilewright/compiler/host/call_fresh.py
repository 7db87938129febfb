"""Fresh arrays of results that begin at a line, as LLVM IR: NumPy's own begin 16 bytes into a page where they are large.

Vectors that cross lines take up to a third longer to be stored, where an operator is little more than its stores.
"""

from __future__ import annotations

from tilewright.runtime.call.python_abi import ARRAY_WORDS, DATA, MORE_WORDS, WORDS, WRITEABLE_ARRAY
from tilewright.runtime.call.results import LARGE
from tilewright.runtime.host.native_call import ARRAY_TABLE, MORE_TABLE, TABLE
from tilewright.runtime.limits import LINE


def _word(name: str) -> str:
    if name in ARRAY_WORDS:
        return f"load ptr, ptr getelementptr (i8, ptr @{ARRAY_TABLE}, i64 {8 * ARRAY_WORDS.index(name)})"
    table, words = (MORE_TABLE, MORE_WORDS) if name in MORE_WORDS else (TABLE, WORDS)
    return f"load ptr, ptr getelementptr (i8, ptr @{table}, i64 {8 * words.index(name)})"


# fresh: an array, or null where an exception is set; takes a reference to the dtype over. each: bytes of an element.
FRESH = f"""@{ARRAY_TABLE} = global [{len(ARRAY_WORDS)} x i64] zeroinitializer, align 8

define internal ptr @fresh(i32 %rank, ptr %shape, ptr %dtype, i64 %each) nounwind noinline {{
entry:
  %room_shape = alloca i64
  %wide_rank = zext i32 %rank to i64
  %make = {_word("new_array")}
  %able = icmp ne ptr %make, null
  br label %next
next:
  %axis = phi i64 [ 0, %entry ], [ %axis1, %size ]
  %bytes = phi i64 [ %each, %entry ], [ %product, %size ]
  %some = icmp slt i64 %axis, %wide_rank
  br i1 %some, label %size, label %known
size:
  %size_at = getelementptr i64, ptr %shape, i64 %axis
  %extent = load i64, ptr %size_at
  %product = mul i64 %bytes, %extent
  %axis1 = add i64 %axis, 1
  br label %next
known:
  %empty = {_word("empty")}
  %large = icmp sge i64 %bytes, {LARGE}
  %inside = and i1 %large, %able
  br i1 %inside, label %room, label %plain
plain:
  %array = call ptr %empty(i32 %rank, ptr %shape, ptr %dtype, i32 0)
  ret ptr %array
room:
  %more = add i64 %bytes, {LINE - 1}
  store i64 %more, ptr %room_shape
  %byte = {_word("byte")}
  %incref = {_word("incref")}
  %decref = {_word("decref")}
  call void %incref(ptr %byte)
  %block = call ptr %empty(i32 1, ptr %room_shape, ptr %byte, i32 0)
  %no_room = icmp eq ptr %block, null
  br i1 %no_room, label %again, label %view
again:
  %clear = {_word("clear_error")}
  call void %clear()
  br label %plain
view:
  %begin_at = getelementptr i8, ptr %block, i64 {DATA}
  %begin = load i64, ptr %begin_at
  %beyond = add i64 %begin, {LINE - 1}
  %line = and i64 %beyond, -{LINE}
  %data = inttoptr i64 %line to ptr
  %type = {_word("ndarray")}
  %made = call ptr %make(ptr %type, ptr %dtype, i32 %rank, ptr %shape, ptr null, ptr %data, i32 {WRITEABLE_ARRAY}, ptr null)
  %none_made = icmp eq ptr %made, null
  br i1 %none_made, label %dropped, label %owned
dropped:
  call void %decref(ptr %block)
  ret ptr null
owned:
  %own = {_word("set_base")}
  %refused = call i32 %own(ptr %made, ptr %block)
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %lost, label %done
lost:
  call void %decref(ptr %made)
  ret ptr null
done:
  ret ptr %made
}}
"""
