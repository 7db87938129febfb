"""Arithmetic with a carry: add.cc, addc, sub.cc, subc (PTX ISA, section 9.7.2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.lanes import Geometry
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits
from tilewright.runtime.limits import WARP


class CarryFlags:
    """The carry of each lane of a batch."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.flags = np.zeros(blocks * geometry.warps * WARP, dtype=bool)


def _build(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    kind = inst.parts[-1]
    unsigned = f"u{type_bits(kind)}"
    first, second = (cx.source(inst, operand, unsigned) for operand in inst.operands[1:])
    put = cx.sink(inst, inst.operands[0], unsigned)
    minus, uses, sets = inst.parts[0].startswith("sub"), inst.parts[0].endswith("c"), inst.has("cc")
    dtype = numpy_type(unsigned)

    def run(machine: Machine) -> None:
        a, b, carry = first(machine), second(machine), machine.unit(CarryFlags).flags
        extra = (carry if uses else np.zeros(1, dtype=bool)).astype(dtype)
        partial = a - b if minus else a + b
        total = partial - extra if minus else partial + extra
        out = ((a < b) | (partial < extra)) if minus else ((partial < a) | (total < partial))
        if sets:
            np.copyto(carry, out, where=machine.where)
        put(machine, total)

    return run


CARRY: Mapping[str, OrdinaryBuilder] = {"add.cc": _build, "addc": _build, "sub.cc": _build, "subc": _build}
