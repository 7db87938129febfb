"""Values of codes in registers: vectors of columns from words of bytes, and panels of them in the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.passes.analysis.codes import WORD, Codes, Plane
from tilewright.passes.codegen.emit import byte_width, constant, integer_type, intrinsic, loop, vector_type, when
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host.host_matmul_panel import Loops, PanelCopy
from tilewright.passes.mlir import arith, ir, llvm, maps_of, vector
from tilewright.runtime.limits import LINE

_WORD_BITS = 32
FETCHED_AHEAD = 4096  # bytes of codes, beyond what the memory of a core hands out while it waits for a line
_PERMUTE = {8: "llvm.x86.avx2.permps", 16: "llvm.x86.avx512.permvar.sf.512"}


_MANTISSA = 23


@dataclass(frozen=True)
class Words:
    """The words of a vector of columns, of each plane the first of those that hold the values from k on; where the zero point is
    the middle of the codes, less that. later: words of planes of which those values take several, as they are asked for."""

    column: Index
    k: Index
    first: tuple[ir.Value, ...]
    later: dict[tuple[int, int], ir.Value] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeValues:
    """Decodes `lanes` columns at a time, in f32; columns beyond the last of a panel decode to anything finite in memory.

    table: the values of all codes lie in a register, of which an instruction takes that of each lane.
    """

    evaluator: Evaluator
    codes: Codes
    lanes: int
    table: bool = False

    def word(self, column: Index, k: Index) -> Words:
        """The words of the vector of columns from `column` on that hold value k, the first of a word of every plane."""
        codes = self.codes
        found = tuple(self._load(p, column, k) for p in codes.planes)
        if self.table or not self._centred:
            return Words(column, k, found)
        middle = sum(1 << (i * codes.bits + codes.bits - 1) for i in range(codes.word))
        return Words(column, k, (arith.xori(found[0], self._constant(middle - (1 << _WORD_BITS))),))

    def raw(self, column: Index, k: Index) -> ir.Value:
        """The words of the vector of columns from `column` on that hold value k, of codes that lie in one plane, as stored."""
        return self._load(self.codes.planes[0], column, k)

    def fetch(self, column: Index, k: Index) -> None:
        """Asks for the lines that hold the words of the vector FETCHED_AHEAD bytes behind these, or of the next panel."""
        words = max(1, FETCHED_AHEAD // (WORD * self.codes.tile))
        for plane in self.codes.planes:
            for at in range(0, self.codes.word, plane.word):
                llvm.intr_prefetch(self._place(plane, column, k + at + words * plane.word), 0, 3, 1)

    def fetch_factors(self, columns: Sequence[Index], group: Index) -> None:
        """The same of the scales and zero points of vectors of columns, where every group has its own."""
        for number in (self.codes.scale, self.codes.zero):
            if number is None or not self.codes.group:
                continue
            memory, tile = self.evaluator.memories[self.codes.op.operands[number]], self.codes.tile
            ahead, width = max(1, FETCHED_AHEAD // (byte_width(memory.stored) * tile)), byte_width(memory.stored) * self.lanes
            for n, column in enumerate(columns):
                if n * width % LINE == 0:
                    place = [*self._row_of(number, column, group + ahead), column % tile]
                    llvm.intr_prefetch(memory.address(place), 0, 3, 1)

    def _load(self, plane: Plane, column: Index, k: Index) -> ir.Value:
        kind = vector_type(integer_type(_WORD_BITS), self.lanes)
        return llvm.LoadOp(kind, self._place(plane, column, k), alignment=4).result

    def _place(self, plane: Plane, column: Index, k: Index) -> ir.Value:
        memory, tile = self.evaluator.memories[self.codes.op.operands[plane.codes]], self.codes.tile
        return memory.address([column // tile, k // plane.word, column % tile, Index(0)])

    def value(self, words: Words, i: int, zero: ir.Value | None) -> ir.Value:
        """Value i of the words, less the zero point, as f32."""
        if len(self.codes.planes) > 1:
            return self._joined_value(words, i, zero)
        bits, low, word = self.codes.bits, i * self.codes.bits, words.first[0]
        if self.table:
            found = self._looked_up(arith.shrui(word, self._constant(low)) if low else word)
            return found if zero is None else arith.subf(found, zero)
        high = _WORD_BITS - bits
        if self.codes.signed or self._centred:
            moved = word if low == high else arith.shli(word, self._constant(high - low))
            code = arith.shrsi(moved, self._constant(high))
        else:
            moved = arith.shrui(word, self._constant(low)) if low else word
            code = moved if low == high else arith.andi(moved, self._constant((1 << bits) - 1))
        found = arith.sitofp(vector_type(ir.F32Type.get(), self.lanes), code)
        if zero is not None:
            return arith.subf(found, zero)
        if self.codes.point and not self._centred:
            return arith.subf(found, constant(ir.F32Type.get(), self.codes.point, self.lanes))
        return found

    def _joined_value(self, words: Words, i: int, zero: ir.Value | None) -> ir.Value:
        """Of a code whose bits lie in several planes. Without a table, and with one whole number as zero point, the code becomes
        the last bits of a float of which these count ones."""
        code, place = self._bits(words, 0, i, 0), self.codes.planes[0].bits
        for number, plane in enumerate(self.codes.planes[1:], 1):
            low = self._constant((1 << place) - 1)
            high = self._constant(-(1 << place))
            code = arith.ori(arith.andi(code, low), arith.andi(self._bits(words, number, i, place), high))
            place += plane.bits
        f32 = ir.F32Type.get()
        if self.table:
            found = self._looked_up(code)
            return found if zero is None else arith.subf(found, zero)
        code, point = arith.andi(code, self._constant((1 << place) - 1)), self.codes.point
        if zero is None and point == int(point) and abs(point) < 1 << (_MANTISSA - 1):
            one = np.float32(1 << _MANTISSA)
            number_ = vector.bitcast(vector_type(f32, self.lanes), arith.ori(code, self._constant(int(one.view(np.int32)))))
            return arith.subf(number_, constant(f32, float(one) + point, self.lanes))
        found = arith.sitofp(vector_type(f32, self.lanes), code)
        return arith.subf(found, constant(f32, point, self.lanes) if zero is None else zero)

    def _bits(self, words: Words, number: int, i: int, place: int) -> ir.Value:
        """The words that hold the bits of value i in a plane, shifted so that the lowest is at `place`."""
        plane = self.codes.planes[number]
        at, within = i // plane.word, i % plane.word
        if at and (number, at) not in words.later:
            words.later[number, at] = self._load(plane, words.column, words.k + at * plane.word)
        word, low = words.later[number, at] if at else words.first[number], within * plane.bits - place
        if low == 0:
            return word
        return arith.shrui(word, self._constant(low)) if low > 0 else arith.shli(word, self._constant(-low))

    def _looked_up(self, places: ir.Value) -> ir.Value:
        """The values of the codes in the low bits of each lane; the instruction reads as many bits as number the lanes."""
        f32 = ir.F32Type.get()
        point = 0.0 if self.codes.zero is not None else self.codes.point
        values = [float(np.float32(n % (1 << self.codes.bits)) - np.float32(point)) for n in range(self.lanes)]
        kind = vector_type(f32, self.lanes)
        table = arith.constant(kind, ir.DenseElementsAttr.get([ir.FloatAttr.get(f32, v) for v in values], kind))
        return intrinsic(_PERMUTE[self.lanes], kind, [table, places])

    def scale(self, column: Index, group: Index) -> ir.Value | None:
        return None if self.codes.scale is None else self._factor(self.codes.scale, column, group)

    def zero(self, column: Index, group: Index) -> ir.Value | None:
        return None if self.codes.zero is None else self._factor(self.codes.zero, column, group)

    @property
    def _centred(self) -> bool:
        codes = self.codes
        return len(codes.planes) == 1 and not codes.signed and codes.zero is None and codes.point == float(1 << (codes.bits - 1))

    def _constant(self, value: int) -> ir.Value:
        return constant(integer_type(_WORD_BITS), value, self.lanes)

    def _row_of(self, number: int, column: Index, group: Index) -> list[Index]:
        """Where the scales or zero points of a group lie in the panel of a column."""
        within = list(maps_of(self.codes.op)[number].results)[1:-1]
        return [column // self.codes.tile, *(Index(0) if isinstance(e, ir.AffineConstantExpr) else group for e in within)]

    def _factor(self, number: int, column: Index, group: Index) -> ir.Value:
        """A vector of a scale or zero point as f32."""
        memory = self.evaluator.memories[self.codes.op.operands[number]]
        value = memory.load([*self._row_of(number, column, group), Index.ramp(column % self.codes.tile, self.lanes)])
        f32 = vector_type(ir.F32Type.get(), self.lanes)
        element = memory.element
        if isinstance(element, ir.IntegerType):
            return arith.sitofp(f32, arith.extui(vector_type(integer_type(_WORD_BITS), self.lanes), value))
        return value if isinstance(element, ir.F32Type) else arith.extf(f32, value)


@dataclass(frozen=True)
class CodesPanel(PanelCopy):
    """Decodes a panel of columns, or a piece of k of it."""

    values: CodeValues | None = None

    def copy(self, loops: Loops, first: Index, left: Index, extent: Index) -> None:
        """All columns of the panel, those beyond the last too, which the panels of codes have."""
        assert self.values is not None
        codes, k = self.values.codes, self.plan.view.k[0]
        low, count = self._range(k)
        total = self.plan.view.extents[k].constant
        assert total is not None
        each = codes.word

        def word(at: Index, size: int) -> None:
            for j in range(self.config.nv):
                self._decode((low, at), first, j, size)

        whole = count - count % each
        loop(0, whole, each, lambda at: word(at, each), index=self.panel.index)
        if total % each:
            when(whole.lt(count), lambda: word(whole, total % each))

    def _decode(self, place: tuple[Index, Index], first: Index, j: int, size: int) -> None:
        """The `size` values of a word of vector j from value `at` of the piece on."""
        assert self.values is not None
        low, at = place
        column, k = first + j * self.config.lanes, low + at
        group = k // self.values.codes.group if self.values.codes.group else Index(0)
        zero, scale = self.values.zero(column, group), self.values.scale(column, group)
        word = self.values.word(column, k)
        for i in range(size):
            value = self.values.value(word, i, zero)
            self._put(value if scale is None else arith.mulf(value, scale), at + i, Index(j * self.config.lanes))
