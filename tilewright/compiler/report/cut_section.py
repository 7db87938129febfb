"""Partitions that a search measured, as a section of a report."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.report.report_page import ReportSection, Table
from tilewright.search.database.cut_records import CutRecord


def cut_section(cuts: Sequence[CutRecord]) -> ReportSection:
    """Each alternative: how it was cut, its predicted and measured time beside what was taken until then, and what came of it."""
    rows = tuple((c.graph[:8], c.way, str(len(c.apart) // 2), c.strips, f"{c.predicted:.3f}",
                  "-" if c.wrong else f"{c.ratio:.3f}", "-" if c.wrong or c.error > 1 else f"{c.error:.3f}",
                  c.wrong or ("taken" if c.taken else "not taken"))
                 for c in cuts)
    facts = (("measured", str(len(cuts))), ("taken", str(sum(c.taken for c in cuts))))
    columns = ("graph", "grown", "pairs apart", "strips of rows", "predicted", "measured", "deviation", "")
    told = "Other cuts of the model into kernels: their time over that of the one taken until then."
    return ReportSection("Partitions", told, facts, (), (Table(columns, rows),))
