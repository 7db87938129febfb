"""How long short loops of the thread pool took, in LLVM IR: the caller's part of one, and whether it runs all by itself.

What a kernel took is kept by its address and the bits that the number of its units has: what several threads gain grows with the
units. Whether a loop is short goes by the least of what was seen, which grows by an eighth at a launch, so that one that was
disturbed decides nothing. Of a short loop both ways are tried: all threads, often enough that those that slept have been woken,
then the caller alone. The one with the lesser median is taken until the next trials, which come after four times as many launches
each time, up to a limit: one that was disturbed is soon made good for. Medians are followed by steps of a 32nd, from the least of
the first half of the trials on. To wake a thread takes longer than many a loop, so launches to which none came are no trials, and
decide only where that goes on.
"""

from __future__ import annotations

# Ticks of a clock that a thread reads in some nanoseconds; without one no loop is taken for short.
_TICKS = {"x86_64": "%now = call i64 @llvm.readcyclecounter()\n  ret i64 %now"}
_NO_TICKS = "ret i64 0"
_SHORT = 60_000 << 10  # 1024ths of ticks of a loop, of all threads together: some 20 microseconds
_LAG = 300 << 10  # 1024ths of ticks until a worker has the word and the caller knows that it is done
_TOGETHER, _ALONE = 64, 16  # launches of a short loop that are trials
_SOON, _SELDOM = 256, 1 << 14  # launches from the first trials to the next, and between later ones at most
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio: Knuth, The Art of Computer Programming, 6.4
_ABSENT = 512  # launches to which no other thread came that trials put up with


