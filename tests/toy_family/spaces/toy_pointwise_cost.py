"""What the search knows of the toy family."""

from __future__ import annotations

from toy_family.spaces.toy_pointwise import ToyConfig

from tilewright.passes.spaces.kernel_cost import KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr


def extents(workload: Workload) -> dict[str, Expr]:
    total = Expr.of(1)
    for extent in workload.outputs[0].dims:
        total = total * extent
    return {"elements": total}


def kernel_cost(config: ToyConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    return KernelCost(coordinates=fields_of(config), units={"elements": config.chunk})
