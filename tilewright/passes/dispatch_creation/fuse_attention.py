"""fuse-attention: the regions of scores, softmax and mixing become one region, so that no T x T tensor exists.

Runs between fuse and outline, on `tw.region`. A trial works on copies of the regions, which take the place of these in the
function: reshapes between them are moved out first, by splitting the loops of their operations. A refusal puts the regions
back, so that the function is as it was. A trial looks at these regions only, however long the function is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import ClassVar

from tilewright.passes.analysis.attention import Attention, AttentionError
from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.analysis.placement import place
from tilewright.passes.base import Pass, until_stable
from tilewright.passes.dispatch_creation.attention_lookups import with_lookups
from tilewright.passes.dispatch_creation.fuse import REGION, renumber_regions
from tilewright.passes.linalg.clone import clone, enclosing, erase_with_sources, users
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.split_loop import can_split, split_loop
from tilewright.passes.linalg.structured import erase_unused, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, reassociation
from tilewright.passes.mlir import functions, ir, maps_of, operations, owner, position
from tilewright.passes.transforms.fold_unit_dims import fold_unit_loops
from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Expr

Chain = tuple[int, ...]
_TYPES = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Rules: those of passes/analysis/attention.py; "only-inside", no value between the first and the last contraction is read
    elsewhere; "views-move-out", reshapes in between can be moved out; "operands", both contractions multiply elements of one of
    the types in `operands`, as in "f16,bf16" (any where it is empty); "head-size", queries are at most `depth` and values at
    most `columns` long (any where it is 0). lookups: keys and values that a table names are read through it."""

    name: ClassVar[str] = "fuse-attention"
    operands: str = ""
    depth: int = 0
    columns: int = 0
    lookups: bool = False

    def __post_init__(self) -> None:
        unknown = [t for t in self.operands.split(",") if t not in _TYPES]
        if self.operands and unknown:
            raise OptionError(f"{self.name}: operands={self.operands!r}; wanted some of {', '.join(_TYPES)}")

    def run(self, module: ir.Module) -> None:
        for fn in list(functions(module)):
            if any(r.blocks for r in fn.regions):
                fuse_attentions(fn, self)

    def check(self, found: Attention) -> None:
        """AttentionError where the target has no fused kernel for it."""
        for view in (found.scores, found.mixed):
            types = {str(ir.RankedTensorType(view.operand(i).type).element_type) for i in range(2)}
            if self.operands and (len(types) != 1 or not types <= set(self.operands.split(","))):
                raise AttentionError("operands", f"{view.op.name} at {view.op.location} multiplies {' by '.join(sorted(types))}")
        depth = found.scores.size(found.scores.k).constant
        if (self.depth and (depth is None or depth > self.depth)) or 0 < self.columns < found.columns:
            raise AttentionError("head-size", f"{depth} and {found.columns}, wanted at most {self.depth} and {self.columns}")


def fuse_attentions(fn: ir.Operation, rules: FuseAttention | None = None) -> list[AttentionError]:
    """Fuses what can be fused; why the other candidates stay as they are."""
    rules = rules or FuseAttention()
    refused: dict[Chain, AttentionError] = {}
    regions: dict[int, list[ir.Operation]] = {}
    for op in operations(fn.regions[0].blocks[0]):
        if REGION in op.attributes:
            regions.setdefault(integer(op.attributes[REGION]), []).append(op)
    given, todo, made = set(regions), list(reversed(regions)), dict[int, None]()
    while todo:
        last = todo.pop()
        while last in regions and (chain := next((c for c in candidates(regions, last) if c not in refused), None)):
            taken = [op for number in chain for op in _of_chain(regions, chain, number)]
            left = {number: [op for op in regions[number] if op not in taken] for number in chain}
            try:
                fused = _Trial(fn, taken).fuse(rules, last)
            except AttentionError as refusal:
                refused[chain] = refusal
                continue
            for number, ops in left.items():
                del regions[number]
                if ops:
                    regions[number] = ops
            regions[last] = fused
            made[last] = None
    for number in made if rules.lookups else ():
        with_lookups(fn, regions[number])
    if regions.keys() != given:
        erase_unused(fn)
    renumber_regions(fn.regions[0].blocks[0])
    return list(refused.values())


def candidates(regions: Mapping[int, list[ir.Operation]], last: int) -> list[Chain]:
    """Numbers of a region with a contraction, perhaps an elementwise one that reads it, one with reductions that reads that, and
    `last`, a region with a contraction that reads the reductions."""
    found: dict[Chain, None] = {}
    for middle in _sources(regions[last]) if _products(regions[last]) else ():
        if _products(regions[middle]) or not _reduces(regions[middle]):
            continue
        for first in _sources(regions[middle]):
            if _elementwise(regions[first]):
                found |= {(scores, first, middle, last): None for scores in _sources(regions[first])
                          if len(_products(regions[scores])) == 1 and scores != last}
            elif len(_products(regions[first])) == 1 and first != last:
                found[first, middle, last] = None
    return list(found)


