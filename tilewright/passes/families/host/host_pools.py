"""Family `host_pools`: products with weights out of pools of vectors, with what is fused after them.

A weight is a list of indices: each names eight values along the sum. A work unit is a block of rows, side by side, by columns
whose sums lie in the workspace. For some groups of eight along the sum at a time, tables are made of the products of the rows
with every vector of the pool, r[s] = sum_c x[c] * pool[s][c]; then every column adds what its indices name: one load and one
addition of a vector of rows in place of eight multiply-adds. Source: Bit-serial Weight Pools (MLSys 2022), its second look-up,
for vectors of rows. Sums are added in the order of the groups, whatever the number of rows. Of rows that are whole numbers of
few bits, and pools of bytes, tables and sums are integers; for up to 5 bits tables of 16 rows in 16 bits (host_pools_narrow.py),
where the bits are known when the kernel is chosen. Such rows that are pixels of an image of known extents lie side by side as one
long row (host_pools_plane.py), or are bytes that decoded weights multiply (host_pools_decoded.py).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.analysis.pools import Pools, loop_of, pooled_columns
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.host import host_matmul
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_pools_decoded import DecodedEmitter
from tilewright.passes.families.host.host_pools_plane import PlaneEmitter
from tilewright.passes.families.host.host_pools_products import PoolsEmitter, row_bits
from tilewright.passes.families.host.host_pools_strips import PlaneLoops
from tilewright.passes.families.host.host_pools_tiles import TilesEmitter
from tilewright.passes.families.host.host_pools_window import PoolWindow, WindowEmitter
from tilewright.passes.mlir import ir, owner
from tilewright.passes.spaces.host.host_pools import TILED, VECTOR, HostPoolsConfig


def emit(kernel: HostKernel, config: HostPoolsConfig) -> Grid:
    """The whole kernel. ValueError when no operand of the region is decoded from indices in panels."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan, pools = _planned(kernel, config)
        return _emitter(config)(kernel, config, plan, pools, workspace).units(begin, end)

    return kernel.build(body)


def _emitter(config: HostPoolsConfig) -> type[PoolsEmitter]:
    if config.decoded:
        return TilesEmitter if config.decoded == TILED else DecodedEmitter
    return PlaneEmitter if config.plane else WindowEmitter if config.window else PoolsEmitter


def tile(frame: KernelFrame, config: HostPoolsConfig, tiler: Tiler) -> None:
    """The units of `host_matmul`; of windows whole rows of pixels."""
    plan, _ = _planned(frame, config)
    product = config.product
    if config.window or config.by_strips:
        pixels = PlaneLoops.of(plan).shape.width if config.by_strips else PoolWindow.of(plan).pixels
        product = replace(product, mr=pixels, mc=pixels * config.mc)
    host_matmul.tile(frame, product, tiler)


def _planned(frame: KernelFrame, config: HostPoolsConfig) -> tuple[Plan, Pools]:
    plan = Plan.of(frame)
    pools = Pools.of(owner(plan.view.operand(plan.wide)))
    where = f"{plan.view.op.name} at {plan.view.op.location}"
    if pools is None or not pools.tile or pooled_columns(plan.view, plan.wide, pools) != pools.n or plan.shared:
        raise ValueError(f"{where}: wanted columns out of pools, by indices laid out in panels")
    assert pools.n is not None
    if loop_of(plan.view, plan.wide, pools, pools.n) != plan.column or plan.column in plan.view.loops_of(plan.narrow):
        raise ValueError(f"{where}: wanted columns of the result along the outputs of the weight")
    if pools.vector != VECTOR:
        raise ValueError(f"{where}: vectors of {pools.vector} values; wanted {VECTOR}")
    if config.window:
        PoolWindow.of(plan)
    if config.by_strips:
        PlaneLoops.of(plan)
    if config.bits and (row_bits(plan) is None or pools.element != "i8"):
        raise ValueError(f"{where}: wanted rows of whole numbers and a pool of bytes")
    return plan, pools
