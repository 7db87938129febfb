"""The plan of the host program: when a result may take the buffer of a donated argument at once."""

from __future__ import annotations

import pytest
from unit.graph_models import ADD, T, W, X, generic, matmul, model, run

from tilewright.compiler.host.host_plan import HostPlan, plan_of
from tilewright.compiler.host.plan_steps import CallerMemory, Copy, Launch, Temp
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.spaces.workload import Kind


def planned(body: str, result: str) -> HostPlan:
    """The plan of a model over x[B, 8], which is donated to its one result, and w[8, 8]."""
    text = run(model([X, W], body, result, T), graph_passes())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        return plan_of(module, workloads_of(module), [(0, 0)])


def test_a_result_takes_the_buffer_that_an_earlier_call_read_last() -> None:
    plan = planned(matmul("m", "%x") + matmul("n", "%m"), "%n")
    assert len(plan.calls) == 2 and plan.steps == [Launch((0,)), Launch((1,))]
    assert plan.calls[1].operands[-1].place == CallerMemory(2)


@pytest.mark.parametrize(("body", "calls"), [
    (matmul("m", "%x"), 1),
    (matmul("m", "%x") + matmul("n", "%m") + generic("y", "%n, %x", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"), 2),
])
def test_a_result_is_copied_where_its_own_call_still_reads_the_buffer(body: str, calls: int) -> None:
    """A product that writes over the rows that it reads would be wrong."""
    plan = planned(body, "%m" if calls == 1 else "%y")
    assert len(plan.calls) == calls
    assert plan.steps[:-1] == [Launch((number,)) for number in range(calls)]
    copy = plan.steps[-1]
    assert isinstance(copy, Copy) and copy.target == CallerMemory(2)
    last = plan.calls[-1]
    assert last.operands[-1].place == copy.source and isinstance(copy.source, Temp)
    assert copy.source.name in plan.arena.offsets


def test_results_of_one_call_that_take_buffers_which_it_reads_are_copied_each() -> None:
    """Where nothing may lie over what its own call reads, as in a batch of sequences on a GPU."""
    y = '%y: tensor<?x8xf32> {tw.dims = ["B", 8]}'
    body = (generic("a", "%x, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
            + generic("b", "%a, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"))
    text = run(model([X, y], body, "%a, %b", f"{T}, {T}"), graph_passes())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        plan = plan_of(module, workloads_of(module), [(0, 0), (1, 1)])
    assert len(plan.calls) == 1
    copies = [step for step in plan.steps if isinstance(step, Copy)]
    assert [c.target for c in copies] == [CallerMemory(2), CallerMemory(3)]
    assert [c.source for c in copies] == [o.place for o in plan.calls[0].operands[2:]]


Y = '%y: tensor<?x8xf32> {tw.dims = ["B", 8]}'
BOTH = (generic("a", "%x, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
        + generic("b", "%a, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"))


def planned_together(arguments: list[str], body: str, results: str, donated: list[tuple[int, int]]) -> HostPlan:
    """As a host has it, whose independent calls share a launch."""
    text = run(model(arguments, body, results, ", ".join([T] * results.count("%"))), graph_passes())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        return plan_of(module, workloads_of(module), donated, together=True, over=True)


def test_elements_are_written_over_what_their_own_call_reads() -> None:
    """As in a step of an optimizer on a host: nothing is copied, and the kernel knows that its operands share memory."""
    plan = planned_together([X, Y], BOTH, "%a, %b", [(0, 0), (1, 1)])
    assert plan.steps == [Launch((0,))] and plan.in_place == {plan.calls[0].workload.key}
    assert [o.place for o in plan.calls[0].operands] == [CallerMemory(n) for n in range(4)]


def test_on_a_gpu_each_call_is_alone_and_nothing_is_copied_either() -> None:
    text = run(model([X, Y], BOTH, "%a, %b", f"{T}, {T}"), graph_passes())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        plan = plan_of(module, workloads_of(module), [(0, 0), (1, 1)], over=True)
    assert plan.steps == [Launch((0,))] and plan.in_place == {plan.calls[0].workload.key}


def test_rows_are_written_over_though_they_are_read_twice() -> None:
    body = (generic("s", "%x", T, "%f1", "tensor<?xf32>", ADD.replace("%a0, %a1", "%a0, %o"), "#id, #row", "pr")
            + generic("a", "%x, %s", f"{T}, tensor<?xf32>", "%e", T, ADD, "#id, #row, #id"))
    plan = planned_together([X, Y, W], body, "%a", [(0, 0)])
    assert plan.steps == [Launch((0,))] and plan.in_place == {plan.calls[0].workload.key}


@pytest.mark.parametrize(("body", "result"), [
    (generic("a", "%x, %x", f"{T}, {T}", "%e", T, ADD, "#id, affine_map<(d0, d1) -> (d0, 7 - d1)>, #id"), "%a"),  # other places
    (generic("s", "%x", T, "%f1", "tensor<?xf32>", ADD.replace("%a0, %a1", "%a0, %o"), "#id, #row", "pr")
     + generic("a", "%x, %s", f"{T}, tensor<?xf32>", "%e", T, ADD, "affine_map<(d0, d1) -> (d0, 7 - d1)>, #row, #id"), "%a"),
    (generic("a", "%x, %y", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id") + matmul("m", "%a")
     + generic("n", "%m, %x", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"), "%a, %n"),  # by what needs the result
], ids=["reversed", "reversed rows", "read again"])
def test_what_is_read_elsewhere_or_later_is_not_written_over(body: str, result: str) -> None:
    plan = planned_together([X, Y, W], body, result, [(0, 0)])
    assert not plan.in_place and (any(isinstance(s, Copy) for s in plan.steps) or len(plan.calls) > 1)


def test_what_is_written_over_waits_for_what_reads_it() -> None:
    """The elements come first in the model; the product that reads the same argument does not need them."""
    body = generic("y", "%x", T, "%e", T, ADD.replace("%a0, %a1", "%a0, %a0"), "#id, #id") + matmul("m", "%x")
    plan = planned_together([X, W], body, "%y, %m", [(0, 0)])
    assert [c.workload.kind for c in plan.calls] == [Kind.CONTRACTION, Kind.POINTWISE]
    assert plan.in_place == {plan.calls[1].workload.key} and not plan.copied
    assert plan.calls[1].operands[-1].place == CallerMemory(2)


def test_why_a_result_is_copied_to_a_donated_buffer_is_said() -> None:
    elements = generic("y", "%x", T, "%e", T, ADD.replace("%a0, %a1", "%a0, %a0"), "#id, #id") + matmul("m", "%y")
    again = elements + generic("z", "%m, %x", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id") + matmul("n", "%z")
    plan = planned_together([X, W], again, "%y, %n", [(0, 0)])
    assert list(plan.copied) == [0] and "or later" in plan.copied[0]
    plan = planned_together([X, W], matmul("m", "%x"), "%m", [(0, 0)])
    assert list(plan.copied) == [0] and "kind contraction" in plan.copied[0]
