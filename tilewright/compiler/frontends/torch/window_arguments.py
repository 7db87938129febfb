"""Arguments that PyTorch's convolutions, pooling and resampling have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.compiler import ops

PerAxis = int | Sequence[int]


def each(value: PerAxis, axes: int, default: Sequence[int] = ()) -> list[int]:
    """One number for each axis, of one for all or of none but a default."""
    given = [value] if isinstance(value, int) else [int(v) for v in value or default]
    return given * axes if len(given) == 1 else given


def batched(x: ops.Tensor, axes: int, build: Callable[[ops.Tensor], ops.Tensor]) -> ops.Tensor:
    """build(x); an input without a batch axis is given one, which its result loses."""
    return build(x) if x.rank == axes + 2 else ops.squeeze(build(ops.unsqueeze(x, 0)), 0)


def batched_pair(
    x: ops.Tensor, axes: int, build: Callable[[ops.Tensor], tuple[ops.Tensor, ops.Tensor]]
) -> list[ops.Tensor]:
    """The same of two results."""
    return list(build(x)) if x.rank == axes + 2 else [ops.squeeze(t, 0) for t in build(ops.unsqueeze(x, 0))]


def scales_of(given: Sequence[Any], axes: int) -> list[float | None]:
    """Scales of an operator that takes one of each axis, or a list of them, or none."""
    values = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
    return [None if v is None else float(v) for v in values] if len(values) == axes else [None] * axes
