"""`tilewright tune`: measure kernels for a model's whole range, keep the log, save the tuned model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.arguments import DIM_HELP, load_constants, parse_dims
from tilewright.compiler.cli.compile import describe
from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.compiler.cli.tune_view import TuneView

if TYPE_CHECKING:
    from tilewright.runtime.program.program import Program
    from tilewright.search.database.records import Skipped


def tune_command(
    file: Annotated[Path, typer.Argument(help="The model: a .mlir file.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path("model.tw"),
    log: Annotated[Path, typer.Option(help="Tuning log (JSON Lines): read to resume, appended to.")] = Path("tuning.jsonl"),
    seconds: Annotated[float | None, typer.Option(help="Time for the whole model; 60 unless --trials is given.")] = None,
    trials: Annotated[int | None, typer.Option(help="Measurements for the whole model.")] = None,
    dim: Annotated[list[str] | None, typer.Option(help=DIM_HELP)] = None,
    constants: Annotated[
        Path | None, typer.Option(help="Arguments to bind now, by name: a .npz or .safetensors file.", exists=True)
    ] = None,
    target: Annotated[str, typer.Option(help="host, host:x86-64-v3, ...")] = "host",
    function: Annotated[str | None, typer.Option(help="The function to compile, where there are several.")] = None,
    threads: Annotated[int | None, typer.Option(help="Most threads that a call uses.")] = None,
    max_regret: Annotated[float, typer.Option(help="Allowed slowness against the best kernel of a shape, a fraction.")] = 0.05,
    max_kernels: Annotated[int | None, typer.Option(help="Most kernels per operator.")] = None,
    policy: Annotated[str, typer.Option(help="Who gets the next slot of time: ucb, epsilon, softmax, thompson, ansor, "
                                        "round_robin, ...; on a GPU operators take turns.")] = "ucb",
    winograd: Annotated[bool, typer.Option(help="3x3 convolutions on the host may go through Winograd's transforms.")] = True,
    until_regret: Annotated[float | None, typer.Option(help="Stop when this share of the latency is left to gain.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Search kernels for a model over its range of shapes. Ctrl-C keeps what was measured; the same command resumes."""
    from tilewright.compiler.api import compile as compile_model
    from tilewright.compiler.compilation.options import CompileOptions

    out = Output(json)
    view = TuneView(out)
    options = CompileOptions(
        threads=threads,
        seconds=60.0 if seconds is None and trials is None else seconds,
        trials=trials,
        max_regret=max_regret,
        max_kernels=max_kernels,
        winograd=winograd,
        seed=seed,
        policy=policy,
        until_regret=until_regret,
        log=log,
        progress=view.update,
    )
    for skipped in _skipped(log):
        out.event("skipped", path=skipped.path, line=skipped.line, reason=skipped.reason)
        out.text(f"warning: {skipped}")
    start = time.perf_counter()
    try:
        with view:
            fn = compile_model(file, parse_dims(dim).as_ranges(), target=target, options=options,
                               constants=load_constants(constants) or None, function=function)
    except KeyboardInterrupt:
        out.text(f"interrupted; the measurements are in {log}, and the same command goes on from there")
        raise
    fn.save(output)
    describe(out, fn.program)
    certify(out, fn.program)
    out.event("saved", output=str(output), log=str(log), seconds=round(time.perf_counter() - start, 3))
    out.text(f"{output}: tuned in {time.perf_counter() - start:.1f} s; measurements in {log}")


def certify(out: Output, program: Program) -> None:
    """The certificates of a program."""
    names = {t.workload: t.name for t in program.tables}
    for c in program.certificates:
        out.event("certificate", name=names[c.workload], measured_mean=c.measured_mean, measured_worst=c.measured_worst,
                  predicted_mean=c.predicted_mean, predicted_worst=c.predicted_worst, confidence=c.confidence, share=c.share,
                  held_out=len(c.held_out), kernels=c.kernels, trials=c.trials)
        out.text(f"{names[c.workload]}: {c}")


def _skipped(log: Path) -> list[Skipped]:
    from tilewright.search.database.records import TuningLog

    return TuningLog(log).skipped
