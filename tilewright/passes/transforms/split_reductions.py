"""split-reductions: a reduction down the rows of a tensor, or of all its elements, is done in parts that are then joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.analysis.op_kinds import body_names, combiner, is_row_reduction
from tilewright.passes.analysis.parts import neutral, slow_to_fast
from tilewright.passes.analysis.reads_alone import reads_alone
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import fill_body, generic
from tilewright.passes.linalg.clone import users
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.structured import (
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    loop_extents,
    main_of,
    rebuild,
    uncast,
)
from tilewright.passes.linalg.symbolic import CONSTANT, argument_attributes
from tilewright.passes.mlir import arith, ir, linalg, maps_of, operations, owner
from tilewright.runtime.extent_bounds import bounds
from tilewright.runtime.shape import Expr

_EXACT = ("f32", "f64", "i32", "i64")  # narrower parts would be rounded, or overflow, twice
_JOINED = 4  # numbers of one tensor, as its norm and that of its update
_UNKNOWN = 1 << 20  # what an extent without an upper bound counts as


@dataclass(frozen=True)
class SplitReductions(Pass):
    """So that all threads have a share, rows are read as they lie, and the parts fuse with other work on the same rows.

    elements: of the operand that a part has at least. rows: that it has at least. parts: that there are at most, where the
    range tells. columns: that a tensor has at least for its rows to be cut. shares: are values that the shares of a softmax mix
    added up in parts too, where one query reads rows one after the other? Left whole they are for fuse-attention.
    alone: rows of a part at least of sums down the rows that wait for memory alone, as gradients of biases do: each part is
    written and read again, at times by another core.
    alike: from so many tensors on, of known extents, of which all elements are reduced by one operation, all have parts of one
    size, small tensors too, if any has parts: then one launch may serve all. 0: never.
    many: from so many of these on whose results are not joined, those of `near` elements at most stay whole: there is one for
    each thread without parts, and what is done with a tensor besides finds it in that thread's cache. 0: never.
    """

    name: ClassVar[str] = "split-reductions"
    elements: int = 16384
    rows: int = 16
    parts: int = 256
    columns: int = 16
    shares: bool = False
    alike: int = 0
    alone: int = 0
    many: int = 0
    near: int = 0

    def run(self, module: ir.Module) -> None:
        tensors: dict[ir.Operation, Reshaper] = {}
        for fn in main_of(module):
            own, block = Reshaper(fn), fn.regions[0].blocks[0]
            bound = {v for v, named in zip(block.arguments, argument_attributes(fn), strict=True) if CONSTANT in named}
            tensors |= {op: own for op in operations(block)
                        if is_row_reduction(op) and "reduction" in iterator_kinds(op) and not bound.issuperset(inputs(op))
                        and (self.shares or not _mixes(op))}
        groups = _alike(tensors)
        whole = self._near(groups, tensors)
        sizes = {op: size for op in tensors if op not in whole and (size := self._own_size(op, tensors[op]))}
        if self.alone:
            larger = replace(self, rows=self.alone)
            for op in reads_alone([op for op in sizes if "parallel" in iterator_kinds(op)]):
                sizes[op] = larger._own_size(op, tensors[op]) or sizes[op]
        found = {**sizes, **self._common_sizes(sizes, groups)}
        for op, size, own in [(op, size, tensors[op]) for op, size in found.items()]:  # an op's hash changes with what it reads
            _split(op if len(iterator_kinds(op)) > 1 else _as_one_row(op, own), size, own)
        for fn in main_of(module):
            erase_unused(fn)

    def _own_size(self, op: ir.Operation, tensors: Reshaper) -> int:
        """Steps of a part of a reduction; 0 where it stays whole."""
        order, kinds = slow_to_fast(op), iterator_kinds(op)
        element = ir.RankedTensorType(op.results[0].type).element_type
        if order is None or str(element) not in _EXACT or kinds[order[0]] != "reduction":
            return 0
        kept = [d for d in order if kinds[d] == "parallel"]
        if order[len(order) - len(kept):] != kept or len(order) < 2:
            return 0
        ranges = tensors.shapes.ranges.bounds()
        most = [int(min(bounds(loop_extents(op, tensors.shapes)[d], ranges)[1], _UNKNOWN)) for d in order]
        size = self._size(most[0], prod(most[1:]))
        columns = most[len(order) - len(kept):] if kept else most[-1:]
        return 0 if most[0] <= size or columns[-1] < self.columns else size

    def _near(self, groups: Sequence[Sequence[ir.Operation]], tensors: Mapping[ir.Operation, Reshaper]) -> set[ir.Operation]:
        """Reductions of tensors that one thread has in its cache, of which there are many that do not wait for each other."""
        found: set[ir.Operation] = set()
        for group in groups if self.many else ():
            apart = _apart(group)
            if len(apart) >= self.many:
                found |= {op for op in apart
                          if prod(e.constant or 1 for e in loop_extents(op, tensors[op].shapes)) <= self.near}
        return found

    def _common_sizes(self, sizes: Mapping[ir.Operation, int],
                      groups: Sequence[Sequence[ir.Operation]]) -> dict[ir.Operation, int]:
        """Of reductions that are alike the most steps of a part that any of them has. sizes: of those with parts."""
        common: dict[ir.Operation, int] = {}
        for group in groups if self.alike else ():
            if not all(_private(op) for op in group if len(iterator_kinds(op)) == 1):
                group = [op for op in group if len(iterator_kinds(op)) == 2]
            size = max((sizes.get(op, 0) for op in group), default=0)
            common |= dict.fromkeys(group, size) if size and len(group) >= self.alike else {}
        return common

    def _size(self, rows: int, across: int) -> int:
        """Steps of a part: a power of two."""
        size = 1
        while size * across < self.elements or (size < self.rows and across < self.elements) or size * self.parts < rows:
            size *= 2
        return size


def _alike(tensors: Mapping[ir.Operation, Reshaper]) -> list[list[ir.Operation]]:
    """Those that reduce all elements of tensors of known extents by one operation."""
    groups: dict[object, list[ir.Operation]] = {}
    for op, own in tensors.items():
        last, element, loops = combiner(op), ir.RankedTensorType(op.results[0].type).element_type, len(iterator_kinds(op))
        whole = set(iterator_kinds(op)) == {"reduction"} and slow_to_fast(op) is not None
        if whole and last is not None and str(element) in _EXACT and loops <= 2 and all(
                e.constant is not None for e in loop_extents(op, own.shapes)):
            groups.setdefault((last.name, str(element)), []).append(op)
    return list(groups.values())


def _apart(group: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those of some reductions to numbers that are joined with no more than a few others, as a norm over all would be."""
    members, joined = set(group), set[ir.Operation]()
    behind: dict[ir.Operation, set[ir.Operation]] = {}
    for op in operations(group[0].block):
        types = [ir.RankedTensorType(r.type) for r in op.results if isinstance(r.type, ir.RankedTensorType)]
        if op not in members and any(t.rank for t in types):
            continue
        own = {op} if op in members else set().union(*(behind.get(m, ()) for v in op.operands if (m := owner(v)) is not None))
        if len(own) > _JOINED:
            joined |= own
            own = set(list(own)[: _JOINED + 1])  # enough to tell
        if own:
            behind[op] = own
    return [op for op in group if op not in joined]


