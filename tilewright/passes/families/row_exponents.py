"""Exponentials of a row's elements less their maximum, as in softmax: their arguments are never above 0, their sum is never below
1, so that shares of it need no division of every element, small ones need not be exactly 0 in it, as in log-softmax, and where
that sum is used the maximum need not keep NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.passes.analysis.signs import NONPOSITIVE, SUMMED
from tilewright.passes.codegen.emit import byte_width
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.lowering.expand_math import NAN_ELSEWHERE, SHARE
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_MAXIMA = ("arith.maximumf", "arith.maxnumf")
_ROUNDED = 2  # bytes
_EXACT = ("arith.extf", "tensor.cast")
_NAN_OF_NAN = ("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.extf", "arith.truncf", "math.exp",
               "math.exp2", "math.log", "math.sqrt", "math.rsqrt", "math.tanh")


def mark_exponents(ops: Sequence[ir.Operation]) -> None:
    """Gives every math.exp of a region whose argument is some x - max(.., x, ..) the attribute that says so."""
    for inner in _scalars(ops, "math.exp"):
        if _is_distance(inner.operands[0]):
            inner.attributes[NONPOSITIVE] = ir.UnitAttr.get()


def mark_rounded(ops: Sequence[ir.Operation], results: Sequence[ir.Value]) -> None:
    """Where all results of a region are rounded to 16 bits or fewer, lets such exponentials, marked already, be approximate: what
    is wrong with them, some 10 ulp of f32, is lost."""
    if all(byte_width(ir.RankedTensorType(r.type).element_type) <= _ROUNDED for r in results):
        for inner in _scalars(ops, "math.exp"):
            if NONPOSITIVE in inner.attributes:
                _approximate(inner)


def mark_summed(ops: Sequence[ir.Operation], results: Sequence[ir.Value]) -> None:
    """Gives such exponentials, marked already, of which nothing but the logarithm of their sum over the row is used the attribute
    that says so, and lets them be approximate: of a sum of at least 1 the logarithm is off by less than they are."""
    for inner in _scalars(ops, "math.exp"):
        if NONPOSITIVE in inner.attributes and _only_in_logarithm(inner, results):
            inner.attributes[SUMMED] = ir.UnitAttr.get()
            _approximate(inner)


def _approximate(exponential: ir.Operation) -> None:
    exponential.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<afn>")


def _only_in_logarithm(exponential: ir.Operation, results: Sequence[ir.Value]) -> bool:
    """Is all that is made of an exponential of a body a sum, begun at 0, of what its maximum is of, and of that its logarithm?"""
    maximum, sums = _maximum(exponential.operands[0]), _readers(exponential.results[0], results)
    if maximum is None or not sums or not all(
            _is_sum(op) and _from_zero(op) and maps_of(op) == maps_of(maximum) for op in sums):
        return False
    logs = [user for op in sums for user in _scalar_readers(op.results[0], results)]
    return bool(logs) and all(user is not None and user.name == "math.log" for user in logs)


def _readers(scalar: ir.Value, results: Sequence[ir.Value]) -> list[ir.Operation]:
    """The operations that read the tensor whose elements a scalar of a body is; none where something else is done with it."""
    uses = [use.owner for use in scalar.uses]
    if len(uses) != 1 or uses[0].name != "linalg.yield":
        return []
    made = uses[0].operation.parent
    tensor = made.results[list(uses[0].operands).index(scalar)]
    return [] if tensor in results else [use.owner.operation for use in tensor.uses]


def _scalar_readers(tensor: ir.Value, results: Sequence[ir.Value]) -> list[ir.Operation | None]:
    """The operations of bodies that read the elements of a tensor; None for any other use."""
    if tensor in results:
        return [None]
    users: list[ir.Operation | None] = []
    for use in tensor.uses:
        op = use.owner.operation
        users += [None] if op.name != "linalg.generic" else [
            u.owner.operation for u in op.regions[0].blocks[0].arguments[use.operand_number].uses]
    return users


def _scalars(ops: Sequence[ir.Operation], name: str) -> Iterator[ir.Operation]:
    """The operations of this name in the bodies of a region."""
    for op in ops:
        if op.name == "linalg.generic":
            yield from (inner for inner in operations(op.regions[0].blocks[0]) if inner.name == name)


def mark_shares(ops: Sequence[ir.Operation]) -> None:
    """Gives every arith.divf of a row program that divides such an exponential, marked already, by the sum over its row the
    attribute that says so. The maximum's own exponential, 1, is in that sum: all reductions of a row program are over its
    columns. What a norm divides by, a root that a row has in common, gets it too: the reciprocal of a root is never subnormal."""
    for inner in _scalars(ops, "arith.divf"):
        if _is_share(inner) or _by_root(inner):
            inner.attributes[SHARE] = ir.UnitAttr.get()


def mark_maxima(ops: Sequence[ir.Operation], results: Sequence[ir.Value]) -> None:
    """Gives a row's maximum the attribute that it need not keep NaN where that changes no result of the region: what it goes into
    is joined with a sum over the row of values that are NaN where its elements are."""
    for number, op in enumerate(ops):
        last = _combined(op)
        if last is not None and last.name == "arith.maximumf" and _nan_elsewhere(op, ops[number + 1 :], results):
            last.attributes[NAN_ELSEWHERE] = ir.UnitAttr.get()


def _nan_elsewhere(maximum: ir.Operation, later: Sequence[ir.Operation], results: Sequence[ir.Value]) -> bool:
    """Follows the maximum of a row with a NaN: all that would differ must meet a sum that is NaN anyway."""
    here, row = maps_of(maximum)
    kinds = iterator_kinds(maximum)
    elements = {maximum.operands[0]}  # NaN at least where the maximum's elements are
    rows: set[ir.Value] = set()  # NaN in all of a row where any of its elements is
    differs = {maximum.results[0]}
    for op in later:
        read = set(op.operands)
        if op.name != "linalg.generic":
            if differs & read:
                return False
            continue
        if not (differs | rows) & read:
            continue
        maps = maps_of(op)
        is_aligned = all(m in (here, row) for v, m in zip(op.operands, maps, strict=True) if v in differs)
        yielded = operations(op.regions[0].blocks[0])[-1].operands
        for value, result, place in zip(yielded, op.results, maps[len(op.operands) - len(op.results) :], strict=True):
            reached = _nan_of(value)
            known = {(op.operands[n], maps[n]) for n in reached}
            of_element = any(v in elements and m == here for v, m in known)
            is_elementwise = "reduction" not in iterator_kinds(op)
            if any(v in rows and (m == row or (m == place and is_elementwise)) for v, m in known):
                rows.add(result)
            elif not differs & read:
                continue
            elif not is_aligned:
                return False
            elif of_element and is_elementwise and place == here:
                elements.add(result)
                differs.add(result)
            elif of_element and iterator_kinds(op) == kinds and place == row and _is_sum(op):
                rows.add(result)
            else:
                return False
    return bool(rows) and not differs & set(results)


def _nan_of(value: ir.Value) -> set[int]:
    """Numbers of the arguments of a body that make a value of it NaN when they are."""
    op = owner(value)
    if op is None:
        return {_number(value)}
    return set().union(*map(_nan_of, op.operands)) if op.name in _NAN_OF_NAN else set()


def _is_sum(op: ir.Operation) -> bool:
    """Does a body with one result add to it, and nothing else to what it was?"""
    last = _combined(op)
    return last is not None and last.name == "arith.addf"


def _combined(op: ir.Operation) -> ir.Operation | None:
    """The op that joins the one input of a reduction with its one result."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or "reduction" not in iterator_kinds(op):
        return None
    block = op.regions[0].blocks[0]
    last = owner(operations(block)[-1].operands[0])
    return last if last is not None and {*last.operands} == set(block.arguments) else None


