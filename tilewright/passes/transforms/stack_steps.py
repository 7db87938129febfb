"""Operations of a loop's body, done for all steps at once: each has one more parallel loop, over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.passes.analysis.counted_loop import STEP, CountedLoop, KeptLoopError
from tilewright.passes.linalg.builders import elementwise, i64, renumber
from tilewright.passes.linalg.clone import captured_inside, clone
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.stacked import Stacked, at_step
from tilewright.passes.linalg.structured import inputs, is_rewritable, iterator_kinds, rebuild
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, kept_axes, mixed
from tilewright.passes.mlir import arith, ir, linalg, maps_of, operations, owner, tensor, walk
from tilewright.runtime.shape import Expr

_ONE = Expr.of(1)


class StackSteps:
    """Builds, at the insertion point, values of a loop's body for all its steps. most_bytes: of one of them."""

    def __init__(self, loop: CountedLoop, frame: ir.Operation, most_bytes: int) -> None:
        self.loop, self.tensors, self.most_bytes = loop, Reshaper(frame), most_bytes
        self.inner = SymbolicShapes(loop.function)
        self._known: dict[ir.Value, Stacked] = {}

    def give(self, value: ir.Value, stacked: Stacked) -> None:
        """From now on this is what the value is at all steps."""
        self._known[value] = stacked

    def dims(self, value: ir.Value) -> list[Expr]:
        """Extents of a value of the body; KeptLoopError where they change from step to step."""
        found = [d.substitute(self.loop.counters) for d in self.inner.dims(value)]
        if any(STEP in d.symbols for d in found):
            raise KeptLoopError(f"extents: a tensor of the body has {', '.join(map(str, self.inner.dims(value)))}, "
                           "which changes at each step")
        return found

    def tensor(self, value: ir.Value) -> Stacked:
        """A tensor of the body at all steps; KeptLoopError where it cannot be done at once."""
        if value not in self._known:
            op = owner(value)
            if op is None:
                if value not in self.loop.outside:
                    raise KeptLoopError("order: a carried tensor is read before it is known at all steps")
                self._known[value] = Stacked(self.loop.outside[value])
            else:
                self._operation(op)
        return self._known[value]

    def number(self, value: ir.Value) -> ir.Value | tuple[Expr, int]:
        """A scalar of the body as one in front of the loop; one that counts as its first value and what it grows by."""
        expr = self.inner.expr(value)
        if expr is None:
            op = owner(value)
            if op is None:
                return self.loop.outside[value]
            if op.name.startswith("tensor."):
                raise KeptLoopError("data: a number is read from a tensor inside of the body")
            return clone(op, self._plain).results[0]
        moved = at_step(self.loop.counters, STEP, expr)
        if moved is None:
            raise KeptLoopError(f"counter: {expr} does not grow by the same at each step")
        if moved[1]:
            return moved
        made = self.tensors.values.value(moved[0])
        return made if made.type == value.type else arith.index_cast(value.type, made)

    def counted(self, moved: tuple[Expr, int], loop: int, kind: ir.Type) -> ir.Value:
        """A number that counts, inside of a generic whose loop of this number is over the steps."""
        at = linalg.IndexOp(i64(loop)).result
        index = ir.IndexType.get()
        if moved[1] != 1:
            at = arith.MulIOp(at, arith.constant(index, moved[1])).result
        if moved[0] != Expr.of(0):
            at = arith.AddIOp(at, self.tensors.values.value(moved[0])).result
        return at if at.type == kind else arith.index_cast(kind, at)

    def empty(self, dims: Sequence[Expr], element: ir.Type) -> ir.Value:
        """A tensor to write to; KeptLoopError where it would be too large."""
        total = Expr.of((_bits(element) + 7) // 8)
        for d in dims:
            total = total * d
        if (most := self.tensors.shapes.bounds(total)[1]) > self.most_bytes:
            raise KeptLoopError(f"memory: what it computes at all steps takes up to {most:.3g} bytes at once")
        return self.tensors.empty(dims, element)

    def _plain(self, value: ir.Value) -> ir.Value:
        found = self.number(value)
        if isinstance(found, tuple):
            raise KeptLoopError("counter: a number that no dims give is computed from it")
        return found

    def _operation(self, op: ir.Operation) -> None:
        if op.name in ("tensor.empty", "arith.constant"):
            found = [Stacked(self._whole(op))]
        elif op.name == "linalg.fill":
            scalar = self._plain(op.operands[0])
            found = [Stacked(linalg.fill(scalar, outs=[self.tensor(op.operands[1]).value]))]
        elif op.name == "tensor.cast":
            found = [self.tensor(op.operands[0])]
        elif op.name in RESHAPES:
            found = [self.tensor(op.operands[0]).reshaped(self.dims(op.results[0]), self.tensors)]
        elif op.name == "tensor.extract_slice":
            found = [self._slice(op)]
        elif is_rewritable(op):
            found = self._structured(op)
        else:
            raise KeptLoopError(f"operation: {op.name} is not done at all steps at once")
        self._known.update(zip(op.results, found, strict=True))

    def _whole(self, op: ir.Operation) -> ir.Value:
        if op.name == "arith.constant":
            return clone(op, lambda v: v).results[0]
        return self.empty(self.dims(op.results[0]), op.results[0].type.element_type)

    def _slice(self, op: ir.Operation) -> Stacked:
        source = self.tensor(op.operands[0])
        offsets, sizes, strides = (
            [Expr.of(x) if isinstance(x, int) else self.inner.required(x, op) for x in mixed(op, name, n)]
            for n, name in enumerate(("static_offsets", "static_sizes", "static_strides"), 1))
        moved = [at_step(self.loop.counters, STEP, e) for e in offsets]
        along = [a for a, m in enumerate(moved) if m is None or m[1]]
        steps = [m for m in moved if m is not None]
        if len(steps) < len(moved) or len(along) > 1 or (along and source.axis is not None):
            raise KeptLoopError("read: a tensor is read at a place that does not move along one axis by the same at each step")
        starts, extents = [m[0] for m in steps], [s.substitute(self.loop.counters) for s in sizes]
        by = [s.substitute(self.loop.counters) for s in strides]
        dims, element = self.dims(op.results[0]), ir.RankedTensorType(op.results[0].type).element_type
        if not along:
            self._want_inside(op, starts, extents, by)
            if source.axis is not None:
                count = self.tensors.shapes.dims(source.value)[source.axis]
                for into, x in ((starts, Expr.of(0)), (extents, count), (by, _ONE)):
                    into.insert(source.axis, x)
            window = self._window(source.value, starts, extents, by, element)
            if source.axis is None:
                return Stacked(self.tensors.reshape(window, dims))
            return Stacked(window, source.axis).reshaped(dims, self.tensors)
        axis = along[0]
        grows = steps[axis][1]
        if extents[axis] != _ONE:
            raise KeptLoopError("read: a tensor is read in windows that move")
        count = self.loop.count
        if grows < 0:
            starts[axis] = starts[axis] + (count - 1) * grows
        extents[axis], by[axis] = count, Expr.of(abs(grows))
        window = self._window(source.value, starts, extents, by, element)
        window = window if grows > 0 else self.backwards(window, axis)
        at = sum(1 for a in kept_axes(op) if a < axis)
        return Stacked(self.tensors.reshape(window, [*dims[:at], count, *dims[at:]]), at)

    def _want_inside(self, op: ir.Operation, starts: Sequence[Expr], extents: Sequence[Expr], by: Sequence[Expr]) -> None:
        """What each step reads is read in front of the loop, even where it has no step."""
        have = self.dims(op.operands[0])
        low = self.tensors.shapes.bounds(self.loop.count)[0]
        for start, extent, stride, whole in zip(starts, extents, by, have, strict=True):
            last = whole - 1 - start - (extent - 1) * stride
            if low < 1 and (self.tensors.shapes.bounds(last)[0] < 0 or self.tensors.shapes.bounds(start)[0] < 0):
                raise KeptLoopError("read: what each step reads might lie outside of its tensor where there is no step")

    def _window(self, source: ir.Value, starts: Sequence[Expr], extents: Sequence[Expr], by: Sequence[Expr],
                element: ir.Type) -> ir.Value:
        if list(extents) == list(self.tensors.shapes.dims(source)) and not any(s != Expr.of(0) for s in starts):
            return source
        lists = [self.tensors.values.mixed(x) for x in (starts, extents, by)]
        dynamic = [[v for v in values if isinstance(v, ir.Value)] for values in lists]
        absent = ir.ShapedType.get_dynamic_size()
        static = [ir.DenseI64ArrayAttr.get([absent if isinstance(v, ir.Value) else v for v in values]) for values in lists]
        return tensor.ExtractSliceOp(tensor_type(extents, element), source, *dynamic, *static).result

    def backwards(self, value: ir.Value, axis: int) -> ir.Value:
        """A tensor with the elements along one axis in reverse order."""
        dims = self.tensors.shapes.dims(value)
        last = self.tensors.values.value(dims[axis] - 1)

        def element(_: list[ir.Value]) -> ir.Value:
            at = [linalg.IndexOp(i64(a)).result for a in range(len(dims))]
            at[axis] = arith.SubIOp(last, at[axis]).result
            return tensor.ExtractOp(value, at).result

        return elementwise([], self.empty(dims, ir.RankedTensorType(value.type).element_type), element)

    def _structured(self, op: ir.Operation) -> list[Stacked]:
        operands = [self.tensor(v) if isinstance(v.type, ir.RankedTensorType) else None for v in op.operands]
        scalars = {v: self._captured(v) for v in captured_inside(op)}
        scalars |= {v: self._plain(v) for v in op.operands if not isinstance(v.type, ir.RankedTensorType)}
        if not any(s is not None and s.axis is not None for s in operands) \
                and not any(isinstance(s, tuple) for s in scalars.values()):
            values = dict(zip(op.operands, (None if s is None else s.value for s in operands), strict=True))
            made = clone(op, lambda v: values.get(v) or scalars[v])
            for result, init in zip(made.results, list(made.operands)[len(inputs(op)):], strict=True):
                result.set_type(init.type)
            return [Stacked(r) for r in made.results]
        first = len(inputs(op))
        outs = [self._init(s) for s in operands[first:] if s is not None]
        moved = {d: d + 1 for d in range(maps_of(op)[0].n_dims)}
        maps = []
        for number, m in enumerate(maps_of(op)):
            coords = [renumber(e, moved) for e in m.results]
            stacked = operands[number] if number < first else Stacked(outs[number - first], 0)
            maps.append((stacked or Stacked(op.operands[number])).map(m.n_dims + 1, coords, 0))
        ins = [scalars[v] if s is None else s.value for v, s in zip(inputs(op), operands, strict=False)]
        copy = op.clone().operation
        made = rebuild(copy, ins, outs, maps, ["parallel", *iterator_kinds(op)], self._shifted(scalars))
        copy.erase()
        return [Stacked(r, 0) for r in made.results]

    def _captured(self, value: ir.Value) -> ir.Value | tuple[Expr, int]:
        if not isinstance(value.type, ir.RankedTensorType):
            return self.number(value)
        found = self.tensor(value)
        if found.axis is not None:
            raise KeptLoopError("read: what changes at each step is read at computed places")
        return found.value

    def _init(self, start: Stacked) -> ir.Value:
        """What a result starts from, with an axis of steps in front."""
        dims, element = list(self.tensors.shapes.dims(start.value)), ir.RankedTensorType(start.value.type).element_type
        if start.axis is not None:
            return start.first(self.tensors).value
        into, source = self.empty([self.loop.count, *dims], element), owner(start.value)
        if source is not None and source.name == "tensor.empty":
            return into
        if source is not None and source.name == "linalg.fill":
            return linalg.fill(source.operands[0], outs=[into])
        rank = len(dims) + 1
        places = ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(a) for a in range(1, rank)])
        return elementwise([start.value], into, lambda v: v[0], [places])

    def _shifted(self, scalars: Mapping[ir.Value, ir.Value | tuple[Expr, int]]) -> Callable[[ir.Block], None]:
        """Edits a body whose loops are one more, the first of which is over the steps."""

        def edit(block: ir.Block) -> None:
            for inner in operations(block):
                if inner.name == "linalg.index":
                    inner.attributes["dim"] = i64(integer(inner.attributes["dim"]) + 1)
            with ir.InsertionPoint.at_block_begin(block):
                known = {v: self.counted(s, 0, v.type) if isinstance(s, tuple) else s for v, s in scalars.items()}
            for inner in [*operations(block), *(o for p in operations(block) for o in walk(p))]:
                for n, v in enumerate(inner.operands):
                    if v in known:
                        inner.operands[n] = known[v]

        return edit


def _bits(element: ir.Type) -> int:
    return 64 if isinstance(element, ir.IndexType) else element.width
