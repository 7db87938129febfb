"""The section of the partition in the page of `tilewright report`, and its tables, which `tilewright explain` prints as well."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.report.report_page import ReportSection, Table, figure
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary
from tilewright.runtime.program.explanation import duration
from tilewright.runtime.program.program import Program

SHOWN = 12  # operations of an area whose numbers are shown


def areas_table(taken: PartitionSummary) -> Table:
    """What becomes a kernel."""
    rows = ((str(n), a.name, a.kind, _numbers(a.operations), _figures(a.bytes), _times(a.seconds))
            for n, a in enumerate(taken.areas))
    return Table(("area", "operator", "kind", "operations", "bytes", "predicted"), tuple(rows))


def apart_table(taken: PartitionSummary) -> Table:
    """The rules that kept operations apart, and what was cut."""
    return Table(("rule", "reason", "pairs"), tuple((k.rule, k.reason, str(k.pairs)) for k in (*taken.kept, *taken.cuts)))


def ways_table(found: Sequence[PartitionSummary]) -> Table:
    """The partitions beside each other."""
    rows = ((_way(s), str(len(s.areas)), _figures(s.bytes), _times(s.seconds)) for s in found)
    return Table(("way", "launches", "bytes", "predicted"), tuple(rows))


def strips_table(program: Program) -> Table:
    """The calls that a work unit takes a strip of rows through, where there are that many rows."""
    names = [program.tables[call.table].name for call in program.calls]
    rows = ((", ".join(map(str, s.calls)), ", ".join(names[n] for n in s.calls), s.rows, str(s.size), str(s.least),
             f"{s.gain:.1%}") for s in program.strips)
    return Table(("calls", "operators", "rows", "of a strip, at most", "from", "predicted to save"), tuple(rows))


def donated_table(program: Program) -> Table:
    """What becomes of donated arguments."""
    rows = ((program.inputs[given].name, program.outputs[output].name,
             f"copied there: {program.copied[output]}" if output in program.copied else "made there")
            for given, output in program.donated)
    return Table(("donated", "result", "is"), tuple(rows))


def stitched_table(taken: PartitionSummary) -> Table:
    """The products that are one kernel of a GPU with the work on their rows."""
    rows = ((str(s.product), *(_figures([c[n] for c in s.cycles]) for n in range(2))) for s in taken.stitched)
    return Table(("product", "cycles, two launches", "one"), tuple(rows))


def partition_section(found: Sequence[PartitionSummary], program: Program) -> ReportSection:
    """How a model is cut into kernels.

    Args:
        found: operations alone, other partitions, and last the one that is taken.
        program: of the model.
    """
    alone, taken = found[0], found[-1]
    points = [", ".join(f"{n} = {v}" for n, v in shape.items()) or "-" for shape in taken.shapes]
    moved = figure("", "bytes, largest shape", height=280)
    moved.add_bar(x=[_way(s) for s in found], y=[s.bytes[-1] if s.bytes else 0.0 for s in found], name="bytes")
    drawn = figure("predicted time, us", "", height=max(240, 24 * len(taken.areas) + 110))
    names = [f"{n} {a.name[:48]}" for n, a in enumerate(taken.areas)]
    for at, point in enumerate(points):
        drawn.add_bar(y=names, x=[1e6 * a.seconds[at] for a in taken.areas], orientation="h", name=point)
    drawn.update_yaxes(automargin=True, autorange="reversed", tickfont={"size": 10})
    facts = (
        ("way", taken.way),
        ("kernels", f"{len(taken.areas)} of {len(alone.areas)} without fusion"),
        ("bytes", f"{_share(taken.bytes, alone.bytes)} of those without fusion"),
        ("by strips of rows", f"{sum(len(s.calls) for s in program.strips)} calls"),
    )
    text = f"Bytes and predicted times at {'; '.join(points)}." if any(taken.shapes) else ""
    every = apart_table(taken), stitched_table(taken), strips_table(program), donated_table(program)
    perhaps = [table for table in every if table.rows]
    tables = (areas_table(taken), *perhaps, ways_table(found))
    return ReportSection("Partition", text, facts, (moved, drawn), tables)


def _way(summary: PartitionSummary) -> str:
    return summary.asked if summary.asked == summary.way else f"{summary.asked}: {summary.way}"


def _share(own: Sequence[float], others: Sequence[float]) -> str:
    return ", ".join(f"{a / b:.0%}" if b else "-" for a, b in zip(own, others, strict=True))


def _numbers(operations: Sequence[int]) -> str:
    more = "" if len(operations) <= SHOWN else f" and {len(operations) - SHOWN} more"
    return " ".join(map(str, operations[:SHOWN])) + more


def _figures(values: Sequence[float]) -> str:
    return " ".join(f"{v:.4g}" for v in values)


def _times(values: Sequence[float]) -> str:
    return " ".join(map(duration, values))
