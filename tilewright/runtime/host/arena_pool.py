"""alloc and release of the device table, as LLVM IR: a cache of four arenas, taken and given back by atomic exchange.

An arena is 64-byte aligned and has its size in the 64 bytes before it. Every call holds an arena of its own. One that
is too small for the next call is freed, so the cache holds at most four of about the largest size asked for.
"""

from __future__ import annotations


def arena_pool_ir() -> str:
    """Defines `ptr tw_alloc(ptr table, i64 bytes)` (null: no memory) and `void tw_release(ptr table, ptr arena)`."""
    return _ARENAS


_ARENAS = """
@arenas = internal global [4 x ptr] zeroinitializer, align 64
@turn = internal global i64 0, align 8
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

define ptr @tw_alloc(ptr %table, i64 %bytes) nounwind {
entry:
  %out = alloca ptr
  %sane = icmp ult i64 %bytes, 1152921504606846976
  br i1 %sane, label %look, label %none
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %further ]
  %more = icmp ult i64 %i, 4
  br i1 %more, label %take, label %fresh
take:
  %place = getelementptr ptr, ptr @arenas, i64 %i
  %block = atomicrmw xchg ptr %place, ptr null acquire
  %some = icmp ne ptr %block, null
  br i1 %some, label %measure, label %further
measure:
  %size = load i64, ptr %block
  %fits = icmp uge i64 %size, %bytes
  br i1 %fits, label %found, label %small
small:
  call void @free(ptr %block)
  br label %further
further:
  %i1 = add i64 %i, 1
  br label %look
fresh:
  %eighth = lshr i64 %bytes, 3
  %generous = add i64 %bytes, %eighth
  %up = add i64 %generous, 4095
  %rounded = and i64 %up, -4096
  %whole = add i64 %rounded, 64
  %error = call i32 @posix_memalign(ptr %out, i64 64, i64 %whole)
  %bad = icmp ne i32 %error, 0
  br i1 %bad, label %none, label %new
new:
  %fresh_block = load ptr, ptr %out
  store i64 %rounded, ptr %fresh_block
  br label %found
found:
  %chosen = phi ptr [ %block, %measure ], [ %fresh_block, %new ]
  %arena = getelementptr i8, ptr %chosen, i64 64
  ret ptr %arena
none:
  ret ptr null
}

define void @tw_release(ptr %table, ptr %arena) nounwind {
entry:
  %block = getelementptr i8, ptr %arena, i64 -64
  %nothing = icmp eq ptr %arena, null
  br i1 %nothing, label %exit, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %further ]
  %more = icmp ult i64 %i, 4
  br i1 %more, label %put, label %full
put:
  %place = getelementptr ptr, ptr @arenas, i64 %i
  %old = cmpxchg ptr %place, ptr null, ptr %block release monotonic
  %done = extractvalue { ptr, i1 } %old, 1
  br i1 %done, label %exit, label %further
further:
  %i1 = add i64 %i, 1
  br label %look
full:
  %turn = atomicrmw add ptr @turn, i64 1 monotonic
  %which = and i64 %turn, 3
  %there = getelementptr ptr, ptr @arenas, i64 %which
  %evicted = atomicrmw xchg ptr %there, ptr %block acq_rel
  call void @free(ptr %evicted)
  br label %exit
exit:
  ret void
}
"""
