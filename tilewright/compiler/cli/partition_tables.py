"""What `tilewright explain --partition` prints: how a model is cut into kernels, and what else it could have been cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from tilewright.compiler.cli.output import Output, dims_text
from tilewright.compiler.report.partition_section import (
    apart_table,
    areas_table,
    donated_table,
    stitched_table,
    strips_table,
    ways_table,
)
from tilewright.passes.dispatch_creation.partition_summary import PartitionSummary
from tilewright.runtime.program.program import Program


def print_partitions(out: Output, found: Sequence[PartitionSummary], program: Program) -> None:
    """The areas of the last of the partitions, what kept operations apart in it, what a program does by strips of rows and with
    donated arguments, and all partitions beside each other."""
    taken = found[-1]
    for summary in found:
        out.event("partition", asked=summary.asked, way=summary.way, launches=len(summary.areas), shapes=list(summary.shapes),
                  bytes=list(summary.bytes), seconds=list(summary.seconds))
    for number, area in enumerate(taken.areas):
        out.event("area", number=number, **asdict(area))
    for kept in (*taken.kept, *taken.cuts):
        out.event("kept_apart", **asdict(kept))
    for stitched in taken.stitched:
        out.event("stitched", **asdict(stitched))
    for strips in program.strips:
        out.event("strips", **msgspec.structs.asdict(strips))
    for given, output in program.donated:
        out.event("donated", argument=program.inputs[given].name, result=program.outputs[output].name,
                  copied=program.copied.get(output, ""))
    for title, table in (("Areas", areas_table(taken)), ("Kept apart", apart_table(taken)),
                         ("Products with their rows", stitched_table(taken)),
                         ("By strips of rows", strips_table(program)), ("Donated arguments", donated_table(program)),
                         ("Partitions", ways_table(found))):
        if table.rows:
            out.table(title, table.columns, table.rows)
    if any(taken.shapes):
        out.text("bytes and predicted times at " + "; ".join(map(dims_text, taken.shapes)))
