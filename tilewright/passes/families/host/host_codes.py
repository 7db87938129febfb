"""Family `host_codes`: products with weights in few bits, with what is fused after them.

Few rows: each register block reads words of codes, makes floats of them in registers and multiplies these with the rows; where
rows are one or two, the sums of a group of k are multiplied by its scale, else the values before. Memory then sees the codes
alone. Many rows: a panel of columns is decoded to [k][column] in the workspace once, and multiplied as in `host_matmul`, whose
work units and epilogues these are. Rows that are bytes themselves are multiplied as integers (host_codes_dot.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.analysis.codes import Codes
from tilewright.passes.codegen.emit import Memory, byte_width, integer_type, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.host import host_matmul
from tilewright.passes.families.host.host_codes_dot import CodedRows, DotBlock, step_of
from tilewright.passes.families.host.host_codes_values import CodesPanel, CodeValues
from tilewright.passes.families.host.host_matmul_block import Block, Columns, Loops
from tilewright.passes.families.host.host_matmul_emitter import MatmulEmitter, MatmulUnit
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.mlir import arith, ir, owner
from tilewright.passes.spaces.host.host_codes import SCALED_ROWS, HostCodesConfig, sets_of_sums
from tilewright.runtime.shape import Expr

_UNROLLED = 16  # values of k in one turn of the innermost loop


def emit(kernel: HostKernel, config: HostCodesConfig) -> Grid:
    """The whole kernel. ValueError when no operand of the region is decoded from codes in panels."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan, codes = _planned(kernel, config)
        rows = _coded_rows(plan) if config.dot else None
        return _CodesEmitter(kernel, config.product, plan, workspace, None, codes, config.table, rows,
                             fours=config.dot > 2).units(begin, end)

    return kernel.build(body)


def tile(frame: KernelFrame, config: HostCodesConfig, tiler: Tiler) -> None:
    """The units of `host_matmul`."""
    _planned(frame, config)
    host_matmul.tile(frame, config.product, tiler)


def _planned(frame: KernelFrame, config: HostCodesConfig) -> tuple[Plan, Codes]:
    """The plan, as of prepacked columns where they are decoded in registers."""
    plan = Plan.of(frame)
    codes = Codes.of(owner(plan.view.operand(plan.wide)))
    where = f"{plan.view.op.name} at {plan.view.op.location}"
    if codes is None or not codes.tile or len(plan.view.k) != 1 or plan.column in plan.view.loops_of(plan.narrow):
        raise ValueError(f"{where}: wanted columns that are decoded from codes laid out in panels")
    if codes.tile % config.columns or (codes.group % codes.word):
        raise ValueError(f"{where}: panels of {codes.tile} columns in groups of {codes.group} cannot be read in blocks of "
                         f"{config.columns} by words of {codes.word}")
    return (plan if config.decode else _in_panels(plan, codes.tile)), codes


def _coded_rows(plan: Plan) -> Codes:
    """What the rows are decoded from. ValueError where they are no bytes with a sign and no zero point."""
    found = Codes.of(owner(plan.view.operand(plan.narrow)))
    if found is None or not found.signed or found.zero is not None or found.point or found.tile or len(plan.rows) != 1:
        raise ValueError(f"{plan.view.op.name} at {plan.view.op.location}: wanted rows of bytes with a sign")
    return found


def _in_panels(plan: Plan, tile: int) -> Plan:
    return Plan(plan.view, plan.column, plan.wide, plan.rows, plan.shared, tile, 1, True, False, plan.runs_along, plan.places,
                plan.heavy)


@dataclass(frozen=True)
class _CodesEmitter(MatmulEmitter):
    """`host_matmul` on columns that are decoded. rows: what rows are decoded from that are multiplied as integers; low: the first
    one of those in the workspace;
    fours: are four products added at once?"""

    codes: Codes | None = None
    table: bool = False
    rows: Codes | None = None
    low: Index | int = 0
    fours: bool = False

    @property
    def _values(self) -> CodeValues:
        assert self.codes is not None
        return CodeValues(self.kernel.evaluator, self.codes, self.config.lanes, self.table)

    def _areas(self) -> dict[str, Expr]:
        areas = super()._areas()
        if self.rows is None:
            return areas
        most = Expr.of(self.config.mc) if self.config.mc else self.plan.row_count
        return {**areas, "bytes": most * CodedRows.words(self._total, self._step)}

    @property
    def _total(self) -> int:
        total = self.plan.view.extents[self.plan.view.k[0]].constant
        assert total is not None
        return total

    @property
    def _step(self) -> int:
        assert self.codes is not None and self.rows is not None
        return step_of(self.rows, self.codes, self._total)

    @property
    def _coded(self) -> CodedRows | None:
        if self.rows is None:
            return None
        assert self.codes is not None
        memory = self._memory("bytes", CodedRows.words(self._total, self._step))
        memory = replace(memory, element=integer_type(32))
        return CodedRows(self.kernel.evaluator, self.rows, self.codes, self._total, self._step, memory)

    def units(self, begin: Index, end: Index) -> Grid:
        """Consecutive units of the same rows copy them once."""
        if self.rows is None:
            return super().units(begin, end)
        ev, plan = self.kernel.evaluator, self.plan
        count, at, index = ev.emit(plan.view.extents[plan.column]), self.kernel.loops[0].numbers(ev), self.kernel.index
        coded = self._coded
        assert coded is not None

        def unit(u: Index, before: ir.Value) -> list[ir.Value]:
            here = at(u)
            (low, high), first = here.span("rows"), here.first("columns")
            when(arith.cmpi(arith.CmpIPredicate.ne, low.value(index), before), lambda: coded.copy(low, high))
            loops: Loops = [None for _ in plan.view.extents]
            replace(self, low=low)._pieces(MatmulUnit(loops, first, count, low, high))
            return [low.value(index)]

        loop(begin, end, 1, unit, [Index(-1).value(index)], index=index)
        space = Expr.of(0)
        for elements in self._areas().values():
            space = space + elements
        return Grid(workspace=space * byte_width(self._element))

    def copying(self, panel: Memory, span: tuple[Index, Index] | None) -> CodesPanel:
        return CodesPanel(self.kernel.evaluator, self.plan, self.config, panel, span, self._values)

    def reading(self, panel: Memory | None, span: tuple[Index, Index] | None) -> Block:
        if panel is not None:
            return super().reading(panel, span)
        if (coded := self._coded) is not None:
            return DotBlock(self.kernel.evaluator, self.plan, self.config, None, values=self._values, coded=coded, low=self.low,
                            fours=self.fours)
        return _CodesBlock(self.kernel.evaluator, self.plan, self.config, None, values=self._values)


