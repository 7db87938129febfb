"""Control flow: branches, exit, trap, nanosleep (PTX ISA, section 9.7.12)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, ControlBuilder, OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import EXITED, PARKED, RUNNING
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction, Negated, PtxOperand, Symbol


def _build_branch(inst: Instruction, cx: BuildContext) -> Continuation:
    target, following = cx.label(inst, inst.operands[0]), cx.following
    if inst.predicate is None:
        return lambda machine: target
    operand: PtxOperand = Negated(inst.predicate) if inst.negated else inst.predicate
    predicate = cx.source(inst, operand, "pred")

    def run(machine: Machine) -> int | None:
        mask = machine.mask
        taken = predicate(machine) if mask is None else predicate(machine) & mask
        count = int(np.count_nonzero(taken))
        if count == 0:
            return following
        if count == (machine.lanes if mask is None else int(np.count_nonzero(mask))):
            return target
        np.copyto(machine.pc, np.where(taken, target, following), where=True if mask is None else mask, casting="same_kind")
        return None

    return run


def _build_indexed(inst: Instruction, cx: BuildContext) -> Continuation:
    index = cx.source(inst, inst.operands[0], "u32")
    name = inst.operands[1]
    if not isinstance(name, Symbol) or name.name not in cx.tables:
        raise cx.refuse(inst, f"no table of branch targets {name}")
    targets = np.array([cx.labels[label] for label in cx.tables[name.name]])
    site = cx.site(inst)

    def run(machine: Machine) -> int | None:
        lanes = machine.lane_indices()
        chosen = over_lanes(machine, index(machine), lanes).astype(np.int64)
        if (chosen >= len(targets)).any():
            at = int(np.argmax(chosen))
            machine.found(KernelCheck.BOUNDS, site, f"index {int(chosen[at])} of {len(targets)} branch targets", int(lanes[at]))
            chosen = np.minimum(chosen, len(targets) - 1)
        machine.pc[lanes] = targets[chosen]
        return None

    return run


def leave(machine: Machine) -> None:
    """The lanes of the mask exit. Lanes of their warps that wait for them look again."""
    lanes = machine.lane_indices()
    machine.status[lanes] = EXITED
    machine.live[lanes] = False
    parked = machine.status == PARKED
    if parked.any():
        touched = np.zeros(machine.lanes // 32, dtype=bool)
        touched[machine.warp_of[lanes]] = True
        machine.status[parked & touched[machine.warp_of]] = RUNNING


def _build_exit(inst: Instruction, cx: BuildContext) -> Continuation:
    def run(machine: Machine) -> int | None:
        leave(machine)
        return None

    return run


def _build_trap(inst: Instruction, cx: BuildContext) -> Continuation:
    site = cx.site(inst)

    def run(machine: Machine) -> int | None:
        machine.found(KernelCheck.TRAP, site, "the kernel gave up", int(machine.lane_indices()[0]))
        return None

    return run


def _build_sleep(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    def run(machine: Machine) -> None:
        machine.level[np.unique(machine.warp_of[machine.lane_indices()])] += 1

    return run


CONTROL: Mapping[str, ControlBuilder] = {
    "bra": _build_branch,
    "brx.idx": _build_indexed,
    "ret": _build_exit,
    "exit": _build_exit,
    "trap": _build_trap,
    "brkpt": _build_trap,
}
SLEEP: Mapping[str, OrdinaryBuilder] = {"nanosleep": _build_sleep}
