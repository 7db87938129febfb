"""Row reductions: which bodies are associative, their neutral elements, and how partial results join.

A reduction body must be `combine(f(inputs), accumulator)` for each result, with one associative `combine`. Then f is
computed per lane, several accumulators run side by side, and the lanes join in a tree of fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.parts import neutral
from tilewright.passes.analysis.row_program import row_joins
from tilewright.passes.codegen.emit import constant, element_type, lanes_of, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.lowering.expand_math import NAN_ELSEWHERE
from tilewright.passes.mlir import arith, ir, owner, vector


@dataclass(frozen=True)
class Combiner:
    """How one result of a reduction joins values. `number` is the accumulator's operand of the op, `side` the operand of
    the combining op that is the new value. `type` is the accumulator's element type in IR, `wide` the one computed in:
    f32 for f16 and bf16. nan_elsewhere: of a maximum or minimum (passes/lowering/expand_math.py)."""

    name: str
    number: int
    side: int
    type: ir.Type
    wide: ir.Type
    nan_elsewhere: bool = False

    def neutral(self, lanes: int = 1) -> ir.Value:
        """The value that changes nothing when combined."""
        return constant(self.wide, neutral(self.name, self.wide), lanes)

    def start(self, lanes: int = 1) -> ir.Value:
        """What a reduction of its own begins with: as `neutral`, but 0 for a sum, as in models, so that it is never -0."""
        return constant(self.wide, 0.0, lanes) if self.name == "arith.addf" else self.neutral(lanes)

    def __call__(self, value: ir.Value, accumulator: ir.Value) -> ir.Value:
        """Joins two values of the wide type. Sums may contract with a product that feeds them."""
        flags = {"fastmath": _contract()} if self.name == "arith.addf" else {}
        if self.nan_elsewhere:
            flags[NAN_ELSEWHERE] = ir.UnitAttr.get()
        return ir.Operation.create(self.name, [accumulator.type], [value, accumulator], flags).results[0]

    def widen(self, value: ir.Value) -> ir.Value:
        if element_type(value.type) == self.wide:
            return value
        return arith.extf(vector_type(self.wide, lanes_of(value)), value)

    def narrow(self, value: ir.Value) -> ir.Value:
        if self.type == self.wide:
            return value
        return arith.truncf(vector_type(self.type, lanes_of(value)), value)

    def join(self, values: Sequence[ir.Value]) -> ir.Value:
        """One value from several, neighbours first."""
        left = list(values)
        while len(left) > 1:
            pairs = [self(b, a) for a, b in zip(left[::2], left[1::2], strict=False)]
            left = pairs + left[len(left) & ~1 :]
        return left[0]

    def across(self, value: ir.Value) -> ir.Value:
        """The lanes of a vector as one scalar: halves join until one lane is left."""
        lanes = lanes_of(value)
        while lanes > 1:
            lanes //= 2
            half = vector_type(self.wide, lanes) if lanes > 1 else ir.VectorType.get([1], self.wide)
            low = vector.shuffle(value, value, list(range(lanes)))
            high = vector.shuffle(value, value, list(range(lanes, 2 * lanes)))
            assert low.type == half
            value = self(high, low)
        if isinstance(value.type, ir.VectorType):
            return vector.extract(value, [], [0])
        return value


def combiners(op: ir.Operation) -> list[Combiner]:
    """One per result. ValueError when a body is not one associative operation on its own accumulator."""
    found = []
    for join in row_joins(op):
        t = op.regions[0].blocks[0].arguments[join.number].type
        narrow = isinstance(t, ir.FloatType) and t.width < 32
        wide = ir.F32Type.get() if narrow else t
        found.append(Combiner(join.op.name, join.number, join.side, t, wide, NAN_ELSEWHERE in join.op.attributes))
    return found


def values_of(ev: Evaluator, op: ir.Operation, joins: Sequence[Combiner], loops: Sequence[Index], lanes: int,
              mask: ir.Value | None) -> list[ir.Value]:
    """What the body of `op` hands to each combiner at these loop coordinates, widened, `lanes` wide."""
    unused = {c.number: constant(c.type, 0, lanes) for c in joins}
    done = ev.region(op, loops, unused, mask)
    found = []
    for c, result in zip(joins, done, strict=True):
        combining = owner(result)
        assert combining is not None and combining.name == c.name
        value = combining.operands[c.side]
        combining.erase()
        if c.name == "arith.addf":
            _allow_contraction(value)
        found.append(splat_to(c.widen(value), lanes))
    return found


def _contract() -> ir.Attribute:
    return ir.Attribute.parse("#arith.fastmath<contract>")


def _allow_contraction(value: ir.Value) -> None:
    """A product made for this sum may fuse with it."""
    op = owner(value)
    if op is not None and op.name == "arith.mulf":
        op.attributes["fastmath"] = _contract()


def pick(mask: ir.Value | None, new: ir.Value, old: ir.Value) -> ir.Value:
    """`new` in the lanes of the mask, `old` elsewhere."""
    return new if mask is None else arith.select(mask, new, old)