def short_loops_ir(arch: str) -> str:
    """Defines @key_of, @entry_of, @was_short, @alone, @first_of, @remember_alone, @remember and @ticks."""
    ticks, short = _TICKS.get(arch, _NO_TICKS), _SHORT if arch in _TICKS else 0
    given = {"$LAG": _LAG, "$TOGETHER": _TOGETHER, "$TRIALS": _TOGETHER + _ALONE, "$SOON": _SOON, "$SELDOM": _SELDOM,
             "$TICKS": ticks, "$SHORT": short, "$ABSENT": _ABSENT, "$GOLDEN": _GOLDEN, "$CREW_SETTLED": _TOGETHER // 2,
             "$OWN_SETTLED": _TOGETHER + _ALONE // 2}
    text = _IR
    for name, value in given.items():
        text = text.replace(name, str(value))
    return text


_IR = """
@known = internal global [1024 x [8 x i64]] zeroinitializer, align 64
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.ctlz.i64(i64, i1)

; A kernel's address, and above it how many bits the number of its units has not.
define internal i64 @key_of(ptr %kernel, i64 %units) alwaysinline nounwind {
  %address = ptrtoint ptr %kernel to i64
  %clear = call i64 @llvm.ctlz.i64(i64 %units, i1 true)
  %high = shl i64 %clear, 58
  %key = xor i64 %address, %high
  ret i64 %key
}

; Of a key: the key, what a unit took in 1024ths of ticks of all threads together, its medians in the last trials of the caller
; alone and of all threads, launches since these began, whether it is the caller's, how often nobody helped in the trials, and how
; many launches come after them. Only the owner of @busy looks. Kernels begin at a few places within a page, so all bits of an
; address say where its entry is.
define internal ptr @entry_of(i64 %key) alwaysinline nounwind {
  %mixed = mul i64 %key, $GOLDEN
  %number = lshr i64 %mixed, 54
  %found = getelementptr [1024 x [8 x i64]], ptr @known, i64 0, i64 %number
  ret ptr %found
}

; Was the loop of a kernel short, as far as is known?
define internal i1 @was_short(ptr %entry_of, i64 %key, i64 %units) alwaysinline nounwind {
  %kept = load i64, ptr %entry_of
  %same = icmp eq i64 %kept, %key
  %field = getelementptr i64, ptr %entry_of, i64 1
  %each = load i64, ptr %field
  %all = mul i64 %each, %units
  %little = icmp ult i64 %all, $SHORT
  %short = and i1 %same, %little
  ret i1 %short
}

; Is this launch of a loop one for the caller alone?
define internal i1 @alone(ptr %entry_of, i64 %key, i64 %units, i64 %threads) alwaysinline nounwind {
entry:
  %short = call i1 @was_short(ptr %entry_of, i64 %key, i64 %units)
  br i1 %short, label %look, label %together
look:
  %own_field = getelementptr i64, ptr %entry_of, i64 2
  %crew_field = getelementptr i64, ptr %entry_of, i64 3
  %turns_field = getelementptr i64, ptr %entry_of, i64 4
  %chosen_field = getelementptr i64, ptr %entry_of, i64 5
  %rest_field = getelementptr i64, ptr %entry_of, i64 7
  %turns = load i64, ptr %turns_field
  %rest = load i64, ptr %rest_field
  %last = add i64 %rest, $TRIALS
  %over = icmp ugt i64 %turns, %last
  %turn = select i1 %over, i64 0, i64 %turns
  %next = add i64 %turn, 1
  store i64 %next, ptr %turns_field
  %trial = icmp ult i64 %turn, $TRIALS
  br i1 %trial, label %try, label %settled
try:
  %first = icmp eq i64 %turn, 0
  br i1 %first, label %forget, label %turn_of
forget:
  store i64 0, ptr %own_field
  store i64 0, ptr %crew_field
  br label %turn_of
turn_of:
  %late = icmp uge i64 %turn, $TOGETHER
  ret i1 %late
settled:
  %ended = icmp eq i64 %turn, $TRIALS
  br i1 %ended, label %decide, label %decided
decide:
  %own = load i64, ptr %own_field
  %crew = load i64, ptr %crew_field
  %own_time = mul i64 %own, %threads
  %known = sub i64 %own_time, 1 ; the most where it is not known
  %rival = sub i64 %crew, 1
  %less = icmp ult i64 %known, %rival
  %absent_field = getelementptr i64, ptr %entry_of, i64 6
  store i64 0, ptr %absent_field
  %longer = shl i64 %rest, 2
  %most = call i64 @llvm.smin.i64(i64 %longer, i64 $SELDOM)
  %pause = call i64 @llvm.smax.i64(i64 %most, i64 $SOON)
  store i64 %pause, ptr %rest_field
  %flag = zext i1 %less to i64
  store i64 %flag, ptr %chosen_field
  ret i1 %less
decided:
  %kept = load i64, ptr %chosen_field
  %chosen = trunc i64 %kept to i1
  ret i1 %chosen
together:
  ret i1 false
}

; What a unit took as it is remembered: less at once, more by and by.
define internal i64 @calmed(i64 %before, i64 %now) alwaysinline nounwind {
  %part = lshr i64 %before, 3
  %grown = add i64 %before, %part
  %most = add i64 %grown, 1
  %least = call i64 @llvm.smin.i64(i64 %now, i64 %most)
  %new = icmp eq i64 %before, 0
  %found = select i1 %new, i64 %now, i64 %least
  ret i64 %found
}

; A median as it is followed; the least, in the first half of the trials of its way.
define internal void @follow(ptr %entry_of, i64 %number, i64 %now, i64 %settled) alwaysinline nounwind {
  %field = getelementptr i64, ptr %entry_of, i64 %number
  %turns_field = getelementptr i64, ptr %entry_of, i64 4
  %turns = load i64, ptr %turns_field
  %early = icmp ule i64 %turns, %settled
  %before = load i64, ptr %field
  %part = lshr i64 %before, 5
  %more = add i64 %before, %part
  %less = sub i64 %before, %part
  %longer = icmp ugt i64 %now, %before
  %step = select i1 %longer, i64 %more, i64 %less
  %least = call i64 @llvm.smin.i64(i64 %before, i64 %now)
  %moved = select i1 %early, i64 %least, i64 %step
  %new = icmp eq i64 %before, 0
  %found = select i1 %new, i64 %now, i64 %moved
  store i64 %found, ptr %field
  ret void
}

define internal void @remember_alone(ptr %entry_of, i64 %elapsed, i64 %units) alwaysinline nounwind {
entry:
  %fine = shl i64 %elapsed, 10
  %each = udiv i64 %fine, %units
  %long = icmp uge i64 %fine, $SHORT
  br i1 %long, label %more, label %less
more: ; it is not short any more: the next one is for all threads
  %all_field = getelementptr i64, ptr %entry_of, i64 1
  store i64 %each, ptr %all_field
  ret void
less:
  call void @follow(ptr %entry_of, i64 2, i64 %each, i64 $OWN_SETTLED)
  ret void
}

; Units of the caller's part; negative where the loop was not short.
define internal i32 @first_of(ptr %entry_of, i64 %key, i64 %units, i64 %threads) alwaysinline nounwind {
  %short = call i1 @was_short(ptr %entry_of, i64 %key, i64 %units)
  %field = getelementptr i64, ptr %entry_of, i64 1
  %each = load i64, ptr %field
  %all = mul i64 %each, %units
  %unit = call i64 @llvm.smax.i64(i64 %each, i64 1)
  %share = mul i64 %unit, %threads
  %half = lshr i64 %share, 1
  %late = add i64 %all, $LAG
  %rounded = add i64 %late, %half
  %wish = udiv i64 %rounded, %share
  %others = sub i64 %units, %threads
  %most = add i64 %others, 1
  %some = call i64 @llvm.smin.i64(i64 %wish, i64 %most)
  %least = call i64 @llvm.smax.i64(i64 %some, i64 1)
  %first = trunc i64 %least to i32
  %found = select i1 %short, i32 %first, i32 -1
  ret i32 %found
}

define internal void @remember(ptr %entry_of, i64 %key, i64 %elapsed, i64 %threads, i64 %units,
                                i64 %theirs) alwaysinline nounwind {
entry:
  %turns_field = getelementptr i64, ptr %entry_of, i64 4
  %absent_field = getelementptr i64, ptr %entry_of, i64 6
  %spent = mul i64 %elapsed, %threads
  %fine = shl i64 %spent, 10
  %each = udiv i64 %fine, %units
  %field = getelementptr i64, ptr %entry_of, i64 1
  %known = load i64, ptr %entry_of
  %same = icmp eq i64 %known, %key
  br i1 %same, label %again, label %first
again:
  %before = load i64, ptr %field
  %calm = call i64 @calmed(i64 %before, i64 %each)
  %long = icmp uge i64 %fine, $SHORT
  %kept = select i1 %long, i64 %each, i64 %calm
  store i64 %kept, ptr %field
  %shared = icmp ne i64 %theirs, 0
  br i1 %shared, label %crew, label %absent
absent: ; nobody came: it says nothing of all threads, and does not count as a trial unless that goes on
  %missed = load i64, ptr %absent_field
  %turns = load i64, ptr %turns_field
  %begun = sub i64 %turns, 2
  %trial = icmp ult i64 %begun, $TOGETHER
  %some = icmp ult i64 %missed, $ABSENT
  %waits = and i1 %trial, %some
  %back = zext i1 %waits to i64
  %turned = sub i64 %turns, %back
  store i64 %turned, ptr %turns_field
  %more = add i64 %missed, %back
  store i64 %more, ptr %absent_field
  ret void
crew:
  call void @follow(ptr %entry_of, i64 3, i64 %each, i64 $CREW_SETTLED)
  ret void
first:
  store i64 %key, ptr %entry_of
  store i64 %each, ptr %field
  %rest_field = getelementptr i64, ptr %entry_of, i64 7
  store i64 0, ptr %turns_field
  store i64 0, ptr %absent_field
  store i64 0, ptr %rest_field
  ret void
}

define internal i64 @ticks() alwaysinline nounwind {
  $TICKS
}
"""
