"""Emits the native host program of a plan: tw_run, tw_call, tw_arena_bytes and tw_dispatch (runtime/program/program.py).

The decision tree of every table is emitted as compares; each leaf computes its grid and launches through the C table. Nothing
is allocated and nothing synchronises between launches. In long programs calls that differ in their memory alone, those of equal
layers, share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

from tilewright.compiler.host.host_groups import ENTRY, KERNEL, SLOTS, UNITS, WORK, pieces, together_ir
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_steps import Scope, StepEmitter
from tilewright.compiler.host.host_tensor_maps import TensorMaps, call_pointer
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Copy,
    If,
    Loaded,
    Loop,
    PlannedCall,
    Temp,
    all_steps,
    counters_of,
)
from tilewright.passes.codegen.emit import gep, integer_type, when
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import arith, ir, llvm, operations
from tilewright.runtime.device import ALLOC, KERNELS, KERNELS_PER_CALL, LAUNCH, NEXT_LAUNCH, RELEASE
from tilewright.runtime.float_environment import MXCSR, RAISED
from tilewright.runtime.program.arena_plan import ALIGNMENT, workspace_stride
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Node, symbols
from tilewright.runtime.program.kernel import MicroKernel, offset_symbol, stride_symbol
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr

THREADS = "threads"
ALONE = 64  # calls of a program up to which each has its own code: a launch is then 5 to 8 of some 36 ns shorter

_SKELETON = """
llvm.func @tw_arena_bytes(%dims: !llvm.ptr, %threads: i64) -> i64 {
  %0 = llvm.mlir.constant(0 : i64) : i64
  llvm.return %0 : i64
}
llvm.func internal @tw_check(%dims: !llvm.ptr) -> i64 {
  %0 = llvm.mlir.constant(0 : i64) : i64
  llvm.return %0 : i64
}
llvm.func internal @tw_launches(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr,
    %arena: !llvm.ptr, %threads: i64) -> i64 {
  %0 = llvm.call @tw_check(%dims) : (!llvm.ptr) -> i64
  llvm.return %0 : i64
}
llvm.func @tw_call(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr, %threads: i64) -> i64 {
  %bytes = llvm.call @tw_arena_bytes(%dims, %threads) : (!llvm.ptr, i64) -> i64
  %pa = llvm.getelementptr %table[ALLOC] : (!llvm.ptr) -> !llvm.ptr, i64
  %alloc = llvm.load %pa : !llvm.ptr -> !llvm.ptr
  %arena = llvm.call %alloc(%table, %bytes) : !llvm.ptr, (!llvm.ptr, i64) -> !llvm.ptr
  %null = llvm.mlir.zero : !llvm.ptr
  %none = llvm.icmp "eq" %arena, %null : !llvm.ptr
  llvm.cond_br %none, ^empty, ^run
^empty:
  %minus = llvm.mlir.constant(-1 : i64) : i64
  llvm.return %minus : i64
^run:
  %rc = llvm.call @tw_run(%table, %tensors, %scalars, %dims, %arena, %threads)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i64
  %pr = llvm.getelementptr %table[RELEASE] : (!llvm.ptr) -> !llvm.ptr, i64
  %release = llvm.load %pr : !llvm.ptr -> !llvm.ptr
  llvm.call %release(%table, %arena) : !llvm.ptr, (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return %rc : i64
}
llvm.func @tw_dispatch(%call: i64, %dims: !llvm.ptr) -> i64 {
  %0 = llvm.mlir.constant(-1 : i64) : i64
  llvm.return %0 : i64
}
""".replace("ALLOC", str(ALLOC)).replace("RELEASE", str(RELEASE))

_LAUNCHES = """%rc = llvm.call @tw_launches(%table, %tensors, %scalars, %dims, %arena, %threads)
      : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i64"""
# By architecture: the launches in the floating-point environment of all calls, which costs some 4 ns where the caller is in it
# already. The caller's word comes back as it was.
_IN_ENVIRONMENT = {"x86_64": f"""
  %one = llvm.mlir.constant(1 : i64) : i64
  %given = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  %own = llvm.alloca %one x i32 : (i64) -> !llvm.ptr
  %wanted = llvm.mlir.constant({MXCSR} : i32) : i32
  %modes = llvm.mlir.constant({~RAISED} : i32) : i32
  llvm.call_intrinsic "llvm.x86.sse.stmxcsr"(%given) : (!llvm.ptr) -> ()
  %word = llvm.load %given : !llvm.ptr -> i32
  %mode = llvm.and %word, %modes : i32
  %other = llvm.icmp "ne" %mode, %wanted : i32
  llvm.cond_br %other, ^enter, ^run
^enter:
  llvm.store %wanted, %own : i32, !llvm.ptr
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%own) : (!llvm.ptr) -> ()
  llvm.br ^run
