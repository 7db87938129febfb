"""Features of a workload: what sets the operators of a family apart, whatever the configuration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.passes.spaces.workload import Operand, Workload

_PAGE = 4096


def workload_features(workload: Workload) -> Mapping[str, float]:
    """What sets the operators of a family apart: static extents, operands and their layout, arithmetic."""
    found: dict[str, float] = {
        "inputs": len(workload.inputs),
        "outputs": len(workload.outputs),
        "constants": sum(o.constant for o in workload.inputs),
        "widest": max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)),
    }
    for number, operand in enumerate(workload.inputs[:3]):
        unit = operand.unit_axis
        found[f"unit_axis_from_last_{number}"] = np.nan if unit is None else len(operand.dims) - 1 - unit
    for role in ("b", "m", "n", "k", "row", "col", "p", "r"):
        size = workload.size(role).constant
        found[f"static_{role}"] = np.nan if size is None else np.log2(max(size, 1))
    return found


def stride_conflict(operand: Operand, dims: Mapping[str, int]) -> float:
    """1 when neighbours along the slowest-but-one axis of a dense operand are whole pages apart, 0.5 for half pages."""
    if len(operand.dims) < 2:
        return 0.0
    axis = operand.unit_axis if operand.unit_axis is not None else len(operand.dims) - 1
    pitch = operand.dims[axis].evaluate(dims) * operand.dtype.bytes
    if pitch == 0:
        return 0.0
    return 1.0 if pitch % _PAGE == 0 else 0.5 if pitch % (_PAGE // 2) == 0 else 0.0
