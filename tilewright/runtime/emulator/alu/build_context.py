"""Operands made ready: how an instruction reads its sources and writes its results for all lanes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.emulator.alu.special import is_special, special_register
from tilewright.runtime.emulator.machine.findings import EmulatorError, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import (
    SINK,
    Address,
    Immediate,
    Instruction,
    Negated,
    Pair,
    PtxOperand,
    Register,
    Symbol,
    Vector,
)
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits

LaneSource = Callable[[Machine], Array]
LaneSink = Callable[[Machine, Array], None]


@dataclass(frozen=True)
class Slot:
    """Where a register lives: its width in bits (1: predicate) and its row in that file."""

    bits: int
    row: int

    @property
    def file(self) -> str:
        return "pred" if self.bits == 1 else f"b{self.bits}"


@dataclass(frozen=True)
class VariablePlace:
    """Where a variable lives: state space, address in that space (offset for parameters), bytes."""

    space: str
    address: int
    size: int


@dataclass
class BuildContext:
    """What an instruction needs to become ready to execute: registers, variables, labels of one kernel.

    reads, writes: names of the registers of the instruction that is made ready, as they are asked for. written: those that
    instructions before it in the text write; unfenced: of these, since the last wgmma.fence of the text.
    """

    kernel: str
    slots: Mapping[str, Slot]
    variables: Mapping[str, VariablePlace]
    labels: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    following: int = 0
    race_granule: int = 4
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    unfenced: set[str] = field(default_factory=set)

    def site(self, inst: Instruction) -> PtxSite:
        return PtxSite(self.kernel, inst.line, inst.text)

    def refuse(self, inst: Instruction, why: str) -> EmulatorError:
        return EmulatorError(f"{self.site(inst)}: {why}")

    def slot(self, operand: PtxOperand) -> Slot | None:
        """The slot of a register operand; None for anything else."""
        if isinstance(operand, Register):
            return self.slots.get(operand.name)
        return self.slots.get(operand.name) if isinstance(operand, Symbol) and not operand.offset else None

    def result(self, operand: PtxOperand) -> Slot | None:
        """The slot of a register that the instruction writes; None for anything else."""
        slot = self.slot(operand)
        if slot is not None:
            self.writes.add(operand.name)  # type: ignore[union-attr]
        return slot

    def _read(self, operand: PtxOperand) -> Slot | None:
        slot = self.slot(operand)
        if slot is not None:
            self.reads.add(operand.name)  # type: ignore[union-attr]
        return slot

    def label(self, inst: Instruction, operand: PtxOperand) -> int:
        if isinstance(operand, Symbol) and operand.name in self.labels:
            return self.labels[operand.name]
        raise self.refuse(inst, f"no label {operand}")

    def place(self, inst: Instruction, name: str) -> VariablePlace:
        found = self.variables.get(name)
        if found is None:
            raise self.refuse(inst, f"the name {name!r} is not declared")
        return found

    def source(self, inst: Instruction, operand: PtxOperand, kind: str) -> LaneSource:
        """Reads `operand` as PTX type `kind`: an array over lanes, or of one element for a constant."""
        if isinstance(operand, Negated):
            inner = self.source(inst, operand.register, "pred")
            return lambda machine: ~inner(machine)
        slot = self._read(operand)
        dtype = numpy_type(kind)
        if slot is not None:
            row, bits = slot.row, type_bits(kind)
            if slot.bits == bits:
                return lambda machine: machine.registers[kind][row]
            if slot.bits == 1 or kind == "pred" or slot.bits < bits:
                raise self.refuse(inst, f"{operand} has {slot.bits} bits, the instruction reads {kind}")
            file, unsigned = slot.file, np.dtype(f"u{bits // 8}")
            return lambda machine: machine.registers[file][row].astype(unsigned).view(dtype)
        if isinstance(operand, Register) and is_special(operand.name):
            get = special_register(operand.name)
            return lambda machine: get(machine).astype(dtype)
        constant = self.constant(inst, operand, kind)
        return lambda machine: constant

    def constant(self, inst: Instruction, operand: PtxOperand, kind: str) -> Array:
        """The value of a literal, or the address of a variable, as one element of PTX type `kind`."""
        dtype = numpy_type(kind)
        if isinstance(operand, Immediate):
            if kind == "pred":
                return np.array([operand.value != 0])
            bits = type_bits(kind)
            value = operand.value
            if operand.float_bits and kind[0] == "f" and operand.float_bits != bits:
                wide = np.array([value], dtype=f"u{operand.float_bits // 8}").view(f"f{operand.float_bits // 8}")
                return wide.astype(dtype)
            return np.array([value & ((1 << bits) - 1)], dtype=f"u{bits // 8}").view(dtype)
        if isinstance(operand, Symbol):
            place = self.place(inst, operand.name)
            return np.array([place.address + operand.offset]).astype(f"u{type_bits(kind) // 8}").view(dtype)
        raise self.refuse(inst, f"operand {operand} cannot be read as {kind}")

    def sink(self, inst: Instruction, operand: PtxOperand, kind: str) -> LaneSink:
        """Writes an array of `kind` to a register, extended to the register's width by the type's sign."""
        if isinstance(operand, Register | Symbol) and operand.name == SINK:
            return lambda machine, value: None
        slot = self.result(operand)
        if slot is None:
            raise self.refuse(inst, f"{operand} is not a register of this kernel")
        row, bits = slot.row, type_bits(kind)
        if slot.bits == bits:

            def put(machine: Machine, value: Array) -> None:
                if machine.where is True:
                    machine.registers[kind][row] = value
                else:
                    np.copyto(machine.registers[kind][row], value, where=machine.where)

            return put
        if slot.bits < bits or slot.bits == 1:
            raise self.refuse(inst, f"{operand} has {slot.bits} bits, the instruction writes {kind}")
        wide = f"{'s' if kind[0] == 's' else 'u'}{slot.bits}"
        narrow, dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}"), numpy_type(wide)

        def put_wide(machine: Machine, value: Array) -> None:
            np.copyto(machine.registers[wide][row], value.view(narrow).astype(dtype), where=machine.where)

        return put_wide

    def address(self, inst: Instruction, operand: PtxOperand) -> Callable[[Machine], Array]:
        """Reads the address of a memory operand as int64 over lanes (or one element)."""
        if not isinstance(operand, Address):
            raise self.refuse(inst, f"expected an address in brackets, found {operand}")
        base: PtxOperand = operand.base
        slot = self._read(base)
        if slot is None:
            offset = operand.offset + (base.value if isinstance(base, Immediate) else 0)
            if isinstance(base, Symbol):
                offset += base.offset + self.place(inst, base.name).address
            elif isinstance(base, Register):
                raise self.refuse(inst, f"{base.name} is not a register of this kernel")
            constant = np.array([offset], dtype=np.int64)
            return lambda machine: constant
        row, kind, shift = slot.row, "s64" if slot.bits == 64 else "u32", operand.offset
        if kind == "u32":
            return lambda machine: machine.registers[kind][row].astype(np.int64) + shift
        if shift:
            return lambda machine: machine.registers[kind][row] + shift
        return lambda machine: machine.registers[kind][row]

    def elements(self, operand: PtxOperand) -> tuple[PtxOperand, ...]:
        """The elements of a vector operand; a scalar is a vector of one."""
        return operand.elements if isinstance(operand, Vector) else (operand,)

    def predicate_pair(self, operand: PtxOperand) -> tuple[PtxOperand, PtxOperand]:
        """Both results of `d|p`; the second is the sink where there is only one."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Register(SINK))


def over_lanes(machine: Machine, value: Array, lanes: Array) -> Array:
    """The values of the lanes with these indices; constants are repeated."""
    if value.shape[-1] == 1:
        return value.repeat(len(lanes))
    return value if len(lanes) == machine.lanes else value[lanes]
