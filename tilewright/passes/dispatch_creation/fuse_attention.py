"""fuse-attention: the regions of scores, softmax and mixing become one region, so that no T x T tensor exists.

Runs between fuse and outline, on `tw.region`. A trial works on a copy of the function: reshapes between the three regions are
moved out of them first, by splitting the loops of their operations, and a refusal leaves the function as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.attention import Attention, AttentionError
from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.analysis.placement import place
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.fuse import REGION, renumber_regions
from tilewright.passes.linalg.clone import users
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.split_loop import can_split, split_loop
from tilewright.passes.linalg.structured import erase_unused, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, reassociation
from tilewright.passes.mlir import functions, ir, maps_of, operations, owner, position
from tilewright.runtime.errors import OptionError

Triple = tuple[int, int, int]
_TYPES = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Rules: those of passes/analysis/attention.py; "only-inside", no value between the first and the last contraction is read
    elsewhere; "views-move-out", reshapes in between can be moved out; "operands", both contractions multiply elements of one of
    the types in `operands`, as in "f16,bf16" (any where it is empty); "head-size", queries are at most `depth` and values at
    most `columns` long (any where it is 0)."""

    name: ClassVar[str] = "fuse-attention"
    operands: str = ""
    depth: int = 0
    columns: int = 0

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
    """Fuses what can be fused, replacing the function; why the other candidates stay as they are."""
    rules = rules or FuseAttention()
    refused: dict[Triple, AttentionError] = {}
    while (triple := next((t for t in candidates(fn) if t not in refused), None)) is not None:
        trial = fn.clone(ip=ir.InsertionPoint(fn)).operation
        try:
            _fuse(trial, triple, rules)
        except AttentionError as refusal:
            refused[triple] = refusal
            trial.erase()
            continue
        fn.erase()
        fn = trial
    renumber_regions(fn.regions[0].blocks[0])
    return list(refused.values())


def candidates(fn: ir.Operation) -> list[Triple]:
    """Numbers of a region with a contraction, one with reductions that reads it, and one with a contraction that reads
    that."""
    ops: dict[int, list[ir.Operation]] = {}
    for op in operations(fn.regions[0].blocks[0]):
        if REGION in op.attributes:
            ops.setdefault(integer(op.attributes[REGION]), []).append(op)
    found: dict[Triple, None] = {}
    for last in ops:
        for middle in _sources(ops[last]):
            if not _products(ops[last]) or _products(ops[middle]) or not _reduces(ops[middle]):
                continue
            for first in _sources(ops[middle]):
                if len(_products(ops[first])) == 1 and first != last:
                    found[first, middle, last] = None
    return list(found)


def _products(ops: list[ir.Operation]) -> list[ir.Operation]:
    return [op for op in ops if sums_products(op)]


def _reduces(ops: list[ir.Operation]) -> bool:
    return len([op for op in ops if op.name == "linalg.generic" and "reduction" in iterator_kinds(op)]) >= 2


def _sources(ops: list[ir.Operation]) -> list[int]:
    """Numbers of the regions that these operations read, through views."""
    found: dict[int, None] = {}
    for op in ops:
        for value in op.operands:
            source = owner(_behind(value))
            if source is not None and REGION in source.attributes and source not in ops:
                found[integer(source.attributes[REGION])] = None
    return list(found)


def _behind(value: ir.Value) -> ir.Value:
    """A value behind reshapes and casts."""
    while (op := owner(value)) is not None and op.name in (*RESHAPES, "tensor.cast") and REGION not in op.attributes:
        value = op.operands[0]
    return value


def _fuse(fn: ir.Operation, triple: Triple, rules: FuseAttention) -> None:
    """One region in place of three; AttentionError says which rule forbids it."""
    while _align(fn, triple):
        erase_unused(fn)
    shapes = SymbolicShapes(fn)
    ops = _members(fn, triple)
    found = Attention.of(ops, shapes)
    rules.check(found)
    outputs = [r for op in ops for r in op.results if any(u not in ops for u in users(r))]
    mixed = found.mixed.op
    try:
        place(shapes, mixed.results[0], ops[ops.index(mixed) + 1 :], outputs)
    except ValueError as error:
        raise AttentionError("only-inside", str(error)) from error
    for op in ops:
        op.attributes[REGION] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), triple[0])


def _members(fn: ir.Operation, triple: Triple) -> list[ir.Operation]:
    return [op for op in operations(fn.regions[0].blocks[0])
            if REGION in op.attributes and integer(op.attributes[REGION]) in triple]


def _align(fn: ir.Operation, triple: Triple) -> bool:
    """Moves one reshape between members out of the region; False when there is none."""
    members = _members(fn, triple)
    views = Reshaper(fn)
    for reader in members:
        for number, value in enumerate(reader.operands):
            source = owner(_behind(value))
            if source is None or source not in members or _behind(value) == value:
                continue
            if views.shapes.dims(_behind(value)) != views.shapes.dims(value):
                return _move(reader, number, source, views)
            reader.operands[number] = _behind(value)
            return True
    return False


def _move(reader: ir.Operation, number: int, source: ir.Operation, views: Reshaper) -> bool:
    """Splits a loop of the reader below a collapse, or of the source above an expansion."""
    op = owner(uncast(reader.operands[number]))
    assert op is not None
    expands = op.name == "tensor.expand_shape"
    target = source if expands else reader
    if (expands and _behind(op.operands[0]) != uncast(op.operands[0])) or not target.name.startswith("linalg."):
        raise AttentionError("views-move-out", f"{op.name} at {op.location} is one of several reshapes")
    maps = maps_of(target)
    access = maps[len(target.operands) - len(target.results)] if expands else maps[number]
    fine = views.shapes.dims(op.results[0] if expands else op.operands[0])
    for axis, group in enumerate(reassociation(op)):
        loop = position(access.results[axis])
        if len(group) == 1:
            continue
        if loop is None or not can_split(target, loop) or len(target.results) != 1:
            raise AttentionError("views-move-out", f"{op.name} at {op.location}: {target.name} has no loop along its axis {axis}")
        made = split_loop(target, loop, [fine[a] for a in group], views)
        made.attributes[REGION] = target.attributes[REGION]
        target.erase()
        return True
    raise AttentionError("views-move-out", f"{op.name} at {op.location} has no group of axes")
