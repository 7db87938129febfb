"""wgmma: products of a warpgroup that read shared memory by descriptors and finish at a wait (PTX ISA, section 9.7.15).

Each warp of the four computes 16 of the 64 rows, so a warp's share is modelled alone. Operands are read and registers written
when the product finishes: at the wait for its group, with a seed at a random time before. Until then the registers hold NaN.
A left operand in registers is as it was at the product; whether the registers are still so is checked when it finishes, and
whether a fence stands between their last writer and the product where the kernel is made ready.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, LaneSource
from tilewright.runtime.emulator.alu.instruction_kinds import WarpBuilder, WarpStep
from tilewright.runtime.emulator.alu.tensor_core import Decoder, decoder
from tilewright.runtime.emulator.alu.warp_registers import LANE, read_warps, whole_warps
from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.machine.storage import SHARED_BASE
from tilewright.runtime.emulator.memory.access import Access
from tilewright.runtime.emulator.memory.tensor_maps import swizzled
from tilewright.runtime.emulator.ptx.ptx_syntax import Immediate, Instruction
from tilewright.runtime.emulator.sync.async_proxy import AsyncProxy
from tilewright.runtime.limits import WARP

_POISON = 0x7FC0DEAD
_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_CHUNK = 16
_DEPTH = 32  # bytes of k
_FINISHES = 0.2
_KEPT_BITS = 14
_A_REGISTERS = 4  # of a left operand in registers


@dataclass(frozen=True)
class ProductShape:
    """What the opcode says: columns, depth, element types, and whether operands are contiguous along the outer axis."""

    n: int
    k: int
    decode: tuple[Decoder, Decoder]
    turned: tuple[bool, bool]
    whole: bool
    element: int

    @property
    def is_cut(self) -> bool:
        """Are sums of 8-bit floats kept, of which tensor cores drop bits?"""
        return self.element == 1 and not self.whole


@dataclass
class Pending:
    """Products in flight of some warps. rows: registers of the sums; start: what is added to, [register, warp, lane], None for
    zeros. chained: the sums are those of a product before, in the same registers. left: descriptors, or the registers [warp,
    lane, register] of the left operand, which are read by `held`."""

    shape: ProductShape
    access: Access
    warps: Array
    left: Array
    held: list[LaneSource]
    right: Array
    rows: Array
    start: Array | None
    chained: Array
    group: Array
    names: tuple[str, ...]
    done: Array


class WgmmaQueue:
    """Products in flight of a batch, in order; groups committed and whether a fence precedes the next product, by warp."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.warps = blocks * geometry.warps
        self.pending: list[Pending] = []
        self.committed = np.zeros(self.warps, dtype=np.int64)
        self.fenced = np.zeros(self.warps, dtype=bool)
        self.begun: dict[tuple[str, ...], Array] = {}

    def begin(self, warps: Array, names: tuple[str, ...]) -> Array:
        """For each warp: has it computed products in the registers `names` before?"""
        begun = self.begun.setdefault(names, np.zeros(self.warps, dtype=bool))
        before = begun[warps]
        begun[warps] = True
        return before

    def chained(self, warps: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
        """For each warp: are the registers `names` those of a product in flight; do they only overlap with one?"""
        same, overlap = np.zeros(len(warps), dtype=bool), np.zeros(len(warps), dtype=bool)
        for p in self.pending:
            running = np.zeros(self.warps, dtype=bool)
            running[p.warps[~p.done]] = True
            busy = running[warps]
            if p.names == names:
                same |= busy
            elif set(p.names) & set(names):
                overlap |= busy
        return same, overlap

    def finish_groups(self, machine: Machine, warps: Array, allowed: int) -> None:
        """Finishes, for these warps, all groups but the latest `allowed` committed ones."""
        limit = np.full(self.warps, -1, dtype=np.int64)
        limit[warps] = self.committed[warps] - allowed
        for p in self.pending:
            due = ~p.done & (p.group < limit[p.warps])
            if due.any():
                _compute(machine, p, due)
        self.pending = [p for p in self.pending if not p.done.all()]

    def drift(self, machine: Machine, warps: Array) -> None:
        """With a seed: finish what these warps have in flight, some of the time."""
        if machine.rng is not None and machine.rng.random() < _FINISHES:
            here = np.zeros(self.warps, dtype=bool)
            here[warps] = True
            for p in self.pending:
                due = ~p.done & here[p.warps]
                if due.any():
                    _compute(machine, p, due)
            self.pending = [p for p in self.pending if not p.done.all()]

    def finish(self, machine: Machine) -> None:
        """The kernel has ended."""
        for p in self.pending[:1]:
            lane = int(p.warps[~p.done][0]) * WARP
            machine.found(KernelCheck.UNFINISHED, p.access.site, "the kernel ends before the product is waited for", lane)


def _addresses(descriptors: Array, outer: Array, along: Array, shape: ProductShape, turned: bool) -> Array:
    """Addresses [warp, outer, along] in the shared space of positions of an operand; outer: of each warp.

    Rows of 128 bytes (or the width of the swizzle) run along k, or along the outer axis when the operand is turned.
    """
    d = descriptors.astype(np.int64)
    start, lead, stride = (d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4
    mode = int(d[0] >> 62 & 3)
    width = _SWIZZLES[mode] or _CHUNK
    start, lead, stride = (x[:, None, None] for x in (start, lead, stride))
    o, k = outer[:, :, None], along[None, None, :]
    if turned:
        per = width // shape.element
        linear = start + o // per * lead + k // 8 * stride + k % 8 * width + o % per * shape.element
    else:
        linear = start + o // 8 * stride + o % 8 * width + k * shape.element
        if not mode:
            linear = start + o // 8 * stride + o % 8 * _CHUNK + k * shape.element // _CHUNK * lead + k * shape.element % _CHUNK
    return swizzled(linear, _SWIZZLES[mode])


def _operand(machine: Machine, p: Pending, due: Array, which: int, outer: Array) -> Array:
    """[warp, outer, k] values of an operand, which lie in chunks of 16 bytes."""
    shape, descriptors = p.shape, (p.left, p.right)[which][due]
    warps, turned = p.warps[due], shape.turned[which]
    per = _CHUNK // shape.element
    rows = outer[:: per if turned else 1] + (warps % machine.geometry.warps % 4 * 16)[:, None] * (which == 0)
    at = _addresses(descriptors, rows, np.arange(0, shape.k, 1 if turned else per), shape, turned)
    base = machine.block_of[warps * WARP] * machine.shared.stride
    offsets = at - SHARED_BASE + base[:, None, None]
    inside = (at >= SHARED_BASE) & (at - SHARED_BASE + _CHUNK <= machine.shared.size)
    if not inside.all():
        w = int(np.nonzero(~inside)[0][0])
        byte = int(at[~inside][0]) - SHARED_BASE
        message = f"a descriptor leads to {_CHUNK} bytes at byte {byte} of {machine.shared.size} bytes of shared memory"
        machine.found(KernelCheck.BOUNDS, p.access.site, message, int(warps[w]) * WARP)
        offsets = np.where(inside, offsets, 0)
    flat = offsets.reshape(-1)
    machine.unit(AsyncProxy).read(machine, p.access, flat, np.repeat(warps * WARP, offsets[0].size))
    values = shape.decode[which](machine.shared.gather(flat, 4, _CHUNK // 4)).reshape(*offsets.shape, per)
    return np.asarray(values.swapaxes(2, 3) if turned else values).reshape(len(warps), len(outer), shape.k)


def _from_registers(machine: Machine, p: Pending, due: Array) -> Array:
    """[warp, row, k] values of a left operand in registers."""
    warps, words = p.warps[due], np.ascontiguousarray(p.left[due])
    changed = (read_warps(machine, p.held, warps) != words).any(axis=2)
    if changed.any():
        w, lane = (int(i[0]) for i in np.nonzero(changed))
        message = "registers of the left operand are written while the product is in flight"
        machine.found(KernelCheck.UNFINISHED, p.access.site, message, int(warps[w]) * WARP + lane)
    values = p.shape.decode[0](words).reshape(len(warps), WARP, _A_REGISTERS, -1)
    per = values.shape[-1]
    register, along = np.arange(_A_REGISTERS)[:, None], np.arange(per)
    found = np.empty((len(warps), 16, p.shape.k))
    rows = LANE[:, None, None] // 4 + 8 * (register % 2)
    columns = LANE[:, None, None] % 4 * per + register // 2 * 4 * per + along
    found[:, np.broadcast_to(rows, columns.shape), columns] = values
    return found


def _compute(machine: Machine, p: Pending, due: Array) -> None:
    """Finishes the products of the due warps: reads, multiplies, writes the registers."""
    p.done |= due
    warps = p.warps[due]
    a = _from_registers(machine, p, due) if p.held else _operand(machine, p, due, 0, np.arange(16))
    b = _operand(machine, p, due, 1, np.arange(p.shape.n))
    total = _by_register(np.matmul(a, b.transpose(0, 2, 1)))
    kind = np.int32 if p.shape.whole else np.float32
    total += 0.0 if p.start is None else p.start[:, due].view(kind)
    chained = p.chained[due]
    if chained.any():
        total[:, chained] += _sums(machine)[p.rows[:, None], warps[chained]].view(kind)
    total = _cut(total) if p.shape.is_cut else total
    _sums(machine)[p.rows[:, None], warps] = total.astype(kind).view(np.uint32)


def _by_register(products: Array) -> Array:
    """[register, warp, lane] of [warp, row, column]."""
    count, _, n = products.shape
    parts = products.reshape(count, 2, 8, n // 8, 4, 2)  # a register is of a column of 8, a row of 8 and one of two
    return np.ascontiguousarray(parts.transpose(3, 1, 5, 0, 2, 4)).reshape(n // 2, count, WARP)


def _sums(machine: Machine) -> Array:
    """Registers of 32 bits, [register, warp, lane]."""
    file = machine.registers["b32"]
    return file.reshape(len(file), -1, WARP)


def _cut(sums: Array) -> Array:
    """What an H200 keeps of sums of 8-bit floats: 13 bits behind the first, the rest is dropped."""
    mantissa, exponent = np.frexp(sums)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, _KEPT_BITS)), exponent - _KEPT_BITS))


def _build_product(inst: Instruction, cx: BuildContext) -> WarpStep:
    found = next((m for part in inst.parts if (m := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    result, a_kind, b_kind = inst.parts[-3:]
    if found is None or result not in ("f32", "s32") or inst.has("sp"):
        raise cx.refuse(inst, "only m64nNkK with sums in f32 or s32 is modelled")
    try:
        (decode_a, per), (decode_b, _) = decoder(a_kind), decoder(b_kind)
    except KeyError as error:
        raise cx.refuse(inst, f"operands of type {error} are not modelled") from None
    n, k, element = int(found[1]), int(found[2]), 4 // per
    elements = cx.elements(inst.operands[0])
    flags = [o.value for o in inst.operands[4:] if isinstance(o, Immediate)]
    given = cx.elements(inst.operands[1])
    if n % 8 or len(elements) != n // 2 or len(given) not in (1, _A_REGISTERS) or (result == "f32" and flags[:2] != [1, 1]):
        raise cx.refuse(inst, "N / 2 sums, a descriptor or 4 registers, a descriptor and no negation wanted")
    if len(given) > 1:
        flags.insert(2, 0)  # only what a descriptor leads to can be turned
    turned = (bool(flags[2]), bool(flags[3])) if len(flags) > 3 else (False, False)
    if k * element != _DEPTH or (any(turned) and element != 2):
        raise cx.refuse(inst, f"k of {_DEPTH} bytes wanted, and operands along k but for those of 16 bits")
    shape = ProductShape(n, k, (decode_a, decode_b), turned, result == "s32", element)
    slots = [cx.result(e) for e in elements]  # the sums count as read only where they are kept, which is known when it runs
    if any(slot is None or slot.bits != 32 for slot in slots):
        raise cx.refuse(inst, "sums are registers of 32 bits")
    rows = np.array([slot.row for slot in slots if slot is not None])
    held = [cx.source(inst, e, "b32") for e in given] if len(given) > 1 else []
    fresh_sums = cx.written.isdisjoint(cx.writes)
    bare = sorted(cx.unfenced & cx.reads)
    right = cx.source(inst, inst.operands[2], "b64")
    left = right if held else cx.source(inst, inst.operands[1], "b64")
    keep = cx.source(inst, inst.operands[3], "pred")
    names, site = tuple(map(str, elements)), cx.site(inst)
    access = Access(site, "shared", 4, 4)

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        queue = machine.unit(WgmmaQueue)
        queue.drift(machine, warps)
        if not queue.fenced[warps].all():
            lane = int(warps[int(np.argmin(queue.fenced[warps]))]) * WARP
            machine.found(KernelCheck.PROXY, site, "no wgmma.fence orders the registers before this product", lane)
        if bare:
            message = f"no wgmma.fence between a write of {bare[0]} and this product"
            machine.found(KernelCheck.PROXY, site, message, int(warps[0]) * WARP)
        chained, overlap = queue.chained(warps, names)
        if overlap.any():
            lane = int(warps[int(np.argmax(overlap))]) * WARP
            machine.found(KernelCheck.UNFINISHED, site, "sums of a product in flight are used by another one", lane)
        ab = [np.broadcast_to(get(machine), (machine.lanes,)).reshape(-1, WARP)[warps] for get in (left, right)]
        if any((d != d[:, :1]).any() for d in ab):
            machine.found(KernelCheck.WARP, site, "descriptors differ within the warp", int(warps[0]) * WARP)
        kept = np.broadcast_to(keep(machine), (machine.lanes,)).reshape(-1, WARP)[warps, 0]
        unset = ~queue.begin(warps, names) & kept & fresh_sums
        if unset.any():
            lane = int(warps[int(np.argmax(unset))]) * WARP
            machine.found(KernelCheck.UNSET, site, "sums are added to, and nothing has written them", lane)
        start, added = None, kept & ~chained
        if added.any():
            start = np.where(added[:, None], _sums(machine)[rows[:, None], warps], np.uint32(0))
        p = Pending(
            shape=shape,
            access=access,
            warps=warps,
            left=read_warps(machine, held, warps) if held else ab[0][:, 0],
            held=held,
            right=ab[1][:, 0],
            rows=rows,
            start=start,
            chained=chained & kept,
            group=queue.committed[warps].copy(),
            names=names,
            done=np.zeros(len(warps), dtype=bool),
        )
        queue.pending.append(p)
        fresh = warps[~chained]
        if len(fresh):
            _sums(machine)[rows[:, None], fresh] = _POISON

    return WarpStep(None, run)


def _build_fence(inst: Instruction, cx: BuildContext) -> WarpStep:
    site = cx.site(inst)
    cx.unfenced.clear()

    def run(machine: Machine) -> None:
        machine.unit(WgmmaQueue).fenced[whole_warps(machine, site)] = True

    return WarpStep(None, run)


def _build_commit(inst: Instruction, cx: BuildContext) -> WarpStep:
    site = cx.site(inst)

    def run(machine: Machine) -> None:
        machine.unit(WgmmaQueue).committed[whole_warps(machine, site)] += 1

    return WarpStep(None, run)


def _build_wait(inst: Instruction, cx: BuildContext) -> WarpStep:
    allowed = inst.operands[0]
    if not isinstance(allowed, Immediate):
        raise cx.refuse(inst, "the number of groups is a constant")
    site = cx.site(inst)

    def run(machine: Machine) -> None:
        warps, queue = whole_warps(machine, site), machine.unit(WgmmaQueue)
        queue.finish_groups(machine, warps, allowed.value)
        if allowed.value == 0:
            queue.fenced[warps] = False

    return WarpStep(None, run)


WGMMA: Mapping[str, WarpBuilder] = {
    "wgmma.mma_async": _build_product,
    "wgmma.fence": _build_fence,
    "wgmma.commit_group": _build_commit,
    "wgmma.wait_group": _build_wait,
}
