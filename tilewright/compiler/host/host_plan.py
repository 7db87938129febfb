"""HostPlan: the outlined @main as data: a tree of steps, views of the calls' operands, buffers and where each lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tilewright.compiler.host.launch_groups import launch_numbers
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Copy,
    Launch,
    Place,
    PlacedOperand,
    PlannedCall,
    Step,
    Temp,
    all_steps,
)
from tilewright.passes.dispatch_creation.pack_constants import PACK
from tilewright.passes.linalg.strides import View, Views
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes, integer
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.arena_plan import ArenaPlan, Temporary, plan
from tilewright.runtime.program.program import Argument
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MAIN = "main"


@dataclass(frozen=True)
class BoundConstant:
    """A constant operand: which bound argument it is, and its packed layout [tile, axis of columns, other axes], if any."""

    argument: int
    layout: tuple[int, ...] = ()


@dataclass
class HostPlan:
    """Everything that the host program does. calls: by their numbers, which the steps launch in this order."""

    calls: list[PlannedCall] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    arena: ArenaPlan = field(default_factory=lambda: ArenaPlan({}, Expr.of(0)))
    bound: list[BoundConstant] = field(default_factory=list)  # what the model holds itself, in `tensors` order
    outputs: list[Argument] = field(default_factory=list)

    def launches(self) -> list[tuple[int, ...]]:
        """Numbers of the calls of each launch, in order."""
        return [step.calls for step in all_steps(self.steps) if isinstance(step, Launch)]


def plan_of(module: ir.Module, workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]],
            together: bool = False) -> HostPlan:
    """The plan of an outlined module.

    Args:
        workloads: by function name in it.
        donated: (input, output) numbers that share memory.
        together: are independent calls launched together?
    """
    main = next(f for f in functions(module) if ir.StringAttr(f.attributes["sym_name"]).value == MAIN)
    return _Planner(main, workloads, donated, together).run()


class _Planner:
    """Reads the outlined @main."""

    def __init__(self, main: ir.Operation, workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]],
                 together: bool) -> None:
        self.main = main
        self.workloads = workloads
        self.donated = donated
        self.block = main.regions[0].blocks[0]
        self.shapes = SymbolicShapes(main)
        self.views = Views(self.shapes)
        self.plan = HostPlan()
        self.copies: list[Copy] = []  # of donated buffers that the call that makes their new value still reads
        self.places: dict[ir.Value, Place] = {}
        self.scalar_at: dict[ir.Value, int] = {}
        self.ops = operations(self.block)
        self.calls = [op for op in self.ops if op.name == "func.call"]
        self.launch = self._launches() if together else list(range(len(self.calls)))
        self.returned = list(self.ops[-1].operands)

    def run(self) -> HostPlan:
        self._arguments()
        self._buffers()
        self.plan.calls += map(self._call, self.calls)
        together = groupby(range(len(self.calls)), key=self.launch.__getitem__)
        self.plan.steps += [Launch(tuple(numbers)) for _, numbers in together]
        self.plan.steps += self.copies
        return self.plan

    def _launches(self) -> list[int]:
        """The launch of each call; the calls come in the order of their launches."""
        made = {r: number for number, call in enumerate(self.calls) for r in call.results}
        reads = [[self._buffer(v) for v in call.operands if isinstance(v.type, ir.RankedTensorType)] for call in self.calls]
        kinds = [self.workloads[_callee(call)].kind for call in self.calls]
        found = launch_numbers(kinds, [[made[b] for b in buffers if b in made] for buffers in reads])
        order = sorted(range(len(found)), key=found.__getitem__)
        self.calls = [self.calls[n] for n in order]
        return [found[n] for n in order]

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
            if PACK in named[number]:
                source, *layout = (integer(a) for a in ir.ArrayAttr(named[number][PACK]))
                self.plan.bound.append(BoundConstant(source, tuple(layout)))
            else:
                self.plan.bound.append(BoundConstant(number))

    def _buffers(self) -> None:
        first_output = len(self.places)
        launch = self.launch
        birth = {r: launch[number] for number, call in enumerate(self.calls) for r in call.results}
        maker = {r: number for number, call in enumerate(self.calls) for r in call.results}
        death: dict[ir.Value, int] = {}
        for number, call in enumerate(self.calls):
            for value in call.operands:
                if isinstance(value.type, ir.RankedTensorType):
                    death[self._buffer(value)] = launch[number]
        reused = {output: self.input_values[given] for given, output in self.donated}
        for number, value in enumerate(self.returned):
            buffer = self._buffer(value)
            dims = self.shapes.dims(value)
            element = DType(str(ir.RankedTensorType(value.type).element_type))
            self.plan.outputs.append(Argument(f"result{number}", element, tuple(map(str, dims))))
            target = CallerMemory(first_output + number)
            if buffer not in birth or buffer in self.places:
                raise BuildError(f"result {number} of @main is not the result of one call; outline must copy it")
            given = reused.get(number)
            if given is None or death.get(given, -1) < birth[buffer]:
                self.places[buffer] = target
            else:
                death[buffer] = len(self.calls)
                self.copies.append(Copy(Temp(_name(maker[buffer], 0)), target, self._bytes(value)))
        temporaries = []
        for number, call in enumerate(self.calls):
            for i, r in enumerate(call.results):
                if r in self.places:
                    continue
                copied = death.get(r, launch[number]) == len(self.calls)
                name = _name(number, 0 if copied else i)
                self.places[r] = Temp(name)
                temporaries.append(Temporary(name, self._bytes(r), launch[number], death.get(r, launch[number])))
        self.plan.arena = plan(temporaries, self.shapes.ranges.bounds())

    def _bytes(self, value: ir.Value) -> Expr:
        total = Expr.of(DType(str(ir.RankedTensorType(value.type).element_type)).bytes)
        for d in self.shapes.dims(value):
            total = total * d
        return total

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
        callee = _callee(call)
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


def _callee(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _name(call: int, result: int) -> str:
    return f"call{call}.{result}"