def _of_chain(regions: Mapping[int, list[ir.Operation]], chain: Chain, number: int) -> list[ir.Operation]:
    """The operations of a region that the attention takes: of an elementwise one those that the scores reach, not the ones that
    make a mask, which others may read; of that of the scores all but those in front of them that others do read."""
    if number == chain[0]:
        shared = _read_elsewhere(regions, chain)
        return [op for op in regions[number] if op not in shared]
    if len(chain) == 3 or number != chain[1]:
        return regions[number]
    reached = set(regions[chain[0]])
    for op in regions[number]:
        if any(owner(_behind(v)) in reached for v in op.operands):
            reached.add(op)
    return [op for op in regions[number] if op in reached]


def _read_elsewhere(regions: Mapping[int, list[ir.Operation]], chain: Chain) -> set[ir.Operation]:
    """Operations of the region of the scores that do not read these and that others than the chain's read, such as a mask that
    the next layer has too, with all of the region that they read."""
    inside, scores = {op for number in chain for op in regions[number]}, regions[chain[0]]
    reached = set(_products(scores))
    for op in scores:
        if any(owner(_behind(v)) in reached for v in op.operands):
            reached.add(op)
    found: set[ir.Operation] = set()
    for op in reversed(scores):
        readers = {reader for result in op.results for reader in _readers(result)}
        if op not in reached and (readers - inside or readers & found):
            found.add(op)
    return found


def _readers(value: ir.Value) -> list[ir.Operation]:
    """What reads a value, through reshapes and casts."""
    found: list[ir.Operation] = []
    for user in users(value):
        through = user.name in (*RESHAPES, "tensor.cast") and REGION not in user.attributes
        found += _readers(user.results[0]) if through else [user]
    return found


def _elementwise(ops: list[ir.Operation]) -> bool:
    return all(op.name == "linalg.generic" and "reduction" not in iterator_kinds(op) for op in ops)


def _products(ops: list[ir.Operation]) -> list[ir.Operation]:
    return [op for op in ops if sums_products(op)]


def _reduces(ops: list[ir.Operation]) -> bool:
    return len([op for op in ops if op.name == "linalg.generic" and "reduction" in iterator_kinds(op)]) >= 2


def _sources(ops: list[ir.Operation]) -> list[int]:
    """Numbers of the regions that these operations of one region read, through views."""
    found: dict[int, None] = {}
    for op in ops:
        for value in op.operands:
            source = owner(_behind(value))
            if source is not None and REGION in source.attributes and source.attributes[REGION] != op.attributes[REGION]:
                found[integer(source.attributes[REGION])] = None
    return list(found)


def _behind(value: ir.Value) -> ir.Value:
    """A value behind reshapes and casts."""
    while (op := owner(value)) is not None and op.name in (*RESHAPES, "tensor.cast") and REGION not in op.attributes:
        value = op.operands[0]
    return value


