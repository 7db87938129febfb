"""Decodings of new constants in place of a model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.compress.weights import Weight
from tilewright.compiler.dims.places import NAME
from tilewright.compiler.ops.bits import round_to_bits
from tilewright.compiler.ops.graph import Graph
from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.structured import is_zero_tensor, users
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, UNSIGNED, SymbolicShapes, argument_attributes, write_dims
from tilewright.passes.mlir import functions, ir, linalg, operations, tensor
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Decoding:
    """graph: whose one result is the weight [N, ..., C]. arrays: what its inputs are bound to. saved: bytes that these take less
    in a file than in memory."""

    graph: Graph
    arrays: tuple[np.ndarray, ...]
    saved: int = 0


def put_decoding(main: ir.Operation, weight: Weight, made: Decoding, arrays: dict[ir.Value, np.ndarray],
                 shared: dict[int, ir.Value]) -> ir.Value:
    """The decoding in place of a weight, which is returned. arrays: of the constant arguments. shared: by the identity of an
    array, the argument that it is bound to already."""
    block = main.regions[0].blocks[0]
    source = ir.Module.parse(made.graph.module_text())
    inner = next(functions(source)).regions[0].blocks[0]
    known = dict[ir.Value, ir.Value]()
    attributes = argument_attributes(main)
    for argument, array in zip(inner.arguments, made.arrays, strict=True):
        if id(array) not in shared:
            shared[id(array)] = block.add_argument(argument.type, main.location)
            arrays[shared[id(array)]] = array
            named = {DIMS: write_dims(list(array.shape)), CONSTANT: ir.UnitAttr.get()}
            attributes.append(named | ({UNSIGNED: ir.UnitAttr.get()} if array.dtype == np.uint8 else {}))
        known[argument] = shared[id(array)]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])
    with ir.InsertionPoint.at_block_begin(block):
        for op in operations(inner)[:-1]:
            new = clone(op, known.__getitem__)
            known.update(zip(op.results, new.results, strict=True))
    value = known[operations(inner)[-1].operands[0]]
    for op in users(weight.argument):
        which = next(i for i, v in enumerate(op.operands) if v == weight.argument)
        op.operands[which] = _in_order(op, value, weight.order)
    return value


def _in_order(op: ir.Operation, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
    """The decoded weight with the axes that `op` reads. order: the axis there at each axis of the value."""
    axes = [order.index(a) for a in range(len(order))]
    if axes == sorted(axes):
        return value
    shape = list(ir.RankedTensorType(value.type).shape)
    with ir.InsertionPoint(op), op.location:
        into = tensor.empty([shape[a] for a in axes], ir.RankedTensorType(value.type).element_type)
        moved: ir.Value = linalg.transpose(value, outs=[into], permutation=axes).results[0]
        return moved


def round_rows(main: ir.Operation, weight: ir.Value, bits: int | str) -> None:
    """What the products of a decoded weight multiply it by becomes whole numbers of `bits` bits, a number or the name of a dim,
    with a scale for all of the tensor, which their results are multiplied by."""
    shapes = SymbolicShapes(main)
    for op in products_of(weight):
        which = next(i for i, v in enumerate(op.operands) if v != weight)
        rows, result = op.operands[which], op.results[0]
        if op.operands[2] in (rows, weight) or not is_zero_tensor(op.operands[2]):
            continue
        graph = Graph()
        x = graph.input("x", [str(d) if d.constant is None else d.constant for d in shapes.dims(rows)])
        for value in round_to_bits(x, bits if isinstance(bits, int) else graph.dim(bits)):
            graph.output(value)
        with ir.InsertionPoint(op), op.location:
            values, scale = inlined(graph, [rows, *([_dim(main, bits)] if isinstance(bits, str) else [])])
        op.operands[which] = values
        scaled = Graph()
        y = scaled.input("y", [str(d) if d.constant is None else d.constant for d in shapes.dims(result)])
        scaled.output(y * scaled.input("scale", []))
        readers = [(use.owner.operation, use.operand_number) for use in result.uses]
        with ir.InsertionPoint.after(op), op.location:
            (made,) = inlined(scaled, [result, scale])
        for reader, number in readers:
            reader.operands[number] = made


def products_of(weight: ir.Value) -> list[ir.Operation]:
    """The contractions that read a decoded weight, perhaps with its axes in another order."""
    found = []
    for op in users(weight):
        found += [op] if is_contraction(op) else products_of(op.results[0]) if op.name == "linalg.transpose" else []
    return found


def inlined(graph: Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """The results of a graph on some values, at the current insertion point."""
    source = ir.Module.parse(graph.module_text())
    inner = next(functions(source)).regions[0].blocks[0]
    known = dict(zip(inner.arguments, values, strict=True))
    *ops, last = operations(inner)
    for op in ops:
        known.update(zip(op.results, clone(op, known.__getitem__).results, strict=True))
    return [known[v] for v in last.operands]


def _dim(main: ir.Operation, name: str) -> ir.Value:
    """The index argument that a dim is passed as, which is added where there is none."""
    block, attributes = main.regions[0].blocks[0], argument_attributes(main)
    wanted = write_dims([Expr.dim(name)])
    for argument, named in zip(block.arguments, attributes, strict=True):
        if isinstance(argument.type, ir.IndexType) and named.get(DIMS) == wanted:
            return argument
    made = block.add_argument(ir.IndexType.get(), main.location)
    attributes.append({DIMS: wanted, NAME: ir.StringAttr.get(name)})
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])
    return made


def finish(module: ir.Module, main: ir.Operation, arrays: dict[ir.Value, np.ndarray]) -> str:
    """The module's text without arguments that nothing reads any more."""
    block = main.regions[0].blocks[0]
    attributes = argument_attributes(main)
    for number in reversed(range(len(block.arguments))):
        argument = block.arguments[number]
        if argument in arrays and not users(argument):
            del arrays[argument], attributes[number]
            block.erase_argument(number)
    for named in attributes:
        named.pop(CONSTANT, None)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])
    results = [v.type for v in operations(block)[-1].operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], results))
    module.operation.verify()
    return str(module)
