"""Attention: a region seen as softmax(f(Q K^T)) V, with named rules that say why another region is none.

The scores are a contraction, f is elementwise (scale, masks, comparisons of linalg.index), the softmax runs along the loop
over keys and the weights meet V in a second contraction that sums over that loop. The passes that fuse and the family that
emits ask the same analysis, so what is fused is what can be emitted. Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import LHS, OUT, RHS, Contraction, product_of, sums_products, used_loops
from tilewright.passes.linalg.structured import FLOAT_CASTS, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

Place = tuple[int, ...]
_LOWEST = -3.4e38  # any start of a maximum below this is as good as -inf
_MAXIMA = ("arith.maximumf", "arith.maxnumf")
MAX_COLUMNS = 512  # value columns, whose sums are unrolled


class AttentionError(ValueError):
    """rule: the name of the rule that the region breaks."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule


@dataclass(frozen=True)
class Attention:
    """Loops are those of `scores` unless said otherwise.

    query, weights: which operand of `scores` is Q, which of `mixed` holds the weights. key: the loop over keys. logits: the
    tensor that goes into the softmax, `place` the loop of each of its axes. loops: for each loop of `mixed` the loop of
    `scores` that it runs with, None for the value columns, which are its loop `column`. rows: parallel loops that neither K
    nor V depend on; shared: the other parallel ones without the keys.
    """

    scores: Contraction
    mixed: Contraction
    query: int
    weights: int
    key: int
    logits: ir.Value
    place: Place
    loops: tuple[int | None, ...]
    column: int
    rows: tuple[int, ...]
    shared: tuple[int, ...]

    @staticmethod
    def of(ops: Sequence[ir.Operation], shapes: SymbolicShapes) -> Attention:
        """AttentionError names the rule that the region breaks."""
        return _Match(ops, shapes).found()

    @property
    def keys(self) -> Expr:
        return self.scores.extents[self.key]

    @property
    def columns(self) -> int:
        """Value columns."""
        found = self.mixed.extents[self.column].constant
        assert found is not None
        return found

    @property
    def row_count(self) -> Expr:
        return self.scores.size(self.rows)

    def cut(self, loops: Mapping[str, Sequence[int]]) -> dict[ir.Value, dict[str, tuple[int, ...]]]:
        """The mixed values, with their axes that run along loops of the scores, by name of the loops."""
        return self.mixed.cut({name: [self.loops.index(d) for d in found] for name, found in loops.items()})

    def roles(self) -> list[tuple[str, Expr]]:
        """Role and extent of each loop of the scores, then of the value columns."""
        k = self.scores
        named = {**dict.fromkeys(self.shared, "b"), **dict.fromkeys(self.rows, "m"), **dict.fromkeys(k.k, "k"), self.key: "n"}
        return [*((named[d], e) for d, e in enumerate(k.extents)), ("e", self.mixed.extents[self.column])]


