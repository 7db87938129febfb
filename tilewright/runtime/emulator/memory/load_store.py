"""ld, st, prefetch, cvta, isspacep (PTX ISA, section 9.7.9)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.alu_function import Elementwise, SpecTable
from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from tilewright.runtime.emulator.memory.access import Access, load, store
from tilewright.runtime.emulator.ptx.ptx_syntax import SINK, Address, Instruction, Register, Symbol
from tilewright.runtime.emulator.ptx.ptx_types import type_bits

_SPACES = {
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "param": "param",
    "param::entry": "param",
    "param::func": "param",
}
"""State space of an instruction -> memory that holds it; constants lie in global memory."""


def space_of(inst: Instruction, cx: BuildContext, address: Address) -> str:
    """The memory an instruction touches; `generic` where the opcode names none."""
    space = next((_SPACES[p] for p in inst.parts if p in _SPACES), "generic")
    if space == "param" and isinstance(address.base, Symbol):
        return cx.place(inst, address.base.name).space
    return space


def access_of(inst: Instruction, cx: BuildContext, address: Address) -> Access:
    """Space, width and count from the opcode, as in ld.global.v4.b32."""
    count = next((int(p[1:]) for p in inst.parts if p in ("v2", "v4", "v8")), 1)
    return Access(cx.site(inst), space_of(inst, cx, address), type_bits(inst.parts[-1]) // 8, count)


def _build_load(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    target, where = inst.operands[:2]
    if not isinstance(where, Address):
        raise cx.refuse(inst, f"expected an address in brackets, found {where}")
    access, address, kind = access_of(inst, cx, where), cx.address(inst, where), inst.parts[-1]
    elements = cx.elements(target)
    if len(elements) != access.count:
        raise cx.refuse(inst, f"{access.count} results wanted, {len(elements)} given")
    rows: list[tuple[int, int, str]] = []
    for i, element in enumerate(elements):
        if isinstance(element, Register) and element.name == SINK:
            continue
        slot = cx.result(element)
        if slot is None or slot.bits < type_bits(kind):
            raise cx.refuse(inst, f"{element} is not a register of at least {type_bits(kind)} bits")
        rows.append((i, slot.row, f"{'s' if kind[0] == 's' else 'u'}{slot.bits}"))
    word = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{access.width}")

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        words = load(machine, access, over_lanes(machine, address(machine), lanes), lanes).view(word)
        for i, row, file in rows:
            if machine.mask is None:
                machine.registers[file][row] = words[:, i]
            else:
                machine.registers[file][row, lanes] = words[:, i]

    return run


def _build_store(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    where, value = inst.operands[:2]
    if not isinstance(where, Address):
        raise cx.refuse(inst, f"expected an address in brackets, found {where}")
    access, address, kind = access_of(inst, cx, where), cx.address(inst, where), inst.parts[-1]
    sources = [cx.source(inst, element, kind) for element in cx.elements(value)]
    if len(sources) != access.count:
        raise cx.refuse(inst, f"{access.count} values wanted, {len(sources)} given")
    if access.space == "param":
        raise cx.refuse(inst, "the parameters of a kernel cannot be written")
    word = np.dtype(f"u{access.width}")

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        values = np.empty((len(lanes), access.count), dtype=word)
        for i, get in enumerate(sources):
            values[:, i] = over_lanes(machine, get(machine), lanes).view(word)
        store(machine, access, over_lanes(machine, address(machine), lanes), lanes, values)

    return run


def _nothing(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """Hints that change no value."""
    return lambda machine: None


def _build_policy(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    put = cx.sink(inst, inst.operands[0], "b64")
    return lambda machine: put(machine, np.zeros(1, dtype=np.uint64))


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}


def _cvta(inst: Instruction) -> Elementwise:
    kind = inst.parts[-1]
    space = next(p.split("::")[0] for p in inst.parts if p.split("::")[0] in _WINDOWS)
    shift = _WINDOWS[space]
    if inst.has("to"):
        shift = -shift

    def f(a: Array) -> Array:
        return (a.view(np.int64) + shift).view(np.uint64) if shift else a

    return Elementwise(f, (kind,), (kind,))


def _isspacep(inst: Instruction) -> Elementwise:
    space = inst.parts[1].split("::")[0]
    ranges = {
        "global": (0, LOCAL_WINDOW),
        "const": (0, 0),
        "local": (LOCAL_WINDOW, PARAM_WINDOW),
        "param": (PARAM_WINDOW, SHARED_WINDOW),
        "shared": (SHARED_WINDOW, 1 << 62),
    }
    low, high = ranges[space]
    return Elementwise(lambda a: (a >= np.uint64(low)) & (a < np.uint64(high)), ("pred",), ("u64",))


LOAD_STORE: Mapping[str, OrdinaryBuilder] = {
    "ld": _build_load,
    "ldu": _build_load,
    "st": _build_store,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "applypriority": _nothing,
    "discard": _nothing,
    "createpolicy": _build_policy,
    "membar": _nothing,
    "fence": _nothing,
    "griddepcontrol": _nothing,
    "setmaxnreg": _nothing,
    "pmevent": _nothing,
}
ADDRESSES: SpecTable = {"cvta": _cvta, "isspacep": _isspacep}
