"""Functions that the code of a call uses, as LLVM IR: the number of threads, the keywords, a look at one tensor."""

from __future__ import annotations

from tilewright.compiler.host.call_words import word, word_at
from tilewright.runtime import knobs
from tilewright.runtime.call.dlpack import BYTE_OFFSET, CPU, ELEMENT, RANK_AT, SHAPE_AT
from tilewright.runtime.call.python_abi import DATA, DTYPE, EXTENTS, FLAGS, LENGTH, MORE_WORDS, RANK, STRIDES, TYPE
from tilewright.runtime.call.torch_layout import LAYOUT, TorchLayout
from tilewright.runtime.host.native_call import COPY, MORE_TABLE, TABLE


def head(count: int) -> str:
    """Tables, declarations and what every binder has. count: words of the first table."""
    name = knobs.THREADS.name
    return f"""@{TABLE} = global [{count} x i64] zeroinitializer, align 64
@{MORE_TABLE} = global [{len(MORE_WORDS)} x i64] zeroinitializer, align 64
@{COPY} = global i64 0, align 8
@knob = private constant [{len(name) + 1} x i8] c"{name}\\00"
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
{_THREADS}{_BYTES}"""


def _field(name: str) -> str:
    """The address of a field of the layout of tensors."""
    return f"getelementptr (i8, ptr @{LAYOUT}, i64 {8 * TorchLayout._fields.index(name)})"


def _answer(name: str, call: str, yes: str, no: str) -> str:
    """The end of a block: what Python answers to a call, a new reference, is True or not; `raised` where it raised."""
    return f"""\
  %{name} = call ptr {call}
  call void %decref(ptr %{name})
  %{name}_failed = icmp eq ptr %{name}, null
  br i1 %{name}_failed, label %raised, label %{name}_known
{name}_known:
  %{name}_true = icmp eq ptr %{name}, %true
  br i1 %{name}_true, label %{yes}, label %{no}
"""


# threads: the least of `most` and a decimal text; 0 for a text that only Python can judge.
_THREADS = """
define internal i64 @threads(ptr %text, i64 %most) nounwind {
entry:
  %unset = icmp eq ptr %text, null
  br i1 %unset, label %free, label %start
start:
  %first = load i8, ptr %text
  %empty = icmp eq i8 %first, 0
  br i1 %empty, label %free, label %next
next:
  %at = phi ptr [ %text, %start ], [ %beyond, %digit ]
  %c = phi i8 [ %first, %start ], [ %following, %digit ]
  %value = phi i64 [ 0, %start ], [ %sum, %digit ]
  %figure = sub i8 %c, 48
  %is_digit = icmp ult i8 %figure, 10
  %small = icmp ult i64 %value, 100000000
  %good = and i1 %is_digit, %small
  br i1 %good, label %digit, label %odd
digit:
  %wide = zext i8 %figure to i64
  %tenfold = mul i64 %value, 10
  %sum = add i64 %tenfold, %wide
  %beyond = getelementptr i8, ptr %at, i64 1
  %following = load i8, ptr %beyond
  %end = icmp eq i8 %following, 0
  br i1 %end, label %given, label %next
given:
  %least = call i64 @llvm.smin.i64(i64 %sum, i64 %most)
  ret i64 %least
free:
  ret i64 %most
odd:
  ret i64 0
}
"""

# bytes: of a dense array. each: of an element.
_BYTES = """
define internal i64 @bytes(ptr %shape, i64 %rank, i64 %each) nounwind {
entry:
  br label %next
next:
  %axis = phi i64 [ 0, %entry ], [ %following, %size ]
  %bytes = phi i64 [ %each, %entry ], [ %product, %size ]
  %some = icmp slt i64 %axis, %rank
  br i1 %some, label %size, label %done
size:
  %extent_at = getelementptr i64, ptr %shape, i64 %axis
  %extent = load i64, ptr %extent_at
  %product = mul i64 %bytes, %extent
  %following = add i64 %axis, 1
  br label %next
done:
  ret i64 %bytes
}
"""

