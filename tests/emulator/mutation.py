"""Mutation operators on PTX text: each makes one small mistake that a kernel generator could make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Operator = Callable[[str], list[str]]
"""All mutants of one line; an empty text drops it."""

_FLIPPED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_EFFECTS = ("ld", "cp", "st", "bar", "mbarrier")  # beside the value of a register
_NEXT = {"ctaid.x": "ctaid.y", "ctaid.y": "ctaid.x", "tid.x": "laneid"}


@dataclass(frozen=True)
class Mutation:
    """One mistake. `line` counts from 1; 0 is a mistake of the launch, which takes `cut` bytes of shared memory away."""

    operator: str
    line: int
    before: str
    after: str
    cut: int = 0

    def apply(self, ptx: str) -> str:
        if not self.line:
            return ptx
        lines = ptx.split("\n")
        lines[self.line - 1] = self.after
        return "\n".join(lines)

    def traced(self, ptx: str) -> str | None:
        """PTX that traps where the mutant computes another value than the kernel; None where that cannot be asked."""
        found = re.fullmatch(r"\s+([a-z][\w.]*)\s+(%\w+), (.*);", self.after)
        same = re.fullmatch(r"\s+[a-z][\w.]*\s+(%\w+), .*;", self.before)
        if not found or not same or same[1] != found[2] or found[1].startswith(_EFFECTS):
            return None
        opcode, target, rest = found.groups()
        kind = re.match(r"%[a-z]+", target)
        width = {"%p": "pred", "%rs": "b16", "%r": "b32", "%rd": "b64"}.get(kind[0] if kind else "")
        if width is None:
            return None
        compare = f"{'xor.pred' if width == 'pred' else f'setp.ne.{width}'} %mutant_p, %mutant, {target};"
        lines = ptx.split("\n")
        lines[self.line - 1] = "\n".join(["{", f".reg .{width} %mutant;", ".reg .pred %mutant_p;", f"{opcode} %mutant, {rest};",
                                          self.before, compare, "@%mutant_p trap;", "}"])
        return "\n".join(lines)


def one_per_line(ptx: str) -> str:
    """PTX each of whose instructions is one indented line, as those of inline assembly and of several lines become."""
    text = re.sub(r"^\tmma\.sync[^;]*;", lambda m: " ".join(m[0].split()), ptx, flags=re.MULTILINE)
    lines, inline = [], False
    for line in text.split("\n"):
        inline = "begin inline asm" in line or (inline and "end inline asm" not in line)
        lines.append(f"\t{line.strip()}" if inline or line.startswith("mma.sync") else line)
    return "\n".join(lines)


def opcode(line: str) -> str:
    """The opcode of an instruction, without its guard; empty for other lines."""
    found = re.match(r"\s+(?:@!?%\w+\s+)?([a-z][\w.]*)", line)
    return found[1] if found else ""


def dropped(pattern: str) -> Operator:
    """Leaves instructions out whose opcode matches."""
    return lambda line: [""] if re.match(pattern, opcode(line)) else []


def _bumped(line: str, steps: tuple[int, ...], pattern: str) -> list[str]:
    """The line with one of the numbers that match `pattern` (its first group) moved by each step."""
    found = []
    for match in re.finditer(pattern, line):
        for step in steps:
            number = int(match[1]) + step
            if number >= 0 or match[1].startswith("-"):
                found.append(line[: match.start(1)] + str(number) + line[match.end(1) :])
    return found


def _weaken_wait(line: str) -> list[str]:
    return _bumped(line, (1,), r"wait_group\s+(\d+)")


def _move_bound(line: str) -> list[str]:
    if not opcode(line).startswith("setp."):
        return []
    found = _bumped(line, (-1, 1), r", (-?\d+);")
    for kind, other in _FLIPPED.items():
        if f"setp.{kind}." in line:
            found.append(line.replace(f"setp.{kind}.", f"setp.{other}."))
    return found


def _swap_operands(line: str) -> list[str]:
    """a - b becomes b - a; a * b + c becomes a * c + b."""
    if re.match(r"(sub|div|rem)\.[sub]\d", opcode(line)):
        return [re.sub(r"(%\w+, )([%\w-]+), ([%\w-]+);", r"\1\3, \2;", line)]
    if re.match(r"mad\.lo\.", opcode(line)):
        return [re.sub(r"(%\w+, [%\w-]+, )([%\w-]+), ([%\w-]+);", r"\1\3, \2;", line)]
    return []


def _drop_predicate(line: str) -> list[str]:
    """A guarded branch is always or never taken; another guarded instruction always runs."""
    found = re.match(r"(\s+)@!?%\w+\s+(.*)", line)
    if not found:
        return []
    return ["", f"{found[1]}{found[2]}"] if found[2].startswith("bra") else [f"{found[1]}{found[2]}"]


def _invert_predicate(line: str) -> list[str]:
    return [line.replace("@!%", "@%", 1) if "@!%" in line else line.replace("@%", "@!%", 1)] if re.match(r"\s+@", line) else []


def _change_shift(line: str) -> list[str]:
    return _bumped(line, (-1, 1), r", (\d+);") if re.match(r"sh[lr]\.", opcode(line)) else []


def _change_stride(line: str) -> list[str]:
    """Factors of multiplications, and what masks let through."""
    if re.match(r"mul\.(lo|wide)\.[sub]\d", opcode(line)):
        return _bumped(line, (-1, 1), r", (\d+);")
    if re.match(r"mad\.(lo|wide)\.[sub]\d", opcode(line)):
        return _bumped(line, (-1, 1), r", (\d+), ")
    if re.match(r"and\.b\d", opcode(line)):
        return _bumped(line, (-1, 1), r", (\d+);")
    return []


def _change_addend(line: str) -> list[str]:
    return _bumped(line, (-1, 1), r", (-?\d+);") if re.match(r"(add\.[su]|or\.b)\d", opcode(line)) else []


def _move_address(line: str) -> list[str]:
    """Another byte offset in an address; both sides of a copy."""
    found = _bumped(line, (-16, -4, 4, 16), r"\[%\w+\+(\d+)\]") + _bumped(line, (-4, 4), r"\[%\w+\+(-\d+)\]")
    if re.match(r"(ld|st)\.(shared|global)|cp\.async\.c", opcode(line)):
        found += [line[: m.end(1)] + "+4" + line[m.end(1) :] for m in re.finditer(r"\[(%\w+)\]", line)]
    return found


def _widen_access(line: str) -> list[str]:
    """Twice the elements; loaded ones are thrown away, stored ones repeat."""
    found = re.fullmatch(r"(\s+(?:@!?%\w+\s+)?)(ld|st)\.(shared|global(?:\.nc)?)\.(v2\.)?(b16|b32|b64)(\s+)(.*);", line)
    if found is None:
        return []
    guard, verb, space, vector, kind, blank, rest = found.groups()
    if vector is None:
        if verb == "ld":
            target, address = rest.split(", ", 1)
            return [f"{guard}ld.{space}.v2.{kind}{blank}{{{target}, _}}, {address};"]
        address, value = rest.rsplit(", ", 1)
        return [f"{guard}st.{space}.v2.{kind}{blank}{address}, {{{value}, {value}}};"]
    if kind == "b64":
        return []
    if verb == "ld":
        return [f"{guard}ld.{space}.v4.{kind}{blank}{rest.replace('}', ', _, _}', 1)};"]
    values = re.search(r"\{(.*)\}", rest)
    return [] if values is None else [f"{guard}st.{space}.v4.{kind}{blank}{rest.replace('}', f', {values[1]}}}', 1)};"]


def _change_shuffle(line: str) -> list[str]:
    """Another distance, another clamp."""
    found = re.fullmatch(r"(\s+shfl\.sync\.\w+\.b32\s+%\w+, %\w+, )(\d+), (\d+)(, .*)", line)
    if found is None:
        return []
    head, distance, clamp, tail = found.groups()
    return [f"{head}{int(distance) * 2 % 32}, {clamp}{tail}", f"{head}{int(distance) // 2}, {clamp}{tail}",
            f"{head}{distance}, 0{tail}"]


def _drop_zero_fill(line: str) -> list[str]:
    """A copy that always reads all of its bytes."""
    return [re.sub(r"(, \d+), %\w+;", r"\1;", line)] if re.match(r"cp\.async\.c", opcode(line)) and line.count(",") == 3 else []


def _other_thread(line: str) -> list[str]:
    return [line.replace(f"%{a};", f"%{b};") for a, b in _NEXT.items() if line.endswith(f"%{a};")]


def _drop_base(line: str) -> list[str]:
    """An offset that is not added to its base."""
    return [re.sub(r"(%\w+, %\w+), %\w+;", r"\1, 0;", line)] if opcode(line) == "add.s64" else []


OPERATORS: dict[str, Operator] = {
    "drop-barrier": dropped(r"bar(rier)?\.(?!cluster)"),
    "drop-wait": dropped(r"cp\.async\.wait"),
    "drop-commit": dropped(r"cp\.async\.commit"),
    "weaken-wait": _weaken_wait,
    "drop-copy": dropped(r"cp\.async\.c[ag]"),
    "drop-zero-fill": _drop_zero_fill,
    "drop-store": dropped(r"st\.(shared|global)"),
    "move-bound": _move_bound,
    "drop-predicate": _drop_predicate,
    "invert-predicate": _invert_predicate,
    "swap-operands": _swap_operands,
    "change-shift": _change_shift,
    "change-stride": _change_stride,
    "change-addend": _change_addend,
    "move-address": _move_address,
    "drop-base": _drop_base,
    "widen-access": _widen_access,
    "change-shuffle": _change_shuffle,
    "other-thread": _other_thread,
}
SHRINK = "shrink-buffer"
_CUTS = (16, 64, 512)


def mutations(ptx: str, shared_bytes: int) -> Iterator[Mutation]:
    """Every mistake that the operators can make in a module; the launch of `shared_bytes` gets less shared memory."""
    inside = False
    for number, line in enumerate(ptx.split("\n"), 1):
        inside = (inside or line.startswith("{")) and not line.startswith("}")
        if inside and opcode(line):
            for name, operator in OPERATORS.items():
                for after in dict.fromkeys(operator(line)):
                    if after != line:
                        yield Mutation(name, number, line, after)
    for cut in _CUTS:
        if cut < shared_bytes:
            yield Mutation(SHRINK, 0, f"{shared_bytes} bytes", f"{shared_bytes - cut} bytes", cut)