def _between(members: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The views through which members read each other."""
    inside, found = set(members), []
    for op in members:
        for value in op.operands:
            chain: list[ir.Operation] = []
            end = _behind(value)
            while value != end and (link := owner(value)) is not None:
                chain.append(link)
                value = link.operands[0]
            if owner(end) in inside:
                found += chain
    return found


class _Trial:
    """Copies of the members of some regions, and of the views between them, that their readers read in their place."""

    def __init__(self, fn: ir.Operation, members: Sequence[ir.Operation]) -> None:
        self.fn, self.originals = fn, sorted({*members, *_between(members)}, key=cmp_to_key(_compared))
        self.members: list[ir.Operation] = []
        copies: dict[ir.Value, ir.Value] = {}
        for op in self.originals:
            with ir.InsertionPoint(op):
                made = clone(op, lambda v: copies.get(v, v))
            copies.update(zip(op.results, made.results, strict=True))
            if REGION in op.attributes:
                self.members.append(made)
        inside = set(self.originals)
        self.readers = [(use.owner.operation, use.operand_number, value) for value in copies for use in value.uses
                        if enclosing(use.owner.operation, op.block) not in inside]
        for reader, number, value in self.readers:
            reader.operands[number] = copies[value]

    def fuse(self, rules: FuseAttention, number: int) -> list[ir.Operation]:
        """The members as region `number`, the originals erased; AttentionError says which rule forbids it, and all is as
        before."""
        try:
            until_stable(rules.name, self._align, sum(map(_axes, self.members)))
            self._check(rules)
        except AttentionError:
            for reader, at, value in self.readers:
                reader.operands[at] = value
            _discard(self.members)
            raise
        _discard(self.originals)
        for op in self.members:
            op.attributes[REGION] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        return self.members

    def _check(self, rules: FuseAttention) -> None:
        shapes, ops, inside = SymbolicShapes(self.fn), self.members, set(self.members)
        found = Attention.of(ops, shapes)
        rules.check(found)
        outputs = [r for op in ops for r in op.results if any(u not in inside for u in users(r))]
        mixed = found.mixed.op
        try:
            place(shapes, mixed.results[0], ops[ops.index(mixed) + 1 :], outputs)
        except ValueError as error:
            raise AttentionError("only-inside", str(error)) from error

    def _align(self) -> bool:
        """Moves one reshape between members out of the region; False when there is none."""
        views = Reshaper(self.fn)
        for reader in self.members:
            for number, value in enumerate(reader.operands):
                source = owner(_behind(value))
                if source is None or source not in self.members or _behind(value) == value:
                    continue
                if views.shapes.dims(_behind(value)) != views.shapes.dims(value):
                    self._move(reader, number, source, views)
                    return True
                reader.operands[number] = _behind(value)
                if not users(value):
                    erase_with_sources([value.owner.operation], REGION)
                return True
        return False

    def _move(self, reader: ir.Operation, number: int, source: ir.Operation, views: Reshaper) -> None:
        """Splits a loop of the reader below a collapse, or of the source above an expansion, or leaves out loops of one step on
        the other side; several reshapes that are as good as one become one first."""
        value = reader.operands[number]
        op = owner(uncast(value))
        assert op is not None
        if uncast(op.operands[0]) != _behind(value) and views.steps(_behind(value), views.shapes.dims(value)) == 1:
            with ir.InsertionPoint(reader), reader.location:
                reader.operands[number] = views.reshape(_behind(value), views.shapes.dims(value))
            if not users(value):
                erase_with_sources([value.owner.operation], REGION)
            return
        expands = op.name == "tensor.expand_shape"
        target = source if expands else reader
        if (expands and _behind(op.operands[0]) != uncast(op.operands[0])) or not target.name.startswith("linalg."):
            raise AttentionError("views-move-out", f"{op.name} at {op.location} is one of several reshapes")
        if _only_units(op, views):  # never made by a split, so that an end is reached
            wider = reader if expands else source
            folded = fold_unit_loops(wider, views) if wider.name.startswith("linalg.") else None
            if folded is None:
                raise AttentionError("views-move-out", f"{op.name} at {op.location}: {wider.name} keeps its axis of extent 1")
            self._replace(wider, folded)
            return
        maps = maps_of(target)
        access = maps[len(target.operands) - len(target.results)] if expands else maps[number]
        fine = views.shapes.dims(op.results[0] if expands else op.operands[0])
        for axis, group in enumerate(reassociation(op)):
            loop = position(access.results[axis])
            if len(group) == 1:
                continue
            if loop is None or not can_split(target, loop) or len(target.results) != 1:
                raise AttentionError("views-move-out",
                                     f"{op.name} at {op.location}: {target.name} has no loop along its axis {axis}")
            self._replace(target, split_loop(target, loop, [fine[a] for a in group], views))
            return
        raise AttentionError("views-move-out", f"{op.name} at {op.location} has no group of axes")

    def _replace(self, member: ir.Operation, made: ir.Operation) -> None:
        made.attributes[REGION] = member.attributes[REGION]
        self.members[self.members.index(member)] = made
        erase_with_sources([member], REGION)


def _only_units(op: ir.Operation, views: Reshaper) -> bool:
    """Does a reshape add or drop axes of extent 1 only?"""
    dims = [[d for d in views.shapes.dims(v) if d != Expr.of(1)] for v in (op.operands[0], op.results[0])]
    return dims[0] == dims[1]


def _axes(op: ir.Operation) -> int:
    """Axes of its operands and results: more than there are reshapes to move."""
    types = [v.type for v in (*op.operands, *op.results)]
    return sum(ir.RankedTensorType(t).rank + 1 for t in types if isinstance(t, ir.RankedTensorType))


def _discard(ops: Sequence[ir.Operation]) -> None:
    """Erases operations, what reads them, and what only they needed."""
    doomed, todo = set(ops), list(ops)
    while todo:
        readers = {u for r in todo.pop().results for u in users(r)} - doomed
        doomed |= readers
        todo += readers
    erase_with_sources(sorted(doomed, key=cmp_to_key(_compared), reverse=True), REGION)


def _compared(a: ir.Operation, b: ir.Operation) -> int:
    """By their order in the block."""
    return 0 if a == b else -1 if a.is_before_in_block(b) else 1