^run:
  {_LAUNCHES}
  llvm.cond_br %other, ^leave, ^end
^leave:
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%given) : (!llvm.ptr) -> ()
  llvm.br ^end
^end:
"""}


_SHARED = """
llvm.func internal @tw_launch_{number}(%table: !llvm.ptr, %operands: !llvm.ptr, %scalars: !llvm.ptr, %slots: !llvm.ptr,
    %dims: !llvm.ptr, %work: !llvm.ptr, %threads: i64, %stride: i64, %first: i64, %entry: !llvm.ptr)
    attributes {{passthrough = ["noinline"]}} {{
  llvm.return
}}
"""


def _skeleton(arch: str, shared: int) -> str:
    """All functions; HostProgram fills those whose body is one constant or one call. shared: how many serve several calls."""
    body = _IN_ENVIRONMENT.get(arch, _LAUNCHES)
    return _SKELETON + together_ir() + "".join(_SHARED.format(number=n) for n in range(shared)) + f"""
llvm.func @tw_run(%table: !llvm.ptr, %tensors: !llvm.ptr, %scalars: !llvm.ptr, %dims: !llvm.ptr,
    %arena: !llvm.ptr, %threads: i64) -> i64 {{
  {body}
  llvm.return %rc : i64
}}
"""


@dataclass(frozen=True)
class _Run:
    """Values that all launches of one `tw_run` share. slots: room for a launch's arguments. work: the first thread's workspace,
    stride: bytes to the next one's. dims: the model's. operands, given: room for the pointers of a call that shares its function,
    and the model's dims in memory. entry: where a call that is launched with others puts what it needs; null of others."""

    table: ir.Value
    scalars: ir.Value
    slots: ir.Value
    threads: ir.Value
    work: ir.Value
    stride: Index
    dims: Mapping[str, Index]
    operands: ir.Value
    given: ir.Value
    entry: ir.Value