def _split(op: ir.Operation, size: int, tensors: Reshaper) -> None:
    """Do a reduction in parts of so many steps."""
    order, kinds = slow_to_fast(op), iterator_kinds(op)
    assert order is not None
    kept = [d for d in order if kinds[d] == "parallel"]
    extents = [loop_extents(op, tensors.shapes)[d] for d in order]
    with ir.InsertionPoint(op), op.location:
        made = _in_parts(op, [order[0], *kept], size, tensors, extents)
        op.results[0].replace_all_uses_with(_joined(op, made, kept))


def _chain(op: ir.Operation) -> list[ir.Operation]:
    """A reduction of a list, and what makes the list element by element, the first one first."""
    found, pending = {op}, [op]
    while pending:
        made = [owner(v) for v in inputs(pending.pop()) if ir.RankedTensorType(v.type).rank]
        new = [m for m in made if m is not None and m.name == "linalg.generic" and m not in found]
        found.update(new)
        pending += new
    return [o for o in operations(op.block) if o in found]


def _private(op: ir.Operation) -> bool:
    """Does nobody else read what a reduction of a list needs, and is all of that over lists?"""
    chain = _chain(op)
    return all(u in chain for made in chain if made != op for r in made.results for u in users(r)) and all(
        m.n_dims == 1 and m.is_projected_permutation for made in chain for m in maps_of(made))


