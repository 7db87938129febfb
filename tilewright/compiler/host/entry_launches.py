"""Launches of a GPU that serve calls of many tensors, equal but for extents: a step of an optimizer over all its parameters.

Such calls have one workload, whose dims are the extents that differ. What differs between them comes by value with the launch, as
entries (runtime/program/kernel.py): pointers, extents, strides and the first block of each call, in which a block finds its own.
Entries take part of the room that all parameters of a kernel have, so that very many calls are some launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import msgspec

from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_steps import Scope
from tilewright.compiler.host.host_tensor_maps import call_pointer
from tilewright.compiler.host.plan_steps import Launch, PlacedOperand, PlannedCall, Step
from tilewright.compiler.host.run_values import RunValues
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.dispatch_creation.any_extents import AnyExtents, dims_of, with_dims
from tilewright.passes.dispatch_creation.outlined import segmented
from tilewright.passes.mlir import arith, ir, llvm
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.device import KERNELS_PER_CALL, LAUNCH
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, leaves
from tilewright.runtime.program.kernel import PARAMETER_BYTES, MicroKernel, Param, layout
from tilewright.runtime.shape import Expr

_WORD = 8


def extents_of(workloads: Mapping[str, Workload]) -> dict[str, AnyExtents]:
    """Of the workloads that calls of other extents may share a launch with. In the current context."""
    found = {name: AnyExtents.of(w) for name, w in workloads.items()}
    return {name: own for name, own in found.items() if own is not None}


def with_entries(plan: HostPlan, extents: Mapping[str, AnyExtents]) -> HostPlan:
    """The plan for a GPU in which calls that are launched together have one workload, as many in a launch as their entries leave
    room for. extents: by the workload's key. In the current context."""
    steps: list[Step] = []
    made: dict[tuple[str, str], Workload] = {}
    for step in plan.steps:
        if not isinstance(step, Launch) or len(step.calls) == 1:
            steps.append(step)
            continue
        calls = [plan.calls[n] for n in step.calls]
        if not all(map(_is_constant, calls)):
            steps += [Launch((n,)) for n in step.calls]
            continue
        names = dims_of([extents[c.workload.key].extents for c in calls])
        first = calls[0].workload
        general = with_dims(first, names)
        most = _most(general)
        for at in range(0, len(calls), most):
            part = step.calls[at : at + most]
            steps.append(Launch(part))
            segments = _segments([plan.calls[n] for n in part], general)
            key = general.key, str(segments)
            if key not in made:
                made[key] = segmented(general, segments)
            if any(plan.calls[n].workload.key in plan.in_place for n in part):
                plan.in_place.add(made[key].key)
            for n in part:
                own = plan.calls[n]
                values = extents[own.workload.key].extents
                dims = {name: Expr.of(values[number]) for number, name in names.items()}
                plan.calls[n] = replace(own, workload=made[key], dims=tuple(dims[name] for name in general.dims))
    return replace(plan, steps=steps)


def _is_constant(call: PlannedCall) -> bool:
    """Are its extents and the places of its operands the same at every shape of the model?"""
    return all(e.constant is not None for e in (*call.dims, *(e for o in call.operands for e in (o.offset, *o.strides))))


