"""Parts of tensors that strides describe: diagonals, windows as axes, any strided part of a contiguous tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.elements import element, remapped
from tilewright.runtime.shape import Expr


@register("torch", *names("diagonal", "diagonal_copy"))
def diagonal(context: Context, x: ops.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ops.Tensor:
    """x[..., i, i + offset] of two axes as a last axis."""
    return _diagonal(context, x, offset, dim1, dim2)


@register("torch", *names("linalg_diagonal"))
def linalg_diagonal(context: Context, a: ops.Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> ops.Tensor:
    return _diagonal(context, a, offset, dim1, dim2)


def _diagonal(context: Context, x: ops.Tensor, offset: int, dim1: int, dim2: int) -> ops.Tensor:
    rows, columns = dim1 % x.rank, dim2 % x.rank
    rest = [a for a in range(x.rank) if a not in (rows, columns)]

    def place(_: Body, loops: list[Scalar]) -> list[Scalar]:
        at = dict(zip(rest, loops[:-1], strict=True))
        at[rows], at[columns] = loops[-1] + max(-offset, 0), loops[-1] + max(offset, 0)
        return [at[a] for a in range(x.rank)]

    return remapped(x, context.shape(), place)


@register("torch", *names("diagonal_scatter"))
def diagonal_scatter(
    context: Context, x: ops.Tensor, part: ops.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> ops.Tensor:
    """x with `part` in place of a diagonal."""
    rows, columns = dim1 % x.rank, dim2 % x.rank
    rest = [a for a in range(x.rank) if a not in (rows, columns)]
    loops = [f"d{d}" for d in range(x.rank)]
    if Expr.of(0) in part.dims:
        return x

    def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
        row, column = region.index(rows), region.index(columns)
        last = x.graph.number(region, part.dims[-1], "index") - 1
        at = row - max(-offset, 0)
        there = (column - row).compare("eq", offset) & at.compare("ge", 0) & at.compare("le", last)
        new = element(region, part, [*(region.index(a) for a in rest), at.maximum(0).minimum(last)])
        return region.select(there, new.cast(scalars[0].kind), scalars[0])

    return x.graph.generic([(x, loops)], (x.graph.empty(x.dtype, x.dims), loops), ["parallel"] * x.rank, body)


@register("torch", *names("unfold", "unfold_copy"))
def unfold(context: Context, x: ops.Tensor, axis: int, size: int, step: int) -> ops.Tensor:
    """Windows of an axis, `step` apart, as a new last axis."""
    if not x.rank:
        return ops.reshape(x, context.shape())
    at = axis % x.rank

    def place(_: Body, loops: list[Scalar]) -> list[Scalar]:
        return [loop * step + loops[-1] if a == at else loop for a, loop in enumerate(loops[:-1])]

    return remapped(x, context.shape(), place)


@register("torch", *names("as_strided", "as_strided_copy"))
def as_strided(context: Context, x: ops.Tensor, size: Any, stride: Sequence[Any], storage_offset: Any = None) -> ops.Tensor:
    """Elements of the memory of a contiguous tensor, by strides."""
    held = context.node.args[0]
    assert isinstance(held, torch.fx.Node)
    example = held.meta["val"]
    whole = example.untyped_storage().nbytes() == example.numel() * example.element_size()
    if not example.is_contiguous() or example.storage_offset() or not statically_known_true(whole):
        context.refuse("its input is a part of another tensor, whose memory it reads", "use index_select, narrow or unfold")
    flat = ops.reshape(x, [-1]) if x.rank != 1 else x
    g = x.graph

    def place(region: Body, loops: list[Scalar]) -> list[Scalar]:
        at = g.number(region, Expr.of(storage_offset or 0), "index")
        for loop, step in zip(loops, stride, strict=True):
            at = at + loop * g.number(region, Expr.of(step), "index")
        return [at]

    return remapped(flat, context.shape(), place)


@register("torch", *names("select_scatter"))
def select_scatter(context: Context, x: ops.Tensor, part: ops.Tensor, axis: int, place: Any) -> ops.Tensor:
    """x with `part` at one place of an axis."""
    return ops.select_scatter(x, part, axis, place)


@register("torch", *names("slice_scatter"))
def slice_scatter(
    context: Context, x: ops.Tensor, part: ops.Tensor, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> ops.Tensor:
    """x with `part` in place of a slice."""
    return ops.slice_scatter(x, part, axis, start, end, step)


@register("torch", *names("copy"))
def copy(context: Context, x: ops.Tensor, source: ops.Tensor, non_blocking: bool = False) -> ops.Tensor:
    """The source in x's shape and element type."""
    wide = ops.cast(source, context.dtype())
    return wide if wide.dims == context.shape() else ops.broadcast_to(wide, context.shape())
