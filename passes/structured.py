"""Reading and rebuilding linalg ops: operands, maps and iterators as plain lists; rewrites make a linalg.generic.

Rewrites leave the old op in place, without uses; `erase_unused` at the end of a pass removes what is dead. So values
stay alive, and analyses that are keyed by them stay right, for as long as the pass runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from passes.mlir import functions, ir, iterators, maps_of, operations, owner, position, replace_all_uses
from passes.symbolic import integer

_KEPT = ("func.return", "cf.assert", "func.call", "linalg.yield", "tensor.yield")
CONTRACTIONS = (
    "linalg.matmul",
    "linalg.batch_matmul",
    "linalg.batch_reduce_matmul",
    "linalg.matvec",
    "linalg.vecmat",
    "linalg.batch_matvec",
    "linalg.batch_vecmat",
    "linalg.dot",
    "linalg.contract",
    "linalg.matmul_transpose_a",
    "linalg.matmul_transpose_b",
    "linalg.batch_matmul_transpose_a",
    "linalg.batch_matmul_transpose_b",
)
_SUMS = ("arith.addf", "arith.addi", "arith.ori")
_PRODUCTS = ("arith.mulf", "arith.muli", "arith.andi")
_CASTS = ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp")
MOVEMENTS = ("linalg.transpose", "linalg.broadcast", "linalg.generic")


def inputs(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[: len(op.operands) - len(op.results)]


def inits(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[len(op.operands) - len(op.results) :]


def body(op: ir.Operation) -> ir.Block:
    return op.regions[0].blocks[0]


def iterator_kinds(op: ir.Operation) -> list[str]:
    """ "parallel" or "reduction" per loop; of named ops, a loop that no result is indexed by is a reduction."""
    if op.name == "linalg.generic":
        return iterators(op)
    maps = maps_of(op)
    outer = {position(e) for m in maps[len(maps) - len(op.results) :] for e in m.results}
    return ["parallel" if d in outer else "reduction" for d in range(maps[0].n_dims)]


def is_contraction(op: ir.Operation) -> bool:
    """A named contraction, or a generic that adds the product of its two inputs (each may be cast) onto its result."""
    if op.name in CONTRACTIONS:
        return True
    if op.name != "linalg.generic" or len(op.operands) != 3 or len(op.results) != 1 or not op.regions[0].blocks:
        return False
    first, second, accumulator = body(op).arguments
    total = owner(operations(body(op))[-1].operands[0])
    if total is None or total.name not in _SUMS or accumulator not in list(total.operands):
        return False
    terms = [_uncast(v) for v in total.operands if v != accumulator]
    product = owner(terms[0]) if len(terms) == 1 else None
    if product is None or product.name not in _PRODUCTS or product.block != body(op):
        return False
    return {_uncast(v) for v in product.operands} == {first, second} and "reduction" in iterator_kinds(op)


def _uncast(value: ir.Value) -> ir.Value:
    while (op := owner(value)) is not None and op.name in _CASTS:
        value = op.operands[0]
    return value


def is_rewritable(op: ir.Operation) -> bool:
    """An op whose operands may get other maps: a generic, a named contraction."""
    return op.name == "linalg.generic" or op.name in CONTRACTIONS


def uses_index(op: ir.Operation, loops: Sequence[int] | None = None) -> bool:
    """Does the body read the number of one of these loops (of any, by default)?"""
    return any(
        o.name == "linalg.index" and (loops is None or integer(o.attributes["dim"]) in loops)
        for o in operations(body(op))
    )


def rebuild(
    op: ir.Operation,
    ins: Sequence[ir.Value],
    outs: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap],
    kinds: Sequence[str],
    edit: Callable[[ir.Block], None] | None = None,
) -> ir.Operation:
    """A linalg.generic before `op` with op's body moved into it and `edit` applied; the results are not yet used."""
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(ins), len(outs)]),
    }
    new = ir.Operation.create(
        "linalg.generic",
        [v.type for v in outs],
        [*ins, *outs],
        attributes,
        regions=1,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    body(op).append_to(new.regions[0])
    if edit is not None:
        edit(body(new))
    return new


def movement(op: ir.Operation | None) -> ir.AffineMap | None:
    """For an op that only moves elements (transpose, broadcast, a generic that yields its one input): coordinates of
    its result -> coordinates of its input. None for every other op.
    """
    if op is None or op.name not in MOVEMENTS or len(op.results) != 1 or len(op.operands) != 2:
        return None
    if "reduction" in iterator_kinds(op):
        return None
    block = body(op)
    inner = operations(block)
    if len(inner) != 1 or inner[0].operands[0] != block.arguments[0]:
        return None
    source, result = maps_of(op)
    if not result.is_permutation or not all(position(e) is not None or _zero(e) for e in source.results):
        return None
    back = [ir.AffineExpr.get_dim([position(e) for e in result.results].index(d)) for d in range(result.n_dims)]
    return ir.AffineMap.get(
        result.n_dims, 0, [e.compose(ir.AffineMap.get(result.n_dims, 0, back)) for e in source.results]
    )


def compose(outer: ir.AffineMap, inner: ir.AffineMap) -> ir.AffineMap:
    """outer(inner(loops))."""
    return ir.AffineMap.get(inner.n_dims, 0, [e.compose(inner) for e in outer.results])


def covers_loops(maps: Sequence[ir.AffineMap]) -> bool:
    """Is every loop an axis of some operand, so that its extent is known?"""
    return {position(e) for m in maps for e in m.results} >= set(range(maps[0].n_dims))


def use_count(value: ir.Value) -> int:
    return sum(1 for _ in value.uses)


def users(value: ir.Value) -> list[ir.Operation]:
    return [u.owner.operation for u in value.uses]


def replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for old, new in zip(op.results, values, strict=True):
        replace_all_uses(old, new)


def replace_operand(op: ir.Operation, index: int, value: ir.Value) -> None:
    op.operands[index] = value


def main_of(module: ir.Module) -> list[ir.Operation]:
    """The functions of a module that have a body."""
    return [f for f in functions(module) if any(r.blocks for r in f.regions)]


def erase_unused(fn: ir.Operation) -> None:
    """Erase the ops of the function's body whose results nobody uses, users first."""
    for op in reversed(operations(fn.regions[0].blocks[0])):
        if op.name not in _KEPT and all(use_count(r) == 0 for r in op.results):
            op.erase()


def defined_by(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that defines the value, when it is one of these."""
    op = owner(value)
    return op if op is not None and op.name in names else None


def _zero(expr: ir.AffineExpr) -> bool:
    return isinstance(expr, ir.AffineConstantExpr) and ir.AffineConstantExpr(expr).value == 0