class HostProgram:
    """Emits one module. `dims`: model dims in order; `tables`: one per call's workload, `table_of[i]` for call i.

    gpu: pointers are a device's, and a kernel may be several launches. arch: of the code, in LLVM's words.
    """

    def __init__(self, plan: HostPlan, dims: Sequence[str], tables: Sequence[DispatchTable], table_of: Sequence[int],
                 checks: Sequence[Check], gpu: bool, arch: str) -> None:
        self.gpu, self.arch = gpu, arch
        self.plan, self.dims, self.tables, self.table_of, self.checks = plan, dims, tables, table_of, checks
        self.i64 = integer_type(64)
        self.counters = [c.name for c in counters_of(plan.steps)]
        self.launches = plan.launches()
        self.grouped = {number for members in self.launches if len(members) > 1 for number in members}
        self.groups = self._equal_calls()
        several = [calls for calls in self.groups if len(calls) > 1 and not self._counts(calls[0])]
        share = len(plan.calls) > ALONE and not gpu
        self.shared = {call: number for number, calls in enumerate(several) for call in calls} if share else {}

    def _equal_calls(self) -> list[list[int]]:
        """Numbers of the calls, those together that differ in the memory of their operands alone."""
        found: dict[Hashable, list[int]] = {}
        for number, call in enumerate(self.plan.calls):
            layout = tuple(layout_of(call, self.tables[self.table_of[number]]).items())
            key = (number in self.grouped, self.table_of[number], call.dims, call.scalars, layout,
                   tuple(o.strides for o in call.operands))
            found.setdefault(key, []).append(number)
        return list(found.values())

    def _counts(self, number: int) -> bool:
        """Does a call's size or layout change as a loop goes round?"""
        call = self.plan.calls[number]
        layout = layout_of(call, self.tables[self.table_of[number]]).values()
        known = [*call.dims, *layout, *(s for o in call.operands for s in o.strides)]
        return any(e.symbols.intersection(self.counters) for e in known)

    def emit(self) -> ir.Module:
        """The module, in the current context."""
        first = {shared: call for call, shared in reversed(self.shared.items())}
        module = ir.Module.parse(_skeleton(self.arch, len(first)))
        found = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations(module.body)}
        for shared, call in first.items():
            self._fill_shared(found[f"tw_launch_{shared}"], call)
        self._fill(found["tw_arena_bytes"], self._arena_bytes)
        self._fill(found["tw_check"], self._check)
        self._fill(found["tw_launches"], self._run)
        self._fill(found["tw_dispatch"], self._dispatch)
        return module

    def _fill(self, fn: ir.Operation, body: Callable[..., ir.Value]) -> None:
        """`body(*arguments, previous)` is emitted before the return and replaces the returned value."""
        block = fn.regions[0].blocks[0]
        end = operations(block)[-1]
        with ir.InsertionPoint(end):
            end.operands[0] = body(*block.arguments, end.operands[0])

    def _environment(self, dims: ir.Value, threads: ir.Value | None = None) -> Mapping[str, Index]:
        env = {name: Index(self._word(dims, number)) for number, name in enumerate(self.dims)}
        if threads is not None:
            env[THREADS] = Index(threads)
        return env

    def _counter_words(self, dims: ir.Value) -> Mapping[str, Index]:
        """The counters of the loops, which stand behind the model's dims where one asks for a choice."""
        return {name: Index(self._word(dims, len(self.dims) + i)) for i, name in enumerate(self.counters)}

    def _word(self, base: ir.Value, number: int, type_: ir.Type | None = None) -> ir.Value:
        return llvm.LoadOp(type_ or self.i64, self._element(base, number)).result

    def _element(self, base: ir.Value, number: int) -> ir.Value:
        return llvm.GEPOp(base.type, base, [], ir.DenseI32ArrayAttr.get([number]), ir.TypeAttr.get(self.i64), None).result

    def _number(self, value: int) -> ir.Value:
        return Index(value).value(self.i64)

    # -- arena

    @cached_property
    def workspace(self) -> Expr:
        """Bytes from one thread's workspace to the next one's, enough for any call; over the model dims."""
        most = Expr.of(0)
        for number, *_ in self.groups:
            call = self.plan.calls[number]
            local = dict(zip(call.workload.dims, call.dims, strict=True))
            for kernel in self.tables[self.table_of[number]].kernels:
                need = workspace_stride(Expr.parse(kernel.workspace).substitute(local))
                if need != Expr.of(0):
                    most = most.maximum(need) if most != Expr.of(0) else need
        return most

    def arena(self) -> Expr:
        """Bytes of the arena, over the model dims and `threads`; never 0, so that an allocation is never empty."""
        return self.plan.arena.total + self.workspace * Expr.dim(THREADS) + ALIGNMENT

    def _arena_bytes(self, dims: ir.Value, threads: ir.Value, _: ir.Value) -> ir.Value:
        return emit_expr(self.arena(), self._environment(dims, threads)).value(self.i64)

    # -- checks

    def _check(self, dims: ir.Value, zero: ir.Value) -> ir.Value:
        env = self._environment(dims)
        result = zero
        for number, check in reversed(list(enumerate(self.checks))):
            holds = emit_expr(Expr.parse(check.expr), env).eq(0)
            if isinstance(holds, bool):
                result = result if holds else self._number(number + 1)
            else:
                result = arith.select(holds, result, self._number(number + 1))
        return result

    # -- run

    def _run(self, table: ir.Value, tensors: ir.Value, scalars: ir.Value, dims: ir.Value, arena: ir.Value, threads: ir.Value,
             failed: ir.Value) -> ir.Value:
        env = self._environment(dims, threads)
        slots = self._room([len(k.params) for t in self.tables for k in t.kernels])
        operands = self._room([len(self.plan.calls[number].operands) for number in self.shared])
        self.maps = TensorMaps(table, self.tables)
        rooms = self._group_rooms()
        loops = any(isinstance(step, Loop) for step in all_steps(self.plan.steps))
        stopped = self._room([1]) if loops else None
        if stopped is not None:
            llvm.StoreOp(failed, stopped)

        def body() -> None:
            start = emit_expr(self.plan.arena.total, env)
            work = gep(arena, start.value(self.i64), integer_type(8))
            stride = emit_expr(self.workspace, env)
            nothing = llvm.ZeroOp(llvm.PointerType.get()).result
            run = _Run(table, scalars, slots, threads, work, stride, env, operands, dims, nothing)
            scope = Scope(env, {
                **{CallerMemory(i): self._word(tensors, i, llvm.PointerType.get()) for i in self._positions()},
                **{Temp(name): gep(arena, emit_expr(at, env).value(self.i64), integer_type(8))
                   for name, at in self.plan.arena.offsets.items()}})
            StepEmitter(table, self.gpu, self.arch, partial(self._launch_calls, run, rooms), stopped).emit(self.plan.steps, scope)

        when(Index(failed).eq(0), body)
        return failed if stopped is None else self._word(stopped, 0)

    def _launch_calls(self, run: _Run, rooms: tuple[ir.Value, ir.Value], members: Sequence[int], scope: Scope) -> None:
        """One launch where the dims and pointers of a scope are known. rooms: _group_rooms."""
        if len(members) > 1:
            self._launch_together(members, run, scope, *rooms)
        else:
            self._launch_one(members[0], run, scope)

    def _launch_one(self, number: int, run: _Run, scope: Scope) -> None:
        """Launch a call, or fill its entry."""
        call = self.plan.calls[number]

        def pointer(index: int) -> ir.Value:
            return scope.pointer(call.operands[index])

        if number in self.shared:
            self._launch_shared(number, pointer, run)
        else:
            self._launch(number, pointer, Index(number * KERNELS_PER_CALL), replace(run, dims=scope.dims))

    def _group_rooms(self) -> tuple[ir.Value, ir.Value]:
        """Memory for the entries and for the slots of calls that are launched together."""
        several = [members for members in self.launches if len(members) > 1]
        entries = self._room([1 + ENTRY * len(members) for members in several])
        return entries, self._room([sum(map(self._slots_of, members)) for members in several])

    def _slots_of(self, number: int) -> int:
        return max(len(k.params) for k in self.tables[self.table_of[number]].kernels)

    def _launch_together(self, members: Sequence[int], run: _Run, scope: Scope, entries: ir.Value, slots: ir.Value) -> None:
        """One parallel loop over the work of all the calls."""
        llvm.StoreOp(self._number(len(members)), entries)
        used = 0
        for place, number in enumerate(members):
            own = replace(run, slots=self._element(slots, used), entry=self._element(entries, 1 + ENTRY * place))
            used += self._slots_of(number)
            self._launch_one(number, own, scope)
        self._call("tw_together", [run.table, entries, run.threads, run.work, run.stride.value(self.i64)])

    def _call(self, name: str, values: Sequence[ir.Value]) -> None:
        ir.Operation.create("llvm.call", operands=list(values), attributes={
            "callee": ir.FlatSymbolRefAttr.get(name),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(values), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        })

    def _positions(self) -> list[int]:
        used = {o.place for c in self.plan.calls for o in c.operands}
        for step in all_steps(self.plan.steps):
            if isinstance(step, Copy):
                used |= {step.source, step.target}
            elif isinstance(step, Loop):
                used.update(p for c in step.carried for p in (c.start.place, *c.buffers))
            if isinstance(step, If | Loop) and isinstance(step.condition, Loaded):
                used.add(step.condition.operand.place)
        return sorted(p.position for p in used if isinstance(p, CallerMemory))

    def _room(self, words: Sequence[int]) -> ir.Value:
        """Memory for the most of so many words."""
        return llvm.AllocaOp(llvm.PointerType.get(), self._number(max(words, default=1)), ir.TypeAttr.get(self.i64)).result

    def _launch_shared(self, number: int, pointer: Callable[[int], ir.Value], run: _Run) -> None:
        """Call the function of equal calls, with the pointers that this one has to itself."""
        for index in self._pointers_of(number):
            llvm.StoreOp(pointer(index), self._element(run.operands, index))
        values = [run.table, run.operands, run.scalars, run.slots, run.given, run.work, run.threads, run.stride.value(self.i64),
                  self._number(number * KERNELS_PER_CALL), run.entry]
        self._call(f"tw_launch_{self.shared[number]}", values)

    def _pointers_of(self, number: int) -> list[int]:
        """Which operands of a call its kernels read by pointer."""
        params = [p for k in self.tables[self.table_of[number]].kernels for p in k.params]
        return sorted({p.index for p in params if p.kind == "pointer"})

    def _fill_shared(self, fn: ir.Operation, number: int) -> None:
        """The function that launches for the call of this number and for those that are equal to it."""
        block = fn.regions[0].blocks[0]
        table, operands, scalars, slots, dims, work, threads, stride, first, entry = block.arguments
        with ir.InsertionPoint(operations(block)[-1]):
            run = _Run(table, scalars, slots, threads, work, Index(stride), self._environment(dims), operands, dims, entry)
            read = {i: self._word(operands, i, llvm.PointerType.get()) for i in self._pointers_of(number)}
            self._launch(number, read.__getitem__, Index(first), run)

    def _launch(self, number: int, pointer: Callable[[int], ir.Value], first: Index, run: _Run) -> None:
        """Fill the slots of a call's kernel and launch it. pointer: of an operand; first: number of the call's first kernel."""
        tab, env, call = self.tables[self.table_of[number]], run.dims, self.plan.calls[number]
        local = {name: emit_expr(e, env) for name, e in zip(call.workload.dims, call.dims, strict=True)}

        def fill(kernel_number: int) -> None:
            for at, p in enumerate(tab.kernels[kernel_number].params):
                if p.kind == "pointer":
                    word = pointer(p.index)
                elif p.kind == "stride":
                    word = emit_expr(call.operands[p.index].strides[p.axis], env).value(self.i64)
                elif p.kind == "dim":
                    word = local[p.name].value(self.i64)
                elif p.kind == "workspace":
                    word = run.work
                elif p.kind == "tensor_map":
                    word = self.maps.emit(at, p, call, pointer(p.index), env, local)
                else:
                    word = self._word(run.scalars, call.scalars[p.index])
                llvm.StoreOp(word, self._element(run.slots, at))

        shared = len({k.params for k in tab.kernels}) == 1
        if shared:
            fill(0)

        def leaf(chosen: Leaf) -> None:
            kernel = tab.kernels[chosen.kernel]
            if not shared:
                fill(chosen.kernel)
            if number in self.grouped:
                self._enter(kernel, call, first + chosen.kernel, local, run)
                return
            count = run.threads
            if chosen.threads:
                count = Index(run.threads).min(chosen.threads).value(self.i64)
            fn = self._word(run.table, LAUNCH, llvm.PointerType.get())
            for step, part in enumerate(kernel.launches()):
                grid = [emit_expr(Expr.parse(g), local).value(self.i64) for g in part.grid]
                launch = (first + chosen.kernel + step * NEXT_LAUNCH).value(self.i64)
                passed = self._number(len(kernel.params))
                call_pointer([fn, run.table, launch, *grid, run.slots, passed, count, run.work, run.stride.value(self.i64)])

        emit_tree(tab.root, {**local, **self._layout(number, call, env)}, leaf)

    def _enter(self, kernel: MicroKernel, call: PlannedCall, launch: Index, local: dict[str, Index], run: _Run) -> None:
        """Fill the entry of a call whose kernel is chosen."""
        kernels = self._word(run.table, KERNELS, llvm.PointerType.get())
        address = llvm.LoadOp(llvm.PointerType.get(), gep(kernels, launch.value(self.i64), self.i64)).result
        words = {WORK: pieces(call.workload, local, self.i64), KERNEL: address, SLOTS: run.slots,
                 UNITS: emit_expr(Expr.parse(kernel.grid[0]), local).value(self.i64)}
        for at, word in words.items():
            llvm.StoreOp(word, self._element(run.entry, at))

    def _layout(self, number: int, call: PlannedCall, env: Mapping[str, Index]) -> dict[str, Index]:
        """The layout symbols that the call's decision tree asks for."""
        return {name: emit_expr(e, env) for name, e in layout_of(call, self.tables[self.table_of[number]]).items()}

    # -- dispatch

    def _dispatch(self, call: ir.Value, dims: ir.Value, none: ir.Value) -> ir.Value:
        env = {**self._environment(dims), **self._counter_words(dims)}
        slot = llvm.AllocaOp(llvm.PointerType.get(), self._number(1), ir.TypeAttr.get(self.i64)).result
        llvm.StoreOp(none, slot)
        for group in self.groups:

            def choose(number: int = group[0]) -> None:
                planned = self.plan.calls[number]
                local = {n: emit_expr(e, env) for n, e in zip(planned.workload.dims, planned.dims, strict=True)}
                emit_tree(self.tables[self.table_of[number]].root, {**local, **self._layout(number, planned, env)},
                          lambda chosen: store_leaf(self._number(chosen.kernel | chosen.threads << 32), slot))

            asked = [Index(call).eq(number) for number in group]
            when(reduce(arith.ori, asked), choose)
        return llvm.LoadOp(self.i64, slot).result


def layout_of(call: PlannedCall, table: DispatchTable) -> dict[str, Expr]:
    """The layout symbols of a table's tree for one call, over the model dims."""
    wanted = symbols(table.root)
    found: dict[str, Expr] = {}
    for i, operand in enumerate(call.operands):
        found[offset_symbol(i)] = operand.offset
        found.update({stride_symbol(i, axis): s for axis, s in enumerate(operand.strides)})
    return {name: e for name, e in found.items() if name in wanted}


def store_leaf(value: ir.Value, slot: ir.Value) -> None:
    llvm.StoreOp(value, slot)


def emit_tree(node: Node, env: Mapping[str, Index], leaf: Callable[[Leaf], None]) -> None:
    """Nested conditions of a decision tree; `leaf` emits the code of each leaf."""
    if isinstance(node, Leaf):
        leaf(node)
        return
    below = emit_expr(Expr.parse(node.expr), env).le(node.bound)
    when(below, lambda: emit_tree(node.below, env, leaf), lambda: emit_tree(node.above, env, leaf))
