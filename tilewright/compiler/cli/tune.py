"""`tilewright tune`: measure kernels for a model's whole range, keep the log, save the tuned model."""

from __future__ import annotations

import time
from dataclasses import replace

from tilewright.compiler.cli.compile import describe
from tilewright.compiler.cli.compile_arguments import TuneArguments
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.tune_targets import tuned_for_all
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.compiler.cli.tuning_summary import certify, gain_of, tell_gain

_SECONDS = 60.0


def tune_command(arguments: TuneArguments) -> None:
    """Search kernels for a model over its range of shapes. Ctrl-C keeps what was measured; the same command resumes."""
    if arguments.seconds is None and arguments.trials is None:
        arguments = replace(arguments, seconds=_SECONDS)
    out, log = Output(arguments.json), arguments.log
    view = TuneView(out)
    start = time.perf_counter()
    try:
        with view, out.skipped_lines():
            fn, *others = tuned_for_all(arguments, view.update)
    except KeyboardInterrupt:
        out.text(f"interrupted; the measurements are in {log}, and the same command goes on from there")
        raise
    fn.save(arguments.output, also=others)
    seconds = time.perf_counter() - start
    for tuned in (fn, *others):
        describe(out, tuned.program)
        certify(out, tuned.program)
        tell_gain(out, gain_of(tuned.program), arguments.seconds)
    out.event("saved", output=str(arguments.output), log=str(log), seconds=round(seconds, 3))
    out.text(f"{arguments.output}: tuned in {seconds:.1f} s; measurements in {log}")
