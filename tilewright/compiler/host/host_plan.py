"""HostPlan: the outlined @main as data: calls in order, views of their operands, buffers and where each lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.passes.dispatch_creation.pack_constants import PACK
from tilewright.passes.linalg.strides import View, Views
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes, integer
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.arena_plan import ArenaPlan, Temporary, plan
from tilewright.runtime.program.program import Argument, DimInfo
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MAIN = "main"


@dataclass(frozen=True)
class CallerMemory:
    """Memory that the caller hands over: position in the `tensors` array of the native convention."""

    position: int


@dataclass(frozen=True)
class Temp:
    """Memory in the arena, by the temporary's name."""

    name: str


Place = CallerMemory | Temp


@dataclass(frozen=True)
class PlacedOperand:
    """An operand of a call: where its buffer lies, offset and strides in elements over the model dims."""

    place: Place
    dtype: DType
    offset: Expr
    strides: tuple[Expr, ...]


@dataclass(frozen=True)
class PlannedCall:
    """One launch. `scalars` are positions in the `scalars` array of the native convention.

    segments: of a call that is made for each sequence of a ragged program, all in one launch: per operand, how many elements of
    its buffer a sequence takes, over the ragged dims; None where all sequences have the same. `dims` and the operands' offsets
    and strides are then those of one sequence.
    """

    workload: Workload
    operands: tuple[PlacedOperand, ...]
    dims: tuple[Expr, ...]
    scalars: tuple[int, ...]
    segments: tuple[Expr | None, ...] | None = None


@dataclass(frozen=True)
class Copy:
    """After all calls: move `bytes` of a temporary to an output (a donated buffer still read by the call that makes it)."""

    source: Temp
    target: CallerMemory
    bytes: Expr


@dataclass(frozen=True)
class BoundConstant:
    """A constant operand: which bound argument it is, and its packed layout [tile, axis of columns, other axes], if any."""

    argument: int
    layout: tuple[int, ...] = ()


@dataclass(frozen=True)
class Offsets:
    """A ragged dim and the memory that says where its sequences begin."""

    dim: DimInfo
    place: CallerMemory


@dataclass
class HostPlan:
    """Everything that the host program does, in order. ragged: the dims whose lengths differ from sequence to sequence."""

    calls: list[PlannedCall] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    arena: ArenaPlan = field(default_factory=lambda: ArenaPlan({}, Expr.of(0)))
    bound: list[BoundConstant] = field(default_factory=list)  # what the model holds itself, in `tensors` order
    outputs: list[Argument] = field(default_factory=list)
    ragged: tuple[Offsets, ...] = ()


def plan_of(module: ir.Module, workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]]) -> HostPlan:
    """The plan of an outlined module. workloads: by function name in it; donated: (input, output) numbers that share memory."""
    main = next(f for f in functions(module) if ir.StringAttr(f.attributes["sym_name"]).value == MAIN)
    return _Planner(main, workloads, donated).run()


class _Planner:
    """Reads the outlined @main."""

    def __init__(self, main: ir.Operation, workloads: Mapping[str, Workload], donated: Sequence[tuple[int, int]]) -> None:
        self.main = main
        self.workloads = workloads
        self.donated = donated
        self.block = main.regions[0].blocks[0]
        self.shapes = SymbolicShapes(main)
        self.views = Views(self.shapes)
        self.plan = HostPlan()
        self.places: dict[ir.Value, Place] = {}
        self.scalar_at: dict[ir.Value, int] = {}
        self.ops = operations(self.block)
        self.calls = [op for op in self.ops if op.name == "func.call"]
        self.returned = list(self.ops[-1].operands)

    def run(self) -> HostPlan:
        self._arguments()
        self._buffers()
        for call in self.calls:
            self.plan.calls.append(self._call(call))
        return self.plan

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
        birth = {r: number for number, call in enumerate(self.calls) for r in call.results}
        death: dict[ir.Value, int] = {}
        for number, call in enumerate(self.calls):
            for value in call.operands:
                if isinstance(value.type, ir.RankedTensorType):
                    death[self._buffer(value)] = number
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
                self.plan.copies.append(Copy(Temp(_name(birth[buffer], 0)), target, self._bytes(value)))
        temporaries = []
        for number, call in enumerate(self.calls):
            for i, r in enumerate(call.results):
                if r in self.places:
                    continue
                copied = death.get(r, number) == len(self.calls)
                name = _name(number, 0 if copied else i)
                self.places[r] = Temp(name)
                temporaries.append(Temporary(name, self._bytes(r), number, death.get(r, number)))
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
        callee = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
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


def _name(call: int, result: int) -> str:
    return f"call{call}.{result}"
