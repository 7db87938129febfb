"""Carried tensors that go on element by element as one running reduction over the steps, whose body is all that they go through.

    out[t, ..] = for s up to t:  state = s == 0 ? start[..] : state;  state = body(what is read at s, state)

(passes/analysis/gates.py says what a running reduction is.) Where only the last state counts there is no axis of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.passes.analysis.counted_loop import KeptLoopError
from tilewright.passes.analysis.op_kinds import arithmetic, expensive
from tilewright.passes.linalg.builders import generic, i64, renumber
from tilewright.passes.linalg.clone import captured_inside, clone
from tilewright.passes.linalg.stacked import Stacked
from tilewright.passes.linalg.structured import body, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import affine, arith, ir, linalg, maps_of, operations, owner, position
from tilewright.passes.transforms.stack_steps import StackSteps
from tilewright.runtime.shape import Expr

Coords = tuple[ir.AffineExpr, ...]
_LESS_OR_EQUAL, _EQUAL = 3, 0  # of arith.cmpi's predicates


@dataclass(frozen=True)
class Recurrence:
    """states: arguments of the body. starts: what they hold at first; following: what they go on with, values of the body."""

    steps: StackSteps
    states: tuple[ir.Value, ...]
    starts: tuple[ir.Value, ...]
    following: tuple[ir.Value, ...]
    depends: Mapping[ir.Value, frozenset[ir.Value]]  # value of the body -> the carried tensors that it is computed from

    def all_steps(self, before: Sequence[ir.Value]) -> tuple[list[Stacked], list[Stacked]]:
        """The states after each step, and those of `before` in front of it."""
        walk = _Walk(self, gated=True)
        made = walk.build([self.states.index(v) for v in before])
        return [Stacked(v, 0) for v in made[:len(self.states)]], [Stacked(v, 0) for v in made[len(self.states):]]

    def last(self) -> list[ir.Value]:
        """The states after the last step."""
        return _Walk(self, gated=False).build([])

    @property
    def dims(self) -> list[Expr]:
        """The extents that all states have."""
        dims = [self.steps.dims(v) for v in self.states]
        if any(d != dims[0] for d in dims[1:]):
            raise KeptLoopError("states: carried tensors that need each other have different extents")
        return dims[0]


@dataclass
class _Walk:
    """Builds the reduction. Loops: that of the results' steps where there are any (gated), the axes, that over the steps."""

    found: Recurrence
    gated: bool
    leaves: dict[tuple[ir.Value, ir.AffineMap], int] = field(default_factory=dict)
    values: dict[tuple[ir.Value, Coords], ir.Value] = field(default_factory=dict)
    scalars: dict[ir.Value, ir.Value | tuple[Expr, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank = len(self.found.dims)
        self.first = int(self.gated)
        self.over = self.first + self.rank
        self.here: Coords = tuple(ir.AffineExpr.get_dim(self.first + a) for a in range(self.rank))

    def build(self, before: Sequence[int]) -> list[ir.Value]:
        """The states, then those of these numbers before each step."""
        found, tensors = self.found, self.found.steps.tensors
        for value in found.following:
            self._read(value, self.here, set())
        if self.gated:
            for value in found.starts:
                self._leaf(Stacked(value), self.here)
        elements = [ir.RankedTensorType(v.type).element_type for v in (*found.starts, *(found.starts[n] for n in before))]
        count = found.steps.loop.count
        if not any(position(e) == self.over for _, m in self.leaves for e in m.results):  # something has to tell how many steps
            self._leaf(Stacked(tensors.empty([count], ir.IntegerType.get_signless(8)), 0), ())
        if self.gated:
            outs = [linalg.fill(_zero(e), outs=[found.steps.empty([count, *found.dims], e)]) for e in elements]
        else:
            outs = list(found.starts)
        loops = self.over + 1
        result = ir.AffineMap.get(loops, 0, [ir.AffineExpr.get_dim(d) for d in range(self.over)])
        kinds = ["parallel"] * self.over + ["reduction"]
        made = generic([v for v, _ in self.leaves], outs, [*(m for _, m in self.leaves), *[result] * len(outs)], kinds,
                       [v.type for v in outs])
        block = ir.Block.create_at_start(made.regions[0], [ir.RankedTensorType(v.type).element_type for v in made.operands])
        with ir.InsertionPoint(block):
            self._body(block, before)
        return list(made.results)

    def _body(self, block: ir.Block, before: Sequence[int]) -> None:
        found, arguments = self.found, list(block.arguments)
        old = arguments[len(self.leaves):]
        states = list(old[:len(found.states)])
        for key, number in self.leaves.items():
            self.values[key] = arguments[number]
        self.counted = {v: found.steps.counted(s, self.over, v.type) if isinstance(s, tuple) else s
                        for v, s in self.scalars.items()}
        if self.gated:
            step, along = (linalg.IndexOp(i64(d)).result for d in (self.over, 0))
            at_first = arith.CmpIOp(_EQUAL, step, arith.constant(ir.IndexType.get(), 0)).result
            starts = [self.values[(v, self._map(Stacked(v), self.here))] for v in found.starts]
            states = [arith.SelectOp(at_first, a, b).result for a, b in zip(starts, states, strict=True)]
        for value, state in zip(found.states, states, strict=True):
            self.values[(value, self.here)] = state
        given = [self._element(v, self.here) for v in found.following] + [states[n] for n in before]
        if self.gated:
            gate = arith.CmpIOp(_LESS_OR_EQUAL, step, along).result
            given = [arith.SelectOp(gate, new, kept).result for new, kept in zip(given, old, strict=True)]
        ir.Operation.create("linalg.yield", operands=given)

    # -- what is read

    def _inside(self, value: ir.Value) -> bool:
        """Is the value computed in the reduction, not in front of it?"""
        op = owner(value)
        if op is None or op.name != "linalg.generic" or "reduction" in iterator_kinds(op):
            return False
        written = [position(e) for m in maps_of(op)[len(op.operands) - len(op.results):] for e in m.results]
        whole = sorted(p for p in written if p is not None) == sorted(list(range(maps_of(op)[0].n_dims)) * len(op.results))
        taken = not any(isinstance(v.type, ir.RankedTensorType) for v in captured_inside(op))
        return whole and taken and (not self.found.depends[value].isdisjoint(self.found.states)
                                    or ir.RankedTensorType(value.type).rank == self.rank or not expensive(op))

    def _read(self, value: ir.Value, coords: Coords, seen: set[tuple[ir.Value, Coords]]) -> None:
        """Note what the reduction reads for an element of a value of the body."""
        if (value, coords) in seen:
            return
        seen.add((value, coords))
        if value in self.found.states:
            if coords != self.here:
                raise KeptLoopError("place: a carried tensor is read at other places than it goes on at")
            return
        if not self._inside(value):
            if not self.found.depends[value].isdisjoint(self.found.states):
                op = owner(value)
                raise KeptLoopError(f"element by element: a carried tensor goes through {op.name if op is not None else 'others'}"
                               + (f" of {arithmetic(op)} operations" if op is not None and arithmetic(op) else ""))
            self._leaf(self.found.steps.tensor(value), coords)
            return
        op = owner(value)
        assert op is not None
        loops = _loops(value, coords)
        for v in captured_inside(op):
            self.scalars.setdefault(v, self.found.steps.number(v))
        for operand, argument, m in zip(op.operands, body(op).arguments, maps_of(op), strict=True):
            if next(iter(argument.uses), None) is not None:
                if isinstance(operand.type, ir.RankedTensorType):
                    self._read(operand, tuple(renumber(e, loops) for e in m.results), seen)
                else:
                    self.scalars.setdefault(operand, self.found.steps.number(operand))

    def _map(self, stacked: Stacked, coords: Coords) -> ir.AffineMap:
        return stacked.map(self.over + 1, coords, self.over)

    def _leaf(self, stacked: Stacked, coords: Coords) -> None:
        self.leaves.setdefault((stacked.value, self._map(stacked, coords)), len(self.leaves))

    # -- the body

    def _element(self, value: ir.Value, coords: Coords) -> ir.Value:
        key = (value, coords)
        if key not in self.values:
            if not self._inside(value):
                stacked = self.found.steps.tensor(value)
                return self.values[(stacked.value, self._map(stacked, coords))]
            op = owner(value)
            assert op is not None
            loops = _loops(value, coords)
            known: dict[ir.Value, ir.Value] = {}
            for operand, argument, m in zip(op.operands, body(op).arguments, maps_of(op), strict=True):
                if next(iter(argument.uses), None) is not None:
                    known[argument] = (self._element(operand, tuple(renumber(e, loops) for e in m.results))
                                       if isinstance(operand.type, ir.RankedTensorType) else self.counted[operand])
            *inner, last = operations(body(op))
            for o in inner:
                if o.name == "linalg.index":
                    known[o.results[0]] = self._index(loops[integer(o.attributes["dim"])])
                else:
                    copy = clone(o, lambda v: known.get(v) or self.counted.get(v, v))
                    known.update(zip(o.results, copy.results, strict=True))
            for result, given in zip(op.results, last.operands, strict=True):
                self.values[(result, coords)] = known.get(given) or self.counted.get(given, given)
        return self.values[key]

    def _index(self, e: ir.AffineExpr) -> ir.Value:
        at = position(e)
        if at is not None:
            return linalg.IndexOp(i64(at)).result
        loops = [linalg.IndexOp(i64(d)).result for d in range(self.over + 1)]
        return affine.AffineApplyOp(ir.AffineMap.get(self.over + 1, 0, [e]), loops).result


def _loops(value: ir.Value, coords: Coords) -> dict[int, ir.AffineExpr]:
    """The loops of the operation that gives a value, where it gives the element at these coordinates."""
    op = owner(value)
    assert op is not None
    number = len(op.operands) - len(op.results) + list(op.results).index(value)
    return {at: c for e, c in zip(maps_of(op)[number].results, coords, strict=True) if (at := position(e)) is not None}


def _zero(element: ir.Type) -> ir.Value:
    return arith.constant(element, 0.0 if isinstance(element, ir.FloatType) else 0)
