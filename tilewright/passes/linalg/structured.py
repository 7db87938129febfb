"""Reading and rebuilding linalg ops: operands, maps and iterators as plain lists; rewrites make a linalg.generic.

Rewrites leave the old op in place, without uses; `erase_unused` at the end of a pass removes what is dead. So values
stay alive, and analyses that are keyed by them stay right, for as long as the pass runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import functions, ir, maps_of, operations, owner, position, replace_all_uses
from tilewright.runtime.shape import Expr

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
FLOAT_CASTS = ("arith.extf", "arith.truncf")
CASTS = (*FLOAT_CASTS, "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp", "arith.fptosi",
         "arith.fptoui")
FRAME = "tw.frame"  # of a function that only holds a branch or loop, whose bodies are calls
UPDATE = "tw.update"  # of a tensor.insert_slice: the host program writes the part to where the tensor lies
OVERWRITTEN = "tw.overwritten"  # of a tensor.empty: a loop that begins with it writes to all of it before anybody reads
CHEAP_OPS = ("tensor.empty", "linalg.fill", "arith.constant")
_KEPT = ("func.return", "cf.assert", "func.call", "linalg.yield", "tensor.yield")


def inputs(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[: len(op.operands) - len(op.results)]


def inits(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[len(op.operands) - len(op.results) :]


def body(op: ir.Operation) -> ir.Block:
    return op.regions[0].blocks[0]


def iterator_kinds(op: ir.Operation) -> list[str]:
    """ "parallel" or "reduction" per loop; of named ops, a loop that no result is indexed by is a reduction."""
    if op.name == "linalg.generic":
        return [str(a).split("<")[1].rstrip(">") for a in op.attributes["iterator_types"]]
    maps = maps_of(op)
    outer = {position(e) for m in maps[len(maps) - len(op.results) :] for e in m.results}
    return ["parallel" if d in outer else "reduction" for d in range(maps[0].n_dims)]


def loop_extents(op: ir.Operation, shapes: SymbolicShapes) -> list[Expr]:
    """Extent of each loop of a linalg op, from the first operand axis that it walks alone."""
    maps = maps_of(op)
    found: dict[int, Expr] = {}
    for value, m in zip(op.operands, maps, strict=True):
        for e, extent in zip(m.results, shapes.dims(value) if m.results else (), strict=True):
            if (loop := position(e)) is not None:
                found.setdefault(loop, extent)
    missing = [d for d in range(maps[0].n_dims) if d not in found]
    if missing:
        raise ValueError(f"{op.name} at {op.location}: no operand has the extent of loop {missing[0]}")
    return [found[d] for d in range(maps[0].n_dims)]


def is_rewritable(op: ir.Operation) -> bool:
    """An op whose operands may get other maps: a generic, a named contraction."""
    return op.name == "linalg.generic" or op.name in CONTRACTIONS


def uses_index(op: ir.Operation, loops: Sequence[int] | None = None) -> bool:
    """Does the body read the number of one of these loops (of any, by default)?"""
    return any(
        o.name == "linalg.index" and (loops is None or integer(o.attributes["dim"]) in loops)
        for o in operations(body(op))
    )


def looked_up(op: ir.Operation) -> ir.Operation | None:
    """The tensor.extract that an elementwise generic yields: its result is read at computed places of another tensor."""
    if op.name != "linalg.generic" or len(op.results) != 1 or "reduction" in iterator_kinds(op):
        return None
    found = owner(operations(body(op))[-1].operands[0])
    return found if found is not None and found.name == "tensor.extract" and found.block == body(op) else None


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


def compose(outer: ir.AffineMap, inner: ir.AffineMap) -> ir.AffineMap:
    """outer(inner(loops))."""
    return ir.AffineMap.get(inner.n_dims, 0, [e.compose(inner) for e in outer.results])


def loop_map(loops: int, *results: int) -> ir.AffineMap:
    """The map of so many loops to those of these numbers."""
    return ir.AffineMap.get(loops, 0, [ir.AffineExpr.get_dim(d) for d in results])


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
    """The functions of a module that compute: those that have a body and are no frame of a branch or loop."""
    return [f for f in functions(module) if FRAME not in f.attributes and any(r.blocks for r in f.regions)]


def erase_unused(fn: ir.Operation) -> None:
    """Erase the ops of the function's body whose results nobody uses, users first."""
    for op in reversed(operations(fn.regions[0].blocks[0])):
        if op.name not in _KEPT and all(use_count(r) == 0 for r in op.results):
            op.erase()


def defined_by(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that defines the value, when it is one of these."""
    op = owner(value)
    return op if op is not None and op.name in names else None


def uncast(value: ir.Value) -> ir.Value:
    """A tensor behind casts of its type."""
    while (op := owner(value)) is not None and op.name == "tensor.cast":
        value = op.operands[0]
    return value


def is_zero(scalar: ir.Value) -> bool:
    """Is it the constant 0?"""
    op = owner(scalar)
    if op is None or op.name != "arith.constant":
        return False
    number = op.attributes["value"]
    if isinstance(number, ir.FloatAttr):
        return float(ir.FloatAttr(number).value) == 0.0
    return isinstance(number, ir.IntegerAttr) and int(ir.IntegerAttr(number).value) == 0


def is_zero_tensor(value: ir.Value) -> bool:
    """A tensor filled with zero, or one that nothing has been written to."""
    op = owner(value)
    if op is None:
        return False
    return op.name == "tensor.empty" or (op.name == "linalg.fill" and is_zero(op.operands[0]))
