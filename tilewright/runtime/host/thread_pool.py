"""launch and parallel_for of the device table: a thread pool in LLVM IR over pthreads, kept in every artifact.

A loop of `units` is cut into parts that the caller and the workers claim by compare-and-swap on one 64-bit word
    generation << 32 | threads << 22 | next part << 11 | end of the parts
so that a late worker cannot touch a loop that is over, and the caller does the parts of workers that do not run. The word lies in
one cache line with all that a worker needs to know of the loop, and parts done are counted on from loop to loop, since lines
that change cores take most of the time of a short loop. The caller takes parts from the front and the first worker from the
back, so that what one loop leaves in a core's cache is there for the next. Parts become smaller towards the middle, where they
meet, and there are six a thread, so that cores of unequal speed end together. A loop that was short when its kernel last ran has
one for each thread, since every claim moves the line, and the caller's is larger by what the others wait for the word. At times
it is tried by its caller alone too, which then runs it while that takes less time: how long two cores need to hear of each other
is not known before. Now and then both ways are tried again. Who runs a part has no influence on its result.
A worker spins while others finish the loop that it had a part in and some microseconds more for the next one, then sleeps on a
condition variable. To wake it takes longer than many a loop: one that was woken within a millisecond looks for the next loop so
long before it sleeps again, and offers the core to others meanwhile, so that what callers do between calls does not lengthen
these. Where another process takes the core for a slice, one that slept would have had it back at once, as the system prefers
who used less: so it waits no longer than others for some sleeps, for twice as many each time, for half as many after waits that
nobody disturbed. One that finds itself on the caller's core hands over to a new thread (thread_places.py). A nested loop, or
one that starts while another is running, is run by its caller alone.

Worker t uses workspace t; the caller uses workspace 0. A worker begins with the mode of floating point of whoever made it, so it
enters that of all calls (float_environment.py) first. Workers are detached and there are some as long as the process is, so the
code must never be unmapped. `tw_forked`, registered as the child handler of fork, forgets the workers, which are
created again on need.
"""

from __future__ import annotations

from tilewright.runtime.float_environment import enter_ir
from tilewright.runtime.host.arena_pool import arena_pool_ir
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.interrupts import interrupts_ir
from tilewright.runtime.host.short_loops import short_loops_ir
from tilewright.runtime.host.thread_places import places_ir

SYMBOLS = ("tw_launch", "tw_parallel_for", "tw_alloc", "tw_release", "tw_forked")
PATIENCE = "tw_patience"  # a word: looks for the next loop that a worker takes at least before it sleeps
MOST_THREADS = 1023

_PAUSE = {"x86_64": "llvm.x86.sse2.pause()", "aarch64": "llvm.aarch64.isb(i32 15)"}
_SPINS = {"x86_64": 1000, "aarch64": 1500}  # some 30 microseconds
_OFFERS = 2500  # looks after which others may have the core, some millisecond
_SOON = 3 << 20  # ticks of a sleep that was not worth it, some millisecond
_TAKEN = 3 << 18  # ticks of an offer that another process took
_WARY, _WARIEST = 64, 4096  # sleeps after which a worker is patient again that lost its core so, at first and at most


def runtime_object_ir(arch: str | None = None) -> str:
    """The native parts of the host device for an architecture in LLVM's words (default this one's); defines SYMBOLS."""
    arch = arch or machine()
    spins = _SPINS.get(arch, 1000)
    pause = f"call void @{_PAUSE[arch]}" if arch in _PAUSE else ""
    pool = _POOL.replace("$PAUSE", pause)
    for name, value in {"$SPINS": spins, "$PATIENT": spins + _OFFERS, "$SOON": _SOON, "$TAKEN": _TAKEN, "$WARIEST": _WARIEST,
                        "$WARY": _WARY}.items():
        pool = pool.replace(name, str(value))
    return pool + short_loops_ir(arch) + enter_ir(arch) + places_ir() + arena_pool_ir() + interrupts_ir()