# copied: a C-contiguous copy of an array, noted among the copies of the call; null where Python has to make it.
# drop_copies: releases them.
COPIES = f"""
define internal ptr @copied(ptr %array, ptr %copies, ptr %copied) nounwind noinline {{
entry:
  %function = load ptr, ptr @{COPY}
  %absent = icmp eq ptr %function, null
  br i1 %absent, label %none, label %make
make:
  %made = call ptr %function(ptr %array, i32 0)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %raised, label %note
note:
  %number = load i64, ptr %copied
  %place = getelementptr ptr, ptr %copies, i64 %number
  store ptr %made, ptr %place
  %more = add i64 %number, 1
  store i64 %more, ptr %copied
  ret ptr %made
raised:
  %clear = {word("clear_error")}
  call void %clear()
  br label %none
none:
  ret ptr null
}}

define internal void @drop_copies(ptr %copies, ptr %copied) nounwind {{
entry:
  %count = load i64, ptr %copied
  store i64 0, ptr %copied
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %following, %drop ]
  %end = icmp eq i64 %number, %count
  br i1 %end, label %done, label %drop
drop:
  %place = getelementptr ptr, ptr %copies, i64 %number
  %array = load ptr, ptr %place
  %decref = {word("decref")}
  call void %decref(ptr %array)
  %following = add i64 %number, 1
  br label %next
done:
  ret void
}}
"""

# rows_apart: where an array may be read as it lies, its rows without gaps and all strides above 0: those of all axes but the
# last, in elements, into %words, and how many bytes lie from the first element to the end of the last one; else 0. An axis of
# extent 1 has no stride. The array is not empty: one that is has no gaps.
ROWS_APART = f"""
define internal i64 @rows_apart(ptr %array, i64 %rank, i64 %bytes, ptr %words) nounwind noinline {{
entry:
  %extents_at = getelementptr i8, ptr %array, i64 {EXTENTS}
  %extents = load ptr, ptr %extents_at
  %strides_at = getelementptr i8, ptr %array, i64 {STRIDES}
  %strides = load ptr, ptr %strides_at
  %last = sub i64 %rank, 1
  br label %next
next:
  %axis = phi i64 [ 0, %entry ], [ %following, %kept ]
  %span = phi i64 [ %bytes, %entry ], [ %longer, %kept ]
  %end = icmp eq i64 %axis, %rank
  br i1 %end, label %done, label %look
look:
  %extent_at = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %extent_at
  %stride_at = getelementptr i64, ptr %strides, i64 %axis
  %stride = load i64, ptr %stride_at
  %single = icmp eq i64 %extent, 1
  %used = select i1 %single, i64 0, i64 %stride
  %elements = sdiv i64 %used, %bytes
  %rest = srem i64 %used, %bytes
  %even = icmp eq i64 %rest, 0
  %upwards = icmp sgt i64 %used, 0
  %above = or i1 %single, %upwards
  %good = and i1 %even, %above
  br i1 %good, label %ordered, label %odd
ordered:
  %is_last = icmp eq i64 %axis, %last
  br i1 %is_last, label %inner, label %outer
inner:
  %without_gaps = icmp sle i64 %elements, 1
  br i1 %without_gaps, label %kept, label %odd
outer:
  %place = getelementptr i64, ptr %words, i64 %axis
  store i64 %elements, ptr %place
  br label %kept
kept:
  %steps = sub i64 %extent, 1
  %distance = mul i64 %steps, %used
  %longer = add i64 %span, %distance
  %following = add i64 %axis, 1
  br label %next
done:
  ret i64 %span
odd:
  ret i64 0
}}
"""

# keywords: the value of `out`, or null, into %out; the least of `most` and the value of `threads`; 0 where Python has to look.
KEYWORDS = f"""
define internal i64 @keywords(ptr %values, ptr %names, ptr %out, i64 %most) nounwind {{
entry:
  %overflow = alloca i32
  %length = getelementptr i8, ptr %names, i64 {LENGTH}
  %count = load i64, ptr %length
  %offset = load i64, ptr {word_at("tuple_items")}
  %items = getelementptr i8, ptr %names, i64 %offset
  %name_out = {word("out")}
  %name_threads = {word("threads_keyword")}
  %none = {word("none")}
  store ptr null, ptr %out
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %following, %taken ]
  %limit = phi i64 [ %most, %entry ], [ %least, %taken ]
  %end = icmp eq i64 %i, %count
  br i1 %end, label %done, label %look
look:
  %item = getelementptr ptr, ptr %items, i64 %i
  %name = load ptr, ptr %item
  %place = getelementptr ptr, ptr %values, i64 %i
  %value = load ptr, ptr %place
  %unset = icmp eq ptr %value, %none
  %is_out = icmp eq ptr %name, %name_out
  br i1 %is_out, label %result, label %other
result:
  %kept = select i1 %unset, ptr null, ptr %value
  store ptr %kept, ptr %out
  br label %taken
other:
  %is_threads = icmp eq ptr %name, %name_threads
  br i1 %is_threads, label %counted, label %odd
counted:
  br i1 %unset, label %taken, label %typed
typed:
  %type_at = getelementptr i8, ptr %value, i64 {TYPE}
  %type = load ptr, ptr %type_at
  %int = {word("int")}
  %is_int = icmp eq ptr %type, %int
  br i1 %is_int, label %integer, label %odd
integer:
  %long_value = {word("long_value")}
  %number = call i64 %long_value(ptr %value, ptr %overflow)
  %over = load i32, ptr %overflow
  %fits = icmp eq i32 %over, 0
  %positive = icmp sge i64 %number, 1
  %good = and i1 %fits, %positive
  br i1 %good, label %bounded, label %odd
bounded:
  %fewer = call i64 @llvm.smin.i64(i64 %number, i64 %limit)
  br label %taken
taken:
  %least = phi i64 [ %limit, %result ], [ %limit, %counted ], [ %fewer, %bounded ]
  %following = add i64 %i, 1
  br label %next
done:
  ret i64 %limit
odd:
  ret i64 0
}}
"""

