"""What a compiled program does at one shape: the kernel of each call, and the memory it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tilewright.runtime.dim_forms import as_integer
from tilewright.runtime.errors import OptionError, ShapeError, perhaps
from tilewright.runtime.program.certificate import Expected
from tilewright.runtime.program.data_branches import how
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.html_table import html_table
from tilewright.runtime.program.program import Call, Program, StripSpan
from tilewright.runtime.program.ragged_point import lengths_of, sums_of
from tilewright.runtime.program.steps import IfStep, LoopStep, all_steps, counters_of, shown, with_counters
from tilewright.runtime.shape import Expr

_UNTUNED = "by the rules of its family, not tuned"
_BATCH = ("useful", "executed", "padding")
_HEAD = ("call", "workload", "kernel", "family", "config", "units", "threads", "dims", "predicted", "measured")


class CallChoice(msgspec.Struct, frozen=True):
    """One kernel launch. `units`: independent pieces of work; `threads`: the most on them (0: all).

    predicted, measured: seconds that the search expects and that it measured at this shape; 0 where it did not. why: what
    the choice rests on. Of a call for each sequence of a batch: the units of all, the rest of the one with most of them.
    useful, executed: operations, of all sequences; 0 where they are not known. What is beyond the useful ones is padding of
    tiles, and rows between sequences that are aligned.
    """

    call: int
    workload: str
    kernel: str
    family: str
    config: str
    units: int
    threads: int
    dims: dict[str, int]
    predicted: float = 0.0
    measured: float = 0.0
    why: str = ""
    useful: int = 0
    executed: int = 0

    @property
    def padding(self) -> float:
        """Operations for nothing, as a share of the useful ones."""
        return self.executed / self.useful - 1 if self.useful else 0.0


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes that a call takes beside its inputs; `constants` are shared by all calls.

    padding: of a batch: the bytes of arena and outputs that belong to no sequence, since sequences are aligned (tw.Ragged).
    """

    arena: int
    constants: int
    outputs: int
    padding: int = 0

    @property
    def total(self) -> int:
        return self.arena + self.constants + self.outputs


