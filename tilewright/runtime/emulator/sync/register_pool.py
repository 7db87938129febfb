"""setmaxnreg: registers that warps of a block give back and take (PTX ISA, section 9.7.19.5).

A block starts with what fits its threads. A warp that wants more than are free waits until others give some back.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, ControlBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import BLOCKED, RUNNING, Geometry
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Immediate, Instruction
from tilewright.runtime.limits import WARP

_FILE, _MOST, _STEP = 65536, 255, 8
_LEAST, _LARGEST = 24, 256


class RegisterPool:
    """Of a batch: registers of a thread by warp, registers free by block (in threads' shares of a warp), warps that wait."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        warps = geometry.warps
        given = min(_FILE // (warps * WARP), _MOST) // _STEP * _STEP
        self.held = np.full(blocks * warps, given, dtype=np.int64)
        self.free = np.zeros(blocks, dtype=np.int64)
        self.waiting: list[tuple[int, int, PtxSite]] = []

    def set(self, machine: Machine, site: PtxSite, warp: int, wanted: int, more: bool) -> bool:
        """False: the warp waits."""
        lane, held, block = warp * WARP, int(self.held[warp]), warp // machine.geometry.warps
        if wanted % _STEP or not _LEAST <= wanted <= _LARGEST:
            message = f"{wanted} registers are no multiple of {_STEP} from {_LEAST} to {_LARGEST}"
            machine.found(KernelCheck.REGISTERS, site, message, lane)
        if (wanted < held) if more else (wanted > held):
            machine.found(KernelCheck.REGISTERS, site, f"{wanted} registers where the warp holds {held}", lane)
            return True
        if wanted - held > self.free[block]:
            self.waiting.append((warp, wanted, site))
            return False
        self.free[block] -= wanted - held
        self.held[warp] = wanted
        if not more:
            self._serve(machine, block)
        return True

    def _serve(self, machine: Machine, block: int) -> None:
        """Registers are free: warps of the block that wait for them go on."""
        waiting, self.waiting = self.waiting, []
        for warp, wanted, site in waiting:
            need = wanted - int(self.held[warp])
            if warp // machine.geometry.warps != block or need > self.free[block]:
                self.waiting.append((warp, wanted, site))
                continue
            self.free[block] -= need
            self.held[warp] = wanted
            lanes = np.arange(warp * WARP, (warp + 1) * WARP)
            machine.status[lanes[machine.live[lanes]]] = RUNNING

    def explain(self, machine: Machine) -> None:
        """Nobody can run: say which warp waits for registers."""
        for warp, wanted, site in self.waiting:
            free = int(self.free[warp // machine.geometry.warps])
            message = f"waits for {wanted} registers; the warp holds {int(self.held[warp])} and {free} are free"
            machine.found(KernelCheck.DEADLOCK, site, message, warp * WARP)


def _build(inst: Instruction, cx: BuildContext) -> Continuation:
    wanted, more, site, following = inst.operands[0], inst.has("inc"), cx.site(inst), cx.following
    if not isinstance(wanted, Immediate):
        raise cx.refuse(inst, "the number of registers is a constant")

    def run(machine: Machine) -> int | None:
        lanes, pool = machine.lane_indices(), machine.unit(RegisterPool)
        machine.pc[lanes] = following
        warps = np.unique(machine.warp_of[lanes]).tolist()
        waits = [warp for warp in warps if not pool.set(machine, site, warp, wanted.value, more)]
        if not waits:
            return following
        machine.status[lanes[np.isin(machine.warp_of[lanes], waits)]] = BLOCKED
        return None

    return run


REGISTERS: Mapping[str, ControlBuilder] = {"setmaxnreg": _build}