# tensor: fills a DLTensor; 1 for an array of NumPy, 2 for a tensor of PyTorch, 0 for what is not taken: of another type, with
# gaps, not aligned, elsewhere than in the CPU's memory, or one whose gradient is recorded or that is negated when it is read. The
# last two are read out of the tensor, where the runtime knows its layout.
TENSOR = f"""
@{LAYOUT} = global [{len(TorchLayout._fields)} x i64] zeroinitializer, align 64
define internal void @unsaid(ptr %context, ptr %kind, ptr %message) nounwind {{
  ret void
}}

define internal i32 @tensor(ptr %object, ptr %dtype, i32 %element, i32 %flags, ptr %record) nounwind {{
entry:
  %given = alloca ptr
  %type_at = getelementptr i8, ptr %object, i64 {TYPE}
  %type = load ptr, ptr %type_at
  %decref = {word("decref")}
  %true = {word("true")}
  %vectorcall = {word("vectorcall")}
  %shape_at = getelementptr i8, ptr %record, i64 {SHAPE_AT}
  %rank_at = getelementptr i8, ptr %record, i64 {RANK_AT}
  %ndarray = {word("ndarray")}
  %is_array = icmp eq ptr %type, %ndarray
  br i1 %is_array, label %array, label %foreign
array:
  %array_type_at = getelementptr i8, ptr %object, i64 {DTYPE}
  %array_type = load ptr, ptr %array_type_at
  %same_type = icmp eq ptr %array_type, %dtype
  %flags_at = getelementptr i8, ptr %object, i64 {FLAGS}
  %found_flags = load i32, ptr %flags_at
  %these_flags = and i32 %found_flags, %flags
  %same_flags = icmp eq i32 %these_flags, %flags
  %fits = and i1 %same_type, %same_flags
  br i1 %fits, label %copied, label %odd
copied:
  %array_data_at = getelementptr i8, ptr %object, i64 {DATA}
  %array_data = load ptr, ptr %array_data_at
  store ptr %array_data, ptr %record
  %array_extents_at = getelementptr i8, ptr %object, i64 {EXTENTS}
  %array_extents = load ptr, ptr %array_extents_at
  store ptr %array_extents, ptr %shape_at
  %array_rank_at = getelementptr i8, ptr %object, i64 {RANK}
  %array_rank = load i32, ptr %array_rank_at
  store i32 %array_rank, ptr %rank_at
  ret i32 1
foreign:
  %plain = {word("tensor")}
  %parameter = {word("parameter")}
  %is_plain = icmp eq ptr %type, %plain
  %is_parameter = icmp eq ptr %type, %parameter
  %is_tensor = or i1 %is_plain, %is_parameter
  br i1 %is_tensor, label %inside, label %odd
inside:
  %inside_at = load i64, ptr {_field("tensor")}
  %is_known = icmp ne i64 %inside_at, 0
  br i1 %is_known, label %keyed, label %gradient
keyed:
  %impl_at = getelementptr i8, ptr %object, i64 %inside_at
  %impl = load ptr, ptr %impl_at
  %keys_offset = load i64, ptr {_field("keys")}
  %keys_at = getelementptr i8, ptr %impl, i64 %keys_offset
  %keys = load i64, ptr %keys_at
  %negative = load i64, ptr {_field("negative")}
  %bit = and i64 %keys, %negative
  %is_negative = icmp ne i64 %bit, 0
  br i1 %is_negative, label %odd, label %differentiable
differentiable:
  %gradient_offset = load i64, ptr {_field("gradient")}
  %gradient_at = getelementptr i8, ptr %impl, i64 %gradient_offset
  %gradient_word = load i64, ptr %gradient_at
  %is_constant = icmp eq i64 %gradient_word, 0
  br i1 %is_constant, label %described, label %gradient
gradient:
  %get_attribute = {word("get_attribute")}
  %requires_grad = {word("requires_grad")}
{_answer("needs", "%get_attribute(ptr %object, ptr %requires_grad)", "mode", "unrecorded")}\
mode:
  %grad_enabled = {word("grad_enabled")}
{_answer("recording", "%vectorcall(ptr %grad_enabled, ptr null, i64 0, ptr null)", "odd", "unrecorded")}\
unrecorded:
  store ptr %object, ptr %given
  %is_neg = {word("is_neg")}
{_answer("negated", "%vectorcall(ptr %is_neg, ptr %given, i64 1, ptr null)", "odd", "described")}\
described:
  %exchange = {word("exchange")}
  %view_at = getelementptr i8, ptr %exchange, i64 40
  %view = load ptr, ptr %view_at
  %refused = call i32 %view(ptr %object, ptr %record)
  %is_refused = icmp ne i32 %refused, 0
  br i1 %is_refused, label %raised, label %read
read:
  %device_at = getelementptr i8, ptr %record, i64 8
  %device = load i32, ptr %device_at
  %is_here = icmp eq i32 %device, {CPU}
  %element_at = getelementptr i8, ptr %record, i64 {ELEMENT}
  %found_element = load i32, ptr %element_at
  %same_element = icmp eq i32 %found_element, %element
  %readable = and i1 %is_here, %same_element
  br i1 %readable, label %located, label %odd
located:
  %base = load ptr, ptr %record
  %offset_at = getelementptr i8, ptr %record, i64 {BYTE_OFFSET}
  %offset = load i64, ptr %offset_at
  %data = getelementptr i8, ptr %base, i64 %offset
  store ptr %data, ptr %record
  %address = ptrtoint ptr %data to i64
  %bits_shifted = lshr i32 %element, 11
  %bytes32 = and i32 %bits_shifted, 31
  %bytes = zext i32 %bytes32 to i64
  %mask = sub i64 %bytes, 1
  %beyond = and i64 %address, %mask
  %aligned = icmp eq i64 %beyond, 0
  %rank32 = load i32, ptr %rank_at
  %rank = sext i32 %rank32 to i64
  %extents = load ptr, ptr %shape_at
  %strides_at = getelementptr i8, ptr %record, i64 {SHAPE_AT + 8}
  %strides = load ptr, ptr %strides_at
  %dense = icmp eq ptr %strides, null
  br label %walk
walk:
  %axis = phi i64 [ %rank, %located ], [ %before, %step ]
  %elements = phi i64 [ 1, %located ], [ %more, %step ]
  %without_gaps = phi i1 [ true, %located ], [ %still, %step ]
  %end = icmp eq i64 %axis, 0
  br i1 %end, label %walked, label %step
step:
  %before = sub i64 %axis, 1
  %extent_at = getelementptr i64, ptr %extents, i64 %before
  %extent = load i64, ptr %extent_at
  %stride_at = getelementptr i64, ptr %strides, i64 %before
  %stride_or_extent_at = select i1 %dense, ptr %extent_at, ptr %stride_at
  %stride = load i64, ptr %stride_or_extent_at
  %one = icmp eq i64 %extent, 1
  %wanted = icmp eq i64 %stride, %elements
  %any = or i1 %one, %dense
  %right = or i1 %any, %wanted
  %still = and i1 %without_gaps, %right
  %more = mul i64 %elements, %extent
  br label %walk
walked:
  %empty = icmp eq i64 %elements, 0
  %nowhere = icmp eq ptr %base, null
  %somewhere = xor i1 %nowhere, true
  %solid = and i1 %without_gaps, %aligned
  %usable = and i1 %solid, %somewhere
  %taken = or i1 %usable, %empty
  br i1 %taken, label %good, label %odd
good:
  ret i32 2
raised:
  %clear = {word("clear_error")}
  call void %clear()
  br label %odd
odd:
  ret i32 0
}}
"""
