"""The bounds of a Slice: from inputs, or from attributes in older opsets."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.frontends.onnx.values import Known
from tilewright.runtime.shape import Expr

Bounds = tuple[list[Expr], list[Expr], list[int], list[int]]


def slice_bounds(context: Context, rank: int, given: Sequence[Known | None]) -> Bounds:
    """Starts, ends (as the model has them: negative counts from the end), axes and steps, one each per sliced axis."""
    starts, ends, axes, steps = (given[i] if i < len(given) else None for i in range(4))
    context.require(starts is not None and ends is not None, "wanted starts and ends")
    begin, stop = (v.exprs() for v in (starts, ends) if v is not None)
    over = list(range(len(begin))) if axes is None else context.numbers(axes, "axes")
    by = [1] * len(begin) if steps is None else context.numbers(steps, "steps")
    context.require(len(begin) == len(stop) == len(over) == len(by), "starts, ends, axes and steps differ in length")
    context.require(0 not in by, "a step of 0")
    return begin, stop, context.axes(rank, over), by
