"""Uses: at which shapes a model calls each of its operators."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.host_plan import Planner
from passes.mlir import functions, ir
from passes.workload import Workload
from runtime.shape import Expr

MAIN = "main"


def uses_of(outlined: str, workloads: Mapping[str, Workload]) -> dict[str, list[dict[str, Expr]]]:
    """Workload key -> each call's local dims over the model's dims.

    Args:
        outlined: text of the outlined module. workloads: by function name in it.
    """
    found: dict[str, list[dict[str, Expr]]] = {}
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(outlined)
        main = next(f for f in functions(module) if ir.StringAttr(f.attributes["sym_name"]).value == MAIN)
        for call in Planner(main, workloads, ()).run().calls:
            found.setdefault(call.workload.key, []).append(dict(zip(call.workload.dims, call.dims, strict=True)))
    return found
