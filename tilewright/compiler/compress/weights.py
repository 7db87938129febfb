"""Weights of a model: constants that products or convolutions alone read, with their axes along outputs and sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.passes.analysis.contraction import Groups, is_contraction, used_loops
from tilewright.passes.linalg.structured import users
from tilewright.passes.mlir import ir, maps_of, operations, position


@dataclass(frozen=True)
class Weight:
    """argument: of @main, and its number. value: [N, ..., C], outputs first, the channels that are summed over last. order: the
    axis of the argument at each axis of the value."""

    argument: ir.Value
    number: int
    value: np.ndarray
    order: tuple[int, ...]


def weights_of(main: ir.Operation, arrays: Mapping[ir.Value, np.ndarray], images: bool) -> list[Weight]:
    """Constants of f32 that products alone read, all with the same axes along the sum, in the order in which they are read; of
    matrices, and where `images` of filters of convolutions too, without groups."""
    found, numbers = list[Weight](), {v: i for i, v in enumerate(main.regions[0].blocks[0].arguments)}
    for op in operations(main.regions[0].blocks[0]):
        for argument in op.operands:
            if argument not in arrays or arrays[argument].dtype != np.float32 or any(w.argument == argument for w in found):
                continue
            orders = {_order(reader, argument) for reader in users(argument)}
            if len(orders) == 1 and (order := orders.pop()) is not None and (images or len(order) == 2):
                found.append(Weight(argument, numbers[argument], arrays[argument].transpose(order), order))
    return found


def _order(op: ir.Operation, argument: ir.Value) -> tuple[int, ...] | None:
    """The axes of an operand of a contraction: that of its outputs, those of a window, that of the channels. None of anything
    else."""
    if not is_contraction(op) or [v == argument for v in op.operands].count(True) != 1:
        return None
    groups, which = Groups.of(op), next(i for i, v in enumerate(op.operands) if v == argument)
    if which > 1 or groups.batch or len((groups.m, groups.n)[which]) != 1:
        return None
    loops, other = [position(e) for e in maps_of(op)[which].results], maps_of(op)[1 - which]
    columns = (groups.m, groups.n)[which][0]
    if None in loops or sorted(d for d in loops if d is not None) != sorted((columns, *groups.k)):
        return None
    alone = {position(e) for e in other.results}
    shared = {d for e in other.results if position(e) is None for d in used_loops(ir.AffineMap.get(other.n_dims, 0, [e]))}
    channels = [d for d in groups.k if d in alone and d not in shared]
    if len(channels) != 1:
        return None
    window = [d for d in groups.k if d != channels[0]]
    return tuple(loops.index(d) for d in (columns, *window, channels[0]))
