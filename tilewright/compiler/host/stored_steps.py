"""The tree of a plan as an artifact stores it, and what its calls cost together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.compiler.dims.ragged_dims import rows_of
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import (
    Condition,
    Copy,
    Current,
    If,
    Launch,
    Loop,
    Positive,
    Step,
    all_steps,
    counters_of,
    sites_of,
)
from tilewright.runtime.counters import at_most
from tilewright.runtime.program.steps import CopyStep, IfStep, LaunchStep, LoopCounter, LoopStep
from tilewright.runtime.program.steps import Step as Stored
from tilewright.runtime.shape import Expr

MANY = 1 << 40  # times around a loop whose end depends on data, where its work is estimated: it may never end


def stored_tree(plan: HostPlan, gpu: bool = False) -> tuple[Stored, ...]:
    """The steps, unless they do no more than launch the calls in order. gpu: with the sites of its branches and loops on data."""
    sites = sites_of(plan.steps) if gpu else []
    if not any(isinstance(s, If | Loop) for s in plan.steps):
        return ()
    return _StoredSteps(plan, sites).of(plan.steps)


class _StoredSteps:
    """The steps of a plan as an artifact stores them."""

    def __init__(self, plan: HostPlan, sites: Sequence[If | Loop]) -> None:
        self._plan, self._sites = plan, sites
        self._carried = {Current(c.name): n for n, s in enumerate(sites) if isinstance(s, Loop) for c in s.carried}

    def of(self, steps: Sequence[Step]) -> tuple[Stored, ...]:
        return tuple(map(self._stored, steps))

    def _stored(self, step: Step) -> Stored:
        if isinstance(step, Launch):
            return LaunchStep(step.calls)
        if isinstance(step, Copy):
            site = self._carried.get(step.source, -1) if isinstance(step.source, Current) else -1
            return CopyStep(str(step.bytes), site)
        site = next((n for n, s in enumerate(self._sites) if s is step), -1)
        condition = _condition(step.condition)
        if isinstance(step, If):
            return IfStep(condition, self.of(step.then), self.of(step.otherwise), site)
        counters = tuple(LoopCounter(c.name, str(c.start), str(c.step), str(c.largest)) for c in step.counters)
        carried = tuple(c.name for c in step.carried)
        limit = step.limit()
        return LoopStep(counters, carried, self.of(step.test), condition, self.of(step.body), site,
                        "" if limit is None else str(limit), self._varies(step))

    def _varies(self, loop: Loop) -> bool:
        """Does a launch of a turn depend on the counters of the loop?"""
        names = {c.name for c in loop.counters}
        inside = list(all_steps((*loop.test, *loop.body)))
        found: list[Expr] = []
        for step in inside:
            if isinstance(step, Launch):
                for call in (self._plan.calls[n] for n in step.calls):
                    found += [*call.dims, *(e for o in call.operands for e in (o.offset, *o.strides))]
            elif isinstance(step, Copy):
                found.append(step.bytes)
            elif isinstance(step.condition, Positive):
                found.append(step.condition.expr)
            else:
                found.append(step.condition.operand.offset)
            if isinstance(step, Loop):
                found += [e for c in step.counters for e in (c.start, c.step, c.largest)]
                found += [c.start.offset for c in step.carried]
        return any(names & e.symbols for e in found)


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
