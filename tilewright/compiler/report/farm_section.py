"""The section of the report page about a farm: how much was under way, what it did a second, what was lost."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.report.report_page import ReportSection, Table, figure
from tilewright.search.database.farm_records import FarmRecord, MarkRecord


def farm_section(records: Sequence[FarmRecord], marks: Sequence[MarkRecord]) -> ReportSection:
    """Of the last run. records: at least one."""
    run = [r for r in records if r.run == records[-1].run]
    last = run[-1]
    drawn = figure("seconds of tuning", "candidates, measurements a second")
    times = [r.seconds for r in run]
    before = [FarmRecord(last.run, 0.0, 0, 0, 0), *run[:-1]]
    rates = [(b.measurements - a.measurements) / max(b.seconds - a.seconds, 1e-9) for a, b in zip(before, run, strict=True)]
    for name, values in (("under way", [r.in_flight for r in run]), ("built, waiting", [r.ready for r in run]),
                         ("runners", [r.runners for r in run]), ("measurements a second", rates)):
        drawn.add_scatter(x=times, y=values, name=name, mode="lines+markers")
    facts = (("nodes", str(last.nodes)), ("builders", str(last.builders)), ("runners", str(last.runners)),
             ("builds", str(last.builds)), ("measurements", str(last.measurements)), ("actors lost", str(last.lost)),
             ("requests tried twice", str(last.retried)), ("refused", str(last.refused)),
             ("beside the work of a build", f"{1e3 * last.build_overhead:.1f} ms"),
             ("beside that of a measurement", f"{1e3 * last.run_overhead:.1f} ms"), ("driver", f"{last.driver:.0%} of a core"))
    rows = tuple((m.runner, f"{m.since:.0f} to {m.until:.0f}", m.reason) for m in marks)
    tables = (Table(("runner in quarantine", "measurements in doubt, seconds since 1970", "why"), rows),) if rows else ()
    return ReportSection("Farm", "What builders and runners of the last run did.", facts, (drawn,), tables)
