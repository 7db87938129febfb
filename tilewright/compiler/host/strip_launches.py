"""Emits launches by strips of rows: a parallel loop whose work units take a strip through the kernels of all the calls.

What lies between the calls is a strip in the workspace of the thread, behind what the kernels need of it. A kernel is chosen as
for all rows and run for those of the strip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.host.decision_tree import emit_tree, layout_of
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_steps import Scope
from tilewright.compiler.host.host_tensor_maps import call_pointer
from tilewright.compiler.host.plan_steps import Place, PlannedCall, Strips
from tilewright.compiler.host.run_values import RunValues
from tilewright.compiler.host.strips import EACH, margin
from tilewright.passes.codegen.emit import gep, integer_type, loop
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir, llvm, operations
from tilewright.runtime.device import CONTEXT, KERNELS, KERNELS_PER_CALL, PARALLEL_FOR
from tilewright.runtime.program.dispatch import DispatchTable, Leaf
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr

_PARAMS = ("pointer", "stride", "dim", "scalar", "workspace")  # what a kernel may be given

_FUNCTION = """
llvm.func internal @tw_strips_{number}(%head: !llvm.ptr, %begin: i64, %end: i64, %workspace: !llvm.ptr) {{
  llvm.return
}}
"""
Fill = Callable[[PlannedCall, MicroKernel, Callable[[int], ir.Value], RunValues, Mapping[str, Index]], None]


def strips_ir(count: int) -> str:
    """The functions of so many loops, before they are filled."""
    return "".join(_FUNCTION.format(number=n) for n in range(count))


def can_run(strips: Strips, plan: HostPlan, tables: Mapping[int, DispatchTable]) -> bool:
    """Do all kernels take any number of rows, in one launch? tables: by number of the call."""
    return all(len(list(kernel.launches())) == 1 and all(p.kind in _PARAMS for p in kernel.params)
               and not any(cut.dim in Expr.parse(guard).symbols for guard in kernel.guards)
               for number, cut in strips.cuts.items() for kernel in tables[number].kernels)


@dataclass
class StripLaunches:
    """Of a plan. dims: the model's, in order, then strides of inputs; tables: by number of the call; fill: stores the arguments
    of a kernel of a call in the slots, for local dims; kernel_bytes: of a thread's workspace, what kernels need."""

    plan: HostPlan
    dims: Sequence[str]
    strips: Sequence[Strips]
    tables: Mapping[int, DispatchTable]
    fill: Fill
    kernel_bytes: Expr

    def __post_init__(self) -> None:
        self.i64 = integer_type(64)
        self.number = {s.launches[0].calls[0]: n for n, s in enumerate(self.strips)}

    @property
    def words(self) -> list[int]:
        """Of the heads of the loops."""
        return [2 + len(self.dims) + len(self._outside(s)) for s in self.strips]

    def pays(self, strips: Strips, env: Mapping[str, Index], table: ir.Value) -> ir.Value:
        """Are there enough rows, by the prediction and for all threads of the machine? A call's threads decide nothing: the bits
        may be others by strips, where a product of few rows goes another way than one of many."""
        threads = self._word(table, CONTEXT)
        rows = emit_expr(strips.rows, env)
        found = margin(strips.size, rows, Index(threads)).min(rows - strips.least).ge(0)
        assert not isinstance(found, bool), "how many threads a machine has is known when it runs"
        return found

    def launch(self, strips: Strips, run: RunValues, scope: Scope, head: ir.Value) -> None:
        """Fill the head and run the loop."""
        words = [run.table, run.scalars, *(run.dims[name].value(self.i64) for name in self.dims),
                 *(scope.base(place) for place in self._outside(strips))]
        for at, word in enumerate(words):
            llvm.StoreOp(word, self._element(head, at))
        units = self._units(strips, run.dims, run.table)
        name = f"tw_strips_{self.number[strips.launches[0].calls[0]]}"
        function = llvm.AddressOfOp(llvm.PointerType.get(), name).result
        loop_over = self._word(run.table, PARALLEL_FOR, llvm.PointerType.get())
        call_pointer([loop_over, run.table, function, head, units.value(self.i64), run.threads, run.work,
                      run.stride.value(self.i64)])

    def emit(self, function: ir.Operation, number: int) -> None:
        """The body of a loop's function."""
        strips, block = self.strips[number], function.regions[0].blocks[0]
        head, begin, end, workspace = block.arguments
        with ir.InsertionPoint(operations(block)[-1]):
            pointer = llvm.PointerType.get()
            table, scalars = (self._word(head, n, pointer) for n in range(2))
            env = {name: Index(self._word(head, 2 + n)) for n, name in enumerate(self.dims)}
            first = 2 + len(self.dims)
            places: dict[Place, ir.Value] = {p: self._word(head, first + n, pointer) for n, p in enumerate(self._outside(strips))}
            local = gep(workspace, emit_expr(self.kernel_bytes, env).value(self.i64), integer_type(8))
            places |= {p: gep(local, Index(at).value(self.i64), integer_type(8)) for p, at in strips.places().items()}
            most = max(len(k.params) for n in strips.cuts for k in self.tables[n].kernels)
            slots = llvm.AllocaOp(pointer, Index(most).value(self.i64), ir.TypeAttr.get(self.i64), alignment=8).result
            run = RunValues(table, scalars, slots, Index(1).value(self.i64), workspace, Index(0), env, slots, slots, slots)
            rows, units = emit_expr(strips.rows, env), self._units(strips, env, table)

            def strip(unit: Index) -> None:
                start = unit * rows // units
                for call in strips.cuts:
                    self._call(strips, call, run, Scope(env, places), start, (unit + 1) * rows // units - start)

            loop(Index(begin), Index(end), 1, strip, index=self.i64)

    def _units(self, strips: Strips, env: Mapping[str, Index], table: ir.Value) -> Index:
        """How many strips of nearly equal size."""
        rows = emit_expr(strips.rows, env)
        units = (rows + (strips.size - 1)) // strips.size
        return units.max(Index(self._word(table, CONTEXT)) * EACH).min(rows)

    def _call(self, strips: Strips, number: int, run: RunValues, scope: Scope, start: Index, count: Index) -> None:
        """One call for the rows of a strip."""
        call, cut, table = self.plan.calls[number], strips.cuts[number], self.tables[number]
        whole = {cut.dim: emit_expr(call.dims[0], run.dims)}
        local = {cut.dim: count * cut.each}
        layout = {name: emit_expr(e, run.dims) for name, e in layout_of(call, table).items()}

        def pointer(index: int) -> ir.Value:
            operand = call.operands[index]
            base = scope.pointer(operand)
            if not cut.operands[index] or operand.place in strips.local:
                return base
            pitch = emit_expr(operand.strides[0] * (cut.each * operand.dtype.bytes), run.dims)
            return gep(base, (start * pitch).value(self.i64), integer_type(8))

        def leaf(chosen: Leaf) -> None:
            kernel = table.kernels[chosen.kernel]
            self.fill(call, kernel, pointer, run, local)
            at = Index(number * KERNELS_PER_CALL + chosen.kernel).value(self.i64)
            kernels = self._word(run.table, KERNELS, llvm.PointerType.get())
            address = llvm.LoadOp(llvm.PointerType.get(), gep(kernels, at, self.i64)).result
            units = emit_expr(Expr.parse(kernel.grid[0]), local)
            call_pointer([address, run.slots, Index(0).value(self.i64), units.value(self.i64), run.work])

        emit_tree(table.root, {**whole, **layout}, leaf)

    def _outside(self, strips: Strips) -> list[Place]:
        """Memory of others that the calls read and write."""
        places = (o.place for number in strips.cuts for o in self.plan.calls[number].operands)
        return [p for p in dict.fromkeys(places) if p not in strips.local]

    def _element(self, base: ir.Value, number: int) -> ir.Value:
        return gep(base, Index(number).value(self.i64), self.i64)

    def _word(self, base: ir.Value, number: int, type_: ir.Type | None = None) -> ir.Value:
        return llvm.LoadOp(type_ or self.i64, self._element(base, number)).result
