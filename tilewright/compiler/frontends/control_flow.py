"""Branches and loops as they come -> one form: tensors alone are carried, and integers that count, which are dims.

A loop is an scf.while whose condition passes on just what it carries; a scalar is a tensor of rank 0, which the host reads where
a condition depends on it. `tw.counters` names the dim of each carried integer and `tw.largest` says how far it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.compiler.dims.loop_bounds import LOOPS, LoopCounter, counters_of
from tilewright.compiler.dims.op_location import where
from tilewright.passes.analysis.control_flow import LARGEST, STEPS
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.clone import clone, erase_dead
from tilewright.passes.linalg.symbolic import COUNTERS, RANGES, SymbolicShapes, read_ranges, write_ranges
from tilewright.passes.mlir import arith, ir, operations, owner, scf, tensor, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Dim, ShapeRange

_PURE = ("tensor.", "arith.", "linalg.", "affine.", "math.", "scf.if", "scf.while")


def has_control_flow(fn: ir.Operation) -> bool:
    """Does a function branch or loop outside of linalg's bodies?"""
    return any(op.name.startswith("scf.") for op in operations(fn.regions[0].blocks[0]))


def switches_to_ifs(fn: ir.Operation) -> None:
    """scf.index_switch as nested scf.if, in place."""
    for op in reversed(walk(fn)):  # inner ones first
        if op.name == "scf.index_switch":
            _switch_to_ifs(op)


