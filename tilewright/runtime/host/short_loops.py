"""How long short loops of the thread pool took, in LLVM IR: the caller's part of one, and whether it runs all by itself.

What a kernel took is kept by its address, of all threads together and of the caller alone. Both are the least of what was seen,
and grow by an eighth at a launch, so that one that was disturbed decides nothing.
"""

from __future__ import annotations

# Ticks of a clock that a thread reads in some nanoseconds; without one no loop is taken for short.
_TICKS = {"x86_64": "%now = call i64 @llvm.readcyclecounter()\n  ret i64 %now"}
_NO_TICKS = "ret i64 0"
_SHORT = 16 * 60_000  # sixteenths of ticks of a loop, of all threads together: some 20 microseconds
_LAG = 16 * 300  # sixteenths of ticks until a worker has the word and the caller knows that it is done
_TRIALS, _TURNS = 4, 1 << 14  # so many of so many launches of a short loop are by the way that took longer


def short_loops_ir(arch: str) -> str:
    """Defines @entry_of, @was_short, @alone, @first_of, @remember_alone, @remember and @ticks."""
    ticks, short = _TICKS.get(arch, _NO_TICKS), _SHORT if arch in _TICKS else 0
    given = {"$LAG": _LAG, "$TRIALS": _TRIALS, "$TURNS": _TURNS - 1, "$TICKS": ticks, "$SHORT": short}
    text = _IR
    for name, value in given.items():
        text = text.replace(name, str(value))
    return text


_IR = """
@known = internal global [128 x [4 x i64]] zeroinitializer, align 64
declare i64 @llvm.readcyclecounter()

; Of a kernel, by its address: the address, what a unit took in sixteenths of ticks of all threads together, and of the caller
; alone (0: not tried), and launches since it was short. Only the owner of @busy looks.
define internal ptr @entry_of(ptr %kernel) alwaysinline nounwind {
  %address = ptrtoint ptr %kernel to i64
  %line = lshr i64 %address, 4
  %number = and i64 %line, 127
  %found = getelementptr [128 x [4 x i64]], ptr @known, i64 0, i64 %number
  ret ptr %found
}

; Was the loop of a kernel short, as far as is known?
define internal i1 @was_short(ptr %entry_of, ptr %kernel, i64 %units) alwaysinline nounwind {
  %address = ptrtoint ptr %kernel to i64
  %key = load i64, ptr %entry_of
  %same = icmp eq i64 %key, %address
  %field = getelementptr i64, ptr %entry_of, i64 1
  %each = load i64, ptr %field
  %all = mul i64 %each, %units
  %little = icmp ult i64 %all, $SHORT
  %short = and i1 %same, %little
  ret i1 %short
}

; Is this launch of a loop one for the caller alone?
define internal i1 @alone(ptr %entry_of, ptr %kernel, i64 %units, i64 %threads) alwaysinline nounwind {
entry:
  %short = call i1 @was_short(ptr %entry_of, ptr %kernel, i64 %units)
  %field = getelementptr i64, ptr %entry_of, i64 1
  %each = load i64, ptr %field
  br i1 %short, label %compare, label %together
compare:
  %alone_field = getelementptr i64, ptr %entry_of, i64 2
  %own = load i64, ptr %alone_field
  %turns_field = getelementptr i64, ptr %entry_of, i64 3
  %turns = load i64, ptr %turns_field
  %next = add i64 %turns, 1
  store i64 %next, ptr %turns_field
  %untried = icmp eq i64 %own, 0
  %busy_time = mul i64 %own, %threads
  %less = icmp ult i64 %busy_time, %each
  %tried = xor i1 %untried, true
  %better = and i1 %tried, %less
  %turn = and i64 %turns, $TURNS
  %trial = icmp ult i64 %turn, $TRIALS
  %chosen = xor i1 %better, %trial
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

define internal void @remember_alone(ptr %entry_of, i64 %elapsed, i64 %units) alwaysinline nounwind {
entry:
  %fine = shl i64 %elapsed, 4
  %each = udiv i64 %fine, %units
  %long = icmp uge i64 %fine, $SHORT
  br i1 %long, label %more, label %less
more: ; it is not short any more: the next one is for all threads
  %all_field = getelementptr i64, ptr %entry_of, i64 1
  store i64 %each, ptr %all_field
  ret void
less:
  %some = call i64 @llvm.smax.i64(i64 %each, i64 1)
  %field = getelementptr i64, ptr %entry_of, i64 2
  %before = load i64, ptr %field
  %calm = call i64 @calmed(i64 %before, i64 %some)
  store i64 %calm, ptr %field
  ret void
}

; Units of the caller's part; negative where the loop was not short.
define internal i32 @first_of(ptr %entry_of, ptr %kernel, i64 %units, i64 %threads) alwaysinline nounwind {
  %short = call i1 @was_short(ptr %entry_of, ptr %kernel, i64 %units)
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

define internal void @remember(ptr %entry_of, ptr %kernel, i64 %elapsed, i64 %threads, i64 %units) alwaysinline nounwind {
entry:
  %address = ptrtoint ptr %kernel to i64
  %spent = mul i64 %elapsed, %threads
  %fine = shl i64 %spent, 4
  %each = udiv i64 %fine, %units
  %field = getelementptr i64, ptr %entry_of, i64 1
  %key = load i64, ptr %entry_of
  %same = icmp eq i64 %key, %address
  br i1 %same, label %again, label %first
again:
  %before = load i64, ptr %field
  %calm = call i64 @calmed(i64 %before, i64 %each)
  %long = icmp uge i64 %fine, $SHORT
  %kept = select i1 %long, i64 %each, i64 %calm
  store i64 %kept, ptr %field
  ret void
first:
  store i64 %address, ptr %entry_of
  store i64 %each, ptr %field
  %alone_field = getelementptr i64, ptr %entry_of, i64 2
  store i64 0, ptr %alone_field
  %turns_field = getelementptr i64, ptr %entry_of, i64 3
  store i64 0, ptr %turns_field
  ret void
}

define internal i64 @ticks() alwaysinline nounwind {
  $TICKS
}
"""