def _is_distance(scalar: ir.Value) -> bool:
    """Is a scalar of a body an element less a maximum that it took part in?"""
    return _maximum(scalar) is not None


def _maximum(scalar: ir.Value) -> ir.Operation | None:
    """Of a scalar of a body that is an element less a maximum that it took part in, the operation that joins this; else None."""
    scalar = _exact(scalar)
    op = owner(scalar)
    if op is None:
        reader, tensor = _operand(scalar)
        made = owner(tensor)
        if reader.name != "linalg.generic" or made is None or made.name != "linalg.generic" or "reduction" in _kinds(made):
            return None
        block = made.regions[0].blocks[0]
        return _maximum(operations(block)[-1].operands[list(made.results).index(tensor)])
    if op.name != "arith.subf":
        return None
    element, greatest = (_exact(v) for v in op.operands)
    if owner(element) is not None or owner(greatest) is not None or not _took_part(element, greatest):
        return None
    return owner(_operand(greatest)[1])


def _is_share(quotient: ir.Operation) -> bool:
    """Does a division in a body divide a marked exponential by the sum that it took part in, begun at 0?"""
    element, total = (_exact(v) for v in quotient.operands)
    if owner(element) is not None or owner(total) is not None or not _took_part(element, total, ("arith.addf",)):
        return False
    made, sums = owner(_operand(element)[1]), owner(_operand(total)[1])
    if made is None or made.name != "linalg.generic" or sums is None:
        return False
    yielded = operations(made.regions[0].blocks[0])[-1].operands[list(made.results).index(_operand(element)[1])]
    exponential = owner(_exact(yielded))
    return exponential is not None and NONPOSITIVE in exponential.attributes and _from_zero(sums)


def _from_zero(sums: ir.Operation) -> bool:
    """Does a reduction begin at 0?"""
    begun = owner(sums.operands[1])
    zero = owner(begun.operands[0]) if begun is not None and begun.name == "linalg.fill" else None
    return zero is not None and zero.name == "arith.constant" and ir.FloatAttr(zero.attributes["value"]).value == 0


def _by_root(quotient: ir.Operation) -> bool:
    """Does a division of f32 in a body divide by a root that not all of its elements have their own of?"""
    divisor = quotient.operands[1]
    if owner(divisor) is not None or not isinstance(divisor.type, ir.F32Type):
        return False
    reader, tensor = _operand(divisor)
    made = owner(tensor)
    own = maps_of(reader)[_number(divisor)]
    if made is None or made.name != "linalg.generic" or len({position(e) for e in own.results} - {None}) == own.n_dims:
        return False
    root = owner(operations(made.regions[0].blocks[0])[-1].operands[list(made.results).index(tensor)])
    return root is not None and root.name == "math.sqrt"


def _took_part(element: ir.Value, joined: ir.Value, by: Sequence[str] = _MAXIMA) -> bool:
    """Does one argument of a body join, by such an operation along some loops, the tensor that the other is an element of?"""
    reader, tensor = _operand(element)
    join = owner(_operand(joined)[1])
    if join is None or join.name != "linalg.generic" or len(join.operands) != 2 or _exact(join.operands[0]) != tensor:
        return False
    block = join.regions[0].blocks[0]
    last = owner(operations(block)[-1].operands[0])
    if last is None or last.name not in by or {_exact(v) for v in last.operands} != set(block.arguments):
        return False
    maps, (source, result) = maps_of(reader), maps_of(join)
    at = {position(e): position(x) for e, x in zip(source.results, maps[_number(element)].results, strict=True)}
    here = [position(e) for e in maps[_number(joined)].results]
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
