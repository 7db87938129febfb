"""KernelFrame: what kernels of every target share: a region, its launch slots, the evaluator over them.

A frame reads one function on tensors. Its slots are, in order: per operand (inputs, then results) a pointer and a stride for
each axis without a static one, then the local dims and the scalars as the function takes them. `loops` over work units that cut
the region's values are taken out of its way (units.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import Memory, resized
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.units import launched, take_units
from tilewright.passes.linalg.symbolic import SymbolicShapes, argument_attributes, integer
from tilewright.passes.mlir import functions, ir, llvm, operations
from tilewright.runtime.program.kernel import Param
from tilewright.runtime.shape import Expr

UNIT, CONFIG = "tw.unit", "tw.config"


@dataclass(frozen=True)
class TensorSlot:
    """One operand: its number, the value inside the region, the axis of stride 1; is it a result?"""

    number: int
    value: ir.Value
    unit: int | None
    result: bool

    @property
    def rank(self) -> int:
        return int(ir.RankedTensorType(self.value.type).rank)

    @property
    def element(self) -> ir.Type:
        return ir.RankedTensorType(self.value.type).element_type


class KernelFrame:
    """`index`: the integer type of coordinates. `params` and `slot_types` describe the slots, `operands` the tensors."""

    def __init__(self, module: ir.Module, symbol: str, index: ir.Type) -> None:
        self.module = module
        self.symbol = symbol
        self.fn = next(functions(module))
        self.block = self.fn.regions[0].blocks[0]
        self.shapes = SymbolicShapes(self.fn)
        self.loops = take_units(self.block, self.shapes)
        self.index = index
        self.evaluator = Evaluator(self.shapes, index)
        self.results = list(operations(self.block)[-1].operands)
        self.outputs: list[Memory] = []
        self.operands = self._operands()
        self.params: list[Param] = []
        self.slot_types: list[ir.Type] = []
        self._describe_slots()

    def ops(self) -> list[ir.Operation]:
        """The region's operations in program order, without the loops over units and the return."""
        return [op for op in operations(self.block)[:-1] if op.name != "scf.forall"]

    @property
    def units(self) -> Expr:
        """How many work units a launch has."""
        return launched(self.loops)

    def unit_axis(self, value: ir.Value) -> int | None:
        """The axis of stride 1 of an input; None of any other value."""
        return next((slot.unit for slot in self.operands if not slot.result and slot.value == value), None)

    def result_slot(self, number: int) -> TensorSlot:
        return [slot for slot in self.operands if slot.result][number]

    def input_units(self) -> dict[ir.Value, int | None]:
        """The axis of unit stride of each input."""
        return {slot.value: slot.unit for slot in self.operands if not slot.result}

    def _operands(self) -> list[TensorSlot]:
        tensors = [v for v in self.block.arguments if isinstance(v.type, ir.RankedTensorType)]
        found = [TensorSlot(n, v, self._unit("arg_attrs", n), False) for n, v in enumerate(tensors)]
        results = [TensorSlot(len(tensors) + n, v, self._unit("res_attrs", n), True) for n, v in enumerate(self.results)]
        return found + results

    def _unit(self, which: str, number: int) -> int | None:
        if which not in self.fn.attributes:
            return None
        named = {n.name: n.attr for n in ir.DictAttr(ir.ArrayAttr(self.fn.attributes[which])[number])}
        return integer(named[UNIT]) if UNIT in named else None

    def _slot(self, t: ir.Type, param: Param) -> None:
        self.slot_types.append(t)
        self.params.append(param)

    def _describe_slots(self) -> None:
        word, named = ir.IntegerType.get_signless(64), argument_attributes(self.fn)
        for slot in self.operands:
            self._slot(self.pointer_type(), Param("pointer", slot.number))
            for axis in range(slot.rank):
                if axis != slot.unit:
                    self._slot(word, Param("stride", slot.number, axis))
        self.dims: list[str] = []
        self.scalars: list[ir.Value] = []
        for number, v in enumerate(self.block.arguments):
            if isinstance(v.type, ir.IndexType):
                expr = self.shapes.expr(v)
                name = expr.symbol if expr is not None else None
                if name is None:
                    raise ValueError(f"index argument {number} names no dim: {named[number]}")
                self.dims.append(name)
                self._slot(word, Param("dim", name=name))
            elif not isinstance(v.type, ir.RankedTensorType):
                self._slot(v.type, Param("scalar", len(self.scalars)))
                self.scalars.append(v)

    def pointer_type(self) -> ir.Type:
        return llvm.PointerType.get()

    def memory(self, slot: TensorSlot, pointer: ir.Value, sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> Memory:
        return Memory(pointer, slot.element, sizes, strides, self.index)

    def bind(self, arguments: Sequence[ir.Value]) -> None:
        """Give the evaluator the slots of one function: `arguments` as `slot_types` lists them."""
        words = iter(arguments)
        raw = []
        for slot in self.operands:
            pointer = next(words)
            raw.append((pointer, [Index(1) if axis == slot.unit else self._coordinate(next(words)) for axis in range(slot.rank)]))
        for name in self.dims:
            self.evaluator.dims[name] = self._coordinate(next(words))
        for v in self.scalars:
            self.evaluator.scalars[v] = next(words)
        self.outputs.clear()
        for slot, (pointer, strides) in zip(self.operands, raw, strict=True):
            sizes = [self.evaluator.emit(e) for e in self.shapes.dims(slot.value)]
            memory = self.memory(slot, pointer, tuple(sizes), tuple(strides))
            if slot.result:
                self.outputs.append(memory)
            else:
                self.evaluator.memories[slot.value] = memory

    def _coordinate(self, word: ir.Value) -> Index:
        return Index(resized(word, self.index))