def _most(workload: Workload) -> int:
    """Calls whose entries fit one launch, whatever of them differs."""
    operands = (*workload.inputs, *workload.outputs)
    words = 1 + len(workload.dims) + sum(1 + len(o.dims) for o in operands)
    return max(1, (PARAMETER_BYTES // _WORD - words) // words)


def _segments(calls: Sequence[PlannedCall], workload: Workload) -> Segments:
    """What differs between calls."""
    first, operands = calls[0], range(len(calls[0].operands))

    def where(operand: PlacedOperand) -> tuple[object, Expr]:
        return operand.place, operand.offset

    pointers = tuple(i for i in operands if any(where(c.operands[i]) != where(first.operands[i]) for c in calls))
    strides = tuple((i, a) for i in operands for a, s in enumerate(first.operands[i].strides)
                    if any(c.operands[i].strides[a] != s for c in calls))
    return Segments(pointers, strides, workload.dims, members=len(calls))


def with_settled(plan: HostPlan, tables: Sequence[DispatchTable]) -> list[DispatchTable]:
    """Tables of a plan with entries, of which those of calls that are launched together have one kernel."""
    calls: dict[str, list[PlannedCall]] = {}
    for launch in plan.launches():
        if len(launch.calls) > 1:
            calls.setdefault(plan.calls[launch.calls[0]].workload.key, []).extend(plan.calls[n] for n in launch.calls)
    return [_settled(t, calls[t.workload]) if t.workload in calls else t for t in tables]


def _settled(table: DispatchTable, calls: Sequence[PlannedCall]) -> DispatchTable:
    """The table of calls that are launched together, with the one kernel that serves all: that of the largest, where the others
    fit it, else one that the table chooses anywhere, the one without guards last. BuildError where none fits all."""
    shapes = [_values(c) for c in calls]
    largest, last = max(shapes, key=lambda own: sum(own[name] for name in table.dims)), len(table.kernels) - 1
    wanted = [table.select(largest).kernel, *(leaf.kernel for leaf in leaves(table.root) if leaf.kernel != last), last]
    for number in wanted:
        if all(table.kernels[number].legal(own) for own in shapes):
            pads = table.pads[number : number + 1]
            return msgspec.structs.replace(table, kernels=(table.kernels[number],), root=Leaf(0), pads=pads)
    raise BuildError(f"{table.name}: no kernel serves all of {len(calls)} tensors that are one launch")


def _values(call: PlannedCall) -> dict[str, int]:
    """The values of the local dims of a call, and of the layout of its operands."""
    found = {n: _number(e) for n, e in zip(call.workload.dims, call.dims, strict=True)}
    for i, operand in enumerate(call.operands):
        found |= layout(i, [_number(s) for s in operand.strides], _number(operand.offset))
    return found


def _number(expr: Expr) -> int:
    assert expr.constant is not None
    return expr.constant


class EntryLaunches:
    """Emits launches of several calls each. tables: settled ones, `table_of[i]` for call i."""

    def __init__(self, plan: HostPlan, tables: Sequence[DispatchTable], table_of: Sequence[int]) -> None:
        self.plan, self.tables, self.table_of = plan, tables, table_of

    def _kernel(self, launch: Launch) -> MicroKernel:
        return self.tables[self.table_of[launch.calls[0]]].kernels[0]

    def words(self, launch: Launch) -> int:
        """Of its entries."""
        return sum(p.bytes for p in self._kernel(launch).params) // _WORD

    def launch(self, launch: Launch, run: RunValues, scope: Scope, entries: ir.Value) -> None:
        """One launch of all calls. entries: room for them."""
        kernel, first = self._kernel(launch), self.plan.calls[launch.calls[0]]
        calls = [self.plan.calls[n] for n in launch.calls]
        grids = [kernel.units(_values(c)) for c in calls]
        if len({grid[1:] for grid in grids}) > 1:
            raise BuildError(f"{kernel.symbol}: blocks along y and z differ from tensor to tensor")
        differing = [p for p in kernel.params if p.by_sequence]
        starts = list(accumulate((grid[0] for grid in grids), initial=0))
        bases = {p.index: self._address(first, p, scope) for p in differing if p.kind == "pointer"}
        for number, call in enumerate(calls):
            self._store(self._word(starts[number]), entries, number)
            at = len(calls) + number * len(differing)
            for place, param in enumerate(differing, at):
                self._store(self._differing(call, param, bases, scope), entries, place)
        for slot, param in enumerate(kernel.params):
            self._store(self._slot(param, first, kernel, scope, entries), run.slots, slot)
        fn = llvm.LoadOp(llvm.PointerType.get(), gep(run.table, self._word(LAUNCH), integer_type(64))).result
        blocks = [self._word(n) for n in (starts[-1], *grids[0][1:])]
        call_pointer([fn, run.table, self._word(launch.calls[0] * KERNELS_PER_CALL), *blocks, run.slots,
                      self._word(len(kernel.params)), run.threads, run.work, run.stride.value(integer_type(64))])

    def _differing(self, call: PlannedCall, param: Param, bases: Mapping[int, ir.Value], scope: Scope) -> ir.Value:
        """A word of an entry."""
        if param.kind == "pointer":
            return arith.SubIOp(self._address(call, param, scope), bases[param.index]).result
        value = call.operands[param.index].strides[param.axis] if param.kind == "stride" else \
            dict(zip(call.workload.dims, call.dims, strict=True))[param.name]
        return self._word(_number(value))

    def _slot(self, param: Param, first: PlannedCall, kernel: MicroKernel, scope: Scope, entries: ir.Value) -> ir.Value:
        """What all calls have in common, or what entries are differences to."""
        if param.kind == "pointer":
            return scope.pointer(first.operands[param.index])
        if param.kind == "entries":
            return entries
        if param.kind == "stride":
            return emit_expr(first.operands[param.index].strides[param.axis], {}).value(integer_type(64))
        if param.kind == "dim":
            return self._word(0)
        raise BuildError(f"{kernel.symbol}: a kernel for many tensors has no slot of kind {param.kind}")

    def _address(self, call: PlannedCall, param: Param, scope: Scope) -> ir.Value:
        return llvm.PtrToIntOp(integer_type(64), scope.pointer(call.operands[param.index])).result

    def _store(self, value: ir.Value, base: ir.Value, number: int) -> None:
        llvm.StoreOp(value, gep(base, self._word(number), integer_type(64)))

    def _word(self, value: int) -> ir.Value:
        return Index(value).value(integer_type(64))
