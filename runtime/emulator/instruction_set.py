"""The instruction set: the tables of every file, joined. A new instruction is a new file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.emulator.alu import warp
from runtime.emulator.alu.alu_function import SpecTable
from runtime.emulator.alu.arith_float import FLOAT
from runtime.emulator.alu.arith_int import INTEGER
from runtime.emulator.alu.bits import BITS
from runtime.emulator.alu.carry import CARRY
from runtime.emulator.alu.compare_select import COMPARE
from runtime.emulator.alu.convert import CONVERT, build_mov
from runtime.emulator.alu.instruction_kinds import ControlBuilder, OrdinaryBuilder, WarpBuilder
from runtime.emulator.alu.tensor_core import TENSOR_CORE
from runtime.emulator.memory.async_copy import ASYNC_COPY
from runtime.emulator.memory.atomics import ATOMICS
from runtime.emulator.memory.cluster_addresses import CLUSTER_ADDRESSES
from runtime.emulator.memory.load_store import ADDRESSES, LOAD_STORE
from runtime.emulator.memory.matrix_access import MATRIX_ACCESS
from runtime.emulator.sync import control
from runtime.emulator.sync.barriers import BLOCK_BARRIERS
from runtime.emulator.sync.bulk_copy import BULK_COPY
from runtime.emulator.sync.cluster_barriers import CLUSTER_ARRIVALS, CLUSTER_WAITS
from runtime.emulator.sync.mbarrier import MBARRIER, MBARRIER_WAITS
from runtime.emulator.sync.register_pool import REGISTERS
from runtime.emulator.sync.warpgroup_mma import WGMMA

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