def _as_one_row(op: ir.Operation, tensors: Reshaper) -> ir.Operation:
    """The same reduction, of a tensor of one row."""
    rows: dict[ir.Value, ir.Value] = {}
    row = [ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)]
    for current in _chain(op):
        extents, kinds = [Expr.of(1), *loop_extents(current, tensors.shapes)], iterator_kinds(current)
        with ir.InsertionPoint(current), current.location:
            for value in (*inputs(current), *inits(current)):
                if value not in rows and ir.RankedTensorType(value.type).rank:
                    rows[value] = tensors.reshape(value, extents)
            ins, outs = ([rows.get(v, v) for v in values] for values in (inputs(current), inits(current)))
            maps = [ir.AffineMap.get(2, 0, row if m.results else []) for m in maps_of(current)]
            copy = current.clone(ip=ir.InsertionPoint(current)).operation
            made = rebuild(copy, ins, outs, maps, kinds * 2)
            copy.erase()
        rows |= dict(zip(current.results, made.results, strict=True))
    op.results[0].replace_all_uses_with(made.results[0])
    return made


def _mixes(op: ir.Operation) -> bool:
    """Are the terms of a sum products with the shares of a softmax?"""
    return is_contraction(op) and any(_is_share(owner(uncast(v))) for v in inputs(op))


def _is_share(op: ir.Operation | None) -> bool:
    """Does an operation divide exponentials by a sum?"""
    while op is not None and op.name in RESHAPES:
        op = owner(uncast(op.operands[0]))
    if op is None or op.name != "linalg.generic" or body_names(op) != ["arith.divf", "linalg.yield"]:
        return False
    made = [owner(uncast(v)) for v in inputs(op)]
    return len(made) == 2 and made[0] is not None and "math.exp" in body_names(made[0]) \
        and made[1] is not None and made[1].name == "linalg.generic" and "reduction" in iterator_kinds(made[1])


def _in_parts(op: ir.Operation, loops: list[int], size: int, tensors: Reshaper, extents: list[Expr]) -> ir.Value:
    """The operation with a result for each part; parts of one step are a parallel loop."""
    last, kinds = combiner(op), list(iterator_kinds(op))
    assert last is not None
    element = last.results[0].type
    cut = ir.AffineExpr.get_floor_div(ir.AffineExpr.get_dim(loops[0]), ir.AffineExpr.get_constant(size))
    *reads, _ = maps_of(op)
    result = ir.AffineMap.get(reads[0].n_dims, 0, [cut, *map(ir.AffineExpr.get_dim, loops[1:])])
    dims = [extents[0].ceildiv(size), *extents[len(extents) - len(loops) + 1:]]
    number = neutral(last.name, element)
    start = arith.constant(element, number if isinstance(element, ir.FloatType) else int(number))
    blank = linalg.fill(start, outs=[tensors.empty(dims, element)])
    if size == 1:
        kinds[loops[0]] = "parallel"
    copy = op.clone(ip=ir.InsertionPoint(op)).operation
    made = rebuild(copy, inputs(op), [blank], [*reads, result], kinds)
    copy.erase()
    return made.results[0]


def _joined(op: ir.Operation, parts: ir.Value, loops: list[int]) -> ir.Value:
    """The parts joined onto what `op` starts from; behind the first one, their axes run along `loops`."""
    start, last, rank = inits(op)[0], combiner(op), ir.RankedTensorType(parts.type).rank
    assert last is not None
    places = [ir.AffineExpr.get_dim(1 + loops.index(ir.AffineDimExpr(e).position)) for e in maps_of(op)[-1].results]
    maps = [ir.AffineMap.get_identity(rank), ir.AffineMap.get(rank, 0, places)]
    made = generic([parts], [start], maps, ["reduction"] + ["parallel"] * (rank - 1), [start.type])
    fill_body(made, lambda scalars: ir.Operation.create(last.name, [last.results[0].type], scalars).results[0])
    return made.results[0]
