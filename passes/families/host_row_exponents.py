"""Exponentials of a row's elements less their maximum, as in softmax: their arguments are never above 0."""

from __future__ import annotations

from collections.abc import Sequence

from passes.expand_math import NONPOSITIVE
from passes.mlir import ir, maps_of, operations, owner, position

_MAXIMA = ("arith.maximumf", "arith.maxnumf")
_EXACT = ("arith.extf", "tensor.cast")


def mark_exponents(ops: Sequence[ir.Operation]) -> None:
    """Gives every math.exp of a region whose argument is some x - max(.., x, ..) the attribute that says so."""
    for op in ops:
        if op.name == "linalg.generic":
            for inner in operations(op.regions[0].blocks[0]):
                if inner.name == "math.exp" and _is_distance(inner.operands[0]):
                    inner.attributes[NONPOSITIVE] = ir.UnitAttr.get()


def _is_distance(scalar: ir.Value) -> bool:
    """Is a scalar of a body an element less a maximum that it took part in?"""
    scalar = _exact(scalar)
    op = owner(scalar)
    if op is None:
        reader, tensor = _operand(scalar)
        made = owner(tensor)
        if reader.name != "linalg.generic" or made is None or made.name != "linalg.generic" or "reduction" in _kinds(made):
            return False
        block = made.regions[0].blocks[0]
        return _is_distance(operations(block)[-1].operands[list(made.results).index(tensor)])
    if op.name != "arith.subf":
        return False
    element, greatest = (_exact(v) for v in op.operands)
    if owner(element) is not None or owner(greatest) is not None:
        return False
    return _took_part(element, greatest)


def _took_part(element: ir.Value, greatest: ir.Value) -> bool:
    """Is one argument of a body the maximum, along some loops, of the tensor that the other is an element of?"""
    reader, tensor = _operand(element)
    maximum = owner(_operand(greatest)[1])
    if maximum is None or maximum.name != "linalg.generic" or len(maximum.operands) != 2 \
            or _exact(maximum.operands[0]) != tensor:
        return False
    block = maximum.regions[0].blocks[0]
    last = owner(operations(block)[-1].operands[0])
    if last is None or last.name not in _MAXIMA or {_exact(v) for v in last.operands} != set(block.arguments):
        return False
    maps, (source, result) = maps_of(reader), maps_of(maximum)
    at = {position(e): position(x) for e, x in zip(source.results, maps[_number(element)].results, strict=True)}
    here = [position(e) for e in maps[_number(greatest)].results]
    return None not in at and None not in at.values() and [at.get(position(e)) for e in result.results] == here


def _operand(argument: ir.Value) -> tuple[ir.Operation, ir.Value]:
    """The operation whose body an argument belongs to, and the tensor behind it."""
    op = ir.BlockArgument(argument).owner.owner.operation
    return op, _exact(op.operands[_number(argument)])


def _number(argument: ir.Value) -> int:
    return int(ir.BlockArgument(argument).arg_number)


def _exact(value: ir.Value) -> ir.Value:
    """A value behind conversions that change no number."""
    while (op := owner(value)) is not None and op.name in _EXACT:
        value = op.operands[0]
    return value


def _kinds(op: ir.Operation) -> str:
    return str(op.attributes["iterator_types"])
