"""`tilewright compile`: a model to a saved model."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from tilewright.compiler.cli.compile_arguments import CompileArguments
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.tune_view import TuneView

if TYPE_CHECKING:
    from tilewright.runtime.program.program import Program


def compile_command(arguments: CompileArguments) -> None:
    """Compile a model for a range of shapes and save it."""
    out = Output(arguments.json)
    view = TuneView(out) if arguments.searches else None
    options = arguments.options(view.update if view else None)
    start = time.perf_counter()
    with view or out.progress(f"compiling {arguments.file}"), out.skipped_lines():
        fn = arguments.compile(options)
        fn.save(arguments.output)
    seconds = time.perf_counter() - start
    describe(out, fn.program)
    size = arguments.output.stat().st_size
    out.event("saved", output=str(arguments.output), bytes=size, seconds=round(seconds, 3))
    out.text(f"{arguments.output}: {size / 1024:.0f} KiB in {seconds:.1f} s")


def describe(out: Output, program: Program) -> None:
    """The dims of a program and its operators, as a table or as JSON Lines."""
    for d in program.dims:
        out.event("dim", name=d.name, lo=d.lo, hi=d.hi, multiple_of=d.multiple_of, at=list(d.at))
    if program.dims:
        dims = [(d.name, str(d.dim()), " ".join(d.at)) for d in program.dims]
        out.table("Dims", ("dim", "range", "read from"), dims)
    calls = Counter(c.table for c in program.calls)
    rows = []
    for number, table in enumerate(program.tables):
        configs = [k.config for k in table.kernels]
        out.event("operator", name=table.name, calls=calls[number], workload=table.workload, kernels=configs)
        rows.append((table.name, calls[number], len(configs), "\n".join(configs)))
    out.table(f"Operators for {program.target}", ("operator", "calls", "kernels", "configurations"), rows)
    asked = program.asked
    if asked.measured is not None:
        out.event("measured_partition", way=asked.way, apart=len(asked.apart), strips=asked.strips, share=asked.measured)
        out.text(f"partition by measurement: grown by {asked.way}, {len(asked.apart)} pairs of operations apart, rows together: "
                 f"{asked.strips}; {asked.measured:.3f} of the time of the predicted one")
    for name, reason in program.refused.items():
        out.event("refused", name=name, reason=reason)
        out.text(f"{name}: on a family of lower preference, since {reason}")
