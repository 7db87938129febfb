"""A reader of SASS listings as nvdisasm -c and cuobjdump -sass print them: instructions of each kernel, and its loops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_CODE = re.compile(r"\s*/\*([0-9a-f]{4,6})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"\s*(\.L_[\w$]+):")
_TARGET = re.compile(r"`\((\.L_[\w$]+)\)|(0x[0-9a-f]+)\s*$")
_JUMPS = ("BRA", "BRX", "JMP")


@dataclass(frozen=True)
class Instruction:
    """guard: the predicate, `!P0`; opcode: with its modifiers, `HGMMA.64x256x16.F32`; operands: as they are printed."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """`HGMMA`."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> list[str]:
        return self.opcode.split(".")[1:]

    def has(self, modifier: str) -> bool:
        return modifier in self.modifiers

    @property
    def access_bytes(self) -> int:
        """What a thread loads or stores: 4 unless the opcode says another width."""
        for width in ("128", "64", "32"):
            if self.has(width):
                return int(width) // 8
        return next((size for size, names in ((1, ("U8", "S8")), (2, ("U16", "S16"))) if any(map(self.has, names))), 4)


@dataclass(frozen=True)
class Loop:
    """Instructions from number `begin` up to `end`, the last of which branches back to the first."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def within(self, other: Loop) -> bool:
        return other.begin <= self.begin and self.end <= other.end and self != other


@dataclass(frozen=True)
class Listing:
    """A kernel."""

    name: str
    code: Sequence[Instruction]
    labels: dict[str, int]

    @cached_property
    def loops(self) -> Sequence[Loop]:
        """From the target of every branch backwards to the branch. Code that waits out of line and branches back into a loop
        gives one that covers all between."""
        places = {i.address: n for n, i in enumerate(self.code)}
        found: dict[Loop, None] = {}
        for n, i in enumerate(self.code):
            target = self._target(i)
            if target is not None and target in places and places[target] < n:
                found[Loop(places[target], n + 1)] = None
        return list(found)

    def innermost(self, *names: str) -> list[Loop]:
        """The loops that hold such an instruction and no other loop that does."""
        holding = [loop for loop in self.loops if any(i.name in names for i in self.of(loop))]
        return [a for a in holding if not any(b.within(a) for b in holding)]

    def of(self, loop: Loop) -> Sequence[Instruction]:
        return self.code[loop.begin : loop.end]

    def _target(self, i: Instruction) -> int | None:
        found = _TARGET.search(i.operands) if i.name in _JUMPS else None
        if found is None:
            return None
        return self.labels.get(found[1]) if found[1] else int(found[2], 16)

    def straight(self) -> Sequence[Instruction]:
        """The instructions up to the first end of the kernel that no predicate guards; what is called or waits is behind it."""
        for n, i in enumerate(self.code):
            if i.name == "EXIT" and not i.guard:
                return self.code[: n + 1]
        return self.code


def read_listings(text: str) -> dict[str, Listing]:
    """The kernels of a listing by name."""
    found: dict[str, Listing] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for line in text.splitlines():
        section = re.match(r"\s*\.section\s+\"?\.text\.([^,\"\s]+)|\s*Function : (\S+)", line)
        if section:
            code, labels, pending = [], {}, []
            found[section[1] or section[2]] = Listing(section[1] or section[2], code, labels)
        label, instruction = _LABEL.match(line), _CODE.match(line)
        if label:
            pending.append(label[1])
        elif instruction and found:
            at = int(instruction[1], 16)
            labels.update(dict.fromkeys(pending, at))
            pending.clear()
            code.append(Instruction(at, instruction[2] or "", instruction[3], instruction[4].strip()))
    return found
