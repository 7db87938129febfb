"""Order along an axis, and running sums."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context


@register("torch", "aten.cumsum.default")
def cumsum(context: Context, x: ops.Tensor, dim: int, **_: Any) -> ops.Tensor:
    return ops.cumsum(x, dim, dtype=context.dtype()) if x.rank else ops.cast(x, context.dtype())


@register("torch", "aten.topk.default")
def topk(_: Context, x: ops.Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[ops.Tensor]:  # noqa: A002
    return list(ops.topk(x, k, dim, largest))


@register("torch", "aten.sort.default")
def sort(_: Context, x: ops.Tensor, dim: int = -1, descending: bool = False) -> list[ops.Tensor]:
    return list(ops.sort(x, dim, descending))


@register("torch", "aten.sort.stable")
def stable_sort(_: Context, x: ops.Tensor, stable: bool | None, dim: int = -1, descending: bool = False) -> list[ops.Tensor]:
    return list(ops.sort(x, dim, descending))


@register("torch", "aten.argsort.default")
def argsort(_: Context, x: ops.Tensor, dim: int = -1, descending: bool = False) -> ops.Tensor:
    return ops.argsort(x, dim, descending)
