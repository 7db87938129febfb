"""Bytes of workspace that the kernels of a host program need, for any call and any sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import counters_of
from tilewright.runtime.counters import at_most
from tilewright.runtime.program.arena_plan import larger, workspace_stride
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.shape import Expr


def kernel_workspace(plan: HostPlan, tables: Mapping[int, DispatchTable], numbers: Iterable[int]) -> Expr:
    """From one thread's to the next one's, over the model dims. tables: of the calls by number; numbers: of one of each kind."""
    most, counters = Expr.of(0), list(counters_of(plan.steps))
    for number in numbers:
        call = plan.calls[number]
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        for kernel in tables[number].kernels:
            of_any = _for_any_sequence(plan, Expr.parse(kernel.workspace).substitute(local))
            need = larger(workspace_stride(at_most(of_any, counters, plan.bounds)), Expr.of(0), plan.bounds)
            if need != Expr.of(0):
                most = most.maximum(need) if most != Expr.of(0) else need
    return most


def _for_any_sequence(plan: HostPlan, expr: Expr) -> Expr:
    """No less than a size is for any sequence."""
    ragged = {o.dim.name: (o.dim.lo, o.dim.hi) for o in plan.ragged}
    if expr.symbols and expr.symbols <= ragged.keys():
        return Expr.of(int(expr.bounds(ragged)[1]))
    return expr.substitute({name: hi for name, (_, hi) in ragged.items()})
