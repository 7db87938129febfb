"""What the plan of a program launches and moves."""

from __future__ import annotations

import math
from typing import Any

from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.runtime.program.program import Program


def planned(model: Any, example: ExampleInputs) -> HostPlan:
    """The plan of a model for the host; calls that are launched together are one launch, in phases."""
    return outline(Compilation(model, {}, full_target("host"), example=example)).plan


def moved(plan: HostPlan, program: Program, rows: int) -> int:
    """Bytes that the calls read and write when there are so many rows."""
    dims = {d.name: rows for d in program.dims}
    local = [dict(zip(call.workload.dims, (e.evaluate(dims) for e in call.dims), strict=True)) for call in plan.calls]
    return sum(call.workload.bytes.evaluate(at) for call, at in zip(plan.calls, local, strict=True))


def least(program: Program, rows: int) -> int:
    """Bytes of inputs and results."""
    dims = {d.name: rows for d in program.dims}
    return sum(a.dtype.bytes * math.prod(e.evaluate(dims) for e in a.spec().dims) for a in (*program.inputs, *program.outputs))