def _switch_to_ifs(op: ir.Operation) -> None:
    default, *cases = op.regions
    values = list(ir.DenseI64ArrayAttr(op.attributes["cases"]))
    types = [r.type for r in op.results]

    def rest(number: int) -> list[ir.Value]:
        if number == len(values):
            return _inlined(default.blocks[0], {})
        same = arith.cmpi(arith.CmpIPredicate.eq, op.operands[0], arith.constant(ir.IndexType.get(), values[number]))
        made = scf.IfOp(same, types, has_else=True)
        with ir.InsertionPoint(made.then_block):
            scf.YieldOp(_inlined(cases[number].blocks[0], {}))
        with ir.InsertionPoint(made.else_block):
            scf.YieldOp(rest(number + 1))
        return list(made.results)

    with ir.InsertionPoint(op), op.location:
        found = rest(0)
    for old, new in zip(op.results, found, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _inlined(block: ir.Block, values: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """The block's operations once more, at the insertion point; what its terminator passes on."""
    known = dict(values)

    def value(v: ir.Value) -> ir.Value:
        return known.get(v, v)

    *body, last = operations(block)
    for op in body:
        known.update(zip(op.results, clone(op, value).results, strict=True))
    return [value(v) for v in last.operands]


def normalize_control_flow(fn: ir.Operation) -> None:
    """Bring all branches and loops of a function, whose dims are bound, into the one form.

    Raises:
        IngestError: what a loop carries or a branch gives changes its extents, or an extent depends on a counter without a bound.
    """
    _Normalizer(fn).block(fn.regions[0].blocks[0])
    erase_dead(fn.regions[0].blocks[0], _PURE)
    shapes = SymbolicShapes(fn)
    for op in walk(fn):
        if op.name == "scf.while":
            _check_carried(op, shapes)
        elif op.name == "scf.if":
            _check_branches(op, shapes)


@dataclass
class _Normalizer:
    """Rewrites outer loops first, as the first values of inner counters may count on theirs."""

    fn: ir.Operation
    counters: dict[str, LoopCounter] = field(default_factory=dict)

    def block(self, block: ir.Block) -> None:
        for op in operations(block):
            made = op
            if op.name == "scf.while":
                made = self._while(op)
            elif op.name == "scf.if":
                made = _if(op)
            if made.name in ("scf.while", "scf.if"):
                for region in made.regions:
                    for inner in region.blocks:
                        self.block(inner)

    def _while(self, op: ir.Operation) -> ir.Operation:
        taken = {*dict(read_ranges(self.fn)), *self.counters}
        free = (f"i{n}" for n in range(len(taken) + len(op.operands) + 1) if f"i{n}" not in taken)
        counters = {c.number: c for c in counters_of(op, self.fn, [next(free) for _ in op.operands])}
        for c in counters.values():
            if c.name in taken:
                raise IngestError(f"{LOOPS} at {where(op)} names {c.name!r}, which is a dim already; use another name")
            self.counters[c.name] = c
        known = dict(read_ranges(self.fn))
        known |= {c.name: Dim(c.lo, c.hi) for c in counters.values()}
        if known:
            self.fn.attributes[RANGES] = write_ranges(ShapeRange(tuple(known.items())))
        return _Rebuilt(op, counters).made


class _Rebuilt:
    """An scf.while in the one form, in place of `op`. counters: by the number of the carried value."""

    def __init__(self, op: ir.Operation, counters: Mapping[int, LoopCounter]) -> None:
        self.op, self.counters = op, counters
        self.before, self.after = (region.blocks[0] for region in op.regions)
        self.test = operations(self.before)[-1]
        self.kinds = [v.type for v in op.operands]
        passed = list(self.test.operands)[1:]
        arguments = list(self.before.arguments)
        self.passed = [arguments.index(v) if v in arguments else None for v in passed]  # numbers of carried values
        used = {n for n, r in zip(self.passed, op.results, strict=True) if n in counters and next(iter(r.uses), None) is not None}
        if None in self.passed:
            used |= {n for n in counters if n is not None}
        self.twins = sorted(n for n in used if n is not None)  # counters that somebody reads behind the loop, as data
        self.made = self._make()

    def _make(self) -> ir.Operation:
        op, counters = self.op, self.counters
        with ir.InsertionPoint(op), op.location:
            start = [_as_index(v) if n in counters else as_tensor(v) for n, v in enumerate(op.operands)]
            start += [as_tensor(op.operands[n]) for n in self.twins]
            types = [v.type for v in start]
            made = scf.WhileOp(types, start)
            before, after = made.before.blocks.append(*types), made.after.blocks.append(*types)
            with ir.InsertionPoint(before):
                condition = _inlined(self.before, self._carried(before.arguments))[0]
                scf.ConditionOp(condition, list(before.arguments))
            with ir.InsertionPoint(after):
                passed = self._passed(after.arguments)
                given = _inlined(self.after, dict(zip(self.after.arguments, passed, strict=True)))
                words = [_as_index(v) if n in counters else as_tensor(v) for n, v in enumerate(given)]
                scf.YieldOp([*words, *(as_tensor(given[n]) for n in self.twins)])
            found = self._passed(made.results, dict(zip(self.twins, list(made.results)[len(op.operands) :], strict=True)))
        for old, new in zip(op.results, found, strict=True):
            old.replace_all_uses_with(new)
        names = [counters[n].name if n in counters else "" for n, _ in enumerate(types)]
        largest = [str(counters[n].largest) if n in counters else "" for n, _ in enumerate(types)]
        steps = [str(counters[n].step) if n in counters else "" for n, _ in enumerate(types)]
        for attribute, texts in ((COUNTERS, names), (LARGEST, largest), (STEPS, steps)):
            made.operation.attributes[attribute] = ir.ArrayAttr.get([ir.StringAttr.get(t) for t in texts])
        op.erase()
        for block in (before, after):
            erase_dead(block, _PURE)
        return made.operation

    def _carried(self, values: Sequence[ir.Value], twins: Mapping[int, ir.Value] | None = None) -> dict[ir.Value, ir.Value]:
        """The old arguments of the condition's block, from the new ones."""
        known = {}
        for n, (old, kind) in enumerate(zip(self.before.arguments, self.kinds, strict=True)):
            new = (twins or {}).get(n, values[n])
            known[old] = _from_index(new, kind) if isinstance(new.type, ir.IndexType) else _from_tensor(new, kind)
        return known

    def _passed(self, values: Sequence[ir.Value], twins: Mapping[int, ir.Value] | None = None) -> list[ir.Value]:
        """What the condition passes on, from the new arguments; computed again where it is no carried value."""
        known = self._carried(values, twins)
        if None not in self.passed:
            return [known[self.before.arguments[n]] for n in self.passed if n is not None]
        return _inlined(self.before, known)[1:]


def _if(op: ir.Operation) -> ir.Operation:
    """An scf.if that gives tensors alone, in place of `op`."""
    if all(isinstance(r.type, ir.RankedTensorType) for r in op.results):
        return op
    blocks = [region.blocks[0] for region in op.regions]
    sides: list[list[ir.Value]] = []
    with ir.InsertionPoint(op), op.location:
        types = [r.type if isinstance(r.type, ir.RankedTensorType) else ir.RankedTensorType.get([], _stored(r.type))
                 for r in op.results]
        made = scf.IfOp(op.operands[0], types, has_else=True)
        for block, new in zip(blocks, (made.then_block, made.else_block), strict=True):
            with ir.InsertionPoint(new):
                sides.append(_inlined(block, {}))
                scf.YieldOp([as_tensor(v) for v in sides[-1]])
        found = [_from_tensor(new, old.type) for new, old in zip(made.results, op.results, strict=True)]
    for old, new in zip(op.results, found, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
    return made.operation


def as_tensor(value: ir.Value) -> ir.Value:
    """A scalar as a tensor of rank 0; a tensor as it is."""
    if isinstance(value.type, ir.RankedTensorType):
        return value
    kind = _stored(value.type)
    source = owner(value)
    if source is not None and source.name == "tensor.extract" and len(source.operands) == 1:
        return source.operands[0]
    word = arith.index_cast(kind, value) if isinstance(value.type, ir.IndexType) else value
    return elementwise([], tensor.EmptyOp([], kind).result, lambda _: word)


def _stored(kind: ir.Type) -> ir.Type:
    """The element type that holds a scalar."""
    return ir.IntegerType.get_signless(64) if isinstance(kind, ir.IndexType) else kind


def _from_tensor(value: ir.Value, kind: ir.Type) -> ir.Value:
    if value.type == kind:
        return value
    word = tensor.ExtractOp(value, []).result
    return word if word.type == kind else arith.index_cast(kind, word)


def _as_index(value: ir.Value) -> ir.Value:
    return value if isinstance(value.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), value)


def _from_index(value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type == kind else arith.index_cast(kind, value)


def _check_carried(op: ir.Operation, shapes: SymbolicShapes) -> None:
    for number, (first, again) in enumerate(zip(op.operands, operations(op.regions[1].blocks[0])[-1].operands, strict=True)):
        if isinstance(first.type, ir.RankedTensorType):
            was, becomes = _dims(first, shapes, op), _dims(again, shapes, op)
            if was != becomes:
                raise IngestError(
                    f"{op.name} at {where(op)}: carried value {number} begins with extents {_shown(was)} and goes on with "
                    f"{_shown(becomes)}: wanted the same each time around; carry a tensor of the largest extents and slice it")


def _check_branches(op: ir.Operation, shapes: SymbolicShapes) -> None:
    if not len(op.results):
        return
    sides = [operations(region.blocks[0])[-1].operands for region in op.regions]
    for number, (then, otherwise) in enumerate(zip(*sides, strict=True)):
        a, b = _dims(then, shapes, op), _dims(otherwise, shapes, op)
        if a != b:
            raise IngestError(f"{op.name} at {where(op)}: result {number} has extents {_shown(a)} in one branch and {_shown(b)} "
                              "in the other: wanted the same; give both the larger extents, and the length as another result")


def _dims(value: ir.Value, shapes: SymbolicShapes, op: ir.Operation) -> tuple[object, ...]:
    try:
        return shapes.dims(value)
    except ValueError as error:
        raise IngestError(f"{op.name} at {where(op)} carries or gives a tensor whose shape does not follow from the arguments: "
                          f"{error}. Such extents are not compiled: use the largest, and carry the length as a number") from error


def _shown(dims: Sequence[object]) -> str:
    return f"[{', '.join(map(str, dims))}]"