_POOL = """
@loop = internal global [8 x i64] zeroinitializer, align 64
@word = internal alias i64, ptr @loop
@kernel = internal alias ptr, getelementptr (i64, ptr @loop, i64 1)
@slots = internal alias ptr, getelementptr (i64, ptr @loop, i64 2)
@units = internal alias i64, getelementptr (i64, ptr @loop, i64 3)
@workspace = internal alias ptr, getelementptr (i64, ptr @loop, i64 4)
@stride = internal alias i64, getelementptr (i64, ptr @loop, i64 5)
@parts = internal alias i64, getelementptr (i64, ptr @loop, i64 6)
@core = internal alias i32, getelementptr (i64, ptr @loop, i64 7)
@first = internal alias i32, getelementptr (i32, ptr @loop, i64 15)
@done = internal global i64 0, align 64
@owner = internal global [2 x i64] zeroinitializer, align 64
@busy = internal alias i64, ptr @owner
@total = internal alias i64, getelementptr (i64, ptr @owner, i64 1)
@sleepers = internal global i64 0, align 64
@tw_patience = global i64 $SPINS, align 64
@workers = internal global i64 0, align 64
@mutex = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

; First unit of a part. Even parts after the first one, which has so many units; or, those being negative,
; units * (h^3 - (h - part)^3) / (2 h^3) up to the middle part h = parts / 2, and its mirror image from there on: parts are of
; even number then, or one a unit. Units below 2^33.
define internal i64 @bound(i64 %units, i64 %part, i64 %parts, i32 %first) nounwind {
entry:
  %even = icmp sge i32 %first, 0
  br i1 %even, label %line, label %curve
line:
  %begin = icmp eq i64 %part, 0
  br i1 %begin, label %start, label %after
start:
  ret i64 0
after:
  %own = zext i32 %first to i64
  %others = sub i64 %units, %own
  %before = sub i64 %part, 1
  %workers = sub i64 %parts, 1
  %product = mul i64 %others, %before
  %mean = udiv i64 %product, %workers
  %place = add i64 %own, %mean
  ret i64 %place
curve:
  %half = lshr i64 %parts, 1
  %left = icmp ule i64 %part, %half
  %rest = sub i64 %parts, %part
  %near = select i1 %left, i64 %part, i64 %rest
  %far = sub i64 %half, %near
  %half2 = mul i64 %half, %half
  %half3 = mul i64 %half2, %half
  %far2 = mul i64 %far, %far
  %far3 = mul i64 %far2, %far
  %share = sub i64 %half3, %far3
  %high = mul i64 %units, %share
  %whole = shl i64 %half3, 1
  %ahead = udiv i64 %high, %whole
  %mirrored = sub i64 %units, %ahead
  %curved = select i1 %left, i64 %ahead, i64 %mirrored
  %single = icmp eq i64 %units, %parts
  %chosen = select i1 %single, i64 %part, i64 %curved
  ret i64 %chosen
}

; Claims and runs parts of one generation until none is left, and returns how many; a worker tells them once, as the caller waits
; for all that it did not run itself. Part 0 is thread 0's without a claim. Threads of even number claim from the front, the
; others from the back.
define internal i64 @help(i64 %generation, i64 %thread) nounwind {
entry:
  %odd = and i64 %thread, 1
  %back = icmp ne i64 %odd, 0
  %caller = icmp eq i64 %thread, 0
  br i1 %caller, label %run, label %look
look:
  %count = phi i64 [ 0, %entry ], [ %count, %claim ], [ %more, %run ]
  %now = load atomic i64, ptr @word acquire, align 8
  %g = lshr i64 %now, 32
  %same = icmp eq i64 %g, %generation
  %shifted = lshr i64 %now, 11
  %front = and i64 %shifted, 2047
  %end = and i64 %now, 2047
  %left = icmp ult i64 %front, %end
  %go = and i1 %same, %left
  br i1 %go, label %claim, label %tell
claim:
  %step = select i1 %back, i64 -1, i64 2048
  %next = add i64 %now, %step
  %last = sub i64 %end, 1
  %part = select i1 %back, i64 %last, i64 %front
  %swap = cmpxchg ptr @word, i64 %now, i64 %next acq_rel monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %run, label %look
run:
  %taken = phi i64 [ 0, %entry ], [ %part, %claim ]
  %before = phi i64 [ 0, %entry ], [ %count, %claim ]
  %kernel = load ptr, ptr @kernel
  %slots = load ptr, ptr @slots
  %units = load i64, ptr @units
  %workspace = load ptr, ptr @workspace
  %stride = load i64, ptr @stride
  %of = load i64, ptr @parts
  %after = add i64 %taken, 1
  %first = load i32, ptr @first
  %from = call i64 @bound(i64 %units, i64 %taken, i64 %of, i32 %first)
  %to = call i64 @bound(i64 %units, i64 %after, i64 %of, i32 %first)
  %offset = mul i64 %stride, %thread
  %own = getelementptr i8, ptr %workspace, i64 %offset
  call void %kernel(ptr %slots, i64 %from, i64 %to, ptr %own)
  %more = add i64 %before, 1
  br label %look
tell:
  %some = icmp ne i64 %count, 0
  %others = xor i1 %caller, true
  %tells = and i1 %some, %others
  br i1 %tells, label %add, label %exit
add:
  %old = atomicrmw add ptr @done, i64 %count release
  br label %exit
exit:
  ret i64 %count
}

; %self is generation << 10 | thread, the generation being the last one that the worker has seen.
define internal ptr @worker(ptr %self) nounwind {
entry:
  %wary = alloca i64 ; sleeps until it is patient again
  %caution = alloca i64 ; how many there were the last time
  store i64 0, ptr %wary
  store i64 0, ptr %caution
  call void @enter_environment()
  %packed = ptrtoint ptr %self to i64
  %thread = and i64 %packed, 1023
  %first = lshr i64 %packed, 10
  br label %next
next:
  %seen = phi i64 [ %first, %entry ], [ %g, %work ], [ %g, %stays ]
  %served = phi i1 [ false, %entry ], [ false, %work ], [ true, %stays ]
  %hope = phi i64 [ $SPINS, %entry ], [ %hoped, %work ], [ %hoped, %stays ]
  br label %spin
spin:
  %k = phi i64 [ 0, %next ], [ %k1, %look ], [ 0, %stay ]
  %wish = phi i64 [ %hope, %next ], [ %wished, %look ], [ %wish, %stay ]
  %w1 = load atomic i64, ptr @word acquire, align 8
  %g1 = lshr i64 %w1, 32
  %new = icmp ne i64 %g1, %seen
  %late = icmp ugt i64 %k, $SPINS
  br i1 %new, label %found, label %idle
found:
  %before = load i64, ptr %caution
  %calmed = zext i1 %late to i64
  %less = lshr i64 %before, %calmed
  store i64 %less, ptr %caution
  br label %work
idle:
  %least = load atomic i64, ptr @tw_patience monotonic, align 8
  %patience = call i64 @llvm.smax.i64(i64 %least, i64 %wish)
  %tired = icmp ugt i64 %k, %patience
  br i1 %tired, label %ask, label %again
ask:
  %running = load atomic i64, ptr @busy monotonic, align 8
  %others = icmp ne i64 %running, 0
  %patient = and i1 %others, %served
  br i1 %patient, label %stay, label %sleep
stay:
  %given = call i32 @sched_yield()
  br label %spin
again:
  br i1 %late, label %offer, label %rest
offer: ; a loop is less likely by now: others may have the core, and another thread of it its units
  %given_at = call i64 @ticks()
  %offered = call i32 @sched_yield()
  %back_at = call i64 @ticks()
  %away = sub i64 %back_at, %given_at
  %taken = icmp ugt i64 %away, $TAKEN
  br i1 %taken, label %warned, label %kept
warned:
  %last = load i64, ptr %caution
  %twice = shl i64 %last, 1
  %some = call i64 @llvm.smax.i64(i64 %twice, i64 $WARY)
  %more = call i64 @llvm.smin.i64(i64 %some, i64 $WARIEST)
  store i64 %more, ptr %caution
  store i64 %more, ptr %wary
  br label %look
kept:
  $PAUSE
  $PAUSE
  $PAUSE
  $PAUSE
  br label %look
rest:
  $PAUSE
  br label %look
look:
  %wished = phi i64 [ %wish, %rest ], [ %wish, %kept ], [ $SPINS, %warned ]
  %k1 = add i64 %k, 1
  br label %spin
sleep:
  %slept = call i64 @ticks()
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %in = atomicrmw add ptr @sleepers, i64 1 seq_cst
  br label %check
check:
  %w2 = load atomic i64, ptr @word seq_cst, align 8
  %g2 = lshr i64 %w2, 32
  %changed = icmp ne i64 %g2, %seen
  br i1 %changed, label %awake, label %wait
wait:
  %waited = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %check
awake:
  %out = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  %woken = call i64 @ticks()
  %long = sub i64 %woken, %slept
  %known = sub i64 %long, 1 ; the most where there is no clock
  %soon = icmp ult i64 %known, $SOON
  %left = load i64, ptr %wary
  %calm = icmp eq i64 %left, 0
  %fewer = sub i64 %left, 1
  %rest_of = call i64 @llvm.smax.i64(i64 %fewer, i64 0)
  store i64 %rest_of, ptr %wary
  %hopes = and i1 %soon, %calm
  %expected = select i1 %hopes, i64 $PATIENT, i64 $SPINS
  br label %work
work:
  %hoped = phi i64 [ %wish, %found ], [ %expected, %awake ]
  %w = phi i64 [ %w1, %found ], [ %w2, %awake ]
  %g = lshr i64 %w, 32
  %shifted = lshr i64 %w, 22
  %threads = and i64 %shifted, 1023
  %invited = icmp ult i64 %thread, %threads
  br i1 %invited, label %serve, label %next
serve:
  %moved = call i1 @hand_over(i64 %thread, i64 %seen)
  br i1 %moved, label %leave, label %stays
stays:
  %did = call i64 @help(i64 %g, i64 %thread)
  br label %next
leave:
  ret ptr null
}

; Starts a thread that is this worker and has seen so many generations; false where the system refuses.
define internal i1 @start(i64 %thread, i64 %seen) nounwind {
entry:
  %id = alloca i64
  %high = shl i64 %seen, 10
  %packed = or i64 %high, %thread
  %self = inttoptr i64 %packed to ptr
  %error = call i32 @pthread_create(ptr %id, ptr null, ptr @worker, ptr %self)
  %made = icmp eq i32 %error, 0
  br i1 %made, label %created, label %exit
created:
  %pthread = load i64, ptr %id
  %detached = call i32 @pthread_detach(i64 %pthread)
  br label %exit
exit:
  ret i1 %made
}

; Creates workers until there are %wanted, or the system refuses. The caller holds @busy.
define internal void @grow(i64 %wanted) nounwind {
entry:
  %start = load i64, ptr @workers
  %none = icmp eq i64 %start, 0
  br i1 %none, label %prepare, label %look
prepare:
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @wake, ptr null)
  br label %look
look:
  %have = load i64, ptr @workers
  %few = icmp ult i64 %have, %wanted
  br i1 %few, label %create, label %exit
create:
  %thread = add i64 %have, 1
  %now = load atomic i64, ptr @word monotonic, align 8
  %generation = lshr i64 %now, 32
  %made = call i1 @start(i64 %thread, i64 %generation)
  br i1 %made, label %created, label %exit
created:
  store i64 %thread, ptr @workers
  br label %look
exit:
  ret void
}

define void @tw_parallel_for(ptr %table, ptr %kernel, ptr %slots, i64 %units, i64 %threads, ptr %workspace,
                             i64 %stride) nounwind {
entry:
  %any = icmp sgt i64 %units, 0
  br i1 %any, label %size, label %exit
size:
  %most = load i64, ptr %table
  %t1 = call i64 @llvm.smin.i64(i64 %threads, i64 %most)
  %t2 = call i64 @llvm.smin.i64(i64 %t1, i64 %units)
  %t = call i64 @llvm.smin.i64(i64 %t2, i64 1023)
  %several = icmp sgt i64 %t, 1
  br i1 %several, label %try, label %alone
try:
  %begin = call i64 @ticks() ; what waits for lines that a loop before left with other cores belongs to its time
  %swap = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic
  %got = extractvalue { i64, i1 } %swap, 1
  br i1 %got, label %owner, label %alone
alone:
  call void %kernel(ptr %slots, i64 0, i64 %units, ptr %workspace)
  br label %exit
owner:
  %key = call i64 @key_of(ptr %kernel, i64 %units)
  %entry_of = call ptr @entry_of(i64 %key)
  %own = call i1 @alone(ptr %entry_of, i64 %key, i64 %units, i64 %t)
  br i1 %own, label %single, label %crew
single:
  call void %kernel(ptr %slots, i64 0, i64 %units, ptr %workspace)
  %ended = call i64 @ticks()
  %taken = sub i64 %ended, %begin
  call void @remember_alone(ptr %entry_of, i64 %taken, i64 %units)
  store atomic i64 0, ptr @busy release, align 8
  br label %exit
crew:
  %wanted = sub i64 %t, 1
  %have = load i64, ptr @workers
  %few = icmp ult i64 %have, %wanted
  br i1 %few, label %more, label %publish
more:
  call void @grow(i64 %wanted)
  br label %publish
publish:
  store ptr %kernel, ptr @kernel
  store ptr %slots, ptr @slots
  store i64 %units, ptr @units
  store ptr %workspace, ptr @workspace
  store i64 %stride, ptr @stride
  call void @settle()
  %first = call i32 @first_of(ptr %entry_of, i64 %key, i64 %units, i64 %t)
  %short = icmp sge i32 %first, 0
  store i32 %first, ptr @first
  %sixfold = mul i64 %t, 6
  %pairs = lshr i64 %units, 1
  %p1 = call i64 @llvm.smin.i64(i64 %sixfold, i64 %pairs)
  %even = and i64 %p1, -2
  %twofold = mul i64 %t, 2
  %p2 = call i64 @llvm.smin.i64(i64 %twofold, i64 %units)
  %p3 = call i64 @llvm.smax.i64(i64 %even, i64 %p2)
  %p4 = call i64 @llvm.smin.i64(i64 %p3, i64 2046)
  %parts = select i1 %short, i64 %t, i64 %p4
  store i64 %parts, ptr @parts
  %last = load atomic i64, ptr @word monotonic, align 8
  %g0 = lshr i64 %last, 32
  %g1 = add i64 %g0, 1
  %generation = and i64 %g1, 4294967295
  %high = shl i64 %generation, 32
  %middle = shl i64 %t, 22
  %upper = or i64 %high, %middle
  %second = or i64 %parts, 2048
  %fresh = or i64 %upper, %second
  store atomic i64 %fresh, ptr @word seq_cst, align 8
  %asleep = load atomic i64, ptr @sleepers seq_cst, align 8
  %rouse = icmp ne i64 %asleep, 0
  br i1 %rouse, label %signal, label %join
signal:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %sent = call i32 @pthread_cond_broadcast(ptr @wake)
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %join
join:
  %mine = call i64 @help(i64 %generation, i64 0)
  %before = load i64, ptr @total
  %theirs = sub i64 %parts, %mine
  %target = add i64 %before, %theirs
  store i64 %target, ptr @total
  br label %wait
wait:
  %k = phi i64 [ 0, %join ], [ %k1, %pause ], [ 0, %yield ]
  %finished = load atomic i64, ptr @done acquire, align 8
  %all = icmp eq i64 %finished, %target
  br i1 %all, label %over, label %hold
hold:
  %long = icmp ugt i64 %k, $SPINS
  br i1 %long, label %yield, label %pause
pause:
  $PAUSE
  %k1 = add i64 %k, 1
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
over:
  %end = call i64 @ticks()
  %elapsed = sub i64 %end, %begin
  call void @remember(ptr %entry_of, i64 %key, i64 %elapsed, i64 %t, i64 %units, i64 %theirs)
  store atomic i64 0, ptr @busy release, align 8
  br label %exit
exit:
  ret void
}

define void @tw_launch(ptr %table, i64 %number, i64 %gx, i64 %gy, i64 %gz, ptr %slots, i64 %count, i64 %threads,
                       ptr %workspace, i64 %stride) nounwind {
  %field = getelementptr i64, ptr %table, i64 1
  %kernels = load ptr, ptr %field
  %place = getelementptr ptr, ptr %kernels, i64 %number
  %kernel = load ptr, ptr %place
  call void @tw_parallel_for(ptr %table, ptr %kernel, ptr %slots, i64 %gx, i64 %threads, ptr %workspace, i64 %stride)
  ret void
}

; In the child of a fork no worker runs, and whatever another thread was doing is gone.
define void @tw_forked() nounwind {
  store i64 0, ptr @workers
  store i64 0, ptr @sleepers
  %total = load i64, ptr @total
  store i64 %total, ptr @done
  store i64 0, ptr @busy
  %now = load i64, ptr @word
  %idle = and i64 %now, -4294967296
  store i64 %idle, ptr @word
  ret void
}
"""
