"""atom and red on global and shared memory (PTX ISA, section 9.7.13): lanes update in lane order, or in an order by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.runtime.emulator.alu.arith_float import decode, encode, is_float
from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.memory.access import Access, AccessTarget, report_race, resolve, space_windows
from tilewright.runtime.emulator.memory.load_store import space_of
from tilewright.runtime.emulator.ptx.ptx_syntax import SINK, Address, Instruction
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type, type_bits

_OPERATIONS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
_UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _update(operation: str, kind: str) -> Callable[[Array, list[Array]], Array]:
    """New value from the old one and the operands, all of the type that holds `kind`."""
    if is_float(kind) and operation in ("add", "min", "max"):
        f = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]
        return lambda old, given: encode(kind, f(decode(kind, old, len(old)), decode(kind, given[0], len(old))))
    if operation == "exch":
        return lambda old, given: given[0]
    if operation == "cas":
        return lambda old, given: np.where(old == given[0], given[1], old)
    if operation == "inc":
        return lambda old, given: np.where(old >= given[0], old.dtype.type(0), old + old.dtype.type(1))
    if operation == "dec":
        return lambda old, given: np.where((old == 0) | (old > given[0]), given[0], old - old.dtype.type(1))
    g = _UFUNCS[operation]
    return lambda old, given: np.asarray(g(old, given[0]))


def _rounds(offsets: Array) -> list[Array]:
    """Positions split so that each part has distinct offsets, earlier positions in earlier parts."""
    order = np.argsort(offsets, kind="stable")
    sorted_offsets = offsets[order]
    starts = np.flatnonzero(np.r_[True, sorted_offsets[1:] != sorted_offsets[:-1]])
    if len(starts) == len(offsets):
        return [np.arange(len(offsets))]
    lengths = np.diff(np.r_[starts, len(offsets)])
    rank = np.empty(len(offsets), dtype=np.int64)
    rank[order] = np.arange(len(offsets)) - np.repeat(starts, lengths)
    by_rank = np.argsort(rank, kind="stable")
    return np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])


def _apply(
    machine: Machine, access: Access, kind: str, operation: str, addresses: Array, lanes: Array, given: list[Array]
) -> Array:
    """Old values per lane, as the type that holds `kind`."""
    dtype = numpy_type(kind)
    target = resolve(machine, access, addresses, lanes)
    machine.statistics.bytes_read[access.space] += len(lanes) * access.size
    machine.statistics.bytes_written[access.space] += len(lanes) * access.size
    given = given if target.kept is None else [g[target.kept] for g in given]
    _check(machine, access, target, addresses)
    old = np.zeros(len(target.lanes), dtype=dtype)
    update, word = _update(operation, kind), np.dtype(f"u{access.width}")
    positions = np.arange(len(target.lanes)) if machine.rng is None else machine.rng.permutation(len(target.lanes))
    for part in _rounds(target.offsets[positions]) if len(positions) else []:
        at = positions[part]
        before = target.storage.gather(target.offsets[at], access.width, 1)[:, 0].view(dtype)
        old[at] = before
        after = np.ascontiguousarray(update(before, [g[at] for g in given]), dtype=dtype)
        target.storage.scatter(target.offsets[at], after.view(word)[:, None])
    if target.kept is None:
        return old
    full = np.zeros(len(lanes), dtype=dtype)
    full[target.kept] = old
    return full


def _check(machine: Machine, access: Access, target: AccessTarget, addresses: Array) -> None:
    if access.space == "shared" and machine.shared.races is not None and len(target.lanes):
        lanes = target.lanes
        granules = machine.shared.granules(target.offsets, access.size)
        warp, thread = machine.warp_of[lanes], machine.group_thread_of[lanes]
        race = machine.shared.races.write(granules, warp, thread, access.site.line, atomic=True)
        report_race(machine, access, target, race, "updates")
    if machine.wants(KernelCheck.UNINITIALISED):
        written = target.storage.written(target.offsets, access.size)
        if written is not None:
            at = int(np.argmin(written))
            message = f"updates {access.size} bytes of {access.space} memory that were not written"
            origin = at if target.kept is None else int(target.kept[at])
            machine.found(KernelCheck.UNINITIALISED, access.site, message, int(target.lanes[at]), int(addresses[origin]))


def _build(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    operands = inst.operands if inst.parts[0] == "atom" else (None, *inst.operands)
    target, where, given = operands[0], operands[1], operands[2:]
    if not isinstance(where, Address):
        raise cx.refuse(inst, f"expected an address in brackets, found {where}")
    operation = next((p for p in inst.parts if p in _OPERATIONS), "")
    if not operation:
        raise cx.refuse(inst, f"the operation is none of {', '.join(_OPERATIONS)}")
    kind = inst.parts[-1]
    width = type_bits(kind) // 8
    sources = 2 if operation == "cas" else 1
    space, address, site = space_of(inst, cx, where), cx.address(inst, where), cx.site(inst)
    count = next((int(p[1:]) for p in inst.parts if p in ("v2", "v4", "v8")), 1)
    values = [[cx.source(inst, e, kind) for e in cx.elements(operand)] for operand in given[:sources] if operand is not None]
    puts = [] if target is None or getattr(target, "name", "") == SINK else [cx.sink(inst, e, kind) for e in cx.elements(target)]

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        base = over_lanes(machine, address(machine), lanes)
        for i in range(count):
            numbers = [over_lanes(machine, source[i](machine), lanes) for source in values]
            old = np.zeros(len(lanes), dtype=numpy_type(kind))
            parts = space_windows(base) if space == "generic" else [(space, None, 0)]
            for name, chosen, shift in parts:
                access = Access(site, name, width)
                if chosen is None:
                    old = _apply(machine, access, kind, operation, base + i * width, lanes, numbers)
                else:
                    some = [n[chosen] for n in numbers]
                    old[chosen] = _apply(machine, access, kind, operation, base[chosen] - shift + i * width, lanes[chosen], some)
            if puts:
                full = np.zeros(machine.lanes, dtype=old.dtype)
                full[lanes] = old
                puts[i](machine, full)

    return run


ATOMICS: Mapping[str, OrdinaryBuilder] = {"atom": _build, "red": _build}
