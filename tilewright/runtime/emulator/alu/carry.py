"""Arithmetic with a carry: add.cc, addc, sub.cc, subc, mad.cc, madc (PTX ISA, section 9.7.2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.arith_int import multiply_high
from tilewright.runtime.emulator.alu.build_context import BuildContext, LaneSource
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
    first, second = (_unsigned(inst, cx, number) for number in (1, 2))
    return _with_carry(inst, cx, first, second)


def _build_multiply(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """A half of a product, to which the third operand is added."""
    kind = inst.parts[-1]
    first, second = (cx.source(inst, operand, kind) for operand in inst.operands[1:3])
    half, dtype = multiply_high if inst.has("hi") else np.multiply, numpy_type(f"u{type_bits(kind)}")
    return _with_carry(inst, cx, lambda machine: half(first(machine), second(machine)).view(dtype), _unsigned(inst, cx, 3))


def _unsigned(inst: Instruction, cx: BuildContext, number: int) -> LaneSource:
    return cx.source(inst, inst.operands[number], f"u{type_bits(inst.parts[-1])}")


def _with_carry(inst: Instruction, cx: BuildContext, first: LaneSource, second: LaneSource) -> InstructionRunner:
    unsigned = f"u{type_bits(inst.parts[-1])}"
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


CARRY: Mapping[str, OrdinaryBuilder] = {
    "add.cc": _build,
    "addc": _build,
    "sub.cc": _build,
    "subc": _build,
    "mad.lo.cc": _build_multiply,
    "mad.hi.cc": _build_multiply,
    "madc": _build_multiply,
}
