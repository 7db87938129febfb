"""The instruction set: the tables of every file, joined. A new instruction is a new file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.runtime.emulator.alu import warp
from tilewright.runtime.emulator.alu.alu_function import SpecTable
from tilewright.runtime.emulator.alu.arith_float import FLOAT
from tilewright.runtime.emulator.alu.arith_int import INTEGER
from tilewright.runtime.emulator.alu.bits import BITS
from tilewright.runtime.emulator.alu.carry import CARRY
from tilewright.runtime.emulator.alu.compare_select import COMPARE
from tilewright.runtime.emulator.alu.convert import CONVERT, build_mov
from tilewright.runtime.emulator.alu.instruction_kinds import ControlBuilder, OrdinaryBuilder, WarpBuilder
from tilewright.runtime.emulator.alu.tensor_core import TENSOR_CORE
from tilewright.runtime.emulator.memory.async_copy import ASYNC_COPY
from tilewright.runtime.emulator.memory.atomics import ATOMICS
from tilewright.runtime.emulator.memory.cluster_addresses import CLUSTER_ADDRESSES
from tilewright.runtime.emulator.memory.load_store import ADDRESSES, LOAD_STORE
from tilewright.runtime.emulator.memory.matrix_access import MATRIX_ACCESS
from tilewright.runtime.emulator.sync import control
from tilewright.runtime.emulator.sync.barriers import BLOCK_BARRIERS
from tilewright.runtime.emulator.sync.bulk_copy import BULK_COPY
from tilewright.runtime.emulator.sync.cluster_barriers import CLUSTER_ARRIVALS, CLUSTER_WAITS
from tilewright.runtime.emulator.sync.mbarrier import MBARRIER, MBARRIER_WAITS
from tilewright.runtime.emulator.sync.register_pool import REGISTERS
from tilewright.runtime.emulator.sync.warpgroup_mma import WGMMA

ELEMENTWISE: SpecTable = {**INTEGER, **FLOAT, **BITS, **COMPARE, **CONVERT, **ADDRESSES}
ORDINARY: Mapping[str, OrdinaryBuilder] = {
    **LOAD_STORE,
    **ATOMICS,
    **ASYNC_COPY,
    **BULK_COPY,
    **MBARRIER,
    **CARRY,
    **CLUSTER_ADDRESSES,
    **CLUSTER_ARRIVALS,
    **warp.ACTIVE,
    **control.SLEEP,
    "mov": build_mov,
}
WARP_STEPS: Mapping[str, WarpBuilder] = {**warp.WARP_STEPS, **MATRIX_ACCESS, **TENSOR_CORE, **WGMMA}
CONTROL: Mapping[str, ControlBuilder] = {**control.CONTROL, **BLOCK_BARRIERS, **MBARRIER_WAITS, **CLUSTER_WAITS, **REGISTERS}
