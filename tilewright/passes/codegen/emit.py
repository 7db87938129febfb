"""Emission helpers shared by the kernel families: types, constants, loops, conditions, and Memory, a strided operand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.mlir import arith, ir, llvm, scf, vector

WIDEST_STEP = 4  # of the elements of a vector that are taken out of whole vectors; a gather beyond
DYNAMIC = -(2**31)  # marks an SSA index in the constant indices of llvm.getelementptr


def integer_type(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)


def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType.get([lanes], element)


def element_type(t: ir.Type) -> ir.Type:
    return ir.VectorType(t).element_type if isinstance(t, ir.VectorType) else t


def lanes_of(value: ir.Value) -> int:
    return int(ir.VectorType(value.type).shape[0]) if isinstance(value.type, ir.VectorType) else 1


def is_float(t: ir.Type) -> bool:
    return isinstance(t, ir.FloatType)


def byte_width(t: ir.Type) -> int:
    """Bytes of one element in memory; i1 takes one."""
    return max(1, int(t.width) // 8)


def constant(t: ir.Type, value: float, lanes: int = 1) -> ir.Value:
    """A scalar or splat constant of an integer or float type."""
    attribute = ir.FloatAttr.get(t, float(value)) if is_float(t) else ir.IntegerAttr.get(t, int(value))
    if lanes > 1:
        whole = vector_type(t, lanes)
        return arith.constant(whole, ir.DenseElementsAttr.get_splat(whole, attribute))
    return arith.constant(t, attribute)


def intrinsic(name: str, type_: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
    """A call of one of LLVM's intrinsics."""
    return _intrinsic(name, [type_], operands).results[0]


def effect(name: str, operands: Sequence[ir.Value]) -> None:
    """A call of one of LLVM's intrinsics that has no result."""
    _intrinsic(name, [], operands)


def _intrinsic(name: str, types: Sequence[ir.Type], operands: Sequence[ir.Value]) -> ir.Operation:
    return ir.Operation.create("llvm.call_intrinsic", list(types), list(operands), {
        "intrin": ir.StringAttr.get(name), "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
    })


def resized(value: ir.Value, t: ir.Type) -> ir.Value:
    """A signed integer in another width."""
    have = ir.IntegerType(value.type).width
    if have == t.width:
        return value
    return arith.trunci(t, value) if have > t.width else arith.extsi(t, value)


def gep(base: ir.Value, offset: ir.Value, element: ir.Type) -> ir.Value:
    """base + offset elements; a vector of offsets gives a vector of pointers."""
    pointer = base.type
    result = ir.VectorType.get(ir.VectorType(offset.type).shape, pointer) if isinstance(offset.type, ir.VectorType) else pointer
    return llvm.GEPOp(result, base, [offset], ir.DenseI32ArrayAttr.get([DYNAMIC]), ir.TypeAttr.get(element), None).result


def all_of(conditions: Sequence[ir.Value | bool | None], lanes: int = 1) -> ir.Value | bool:
    """Conjunction; constants fold, None means true."""
    result: ir.Value | bool = True
    for c in conditions:
        if c is False:
            return False
        if c is None or c is True:
            continue
        if result is True:
            result = c
            continue
        wide = max(lanes_of(result), lanes_of(c), lanes)
        result = arith.andi(splat_to(result, wide), splat_to(c, wide))
    return result


def loop(lo: Index | int, hi: Index | int, step: Index | int, body: Callable[..., Sequence[ir.Value] | None],
         carried: Sequence[ir.Value] = (), index: ir.Type | None = None) -> list[ir.Value]:
    """for i in range(lo, hi, step): body(i, *carried) returns the next carried values. Gives the final ones."""
    t = index or Index(lo).type or Index(hi).type or integer_type(64)
    op = scf.ForOp(Index(lo).value(t), Index(hi).value(t), Index(step).value(t), list(carried))
    with ir.InsertionPoint(op.body):
        result = body(Index(op.induction_variable), *op.inner_iter_args)
        scf.YieldOp(list(result or ()))
    return list(op.results_)


