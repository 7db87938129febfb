"""Values of all that a kernel's guards may name, for operands as they are measured: dense, their unit axis innermost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.passes.spaces.workload import Operand, Workload
from tilewright.runtime.program.kernel import layout


def dense_symbols(workload: Workload, dims: Mapping[str, int]) -> dict[str, int]:
    """The local dims, and the layout symbols of every operand."""
    values = dict(dims)
    for number, operand in enumerate((*workload.inputs, *workload.outputs)):
        values |= layout(number, dense_strides(operand, dims))
    return values


def memory_order(operand: Operand) -> list[int]:
    """Axes from the slowest to the one of unit stride."""
    order = list(range(len(operand.dims)))
    if operand.unit_axis is not None:
        order.remove(operand.unit_axis)
        order.append(operand.unit_axis)
    return order


def dense_strides(operand: Operand, dims: Mapping[str, int]) -> list[int]:
    """Strides in elements, axis by axis."""
    strides, step = [0] * len(operand.dims), 1
    for axis in reversed(memory_order(operand)):
        strides[axis] = step
        step *= operand.dims[axis].evaluate(dims)
    return strides


def clear_zeros(operand: Operand, array: np.ndarray) -> np.ndarray:
    """`array` with zeros written where the operand has them for certain."""
    for axis, (low, high) in enumerate(zip(operand.zeros[::2], operand.zeros[1::2], strict=True)):
        along = np.moveaxis(array, axis, 0)
        along[:low] = 0
        along[len(along) - min(high, len(along)) :] = 0
    return array
