"""Evaluator: emits any element of any tensor value of a region, on demand, by walking its definition chain.

`element(value, coords)` returns a scalar, or a vector when a coordinate is one (a ramp or a vector Index). An argument is a
load, elementwise generics clone their scalar region, slices and reshapes map coordinates, pads select, reductions become
loops, and `known[value]` is whatever a family holds in registers. Prologues, epilogues, convolution windows and row kernels
are therefore one mechanism, for every family and target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from tilewright.passes.codegen.affine_index import evaluate, invert
from tilewright.passes.codegen.emit import (
    Memory,
    all_of,
    choose,
    constant,
    element_type,
    integer_type,
    lanes_of,
    loop,
    resized,
    vector_type,
)
from tilewright.passes.codegen.index import Index, delinearize, emit_expr, splat_to
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import MAY_BE_EMPTY, SymbolicShapes, integer, kept_axes, mixed, reassociation
from tilewright.passes.mlir import arith, attributes, ir, maps_of, operations, owner
from tilewright.runtime.shape import Expr

Coords = Sequence[Index]
Known = Callable[[Coords], ir.Value]
_AFFINE: Mapping[str, Callable[..., Index]] = MappingProxyType({
    "arith.addi": Index.__add__, "arith.subi": Index.__sub__, "arith.muli": Index.__mul__, "arith.index_cast": Index,
})
_INTEGER_DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.ceildivsi", "arith.ceildivui",
                      "arith.floordivsi")


class Evaluator:
    """Of one region (a function on tensors). Families register memories, local dims, scalars and known values."""

    def __init__(self, shapes: SymbolicShapes, index: ir.Type) -> None:
        self.shapes = shapes
        self.index_type = index
        self.memories: dict[ir.Value, Memory] = {}
        self.dims: dict[str, Index] = {}
        self.scalars: dict[ir.Value, ir.Value] = {}
        self.known: dict[ir.Value, Known] = {}
        self.parts: dict[tuple[ir.Operation, int], int] = {}  # what an operation chooses along an axis here (borders.py)
        self._memo: dict[object, list[ir.Value]] | None = None

    # -- sizes and index values

    def emit(self, expr: Expr) -> Index:
        """An Expr over the local dims as an Index."""
        return emit_expr(expr, self.dims)

    def extent(self, value: ir.Value, axis: int) -> Index:
        return self.emit(self.shapes.dims(value)[axis])

    def size(self, value: ir.Value | int) -> Index:
        """An index operand: an int, or an SSA value that is an expression of the dims."""
        if isinstance(value, int):
            return Index(value)
        expr = self.shapes.expr(value)
        if expr is None:
            raise ValueError(f"index value {value} is not an expression of the local dims")
        return self.emit(expr)

    # -- elements

    def element(self, value: ir.Value, coords: Coords, mask: ir.Value | None = None) -> ir.Value:
        """Scalar or vector at `coords`; where `mask` is off, nothing is read and the lane is arbitrary."""
        outermost = self._memo is None
        if outermost:
            self._memo = {}
        try:
            for before in () if coords else self._single_values(value):
                self._element(before, coords, mask)
            return self._element(value, coords, mask)
        finally:
            if outermost:
                self._memo = None

    def _single_values(self, value: ir.Value) -> list[ir.Value]:
        """Single values that one is computed from, each behind those that it is computed from itself: a sum of hundreds of norms
        is deeper than Python's stack."""
        found: list[ir.Value] = []
        seen: set[ir.Value] = set()
        pending = [(value, False)]
        while pending:
            at, complete = pending.pop()
            op = owner(at)
            if complete:
                found.append(at)
            elif at not in seen and at not in self.known and at not in self.memories and op is not None:
                seen.add(at)
                if op.name == "linalg.generic" and not iterator_kinds(op):
                    arguments = op.regions[0].blocks[0].arguments
                    used = (o for o, a in zip(op.operands, arguments, strict=True) if next(iter(a.uses), None) is not None)
                    single = (o for o in used if isinstance(o.type, ir.RankedTensorType) and not ir.RankedTensorType(o.type).rank)
                    pending += [(at, True), *((o, False) for o in single)]
        return found[:-1]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within this block elements that were emitted once are reused; only where they dominate what follows."""
        before, self._memo = self._memo, dict(self._memo or {})
        try:
            yield
        finally:
            self._memo = before

    def _element(self, value: ir.Value, coords: Coords, mask: ir.Value | None) -> ir.Value:
        if value in self.known:
            return self.known[value](coords)
        op = owner(value)
        results = [value] if op is None else list(op.results)
        key = (op if op is not None else value, tuple(map(_key, coords)), mask)
        assert self._memo is not None
        if key not in self._memo:
            self._memo[key] = self._emit_all(op, value, coords, mask)
        found = self._memo[key]
        return found[results.index(value)] if len(found) > 1 else found[0]

    def _emit_all(self, op: ir.Operation | None, value: ir.Value, coords: Coords, mask: ir.Value | None) -> list[ir.Value]:
        if value in self.memories:
            return [self.memories[value].load(coords, mask)]
        if op is None:
            raise ValueError(f"tensor argument {value} has no memory")
        if op.name == "linalg.fill":
            return [self.scalar(op.operands[0])]
        if op.name.startswith("linalg."):
            return self._linalg(op, value, coords, mask)
        if op.name in VIEW_OPS:
            return [self._element(op.operands[0], self.moved(op, coords), mask)]
        walkers = {
            "tensor.pad": self._pad,
            "tensor.concat": self._concat,
            "tensor.insert_slice": self._insert,
        }
        if op.name == "tensor.empty":
            return [constant(ir.RankedTensorType(value.type).element_type, 0)]
        if op.name == "tensor.splat":
            return [self.scalar(op.operands[0])]
        if op.name == "arith.constant":
            return [self._dense(op)]
        if op.name in walkers:
            return [walkers[op.name](op, coords, mask)]
        raise ValueError(f"{op.name} at {op.location}: no element can be computed of this operation")

    def _dense(self, op: ir.Operation) -> ir.Value:
        attribute = ir.DenseElementsAttr(op.attributes["value"])
        if not attribute.is_splat:
            raise ValueError(f"a constant tensor at {op.location} must be an operand of the kernel")
        return arith.constant(attribute.type.element_type, attribute.get_splat_value())

    def _scoped(self, condition: ir.Value | bool, type_: ir.Type, then: Callable[[], ir.Value],
                otherwise: Callable[[], ir.Value]) -> ir.Value:
        """`choose` whose branches do not leak what they emitted into the memo."""

        def inside(branch: Callable[[], ir.Value]) -> Callable[[], ir.Value]:
            def run() -> ir.Value:
                with self.kept():
                    return branch()

            return run

        return choose(condition, type_, inside(then), inside(otherwise))

    # -- linalg

    def _linalg(self, op: ir.Operation, value: ir.Value, coords: Coords, mask: ir.Value | None) -> list[ir.Value]:
        maps = maps_of(op)
        results = list(op.results)
        inputs = len(op.operands) - len(results)
        loops = invert(maps[inputs + results.index(value)], coords)
        kinds = iterator_kinds(op)
        reduced = [d for d, kind in enumerate(kinds) if kind == "reduction"]
        missing = [d for d, kind in enumerate(kinds) if kind == "parallel" and loops[d] is None]
        if missing:
            raise ValueError(f"{op.name} at {op.location}: loop d{missing[0]} is parallel but not an axis of the result")
        if not reduced:
            return self.region(op, [x for x in loops if x is not None], {}, mask)
        start = [self._element(op.operands[inputs + i], [evaluate(e, loops) for e in maps[inputs + i].results], mask)
                 for i in range(len(results))]
        lanes = max(c.lanes for c in coords) if coords else 1
        return self.reduce(op, loops, reduced, [splat_to(x, lanes) for x in start], mask)

    def reduce(self, op: ir.Operation, loops: list[Index | None], reduced: Sequence[int], start: Sequence[ir.Value],
               mask: ir.Value | None) -> list[ir.Value]:
        """Loops over the reduction dims of `op` at the given parallel coordinates, starting from `start`."""
        if not reduced:
            accumulators = dict(zip(range(len(op.operands) - len(op.results), len(op.operands)), start, strict=True))
            lanes = lanes_of(start[0])
            done = self.region(op, [x if x is not None else Index(0) for x in loops], accumulators, mask)
            return [splat_to(x, lanes) for x in done]

        def body(i: Index, *carried: ir.Value) -> list[ir.Value]:
            inner = list(loops)
            inner[reduced[0]] = i
            with self.kept():
                return self.reduce(op, inner, reduced[1:], carried, mask)

        return loop(0, self.loop_extent(op, reduced[0]), 1, body, start, self.index_type)

    def loop_extent(self, op: ir.Operation, d: int) -> Index:
        """Extent of loop dimension `d` of a linalg op, read from an operand axis that it indexes alone."""
        return self.emit(loop_extents(op, self.shapes)[d])

    def region(self, op: ir.Operation, loops: Sequence[Index], given: Mapping[int, ir.Value], mask: ir.Value | None,
               known: Mapping[ir.Value, ir.Value] = MappingProxyType({}), wanted: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """The scalar region of `op` at loop coordinates; operand numbers in `given` have their value already, and so the values
        of the region in `known`. wanted: other values of the region in place of what it yields."""
        return self.clone(op.regions[0].blocks[0], dict(known) | self._arguments(op, loops, given, mask), loops, mask, wanted)

    def places(self, op: ir.Operation, coords: Coords, extract: ir.Operation) -> tuple[list[Index], list[ir.Value | bool]]:
        """Where an extraction in the region of `op` reads for an element of its result, and under which conditions it does."""
        loops = [x for x in invert(maps_of(op)[-1], coords) if x is not None]
        with self.kept():
            _, number = self._scalars(op.regions[0].blocks[0], self._arguments(op, loops, {}, None), loops, None, extract)
            return [number(v) for v in list(extract.operands)[1:]], self._never_empty(extract)

    def _arguments(self, op: ir.Operation, loops: Sequence[Index], given: Mapping[int, ir.Value],
                   mask: ir.Value | None) -> dict[ir.Value, ir.Value]:
        """The scalars that the region of `op` takes, as far as it uses them."""
        values: dict[ir.Value, ir.Value] = {}
        arguments = op.regions[0].blocks[0].arguments
        for number, (argument, operand, m) in enumerate(zip(arguments, op.operands, maps_of(op), strict=True)):
            if number in given:
                values[argument] = given[number]
            elif next(iter(argument.uses), None) is not None:
                if isinstance(operand.type, ir.RankedTensorType):
                    values[argument] = self._element(operand, [evaluate(e, loops) for e in m.results], mask)
                else:
                    values[argument] = self.scalar(operand)
        return values

    def clone(self, block: ir.Block, values: dict[ir.Value, ir.Value], loops: Sequence[Index],
              mask: ir.Value | None = None, wanted: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """Emit a scalar region on scalars or vectors; returns what it yields, or the values `wanted` of it."""
        last = operations(block)[-1]
        get, _ = self._scalars(block, values, loops, mask, last)
        return [get(v) for v in wanted or last.operands]

    def _scalars(self, block: ir.Block, values: dict[ir.Value, ir.Value], loops: Sequence[Index], mask: ir.Value | None,
                 end: ir.Operation) -> tuple[Callable[[ir.Value], ir.Value], Callable[[ir.Value], Index]]:
        """Emits a region up to `end`; gives its values as scalars or vectors, and as numbers."""
        known = dict[ir.Value, Index]()  # numbers that are affine in the loops: a run of places stays one

        def get(v: ir.Value) -> ir.Value:
            return values[v] if v in values else self.scalar(v)

        def number(v: ir.Value) -> Index:
            return known[v] if v in known else self.runtime_index(get(v))

        for op in operations(block):
            if op == end:
                break
            if len(op.results) and op.results[0] in values:
                continue
            if op.name in _AFFINE and _is_wide(op) and any(v in known and known[v].const is None for v in op.operands):
                known[op.results[0]] = _AFFINE[op.name](*map(number, op.operands))
            if op.name == "linalg.index":
                at = known[op.results[0]] = loops[integer(op.attributes["dim"])]
                values[op.results[0]] = self._index_value(at)
            elif op.name == "tensor.extract":
                values[op.results[0]] = self._extracted(op, [number(v) for v in list(op.operands)[1:]], mask)
            elif op.name == "affine.apply":
                m = ir.AffineMapAttr(op.attributes["map"]).value
                given = [number(v) for v in op.operands]
                found = known[op.results[0]] = evaluate(m.results[0], given[: m.n_dims], given[m.n_dims :])
                values[op.results[0]] = self._index_value(found)
            elif op.name == "tensor.dim":
                values[op.results[0]] = self.scalar(op.results[0])
            elif (lanes := self._named_lanes(op, known, get)) is not None:
                values[op.results[0]] = lanes
            else:
                if op.name == "arith.constant" and _is_wide(op):
                    known[op.results[0]] = Index(integer(op.attributes["value"]))
                for result, new in zip(op.results, self._clone_op(op, [get(v) for v in op.operands], mask), strict=True):
                    values[result] = new
        return get, number

    def _named_lanes(self, op: ir.Operation, known: Mapping[ir.Value, Index],
                     get: Callable[[ir.Value], ir.Value]) -> ir.Value | None:
        """Which lanes of a run of places are, or are not, the place that a scalar names: a comparison of the numbers of lanes, in
        32 bits, where one of places would be in 64. None of any other operation."""
        wide, narrow, equal = integer_type(64), integer_type(32), (arith.CmpIPredicate.eq, arith.CmpIPredicate.ne)
        if op.name != "arith.cmpi" or self.index_type != wide or integer(op.attributes["predicate"]) not in equal:
            return None
        runs = [known[v] for v in op.operands if v in known and known[v].step is not None]
        scalars = [x for v in op.operands if (v not in known or known[v].step is None) and lanes_of(x := get(v)) == 1]
        if len(runs) != 1 or len(scalars) != 1 or runs[0].step is None or runs[0].step.const != 1:
            return None
        lanes, named = runs[0].lanes, scalars[0]
        named = arith.index_cast(wide, named) if isinstance(named.type, ir.IndexType) else named
        place = arith.minui(arith.subi(named, runs[0].base.value(wide)), arith.constant(wide, lanes))  # no lane has this number
        return arith.cmpi(arith.CmpIPredicate(integer(op.attributes["predicate"])), Index.ramp(0, lanes).value(narrow),
                          splat_to(arith.trunci(narrow, place), lanes))

    def _index_value(self, at: Index) -> ir.Value:
        """A coordinate as the value of type index that a region computes with."""
        found = at.value(self.index_type)
        return arith.index_cast(vector_type(ir.IndexType.get(), lanes_of(found)), found)

    def _extracted(self, op: ir.Operation, at: Coords, mask: ir.Value | None) -> ir.Value:
        """An element that a region names; zero of a tensor without elements."""
        source, checks = op.operands[0], self._never_empty(op)
        if not checks:
            return self._element(source, at, mask)
        type_ = op.results[0].type
        return self._guarded(checks, type_, _lanes(at), mask, lambda m: self._element(source, at, m), lambda: constant(type_, 0))

    def _never_empty(self, op: ir.Operation) -> list[ir.Value | bool]:
        """That a tensor which is extracted from has elements, where that is not known."""
        axes = ir.DenseI64ArrayAttr(op.attributes[MAY_BE_EMPTY]) if MAY_BE_EMPTY in op.attributes else ()
        return [self.extent(op.operands[0], axis).ge(1) for axis in axes]

    def _clone_op(self, op: ir.Operation, operands: list[ir.Value], mask: ir.Value | None = None) -> list[ir.Value]:
        if op.name.split(".")[0] not in ("arith", "math") or len(op.regions):
            raise ValueError(f"{op.name} at {op.location}: not a scalar operation that a kernel can compute")
        lanes = max((lanes_of(v) for v in operands), default=1)
        types = [vector_type(r.type, lanes) for r in op.results]
        named = attributes(op)
        if op.name == "arith.constant":
            return [arith.constant(types[0], named["value"])]
        if mask is not None and op.name in _INTEGER_DIVISIONS and lanes_of(operands[1]) > 1:
            one = constant(element_type(operands[1].type), 1, lanes)
            operands = [operands[0], arith.select(mask, operands[1], one)]  # a lane that is off may hold 0
        return list(ir.Operation.create(op.name, results=types, operands=[splat_to(v, lanes) for v in operands],
                                        attributes=named).results)

    def runtime_index(self, value: ir.Value) -> Index:
        """A number of a region as a coordinate."""
        lanes = lanes_of(value)
        own, wanted = element_type(value.type), vector_type(self.index_type, lanes)
        if isinstance(own, ir.IntegerType) and own != self.index_type:  # of another width than coordinates
            return Index(arith.trunci(wanted, value) if own.width > self.index_type.width else arith.extsi(wanted, value))
        return Index(value if own == self.index_type else arith.index_cast(wanted, value))

    def scalar(self, value: ir.Value) -> ir.Value:
        """A scalar from outside a region: a parameter, a constant, or arithmetic on them."""
        if value in self.scalars:
            return self.scalars[value]
        if isinstance(value.type, ir.IndexType | ir.IntegerType):
            expr = self.shapes.expr(value)
            if expr is not None:
                number = self.emit(expr)
                if isinstance(value.type, ir.IndexType):
                    return arith.index_cast(value.type, number.value(self.index_type))
                if value.type.width > 1:
                    return resized(number.value(value.type if number.const is not None else self.index_type), value.type)
        op = owner(value)
        if op is None:
            raise ValueError(f"scalar {value} is not a parameter of the kernel")
        if op.name == "tensor.extract":
            at = [self.size(v) for v in list(op.operands)[1:]]
            return self.element(op.operands[0], at)
        results = self._clone_op(op, [self.scalar(v) for v in op.operands])
        return results[list(op.results).index(value)]

    # -- movement

    def moved(self, op: ir.Operation, coords: Coords) -> list[Index]:
        """Coordinates in the source of a cast, slice or reshape."""
        source = op.operands[0]
        if op.name == "tensor.extract_slice":
            offsets = [self.size(x) for x in mixed(op, "static_offsets", 1)]
            strides = [self.size(x) for x in mixed(op, "static_strides", 3)]
            at = list(offsets)
            for c, axis in zip(coords, kept_axes(op), strict=True):
                at[axis] = offsets[axis] + c * strides[axis]
            return at
        if op.name == "tensor.collapse_shape":
            groups = reassociation(op)
            found = [delinearize(c, [self.extent(source, axis) for axis in g]) for c, g in zip(coords, groups, strict=True)]
            return [x for g in found for x in g] if groups else [Index(0)] * ir.RankedTensorType(source.type).rank
        if op.name == "tensor.expand_shape":
            at = []
            for group in reassociation(op):
                linear = Index(0)
                for axis in group:
                    linear = linear * self.extent(op.results[0], axis) + coords[axis]
                at.append(linear)
            return at
        return list(coords)

    def _guarded(self, checks: Sequence[ir.Value | bool], type_: ir.Type, lanes: int, mask: ir.Value | None,
                 inside: Callable[[ir.Value | None], ir.Value], outside: Callable[[], ir.Value]) -> ir.Value:
        """`inside` where all checks hold: scalar checks branch, lane checks narrow the mask."""
        scalar = all_of([c for c in checks if isinstance(c, bool) or lanes_of(c) == 1])
        lane = all_of([c for c in checks if not isinstance(c, bool) and lanes_of(c) > 1])

        def then() -> ir.Value:
            if isinstance(lane, bool):
                return splat_to(inside(mask), lanes) if lane else splat_to(outside(), lanes)
            narrowed = all_of([lane, mask], lanes)
            return arith.select(lane, splat_to(inside(narrowed), lanes), splat_to(outside(), lanes))

        return self._scoped(scalar, vector_type(type_, lanes), then, lambda: splat_to(outside(), lanes))

    def inside_pad(self, op: ir.Operation, coords: Coords) -> tuple[list[Index], list[ir.Value | bool]]:
        """Coordinates in the source of a tensor.pad, and the conditions under which they are in it."""
        low, high = mixed(op, "static_low", 1), mixed(op, "static_high", 2)
        checks: list[ir.Value | bool] = []
        at = list(coords)
        for axis, (a, b) in enumerate(zip(low, high, strict=True)):
            if a != 0:
                at[axis] = coords[axis] - self.size(a)
            if (op, axis) in self.parts:
                checks.append(self.parts[op, axis] == 1)
                continue
            if a != 0:
                checks.append(at[axis].ge(0))
            if a != 0 or b != 0:
                checks.append(at[axis].lt(self.extent(op.operands[0], axis)))
        return at, checks

    def _pad(self, op: ir.Operation, coords: Coords, mask: ir.Value | None) -> ir.Value:
        at, checks = self.inside_pad(op, coords)
        block = op.regions[0].blocks[0]
        type_ = ir.RankedTensorType(op.results[0].type).element_type
        return self._guarded(checks, type_, _lanes(coords), mask, lambda m: self._element(op.operands[0], at, m),
                             lambda: self.clone(block, {}, coords)[0])

    def _concat(self, op: ir.Operation, coords: Coords, mask: ir.Value | None) -> ir.Value:
        axis = integer(op.attributes["dim"])
        type_ = ir.RankedTensorType(op.results[0].type).element_type
        lanes, here, sources = _lanes(coords), self.parts.get((op, axis)), list(op.operands)

        def first(number: int) -> Index:
            passed = [(v, ir.RankedTensorType(v.type)) for v in sources[:number]]
            start = Index(sum(t.get_dim_size(axis) for _, t in passed if not t.is_dynamic_dim(axis)))
            return sum((self.extent(v, axis) for v, t in passed if t.is_dynamic_dim(axis)), start)

        def among(low: int, high: int, m: ir.Value | None) -> ir.Value:
            """In one of some sources, found by halves."""
            if high == low + 1:
                at = [c - first(low) if a == axis else c for a, c in enumerate(coords)]
                return self._element(sources[low], at, m)
            middle = (low + high) // 2
            end = first(middle)
            before = coords[axis].lt(end)
            if isinstance(before, bool) or lanes_of(before) == 1:
                return self._scoped(before, vector_type(type_, lanes), lambda: splat_to(among(low, middle, m), lanes),
                                    lambda: splat_to(among(middle, high, m), lanes))
            after = coords[axis].ge(end)
            inside, there = all_of([before, m], lanes), all_of([after, m], lanes)
            return arith.select(before, splat_to(among(low, middle, inside), lanes), splat_to(among(middle, high, there), lanes))

        return among(0, len(sources), mask) if here is None else among(here, here + 1, mask)

    def _insert(self, op: ir.Operation, coords: Coords, mask: ir.Value | None) -> ir.Value:
        source, target = op.operands[0], op.operands[1]
        offsets = [self.size(x) for x in mixed(op, "static_offsets", 2)]
        sizes = [self.size(x) for x in mixed(op, "static_sizes", 3)]
        strides = [self.size(x) for x in mixed(op, "static_strides", 4)]
        rank = ir.RankedTensorType(source.type).rank
        static = mixed(op, "static_sizes", 3)
        drop = len(offsets) - rank
        kept = []
        for axis, s in enumerate(static):
            if drop and s == 1:
                drop -= 1
            else:
                kept.append(axis)
        at = [c - o for c, o in zip(coords, offsets, strict=True)]
        checks: list[ir.Value | bool] = []
        for axis, (a, size, offset, stride) in enumerate(zip(list(at), sizes, offsets, strides, strict=True)):
            if (op, axis) in self.parts:
                checks.append(self.parts[op, axis] == 1)
                continue
            checks += [True if offset.const == 0 else a.ge(0), a.lt(size * stride)]
            if stride.const != 1:
                at[axis] = a.floordiv(stride)
                checks.append((at[axis] * stride).eq(a))
        type_ = ir.RankedTensorType(target.type).element_type
        lanes = _lanes(coords)
        return self._guarded(checks, type_, lanes, mask, lambda m: self._element(source, [at[a] for a in kept], m),
                             lambda: self._element(target, coords, mask))


def _is_wide(op: ir.Operation) -> bool:
    """Is its result a number that no sum of coordinates leaves?"""
    t = op.results[0].type
    return isinstance(t, ir.IndexType) or (isinstance(t, ir.IntegerType) and t.width == 64)


def _key(c: Index) -> tuple[object, ...]:
    return (c.const, c._value, c.lanes, None if c.step is None else _key(c.step))


def _lanes(coords: Coords) -> int:
    return max((c.lanes for c in coords), default=1)
