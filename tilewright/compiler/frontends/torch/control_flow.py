"""torch.cond, while_loop and scan: the graphs inside become branches and loops of `tw.ops`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from tilewright.compiler import ops
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

Block = Callable[[torch.fx.GraphModule, Sequence[Any]], Sequence[Any]]  # builds a graph of these values; what it gives
CONTROL = ("cond", "while_loop", "scan")


def build_control(context: Context, name: str, args: Sequence[Any], block: Block) -> list[ops.Tensor]:
    """The results of one of CONTROL. args: of its node, with what they hold in place of nodes.

    Raises:
        IngestError: what it carries is no tensor, or changes type or extents.
    """
    made = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}[name]
    try:
        return list(made(context, args, block))
    except (OptionError, ShapeError) as error:
        context.refuse(str(error), "give what is carried the largest extents, and slice it")


def _cond(context: Context, args: Sequence[Any], block: Block) -> Sequence[ops.Tensor]:
    predicate, then, otherwise, operands = args
    given = context.node.args[0]
    known = given.meta.get("val") if isinstance(given, torch.fx.Node) else given
    if isinstance(known, torch.SymBool):
        predicate = _positive(context, known.node.expr)
    if isinstance(predicate, bool):
        return _tensors(context, block(then if predicate else otherwise, operands))
    if isinstance(predicate, ops.Tensor):
        predicate = ops.reshape(predicate, [])

    def side(module: torch.fx.GraphModule) -> Callable[..., list[ops.Tensor]]:
        return lambda *_: _tensors(context, block(module, operands))

    tensors = [o for o in operands if isinstance(o, ops.Tensor)]
    return ops.cond(predicate, side(then), side(otherwise), *(tensors or [context.graph.scalar(0, "i1")]))


def _positive(context: Context, condition: Any) -> Expr:
    """An expression that is above 0 where a condition on sizes holds."""
    forms: Mapping[Any, Callable[[Expr, Expr], Expr]] = {
        sympy.StrictGreaterThan: lambda a, b: a - b,
        sympy.GreaterThan: lambda a, b: a - b + 1,
        sympy.StrictLessThan: lambda a, b: b - a,
        sympy.LessThan: lambda a, b: b - a + 1,
        sympy.Equality: lambda a, b: 1 - (a - b) * (a - b),
        sympy.Unequality: lambda a, b: (a - b) * (a - b),
    }
    form = forms.get(type(condition))
    if form is None:
        context.refuse(f"its condition on sizes is {condition}", "compare two sizes")
    return form(*(context.sizes.expr(side) for side in condition.args))


def _while_loop(context: Context, args: Sequence[Any], block: Block) -> Sequence[ops.Tensor]:
    test, body, carried, extra = args
    start = _carried(context, carried)
    return ops.while_loop(lambda *state: ops.reshape(block(test, [*state, *extra])[0], []),
                          lambda *state: _tensors(context, block(body, [*state, *extra])), *start)


def _scan(context: Context, args: Sequence[Any], block: Block) -> Sequence[ops.Tensor]:
    """Steps over the first axes of `rows`."""
    step, carried, rows, extra = args
    start, rows = _carried(context, carried), _carried(context, rows)
    if not rows:
        context.refuse("it scans over nothing", "give it a tensor of the steps")

    def body(i: Expr, *state: ops.Tensor) -> list[ops.Tensor]:
        return _tensors(context, block(step, [*state, *(ops.select(x, 0, i) for x in rows), *extra]))

    return ops.scan(context.graph, rows[0].dims[0], body, *start)


def _carried(context: Context, values: Sequence[Any]) -> list[ops.Tensor]:
    for value in values:
        if not isinstance(value, ops.Tensor):
            context.refuse(f"it carries the number {value}", "carry a tensor of rank 0, such as torch.tensor(0)")
    return list(values)


def _tensors(context: Context, values: Sequence[Any]) -> list[ops.Tensor]:
    """What a graph gives; sizes as tensors of rank 0."""
    found = [context.graph.scalar(v, "i64") if isinstance(v, (int, Expr)) and not isinstance(v, bool) else v for v in values]
    for value in found:
        if not isinstance(value, ops.Tensor):
            context.refuse(f"a graph inside gives {value}", "give tensors only")
    return found