def first_where(count: Index, test: Callable[[Index], ir.Value], index: ir.Type) -> Index:
    """The least i < count with test(i), tried in order and no further; count where there is none."""
    op = scf.WhileOp([index], [Index(0).value(index)])
    before, after = op.before.blocks.append(index), op.after.blocks.append(index)
    flag = integer_type(1)
    with ir.InsertionPoint(before):
        i = Index(before.arguments[0])
        more = choose(i.lt(count), flag, lambda: arith.xori(test(i), constant(flag, 1)), lambda: constant(flag, 0))
        scf.ConditionOp(more, [before.arguments[0]])
    with ir.InsertionPoint(after):
        scf.YieldOp([(Index(after.arguments[0]) + 1).value(index)])
    return Index(op.results[0])


def when(condition: ir.Value | bool, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """Emit `then` under the condition; a constant condition emits no branch."""
    if isinstance(condition, bool):
        chosen = then if condition else otherwise
        if chosen:
            chosen()
        return
    op = scf.IfOp(condition, has_else=otherwise is not None)
    with ir.InsertionPoint(op.then_block):
        then()
        scf.YieldOp([])
    if otherwise is not None:
        with ir.InsertionPoint(op.else_block):
            otherwise()
            scf.YieldOp([])


def when_values(condition: ir.Value | bool, values: Sequence[ir.Value], then: Callable[[], list[ir.Value]]) -> list[ir.Value]:
    """`then()` under the condition, else `values`."""
    if isinstance(condition, bool):
        return then() if condition else list(values)
    op = scf.IfOp(condition, [v.type for v in values], has_else=bool(values))
    with ir.InsertionPoint(op.then_block):
        scf.YieldOp(then())
    if values:
        with ir.InsertionPoint(op.else_block):
            scf.YieldOp(list(values))
    return list(op.results_)


def choose(condition: ir.Value | bool, type_: ir.Type, then: Callable[[], ir.Value],
           otherwise: Callable[[], ir.Value]) -> ir.Value:
    """A value computed in one of two branches."""
    if isinstance(condition, bool):
        return then() if condition else otherwise()
    op = scf.IfOp(condition, [type_], has_else=True)
    for block, branch in ((op.then_block, then), (op.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.YieldOp([branch()])
    return op.results_[0]


def lane_mask(count: Index, lanes: int, index: ir.Type) -> ir.Value | None:
    """The first `count` of `lanes` lanes; None when a constant count covers them all."""
    if count.const is not None and count.const >= lanes:
        return None
    return Index.ramp(0, lanes).compare(arith.CmpIPredicate.slt, Index(splat_to(count.value(index), lanes)))


def picked(parts: Sequence[ir.Value], places: Sequence[tuple[int, int]]) -> ir.Value:
    """A vector of elements of vectors that have as many: for each lane the number of the vector and of its lane."""
    lanes = len(places)
    found = vector.shuffle(parts[0], parts[0], [a if n == 0 else 0 for n, a in places])
    for number, part in enumerate(parts[1:], 1):
        found = vector.shuffle(found, part, [lanes + a if n == number else i for i, (n, a) in enumerate(places)])
    return found


@dataclass(frozen=True)
class Memory:
    """A strided tensor in memory: pointer, element type, sizes and strides (in elements) per axis. i1 and 8-bit floats are stored
    as bytes."""

    pointer: ir.Value
    element: ir.Type
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    index: ir.Type

    @property
    def stored(self) -> ir.Type:
        narrow = self.element.width == 1 or (is_float(self.element) and self.element.width == 8)
        return integer_type(8) if narrow else self.element

    def offset(self, coords: Sequence[Index]) -> Index:
        total = Index(0)
        for c, s in zip(coords, self.strides, strict=True):
            total = total + c * s
        return total

    def address(self, coords: Sequence[Index]) -> ir.Value:
        return self._address(self.offset(coords))

    def _address(self, offset: Index) -> ir.Value:
        """Of an offset, or of each lane of it."""
        if offset.displaced is None or offset.is_vector:
            return gep(self.pointer, offset.value(self.index), self.stored)
        start, displacement = offset.displaced
        return gep(gep(self.pointer, start.value(self.index), self.stored), Index(displacement).value(self.index), self.stored)

    def load(self, coords: Sequence[Index], mask: ir.Value | None = None) -> ir.Value:
        """The element, or a vector of them when a coordinate is one; masked-off lanes read nothing and give 0."""
        raw = self._raw(coords, mask)
        if self.stored == self.element:
            return raw
        if is_float(self.element):
            return arith.bitcast(vector_type(self.element, lanes_of(raw)), raw)
        return arith.cmpi(arith.CmpIPredicate.ne, raw, constant(self.stored, 0, lanes_of(raw)))

    def _raw(self, coords: Sequence[Index], mask: ir.Value | None) -> ir.Value:
        """What memory holds."""
        return self._load(self.offset(coords), mask)

    def alignment(self, offset: Index) -> int:
        """Bytes that the address of a contiguous vector at `offset` is aligned to."""
        return byte_width(self.stored)

    def masked_alignment(self, offset: Index) -> int:
        """The same where lanes of it are loaded."""
        return self.alignment(offset)

    def _load(self, offset: Index, mask: ir.Value | None) -> ir.Value:
        alignment = byte_width(self.stored)
        if offset.is_vector and offset.step is not None and offset.step.const == 0:
            offset = offset.base
        if not offset.is_vector:
            at = self._address(offset)
            return llvm.LoadOp(self.stored, at, alignment=alignment).result
        whole = vector_type(self.stored, offset.lanes)
        if offset.step is not None and offset.step.const == 1:
            at = self._address(offset.base)
            if mask is None:
                return llvm.LoadOp(whole, at, alignment=self.alignment(offset)).result
            zero = constant(self.stored, 0, offset.lanes)
            return llvm.intr_masked_load(whole, at, mask, self.masked_alignment(offset), pass_thru=zero)
        step = None if offset.step is None else offset.step.const
        if step is not None and abs(step) <= WIDEST_STEP:
            return self._stepped(offset, step, mask)
        at = self._address(offset)
        every = mask if mask is not None else constant(integer_type(1), 1, offset.lanes)
        return llvm.intr_masked_gather(whole, at, every, [constant(self.stored, 0, offset.lanes)], alignment)

    def _stepped(self, offset: Index, step: int, mask: ir.Value | None) -> ir.Value:
        """Every step-th element, out of whole vectors of which none reaches beyond the first and the last of them."""
        lanes, wide = offset.lanes, abs(step)
        low = offset.base if step > 0 else offset.base + step * (lanes - 1)
        at = [wide * (i if step > 0 else lanes - 1 - i) for i in range(lanes)]  # where the elements are, from `low` on
        begins = [*(k * lanes for k in range(wide - 1)), (wide - 1) * (lanes - 1)]  # of the vectors
        of = [min(a // lanes, wide - 1) for a in at]  # the vector of each element
        parts = [self._load(Index.ramp(low + begin, lanes), None if mask is None else _spread(mask, at, of, n, begin))
                 for n, begin in enumerate(begins)]
        return picked(parts, [(n, a - begins[n]) for a, n in zip(at, of, strict=True)])

    def store(self, value: ir.Value, coords: Sequence[Index], mask: ir.Value | None = None) -> None:
        """Store one element, or the lanes of a vector that the mask selects."""
        offset = self.offset(coords)
        if self.stored != self.element:
            widen = arith.bitcast if is_float(self.element) else arith.extui
            value = widen(vector_type(self.stored, lanes_of(value)), value)
        alignment = byte_width(self.stored)
        if not offset.is_vector:
            llvm.StoreOp(value, self._address(offset), alignment=alignment)
            return
        value = splat_to(value, offset.lanes)
        if offset.step is not None and offset.step.const == 1:
            at = self._address(offset.base)
            alignment = self.alignment(offset)
            if mask is None:
                llvm.StoreOp(value, at, alignment=alignment)
            else:
                llvm.intr_masked_store(value, at, mask, alignment)
            return
        at = self._address(offset)
        every = mask if mask is not None else constant(integer_type(1), 1, offset.lanes)
        llvm.intr_masked_scatter(value, at, every, alignment)


def _spread(mask: ir.Value, at: Sequence[int], of: Sequence[int], part: int, begin: int) -> ir.Value:
    """The mask of a vector from `begin` on, number `part`, where lane i lies at at[i], in the vector of[i]."""
    lanes = len(at)
    lane_at = {a - begin: i for i, (a, o) in enumerate(zip(at, of, strict=True)) if o == part}
    return vector.shuffle(mask, constant(integer_type(1), 0, lanes), [lane_at.get(j, lanes) for j in range(lanes)])


@contextmanager
def body_of(fn: ir.Operation) -> Iterator[ir.Block]:
    """Insertion point at the end of the entry block of a function."""
    block = fn.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        yield block
