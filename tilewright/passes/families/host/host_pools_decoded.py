"""Convolutions of whole numbers with filters out of pools, whose indices become bytes that an image of bytes is multiplied by.

A work unit is some rows of pixels of the result by some filters. Its pixels become bytes without a sign, u = v + z, where z is
the zero that was taken from all codes (analysis/whole_rows.py). Of 32 filters at a time the vectors that their indices name are
put where products of bytes want them, for all places of the window, and all pixels are multiplied by them; sums begin at -z times
the sum of the weights. Source of the format: Bit-serial Weight Pools (MLSys 2022); here the products of few pixels with many
filters, or of CPUs that multiply many bytes an instruction, are faster than looking up those with the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.whole_rows import WholeRows
from tilewright.passes.codegen.emit import Memory, constant, integer_type, intrinsic, loop, vector_type
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode, coords_of
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_pools_bytes import MANY, bytes_of_words
from tilewright.passes.families.host.host_pools_pairs import PoolPairs
from tilewright.passes.families.host.host_pools_strips import StripEmitter
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_pools import DECODED_COLUMNS, TILED, VECTOR
from tilewright.passes.spaces.host.pool_image import PoolImage

WORDS = 16  # of 32 bits in a register
HALVES = DECODED_COLUMNS // WORDS
_DOT = "llvm.x86.avx512.vpdpbusd.512"


@dataclass(frozen=True)
class Step:
    """A step along the sum: the book, the place of the window and the part of the channels that it is of, and its number."""

    book: int
    down: Index
    across: Index
    part: Index
    number: Index


@dataclass(frozen=True)
class DecodedEmitter(StripEmitter):
    """Of units of `config.mc` rows of pixels; `config.groups` counts vectors of channels of a step."""

    @property
    def _image(self) -> PoolImage:
        return PoolImage(self._loops.shape, self.config.mc, self._channels * VECTOR, self.config.rows)

    @property
    def _step(self) -> int:
        """Words of 32 bits of the weights of a column of a step."""
        return self.config.groups * VECTOR // 4

    @property
    def _steps(self) -> int:
        """Of a sum."""
        down, across = self._loops.shape.taps
        return len(self.pools.books) * down * across * (self._channels // self.config.groups)

    def _areas(self) -> dict[str, int]:
        return {"pool": len(self.pools.books) * PoolPairs.words(self.pools), "starts": DECODED_COLUMNS,
                "image": self._image.bytes // 4, "row": self._image.row_bytes // 4,
                "weights": self._kept * self._step * DECODED_COLUMNS, "sums": self.config.rows * DECODED_COLUMNS}

    @property
    def _kept(self) -> int:
        """Steps whose weights are kept."""
        return self._steps

    @property
    def _pairs(self) -> PoolPairs:
        return PoolPairs(self.kernel.evaluator, self.pools, self._memory("pool", integer_type(32)))

    def _fill(self) -> None:
        self._pairs.fill()

    def _unit(self, low: Index, first: Index, count: Index) -> None:
        """The strip of rows of pixels from `low` on, by the columns from `first` on."""
        begin, zero = low * self._loops.shape.width, self._zero()
        loops: Loops = [None for _ in self.plan.view.extents]
        self._lay_out(self._point(loops, begin), zero)
        loop(0, (count - first).min(self.config.columns).ceildiv(DECODED_COLUMNS), 1, lambda p: self._columns(
            (begin, first + p * DECODED_COLUMNS, count), zero), index=self.kernel.index)

    def _columns(self, at: tuple[Index, Index, Index], zero: ir.Value) -> None:
        """All pixels of the strip by 32 columns. at: the first row, the first column and the end of all."""
        index, image, rows, panel = self.kernel.index, self._image, self.config.rows, at[1] // DECODED_COLUMNS
        sums = [constant(integer_type(32), 0, WORDS)] * HALVES
        self._begin(self._along(lambda s, given: self._decode(panel, s, given), sums), zero)

        def block(i: Index) -> None:
            self._multiply(i)
            self._finish(at, i)

        loop(0, image.pixels, rows, block, index=index)

    def _along(self, step: Callable[[Step, Sequence[ir.Value]], Sequence[ir.Value]],
               carried: Sequence[ir.Value] = ()) -> Sequence[ir.Value]:
        """Goes through the steps of a sum."""
        (down, across), index = self._loops.shape.taps, self.kernel.index
        parts = self._channels // self.config.groups

        def at(book: int, d: Index, a: Index, given: Sequence[ir.Value]) -> Sequence[ir.Value]:
            first = ((d + book * down) * across + a) * parts
            return loop(0, parts, 1, lambda c, *t: step(Step(book, d, a, c, first + c), t), given, index)

        for book in range(len(self.pools.books)):
            def row(d: Index, *given: ir.Value, book: int = book) -> Sequence[ir.Value]:
                return loop(0, across, 1, lambda a, *t: at(book, d, a, t), given, index)

            carried = loop(0, down, 1, row, carried, index)
        return carried

    def _zero(self) -> ir.Value:
        """What was taken from the codes, as an i32."""
        found, i32 = WholeRows.behind(self.plan.view.operand(self.plan.narrow)), integer_type(32)
        assert found is not None
        if found.zero is None:
            return constant(i32, 0)
        byte = self.kernel.evaluator.element(found.op.operands[found.zero], [Index(i) for i in found.zero_place or ()])
        bits = constant(i32, found.bits) if isinstance(found.bits, int) else arith.trunci(i32, self._dim(found.bits).value(
            self.kernel.index))
        mask = arith.subi(arith.shli(constant(i32, 1), bits), constant(i32, 1))
        return arith.andi(arith.extui(i32, byte), mask)

    def _dim(self, bits: ir.Value) -> Index:
        found = self.kernel.shapes.expr(bits)
        assert found is not None
        return self.kernel.evaluator.emit(found)

    def _lay_out(self, point: Loops, zero: ir.Value) -> None:
        """The bytes of all pixels that the strip reads; those that several places of the window read are made once."""
        image, shape, index = self._image, self._loops.shape, self.kernel.index
        kept, once, across = self._memory("image", integer_type(8)), self._memory("row", integer_type(8)), shape.taps[1]

        def line(phase: int, y: Index) -> None:
            starts = [y * image.row + (phase * across + a) * image.copy for a in range(across)]
            if not image.read:
                for a, start in enumerate(starts):
                    self._make((point, zero), (phase, y), (a, shape.width), (kept, start))
                return
            begins = [sum(wide for _, wide in image.read[:n]) * image.channels for n in range(len(image.read))]
            for (first, wide), begin in zip(image.read, begins, strict=True):
                self._make((point, zero), (phase, y), (first, wide), (once, Index(begin)))
            for a, start in enumerate(starts):
                begin = begins[a % shape.steps[1]] + a // shape.steps[1] * image.channels
                loop(0, image.row, self._lanes, lambda i, start=start, begin=begin: kept.store(
                    once.load([Index.ramp(i + begin, self._lanes)]), [Index.ramp(start + i, self._lanes)]), index=index)

        for phase in range(image.phases):
            loop(0, image.tall, 1, lambda y, phase=phase: line(phase, y), index=index)

    @property
    def _lanes(self) -> int:
        """Channels that become bytes at once."""
        return next(n for n in (64, 32, 16, 8) if self._image.channels % n == 0)

    def _make(self, given: tuple[Loops, ir.Value], row: tuple[int, Index], pixels: tuple[int, int],
              place: tuple[Memory, Index]) -> None:
        """The bytes of pixels of row (remainder, number) of a strip: of (first place across, how many), a step apart, to (memory,
        where they begin). given: the strip's first row of the result, and what is added."""
        (point, zero), (phase, y), (first, wide), (memory, start) = given, row, pixels, place
        image, loops, index = self._image, self._loops, self.kernel.index
        shape, view, which, lanes = loops.shape, self.plan.view, self.plan.narrow, self._lanes
        begin, words, above = point[loops.row], vector_type(integer_type(32), lanes), splat_to(zero, lanes)
        assert begin is not None

        def pixel(x: Index) -> None:
            here, there, along = list(point), y.min(image.rows - 1), x.min(shape.width - 1)
            here[loops.row], here[loops.pixel] = begin + there, along
            here[loops.down] = ((y - there) * shape.steps[0] + phase).min(shape.taps[0] - 1)
            here[loops.across] = (x - along) * shape.steps[1] + first

            def run(c: Index) -> None:
                here[self._channel_loop] = Index.ramp(c, lanes)
                value = ProductCode(view.product).factor(which, self.kernel.evaluator.element(
                    view.operand(which), coords_of(view, which, here)))
                whole = arith.addi(arith.fptosi(words, splat_to(value, lanes)), above)
                (low,) = bytes_of_words(whole, [0]) if lanes == MANY and self.config.decoded == TILED else [
                    arith.trunci(vector_type(integer_type(8), lanes), whole)]
                memory.store(low, [Index.ramp(start + x * image.channels + c, lanes)])

            loop(0, image.channels, lanes, run, index=index)

        loop(0, wide, 1, pixel, index=index)

    def _decode(self, panel: Index, step: Step, sums: Sequence[ir.Value],
                halves: Sequence[int] = range(HALVES)) -> list[ir.Value]:
        """Keeps the weights of a step and halves of the columns of a panel; their sums with those of the step."""
        weights, pairs, done = self._memory("weights", integer_type(32)), self._pairs, list(sums)
        word, loops = vector_type(integer_type(32), WORDS), self._loops
        ones = constant(integer_type(32), 0x01010101, WORDS)
        for g in range(self.config.groups):
            named = self._named(self.pools.books[step.book].index, panel, {loops.down: step.down, loops.across: step.across},
                                step.part * self.config.groups + g)
            for i, half in enumerate(halves):
                indices = arith.extui(word, named.load([Index.ramp(half * WORDS, WORDS)]))
                for n in range(VECTOR // 4):
                    found = pairs.words_of(step.book, n, indices)
                    weights.store(found, [Index.ramp(self._weights_at(step, half) + (g * VECTOR // 4 + n) * WORDS, WORDS)])
                    done[i] = _dot(done[i], ones, found)
        return done

    def _weights_at(self, step: Step, half: int) -> Index:
        """Where the weights of a step lie: [half of the columns][step][word of the step][column]."""
        return (step.number % self._kept if self._kept < self._steps else step.number) * (self._step * WORDS) + \
            half * (self._kept * self._step * WORDS)

    def _begin(self, sums: Sequence[ir.Value], zero: ir.Value, halves: Sequence[int] = range(HALVES)) -> None:
        """What the sums of halves of the columns begin at. sums: of their weights."""
        starts, less = self._memory("starts", integer_type(32)), arith.subi(constant(integer_type(32), 0), zero)
        for half, total in zip(halves, sums, strict=True):
            starts.store(arith.muli(total, splat_to(less, WORDS)), [Index.ramp(half * WORDS, WORDS)])

    def _multiply(self, pixel: Index) -> None:
        """The sums of a block of pixels from `pixel` on: [pixel][column]."""
        image, rows, index = self._image, self.config.rows, self.kernel.index
        weights, pixels = self._memory("weights", integer_type(32)), self._memory("image", integer_type(8))

        def of(step: Step, given: Sequence[ir.Value]) -> list[ir.Value]:
            done, base = list(given), self._pixels_at(pixel, step)
            for n in range(self._step):
                columns = [weights.load([Index.ramp(self._weights_at(step, half) + n * WORDS, WORDS)])
                           for half in range(HALVES)]
                for r in range(rows):
                    four = Memory(pixels.address([base + (r * image.channels + 4 * n)]), integer_type(32), (), (), index).load([])
                    for half, column in enumerate(columns):
                        done[r * HALVES + half] = _dot(done[r * HALVES + half], splat_to(four, WORDS), column)
            return done

        kept = self._memory("sums", integer_type(32))
        for n, value in enumerate(self._along(of, [constant(integer_type(32), 0, WORDS)] * (HALVES * rows))):
            kept.store(value, [Index.ramp(n * WORDS, WORDS)])

    def _pixels_at(self, pixel: Index, step: Step) -> Index:
        """Where the bytes of pixels of a step begin."""
        image, steps, taps = self._image, self._loops.shape.steps[0], self._loops.shape.taps[1]
        place = ((step.down % steps) * taps + step.across) * image.copy + step.down // steps * image.row
        return pixel * image.channels + place + step.part * (self.config.groups * VECTOR)

    def _finish(self, at: tuple[Index, Index, Index], pixel: Index, halves: Sequence[int] = range(HALVES)) -> None:
        """What follows the sums of a block of pixels from `pixel` on by halves of 32 columns. at: as of `_columns`."""
        (begin, first, count), wide, index = at, len(halves) * WORDS, self.kernel.index
        sums, starts = self._memory("sums", integer_type(32)), self._memory("starts", integer_type(32))
        ahead = halves[0] * WORDS
        loops: Loops = [None for _ in self.plan.view.extents]

        def each(r: Index) -> None:
            def of(j: Index, n: int) -> ir.Value:
                return arith.addi(sums.load([Index.ramp(r * wide + j, n)]), starts.load([Index.ramp(j + ahead, n)]))

            self._vectors(self._point(loops, begin + pixel + r), first + ahead, count, of, WORDS, wide)

        loop(0, (Index(self._image.pixels) - pixel).min(self.config.rows), 1, each, index=index)


def _dot(total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """total + the products of four bytes each of two words, in every lane."""
    kind = vector_type(integer_type(8), 4 * WORDS)
    return intrinsic(_DOT, total.type, [total, vector.bitcast(kind, unsigned), vector.bitcast(kind, signed)])
