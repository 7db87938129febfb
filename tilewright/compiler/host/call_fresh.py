"""Fresh arrays of results that begin at a line, as LLVM IR: NumPy's own begin 16 bytes into a page where they are large.

Vectors that cross lines take up to a third longer to be stored, where an operator is little more than its stores.
"""

from __future__ import annotations

from tilewright.compiler.host.call_words import word
from tilewright.runtime.call.python_abi import ARRAY_WORDS, DATA, WRITEABLE_ARRAY
from tilewright.runtime.call.results import LARGE
from tilewright.runtime.host.native_call import ARRAY_TABLE
from tilewright.runtime.limits import LINE

# fresh: an array, or null where an exception is set; takes a reference to the dtype over. each: bytes of an element.
FRESH = f"""@{ARRAY_TABLE} = global [{len(ARRAY_WORDS)} x i64] zeroinitializer, align 8

define internal ptr @fresh(i32 %rank, ptr %shape, ptr %dtype, i64 %each) nounwind noinline {{
entry:
  %room_shape = alloca i64
  %wide_rank = zext i32 %rank to i64
  %make = {word("new_array")}
  %able = icmp ne ptr %make, null
  %bytes = call i64 @bytes(ptr %shape, i64 %wide_rank, i64 %each)
  %empty = {word("empty")}
  %large = icmp sge i64 %bytes, {LARGE}
  %inside = and i1 %large, %able
  br i1 %inside, label %room, label %plain
plain:
  %array = call ptr %empty(i32 %rank, ptr %shape, ptr %dtype, i32 0)
  ret ptr %array
room:
  %more = add i64 %bytes, {LINE - 1}
  store i64 %more, ptr %room_shape
  %byte = {word("byte")}
  %incref = {word("incref")}
  %decref = {word("decref")}
  call void %incref(ptr %byte)
  %block = call ptr %empty(i32 1, ptr %room_shape, ptr %byte, i32 0)
  %no_room = icmp eq ptr %block, null
  br i1 %no_room, label %again, label %view
again:
  %clear = {word("clear_error")}
  call void %clear()
  br label %plain
view:
  %begin_at = getelementptr i8, ptr %block, i64 {DATA}
  %begin = load i64, ptr %begin_at
  %beyond = add i64 %begin, {LINE - 1}
  %line = and i64 %beyond, -{LINE}
  %data = inttoptr i64 %line to ptr
  %type = {word("ndarray")}
  %made = call ptr %make(ptr %type, ptr %dtype, i32 %rank, ptr %shape, ptr null, ptr %data, i32 {WRITEABLE_ARRAY}, ptr null)
  %none_made = icmp eq ptr %made, null
  br i1 %none_made, label %dropped, label %owned
dropped:
  call void %decref(ptr %block)
  ret ptr null
owned:
  %own = {word("set_base")}
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
