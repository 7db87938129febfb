"""HostRowEmitter: rows on the host: a thread's workspace and stack arrays keep values between sweeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.codegen.emit import Memory, byte_width, constant, element_type, integer_type
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.row_emitter import At, Kept, RowEmitter
from tilewright.passes.families.row_reduction import Combiner
from tilewright.passes.mlir import arith, ir, llvm
from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.runtime.shape import Expr


def are_joined(parts: Memory) -> ir.Value:
    """Are parts to be added up where they lie, which is where the first one does?"""
    found = parts.strides[0].eq(0)
    return constant(integer_type(1), int(found)) if isinstance(found, bool) else found


def first_of_parts(parts: Memory, joined: Combiner, lanes: int) -> ir.Value:
    """What a part begins with: what changes nothing, or what the sum begins with."""
    if joined.name != "arith.addf":
        return joined.neutral(lanes)
    return arith.select(are_joined(parts), joined.start(lanes), joined.neutral(lanes))


class HostRowEmitter(RowEmitter):
    """`workspace`: bytes that the kept values take."""

    def __init__(self, kernel: HostKernel, program: RowProgram, config: HostRowsConfig) -> None:
        super().__init__(kernel, program, config.lanes)
        self.host, self.config = kernel, config
        self.workspace = Expr.of(0)

    def keep_values(self, workspace: ir.Value, length: Expr, coordinate: Callable[[At], Index]) -> None:
        """Gives each kept value its place: the output, when it is a result of that sweep, else `length` elements of workspace
        indexed by `coordinate`. Rows of the workspace are whole aligned vectors: masked stores are slow to read back."""
        for first, sweep in enumerate(self.program.sweeps):
            for value in sweep.kept:
                n = self.program.results.index(value) if value in self.program.results else -1
                if n in sweep.results:
                    self.kept[value] = Kept(first, self.kernel.outputs[n], partial(self.coords, self.program.result_places[n]))
                    continue
                t = element_type(ir.RankedTensorType(value.type).element_type)
                pointer = self.host.offset_pointer(workspace, self.ev.emit(self.workspace), 1)
                memory = Memory(pointer, t, (self.ev.emit(length),), (Index(1),), self.index)
                self.kept[value] = Kept(first, memory, lambda at: [coordinate(at)], scratch=True)
                self.workspace = self.workspace + (length * byte_width(memory.stored)).ceildiv(64) * 64

    def array(self, t: ir.Type, length: int) -> Memory:
        """A stack array for a scalar of rows; call only in the entry block."""
        stored = integer_type(8) if str(t) == "i1" else t
        count = constant(integer_type(64), length)
        pointer = llvm.AllocaOp(llvm.PointerType.get(), count, ir.TypeAttr.get(stored), alignment=64).result
        return Memory(pointer, t, (Index(length),), (Index(1),), self.index)
