"""The section of a batch in the page of `tilewright report`: useful and executed operations of each kernel of a ragged model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.compiler.report.report_page import ReportSection, Table, figure
from tilewright.runtime.program.explanation import explain, memory
from tilewright.runtime.program.program import DimInfo, Program

_SEQUENCES = 32  # of a batch that nobody gave


def padding_of_a_batch(program: Program, given: Mapping[str, Any]) -> ReportSection:
    """What the kernels of a batch execute, and what of it is useful.

    Args:
        given: the dims of the batch as `explain` takes them; where there are none, a batch of the declared samples, or of lengths
            over the whole range.
    Raises:
        OptionError, ShapeError: as of `explain`.
    """
    batch = dict(given) or {d.name: _lengths(d, program) for d in program.ragged}
    found, kept = explain(program, batch), memory(program, batch, 1)
    useful, executed = sum(c.useful for c in found.calls), sum(c.executed for c in found.calls)
    facts = (
        *((name, str(value)) for name, value in found.dims.items()),
        ("useful operations", f"{useful:,}"),
        ("executed operations", f"{executed:,}"),
        ("padding", f"{executed / useful - 1:.1%}" if useful else "-"),
        ("arena, one thread", f"{kept.arena:,} bytes"),
        ("rows between sequences", f"{kept.padding:,} bytes"),
    )
    drawn = figure("", "executed / useful operations", height=280)
    calls = [c for c in found.calls if c.useful]
    drawn.add_bar(x=[f"{c.call} {c.workload[:40]}" for c in calls], y=[1 + c.padding for c in calls], name="executed / useful")
    rows = tuple((f"{c.call} {c.workload}", c.family, c.config, f"{c.units:,}", f"{c.useful:,}", f"{c.executed:,}",
                  f"{c.padding:.1%}") for c in found.calls)
    columns = ("call", "family", "configuration", "units", "useful", "executed", "padding")
    shown = "; ".join(f"{n} = {', '.join(map(str, _first(own)))}" for n, own in batch.items())
    return ReportSection("Padding of a batch", f"Lengths: {shown}.", facts, (drawn,), (Table(columns, rows),))


def _first(own: Any) -> list[Any]:
    every = own if isinstance(own, list | tuple) else [own]
    return [*every[:_SEQUENCES], *(["..."] if len(every) > _SEQUENCES else [])]


def _lengths(dim: DimInfo, program: Program) -> list[int]:
    outer = next(d for d in program.dims if d.name == dim.over)
    count = max(outer.lo, min(outer.hi, _SEQUENCES))
    if dim.length:
        return dim.lengths_by_number(count)
    known = list(dim.samples or dim.dim().values(count))
    return [known[i % len(known)] for i in range(count)]
