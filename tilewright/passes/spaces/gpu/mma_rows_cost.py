"""KernelCost of `mma_rows` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_contraction import once_issue, step_issue
from tilewright.passes.spaces.gpu.gpu_rates import SHARED_BYTES, GpuRates
from tilewright.passes.spaces.gpu.mma import STEP
from tilewright.passes.spaces.gpu.mma_cost import A_COPY, A_STORE, CHAIN, SHARE, TF32_SHARE
from tilewright.passes.spaces.gpu.mma_rows import MmaRowsConfig, columns_of, element_bytes
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

_AN_OPERATION = 3.0  # instructions for each element of a row and each operation of a sweep


def extents(workload: Workload) -> dict[str, Expr]:
    """Rows by columns, all of which a block has; depth is summed over. There are no batches."""
    return {"batch": workload.size("b"), "rows": workload.size("m"), "columns": workload.size("n"), "depth": workload.size("k")}


def kernel_cost(config: MmaRowsConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c, size, columns = config, element_bytes(workload), columns_of(workload) or 1
    panels, warps, rates = c.panels(columns), c.threads / WARP, GpuRates.of(limits)
    kept = workload.kept.bytes if workload.kept is not None else 4
    side = (c.bm + c.bn) * c.bk
    copies = side / c.vec / c.threads
    deep = c.bk * size / STEP
    fragments = (c.wm + c.wn) / 16 * deep
    product = c.wm / 16 * c.wn / 8 * deep + fragments
    share = (TF32_SHARE if c.tf32 else SHARE) if limits.arch == "sm_90a" else 1.0
    sweeps = max(1, workload.reductions)  # of the rows, and that of the product, which stands for the last one
    reads = 1 if c.vectors_in_registers else sweeps
    elements = float(c.bm * columns)
    others = sum(o.dtype.bytes for o in (*workload.inputs, *workload.outputs) if len(o.dims) == 2 and o.axes
                 and {d for axis in o.axes for d in axis.loops} == _loops(workload))
    work = elements / c.threads * sweeps * _AN_OPERATION / max(1, min(c.lanes, 2))
    bubbles = (panels - 1) * rates.latency * rates.issue  # before each panel the copies begin anew
    block = GpuBlock(
        threads=c.threads,
        registers=min(c.registers(), limits.registers_each(c.threads, c.min_blocks_per_sm)),
        shared_bytes=c.shared_bytes(size, kept, columns),
        step=Load(panels * step_issue(warps, product, copies, A_COPY), panels * (warps * fragments * 4 + side * size / 128),
                  panels * side * size, panels * c.bm * c.bn * c.bk * size / 2 / share),
        once=Load(once_issue(warps, elements / c.threads / c.lanes, A_STORE) + warps * work + bubbles,
                  elements * kept * (1 + reads) / SHARED_BYTES, elements * others),
        along="depth",
        depth=c.bk,
        chain=CHAIN * panels,
        ahead=c.stages - 1,
    )
    return KernelCost(
        coordinates=fields_of(c),
        tiles={"rows": c.bm, "columns": c.bn, "depth": c.bk},
        pads={"rows": c.bm, "columns": c.bn},
        units={"batch": 1, "rows": c.bm, "columns": 0, "depth": 0},
        block=block,
        features={
            "panels": panels,
            "copies_a_step": copies,
            "reads": reads,
            "warps": warps,
            "shared_share": block.shared_bytes / limits.shared_bytes,
            "register_share": block.registers * c.threads / limits.registers,
        },
    )


def _loops(workload: Workload) -> set[int]:
    """Of the rows and of the columns."""
    return {d for d, loop in enumerate(workload.loops) if loop.role in ("m", "n")}
