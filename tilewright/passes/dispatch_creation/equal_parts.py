"""Equal parts of a large function become calls of one function: parts that have nothing to do with each other, or that only
single values tie together.

A step of an optimizer has a part for each parameter; a global norm ties these together. Passes then see each kind of part once;
`inline-control-flow` puts all of them back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain

from tilewright.passes.linalg.clone import erase_dead, users
from tilewright.passes.linalg.strides import Views
from tilewright.passes.linalg.structured import CHEAP_OPS
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.partition.alike import connected
from tilewright.passes.partition.structure import Structure
from tilewright.passes.partition.ties import stages
from tilewright.passes.transforms.lift_control_flow import lifted

_PURE = ("linalg.", "tensor.", "arith.", "math.")


def share_equal_parts(module: ir.Module, least: int = 1024, parts: int = 8) -> None:
    """In the one function of a module, if it has `least` operations and does nothing but compute tensors: of each kind of which
    it has so many parts."""
    [fn, *others] = functions(module)
    block = fn.regions[0].blocks[0]
    *ops, last = operations(block)
    if others or len(ops) < least or not all(op.name.startswith(_PURE) for op in ops):
        return
    constants = {v for v, named in zip(block.arguments, argument_attributes(fn), strict=True) if CONSTANT in named}
    views = Views(SymbolicShapes(fn))

    def share(found: Iterable[Sequence[ir.Operation]], before: ir.Operation) -> list[Sequence[ir.Operation]]:
        """Those of some parts that have too few like them; the others become calls."""
        kinds: dict[Hashable, list[Structure]] = {}
        for part in found:
            structure = Structure(part, views, constants)
            kinds.setdefault(structure.key, []).append(structure)
        for like in kinds.values():
            if len(like) >= parts:
                _share(module, fn, like, before)
        return [structure.ops for like in kinds.values() if len(like) < parts for structure in like]

    for part in share(connected([op for op in ops if _computes(op)]), last):
        if len(part) >= least and _read_inside(part, last):
            tied = stages(part)
            for op in (op for stage in tied for op in (*chain.from_iterable(stage.pieces), *stage.ties)):
                op.move_before(last)
            for stage in tied:
                share(stage.pieces, stage.ties[0] if stage.ties else last)
    erase_dead(block)


def _computes(op: ir.Operation) -> bool:
    tensors = any(isinstance(r.type, ir.RankedTensorType) for r in op.results)
    return tensors and op.name not in CHEAP_OPS and op.name != "arith.constant"


def _read_inside(part: Sequence[ir.Operation], last: ir.Operation) -> bool:
    """Does nobody but operations of a part, and the last of all, read what the part gives?"""
    inside = {*part, last}
    return all(u in inside for op in part for r in op.results for u in users(r))


def _share(module: ir.Module, fn: ir.Operation, like: Sequence[Structure], before: ir.Operation) -> None:
    """Equal parts become calls of one function in front of `before`."""
    first, *others = like
    members = set(first.ops)
    wanted = [r for op in first.ops for r in op.results if any(u not in members for u in users(r))]
    if not wanted:
        return
    made = lifted(module, fn, first.ops, wanted, before)
    call = owner(made[0])
    assert call is not None
    replaced = dict(zip(wanted, made, strict=True))
    for other in others:
        image = first.image(other)
        with ir.InsertionPoint(before):
            again = ir.Operation.create("func.call", results=[r.type for r in call.results],
                                        operands=[image.get(v, v) for v in call.operands],
                                        attributes={"callee": call.attributes["callee"]})
        replaced.update(zip((image[r] for r in wanted), again.results, strict=True))
    for old, new in replaced.items():
        old.replace_all_uses_with(new)
    for part in like:
        for op in reversed(part.ops):
            op.erase()
