"""HostPlan: the outlined @main as data: a tree of steps, views of the calls' operands, buffers and where each lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.compiler.constants.check_indices import ENTRIES
from tilewright.compiler.constants.stored_constants import BoundConstant
from tilewright.compiler.host.donated_order import readers_first
from tilewright.compiler.host.in_place import Overwriting
from tilewright.compiler.host.joined_parts import JoinedParts, joined_parts, joins_of
from tilewright.compiler.host.launch_groups import groups_alike, in_phases, launches_in_order, launches_of, phase_numbers
from tilewright.compiler.host.moments import Moment, callee_of, runs_inside, tested_by
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Carried,
    Condition,
    Copy,
    Counter,
    Current,
    If,
    Insert,
    Launch,
    Loaded,
    Loop,
    Next,
    Offsets,
    Place,
    PlacedOperand,
    PlannedCall,
    Positive,
    Step,
    Strips,
    Temp,
    all_steps,
    counters_of,
)
from tilewright.compiler.host.strided_inputs import StridedInput, strided_inputs
from tilewright.passes.analysis.control_flow import CONTROL, carried_counters, condition_of, positive_where, trips
from tilewright.passes.dispatch_creation.pack_constants import PACK
from tilewright.passes.linalg.strides import View, Views, dense_strides
from tilewright.passes.linalg.structured import UPDATE
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes, inserted_axes, integer, mixed
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.counters import at_most
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.arena_plan import ArenaPlan, Temporary, larger, plan
from tilewright.runtime.program.program import Argument
from tilewright.runtime.shape import Dim, Expr, ShapeRange
from tilewright.runtime.tensor import DType

MAIN = "main"


@dataclass
class HostPlan:
    """Everything that the host program does. calls: by their numbers, which the steps launch in this order. ragged: the dims
    whose lengths differ from sequence to sequence. sums: the dims that are sums over the sequences. parts: name of a temporary
    that depends on the sequence -> bytes of one of them. in_place: keys of workloads that write over what they read. moments: of
    the calls, by the clock of the temporaries. strips: launches done by strips of rows (strips.py). strided: inputs that may have
    gaps between rows; strides_at: where in `tensors` their strides begin. joined: parts that a call may join itself. copied:
    number of a result -> why it is copied to the donated buffer that it gets."""

    calls: list[PlannedCall] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    arena: ArenaPlan = field(default_factory=lambda: ArenaPlan({}, Expr.of(0)))
    bound: list[BoundConstant] = field(default_factory=list)  # what the model holds itself, in `tensors` order
    outputs: list[Argument] = field(default_factory=list)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of the dims, and of the counters of loops
    ragged: tuple[Offsets, ...] = ()
    sums: tuple[str, ...] = ()
    parts: Mapping[str, Expr] = field(default_factory=dict)
    in_place: set[str] = field(default_factory=set)
    moments: list[int] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)
    strips: list[Strips] = field(default_factory=list)
    strided: tuple[StridedInput, ...] = ()
    strides_at: int = 0
    joined: list[JoinedParts] = field(default_factory=list)
    copied: dict[int, str] = field(default_factory=dict)

    def launches(self) -> list[Launch]:
        """All of them, in order."""
        return [step for step in all_steps(self.steps) if isinstance(step, Launch)]

    @property
    def counters(self) -> ShapeRange:
        """The ranges of the counters of the loops."""
        names = [c.name for c in counters_of(self.steps)]
        return ShapeRange(tuple((n, Dim(int(self.bounds[n][0]), int(self.bounds[n][1]))) for n in names))


def plan_of(module: ir.Module, workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]], together: bool = False,
            alike: Mapping[str, object] | None = None, strided: bool = False, over: bool = False) -> HostPlan:
    """The plan of an outlined module.

    Args:
        workloads: by function name in it.
        donated: (input, output) numbers that share memory.
        together: are independent calls launched together?
        alike: by function name, equal for those of which independent calls are one launch, where others are launched alone.
        strided: may rows of inputs lie apart?
        over: may results lie where what their own call reads does?
    """
    named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)}
    return _Planner(named, workloads, donated, together, alike or {}, strided, over).run()


class _Planner:
    """Reads the outlined @main, with its branches and loops."""

    def __init__(self, named: Mapping[str, ir.Operation], workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]],
                 together: bool, alike: Mapping[str, object], strided: bool, over: bool) -> None:
        self.functions, self.main = named, (main := named[MAIN])
        self.workloads, self.donated = workloads, donated
        self.block = main.regions[0].blocks[0]
        self.shapes = SymbolicShapes(main)
        apart = strided_inputs(main, self.shapes) if strided else {}
        self.views = Views(self.shapes, {value: given.strides for value, given in apart.items()})
        self.plan = HostPlan(bounds=self.shapes.ranges.bounds(), strided=tuple(apart.values()))
        self.copies: list[Copy] = []  # of donated buffers that the call that makes their new value still reads
        self.places: dict[ir.Value, Place] = {}
        self.scalar_at: dict[ir.Value, int] = {}
        self.moments: dict[ir.Operation, Moment] = {}  # of calls, branches and loops
        self.clock = 0
        self.wanted: dict[ir.Value, Place] = {}  # where a terminator wants the result of an operation
        self.names: dict[ir.Operation, str] = {}
        self.loops: list[ir.Operation] = []  # outer ones first
        self.in_place: set[str] = set()  # names of carried tensors that lie in one buffer all along
        self.owned: set[str] = set()  # names of others into whose buffers parts are put, so that they begin in one of the loop's
        self.readers: dict[ir.Value, list[ir.Operation]] = {}  # of each buffer, what is run
        self.ops = operations(self.block)
        self.together, self.alike = together, alike
        self.overwriting = Overwriting(named, workloads, self.views, over)
        self.joins, self.numbered = joins_of(named, self.ops) if together else {}, dict[ir.Operation, int]()
        self.phases: dict[ir.Operation, list[list[ir.Operation]]] = {}  # by the first call between two branches or loops
        self.returned = list(self.ops[-1].operands)
        named_arguments = zip(self.block.arguments, argument_attributes(main), strict=True)
        self.input_values = [v for v, of in named_arguments if CONSTANT not in of]  # scalars too
        self._time(self.block, ())

    def run(self) -> HostPlan:
        self._arguments()
        self._buffers()
        self.plan.steps += [*self._steps(self.block), *self.copies]
        given = {self._buffer(self.returned[output]) for _, output in self.donated}
        self.plan.joined += joined_parts(self.joins, self.numbered, given, self.shapes)
        return self.plan

    def _time(self, block: ir.Block, loops: tuple[Moment, ...]) -> None:
        """Number what is run, and say where the results of bodies are wanted. Calls of one phase have one moment."""
        calls: list[ir.Operation] = []
        for op in operations(block):
            if op.name == "func.call":
                calls.append(op)
            elif UPDATE in op.attributes:
                self._time_calls(calls, loops)
                calls = []
                self.names[op] = f"update{len(self.names)}"
                self.moments[op] = Moment(self.clock, self.clock, loops)
                self.clock += 1
            elif op.name in CONTROL:
                self._time_calls(calls, loops)
                calls = []
                self.names[op] = f"{op.name.partition('.')[2]}{len(self.names)}"
                first = self.clock
                self.clock += 1
                moment = Moment(first, first + 1 + sum(map(runs_inside, op.regions)), loops)
                self.moments[op] = moment
                self.loops += [op] if op.name == "scf.while" else []
                for region in op.regions:
                    for inner in region.blocks:
                        self._time(inner, (*loops, moment) if op.name == "scf.while" else loops)
                self.clock = moment.last + 1
        self._time_calls(calls, loops)

    def _time_calls(self, calls: list[ir.Operation], loops: tuple[Moment, ...]) -> None:
        """Calls with no branch or loop between them."""
        ordered, waits = self._in_order(calls)
        numbers = phase_numbers([self.workloads[callee_of(call)].kind for call in ordered], waits)
        groups = in_phases(numbers) if self.together else groups_alike(list(zip(numbers, map(self._alike, ordered), strict=True)))
        for group in groups:
            for n in group:
                self.moments[ordered[n]] = Moment(self.clock, self.clock, loops)
                self.names[ordered[n]] = f"call{len(self.names)}"
            self.clock += 1
        if calls:
            self.phases[calls[0]] = [[ordered[n] for n in group] for group in groups]

    def _alike(self, call: ir.Operation) -> object:
        """Equal for calls that may be one launch of a GPU."""
        return self.alike.get(callee_of(call), call) if call.block == self.block else call

    def _in_order(self, calls: Sequence[ir.Operation]) -> tuple[list[ir.Operation], list[list[int]]]:
        """The calls in an order that can be run, and the numbers of those that each one waits for. What may write over a donated
        argument waits for those that read it."""
        made = {r: number for number, call in enumerate(calls) for r in call.results}
        reads = [[self._buffer(v) for v in call.operands if isinstance(v.type, ir.RankedTensorType)] for call in calls]
        over: dict[int, list[int]] = {}
        for given, output in self.donated:
            value, result = self.input_values[given], self._buffer(self.returned[output])
            if result in made and (value not in reads[made[result]] or self.overwriting.why_not(result, value) is None):
                over.setdefault(made[result], []).extend(n for n, own in enumerate(reads) if value in own and n != made[result])
        order, waits = readers_first([[made[b] for b in own if b in made] for own in reads], over)
        return [calls[n] for n in order], waits

    def _arguments(self) -> None:
        inputs: list[tuple[int, ir.Value]] = []
        bound: list[tuple[int, ir.Value]] = []
        named = argument_attributes(self.main)
        for number, value in enumerate(self.block.arguments):
            if isinstance(value.type, ir.RankedTensorType):
                (bound if CONSTANT in named[number] else inputs).append((number, value))
            elif self.shapes.expr(value) is None:
                self.scalar_at[value] = len(self.scalar_at)
        for _, value in inputs:
            self.places[value] = CallerMemory(len(self.places))
        self.input_values = [v for v, n in zip(self.block.arguments, named, strict=True) if CONSTANT not in n]  # scalars too
        for number, value in bound:
            if next(iter(value.uses), None) is None:
                continue
            self.places[value] = CallerMemory(len(self.places))
            entries = integer(named[number][ENTRIES]) if ENTRIES in named[number] else 0
            packed = [integer(a) for a in ir.ArrayAttr(named[number][PACK])] if PACK in named[number] else [number]
            self.plan.bound.append(BoundConstant(packed[0], tuple(packed[1:]), entries=entries))

    def _buffers(self) -> None:
        first_output = len(self.places)
        self.plan.strides_at = first_output + len(self.returned)
        death = self._deaths()
        reused = {output: self.input_values[given] for given, output in self.donated}
        temporaries: list[Temporary] = []
        for number, value in enumerate(self.returned):
            buffer = self._buffer(value)
            dims = self.shapes.dims(value)
            element = DType(str(ir.RankedTensorType(value.type).element_type))
            self.plan.outputs.append(Argument(f"result{number}", element, tuple(map(str, dims))))
            target = CallerMemory(first_output + number)
            made = owner(buffer)
            if made is None or made not in self.moments or buffer in self.places:
                raise BuildError(f"result {number} of @main is not the result of one call; outline must copy it")
            given = reused.get(number)
            if given is None or death.get(given, -1) < self.moments[made].first or self._writes_over(buffer, given, number):
                self.places[buffer] = target
            else:
                death[buffer] = self.clock
                temporary = self._temporary(buffer, f"{self.names[made]}.{list(made.results).index(buffer)}", death)
                temporaries.append(temporary)
                self.copies.append(Copy(Temp(temporary.name), target, self._bytes(value)))
        for op, moment in self.moments.items():
            for i, r in enumerate(op.results):
                if isinstance(r.type, ir.RankedTensorType) and r not in self.places:
                    if r not in self.wanted and UPDATE in op.attributes and (place := self._updated(op)) is not None:
                        self.places[r] = place
                    elif r not in self.wanted:
                        temporaries.append(self._temporary(r, f"{self.names[op]}.{i}", death))
                    else:
                        self.places[r] = self.wanted[r]
            if op.name == "scf.while":
                temporaries += self._carried(op, moment)
            elif op.name == "scf.if":
                for region in op.regions:
                    self._want(region.blocks[0], [self.places[r] for r in op.results])
        self.plan.temporaries, self.plan.arena = temporaries, plan(temporaries, self.plan.bounds)

    def _writes_over(self, result: ir.Value, given: ir.Value, number: int) -> bool:
        """Does the last call that reads a donated buffer, and no other at that moment, write this result over it?"""
        made = result.owner
        later = [op for op in self.readers[given] if op != made and self.moments[op].last >= self.moments[made].first]
        reason = self.overwriting.while_read(made, later[0]) if later else self.overwriting.why_not(result, given)
        if reason is not None:
            self.plan.copied[number] = reason
            return False
        self.plan.in_place.add(self.workloads[callee_of(made)].key)
        return True

    def _deaths(self) -> dict[ir.Value, int]:
        """When the last reader of each buffer is done. What is read in a loop that it was not made in lasts to the loop's end."""
        death: dict[ir.Value, int] = {}
        for op, moment in self.moments.items():
            read = [*op.operands, *([tested_by(op)] if op.name in CONTROL else [])]
            for value in read:
                if value is None or not isinstance(value.type, ir.RankedTensorType):
                    continue
                buffer = self._buffer(value)
                self.readers.setdefault(buffer, []).append(op)
                made = owner(buffer)
                around = len(self.moments[made].loops) if made in self.moments else len(self._loops_of(buffer))
                until = moment.loops[around].last if len(moment.loops) > around else moment.last
                death[buffer] = max(death.get(buffer, until), until)
        return death

    def _loops_of(self, value: ir.Value) -> tuple[Moment, ...]:
        """The loops around a block argument."""
        loop = value.owner.owner if isinstance(value.owner, ir.Block) else None
        found = self.moments.get(loop.operation) if loop is not None else None
        return () if found is None else (*found.loops, found)

    def _temporary(self, value: ir.Value, name: str, death: Mapping[ir.Value, int]) -> Temporary:
        made = owner(value)
        assert made is not None
        moment, maker = self.moments[made], self.joins[made].made if made in self.joins else made
        self.places[value] = Temp(name)
        return Temporary(name, self._bytes(value), self.moments[maker].first, max(death.get(value, moment.last), moment.last))

    def _want(self, block: ir.Block, places: Sequence[Place | None], skipped: int = 0) -> None:
        """Where the values of a block's terminator have to be; each is the result of one operation of the block."""
        for value, place in zip(list(operations(block)[-1].operands)[skipped:], places, strict=True):
            if place is None:
                continue
            buffer = self._buffer(value)
            made = owner(buffer)
            if made is None or made not in self.moments or made.block != block or buffer in self.wanted:
                raise BuildError("a result of a branch or of a loop's body is not the result of one call; outline must copy it")
            self.wanted[buffer] = place
            while UPDATE in made.attributes and self._last_read(made):
                buffer = self._buffer(made.operands[1])
                made = owner(buffer)
                if made is None or made not in self.moments or made.block != block or buffer in self.wanted:
                    break
                self.wanted[buffer] = place

    def _last_read(self, update: ir.Operation) -> bool:
        """Does nobody read a tensor once a part is put into it, but as what it becomes?"""
        at = self.moments[update].first
        return all(op == update or self.moments[op].last < at for op in self.readers[self._buffer(update.operands[1])])

    def _updated(self, update: ir.Operation) -> Place | None:
        """Where what a loop carries lies, if a part can be put into it there."""
        buffer = self._buffer(update.operands[1])
        place = self.places.get(buffer)
        if not isinstance(place, Current) or not self._last_read(update):
            return None
        if isinstance(buffer.owner, ir.Block):
            loop, number = buffer.owner.owner.operation, list(buffer.owner.arguments).index(buffer)
            if update.block != buffer.owner or buffer.owner != loop.regions[1].blocks[0] or not self._begins_dense(loop, number):
                return None
            self.owned.add(place.name)
        return place

    def _begins_dense(self, loop: ir.Operation, number: int) -> bool:
        start = self._view(loop.operands[number])
        return start.offset == Expr.of(0) and start.strides == dense_strides(self.shapes.dims(loop.operands[number]))

    def _stays(self, loop: ir.Operation, number: int) -> bool:
        """Does a carried tensor go on as itself with parts put into it, which nobody reads as it was then?"""
        after = loop.regions[1].blocks[0]
        value = self._buffer(operations(after)[-1].operands[number])
        if not self._begins_dense(loop, number):
            return False
        while value != after.arguments[number]:
            made = owner(value)
            if made is None or UPDATE not in made.attributes or made.block != after or not self._last_read(made):
                return False
            value = self._buffer(made.operands[1])
        return True

    def _carried(self, loop: ir.Operation, moment: Moment) -> list[Temporary]:
        """Places of what a loop carries; the second buffers of its tensors."""
        before, after = (region.blocks[0] for region in loop.regions)
        found: list[Temporary] = []
        next_places: list[Place | None] = []
        for i, (value, a, b) in enumerate(zip(loop.operands, before.arguments, after.arguments, strict=True)):
            if not isinstance(value.type, ir.RankedTensorType):
                next_places.append(None)
                continue
            name = f"{self.names[loop]}.{i}"
            self.places[a] = self.places[b] = Current(name)
            next_places.append(Next(name))
            if self._stays(loop, i):
                self.in_place.add(name)
                continue
            found.append(Temporary(f"{name}.other", self._bytes(value), moment.first, moment.last))
        self._want(after, next_places)
        return found

    # -- steps

    def _steps(self, block: ir.Block) -> list[Step]:
        found: list[Step] = []
        for op in operations(block):
            if op in self.phases:
                phases = self.phases[op]
                first = len(self.plan.calls)
                calls = [call for phase in phases for call in phase]
                self.numbered.update({call: first + n for n, call in enumerate(calls)})
                self.plan.calls += map(self._call, calls)
                self.plan.moments += [self.moments[call].first for call in calls]
                kinds = [self.workloads[callee_of(phase[0])].kind for phase in phases]
                sizes = [len(phase) for phase in phases]
                found += launches_of(sizes, kinds, first) if self.together else launches_in_order(sizes, first)
            elif UPDATE in op.attributes:
                found += self._update(op)
            elif op.name == "scf.if":
                condition = self._condition(op)
                sides = [tuple(self._steps(region.blocks[0])) if len(region.blocks) else () for region in op.regions]
                found.append(If(condition, *sides))
            elif op.name == "scf.while":
                found += self._loop(op)
        return found

    def _loop(self, op: ir.Operation) -> list[Step]:
        counters = [Counter(c.name, c.start, c.step, c.largest) for c in carried_counters(op, self.shapes)]
        before, carried, after = [], [], []
        for i, value in enumerate(op.operands):
            if isinstance(value.type, ir.RankedTensorType):
                name, result = f"{self.names[op]}.{i}", self.places[op.results[i]]
                if (begins := owner(self._buffer(value))) is not None and begins.name == "tensor.empty":  # it is overwritten
                    self.places[self._buffer(value)] = result
                start = self._operand(value)
                if name in self.in_place:
                    before += [Copy(start.place, result, self._bytes(value))] if start.place != result else []
                    carried.append(Carried(name, replace(start, place=result), (result, result)))
                    continue
                other = Temp(f"{name}.other")
                if name in self.owned:
                    before.append(Copy(start.place, other, self._bytes(value)))
                    start = replace(start, place=other)
                carried.append(Carried(name, start, (result, other)))
                if next(iter(op.results[i].uses), None) is not None:
                    after.append(Copy(Current(name), result, self._bytes(value)))
        test = self._steps(op.regions[0].blocks[0])
        condition = self._condition(op)
        body = self._steps(op.regions[1].blocks[0])
        loop = Loop(tuple(counters), tuple(carried), tuple(test), condition, tuple(body), trips(op, self.shapes))
        return [*before, loop, *after]

    def _update(self, op: ir.Operation) -> list[Step]:
        """A part put into a tensor, a copy of which it becomes where it is to lie elsewhere."""
        source, target = self._operand(op.operands[1]), self._operand(op.results[0])
        offsets = [Expr.of(e) if isinstance(e, int) else self.shapes.required(e, op) for e in mixed(op, "static_offsets", 2)]
        steps = mixed(op, "static_strides", 4)
        start, strides = target.offset, []
        for axis, at in enumerate(offsets):
            start = start + target.strides[axis] * at
        for axis in inserted_axes(op):
            step = steps[axis]
            assert isinstance(step, int), "update-in-place takes static strides"
            strides.append(target.strides[axis] * step)
        into = replace(target, offset=start, strides=tuple(strides))
        put = Insert(self._operand(op.operands[0]), into, self.shapes.dims(op.operands[0]))
        if source.place == target.place or (isinstance(source.place, Current) and source.place.name in self.in_place):
            return [put]
        return [Copy(source.place, target.place, self._bytes(op.results[0])), put]

    def _condition(self, op: ir.Operation) -> Condition:
        tested = tested_by(op)
        if tested is not None:
            return Loaded(self._operand(tested))
        holds = positive_where(condition_of(op), self.shapes)
        if holds is None:
            raise BuildError(f"the condition of {op.name} is neither of shapes nor in memory, where lift-control-flow puts it")
        return Positive(holds)

    def _bytes(self, value: ir.Value) -> Expr:
        total = Expr.of(DType(str(ir.RankedTensorType(value.type).element_type)).bytes)
        for d in self.shapes.dims(value):
            total = total * d
        counters = [c for loop in self.loops for c in carried_counters(loop, self.shapes)]
        return larger(at_most(total, counters, self.plan.bounds), Expr.of(0), self.plan.bounds)  # below 0 where it is not made

    def _buffer(self, value: ir.Value) -> ir.Value:
        return self._view(value).buffer

    def _view(self, value: ir.Value) -> View:
        view = self.views.view(value)
        if view is None:
            raise BuildError(f"value {value} of @main is no strided view of one buffer; outline must copy it")
        return view

    def _operand(self, value: ir.Value) -> PlacedOperand:
        view = self._view(value)
        if view.buffer not in self.places:
            op = owner(view.buffer)
            raise BuildError(f"a call of @main reads the result of {op.name if op else 'an argument'}, which is no kernel")
        element = DType(str(ir.RankedTensorType(value.type).element_type))
        return PlacedOperand(self.places[view.buffer], element, view.offset, view.strides)

    def _call(self, call: ir.Operation) -> PlannedCall:
        callee = callee_of(call)
        workload = self.workloads[callee]
        operands = [self._operand(v) for v in call.operands if isinstance(v.type, ir.RankedTensorType)]
        operands += [self._operand(r) for r in call.results]
        others = [v for v in call.operands if not isinstance(v.type, ir.RankedTensorType)]
        dims: list[Expr] = []
        scalars: list[int] = []
        for v in others:
            expr = self.shapes.expr(v)
            if len(dims) < len(workload.dims):
                if expr is None:
                    raise BuildError(f"dim {workload.dims[len(dims)]} of {callee} is not an expression of the model's dims")
                dims.append(expr)
            elif v in self.scalar_at:
                scalars.append(self.scalar_at[v])
            else:
                raise BuildError(f"{callee} takes a scalar that is no argument of @main")
        return PlannedCall(workload, tuple(operands), tuple(dims), tuple(scalars))