@dataclass(frozen=True)
class _CodesBlock(Block):
    """A register block that decodes its columns."""

    values: CodeValues | None = None

    def accumulate(self, rows: Sequence[Loops], columns: Columns) -> list[list[ir.Value]]:
        """[row][vector] sums over k, group by group."""
        assert self.values is not None
        codes, values = self.values.codes, self.values
        product, width = ProductCode(self.plan.view.product), len(columns.first)
        zero = product.zero(self.config.lanes)
        total = self.plan.view.extents[self.plan.view.k[0]].constant
        assert total is not None
        early = self.config.mr >= SCALED_ROWS
        group = codes.group if 0 < codes.group < total else max(1, total)

        def of_group(g: Index, length: int, sums: Sequence[ir.Value]) -> list[ir.Value]:
            """Adds `length` values of group g."""
            points = [values.zero(c, g) for c in columns.first]
            scales = [values.scale(c, g) for c in columns.first]
            if early or not any(s is not None for s in scales):
                return self._words(rows, columns, (g * group, length), (points, scales), list(sums))
            sets = sets_of_sums(self.config.mr, self.config.nv)
            parts = self._words(rows, columns, (g * group, length), (points, [None] * width), [zero] * (len(sums) * sets), sets)
            whole = parts[: len(sums)]
            for s in range(1, sets):
                whole = [product.add(a, b) for a, b in zip(whole, parts[s * len(sums) : (s + 1) * len(sums)], strict=True)]
            return [p if (scale := scales[i % width]) is None else product.multiply_add(p, scale, t)
                    for i, (p, t) in enumerate(zip(whole, sums, strict=True))]

        sums = [zero] * (len(rows) * width)
        if total // group > 1:
            sums = loop(0, total // group, 1, lambda g, *c: of_group(g, group, c), sums, self.evaluator.index_type)
        elif total:
            sums = of_group(Index(0), group, sums)
        if total % group:
            sums = of_group(Index(total // group), total % group, sums)
        return [sums[i * width : (i + 1) * width] for i in range(len(rows))]

    def _words(self, rows: Sequence[Loops], columns: Columns, span: tuple[Index, int],
               factors: tuple[Sequence[ir.Value | None], Sequence[ir.Value | None]], sums: list[ir.Value],
               sets: int = 1) -> list[ir.Value]:
        """Adds the products of values from the first of `span` on, as many as its second says, to sets of sums in turn."""
        assert self.values is not None
        word = self.values.codes.word
        start, length = span
        turn = max(1, _UNROLLED // word)
        whole = length // word // turn * turn

        def some(first: Index, words: int, given: Sequence[ir.Value]) -> list[ir.Value]:
            done = list(given)
            for w in range(words):
                done = self._word(rows, columns, (first + w * word, word), factors, done, sets)
            return done

        if whole // turn > 1:
            sums = loop(0, whole * word, turn * word, lambda i, *c: some(start + i, turn, c), sums, self.evaluator.index_type)
        else:
            sums = some(start, whole, sums)
        sums = some(start + whole * word, length // word - whole, sums)
        if length % word:
            sums = self._word(rows, columns, (start + length // word * word, length % word), factors, sums, sets)
        return sums

    def _word(self, rows: Sequence[Loops], columns: Columns, span: tuple[Index, int],
              factors: tuple[Sequence[ir.Value | None], Sequence[ir.Value | None]], sums: list[ir.Value],
              sets: int) -> list[ir.Value]:
        """Adds the products of one word of each vector, of which so many values are there."""
        assert self.values is not None
        k, size = self.plan.view.k[0], len(sums) // sets
        first, count = span
        zeros, scales = factors
        words = [self.values.word(c, first) for c in columns.first]
        if self.config.mr == 1:
            for c in columns.first:
                self.values.fetch(c, first)
        done = list(sums)
        for i in range(count):
            at = i % sets * size
            shared = [self.narrow([first + i if d == k else x for d, x in enumerate(row)]) for row in rows]
            for j, word in enumerate(words):
                value = self.values.value(word, i, zeros[j])
                if (scale := scales[j]) is not None:
                    value = arith.mulf(value, scale)
                for r, a in enumerate(shared):
                    n = at + r * len(words) + j
                    done[n] = self.multiply_add(a, value, done[n])
        return done
