"""Emits the steps of a plan as native code: launches in order, branches as branches, loops as loops.

What a loop carries is a pointer that goes round with it, beside the two buffers that take its next values in turn, so nothing is
copied between two times around. Counters are words of the loop, and dims for what is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.compiler.host.host_inserts import insert_part
from tilewright.compiler.host.host_sites import SettledLoop, Sites
from tilewright.compiler.host.host_tensor_maps import call_pointer
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Condition,
    Copy,
    Current,
    If,
    Insert,
    Launch,
    Loaded,
    Loop,
    Next,
    Place,
    PlacedOperand,
    Positive,
    Step,
)
from tilewright.passes.codegen.emit import byte_width, gep, integer_type, when
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import arith, ir, llvm, scf
from tilewright.runtime.device import CONTROL, COPY, POLL, STOPPED, ControlOp
from tilewright.runtime.shape import Expr

_CYCLES = 1 << 26  # between two polls of a loop that may never end: some 20 ms
_TIMES = 1 << 10  # between two polls of a loop that counts to an end, or of any where there is no counter of cycles
_CYCLE_COUNTER = {"x86_64": "llvm.x86.rdtsc"}


@dataclass(frozen=True)
class Scope:
    """What code at one place of the tree may name: the dims, and the pointer to each place. load: emits the load of the pointer
    to memory of the caller, by its position, where it is asked for: hundreds that are loaded before all launches would lie on the
    stack, and LLVM takes long to see to it."""

    dims: Mapping[str, Index]
    pointers: Mapping[Place, ir.Value]
    load: Callable[[int], ir.Value] | None = None

    def base(self, place: Place) -> ir.Value:
        """The address of a place."""
        if isinstance(place, CallerMemory) and place not in self.pointers and self.load is not None:
            return self.load(place.position)
        return self.pointers[place]

    def pointer(self, operand: PlacedOperand) -> ir.Value:
        """The address of an operand's first element."""
        base = self.base(operand.place)
        if operand.offset == Expr.of(0):
            return base
        return gep(base, emit_expr(operand.offset * operand.dtype.bytes, self.dims).value(integer_type(64)), integer_type(8))


