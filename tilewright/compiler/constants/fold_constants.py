"""Fold calls whose operands are all bound at compile time: they run once, here, in the float64 reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.reference import evaluate
from tilewright.passes.dispatch_creation.outlined import workload_of
from tilewright.passes.linalg.strides import VIEW_OPS, Views
from tilewright.passes.linalg.structured import erase_unused
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, SymbolicShapes, argument_attributes, mixed, write_dims
from tilewright.passes.mlir import flat_operations, functions, ir, operations, replace_all_uses
from tilewright.runtime.tensor import DType

MAIN = "main"
_TERMINATORS = ("func.return", "scf.yield", "scf.condition")  # what they pass on fills memory that is wanted there


def fold_constants(module: ir.Module, bound: dict[int, np.ndarray], each: set[int]) -> None:
    """Replace such calls of an outlined @main by new constant arguments, whose values are added to `bound`.

    Args:
        bound: argument number of @main -> value; a result is rounded once to its element type.
        each: numbers of those that have a value for each sequence of a ragged model, along a first axis that @main does not see;
            what is made of them is added.

    A call whose result @main, a branch or a loop's body returns stays: it fills memory of the caller. Reshapes of constants are
    constants of their own, over the same memory, so that they may be laid out in panels.
    """
    named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)}
    main = named[MAIN]
    block = main.regions[0].blocks[0]
    shapes = SymbolicShapes(main)
    values = {v: bound[i] for i, v in enumerate(block.arguments) if i in bound}
    many = {v for i, v in enumerate(block.arguments) if i in each}
    folded: dict[ir.Value, ir.Operation] = {}
    views = Views(shapes)
    passed = [v for op in flat_operations(block) if op.name in _TERMINATORS for v in op.operands]
    returned = {views.view(v).buffer for v in passed if isinstance(v.type, ir.RankedTensorType)}
    for op in flat_operations(block):
        tensors = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
        if not tensors or not all(v in values for v in tensors) or not all(map(_static, op.results)):
            continue
        if any(r in returned for r in op.results):
            continue
        if any(v in many for v in tensors):
            many.update(op.results)
        if op.name in VIEW_OPS:
            source = values[tensors[0]]
            values[op.results[0]] = np.stack([_view(op, x) for x in source]) if tensors[0] in many else _view(op, source)
        elif op.name == "func.call" and (results := _run(op, named, values, many, shapes)) is not None:
            values.update(zip(op.results, results, strict=True))
        if op.name in ("func.call", "tensor.expand_shape", "tensor.collapse_shape") or tensors[0] in folded:
            folded.update((r, op) for r in op.results if r in values)
    attributes = [ir.DictAttr.get(a) for a in argument_attributes(main)]
    for value, op in folded.items():
        if all(u.owner.operation in folded.values() for u in value.uses):
            continue
        t = ir.RankedTensorType(value.type)
        bound[len(block.arguments)] = values[value]
        each |= {len(block.arguments)} if value in many else set()
        argument = block.add_argument(t, op.location)
        values[argument] = values[value]
        attributes.append(ir.DictAttr.get({DIMS: write_dims(list(t.shape)), CONSTANT: ir.UnitAttr.get()}))
        replace_all_uses(value, argument)
    for op in reversed(list(dict.fromkeys(folded.values()))):
        op.erase()
    erase_unused(main)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    results = [v.type for v in operations(block)[-1].operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], results))
    _mark(module, main, values)
    _erase_uncalled(module)


def _static(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).has_static_shape


def _view(op: ir.Operation, source: np.ndarray) -> np.ndarray:
    """The value of a view op of static shape."""
    shape = tuple(ir.RankedTensorType(op.results[0].type).shape)
    if op.name != "tensor.extract_slice":
        return source.reshape(shape)
    parts = [mixed(op, f"static_{name}", i + 1) for i, name in enumerate(("offsets", "sizes", "strides"))]
    window = tuple(slice(o, o + n * s, s) for o, n, s in zip(*parts, strict=True))
    return np.ascontiguousarray(source[window]).reshape(shape)


def _run(call: ir.Operation, named: dict[str, ir.Operation], values: dict[ir.Value, np.ndarray], many: set[ir.Value],
         shapes: SymbolicShapes) -> list[np.ndarray] | None:
    """The results of a call, each rounded once to its element type; None when an operand is not known yet. many: what has a
    value for each sequence, as the results of what reads it."""
    inputs: list[np.ndarray | int] = []
    for v in call.operands:
        expr = shapes.expr(v) if v not in values else None
        known = values.get(v, expr.constant if expr is not None else None)
        if known is None:
            return None
        inputs.append(known)
    workload = workload_of(named[ir.FlatSymbolRefAttr(call.attributes["callee"]).value], "folded")
    types = [ir.RankedTensorType(r.type) for r in call.results]

    def once(given: Sequence[np.ndarray | int]) -> list[np.ndarray]:
        return [np.ascontiguousarray(x.astype(DType(str(t.element_type)).numpy)).reshape(tuple(t.shape))
                for x, t in zip(evaluate(workload.ir, given), types, strict=True)]

    count = next((len(values[v]) for v in call.operands if v in many), None)
    if count is None:
        return once(inputs)
    own = [[x[n] if v in many and isinstance(x, np.ndarray) else x for v, x in zip(call.operands, inputs, strict=True)]
           for n in range(count)]
    return [np.stack(results) for results in zip(*map(once, own), strict=True)]


def _mark(module: ir.Module, main: ir.Operation, values: dict[ir.Value, np.ndarray]) -> None:
    """Operands of the remaining calls that became constants are marked so in the callee, when all its calls agree."""
    calls = [op for op in flat_operations(main.regions[0].blocks[0]) if op.name == "func.call"]
    for fn in functions(module):
        name = ir.StringAttr(fn.attributes["sym_name"]).value
        sites = [c for c in calls if ir.FlatSymbolRefAttr(c.attributes["callee"]).value == name]
        if not sites:
            continue
        given = argument_attributes(fn)
        for number, attributes in enumerate(given):
            if all(c.operands[number] in values for c in sites):
                attributes[CONSTANT] = ir.UnitAttr.get()
        fn.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in given])


def _erase_uncalled(module: ir.Module) -> None:
    called = {ir.FlatSymbolRefAttr(op.attributes["callee"]).value for fn in functions(module)
              for op in flat_operations(fn.regions[0].blocks[0]) if op.name == "func.call"}
    for fn in list(functions(module)):
        name = ir.StringAttr(fn.attributes["sym_name"]).value
        if name != MAIN and name not in called:
            fn.erase()
