"""Control flow: branches, exit, barriers, trap (PTX ISA, sections 9.7.12 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from runtime.emulator.batch import EXITED, PARKED, RUNNING, Batch, Runner
from runtime.emulator.findings import Check
from runtime.emulator.formats import Array
from runtime.emulator.operands import BuildContext, over_lanes
from runtime.emulator.ptx import Instruction, Negated, Operand, Symbol
from runtime.emulator.table import Builder, Continuation, ControlBuilder


def _build_branch(inst: Instruction, cx: BuildContext) -> Continuation:
    target, following = cx.label(inst, inst.operands[0]), cx.following
    if inst.predicate is None:
        return lambda s: target
    operand: Operand = Negated(inst.predicate) if inst.negated else inst.predicate
    predicate = cx.source(inst, operand, "pred")

    def run(s: Batch) -> int | None:
        mask = s.mask
        taken = predicate(s) if mask is None else predicate(s) & mask
        count = int(np.count_nonzero(taken))
        if count == 0:
            return following
        if count == (s.lanes if mask is None else int(np.count_nonzero(mask))):
            return target
        np.copyto(s.pc, np.where(taken, target, following), where=True if mask is None else mask, casting="same_kind")
        return None

    return run


def _build_indexed(inst: Instruction, cx: BuildContext) -> Continuation:
    index = cx.source(inst, inst.operands[0], "u32")
    name = inst.operands[1]
    if not isinstance(name, Symbol) or name.name not in cx.tables:
        raise cx.refuse(inst, f"no table of branch targets {name}")
    targets = np.array([cx.labels[label] for label in cx.tables[name.name]])
    site = cx.site(inst)

    def run(s: Batch) -> int | None:
        lanes = s.lane_indices()
        chosen = over_lanes(s, index(s), lanes).astype(np.int64)
        if (chosen >= len(targets)).any():
            at = int(np.argmax(chosen))
            s.found(Check.BOUNDS, site, f"index {int(chosen[at])} of {len(targets)} branch targets", int(lanes[at]))
            chosen = np.minimum(chosen, len(targets) - 1)
        s.pc[lanes] = targets[chosen]
        return None

    return run


def leave(s: Batch) -> None:
    """The lanes of the mask exit. Lanes of their warps that wait for them look again."""
    lanes = s.lane_indices()
    s.status[lanes] = EXITED
    s.live[lanes] = False
    parked = s.status == PARKED
    if parked.any():
        touched = np.zeros(s.lanes // 32, dtype=bool)
        touched[s.warp_of[lanes]] = True
        s.status[parked & touched[s.warp_of]] = RUNNING


def _build_exit(inst: Instruction, cx: BuildContext) -> Continuation:
    def run(s: Batch) -> int | None:
        leave(s)
        return None

    return run


def _build_trap(inst: Instruction, cx: BuildContext) -> Continuation:
    site = cx.site(inst)

    def run(s: Batch) -> int | None:
        s.found(Check.TRAP, site, "the kernel gave up", int(s.lane_indices()[0]))
        return None

    return run


def _build_barrier(inst: Instruction, cx: BuildContext) -> Continuation:
    """bar.sync a{, b}; bar.arrive a, b; bar.red.op d, a{, b}, {!}p; `barrier.` likewise."""
    reduces, waits = inst.has("red"), not inst.has("arrive")
    aligned = inst.parts[0] == "bar" or inst.has("aligned")
    operands = inst.operands[1:-1] if reduces else inst.operands
    identity = cx.source(inst, operands[0], "s32")
    count = cx.source(inst, operands[1], "s32") if len(operands) > 1 else None
    predicate = cx.source(inst, inst.operands[-1], "pred") if reduces else None
    site, following = cx.site(inst), cx.following
    result = _reduction(inst, cx) if reduces else None
    plain = count is None and waits and not reduces

    def run(s: Batch) -> int | None:
        together = plain and s.mask is None and s.rng is None and not s.barriers.arrived.any()
        if together and len(np.unique(identity(s))) == 1:
            s.barriers.all_at_once(s)
            return following
        lanes = s.lane_indices()
        s.pc[lanes] = following
        s.barriers.sites[following] = site, aligned
        if result is not None and predicate is not None:
            s.barriers.results[following] = result
            s.barriers.values[lanes] = over_lanes(s, predicate(s), lanes)
        ids = over_lanes(s, identity(s), lanes).astype(np.int64)
        counts = None if count is None else over_lanes(s, count(s), lanes).astype(np.int64)
        s.barriers.arrive(s, site, lanes, ids, counts, waits)
        return None

    return run


def _reduction(inst: Instruction, cx: BuildContext) -> Callable[[Batch, Array], None]:
    popc, every = inst.has("popc"), inst.has("and")
    put = cx.sink(inst, inst.operands[0], "u32" if popc else "pred")

    def write(s: Batch, values: Array) -> None:
        if popc:
            put(s, np.array([values.sum()], dtype=np.uint32))
        else:
            put(s, np.array([values.all() if every else values.any()]))

    return write


def _build_sleep(inst: Instruction, cx: BuildContext) -> Runner:
    def run(s: Batch) -> None:
        s.level[np.unique(s.warp_of[s.lane_indices()])] += 1

    return run


CONTROL: Mapping[str, ControlBuilder] = {
    "bra": _build_branch,
    "brx.idx": _build_indexed,
    "ret": _build_exit,
    "exit": _build_exit,
    "trap": _build_trap,
    "brkpt": _build_trap,
    "bar.sync": _build_barrier,
    "bar.arrive": _build_barrier,
    "bar.red": _build_barrier,
    "bar.cta": _build_barrier,
    "barrier.sync": _build_barrier,
    "barrier.arrive": _build_barrier,
    "barrier.red": _build_barrier,
    "barrier.cta": _build_barrier,
}
SLEEP: Mapping[str, Builder] = {"nanosleep": _build_sleep}
