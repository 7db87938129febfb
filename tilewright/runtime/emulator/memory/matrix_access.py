"""ldmatrix and stmatrix: a warp's 8x8 matrices between registers and shared memory (PTX ISA, section 9.7.14.5)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, LaneSource
from tilewright.runtime.emulator.alu.instruction_kinds import WarpBuilder, WarpStep
from tilewright.runtime.emulator.alu.warp_registers import element_index, read_warps, whole_warps, write_warps
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.machine.storage import SHARED_WINDOW
from tilewright.runtime.emulator.memory.access import Access, load, store
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.limits import WARP


def _matrix_count(inst: Instruction) -> int:
    return next((int(p[1:]) for p in inst.parts if p in ("x1", "x2", "x4")), 1)


def _rows(machine: Machine, address: LaneSource, warps: Array, count: int) -> tuple[Array, Array]:
    """Row addresses [warp * 8 * count] in the shared space, and the lanes that gave them."""
    lanes = (warps[:, None] * WARP + np.arange(8 * count)).reshape(-1)
    found = np.broadcast_to(address(machine), (machine.lanes,))[lanes]
    return np.where(found >= SHARED_WINDOW, found - SHARED_WINDOW, found), lanes


def _check_form(inst: Instruction, cx: BuildContext) -> None:
    if not inst.has("m8n8") or inst.parts[-1] != "b16":
        raise cx.refuse(inst, "only .m8n8 with .b16 elements is modelled")


def _build_ldmatrix(inst: Instruction, cx: BuildContext) -> WarpStep:
    _check_form(inst, cx)
    count, site = _matrix_count(inst), cx.site(inst)
    puts = [cx.sink(inst, e, "b32") for e in cx.elements(inst.operands[0])]
    address, access = cx.address(inst, inst.operands[1]), Access(site, "shared", 2, 8)
    rows, columns = element_index(inst.has("trans"))

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        addresses, lanes = _rows(machine, address, warps, count)
        matrices = load(machine, access, addresses, lanes).reshape(len(warps), count, 8, 8)
        pairs = np.ascontiguousarray(matrices[:, :, rows, columns]).view(np.uint32)[..., 0]
        write_warps(machine, puts, warps, pairs.transpose(0, 2, 1))

    return WarpStep(None, run)


def _build_stmatrix(inst: Instruction, cx: BuildContext) -> WarpStep:
    _check_form(inst, cx)
    count, site = _matrix_count(inst), cx.site(inst)
    gets = [cx.source(inst, e, "b32") for e in cx.elements(inst.operands[1])]
    address, access = cx.address(inst, inst.operands[0]), Access(site, "shared", 2, 8)
    rows, columns = element_index(inst.has("trans"))

    def run(machine: Machine) -> None:
        warps = whole_warps(machine, site)
        addresses, lanes = _rows(machine, address, warps, count)
        halves = np.ascontiguousarray(read_warps(machine, gets, warps).transpose(0, 2, 1)).view(np.uint16)
        matrices = np.zeros((len(warps), count, 8, 8), dtype=np.uint16)
        matrices[:, :, rows, columns] = halves.reshape(len(warps), count, WARP, 2)
        store(machine, access, addresses, lanes, matrices.reshape(-1, 8))

    return WarpStep(None, run)


MATRIX_ACCESS: Mapping[str, WarpBuilder] = {"ldmatrix": _build_ldmatrix, "stmatrix": _build_stmatrix}