@dataclass
class StepEmitter:
    """Emits steps at the insertion point. table: the device's; launch: emits one launch of calls. gpu: memory is a device's.
    arch: of the code, in LLVM's words.

    stopped: memory of the word that is not 0 once a loop has been left early; there is none without loops. sites: the branches
    and loops on data of a GPU's program, where the device decides how they are run.
    """

    table: ir.Value
    gpu: bool
    arch: str
    launch: Callable[[Launch, Scope], None]
    stopped: ir.Value | None = None
    sites: Sites | None = None
    i64: ir.Type = field(default_factory=lambda: integer_type(64))

    def emit(self, steps: Sequence[Step], scope: Scope) -> Scope:
        """The steps in order; the scope behind them, which knows what loops carried out."""
        for step in steps:
            if isinstance(step, Launch):
                self.launch(step, scope)
            elif isinstance(step, Copy):
                self._copy(step, scope)
            elif isinstance(step, Insert):
                insert_part(step, (scope.pointer(step.part), scope.pointer(step.into)), scope.dims, self._move)
            elif isinstance(step, If):
                self._if(step, scope)
            else:
                scope = self._loop(step, scope)
        return scope

    def _copy(self, copy: Copy, scope: Scope) -> None:
        settled = self.sites.settled.get(copy.source) if self.sites is not None else None
        if settled is not None:
            self._settle(copy, settled, scope)
            return
        target, source = scope.base(copy.target), scope.base(copy.source)
        size = emit_expr(copy.bytes, scope.dims).value(self.i64)

        def move() -> None:
            self._move(target, source, size)

        if isinstance(copy.source, Current):
            words = [llvm.PtrToIntOp(self.i64, p).result for p in (target, source)]
            when(arith.cmpi(arith.CmpIPredicate.ne, *words), move)
        else:
            move()

    def _move(self, target: ir.Value, source: ir.Value, size: ir.Value) -> None:
        """Copy bytes that lie side by side."""
        if self.gpu:
            call_pointer([self._entry(COPY), self.table, target, source, size])
        else:
            llvm.MemcpyOp(target, source, size, False)

    def _settle(self, copy: Copy, loop: SettledLoop, scope: Scope) -> None:
        """Copy the result of a loop on data: now, where it is known where it lies, else on the device."""
        assert self.sites is not None
        words = self.sites.words(loop.site, {
            "target": scope.base(copy.target), "start": loop.start, "second": loop.second,
            "bytes": emit_expr(copy.bytes, scope.dims).value(self.i64)})
        plain = replace(self, sites=None)
        when(Index(loop.turns).lt(0), lambda: _nothing(self._control(ControlOp.SETTLE, words)), lambda: plain._copy(copy, scope))

    def _control(self, op: ControlOp, words: ir.Value) -> ir.Value:
        return _called(self.i64, [self._entry(CONTROL), self.table, Index(int(op)).value(self.i64), words])

    def _if(self, step: If, scope: Scope) -> None:
        def side(steps: Sequence[Step]) -> Callable[[], None]:
            return lambda: _nothing(self.emit(steps, scope))

        if self.sites is not None and isinstance(step.condition, Loaded):
            words = self.sites.words(self.sites.number(step), {"byte": scope.pointer(step.condition.operand)})
            sides = self._control(ControlOp.BRANCH, words)
            when(_bit(sides, 1), side(step.then))
            if step.otherwise:
                self._control(ControlOp.ELSE, words)
                when(_bit(sides, 2), side(step.otherwise))
            self._control(ControlOp.JOIN, words)
            return
        when(self._holds(step.condition, scope), side(step.then), side(step.otherwise) if step.otherwise else None)

    def _loop(self, loop: Loop, scope: Scope) -> Scope:
        """Words that go round: the counters, then for each carried tensor where it lies, where the next one goes, the other
        buffer, then the clock of the last poll."""
        counters = [emit_expr(c.start, scope.dims).value(self.i64) for c in loop.counters]
        pointers = [p for c in loop.carried for p in (scope.pointer(c.start), *(scope.base(b) for b in c.buffers))]
        clock = _CYCLE_COUNTER.get(self.arch) if loop.trips is None else None
        start = [*counters, *pointers, self._now(clock, Index(0).value(self.i64))]
        types = [v.type for v in start]
        self._begin(loop, scope)
        op = scf.WhileOp(types, start)
        before, after = (region.blocks.append(*types) for region in (op.before, op.after))

        def inside(values: Sequence[ir.Value]) -> Scope:
            words, at = values[: len(counters)], values[len(counters) :]
            found = dict(scope.pointers)
            for i, c in enumerate(loop.carried):
                found[Current(c.name)], found[Next(c.name)] = at[3 * i], at[3 * i + 1]
            counted = {c.name: Index(w) for c, w in zip(loop.counters, words, strict=True)}
            return replace(scope, dims={**scope.dims, **counted}, pointers=found)

        with ir.InsertionPoint(before):
            values = list(before.arguments)
            holds = self._goes_on(loop, self.emit(loop.test, inside(values)))
            scf.ConditionOp(self._unless_stopped(holds), values)
        with ir.InsertionPoint(after):
            values = list(after.arguments)
            here = inside(values)
            self.emit(loop.body, here)
            polled = self._poll(clock, values[-1])
            words = [(Index(v) + emit_expr(c.step, scope.dims)).value(self.i64)
                     for v, c in zip(values, loop.counters, strict=False)]
            at = values[len(counters) :]
            turned = [p for i, _ in enumerate(loop.carried) for p in (at[3 * i + 1], at[3 * i + 2], at[3 * i + 1])]
            scf.YieldOp([*words, *turned, polled])
        return self._behind(loop, pointers, replace(scope, pointers=inside(list(op.results)).pointers))

    def _begin(self, loop: Loop, scope: Scope) -> None:
        if self.sites is not None and isinstance(loop.condition, Loaded):
            limit = loop.limit()
            words = {"limit": Index(-1).value(self.i64) if limit is None else emit_expr(limit, scope.dims).value(self.i64)}
            self._control(ControlOp.LOOP, self.sites.words(self.sites.number(loop), words))

    def _goes_on(self, loop: Loop, scope: Scope) -> ir.Value | bool:
        """Whether there is to be another turn, the test having been launched."""
        if self.sites is None or not isinstance(loop.condition, Loaded):
            return self._holds(loop.condition, scope)
        words = self.sites.words(self.sites.number(loop), {"byte": scope.pointer(loop.condition.operand)})
        return _bit(self._control(ControlOp.TURN, words), 1)

    def _behind(self, loop: Loop, pointers: Sequence[ir.Value], scope: Scope) -> Scope:
        """The scope behind a loop. Of one on data the device says how often it ran, which is where its tensors lie.

        pointers: of each carried tensor where it began and its two buffers."""
        if self.sites is None or not isinstance(loop.condition, Loaded):
            return scope
        site = self.sites.number(loop)
        turns = self._control(ControlOp.DONE, self.sites.words(site, {}))
        found = dict(scope.pointers)
        for i, c in enumerate(loop.carried):
            start, first, second = pointers[3 * i : 3 * i + 3]
            none = arith.cmpi(arith.CmpIPredicate.eq, turns, Index(0).value(self.i64))
            found[Current(c.name)] = arith.select(none, start, arith.select(_bit(turns, 1), first, second))
            self.sites.settled[Current(c.name)] = SettledLoop(site, turns, start, second)
        return replace(scope, pointers=found)

    def _holds(self, condition: Condition, scope: Scope) -> ir.Value | bool:
        if isinstance(condition, Positive):
            return Index(0).lt(emit_expr(condition.expr, scope.dims))
        assert not self.gpu, "conditions on a device's memory are sites"
        place = scope.pointer(condition.operand)
        byte = integer_type(8 * byte_width(integer_type(1)))
        return arith.trunci(integer_type(1), llvm.LoadOp(byte, place).result)

    def _unless_stopped(self, holds: ir.Value | bool) -> ir.Value:
        flag = integer_type(1)
        if isinstance(holds, bool):
            holds = arith.constant(flag, int(holds))
        on = arith.cmpi(arith.CmpIPredicate.eq, self._status(), Index(0).value(self.i64))
        return arith.andi(holds, on)

    def _status(self) -> ir.Value:
        assert self.stopped is not None, "a plan with loops has a word for their status"
        return llvm.LoadOp(self.i64, self.stopped).result

    def _now(self, clock: str | None, last: ir.Value) -> ir.Value:
        """Cycles by the counter `clock`, else how many times around, of which `last` is the number before."""
        return llvm.CallIntrinsicOp(self.i64, clock, [], [], []).results_ if clock else (Index(last) + 1).value(self.i64)

    def _poll(self, clock: str | None, last: ir.Value) -> ir.Value:
        """Ask the device's table now and then whether to go on. last: when that was; the result takes its place."""
        now = self._now(clock, last)
        due = (Index(_CYCLES).lt(Index(now) - Index(last)) if clock
               else arith.cmpi(arith.CmpIPredicate.eq, (Index(now) % _TIMES).value(self.i64), Index(0).value(self.i64)))

        def ask() -> None:
            poll = self._entry(POLL)
            null = llvm.ZeroOp(llvm.PointerType.get()).result
            known = arith.cmpi(arith.CmpIPredicate.ne, *(llvm.PtrToIntOp(self.i64, p).result for p in (poll, null)))

            def stop() -> None:
                assert self.stopped is not None, "a plan with loops has a word for their status"
                llvm.StoreOp(Index(STOPPED).value(self.i64), self.stopped)

            when(known, lambda: when(arith.cmpi(arith.CmpIPredicate.ne, _called(self.i64, [poll, self.table]),
                                                Index(0).value(self.i64)), stop))

        when(due, ask)
        return arith.select(due, now, last) if clock else now

    def _entry(self, number: int) -> ir.Value:
        """A function of the device's table."""
        return llvm.LoadOp(llvm.PointerType.get(), gep(self.table, Index(number).value(self.i64), self.i64)).result


def _called(result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
    """The result of the function pointer operands[0] for the other operands."""
    return call_pointer(operands, [result]).results[0]


def _bit(value: ir.Value, bit: int) -> ir.Value:
    """Is a bit of a word set?"""
    one = Index(bit).value(value.type)
    return arith.cmpi(arith.CmpIPredicate.ne, arith.andi(value, one), Index(0).value(value.type))


def _nothing(_: object) -> None:
    """For bodies that give no value."""
