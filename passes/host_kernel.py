"""HostKernel: the frame of a host kernel that a family fills: slots in, evaluator ready, metadata out.

The entry `@<symbol>(slots, begin, end, workspace)` unpacks its slots and calls a private body whose pointers are noalias
where no two operands may share memory, so that LLVM keeps loads across stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passes.emit import Memory, gep, integer_type
from passes.evaluator import Evaluator
from passes.index import Index
from passes.mlir import functions, ir, llvm, operations
from passes.symbolic import SymbolicShapes, argument_attributes, integer
from runtime.kernel import MicroKernel, Param
from runtime.shape import Expr

UNIT = "tw.unit"


@dataclass(frozen=True)
class Grid:
    """What a family says of its launch: work units, bytes of workspace a thread, guards (expressions that must be 0)."""

    units: Expr
    workspace: Expr = Expr.of(0)
    guards: tuple[Expr, ...] = ()


class HostKernel:
    """`open` creates the function and returns the block to emit into; `close` erases the region and gives the metadata."""

    def __init__(self, module: ir.Module, symbol: str) -> None:
        self.module = module
        self.symbol = symbol
        self.fn = next(functions(module))
        self.block = self.fn.regions[0].blocks[0]
        self.shapes = SymbolicShapes(self.fn)
        self.index = integer_type(64)
        self.evaluator = Evaluator(self.shapes, self.index)
        self.results = list(operations(self.block)[-1].operands)
        self.outputs: list[Memory] = []
        self.params: list[Param] = []

    def ops(self) -> list[ir.Operation]:
        """The region's operations in program order, without the return."""
        return operations(self.block)[:-1]

    def build(self, emit: Callable[[Index, Index, ir.Value], Grid]) -> Grid:
        """`emit(begin, end, workspace)` emits the loop over work units and says how many there are."""
        tensors = [v for v in self.block.arguments if isinstance(v.type, ir.RankedTensorType)]
        operands = [(v.type, self._unit("arg_attrs", number)) for number, v in enumerate(tensors)]
        operands += [(v.type, self._unit("res_attrs", number)) for number, v in enumerate(self.results)]
        named = argument_attributes(self.fn)
        pointer, words = llvm.PointerType.get(), []
        for number, (t, unit) in enumerate(operands):
            words.append(pointer)
            self.params.append(Param("pointer", number))
            for axis in range(ir.RankedTensorType(t).rank):
                if axis != unit:
                    words.append(self.index)
                    self.params.append(Param("stride", number, axis))
        dims, scalars = [], []
        for number, v in enumerate(self.block.arguments):
            if isinstance(v.type, ir.IndexType):
                expr = self.shapes.expr(v)
                name = expr.symbol if expr is not None else None
                if name is None:
                    raise ValueError(f"index argument {number} names no dim: {named[number]}")
                dims.append(name)
                words.append(self.index)
                self.params.append(Param("dim", name=name))
            elif not isinstance(v.type, ir.RankedTensorType):
                self.params.append(Param("scalar", len(scalars)))
                scalars.append(v)
                words.append(v.type)
        body = self._create(words)
        arguments = list(body.arguments)
        with ir.InsertionPoint(body):
            self._bind(tensors, operands, dims, scalars, arguments)
            grid = emit(Index(arguments[-3]), Index(arguments[-2]), arguments[-1])
            llvm.ReturnOp()
        self.fn.erase()
        return grid

    def _unit(self, which: str, number: int) -> int | None:
        if which not in self.fn.attributes:
            return None
        named = {n.name: n.attr for n in ir.DictAttr(ir.ArrayAttr(self.fn.attributes[which])[number])}
        return integer(named[UNIT]) if UNIT in named else None

    def _create(self, words: list[ir.Type]) -> ir.Block:
        """Entry and body functions; returns the body's block, whose arguments are the words, begin, end and workspace."""
        inputs = sum(isinstance(v.type, ir.RankedTensorType) for v in self.block.arguments)
        types, pointers = [], 0
        for t in words:
            attribute = ""
            if isinstance(t, llvm.PointerType):
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
        text = f"""
        llvm.func internal @{self.symbol}_body({body_args}{", " if types else ""}{tail}) {{ llvm.return }}
        llvm.func @{self.symbol}(%slots: !llvm.ptr, {tail}) {{
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

    def _bind(self, tensors: list[ir.Value], operands: list[tuple[ir.Type, int | None]], dims: list[str],
              scalars: list[ir.Value], arguments: list[ir.Value]) -> None:
        word = iter(arguments)
        raw = []
        for t, unit in operands:
            pointer = next(word)
            rank = ir.RankedTensorType(t).rank
            raw.append((pointer, [Index(1) if axis == unit else Index(next(word)) for axis in range(rank)]))
        for name in dims:
            self.evaluator.dims[name] = Index(next(word))
        for v in scalars:
            self.evaluator.scalars[v] = next(word)
        for number, ((t, _), (pointer, strides)) in enumerate(zip(operands, raw, strict=True)):
            value = tensors[number] if number < len(tensors) else self.results[number - len(tensors)]
            sizes = [self.evaluator.emit(e) for e in self.shapes.dims(value)]
            memory = Memory(pointer, ir.RankedTensorType(t).element_type, tuple(sizes), tuple(strides), self.index)
            if number < len(tensors):
                self.evaluator.memories[value] = memory
            else:
                self.outputs.append(memory)

    def offset_pointer(self, base: ir.Value, offset: Index, bytes_each: int) -> ir.Value:
        """base + offset * bytes_each, for carving the workspace."""
        return gep(base, (offset * bytes_each).value(self.index), integer_type(8))

    def describe(self, grid: Grid, workload_key: str, family: str, config: str) -> MicroKernel:
        return MicroKernel(symbol=self.symbol, workload=workload_key, family=family, config=config, params=tuple(self.params),
                           grid=(str(grid.units), "1", "1"), workspace=str(grid.workspace),
                           guards=tuple(str(g) for g in grid.guards))



