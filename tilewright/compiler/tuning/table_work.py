"""What the kernels of a dispatch table compute, useful and for nothing, for who explains a call."""

from __future__ import annotations

import msgspec

from tilewright.passes.spaces.family_registry import cost_of, parse_config
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.kernel import MicroKernel


def with_work(table: DispatchTable, workload: Workload, limits: Limits) -> DispatchTable:
    """The table with the operations of its workload, and what each kernel rounds up."""
    pads = tuple(_pads(kernel, workload, limits) for kernel in table.kernels)
    return msgspec.structs.replace(table, flops=str(workload.flops), pads=pads)


def _pads(kernel: MicroKernel, workload: Workload, limits: Limits) -> tuple[tuple[str, int], ...]:
    costs = cost_of(kernel.family)
    cost, extents = costs.kernel_cost(parse_config(kernel.config), workload, limits), costs.extents(workload)
    pads = dict(cost.pads)
    if workload.kind is Kind.ATTENTION and isinstance(limits, HostLimits) and "columns" in cost.tiles:
        pads.setdefault("columns", cost.tiles["columns"])  # scores of whole vectors of keys
    return tuple((str(extents[name]), multiple) for name, multiple in pads.items() if multiple > 1)
