"""Emits the native host program of a plan: tw_run, tw_call, tw_arena_bytes and tw_dispatch (runtime/program/program.py).

The decision tree of every table is emitted as compares; each leaf computes its grid and launches through the C table. Nothing
is allocated and nothing synchronises between launches. In long programs calls that differ in their memory alone, those of equal
layers, share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce

from tilewright.compiler.host.block_tables import BlockTables
from tilewright.compiler.host.decision_tree import emit_tree, layout_of, store_leaf
from tilewright.compiler.host.entry_launches import EntryLaunches
from tilewright.compiler.host.host_groups import ENTRY, KERNEL, PHASE, SLOTS, UNITS, WORK, pieces
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_segments import SequenceLoop, segments_ir
from tilewright.compiler.host.host_sites import Sites, state_bytes
from tilewright.compiler.host.host_skeleton import skeleton
from tilewright.compiler.host.host_steps import Scope, StepEmitter
from tilewright.compiler.host.host_tensor_maps import TensorMaps, call_pointer
from tilewright.compiler.host.joined_parts import Joining, PartJoins
from tilewright.compiler.host.kernel_workspaces import kernel_workspace
from tilewright.compiler.host.launch_groups import ALONE
from tilewright.compiler.host.plan_steps import (
    Launch,
    Loop,
    PlannedCall,
    Temp,
    all_steps,
    counters_of,
    sites_of,
)
from tilewright.compiler.host.run_values import ADDRESSES, COMMON, RunValues
from tilewright.compiler.host.sequence_tables import SequenceTables
from tilewright.compiler.host.strided_inputs import stride_words
from tilewright.compiler.host.strip_launches import StripLaunches, can_run, strips_ir
from tilewright.compiler.host.table_launches import TableLaunches
from tilewright.passes.codegen.emit import all_of, choose, gep, integer_type, when
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import arith, ir, llvm, operations
from tilewright.runtime.device import CONTROL_WORDS, KERNELS, KERNELS_PER_CALL, LAUNCH, NEXT_LAUNCH
from tilewright.runtime.program.arena_plan import ALIGNMENT
from tilewright.runtime.program.dispatch import DispatchTable, Leaf
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr

THREADS = "threads"


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
        none = replace(plan, calls=[])
        self.block_tables = BlockTables(plan if gpu else none, tables, table_of if gpu else [])
        self.sequence_tables = SequenceTables(none if gpu else plan, tables, [] if gpu else table_of)
        self.table_launches = TableLaunches(plan, dims, self.block_tables)
        in_groups = (launch.calls for launch in self.launches if len(launch.calls) > 1 and not gpu)
        self.grouped = {number for calls in in_groups for number in calls}
        self.entry_launches = EntryLaunches(plan, tables, table_of)
        self.groups = self._equal_calls()
        several = [calls for calls in self.groups if len(calls) > 1 and self._may_share(calls[0])]
        share = len(plan.calls) > ALONE and not gpu
        self.shared = {call: number for number, calls in enumerate(several) for call in calls} if share else {}
        self.table_at_call = dict(enumerate(tables[n] for n in table_of))
        self.strips = [s for s in plan.strips if can_run(s, plan, self.table_at_call)]
        self.strip_of = {launch: s for s in self.strips for launch in s.launches}
        apart = {n for launch in self.strip_of for n in launch.calls}
        apart |= {n for n, call in enumerate(plan.calls) if call.segments is not None}
        self.joined = PartJoins([] if share else plan.joined, [launch.calls for launch in self.launches], apart)

    def _equal_calls(self) -> list[list[int]]:
        """Numbers of the calls, those together that differ in the memory of their operands alone."""
        found: dict[Hashable, list[int]] = {}
        for number, call in enumerate(self.plan.calls):
            layout = tuple(layout_of(call, self.tables[self.table_of[number]]).items())
            key = (number in self.grouped, self.table_of[number], call.dims, call.scalars, layout,
                   tuple(o.strides for o in call.operands), call.segments)
            found.setdefault(key, []).append(number)
        return list(found.values())

    def _may_share(self, number: int) -> bool:
        """Is a call of one size for the whole run, not one for each time around a loop or each sequence?"""
        call = self.plan.calls[number]
        if call.segments is not None:
            return False
        layout = layout_of(call, self.tables[self.table_of[number]]).values()
        known = [*call.dims, *layout, *(s for o in call.operands for s in o.strides)]
        return not any(e.symbols.intersection(self.counters) for e in known)

    def emit(self) -> ir.Module:
        """The module, in the current context."""
        first = {shared: call for call, shared in reversed(self.shared.items())}
        module = ir.Module.parse(skeleton(self.arch, len(first)) + segments_ir(self.plan, self.tables, self.table_of)
                                 + strips_ir(len(self.strips)))
        found = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations(module.body)}
        for shared, call in first.items():
            self._fill_shared(found[f"tw_launch_{shared}"], call)
        names = [*self.dims, *(name for given in self.plan.strided for name in given.names)]
        self.strip_launches = StripLaunches(self.plan, names, self.strips, self.table_at_call, self._fill_slots,
                                            self.kernel_workspace)
        for number, _ in enumerate(self.strips):
            self.strip_launches.emit(found[f"tw_strips_{number}"], number)
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
        """Bytes from one thread's workspace to the next one's, enough for any call and for any strip; over the model dims."""
        strips = Expr.of(0)
        for s in self.strips:
            strips = strips.maximum((s.rows // s.least).minimum(1) * s.bytes)
        return self.kernel_workspace + strips

    @cached_property
    def kernel_workspace(self) -> Expr:
        """Those that kernels need."""
        return kernel_workspace(self.plan, self.table_at_call, [group[0] for group in self.groups])

    @cached_property
    def kept(self) -> Expr:
        """Bytes of temporaries, of the tables of launches over sequences, and of the state of a GPU's branches and loops on data;
        the workspaces come after them."""
        return self._before_state + (state_bytes(self.plan.steps) if self.gpu else 0)

    @property
    def _before_state(self) -> Expr:
        return self.plan.arena.total + (self.block_tables.bytes if self.gpu else self.sequence_tables.bytes)

    def arena(self) -> Expr:
        """Bytes of the arena, over the model dims and `threads`; never 0, so that an allocation is never empty."""
        return self.kept + self.workspace * Expr.dim(THREADS) + ALIGNMENT

    def _arena_bytes(self, dims: ir.Value, threads: ir.Value, _: ir.Value) -> ir.Value:
        return emit_expr(self.arena(), self._environment(dims, threads)).value(self.i64)

    # -- checks

    def _check(self, dims: ir.Value, zero: ir.Value) -> ir.Value:
        env = self._environment(dims)
        result = zero
        for number, check in reversed(list(enumerate(self.checks))):
            if self._is_of_sequence(check):
                continue
            holds = emit_expr(Expr.parse(check.expr), env).eq(0)
            if isinstance(holds, bool):
                result = result if holds else self._number(number + 1)
            else:
                result = arith.select(holds, result, self._number(number + 1))
        return result

    @property
    def sequence_checks(self) -> list[Check]:
        """Those that lengths of a sequence may break."""
        return [c for c in self.checks if self._is_of_sequence(c)]

    def _is_of_sequence(self, check: Check) -> bool:
        """Does it depend on lengths that differ from sequence to sequence?"""
        return bool(Expr.parse(check.expr).symbols & {o.dim.name for o in self.plan.ragged})

    def _check_sequences(self, tensors: ir.Value, env: Mapping[str, Index], status: ir.Value) -> ir.Value:
        """The status of the lengths and of the checks of each sequence, where nothing else failed."""
        if not self.plan.ragged:
            return status
        places = [o.place.position for o in self.plan.ragged]
        if self.gpu:  # behind all other tensors, as the host has them; null where they are on the device alone
            places = [places[-1] + 1 + len(self.plan.bound) + len(self.plan.outputs) + i for i, _ in enumerate(places)]
        offsets = [self._word(tensors, p, llvm.PointerType.get()) for p in places]
        self.sequences = SequenceLoop(self.plan.ragged, env, offsets, self.plan.sums)
        checks = [(n, c) for n, c in enumerate(self.checks) if c in self.sequence_checks]
        known = all_of([self._is_there(o) for o in offsets]) if self.gpu else True
        found = choose(known, self.i64, lambda: self.sequences.lengths(checks, len(self.checks) + 1), lambda: self._number(0))
        return arith.select(Index(status).eq(0), found, status)

    def _is_there(self, pointer: ir.Value) -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.ne, llvm.PtrToIntOp(self.i64, pointer).result, self._number(0))

    # -- run

    def _run(self, table: ir.Value, tensors: ir.Value, scalars: ir.Value, dims: ir.Value, arena: ir.Value, threads: ir.Value,
             failed: ir.Value) -> ir.Value:
        env = self._environment(dims, threads)
        failed = self._check_sequences(tensors, env, failed)
        slots = self._room([*(len(k.params) for t in self.tables for k in t.kernels), self.table_launches.slots])
        operands = self._room([len(self.plan.calls[number].operands) for number in self.shared])
        common = self._room([COMMON])
        self.maps = self.table_launches.maps = TensorMaps(table, self.tables)
        if self.sequence_tables:
            self.sequence_tables.record = self._room([self.sequence_tables.record_words])
        entries = [self.entry_launches.words(launch) for launch in self.launches if len(launch.calls) > 1 and self.gpu]
        self.entries = self._room(entries) if entries else None
        rooms = self._group_rooms()
        self.joined_at = self._room([len(self.joined.found)])
        self.strip_head, self.by_strips = self._room(self.strip_launches.words), dict[Launch, ir.Value]()
        loops = any(isinstance(step, Loop) for step in all_steps(self.plan.steps))
        stopped = self._room([1]) if loops else None
        if stopped is not None:
            llvm.StoreOp(failed, stopped)
        sites = sites_of(self.plan.steps) if self.gpu else []
        words = self._room([len(CONTROL_WORDS) * len(sites)]) if sites else None

        def body() -> None:
            work = gep(arena, emit_expr(self.kept, env).value(self.i64), integer_type(8))
            self.table_at = gep(arena, emit_expr(self.plan.arena.total, env).value(self.i64), integer_type(8))
            stride = emit_expr(self.workspace, env)
            nothing = llvm.ZeroOp(llvm.PointerType.get()).result
            known = {**env, **stride_words(self.plan.strided, self._element(tensors, self.plan.strides_at), env)}
            run = RunValues(table, scalars, slots, threads, work, stride, known, operands, common, nothing)
            for at, value in enumerate(run.in_common(dims, stride.value(self.i64)) if self.shared else ()):
                llvm.StoreOp(value, self._element(common, at))
            scope = Scope(known, {Temp(name): gep(arena, emit_expr(at, env).value(self.i64), integer_type(8))
                                  for name, at in self.plan.arena.offsets.items()},
                          partial(self._word, tensors, type_=llvm.PointerType.get()))
            found = None
            if words is not None:
                state = gep(arena, emit_expr(self._before_state, env).value(self.i64), integer_type(8))
                found = Sites(sites, state, words)
            if self.block_tables:
                self.table_launches.fill(run, self.table_at, [self._word(tensors, o.place.position) for o in self.plan.ragged])
            if self.sequence_tables:
                self.sequence_tables.fill(run, self.table_at, self.sequences)
            launch = partial(self._launch_calls, run, rooms)
            StepEmitter(table, self.gpu, self.arch, launch, stopped, found).emit(self.plan.steps, scope)

        when(Index(failed).eq(0), body)
        return failed if stopped is None else self._word(stopped, 0)

    def _launch_calls(self, run: RunValues, rooms: tuple[ir.Value, ir.Value, ir.Value], launch: Launch, scope: Scope) -> None:
        """One launch where the dims and pointers of a scope are known; nothing where it was in strips. rooms: _group_rooms."""
        strips = self.strip_of.get(launch)
        if strips is None:
            self._launch_whole(run, rooms, launch, scope)
            return
        first = strips.launches[0]
        if launch == first:
            self.by_strips[first] = self.strip_launches.pays(strips, run.dims, run.table)
        when(self.by_strips[first],
             lambda: self.strip_launches.launch(strips, run, scope, self.strip_head) if launch == first else None,
             lambda: self._launch_whole(run, rooms, launch, scope))

    def _launch_whole(self, run: RunValues, rooms: tuple[ir.Value, ir.Value, ir.Value], launch: Launch, scope: Scope) -> None:
        """One launch for all rows."""
        if len(launch.calls) > 1 and self.entries is not None:
            self.entry_launches.launch(launch, run, scope, self.entries)
        elif len(launch.calls) > 1:
            self._launch_together(launch, run, scope, *rooms)
        else:
            self._launch_one(launch.calls[0], run, scope)

    def _launch_one(self, number: int, run: RunValues, scope: Scope) -> None:
        """Launch a call, or fill its entry; one whose parts may be joined already only where they are not."""
        word = self.joined.word_of(number)
        if word is None:
            self._launch_call(number, run, scope)
            return

        def nothing() -> None:
            for at in (WORK, UNITS):
                llvm.StoreOp(self._number(0), self._element(run.entry, at))

        when(Index(self._word(self.joined_at, word)).eq(0), lambda: self._launch_call(number, run, scope), nothing)

    def _launch_call(self, number: int, run: RunValues, scope: Scope) -> None:
        call = self.plan.calls[number]

        def pointer(index: int) -> ir.Value:
            return scope.pointer(call.operands[index])

        if call.segments is not None and self.gpu:
            self.table_launches.launch(number, run, self.table_at, scope)
        elif call.segments is not None:
            self.sequence_tables.launch(number, run, self.table_at, scope)
        elif number in self.shared:
            self._launch_shared(number, pointer, run)
        else:
            joins = {j.at: Joining(scope.pointer(self.plan.calls[j.joined].operands[j.into]), emit_expr(j.parts, scope.dims),
                                   self._element(self.joined_at, word)) for word, j in self.joined.made_by(number)}
            self._launch(number, pointer, Index(number * KERNELS_PER_CALL), replace(run, dims=scope.dims, joins=joins))

    def _group_rooms(self) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Memory for the phases, the entries and the slots of calls that are launched together."""
        several = [(launch, len(list(launch.phases()))) for launch in self.launches if self.grouped.issuperset(launch.calls)]
        heads = self._room([PHASE * (1 + phases) for _, phases in several], 64)
        entries = self._room([phases + ENTRY * len(launch.calls) for launch, phases in several])
        return heads, entries, self._room([sum(map(self._slots_of, launch.calls)) for launch, _ in several])

    def _slots_of(self, number: int) -> int:
        return max(len(k.params) for k in self.tables[self.table_of[number]].kernels)

    def _launch_together(self, launch: Launch, run: RunValues, scope: Scope, head: ir.Value, entries: ir.Value,
                         slots: ir.Value) -> None:
        """One parallel loop over the work of all the calls."""
        groups: list[tuple[ir.Value, tuple[int, ...]]] = []
        at = 0
        for members in launch.phases():
            groups.append((self._element(entries, at), members))
            at += 1 + ENTRY * len(members)

        def enter(phases: Sequence[tuple[ir.Value, tuple[int, ...]]], used: int) -> None:
            for group, members in phases:
                for place, number in enumerate(members):
                    own = replace(run, slots=self._element(slots, used), entry=self._element(group, 1 + ENTRY * place))
                    used += self._slots_of(number)
                    self._launch_one(number, own, scope)

        def rest(first: int) -> None:
            enter(groups[first:], sum(map(self._slots_of, launch.calls[:first])))
            for phase, (group, members) in enumerate(groups, 1):
                llvm.StoreOp(self._number(len(members)), group)
                llvm.StoreOp(group, self._element(head, PHASE * phase + 1))
            llvm.StoreOp(self._number(len(groups)), head)
            self._call("tw_together", [run.table, head, run.threads, run.work, run.stride.value(self.i64)])

        if launch.calls[0] not in self.joined.alone:
            rest(0)
            return
        enter(groups[:1], 0)
        word, _ = next(self.joined.made_by(launch.calls[0]))
        when(Index(self._word(self.joined_at, word)).eq(0), lambda: rest(1))

    def _call(self, name: str, values: Sequence[ir.Value]) -> None:
        ir.Operation.create("llvm.call", operands=list(values), attributes={
            "callee": ir.FlatSymbolRefAttr.get(name),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(values), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        })

    def _room(self, words: Sequence[int], alignment: int = 8) -> ir.Value:
        """Memory for the most of so many words. alignment: in bytes."""
        count = self._number(max(words, default=1))
        return llvm.AllocaOp(llvm.PointerType.get(), count, ir.TypeAttr.get(self.i64), alignment=alignment).result

    def _launch_shared(self, number: int, pointer: Callable[[int], ir.Value], run: RunValues) -> None:
        """Call the function of equal calls, with the pointers that this one has to itself."""
        for index in self._pointers_of(number):
            llvm.StoreOp(pointer(index), self._element(run.operands, index))
        first = self._number(number * KERNELS_PER_CALL)
        self._call(f"tw_launch_{self.shared[number]}", [run.common, run.slots, first, run.entry])

    def _pointers_of(self, number: int) -> list[int]:
        """Which operands of a call its kernels read by pointer."""
        params = [p for k in self.tables[self.table_of[number]].kernels for p in k.params]
        return sorted({p.index for p in params if p.kind == "pointer"})

    def _fill_shared(self, fn: ir.Operation, number: int) -> None:
        """The function that launches for the call of this number and for those that are equal to it."""
        block = fn.regions[0].blocks[0]
        common, slots, first, entry = block.arguments
        with ir.InsertionPoint(operations(block)[-1]):
            table, operands, scalars, dims, work = (self._word(common, at, llvm.PointerType.get()) for at in range(ADDRESSES))
            threads, stride = (self._word(common, at) for at in range(ADDRESSES, COMMON))
            run = RunValues(table, scalars, slots, threads, work, Index(stride), self._environment(dims), operands, common, entry)
            read = {i: self._word(operands, i, llvm.PointerType.get()) for i in self._pointers_of(number)}
            self._launch(number, read.__getitem__, Index(first), run)

    def _local(self, call: PlannedCall, env: Mapping[str, Index]) -> dict[str, Index]:
        return {name: emit_expr(e, env) for name, e in zip(call.workload.dims, call.dims, strict=True)}

    def _fill_slots(self, call: PlannedCall, kernel: MicroKernel, pointer: Callable[[int], ir.Value], run: RunValues,
                    local: Mapping[str, Index]) -> None:
        """The arguments of a kernel of a call. pointer: of an operand; local: the dims of the call."""
        env = run.dims
        for at, p in enumerate(kernel.params):
            joining = run.joins.get(p.index) if kernel.joins else None
            if p.kind == "pointer":
                word = pointer(p.index)
                word = word if joining is None else joining.choose(kernel, joining.sum, word)
            elif p.kind == "stride":
                word = emit_expr(call.operands[p.index].strides[p.axis], env).value(self.i64)
                word = word if joining is None or p.axis else joining.choose(kernel, self._number(0), word)
            elif p.kind == "dim":
                word = local[p.name].value(self.i64)
            elif p.kind == "workspace":
                word = run.work
            elif p.kind == "predicate":
                word = self._number(0)  # the device's table puts in the byte that goes for the launch
            elif p.kind == "tensor_map":
                word = self.maps.emit(at, p, call, pointer(p.index), env, local)
            else:
                word = self._word(run.scalars, call.scalars[p.index])
            llvm.StoreOp(word, self._element(run.slots, at))

    def _launch(self, number: int, pointer: Callable[[int], ir.Value], first: Index, run: RunValues,
                layout: Mapping[str, Index] | None = None) -> None:
        """Fill the slots of a call's kernel and launch it. pointer: of an operand; first: number of the call's first kernel;
        layout: the layout symbols that its decision tree asks for, where they are not those of the call."""
        tab, env, call = self.tables[self.table_of[number]], run.dims, self.plan.calls[number]
        local = self._local(call, env)

        def fill(kernel_number: int) -> None:
            self._fill_slots(call, tab.kernels[kernel_number], pointer, run, local)

        shared = len({k.params for k in tab.kernels}) == 1 and not run.joins
        if shared:
            fill(0)

        def leaf(chosen: Leaf) -> None:
            kernel = tab.kernels[chosen.kernel]
            if not shared:
                fill(chosen.kernel)
            for joining in run.joins.values():
                joining.tell(kernel)
            if number in self.joined.alone:
                when(all_of([j.at_once(kernel) for j in run.joins.values()]), lambda: start(kernel, chosen),
                     lambda: self._enter(kernel, call, first + chosen.kernel, local, run))
            elif number in self.grouped:
                self._enter(kernel, call, first + chosen.kernel, local, run)
            else:
                start(kernel, chosen)

        def start(kernel: MicroKernel, chosen: Leaf) -> None:
            count = run.threads
            if chosen.threads:
                count = Index(run.threads).min(chosen.threads).value(self.i64)
            fn = self._word(run.table, LAUNCH, llvm.PointerType.get())
            for step, part in enumerate(kernel.launches()):
                grid = [emit_expr(Expr.parse(g), local).value(self.i64) for g in part.grid]
                launch = (first + chosen.kernel + step * NEXT_LAUNCH).value(self.i64)
                passed = self._number(len(kernel.params))
                call_pointer([fn, run.table, launch, *grid, run.slots, passed, count, run.work, run.stride.value(self.i64)])

        emit_tree(tab.root, {**local, **(self._layout(number, call, env) if layout is None else layout)}, leaf)

    def _enter(self, kernel: MicroKernel, call: PlannedCall, launch: Index, local: dict[str, Index], run: RunValues) -> None:
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
            if self.plan.calls[group[0]].segments is not None:
                continue

            def choose(number: int = group[0]) -> None:
                planned = self.plan.calls[number]
                local = {n: emit_expr(e, env) for n, e in zip(planned.workload.dims, planned.dims, strict=True)}
                emit_tree(self.tables[self.table_of[number]].root, {**local, **self._layout(number, planned, env)},
                          lambda chosen: store_leaf(self._number(chosen.kernel | chosen.threads << 32), slot))

            asked = [Index(call).eq(number) for number in group]
            when(reduce(arith.ori, asked), choose)
        return llvm.LoadOp(self.i64, slot).result
