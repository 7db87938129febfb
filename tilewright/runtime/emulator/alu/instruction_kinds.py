"""Kinds of instructions, and how an opcode finds its implementation: the longest dotted prefix in a table wins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction

OrdinaryBuilder = Callable[[Instruction, BuildContext], InstructionRunner]
"""Makes an ordinary instruction ready; the runner executes it for the batch's mask."""

Continuation = Callable[[Machine], int | None]
"""Runs a control instruction; returns the segment where all lanes of the mask go on, or None having set pc or status."""

ControlBuilder = Callable[[Instruction, BuildContext], Continuation]


@dataclass(frozen=True)
class WarpStep:
    """A warp instruction made ready. `members` gives each lane's mask of partners, None for the whole warp."""

    members: Callable[[Machine], Array] | None
    run: InstructionRunner


WarpBuilder = Callable[[Instruction, BuildContext], WarpStep]

T = TypeVar("T")


def find(table: Mapping[str, T], inst: Instruction) -> T | None:
    """The entry whose key is the longest dotted prefix of the opcode."""
    for prefix in _prefixes(inst.opcode):
        found = table.get(prefix)
        if found is not None:
            return found
    return None


@functools.lru_cache(maxsize=4096)
def _prefixes(opcode: str) -> tuple[str, ...]:
    """The dotted prefixes of an opcode that tables know, the longest first."""
    parts = opcode.split(".")
    return tuple(".".join(parts[:length]) for length in range(min(len(parts), 5), 0, -1))
