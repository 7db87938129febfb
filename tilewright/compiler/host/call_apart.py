"""Do the arrays of `out=` share memory with other arrays of a call? As LLVM IR, for programs with many of them.

Results are sorted by where they begin, so that each input has to be compared with one of them. While a call has its arrays where
the last one had them, the answer is known.
"""

from __future__ import annotations

from collections.abc import Mapping


def apart_ir(inputs: int, outputs: int, donors: Mapping[int, int]) -> str:
    """`apart(ranges)`: does no result share a byte with another one, or with an input, unless it takes over all of its memory?

    Args:
        inputs, outputs: how many arrays; ranges are their addresses, then their bytes, inputs first.
        donors: output -> the input whose memory it may take over.
    """
    own = ", ".join(f"i64 {donors.get(n, -1)}" for n in range(outputs))
    text = f"@donors = internal constant [{outputs} x i64] [{own}]\n{_APART}"
    count = inputs + outputs
    for name, number in (("COUNT", count), ("INPUTS", inputs), ("OUTPUTS", outputs), ("TWICE", 2 * count), ("BYTES", 16 * count)):
        text = text.replace(f"${name}$", str(number))
    return text


# begin, behind: of an array. sift: moves the number at `from` down a heap of so many numbers, the one that begins last on top.
_APART = """
@ranges_before = internal global [$TWICE$ x i64] zeroinitializer, align 64
declare i32 @memcmp(ptr, ptr, i64)

define internal i64 @begin(ptr %ranges, i64 %number) alwaysinline nounwind {
  %at = getelementptr i64, ptr %ranges, i64 %number
  %begin = load i64, ptr %at
  ret i64 %begin
}

define internal i64 @behind(ptr %ranges, i64 %number) alwaysinline nounwind {
  %begin = call i64 @begin(ptr %ranges, i64 %number)
  %length_number = add i64 %number, $COUNT$
  %length = call i64 @begin(ptr %ranges, i64 %length_number)
  %behind = add i64 %begin, %length
  ret i64 %behind
}

define internal void @sift(ptr %ranges, ptr %heap, i64 %from, i64 %count) nounwind {
entry:
  %first = getelementptr i64, ptr %heap, i64 %from
  %moved = load i64, ptr %first
  %own = call i64 @begin(ptr %ranges, i64 %moved)
  br label %next
next:
  %at = phi i64 [ %from, %entry ], [ %larger, %up ]
  %twice = shl i64 %at, 1
  %left = add i64 %twice, 1
  %any = icmp slt i64 %left, %count
  br i1 %any, label %compare, label %done
compare:
  %left_at = getelementptr i64, ptr %heap, i64 %left
  %left_number = load i64, ptr %left_at
  %left_begin = call i64 @begin(ptr %ranges, i64 %left_number)
  %right = add i64 %twice, 2
  %both = icmp slt i64 %right, %count
  %right_or_left = select i1 %both, i64 %right, i64 %left
  %right_at = getelementptr i64, ptr %heap, i64 %right_or_left
  %right_number = load i64, ptr %right_at
  %right_begin = call i64 @begin(ptr %ranges, i64 %right_number)
  %later = icmp ugt i64 %right_begin, %left_begin
  %larger = select i1 %later, i64 %right_or_left, i64 %left
  %larger_number = select i1 %later, i64 %right_number, i64 %left_number
  %larger_begin = select i1 %later, i64 %right_begin, i64 %left_begin
  %ordered = icmp ule i64 %larger_begin, %own
  br i1 %ordered, label %done, label %up
up:
  %place = getelementptr i64, ptr %heap, i64 %at
  store i64 %larger_number, ptr %place
  br label %next
done:
  %end = getelementptr i64, ptr %heap, i64 %at
  store i64 %moved, ptr %end
  ret void
}

define internal i1 @apart(ptr %ranges) nounwind {
entry:
  %heap = alloca [$OUTPUTS$ x i64]
  %differs = call i32 @memcmp(ptr %ranges, ptr @ranges_before, i64 $BYTES$) nobuiltin
  %as_before = icmp eq i32 %differs, 0
  br i1 %as_before, label %good, label %gather
gather:
  %n = phi i64 [ $INPUTS$, %entry ], [ %n1, %gathered ]
  %count = phi i64 [ 0, %entry ], [ %count1, %gathered ]
  %more = icmp slt i64 %n, $COUNT$
  br i1 %more, label %measure, label %build
measure:
  %n_begin = call i64 @begin(ptr %ranges, i64 %n)
  %n_behind = call i64 @behind(ptr %ranges, i64 %n)
  %empty = icmp eq i64 %n_begin, %n_behind
  br i1 %empty, label %gathered, label %add
add:
  %slot = getelementptr i64, ptr %heap, i64 %count
  store i64 %n, ptr %slot
  br label %gathered
gathered:
  %one = zext i1 %empty to i64
  %added = sub i64 1, %one
  %count1 = add i64 %count, %added
  %n1 = add i64 %n, 1
  br label %gather
build:
  %half = lshr i64 %count, 1
  br label %sifting
sifting:
  %s = phi i64 [ %half, %build ], [ %s1, %sifts ]
  %sift = icmp sgt i64 %s, 0
  br i1 %sift, label %sifts, label %sort
sifts:
  %s1 = sub i64 %s, 1
  call void @sift(ptr %ranges, ptr %heap, i64 %s1, i64 %count)
  br label %sifting
sort:
  %unsorted = phi i64 [ %count, %sifting ], [ %last, %swap ]
  %some = icmp sgt i64 %unsorted, 1
  br i1 %some, label %swap, label %pairs
swap:
  %last = sub i64 %unsorted, 1
  %top = load i64, ptr %heap
  %last_at = getelementptr i64, ptr %heap, i64 %last
  %low = load i64, ptr %last_at
  store i64 %top, ptr %last_at
  store i64 %low, ptr %heap
  call void @sift(ptr %ranges, ptr %heap, i64 0, i64 %last)
  br label %sort
pairs:
  %p = phi i64 [ 1, %sort ], [ %p1, %ordered ]
  %further = icmp slt i64 %p, %count
  br i1 %further, label %pair, label %inputs
pair:
  %before_number = sub i64 %p, 1
  %before_at = getelementptr i64, ptr %heap, i64 %before_number
  %before = load i64, ptr %before_at
  %this_at = getelementptr i64, ptr %heap, i64 %p
  %this = load i64, ptr %this_at
  %before_behind = call i64 @behind(ptr %ranges, i64 %before)
  %this_begin = call i64 @begin(ptr %ranges, i64 %this)
  %p1 = add i64 %p, 1
  %clear = icmp ule i64 %before_behind, %this_begin
  br i1 %clear, label %ordered, label %bad
ordered:
  br label %pairs
inputs:
  %i = phi i64 [ 0, %pairs ], [ %i1, %fine ]
  %left = icmp slt i64 %i, $INPUTS$
  br i1 %left, label %input, label %note
input:
  %i_begin = call i64 @begin(ptr %ranges, i64 %i)
  %i_behind = call i64 @behind(ptr %ranges, i64 %i)
  %nothing = icmp eq i64 %i_begin, %i_behind
  br i1 %nothing, label %fine, label %search
search:
  %lo = phi i64 [ 0, %input ], [ %lo1, %halved ]
  %hi = phi i64 [ %count, %input ], [ %hi1, %halved ]
  %open = icmp slt i64 %lo, %hi
  br i1 %open, label %halved, label %found
halved:
  %sum = add i64 %lo, %hi
  %mid = lshr i64 %sum, 1
  %mid_at = getelementptr i64, ptr %heap, i64 %mid
  %mid_number = load i64, ptr %mid_at
  %mid_begin = call i64 @begin(ptr %ranges, i64 %mid_number)
  %is_before = icmp ult i64 %mid_begin, %i_behind
  %mid1 = add i64 %mid, 1
  %lo1 = select i1 %is_before, i64 %mid1, i64 %lo
  %hi1 = select i1 %is_before, i64 %hi, i64 %mid
  br label %search
found:
  %none = icmp eq i64 %lo, 0
  br i1 %none, label %fine, label %touch
touch:
  %o_place = sub i64 %lo, 1
  %o_at = getelementptr i64, ptr %heap, i64 %o_place
  %o = load i64, ptr %o_at
  %o_begin = call i64 @begin(ptr %ranges, i64 %o)
  %o_behind = call i64 @behind(ptr %ranges, i64 %o)
  %over = icmp ule i64 %o_behind, %i_begin
  %o_number = sub i64 %o, $INPUTS$
  %donor_at = getelementptr i64, ptr @donors, i64 %o_number
  %donor = load i64, ptr %donor_at
  %given = icmp eq i64 %donor, %i
  %starts = icmp eq i64 %o_begin, %i_begin
  %own = and i1 %given, %starts
  %allowed = or i1 %over, %own
  br i1 %allowed, label %fine, label %bad
fine:
  %i1 = add i64 %i, 1
  br label %inputs
note:
  call void @llvm.memcpy.p0.p0.i64(ptr @ranges_before, ptr %ranges, i64 $BYTES$, i1 false)
  br label %good
good:
  ret i1 true
bad:
  ret i1 false
}
"""
