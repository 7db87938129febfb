"""Arithmetic with a carry: add.cc, addc, sub.cc, subc (PTX ISA, section 9.7.2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runtime.emulator.batch import Batch, Runner, numpy_type
from runtime.emulator.operands import BuildContext
from runtime.emulator.ptx import Instruction
from runtime.emulator.ptx_parser import type_bits
from runtime.emulator.table import Builder


def _build(inst: Instruction, cx: BuildContext) -> Runner:
    kind = inst.parts[-1]
    unsigned = f"u{type_bits(kind)}"
    first, second = (cx.source(inst, operand, unsigned) for operand in inst.operands[1:])
    put = cx.sink(inst, inst.operands[0], unsigned)
    minus, uses, sets = inst.parts[0].startswith("sub"), inst.parts[0].endswith("c"), inst.has("cc")
    dtype = numpy_type(unsigned)

    def run(s: Batch) -> None:
        a, b = first(s), second(s)
        extra = (s.carry if uses else np.zeros(1, dtype=bool)).astype(dtype)
        partial = a - b if minus else a + b
        total = partial - extra if minus else partial + extra
        out = ((a < b) | (partial < extra)) if minus else ((partial < a) | (total < partial))
        if sets:
            np.copyto(s.carry, out, where=s.where)
        put(s, total)

    return run


CARRY: Mapping[str, Builder] = {"add.cc": _build, "addc": _build, "sub.cc": _build, "subc": _build}
