"""The tree of a plan as an artifact stores it, and what its calls cost together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.compiler.dims.ragged_dims import rows_of
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import Condition, Copy, If, Launch, Loaded, Loop, Positive, Step, all_steps, counters_of
from tilewright.runtime.counters import at_most
from tilewright.runtime.program.steps import CopyStep, IfStep, LaunchStep, LoopCounter, LoopStep
from tilewright.runtime.program.steps import Step as Stored
from tilewright.runtime.shape import Expr

MANY = 1 << 40  # times around a loop whose end depends on data, where its work is estimated: it may never end


def stored_tree(plan: HostPlan) -> tuple[Stored, ...]:
    """The steps, unless they do no more than launch the calls in order."""
    return tuple(map(_stored, plan.steps)) if any(isinstance(s, If | Loop) for s in plan.steps) else ()


def _stored(step: Step) -> Stored:
    if isinstance(step, Launch):
        return LaunchStep(step.calls)
    if isinstance(step, Copy):
        return CopyStep(str(step.bytes))
    if isinstance(step, If):
        return IfStep(_condition(step.condition), tuple(map(_stored, step.then)), tuple(map(_stored, step.otherwise)))
    counters = tuple(LoopCounter(c.name, str(c.start), str(c.step), str(c.largest)) for c in step.counters)
    carried = tuple(c.name for c in step.carried)
    return LoopStep(counters, carried, tuple(map(_stored, step.test)), _condition(step.condition), tuple(map(_stored, step.body)))


def _condition(condition: Condition) -> str:
    return f"{condition.expr} > 0" if isinstance(condition, Positive) else "a byte in memory"


def model_work(plan: HostPlan) -> list[tuple[Expr, Expr]]:
    """(operations, bytes) of each call over the model dims; of a call in a loop, of all times around at the largest counters;
    of one that is made for each sequence, of all sequences."""
    longest = {o.dim.name: o.dim.hi for o in plan.ragged}
    counters = list(counters_of(plan.steps))
    found = []
    for number, times in times_called(plan.steps):
        call = plan.calls[number]
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        once = call.workload.flops, call.workload.bytes
        flops, moved = (at_most(e.substitute(local) * times, counters, plan.bounds) for e in once)
        if call.segments is not None:
            flops, moved = (rows_of(e, plan.ragged[0].dim.over, longest, plan.sums) for e in (flops, moved))
        found.append((flops, moved))
    return found


def reads_memory(plan: HostPlan) -> bool:
    """Does a branch or loop go by data?"""
    return any(isinstance(s, If | Loop) and isinstance(s.condition, Loaded) for s in all_steps(plan.steps))


def times_called(steps: Sequence[Step], times: Expr | int = 1) -> Iterator[tuple[int, Expr]]:
    """(call, how often at most it runs, over the dims): loops of unknown length count as long, branches as taken."""
    for step in steps:
        if isinstance(step, Launch):
            yield from ((number, Expr.of(times)) for number in step.calls)
        elif isinstance(step, If):
            yield from times_called((*step.then, *step.otherwise), times)
        elif isinstance(step, Loop):
            trips = step.trips if step.trips is not None else Expr.of(MANY)
            yield from times_called((*step.test, *step.body), trips.maximum(0) * times)
