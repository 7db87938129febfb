"""Tensor maps in a native host program: what the device's table makes of operands before a launch (runtime/device.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.device import TENSOR_MAP
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.kernel import Param
from tilewright.runtime.program.tensor_map import DTYPES, HEAD_WORDS, MAP_ALIGNMENT, MAP_BYTES, MOST_AXES
from tilewright.runtime.tensor import DType


class TensorMaps:
    """Room on the stack for the maps of one launch, and calls that fill it. Emits nothing where no kernel has one."""

    def __init__(self, table: ir.Value, tables: Sequence[DispatchTable]) -> None:
        self.table = table
        self.i64 = integer_type(64)
        kernels = [k for t in tables for k in t.kernels if any(p.kind == "tensor_map" for p in k.params)]
        if kernels:
            most = max(len(k.params) for k in kernels)
            self._targets = self._room(most * MAP_BYTES, integer_type(8))
            self._words = self._room(HEAD_WORDS + 3 * MOST_AXES, self.i64)

    def _room(self, count: int, element: ir.Type) -> ir.Value:
        number = Index(count).value(self.i64)
        return llvm.AllocaOp(llvm.PointerType.get(), number, ir.TypeAttr.get(element), alignment=MAP_ALIGNMENT).result

    def emit(self, slot: int, param: Param, call: PlannedCall, pointer: ir.Value, dims: Mapping[str, Index],
             local: Mapping[str, Index]) -> ir.Value:
        """The slot's word: the address of the map of an operand, made now. dims: the model's; local: the workload's."""
        operand = call.operands[param.index]
        shape = (*call.workload.inputs, *call.workload.outputs)[param.index].dims
        axes = [(emit_expr(shape[axis], local), emit_expr(operand.strides[axis], dims)) for axis in param.axes]
        return self.made(slot, param, operand.dtype, pointer, axes)

    def made(self, slot: int, param: Param, dtype: DType, pointer: ir.Value, axes: Sequence[tuple[Index, Index]]) -> ir.Value:
        """The same of an operand of which the size and the stride along each axis of the map are known."""
        words = [llvm.PtrToIntOp(self.i64, pointer).result]
        words += [self._number(n) for n in (DTYPES.index(dtype), len(param.axes), param.swizzle)]
        for (size, stride), box in zip(axes, param.box, strict=True):
            words += [size.value(self.i64), stride.value(self.i64), self._number(box)]
        for at, word in enumerate(words):
            llvm.StoreOp(word, gep(self._words, self._number(at), self.i64))
        target = gep(self._targets, self._number(slot * MAP_BYTES), integer_type(8))
        make = llvm.LoadOp(llvm.PointerType.get(), gep(self.table, self._number(TENSOR_MAP), self.i64)).result
        call_pointer([make, self.table, target, self._words])
        return llvm.PtrToIntOp(self.i64, target).result

    def _number(self, value: int) -> ir.Value:
        return Index(value).value(self.i64)


def call_pointer(operands: Sequence[ir.Value], results: Sequence[ir.Type] = ()) -> ir.Operation:
    """Call the function pointer operands[0] with the other operands."""
    count = len(operands)
    return ir.Operation.create("llvm.call", results=list(results), operands=list(operands), attributes={
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([count, 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    })
