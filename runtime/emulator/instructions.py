"""The instruction set: the tables of every file, joined. A new instruction is a new file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.emulator import control, warp
from runtime.emulator.arith_float import FLOAT
from runtime.emulator.arith_int import INTEGER
from runtime.emulator.async_copy import ASYNC_COPY
from runtime.emulator.atomics import ATOMICS
from runtime.emulator.bits import BITS
from runtime.emulator.bulk_copy import BULK_COPY
from runtime.emulator.carry import CARRY
from runtime.emulator.cluster import CLUSTER, CLUSTER_WAITS
from runtime.emulator.compare import COMPARE
from runtime.emulator.convert import CONVERT, build_mov
from runtime.emulator.elementwise import SpecTable
from runtime.emulator.load_store import ADDRESSES, LOAD_STORE
from runtime.emulator.matrix import MATRIX
from runtime.emulator.mbarrier import MBARRIER, MBARRIER_WAITS
from runtime.emulator.register_pool import REGISTERS
from runtime.emulator.table import Builder, ControlBuilder, WarpBuilder
from runtime.emulator.wgmma import WGMMA

ELEMENTWISE: SpecTable = {**INTEGER, **FLOAT, **BITS, **COMPARE, **CONVERT, **ADDRESSES}
ORDINARY: Mapping[str, Builder] = {
    **LOAD_STORE,
    **ATOMICS,
    **ASYNC_COPY,
    **BULK_COPY,
    **MBARRIER,
    **CARRY,
    **CLUSTER,
    **warp.ACTIVE,
    **control.SLEEP,
    "mov": build_mov,
}
WARP_STEPS: Mapping[str, WarpBuilder] = {**warp.WARP_STEPS, **MATRIX, **WGMMA}
CONTROL: Mapping[str, ControlBuilder] = {**control.CONTROL, **MBARRIER_WAITS, **CLUSTER_WAITS, **REGISTERS}
