"""Arithmetic instructions as pure functions of arrays, executed one by one or many independent ones at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import SINK, Immediate, Instruction, Pair, PtxOperand, Register, Symbol
from tilewright.runtime.emulator.ptx.ptx_types import type_bits

_PACK_ELEMENTS = 1 << 15
"""Elements that one packed step handles: small enough for the second-level cache, large enough to hide call overhead."""


@dataclass(frozen=True)
class Elementwise:
    """`function` maps arrays of the source types to arrays of the result types (one array, or a tuple for several)."""

    function: Callable[..., Array | tuple[Array, ...]]
    results: tuple[str, ...]
    sources: tuple[str, ...]


Spec = Callable[[Instruction], Elementwise]
SpecTable = Mapping[str, Spec]


def build(inst: Instruction, spec: Elementwise, cx: BuildContext) -> InstructionRunner:
    """The instruction as a runner over the lanes of a batch."""
    first = inst.operands[0]
    targets = (first.first, first.second) if isinstance(first, Pair) else (first,)
    wanted = spec.results[: len(targets)]
    puts = [cx.sink(inst, target, kind) for target, kind in zip(targets, wanted, strict=True)]
    given = inst.operands[1:]
    if len(given) != len(spec.sources):
        raise cx.refuse(inst, f"{len(spec.sources)} sources wanted, {len(given)} given")
    gets = [cx.source(inst, operand, kind) for operand, kind in zip(given, spec.sources, strict=True)]
    f = spec.function
    if len(spec.results) > 1:

        def several(machine: Machine) -> None:
            for put, value in zip(puts, f(*(get(machine) for get in gets)), strict=False):
                put(machine, value)

        return several
    put = puts[0]
    if len(gets) == 2:
        get0, get1 = gets
        return lambda machine: put(machine, f(get0(machine), get1(machine)))  # type: ignore[arg-type]
    return lambda machine: put(machine, f(*(get(machine) for get in gets)))  # type: ignore[arg-type]


def packable(inst: Instruction, spec: Elementwise, cx: BuildContext) -> bool:
    """Whether the instruction reads registers or literals only, at their own width, and writes one register."""
    if len(spec.results) != 1 or inst.predicate is not None or len(inst.operands) != 1 + len(spec.sources):
        return False
    for operand, kind in zip(inst.operands, (*spec.results, *spec.sources), strict=True):
        if isinstance(operand, Immediate):
            continue
        slot = cx.slot(operand)
        if slot is None or slot.bits != type_bits(kind):
            return False
    return True


def literals_alike(one: Instruction, other: Instruction) -> bool:
    """Whether two packable instructions of one opcode may be packed together: literals at the same places."""
    return all(isinstance(a, Immediate) == isinstance(b, Immediate) for a, b in zip(one.operands, other.operands, strict=True))


def names(operand: PtxOperand) -> str | None:
    """The register that a packable operand names."""
    return operand.name if isinstance(operand, Register | Symbol) and operand.name != SINK else None


def pack(insts: Sequence[Instruction], spec: Elementwise, cx: BuildContext) -> InstructionRunner:
    """Independent instructions of one shape as one step over [instruction, lane]."""
    f, kind = spec.function, spec.results[0]
    target = _rows(insts, 0, cx)
    columns: list[tuple[str, Array]] = []
    for position, source in enumerate(spec.sources, 1):
        if isinstance(insts[0].operands[position], Immediate):
            columns.append(("", np.stack([cx.constant(inst, inst.operands[position], source) for inst in insts])))
        else:
            columns.append((source, _rows(insts, position, cx)))
    count = len(insts)

    @functools.cache
    def parts(step: int) -> list[tuple[Array | slice, list[tuple[str, Any]]]]:
        """Of so many instructions: rows of the results, and of each source or its literals."""
        cuts = [slice(low, low + step) for low in range(0, count, step)]
        return [(_run(target[cut]), [(name, _run(rows[cut]) if name else rows[cut]) for name, rows in columns]) for cut in cuts]

    def run(machine: Machine) -> None:
        registers, where = machine.registers, machine.where
        file = registers[kind]
        for rows, sources in parts(min(count, max(1, _PACK_ELEMENTS // machine.lanes))):
            result = f(*[registers[name][found] if name else found for name, found in sources])
            file[rows] = result if where is True else np.where(where, result, file[rows])

    return run


def _rows(insts: Sequence[Instruction], position: int, cx: BuildContext) -> Array:
    slots = [cx.slot(inst.operands[position]) for inst in insts]
    (cx.reads if position else cx.writes).update(filter(None, (names(inst.operands[position]) for inst in insts)))
    return np.array([slot.row for slot in slots if slot is not None])


def _run(rows: Array) -> Array | slice:
    """Consecutive rows as a slice, which copies nothing."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (len(rows) < 3 or bool(np.all(np.diff(rows) == 1))):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