class _Match:
    def __init__(self, ops: Sequence[ir.Operation], shapes: SymbolicShapes) -> None:
        self.ops, self.members, self.shapes = list(ops), set(ops), shapes
        self.places: dict[ir.Value, Place] = {}

    def found(self) -> Attention:
        products = [op for op in self.ops if sums_products(op)]
        if len(products) != 2:
            raise AttentionError("two-products", f"the region has {len(products)} contractions, not the scores and the mixing")
        scores, mixed = (_contraction(op, self.shapes) for op in products)
        weights = next((w for w in (LHS, RHS) if self._depends(mixed.operand(w), products[0])), None)
        if weights is None or self._depends(mixed.operand(1 - weights), products[0]):
            raise AttentionError("one-chain", "the second contraction does not read the scores through one operand")
        logits, greatest, total = self._softmax(mixed.operand(weights))
        self._frame(scores)
        place = self._place(logits)
        key = self._key(scores, greatest, total)
        loops = self._loops(mixed, weights)
        column = self._column(mixed, loops, key)
        query = next((w for w in (LHS, RHS) if key not in scores.loops_of(w)), None)
        if query is None:
            raise AttentionError("keys-one-side", "both operands of the scores run along the keys")
        values = {loops[d] for d in mixed.loops_of(1 - weights)} - {None}
        outer = {d for d in scores.parallel if d != key}
        shared = {d for d in outer if d in scores.loops_of(1 - query) or d in values}
        self._types(scores, mixed)
        return Attention(scores, mixed, query, weights, key, logits, place, loops, column, tuple(sorted(outer - shared)),
                         tuple(sorted(shared)))

    # -- the softmax, scalar by scalar

    def _softmax(self, weights: ir.Value) -> tuple[ir.Value, ir.Operation, ir.Operation]:
        """The logits, and the reductions that give their maximum and the sum of exponentials."""
        share = self._scalar(weights, None)
        quotient = _defined(share, "arith.divf")
        if quotient is None:
            raise AttentionError("softmax", "the weights are no quotient of an exponential and its sum")
        total = self._reduction(self._through(quotient.operands[1], None), ("arith.addf",), 0.0)
        power = _defined(self._through(quotient.operands[0], None), "math.exp")
        less = _defined(self._through(power.operands[0], None), "arith.subf") if power is not None else None
        if less is None:
            raise AttentionError("softmax", "the weights are no exponential of logits less their maximum")
        greatest = self._reduction(self._through(less.operands[1], None), _MAXIMA, None)
        logits = uncast(greatest.operands[0])
        added = _added(total)
        if _added(greatest) != greatest.regions[0].blocks[0].arguments[0]:
            raise AttentionError("softmax", "the maximum is not taken of a stored value")
        if self._through(less.operands[0], logits) != logits:
            raise AttentionError("softmax", "the maximum is that of another value than it is subtracted from")
        if not self._same_exponential(self._through(added, logits), logits, greatest):
            raise AttentionError("softmax", "the sum is that of another value than it divides")
        return logits, greatest, total

    def _same_exponential(self, value: ir.Value, logits: ir.Value, greatest: ir.Operation) -> bool:
        power = _defined(value, "math.exp")
        less = _defined(self._through(power.operands[0], logits), "arith.subf") if power is not None else None
        return less is not None and self._through(less.operands[0], logits) == logits \
            and self._through(less.operands[1], logits) == greatest.results[0]

    def _scalar(self, tensor: ir.Value, stop: ir.Value | None) -> ir.Value:
        """What an element of a tensor is: the scalar that a member's body yields, or the tensor itself."""
        value = uncast(tensor)
        op = owner(value)
        if (stop is not None and value == stop) or op is None or op not in self.members or not _elementwise(op):
            return value
        return self._through(operations(op.regions[0].blocks[0])[-1].operands[list(op.results).index(value)], stop)

    def _through(self, value: ir.Value, stop: ir.Value | None) -> ir.Value:
        """A scalar behind conversions of floats and the bodies of members."""
        op = owner(value)
        while op is not None and op.name in FLOAT_CASTS:
            value = op.operands[0]
            op = owner(value)
        if op is not None or isinstance(value.type, ir.RankedTensorType):
            return value
        block = ir.BlockArgument(value).owner
        reader = block.owner.operation
        return self._scalar(reader.operands[ir.BlockArgument(value).arg_number], stop)

    def _reduction(self, value: ir.Value, names: Sequence[str], start: float | None) -> ir.Operation:
        """The member that reduces to `value` by one of the named operations, from `start` (None: from -inf)."""
        op = owner(value) if isinstance(value.type, ir.RankedTensorType) else None
        if op is None or op not in self.members or op.name != "linalg.generic" or len(op.operands) != 2:
            raise AttentionError("softmax", f"wanted a reduction by {names[0]} in the region")
        last = owner(operations(op.regions[0].blocks[0])[-1].operands[0])
        accumulator = op.regions[0].blocks[0].arguments[1]
        if last is None or last.name not in names or accumulator not in list(last.operands) \
                or len(list(accumulator.uses)) != 1 or iterator_kinds(op).count("reduction") != 1:
            raise AttentionError("softmax", f"{op.name} at {op.location} is no reduction by {names[0]} along one loop")
        number = _filled(op.operands[1])
        if number is None or (number > _LOWEST if start is None else number != start):
            raise AttentionError("softmax", f"{op.name} at {op.location} starts from another value")
        return op

    # -- one frame: the parallel loops of the scores

    def _frame(self, scores: Contraction) -> None:
        """Places of all values that follow from the scores and are no results of `mixed`; one place each."""
        at = [position(e) for e in scores.maps[OUT].results]
        if None in at:
            raise AttentionError("one-frame", "the scores have an axis that no loop runs along")
        self.places[scores.op.results[0]] = tuple(d for d in at if d is not None)
        for op in self.ops:
            if op == scores.op or not any(uncast(v) in self.places for v in op.operands):
                continue
            if op.name == "tensor.cast" or product_of(op) is not None:
                continue
            if op.name != "linalg.generic":
                raise AttentionError("one-frame", f"{op.name} at {op.location} moves the scores")
            bound = self._bind(op)
            for result, m in zip(op.results, maps_of(op)[len(op.operands) - len(op.results) :], strict=True):
                axes = [bound.get(d) if (d := position(e)) is not None else None for e in m.results]
                if None in axes:
                    raise AttentionError("one-frame", f"{op.name} at {op.location} has a loop that the scores have not")
                self.places[result] = tuple(a for a in axes if a is not None)

    def _bind(self, op: ir.Operation) -> dict[int, int]:
        """The frame axis of each loop of `op`, from the places of what it reads."""
        bound: dict[int, int] = {}
        for value, m in zip(op.operands, maps_of(op), strict=True):
            for axis, e in zip(self.places.get(uncast(value), ()), m.results, strict=False):
                loop = position(e)
                if loop is None or bound.setdefault(loop, axis) != axis:
                    raise AttentionError("one-frame", f"{op.name} at {op.location} reads the scores at other places")
        if len(set(bound.values())) != len(bound):
            raise AttentionError("one-frame", f"{op.name} at {op.location} reads the scores along a diagonal")
        return bound

    def _place(self, value: ir.Value) -> Place:
        if value not in self.places:
            raise AttentionError("one-frame", "the logits do not follow from the scores")
        return self.places[value]

    def _key(self, scores: Contraction, *reductions: ir.Operation) -> int:
        found = {self._bind(op).get(iterator_kinds(op).index("reduction")) for op in reductions}
        key = found.pop()
        if found or key is None or key not in scores.parallel:
            raise AttentionError("softmax", "maximum and sum run along different loops")
        return key

    def _loops(self, mixed: Contraction, weights: int) -> tuple[int | None, ...]:
        bound = self._bind(mixed.op)
        if any(d not in bound for d in mixed.loops_of(weights)):
            raise AttentionError("one-frame", "the weights are read at computed places")
        return tuple(bound.get(d) for d in range(len(mixed.extents)))

    def _column(self, mixed: Contraction, loops: Sequence[int | None], key: int) -> int:
        free = [d for d, axis in enumerate(loops) if axis is None]
        if [loops[d] for d in mixed.k] != [key]:
            raise AttentionError("sum-over-keys", "the second contraction does not sum over the keys alone")
        if len(free) != 1 or free[0] in mixed.k:
            raise AttentionError("one-column-loop", f"the values have {len(free)} loops of their own, wanted one")
        extent = mixed.extents[free[0]].constant
        if extent is None or not 0 < extent <= MAX_COLUMNS:
            raise AttentionError("static-columns", f"{mixed.extents[free[0]]} value columns, wanted 1 to {MAX_COLUMNS}")
        return free[0]

    def _types(self, scores: Contraction, mixed: Contraction) -> None:
        for view in (scores, mixed):
            if str(view.product.accumulator) != "f32":
                raise AttentionError("f32-sums", f"{view.op.name} at {view.op.location} sums in {view.product.accumulator}")
            if _filled(view.operand(OUT)) != 0.0:
                raise AttentionError("zero-start", f"{view.op.name} at {view.op.location} does not start from zero")

    def _depends(self, value: ir.Value, source: ir.Operation) -> bool:
        """Does the value follow from `source` through members?"""
        seen: set[ir.Operation] = set()
        todo = [value]
        while todo:
            op = owner(todo.pop())
            if op is None or op in seen or op not in self.members:
                continue
            if op == source:
                return True
            seen.add(op)
            todo += op.operands
        return False


