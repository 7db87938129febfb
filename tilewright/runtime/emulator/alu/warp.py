"""Warp instructions: shfl, vote, match, redux, elect, bar.warp.sync (PTX ISA, sections 9.7.9.6 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder, WarpBuilder, WarpStep
from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.emulator.ptx.ptx_types import numpy_type
from tilewright.runtime.limits import WARP


def packed(mask: Array) -> Array:
    """One uint32 per warp with the bits of its lanes."""
    bits = np.packbits(mask.reshape(-1, WARP), axis=1, bitorder="little")
    return np.asarray(bits.view(np.uint32)[:, 0])


def _over_warps(machine: Machine, value: Array) -> Array:
    return np.broadcast_to(value, (machine.lanes,)).reshape(-1, WARP)


def _members(inst: Instruction, cx: BuildContext) -> Callable[[Machine], Array]:
    return cx.source(inst, inst.operands[-1], "u32")


def _partners(machine: Machine, members: Callable[[Machine], Array]) -> Array:
    """[warp, lane] lanes that execute and are in their own mask."""
    mask = _over_warps(machine, members(machine))
    inside = (mask >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1) != 0
    return np.asarray(machine.active().reshape(-1, WARP) & inside)


def _build_shuffle(inst: Instruction, cx: BuildContext) -> WarpStep:
    mode = inst.parts[2]
    target, flag = cx.predicate_pair(inst.operands[0])
    put, put_flag = cx.sink(inst, target, "b32"), cx.sink(inst, flag, "pred")
    value = cx.source(inst, inst.operands[1], "b32")
    amount, control = (cx.source(inst, operand, "u32") for operand in inst.operands[2:4])
    members, site = _members(inst, cx), cx.site(inst)

    def run(machine: Machine) -> None:
        lane = machine.all_lanes % WARP
        b, c = amount(machine).astype(np.int64) & 31, control(machine).astype(np.int64)
        segment = (c >> 8) & 31
        low = lane & segment
        high = low | (c & 31 & ~segment)
        match mode:
            case "up":
                source, ok = lane - b, lane - b >= high
            case "down":
                source, ok = lane + b, lane + b <= high
            case "bfly":
                source, ok = lane ^ b, lane ^ b <= high
            case _:
                source, ok = low | (b & ~segment), (low | (b & ~segment)) <= high
        source = np.where(ok, source, lane) + machine.all_lanes - lane
        present = _partners(machine, members).reshape(-1)
        bad = machine.active() & ~present[source]
        if bad.any():
            at = int(np.argmax(bad))
            machine.found(KernelCheck.WARP, site, f"reads lane {int(source[at]) % WARP}, which does not take part", at)
        data = np.broadcast_to(value(machine), (machine.lanes,))[source]
        put(machine, data)
        put_flag(machine, np.broadcast_to(ok, (machine.lanes,)))

    return WarpStep(members, run)


def _build_vote(inst: Instruction, cx: BuildContext) -> WarpStep:
    mode, members = inst.parts[2], _members(inst, cx)
    predicate = cx.source(inst, inst.operands[1], "pred")
    put = cx.sink(inst, inst.operands[0], "b32" if mode == "ballot" else "pred")

    def run(machine: Machine) -> None:
        here, truth = _partners(machine, members), _over_warps(machine, predicate(machine))
        if mode == "ballot":
            result = packed(here & truth)
        elif mode == "any":
            result = np.asarray((here & truth).any(axis=1))
        else:
            every = np.asarray((~here | truth).all(axis=1))
            result = every if mode == "all" else every | ~(here & truth).any(axis=1)
        put(machine, np.repeat(result, WARP))

    return WarpStep(members, run)


def _build_match(inst: Instruction, cx: BuildContext) -> WarpStep:
    mode, kind, members = inst.parts[1], inst.parts[-1], _members(inst, cx)
    target, flag = cx.predicate_pair(inst.operands[0])
    put, put_flag = cx.sink(inst, target, "b32"), cx.sink(inst, flag, "pred")
    value = cx.source(inst, inst.operands[1], kind)

    def run(machine: Machine) -> None:
        here, x = _partners(machine, members), _over_warps(machine, value(machine))
        same = (x[:, :, None] == x[:, None, :]) & here[:, None, :]
        if mode == "any":
            bits = np.packbits(same, axis=2, bitorder="little").view(np.uint32)
            put(machine, bits.reshape(-1))
            return
        everyone = (same | ~here[:, None, :]).all(axis=2)
        put(machine, np.where(everyone, packed(here)[:, None], np.uint32(0)).reshape(-1))
        put_flag(machine, everyone.reshape(-1))

    return WarpStep(members, run)


def _build_redux(inst: Instruction, cx: BuildContext) -> WarpStep:
    operation, kind, members = inst.parts[2], inst.parts[-1], _members(inst, cx)
    value, put = cx.source(inst, inst.operands[1], kind), cx.sink(inst, inst.operands[0], kind)
    absolute, nan = inst.has("abs"), inst.has("NaN")
    dtype = numpy_type(kind)
    low, high = (-np.inf, np.inf) if kind == "f32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    table: dict[str, tuple[np.ufunc, float | int]] = {
        "add": (np.add, 0),
        "min": (np.minimum if nan or kind != "f32" else np.fmin, high),
        "max": (np.maximum if nan or kind != "f32" else np.fmax, low),
        "and": (np.bitwise_and, 0xFFFFFFFF),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
    }
    function, neutral = table[operation]

    def run(machine: Machine) -> None:
        x = _over_warps(machine, value(machine))
        x = np.abs(x) if absolute else x
        chosen = np.where(_partners(machine, members), x, np.array(neutral).astype(dtype))
        put(machine, np.repeat(function.reduce(chosen, axis=1, dtype=dtype), WARP))

    return WarpStep(members, run)


def _build_elect(inst: Instruction, cx: BuildContext) -> WarpStep:
    members = _members(inst, cx)
    target, flag = cx.predicate_pair(inst.operands[0])
    put, put_flag = cx.sink(inst, target, "b32"), cx.sink(inst, flag, "pred")

    def run(machine: Machine) -> None:
        leader = np.repeat(np.argmax(_partners(machine, members), axis=1), WARP)
        put(machine, leader.astype(np.uint32))
        put_flag(machine, leader == machine.all_lanes % WARP)

    return WarpStep(members, run)


def _build_sync(inst: Instruction, cx: BuildContext) -> WarpStep:
    """bar.warp.sync orders the memory accesses of the warp's threads."""
    members = _members(inst, cx)

    def run(machine: Machine) -> None:
        if machine.shared.races is not None:
            machine.shared.races.release(np.unique(machine.warp_of[machine.lane_indices()]))

    return WarpStep(members, run)


def _build_active(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    put = cx.sink(inst, inst.operands[0], "b32")
    return lambda machine: put(machine, np.repeat(packed(machine.active()), WARP))


WARP_STEPS: Mapping[str, WarpBuilder] = {
    "shfl.sync": _build_shuffle,
    "vote.sync": _build_vote,
    "match": _build_match,
    "redux.sync": _build_redux,
    "elect.sync": _build_elect,
    "bar.warp.sync": _build_sync,
}
ACTIVE: Mapping[str, OrdinaryBuilder] = {"activemask": _build_active}
