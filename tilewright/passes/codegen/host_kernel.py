"""HostKernel: the frame of a host kernel that a family fills: slots in, evaluator ready, metadata out.

The entry `@<symbol>(slots, begin, end, workspace)` unpacks its slots and calls a private body whose pointers are noalias
where no two operands may share memory, as all but those of functions with `tw.in_place`, so that LLVM keeps loads across stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tilewright.passes.codegen.emit import WIDEST_STEP, Memory, gep, integer_type
from tilewright.passes.codegen.host_memory import HostMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import UNIT, KernelFrame, TensorSlot
from tilewright.passes.linalg.symbolic import IN_PLACE
from tilewright.passes.mlir import ir, llvm, operations
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr

__all__ = ["UNIT", "Grid", "HostKernel"]


@dataclass(frozen=True)
class Grid:
    """What a family says of its launch: bytes of workspace a thread, guards (expressions that must be 0), whether it uses the
    tile registers of AMX, and which results in parts it adds up where their stride is 0 (MicroKernel)."""

    workspace: Expr = Expr(())  # noqa: RUF009 - frozen
    guards: tuple[Expr, ...] = ()
    tiles: bool = False
    joins: Literal["", "one", "all"] = ""


class HostKernel(KernelFrame):
    """A host kernel with 64-bit coordinates. `describe` gives the metadata of what `build` emitted."""

    def __init__(self, module: ir.Module, symbol: str) -> None:
        super().__init__(module, symbol, integer_type(64))

    permutes = False  # see HostMemory

    def memory(self, slot: TensorSlot, pointer: ir.Value, sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> Memory:
        extent = None if slot.unit is None else sizes[slot.unit].const  # of more places no other axis goes by a few
        apart = not slot.result and (extent is None or extent <= WIDEST_STEP)
        return HostMemory(pointer, slot.element, sizes, strides, self.index, self.permutes, apart)

    def build(self, emit: Callable[[Index, Index, ir.Value], Grid], spills: bool = False) -> Grid:
        """`emit(begin, end, workspace)` emits the work units [begin, end). Erases the region.

        spills: vectors are kept on the stack, whose slots for them are aligned then: LLVM knows too late that there are any, and
        each would lie in two lines."""
        body = self._create(self.slot_types, spills)
        arguments = list(body.arguments)
        with ir.InsertionPoint(body):
            self.bind(arguments[:-3])
            grid = emit(Index(arguments[-3]), Index(arguments[-2]), arguments[-1])
            llvm.ReturnOp()
        self.fn.erase()
        return grid

    def _create(self, words: list[ir.Type], spills: bool) -> ir.Block:
        """Entry and body functions; returns the body's block, whose arguments are the words, begin, end and workspace."""
        inputs = sum(isinstance(v.type, ir.RankedTensorType) for v in self.block.arguments)
        types, pointers, apart = [], 0, IN_PLACE not in self.fn.attributes
        for t in words:
            attribute = ""
            if isinstance(t, llvm.PointerType) and apart:
                attribute = " {llvm.noalias, llvm.readonly}" if pointers < inputs else " {llvm.noalias}"
                pointers += 1
            types.append((str(t), attribute))
        body_args = ", ".join(f"%w{i}: {t}{a}" for i, (t, a) in enumerate(types))
        tail = "%begin: i64, %end: i64, %workspace: !llvm.ptr"
        lines = []
        for i, (t, _) in enumerate(types):
            lines.append(f"%p{i} = llvm.getelementptr %slots[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
            lines.append(f"%w{i} = llvm.load %p{i} : !llvm.ptr -> {t}")
        passed = ", ".join([f"%w{i}" for i in range(len(types))] + ["%begin", "%end", "%workspace"])
        signature = ", ".join([t for t, _ in types] + ["i64", "i64", "!llvm.ptr"])
        attributes = ' attributes {passthrough = ["stackrealign"]}' if spills else ""
        text = f"""
        llvm.func internal @{self.symbol}_body({body_args}{", " if types else ""}{tail}){attributes} {{ llvm.return }}
        llvm.func @{self.symbol}(%slots: !llvm.ptr, {tail}){attributes} {{
          {chr(10).join(lines)}
          llvm.call @{self.symbol}_body({passed}) : ({signature}) -> ()
          llvm.return
        }}"""
        parsed = ir.Module.parse(text)
        made = [op.clone() for op in operations(parsed.body)]
        for op in made:
            self.module.body.append(op)
        block = made[0].regions[0].blocks[0]
        operations(block)[0].erase()
        return block

    def offset_pointer(self, base: ir.Value, offset: Index, bytes_each: int) -> ir.Value:
        """base + offset * bytes_each, for carving the workspace."""
        return gep(base, (offset * bytes_each).value(self.index), integer_type(8))

    def describe(self, grid: Grid, workload_key: str, family: str, config: str) -> MicroKernel:
        return MicroKernel(symbol=self.symbol, workload=workload_key, family=family, config=config, params=tuple(self.params),
                           grid=(str(self.units), "1", "1"), workspace=str(grid.workspace),
                           guards=tuple(str(g) for g in grid.guards), tiles=grid.tiles, joins=grid.joins)