def _contraction(op: ir.Operation, shapes: SymbolicShapes) -> Contraction:
    try:
        view = Contraction.of(op, shapes)
    except ValueError as error:
        raise AttentionError("two-products", str(error)) from error
    if any(position(e) is None for m in view.maps for e in m.results) or not view.k or used_loops(view.maps[OUT]) & set(view.k):
        raise AttentionError("plain-maps", f"{op.name} at {op.location} reads at computed coordinates")
    return view


def _elementwise(op: ir.Operation) -> bool:
    return op.name == "linalg.generic" and "reduction" not in iterator_kinds(op)


def _defined(value: ir.Value, name: str) -> ir.Operation | None:
    op = owner(value)
    return op if op is not None and op.name == name else None


def _added(reduction: ir.Operation) -> ir.Value:
    """What a reduction's body joins with its accumulator."""
    block = reduction.regions[0].blocks[0]
    last = owner(operations(block)[-1].operands[0])
    assert last is not None
    return next(v for v in last.operands if v != block.arguments[1])


def _filled(value: ir.Value) -> float | None:
    """The number that fills a tensor; 0 for one that nothing was written to."""
    op = owner(uncast(value))
    if op is None or op.name == "tensor.empty":
        return None if op is None else 0.0
    scalar = owner(op.operands[0]) if op.name == "linalg.fill" else op
    if scalar is None or scalar.name != "arith.constant":
        return None
    number = scalar.attributes["value"]
    if isinstance(number, ir.DenseElementsAttr):
        number = ir.DenseElementsAttr(number).get_splat_value() if ir.DenseElementsAttr(number).is_splat else number
    return float(ir.FloatAttr(number).value) if isinstance(number, ir.FloatAttr) else None
