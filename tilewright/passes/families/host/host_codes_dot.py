"""Products of codes by codes: integers of 8 bits, rows by columns in few bits, summed exactly and scaled group by group.

    y[m, n] = sum over groups g of (sum over k of g of a[m, k] * (c[n, k] - zero)) * scale_a[m, g] * scale_c[n, g]

A word holds `each` codes in each of its four bytes. Masked, the codes at one place of all bytes are four bytes without a sign,
which vpdpbusd multiplies by four of the rows and adds in 32 bits. On AVX2 vpmaddubsw adds two products in 16 bits: codes of up to
4 bits, so that as many words as never leave 16 bits are added there (`words_of_sums`), then in pairs to 32 bits; codes of 8 bits
are two of 4. No sum of integers saturates or wraps around.

The bytes of the rows are copied to the workspace in the order in which the words of the columns hold their values, with the sum
of every group, which the zero points are multiplied by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.codes import WORD, Codes
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, lane_mask, lanes_of, loop, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.host.host_codes_values import CodeValues
from tilewright.passes.families.host.host_matmul_block import Block, Columns, Loops
from tilewright.passes.mlir import arith, ir, llvm, maps_of, vector
from tilewright.passes.spaces.host.host_codes import SPLIT_BITS, words_of_sums

ROW_BYTES = 32  # of a row that are copied at once: a whole number of words of any codes
_FLIP = 0x80  # of a byte with a sign, gives 128 more without one
_LIMIT = 4  # words that are multiplied one after the other without a loop, unless fewer leave 16 bits
_PAIRS = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WIDER = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
_FOURS = {4: "llvm.x86.avx512.vpdpbusd.128", 8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}


@dataclass(frozen=True)
class CodedRows:
    """The rows of a unit in the workspace: [row][bytes in order of words, then the sum of each group as i32].

    rows, columns: what both factors are decoded from. depth: values of k. step: values of a group, a whole number of words, that
    have one scale each of both factors. memory: i32, a row after the other.
    """

    evaluator: Evaluator
    rows: Codes
    columns: Codes
    depth: int
    step: int
    memory: Memory

    @staticmethod
    def words(depth: int, step: int) -> int:
        """i32 of a row."""
        return _padded(depth) // WORD + _groups(depth, step)

    def copy(self, low: Index, high: Index) -> None:
        """Rows [low, high) of the operand."""
        loop(low, high, 1, lambda row: self._row(row, row - low), index=self.evaluator.index_type)

    def word(self, row: Index, k: Index, place: int) -> ir.Value:
        """The four bytes of row `row` that meet the codes at `place` of the bytes of the word of k, as i32."""
        at = k // self.columns.word * self.columns.each + place
        return self.memory.load([row, at])

    def total(self, row: Index, group: Index) -> ir.Value:
        """The sum of a group of a row, i32."""
        return self.memory.load([row, group + _padded(self.depth) // WORD])

    def scale(self, row: Index, k: Index) -> ir.Value | None:
        """The scale of a row at k, f32."""
        if self.rows.scale is None:
            return None
        value = self.rows.op.operands[self.rows.scale]
        found = self.evaluator.element(value, _at(self.rows, self.rows.scale, row, k))
        return found if isinstance(found.type, ir.F32Type) else arith.extf(ir.F32Type.get(), found)

    def _row(self, row: Index, into: Index) -> None:
        depth, index = self.depth, self.evaluator.index_type
        whole = depth - depth % ROW_BYTES
        loop(0, whole, ROW_BYTES, lambda k: self._bytes(row, into, k, None), index=index)
        if depth % ROW_BYTES:
            self._bytes(row, into, Index(whole), depth % ROW_BYTES)
        loop(0, _groups(depth, self.step), 1, lambda g: self._sum(into, g), index=index)

    def _bytes(self, row: Index, into: Index, k: Index, count: int | None) -> None:
        """32 values of a row, of which `count` are there; the others are 0."""
        source = self.evaluator.memories[self.rows.op.operands[self.rows.codes]]
        mask = None if count is None else lane_mask(Index(count), ROW_BYTES, self.evaluator.index_type)
        value = source.load(_at(self.rows, self.rows.codes, row, Index.ramp(k, ROW_BYTES)), mask)
        value = splat_to(value, ROW_BYTES)
        each, word = self.columns.each, self.columns.word
        order = [i // word * word + i % WORD * each + i % word // WORD for i in range(ROW_BYTES)]
        ordered = value if each == 1 else vector.shuffle(value, value, order)
        llvm.StoreOp(ordered, self.memory.address([into, k // WORD]), alignment=WORD)

    def _sum(self, into: Index, group: Index) -> None:
        """The sum of a group, of bytes in any order; beyond the last value of a row they are 0, up to a whole 32."""
        i32, words = integer_type(32), _padded(self.depth) // WORD
        first, last, lanes = Index(0), Index(words), ROW_BYTES // WORD
        if self.step < self.depth:
            first = group * (self.step // WORD)
            last = (first + self.step // WORD).min(last)
            lanes = next(n for n in (8, 4, 2) if self.step % (n * WORD) == 0)
        wide = lanes * WORD

        def several(at: Index, sums: ir.Value) -> list[ir.Value]:
            value = llvm.LoadOp(vector_type(integer_type(8), wide), self.memory.address([into, at]), alignment=WORD).result
            spread = arith.extsi(vector_type(i32, wide), value)
            parts = [vector.shuffle(spread, spread, list(range(i * lanes, (i + 1) * lanes))) for i in range(WORD)]
            return [arith.addi(arith.addi(arith.addi(parts[0], parts[1]), arith.addi(parts[2], parts[3])), sums)]

        zero = constant(i32, 0, lanes)
        total = loop(first, last, lanes, several, [zero], self.evaluator.index_type)[0]
        reduced = vector.reduction(i32, vector.CombiningKind.ADD, total)
        self.memory.store(reduced, [into, group + _padded(self.depth) // WORD])


@dataclass(frozen=True)
class DotBlock(Block):
    """A register block of integers. low: the first of the rows that were copied. fours: has the target vpdpbusd?"""

    values: CodeValues | None = None
    coded: CodedRows | None = None
    low: Index | int = 0
    fours: bool = False

    def accumulate(self, rows: Sequence[Loops], columns: Columns) -> list[list[ir.Value]]:
        """[row][vector] sums over k, group by group, in f32."""
        assert self.coded is not None
        coded, width = self.coded, len(columns.first)
        depth, step = coded.depth, coded.step
        zero = ProductCode(self.plan.view.product).zero(self.config.lanes)
        (row_loop,) = self.plan.rows
        places = [_known(row, row_loop) for row in rows]

        def of_group(g: Index, length: int, sums: Sequence[ir.Value]) -> list[ir.Value]:
            dots = self._dots([p - self.low for p in places], columns, (g, length))
            return self._scaled(places, columns, (g, dots), sums)

        sums = [zero] * (len(rows) * width)
        if depth // step > 1:
            sums = loop(0, depth // step, 1, lambda g, *c: of_group(g, step, c), sums, self.evaluator.index_type)
        elif depth >= step:
            sums = of_group(Index(0), step, sums)
        if depth % step:
            sums = of_group(Index(depth // step), depth % step, sums)
        return [sums[i * width : (i + 1) * width] for i in range(len(rows))]

    def _scaled(self, places: Sequence[Index], columns: Columns, done: tuple[Index, Sequence[ir.Value]],
                sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums with those of a group added, times both scales."""
        assert self.values is not None and self.coded is not None
        coded, values, lanes = self.coded, self.values, self.config.lanes
        group, dots = done
        k, f32 = group * coded.step, vector_type(ir.F32Type.get(), lanes)
        at = k // values.codes.group if values.codes.group else Index(0)
        if self.config.mr == 1:
            values.fetch_factors(columns.first, at)
        scales = [values.scale(c, at) for c in columns.first]
        zeros = [values.zero(c, at) for c in columns.first]
        found = list[ir.Value]()
        for i, row in enumerate(places):
            own = coded.scale(row, k)
            shared = None if own is None else splat_to(own, lanes)
            total = None
            if self._rest:
                total = splat_to(arith.sitofp(ir.F32Type.get(), coded.total(row - self.low, group)), lanes)
            for j, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
                n = i * len(scales) + j
                number = arith.sitofp(f32, dots[n])
                if total is not None:
                    point = zero if zero is not None else constant(ir.F32Type.get(), values.codes.point, lanes)
                    number = arith.subf(number, arith.mulf(point, total))
                factor = scale if shared is None else shared if scale is None else arith.mulf(scale, shared)
                found.append(arith.addf(sums[n], number) if factor is None else llvm.intr_fmuladd(number, factor, sums[n]))
        return found

    @property
    def _base(self) -> int:
        """What is subtracted from codes without a sign in integers."""
        assert self.values is not None
        codes = self.values.codes
        whole = codes.zero is None and codes.point == int(codes.point) and abs(codes.point) <= _FLIP
        return (_FLIP if codes.signed else 0) + (int(codes.point) if whole else 0)

    @property
    def _rest(self) -> bool:
        """Is there a zero point that is no whole number for all?"""
        assert self.values is not None
        codes = self.values.codes
        return codes.zero is not None or codes.point != int(codes.point) or abs(codes.point) > _FLIP

    def _dots(self, places: Sequence[Index], columns: Columns, span: tuple[Index, int]) -> list[ir.Value]:
        """[row][vector] sums of `length` products of a group, i32, less the zero point where it is a whole number."""
        assert self.values is not None and self.coded is not None
        coded, codes, lanes, i32 = self.coded, self.values.codes, self.config.lanes, integer_type(32)
        group, length = span
        first, words = group * coded.step, -(-length // codes.word)
        sums = []
        for row in places:
            start = constant(i32, 0, lanes)
            if self._base:
                start = splat_to(arith.muli(coded.total(row, group), constant(i32, -self._base)), lanes)
            sums += [start] * len(columns.first)
        most = _LIMIT if self.fours else words_of_sums(codes.bits)
        turn = min(most, words)

        def several(k: Index, count: int, given: Sequence[ir.Value]) -> list[ir.Value]:
            return self._products(places, columns, (k, count), given)

        whole = words // turn * turn
        if whole // turn > 1:
            sums = loop(0, whole, turn, lambda w, *c: several(first + w * codes.word, turn, c), sums, self.evaluator.index_type)
        else:
            sums = several(first, whole, sums)
        return several(first + whole * codes.word, words - whole, sums) if words > whole else sums

    def _products(self, places: Sequence[Index], columns: Columns, span: tuple[Index, int],
                  sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Adds the products of so many words from k on, in 16 bits and then in 32 where four bytes are not added at once."""
        assert self.values is not None and self.coded is not None
        codes, done = self.values.codes, list(sums)
        k, count = span
        parts: list[list[ir.Value | None]] = [[None] * len(done) for _ in range(self._halves)]
        for w in range(count):
            here = k + w * codes.word
            if self.config.mr == 1:
                for c in columns.first:
                    self.values.fetch(c, here)
            words = [self._word(c, here) for c in columns.first]
            for place in range(codes.each):
                wide = [self._bytes(word, place) for word in words]
                for i, row in enumerate(places):
                    shared = self._as_bytes(splat_to(self.coded.word(row, here, place), self.config.lanes))
                    for j, halves in enumerate(wide):
                        n = i * len(words) + j
                        if self.fours:
                            done[n] = intrinsic(_FOURS[self.config.lanes], done[n].type, [done[n], halves[0], shared])
                            continue
                        for part, half in zip(parts, halves, strict=True):
                            pairs = intrinsic(_PAIRS[self.config.lanes], self._short, [half, shared])
                            before = part[n]
                            part[n] = pairs if before is None else arith.addi(before, pairs)
        if self.fours:
            return done
        for h, part in enumerate(parts):
            weight = constant(integer_type(16), 1 << (SPLIT_BITS * h), 2 * self.config.lanes)
            for n, value in enumerate(part):
                if value is not None:
                    done[n] = arith.addi(done[n], intrinsic(_WIDER[self.config.lanes], done[n].type, [value, weight]))
        return done

    @property
    def _short(self) -> ir.Type:
        return vector_type(integer_type(16), 2 * self.config.lanes)

    @property
    def _halves(self) -> int:
        """Parts of a code that are multiplied apart."""
        assert self.values is not None
        return 1 if self.fours or self.values.codes.bits <= SPLIT_BITS else 2

    def _word(self, column: Index, k: Index) -> ir.Value:
        assert self.values is not None
        word = self.values.raw(column, k)
        if not self.values.codes.signed:
            return word
        return arith.xori(word, constant(integer_type(32), _repeated(_FLIP), lanes_of(word)))

    def _bytes(self, word: ir.Value, place: int) -> list[ir.Value]:
        """The codes at one place of all bytes of the words, in parts of up to 4 bits, the low ones first."""
        assert self.values is not None
        bits = self.values.codes.bits
        width = min(bits, SPLIT_BITS) if not self.fours else bits
        found = []
        for h in range(self._halves):
            low = place * bits + h * width
            moved = arith.shrui(word, constant(integer_type(32), low, lanes_of(word))) if low else word
            if width < 8:
                moved = arith.andi(moved, constant(integer_type(32), _repeated((1 << width) - 1), lanes_of(word)))
            found.append(self._as_bytes(moved))
        return found

    def _as_bytes(self, words: ir.Value) -> ir.Value:
        return vector.bitcast(vector_type(integer_type(8), WORD * lanes_of(words)), words)


def step_of(rows: Codes, columns: Codes, depth: int) -> int:
    """Values of k for which both factors have one scale each. ValueError where no whole number of words is."""
    sizes = sorted({g if 0 < g < depth else max(1, depth) for g in (rows.group, columns.group)})
    if sizes[-1] % sizes[0] and sizes[-1] != depth:
        raise ValueError(f"groups of {rows.group} values of the rows and {columns.group} of the columns do not nest")
    if sizes[0] < depth and sizes[0] % max(2 * WORD, columns.word):
        raise ValueError(f"groups of {sizes[0]} values are no multiple of the {columns.word} in a word and of {2 * WORD}")
    return sizes[0]


def _at(codes: Codes, operand: int, row: Index, k: Index) -> list[Index]:
    """Coordinates of an operand of a decoding at a row and value k."""
    point: list[Index | None] = [None, None]
    point[codes.n], point[codes.k] = row, k
    return [evaluate(e, point) for e in maps_of(codes.op)[operand].results]


def _padded(depth: int) -> int:
    return -(-depth // ROW_BYTES) * ROW_BYTES


def _groups(depth: int, step: int) -> int:
    return -(-depth // step)


def _repeated(byte: int) -> int:
    """Four equal bytes as the number of an i32."""
    value = byte * 0x01010101
    return value - (1 << 32) if value >> 31 else value


def _known(loops: Loops, d: int) -> Index:
    found = loops[d]
    assert found is not None
    return found
