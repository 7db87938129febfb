"""Launches of a ragged program for GPUs that go by block tables: the prelude, and kernels that serve all sequences at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.host.block_tables import BlockTables, KernelTable, base_offset
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_steps import Scope
from tilewright.compiler.host.host_tensor_maps import TensorMaps, call_pointer
from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.compiler.host.prelude_ptx import prelude_kernel
from tilewright.compiler.host.run_values import RunValues
from tilewright.passes.codegen.emit import all_of, gep, integer_type, when
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.device import KERNELS_PER_CALL, LAUNCH
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.kernel import OUTER, Param
from tilewright.runtime.program.tensor_map import ALIGNMENT
from tilewright.runtime.ragged_dim import total
from tilewright.runtime.shape import Expr


class TableLaunches:
    """Emits them. dims: of the model, in order. The prelude has the launch number behind those of all calls."""

    def __init__(self, plan: HostPlan, dims: Sequence[str], tables: BlockTables) -> None:
        self.plan, self.dims, self.tables = plan, dims, tables
        self.ragged = {o.dim.name: o for o in plan.ragged}
        self.maps: TensorMaps | None = None

    @property
    def slots(self) -> int:
        """Of the prelude."""
        return len(prelude_kernel(self.tables, self.dims).params) if self.tables else 0

    def fill(self, run: RunValues, at: ir.Value, offsets: Sequence[ir.Value]) -> None:
        """The prelude. at: address of the tables; offsets: addresses on the device, as integers."""
        words = [llvm.PtrToIntOp(integer_type(64), at).result, *offsets, *(self._word(run.dims[d]) for d in self.dims)]
        grid = [Expr.parse(g) for g in prelude_kernel(self.tables, self.dims).grid]
        self._launch(len(self.plan.calls) * KERNELS_PER_CALL, grid, words, run)

    def launch(self, number: int, run: RunValues, at: ir.Value, scope: Scope) -> None:
        """A launch of each kernel that a sequence of the call may have chosen; none chooses one whose tensor maps cannot be made
        of the operands."""
        call, group = self.plan.calls[number], self.tables.groups[self.tables.of_call[number]]
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        for kernel, own in enumerate(group.kernels):
            _, y, z = (Expr.parse(g).substitute(local) for g in own.kernel.grid)
            if (y.symbols | z.symbols) & self.ragged.keys():
                raise BuildError(f"{own.kernel.symbol}: blocks along y and z, {y} and {z}, differ from sequence to sequence; a "
                                 "launch for all of them has one number of each")
            gaps = self._unmapped(call, own)
            if any(e.constant not in (None, 0) for e in gaps):
                continue

            def launch(kernel: int = kernel, own: KernelTable = own, y: Expr = y, z: Expr = z) -> None:
                words = [self._slot(p, call, own, run, at, scope) for p in own.kernel.params]
                self._launch(number * KERNELS_PER_CALL + kernel, (own.most, y, z), words, run)

            when(all_of([emit_expr(e, run.dims).eq(0) for e in gaps]), launch)

    def _unmapped(self, call: PlannedCall, own: KernelTable) -> list[Expr]:
        """What has to be 0 for the tensor maps of a kernel: bytes of strides beyond a multiple of what copies take."""
        found = []
        for param in own.kernel.params:
            if param.kind == "tensor_map":
                operand, elements = call.operands[param.index], (call.segments or ())[param.index]
                for axis in param.axes[1:]:
                    stride = elements if axis == OUTER else operand.strides[axis]
                    assert stride is not None
                    found.append(stride * operand.dtype.bytes % ALIGNMENT)
        return found

    def _slot(self, param: Param, call: PlannedCall, own: KernelTable, run: RunValues, at: ir.Value, scope: Scope) -> ir.Value:
        """What all sequences have in common; 0 of what the entries hold."""
        if param.kind == "pointer":
            operand = call.operands[param.index]
            return scope.pointer(replace(operand, offset=operand.offset - base_offset(operand, self.ragged)))
        if param.kind == "table":
            return gep(at, self._word(emit_expr(own.blocks, run.dims)), integer_type(8))
        if param.kind == "tensor_map":
            return self._map(own.kernel.params.index(param), param, call, run, scope)
        if param.by_sequence:
            return self._word(Index(0))
        if param.kind == "stride":
            return self._word(emit_expr(call.operands[param.index].strides[param.axis], run.dims))
        if param.kind == "dim":
            extent = dict(zip(call.workload.dims, call.dims, strict=True))[param.name]
            return self._word(emit_expr(extent, run.dims))
        if param.kind == "scalar":
            place = gep(run.scalars, self._word(Index(call.scalars[param.index])), integer_type(64))
            return llvm.LoadOp(integer_type(64), place).result
        raise BuildError(f"{own.kernel.symbol}: a kernel for all sequences of a batch has no slot of kind {param.kind}")

    def _map(self, slot: int, param: Param, call: PlannedCall, run: RunValues, scope: Scope) -> ir.Value:
        """A map of an operand for all sequences: with the rows of all along its axis, or with an axis of the sequences."""
        operand, elements = call.operands[param.index], (call.segments or ())[param.index]
        shape = (*call.workload.inputs, *call.workload.outputs)[param.index].dims
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        axes = []
        for axis in param.axes:
            if axis == OUTER:
                assert elements is not None
                size, stride = self.tables.count, elements
            else:
                size, stride = shape[axis].substitute(local), operand.strides[axis]
                if param.by_sequence and axis == param.axis:
                    assert size.symbol is not None
                    size = total(size.symbol)
            axes.append((emit_expr(size, run.dims), emit_expr(stride, run.dims)))
        assert self.maps is not None
        return self.maps.made(slot, param, operand.dtype, scope.pointer(operand), axes)

    def _launch(self, number: int, grid: Sequence[Expr], words: Sequence[ir.Value], run: RunValues) -> None:
        for place, word in enumerate(words):
            llvm.StoreOp(word, gep(run.slots, self._word(Index(place)), integer_type(64)))
        launch = llvm.LoadOp(llvm.PointerType.get(), gep(run.table, self._word(Index(LAUNCH)), integer_type(64))).result
        blocks = [self._word(emit_expr(e, run.dims)) for e in grid]
        call_pointer([launch, run.table, self._word(Index(number)), *blocks, run.slots, self._word(Index(len(words))),
                      run.threads, run.work, self._word(run.stride)])

    def _word(self, value: Index) -> ir.Value:
        return value.value(integer_type(64))
