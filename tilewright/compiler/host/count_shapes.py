"""The code that counts the shapes of calls, as LLVM IR: some ten instructions in line where a call finds its shape in
the first place it may have.

It runs while the call holds the interpreter's lock, so that its words need no atomic operations (runtime/call/shape_counts.py).
"""

from __future__ import annotations

from tilewright.runtime.call.shape_counts import COUNTS, HEAD_WORDS, OTHERS, PROBES, multipliers


def count_ir(dims: int) -> str:
    """The address of the counts, null while nothing is counted, and `count(counts, dims)`, for a program with so many dims.

    The first slot of a shape is looked at in line: a slot that holds these dims is theirs, and so is an empty one, whose dims are
    zero, for dims that are zero, which begin there. All else is the business of a function of its own.
    """
    hashed, lines = _hash(dims)
    found = ["define internal void @count(ptr %counts, ptr %dims) alwaysinline nounwind {", "entry:", *lines,
             *_slot(dims, hashed), *_same(dims), "  br i1 %same, label %add, label %other", "add:",
             "  %calls = load i64, ptr %calls_at", "  %one_more = add i64 %calls, 1", "  store i64 %one_more, ptr %calls_at",
             "  ret void", "other:", f"  call void @count_other(ptr %counts, ptr %dims, i64 {hashed})", "  ret void", "}"]
    return "\n".join([f"@{COUNTS} = dso_local global ptr null, align 8", *found, *_other(dims), ""])


def _hash(dims: int) -> tuple[str, list[str]]:
    """The number of the first slot, before it is cut to their count, and the instructions for it; `%dim0` ... are the dims."""
    lines, hashed = [], "0"
    for i, factor in enumerate(multipliers(dims)):
        lines += [f"  %at{i} = getelementptr i64, ptr %dims, i64 {i}", f"  %dim{i} = load i64, ptr %at{i}",
                  f"  %product{i} = mul i64 %dim{i}, {factor - (1 << 64) if factor >> 63 else factor}",
                  f"  %hash{i} = add i64 {hashed}, %product{i}"]
        hashed = f"%hash{i}"
    return "%upper", [*lines, f"  %upper = lshr i64 {hashed}, 32", "  %mask = load i64, ptr %counts",
                      f"  %slots = getelementptr i64, ptr %counts, i64 {HEAD_WORDS}"]


def _slot(dims: int, number: str) -> list[str]:
    """`%calls_at`, the slot of a number."""
    return [f"  %slot = and i64 {number}, %mask", f"  %word = mul i64 %slot, {1 + dims}",
            "  %calls_at = getelementptr i64, ptr %slots, i64 %word"]


def _same(dims: int) -> list[str]:
    """`%same`: does the slot hold these dims?"""
    lines, same = [], "true"
    for i in range(dims):
        lines += [f"  %kept_at{i} = getelementptr i64, ptr %calls_at, i64 {1 + i}", f"  %kept{i} = load i64, ptr %kept_at{i}",
                  f"  %equal{i} = icmp eq i64 %kept{i}, %dim{i}", f"  %same{i} = and i1 {same}, %equal{i}"]
        same = f"%same{i}"
    return [*lines, f"  %same = and i1 {same}, true"]


def _other(dims: int) -> list[str]:
    """The function that looks at all slots of a shape, and takes an empty one."""
    _, head = _hash(dims)
    return ["define internal void @count_other(ptr %counts, ptr %dims, i64 %first) noinline cold nounwind {", "entry:",
            *[line for line in head if not line.startswith(("  %product", "  %hash", "  %upper"))],
            "  br label %look", "look:", "  %number = phi i64 [ %first, %entry ], [ %following, %next ]",
            "  %probes = phi i64 [ 1, %entry ], [ %more, %next ]", *_slot(dims, "%number"), *_same(dims),
            "  %calls = load i64, ptr %calls_at", "  %free = icmp eq i64 %calls, 0",
            "  br i1 %free, label %take, label %compare", "compare:", "  br i1 %same, label %add, label %next", "take:",
            *(f"  store i64 %dim{i}, ptr %kept_at{i}" for i in range(dims)), "  br label %add", "add:",
            "  %one_more = add i64 %calls, 1", "  store i64 %one_more, ptr %calls_at", "  ret void", "next:",
            "  %following = add i64 %number, 1", "  %more = add i64 %probes, 1", f"  %end = icmp eq i64 %probes, {PROBES}",
            "  br i1 %end, label %give_up, label %look", "give_up:",
            f"  %others_at = getelementptr i64, ptr %counts, i64 {OTHERS}", "  %others = load i64, ptr %others_at",
            "  %others_more = add i64 %others, 1", "  store i64 %others_more, ptr %others_at", "  ret void", "}"]
