"""Two partitions of one function, each for the shapes where it is predicted to be the faster: a branch on a dim decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.structured import FRAME
from tilewright.passes.linalg.symbolic import RANGES, read_ranges, write_ranges
from tilewright.passes.mlir import arith, functions, ir, operations
from tilewright.passes.partition.cost import CostModel, predicted
from tilewright.passes.partition.plan import Plan
from tilewright.passes.transforms.lift_control_flow import lift
from tilewright.runtime.shape import Expr, ShapeRange

_GAIN = 0.05  # share of the time of one plan that the other saves on its side, on the mean of the shapes there
SHAPES_OF_RANGE = 9  # that are looked at where the first few say that it might


def where_plans_cross(plan: Plan, ranges: ShapeRange, loads: bool) -> int | None:
    """The largest extent of the one dim up to which one of two plans is predicted to be faster, the other one beyond it; None
    where there is no such extent, or little is gained."""
    if plan.other is None or plan.cuts or len(ranges.dims) != 1:
        return None
    ratios = _ratios(plan.cost.seconds, plan.other.cost.seconds)
    if min(ratios) > 1 - _GAIN or max(ratios) < 1 + _GAIN:
        return None
    [(_, dim)] = ranges.dims
    model = CostModel(plan.partition.graph, plan.machine, SHAPES_OF_RANGE)
    costs = [predicted(p.partition, model, loads).seconds for p in (plan, plan.other)]
    return crossing(dim.values(SHAPES_OF_RANGE), _ratios(*costs))


def where_stitching_pays(plan: Plan, ranges: ShapeRange, at_more_shapes: Callable[[], Plan]) -> int | None:
    """The largest extent of the one dim up to which products of a GPU are better apart from the work on their rows, or better one
    with it; None where there is no such extent, or little is gained. at_more_shapes: the plan, predicted at SHAPES_OF_RANGE."""
    if plan.cuts or len(ranges.dims) != 1:
        return None
    ratios = _stitched_ratios(plan)
    if not ratios or min(ratios) > 1 - _GAIN or max(ratios) < 1 + _GAIN:
        return None
    [(_, dim)] = ranges.dims
    return crossing(dim.values(SHAPES_OF_RANGE), _stitched_ratios(at_more_shapes()))


def _stitched_ratios(plan: Plan) -> list[float]:
    """Of times of all products with the work on their rows in one launch and in two, at each of the shapes."""
    times = zip(*(s.cycles for s in plan.weighed), strict=True)
    return [sum(one for _, one in each) / sum(two for two, _ in each) for each in map(list, times)]


def crossing(sizes: Sequence[int], ratios: Sequence[float]) -> int | None:
    """The size up to which ratios of times are on one side of 1, where they are on the other one behind it, and the mean on each
    side is worth it."""
    first_less = ratios[0] < 1
    behind = next((n for n, ratio in enumerate(ratios) if (ratio < 1) != first_less), len(ratios))
    sides = ratios[:behind], ratios[behind:]
    if not sides[1] or any((ratio < 1) == first_less for ratio in sides[1]):
        return None
    lower, upper = sides if first_less else sides[::-1]
    if sum(lower) / len(lower) > 1 - _GAIN or sum(upper) / len(upper) < 1 + _GAIN:
        return None
    return sizes[behind - 1]


def _ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x / y if y else 1.0 for x, y in zip(a, b, strict=True)]


def split_by_shape(module: ir.Module, fn: ir.Operation, bound: int) -> None:
    """The function does all that it did in one of two branches, which are functions for their own part of the range of its one
    dim: up to `bound`, and beyond."""
    ranges = read_ranges(fn)
    [(name, dim)] = ranges.dims
    before = list(functions(module))
    _branch(fn, name, bound)
    lift(module, fn)
    made = [f for f in functions(module) if FRAME not in f.attributes and f not in before]
    for side, part in zip(made, (replace(dim, hi=bound), replace(dim, lo=bound + 1)), strict=True):
        side.attributes[RANGES] = write_ranges(ShapeRange(((name, part),)))


def _branch(fn: ir.Operation, name: str, bound: int) -> None:
    block = fn.regions[0].blocks[0]
    *body, last = operations(block)
    extent = ShapeValues(fn).value(Expr.dim(name))
    with ir.InsertionPoint(last), last.location:
        most = arith.constant(ir.IndexType.get(), bound)
        test = arith.cmpi(arith.CmpIPredicate.sle, extent, most)
        made = ir.Operation.create("scf.if", results=[v.type for v in last.operands], operands=[test], regions=2)
        for region in made.regions:
            known: dict[ir.Value, ir.Value] = {}
            with ir.InsertionPoint(region.blocks.append()):
                for op in body:
                    known.update(zip(op.results, clone(op, lambda v: known.get(v, v)).results, strict=True))  # noqa: B023
                ir.Operation.create("scf.yield", operands=[known.get(v, v) for v in last.operands])
    for number, result in enumerate(made.results):
        last.operands[number] = result
    for op in reversed(body):
        op.erase()