class Explanation(msgspec.Struct, frozen=True):
    """The choices of the dispatch at one shape. `str()` is a table.

    launches: independent calls may be one. tree: lines of a program that branches or loops; the calls of a loop are those at the
    largest value of its counters, or at the one that was asked for. batch: of a ragged model, whose table has the operations and
    the padding of each kernel.
    """

    target: str
    dims: dict[str, int]
    calls: tuple[CallChoice, ...]
    launches: int = 0
    tree: tuple[str, ...] = ()
    batch: bool = False

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        rows = [self._head(), *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        numbers = {0, 5, 6, 10, 11, 12}
        lines = [
            "  ".join(
                cell.rjust(w) if i in numbers else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        why = [f"call {c.call}: {c.why}" for c in self.calls if c.why != _UNTUNED]
        return "\n".join([self._title(), *lines, *self.tree, *why])

    def _repr_html_(self) -> str:
        """For notebooks: the table, with why as its last column."""
        rows = [(*row, c.why) for row, c in zip(self._rows(), self.calls, strict=True)]
        return html_table(self._title(), (*self._head(), "why"), rows)

    def _head(self) -> tuple[str, ...]:
        return (*_HEAD, *_BATCH) if self.batch else _HEAD

    def _title(self) -> str:
        plural = "es" if self.launches > 1 else ""
        fewer = 0 < self.launches < len(self.calls)
        together = f"  {len(self.calls)} calls in {self.launches} launch{plural}" if fewer else ""
        return f"{self.target}  {_point(self.dims)}".rstrip() + together

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(c.call),
                c.workload,
                c.kernel,
                c.family,
                c.config,
                str(c.units),
                str(c.threads or "all"),
                _point(c.dims),
                duration(c.predicted),
                duration(c.measured),
                *((f"{c.useful:,}", f"{c.executed:,}", f"{c.padding:.1%}") if self.batch else ()),
            )
            for c in self.calls
        ]


def explain(program: Program, dims: Mapping[str, Any]) -> Explanation:
    """Which kernel serves each call at these dims.

    Raises:
        OptionError: a dim is missing or unknown. ShapeError: one is outside its range.
    """
    counted = {c.name: as_integer(dims[c.name], f"counter {c.name}") for c in counters_of(program.tree) if c.name in dims}
    dims, lengths = lengths_of(program, {name: value for name, value in dims.items() if name not in counted})
    point = with_counters(program.tree, {**resolve(program, dims), **counted})
    own = {**point, **sums_of(program, lengths)} if lengths else point  # without rows between the sequences
    choices = []
    together = "in one launch" if program.target.startswith("host") else "by a block table"
    for number, call in enumerate(program.calls):
        table = program.tables[call.table]
        count = len(next(iter(lengths.values()))) if call.over else 1
        found = [_local(table, call, {**point, **{n: own[i] for n, own in lengths.items()}} if call.over else point)
                 for i in range(count)]
        numbers = [table.select({**one, **layout}).kernel for one, layout in found]
        kernels = [table.kernels[n] for n in numbers]
        work = [table.operations(n, one) for n, (one, _) in zip(numbers, found, strict=True)]
        if own != point and not call.over:
            work = [(table.operations(numbers[0], _local(table, call, own)[0])[0], work[0][1])]
        units = [math.prod(k.units(one)) for k, (one, _) in zip(kernels, found, strict=True)]
        if not units:
            continue
        largest = max(range(count), key=lambda i: (units[i], math.prod(found[i][0].values())))
        (local, layout), kernel = found[largest], kernels[largest]
        leaf = table.select({**local, **layout})
        known = _expected(program, table, local)
        exact = known is not None and known.dims == tuple(local.values())
        choices.append(
            CallChoice(
                number,
                table.name,
                kernel.symbol,
                kernel.family,
                kernel.config,
                sum(units),
                leaf.threads,
                local,
                known.predicted if known and exact else 0.0,
                known.measured if known and exact else 0.0,
                (f"{count} sequences {together}, the longest as shown; " if call.over else "")
                + _why(program, table, known, local) + (f"; weights of {table.codes:,} bytes are read" if table.codes else ""),
                sum(useful for useful, _ in work),
                sum(executed for _, executed in work),
            )
        )
    launches = len({("alone", n) if call.launch < 0 else call.launch for n, call in enumerate(program.calls)})
    tree = (*shown(program.tree), *_on_data(program), *_by_strips(program, point))
    return Explanation(program.target, point, tuple(choices), launches, tree, bool(program.ragged))


def _by_strips(program: Program, point: Mapping[str, int]) -> list[str]:
    """Which calls are done by strips of rows at these dims."""
    def way(s: StripSpan) -> str:
        if not s.each:
            return "images, which threads share evenly"
        return f"strips of up to {s.size} rows, {s.each} or more for each thread"

    return [f"calls {', '.join(map(str, s.calls))} by {way(s)}"
            for s in program.strips if Expr.parse(s.rows).evaluate(point) >= s.least]


def _on_data(program: Program) -> list[str]:
    """How the branches and loops on data are run, and why."""
    sites = [s for s in all_steps(program.tree) if isinstance(s, IfStep | LoopStep) and s.site >= 0]
    return [f"{'branch' if isinstance(s, IfStep) else 'loop'} on data {s.site}: {how(s)}" for s in sites]


def _local(table: DispatchTable, call: Call, point: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The local dims of a call and what its table's tree asks for of the layout."""
    local = {name: Expr.parse(text).evaluate(point) for name, text in zip(table.dims, call.dims, strict=True)}
    return local, {name: Expr.parse(text).evaluate(point) for name, text in call.layout.items()}


def memory(program: Program, dims: Mapping[str, Any], threads: int) -> MemoryUse:
    """Bytes of arena, constants and results at these dims; errors as `explain`."""
    dims, lengths = lengths_of(program, dims)
    point = resolve(program, dims)

    def arena_and_outputs(point: Mapping[str, int]) -> tuple[int, int]:
        outputs = sum(math.prod(e.evaluate(point) for e in a.spec().dims) * a.dtype.bytes for a in program.outputs)
        return Expr.parse(program.arena).evaluate({**point, "threads": threads}), outputs

    constants = {c.digest: math.prod(c.shape) * c.dtype.bytes for c in program.constants}
    arena, outputs = arena_and_outputs(point)
    padding = arena + outputs - sum(arena_and_outputs({**point, **sums_of(program, lengths)}))
    return MemoryUse(arena, sum(constants.values()), outputs, padding)


def duration(seconds: float) -> str:
    """In microseconds; nothing where it is not known."""
    return f"{seconds * 1e6:.3g} us" if seconds else ""


def _expected(program: Program, table: DispatchTable, local: Mapping[str, int]) -> Expected | None:
    """What the search knew at the shape or, where it did not look at that, at the nearest."""
    found = next((c for c in program.certificates if c.workload == table.workload), None)
    return found.near(local) if found is not None else None


def _why(program: Program, table: DispatchTable, known: Expected | None, local: Mapping[str, int]) -> str:
    if known is None:
        refused = program.refused.get(table.name)
        return _UNTUNED + (f"; {refused}" if refused else "")
    place = "" if known.dims == tuple(local.values()) else f"at {_point(dict(zip(table.dims, known.dims, strict=True)))}: "
    parts = [f"{place}{'measured ' + duration(known.measured) if known.measured else 'predicted ' + duration(known.predicted)}"]
    if known.best:
        over = known.predicted / known.best - 1
        parts.append("the fastest known" if over < 0.0005 else f"{over:.1%} over the fastest known, {duration(known.best)}")
    if known.default:
        parts.append(f"untuned {duration(known.default)}")
    if known.ratio:
        parts.append(f"beside untuned {known.ratio:.3f} of its time, at most {known.most:.3f} another time")
    return ", ".join(parts)


def resolve(program: Program, dims: Mapping[str, int]) -> dict[str, int]:
    """The dims in the program's order, checked."""
    ranges = program.ranges()
    known = ", ".join(f"{n} ({d})" for n, d in ranges.items()) or "none"
    for name in dims:
        if name not in ranges:
            example = ", ".join(f"{n}={d.lo}" for n, d in ranges.items())
            raise OptionError(f"the model has no dim {name!r}; wanted a value for each of its dims: {known}; give ({example})"
                              f"{perhaps(name, ranges)}")
    for name in ranges:
        if name not in dims:
            raise OptionError(f"dim {name}: wanted a value for each of the dims {known}, got "
                              f"{', '.join(f'{n}={v!r}' for n, v in dims.items()) or 'none'}; give {name}={ranges[name].lo} too")
    point = {name: as_integer(dims[name], f"dim {name}") for name in ranges}
    if program.out_of_range == "error":
        ranges.check(point)
    for name, value in point.items():
        if value < 0:
            raise ShapeError(f"dim {name} = {value}: wanted a size from 0 on; give one of {ranges[name]}")
    return point


def _point(dims: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in dims.items())
