"""What the costs of GPU contractions share: the sizes they see and what a block tells the cost model. MLIR-free."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.passes.spaces.gemm_operands import row_and_column_extents
from tilewright.passes.spaces.gpu.gpu_config import GpuConfig
from tilewright.passes.spaces.gpu.gpu_rates import SHARED_BYTES, GpuRates
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload, told_once
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

_PREAMBLE = 250.0  # instructions of a warp before its first step and behind its last
_LOOP = 36.0  # of a warp around each step


def extents(workload: Workload) -> dict[str, Expr]:
    """Columns run along the unit-stride axis of the result, depth is summed over, each batch is work of its own."""
    rows, columns = row_and_column_extents(workload)
    return {"batch": workload.size("b"), "rows": rows, "columns": columns, "depth": workload.size("k")}


@told_once
def result_bytes(workload: Workload) -> int:
    return workload.outputs[0].dtype.bytes


def operand_bytes(workload: Workload) -> int:
    """Bytes of an element of the wider factor."""
    return max((o.dtype.bytes for o in workload.inputs[:2]), default=4)


def stored_bytes(elements: int, size: int, vec: int, parts: int, scattered: int) -> int:
    """Bytes beyond a multiprocessor that a block's results cost. scattered: of an element that is stored without its neighbours,
    as sums of parts are."""
    return elements * (size if parts == 1 and vec * size >= scattered else max(size, scattered))


def summed_cycles(elements: int, parts: int, limits: GpuLimits) -> float:
    """Cycles of shared memory in which a tile of sums of f32 is stored and read again; over the blocks of a cluster all parts of
    it but one are read out of the memory of others."""
    rates = GpuRates.of(limits)
    there = rates.meeting + 4 * elements * (parts - 1) / parts / rates.other_blocks if parts > 1 else 0.0
    return 2 * 4 * elements / SHARED_BYTES + there


def step_issue(warps: float, product: float, copies: float, a_copy: float) -> float:
    """Instructions of a block's step: `product` of a warp, around the loop, and for its copies."""
    return warps * (product + _LOOP + copies * a_copy)


def once_issue(warps: float, stores: float, a_store: float) -> float:
    """Instructions of a block beside its steps."""
    return warps * (_PREAMBLE + stores * a_store)


def contraction(config: GpuConfig, limits: GpuLimits, bm: int, bn: int, bk: int, block: GpuBlock,
                features: Mapping[str, float]) -> KernelCost:
    """The cost description of tiles of bm x bn, a step of which is bk deep."""
    moved = max(block.step.bytes, 1.0)
    return KernelCost(
        coordinates=fields_of(config),
        tiles={"rows": bm, "columns": bn, "depth": bk},
        pads={"rows": bm, "columns": bn},
        units={"batch": 1, "rows": bm, "columns": bn, "depth": 0},
        block=block,
        features={
            "flops_a_step": 2.0 * bm * bn * bk,
            "flops_a_byte": 2.0 * bm * bn * bk / moved,
            "flops_an_instruction": 2.0 * bm * bn * bk / max(block.step.issue, 1.0),
            "flops_a_shared_cycle": 2.0 * bm * bn * bk / max(block.step.shared, 1.0),
            "warps": block.threads / WARP,
            "in_flight_bytes": moved * max(block.ahead, 1),
            "shared_share": block.shared_bytes / limits.shared_bytes,
            "register_share": block.registers * block.threads / limits.registers,
            **features,
        },
    )
