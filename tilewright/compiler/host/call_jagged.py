"""The part of a binder that takes calls with tw.Jagged, as LLVM IR: they become calls with packed rows and offsets.

Of programs with one ragged dim whose sequences are rows of every ragged argument, one after the other. All of these have to be
tw.Jagged with one and the same array of offsets; any other call goes on as it is. Results become tw.Jagged, which take that array
over.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.host.call_words import word, word_at
from tilewright.runtime.call.python_abi import LENGTH, TYPE
from tilewright.runtime.host.native_call import JAGGED_TABLE, JAGGED_WORDS, OFFSETS, VALUES
from tilewright.runtime.program.program import Program

PACKED = "enter_packed"


def takes_jagged(program: Program) -> bool:
    """Is the program one that this code is for?"""
    arguments = [a for a in (*program.inputs, *program.outputs) if a.ragged]
    return len(program.ragged) == 1 and not program.ragged[0].has_gaps and not program.sums \
        and any(a.ragged for a in program.inputs) \
        and not any(a.block for a in arguments)


def jagged_ir(program: Program, name: str) -> str:
    """The entry `name`, in front of PACKED, and its table of words."""
    visible = program.inputs[:-1]
    ragged = [i for i, a in enumerate(visible) if a.ragged]
    lines = [_TABLE, f"define ptr @{name}(ptr %callable, ptr %args, i64 %nargsf, ptr %names) {{", *_looks(len(visible), ragged),
             *_passes(len(visible), ragged), *_wraps([bool(o.ragged) for o in program.outputs]), "}", ""]
    return "\n".join(lines)


_TABLE = f"""@{JAGGED_TABLE} = global [{len(JAGGED_WORDS)} x i64] zeroinitializer, align 8
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"""


def _field(name: str, base: str, offset: int) -> list[str]:
    return [f"  %{name}_at = getelementptr i8, ptr {base}, i64 {offset}", f"  %{name} = load ptr, ptr %{name}_at"]


def _looks(count: int, ragged: Sequence[int]) -> list[str]:
    """Are the ragged arguments tw.Jagged of the same offsets?"""
    found = ["entry:", "  %given = and i64 %nargsf, 9223372036854775807", f"  %fits = icmp eq i64 %given, {count}",
             f"  %jagged = {word('jagged')}", "  %known = icmp ne ptr %jagged, null", "  %may = and i1 %fits, %known",
             "  br i1 %may, label %look0, label %plain"]
    for at, number in enumerate(ragged):
        found += [f"look{at}:", *_field(f"x{at}", "%args", 8 * number), *_field(f"t{at}", f"%x{at}", TYPE),
                  f"  %j{at} = icmp eq ptr %t{at}, %jagged", f"  br i1 %j{at}, label %read{at}, label %plain",
                  f"read{at}:", *_field(f"v{at}", f"%x{at}", VALUES), *_field(f"o{at}", f"%x{at}", OFFSETS),
                  f"  %set{at} = icmp ne ptr %v{at}, null", f"  %same{at} = icmp eq ptr %o{at}, %o0",
                  f"  %good{at} = and i1 %set{at}, %same{at}",
                  f"  br i1 %good{at}, label %{f'look{at + 1}' if at + 1 < len(ragged) else 'offsets'}, label %plain"]
    return [*found, "offsets:", "  %some = icmp ne ptr %o0, null", "  br i1 %some, label %keywords, label %plain"]


def _passes(count: int, ragged: Sequence[int]) -> list[str]:
    """The call with the arrays of rows, the offsets behind all, then the values of the keywords."""
    found = ["keywords:", "  %no_names = icmp eq ptr %names, null", "  br i1 %no_names, label %room, label %counted", "counted:",
             f"  %length_at = getelementptr i8, ptr %names, i64 {LENGTH}", "  %length = load i64, ptr %length_at",
             "  br label %room", "room:", "  %named = phi i64 [ 0, %keywords ], [ %length, %counted ]",
             f"  %all = add i64 %named, {count + 1}", "  %packed = alloca ptr, i64 %all"]
    for number in range(count):
        if number in ragged:
            value = f"%v{ragged.index(number)}"
        else:
            found += _field(f"a{number}", "%args", 8 * number)
            value = f"%a{number}"
        found += [f"  %p{number} = getelementptr ptr, ptr %packed, i64 {number}", f"  store ptr {value}, ptr %p{number}"]
    found += [f"  %p{count} = getelementptr ptr, ptr %packed, i64 {count}", f"  store ptr %o0, ptr %p{count}",
              f"  %from = getelementptr ptr, ptr %args, i64 {count}", f"  %to = getelementptr ptr, ptr %packed, i64 {count + 1}",
              "  %bytes = shl i64 %named, 3", "  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)"]
    call = f"call ptr @{PACKED}(ptr %callable, ptr %packed, i64 {count + 1}, ptr %names)"
    return [*found, f"  %made = {call}", "  %failed = icmp eq ptr %made, null", "  br i1 %failed, label %none, label %wrap0",
            "none:", "  ret ptr null",
            "plain:", f"  %other = call ptr @{PACKED}(ptr %callable, ptr %args, i64 %nargsf, ptr %names)", "  ret ptr %other"]


def _wraps(ragged: Sequence[bool]) -> list[str]:
    """The results as tw.Jagged. Several come as a tuple, a new one: one that was given is the caller's own, and stays."""
    several, count = len(ragged) > 1, len(ragged)
    found = []
    for number, own in enumerate(ragged):
        following = f"%wrap{number + 1}" if number + 1 < count else "%whole"
        found.append(f"wrap{number}:")
        if number == 0 and several:
            found += ["  br i1 %no_names, label %fresh, label %handed", "handed:", f"  %copy = {word('tuple_new')}",
                      f"  %tuple = call ptr %copy(i64 {count})", "  br label %handed_on", "handed_on:",
                      "  %lost = icmp eq ptr %tuple, null", "  br i1 %lost, label %drop, label %refill", "refill:"]
            for i in range(count):
                found += [*_item(f"given{i}", "%made", i), *_incref(f"%given{i}", f"keep{i}"),
                          *_item(f"into{i}", "%tuple", i, load=False), f"  store ptr %given{i}, ptr %into{i}_at"]
            found += [*_decref("%made", "let"), "  br label %fresh", "fresh:",
                      "  %results = phi ptr [ %made, %wrap0 ], [ %tuple, %refill ]"]
        if not own:
            found.append(f"  br label {following}")
            continue
        value = "%made"
        if several:
            found += _item(f"item{number}", "%results", number)
            value = f"%item{number}"
        found += [f"  %alloc{number} = {word('generic_alloc')}", f"  %new{number} = call ptr %alloc{number}(ptr %jagged, i64 0)",
                  f"  %no{number} = icmp eq ptr %new{number}, null",
                  f"  br i1 %no{number}, label %{'drop_results' if several else 'drop'}, label %fill{number}", f"fill{number}:",
                  *_incref("%o0", f"hold{number}"),
                  f"  %off{number} = getelementptr i8, ptr %new{number}, i64 {OFFSETS}", f"  store ptr %o0, ptr %off{number}",
                  f"  %val{number} = getelementptr i8, ptr %new{number}, i64 {VALUES}", f"  store ptr {value}, ptr %val{number}"]
        if several:
            found.append(f"  store ptr %new{number}, ptr %item{number}_at")
        found.append(f"  br label {following}")
    result = "%results" if several else ("%new0" if ragged[0] else "%made")
    dropped = ["drop_results:", *_decref("%results", "away"), "  ret ptr null"] if several else []
    return [*found, "whole:", f"  ret ptr {result}", "drop:", *_decref("%made", "release"), "  ret ptr null", *dropped]


def _item(name: str, tuple_: str, number: int, load: bool = True) -> list[str]:
    found = [f"  %{name}_items = load i64, ptr {word_at('tuple_items')}",
             f"  %{name}_place = add i64 %{name}_items, {8 * number}",
             f"  %{name}_at = getelementptr i8, ptr {tuple_}, i64 %{name}_place"]
    return [*found, f"  %{name} = load ptr, ptr %{name}_at"] if load else found


def _incref(value: str, name: str) -> list[str]:
    return [f"  %{name} = {word('incref')}", f"  call void %{name}(ptr {value})"]


def _decref(value: str, name: str) -> list[str]:
    return [f"  %{name} = {word('decref')}", f"  call void %{name}(ptr {value})"]
