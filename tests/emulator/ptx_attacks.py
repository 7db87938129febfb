"""Damaged PTX, by seed: lines left out, doubled and moved, other words, huge numbers, forged declarations, and text that is none.

An attack must end: in a result, a finding, or an error that names what is wrong. Reads and writes out of bounds stay findings.
"""

from __future__ import annotations

import random
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.runtime.emulator import EmulatorError

NUMBERS = ("0", "1", "-1", "3", "31", "255", "65536", "2147483647", "4294967295", "-2147483648", "9223372036854775807",
           "18446744073709551615", "99999999999999999999999999", "1.5", "0f7FC00000", "0x")
WORDS = ("ret", "bra", "nop", "b32", "u64", "f16x2", "e4m3x4", "pred", "q7", "v4", "global", "shared", "param", "sync", "%r0",
         "%rd1", "%p1", "%tid.x", "%undeclared", "$L__BB0_1", "$nowhere", "{%r1, %r2}", "[%rd1+7]", "_", "{", "}", ";", "(", "")
LINES = (".version 99.0", ".version x", ".target sm_999", ".target sm_90b", ".address_size 32",
         ".reg .b32 %z<2000000000>;",
         ".reg .b32 %z<-1>;", ".reg .b128 %z;", ".reg .pred %p<4>;", ".shared .align 3 .b8 z[16];",
         ".shared .align 16 .b8 z[9999999];",
         ".local .b8 z[1099511627776];", ".global .b8 z[99999999999999];", ".maxnreg 9999", ".reqntid 0", ".reqntid 1, 2, 3, 4",
         "$L__BB0_1:", "LOOP: bra LOOP;", "{", "}", "ret;", "trap;", "bar.sync 0;", "bar.sync 77;", "call f, ();",
         "call;", "bra;",
         "brx.idx %r1, nothing;", "mov.b32 {%r1, %r2}, %rd1;", "ld.global.v8.b64 {%rd1}, [0];", "st.global.b32 [16], %r1;",
         "mma.sync.aligned.m16n8k16;", "cp.async.wait_group 1;", "setmaxnreg.inc.sync.aligned.u32 240;",
         "add.s32 %r1, %r1, " + "-" * 9,
         "mov.b32 %r1, " + "{" * 3000 + ";", "\0\1\2", "é ☃", "/*", '"', ".entry k() { ret; }", "// " + "x" * 100_000)


@dataclass(frozen=True)
class Damage:
    """A module after an attack, and what was done."""

    ptx: str
    notes: tuple[str, ...]


def attack(ptx: str, seed: int) -> Damage:
    """One accident, or two."""
    rng, lines, notes = random.Random(seed), ptx.split("\n"), []
    for _ in range(rng.randint(1, 2)):
        accident = rng.choice(ACCIDENTS)
        at = rng.randrange(len(lines))
        lines[at : at + 1] = accident(lines[at], lines, rng)
        notes.append(f"{accident.__name__[1:]} at line {at + 1}")
        if not lines:
            lines = [""]
    return Damage("\n".join(lines), tuple(notes))


def _drop(line: str, lines: list[str], rng: random.Random) -> list[str]:
    return []


def _double(line: str, lines: list[str], rng: random.Random) -> list[str]:
    return [line, line]


def _move(line: str, lines: list[str], rng: random.Random) -> list[str]:
    return [rng.choice(lines)]


def _number(line: str, lines: list[str], rng: random.Random) -> list[str]:
    """Another number, in a line that has one if there is any."""
    places = list(re.finditer(r"(?<![\w%$])-?\d+", line))
    if not places:
        return [line]
    m = rng.choice(places)
    return [line[: m.start()] + rng.choice(NUMBERS) + line[m.end() :]]


def _word(line: str, lines: list[str], rng: random.Random) -> list[str]:
    """Another word, register, type or part of an opcode."""
    places = list(re.finditer(r"[%$]?\w+", line))
    if not places:
        return [line]
    m = rng.choice(places)
    others = re.findall(r"[%$]?\w+", rng.choice(lines)) + list(WORDS)
    return [line[: m.start()] + rng.choice(others) + line[m.end() :]]


def _line(line: str, lines: list[str], rng: random.Random) -> list[str]:
    return [line, rng.choice(LINES)]


def _operands(line: str, lines: list[str], rng: random.Random) -> list[str]:
    """An operand fewer, or one twice."""
    parts = line.split(", ")
    if len(parts) < 2:
        return [line]
    at = rng.randrange(1, len(parts))
    last = parts[at].endswith(";")
    if rng.random() < 0.5:
        del parts[at]
        parts[-1] += ";" * (last and not parts[-1].endswith(";"))
    else:
        parts.insert(at, parts[at].rstrip(";"))
    return [", ".join(parts)]


def _cut(line: str, lines: list[str], rng: random.Random) -> list[str]:
    return [line[: rng.randrange(len(line) + 1)]]


ACCIDENTS: tuple[Callable[[str, list[str], random.Random], list[str]], ...] = (
    _drop, _double, _move, _number, _number, _word, _word, _word, _line, _line, _operands, _cut)


def far(ptx: str, seed: int) -> tuple[str, str]:
    """One memory instruction whose address is far from every allocation; and the same text with a trap in its place, which tells
    whether it is executed at all."""
    rng, lines = random.Random(seed), ptx.split("\n")
    access = re.compile(r"\s+(?:@!?%\w+\s+)?(?:ld|st|cp)\.(?:shared|global|async\.c).*\[(%\w+)(?:\+\d+)?\]")
    at = rng.choice([i for i, line in enumerate(lines) if access.match(line)])
    beyond = re.sub(r"\[(%\w+)(?:\+\d+)?\]", lambda m: f"[{m[1]}+{1 << 28}]", lines[at])
    guard = re.match(r"\s+(@!?%\w+\s+)?", lines[at])
    moved, trapped = [*lines], [*lines]
    moved[at], trapped[at] = beyond, f"{guard[0] if guard else ''}trap;"
    return "\n".join(moved), "\n".join(trapped)


@dataclass(frozen=True)
class Verdict:
    """kind: result, refused, raw, or the rule that a finding is of. seconds: of processor time."""

    kind: str
    detail: str
    seconds: float


def judge(run: Callable[[str], object], ptx: str) -> Verdict:
    """Run a damaged kernel."""
    begin = time.thread_time()
    kind, detail = "result", ""
    try:
        run(ptx)
    except EmulatorError as error:
        kind, detail = "refused" if error.finding is None else error.finding.check.value, str(error)
    except Exception as error:  # whatever it is: an attack that raises is what is looked for
        kind, detail = "raw", "".join(traceback.format_exception(error))
    return Verdict(kind, detail, time.thread_time() - begin)
