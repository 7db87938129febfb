"""`tilewright refine`: a saved model tuned again for the shapes that it was called at, in the background."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.compiler.cli.arguments import INPUT_HELP, load_inputs
from tilewright.compiler.cli.compile_arguments import Json, Seed
from tilewright.compiler.cli.model_files import place_to_write
from tilewright.compiler.cli.output import Output, dims_text
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.compiler.verification.random_inputs import random_inputs

if TYPE_CHECKING:
    from tilewright.compiler.verification.verify_in_turns import Arrays, Compared
    from tilewright.runtime.load.function import CompiledFunction

_SHOWN = 20  # shapes in the table


def refine_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A saved model (.tw).", exists=True, dir_okay=False)],
    traffic: Annotated[list[Path], typer.Option(help="What fn.traffic().save() wrote. Repeatable: counts are added up.",
                                                exists=True)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The new model; else FILE with .refined.tw.")] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time of the search, rests included; what comes before and after it "
                                                         "keeps to the share too.")] = 60.0,
    cpu_share: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of the time of all cores that is used.")] = 0.1,
    log: Annotated[str | None, typer.Option(help="Tuning log: a file, a folder or a URL; what it knows is not measured.")] = None,
    inputs: Annotated[list[str] | None, typer.Option("--input", help=INPUT_HELP)] = None,
    other_model: Annotated[bool, typer.Option("--other-model", help="Take counts of another model, whose dims have the same "
                                                                    "names.")] = False,
    seed: Seed = 0,
    json: Json = False,
    turns: Annotated[int | None, typer.Option(hidden=True, help="Of the process that another one runs in slices: descriptor of "
                                                                "the lock that is held while something is timed.")] = None,
) -> None:
    """Tune kernels and dispatch of a saved model for its traffic and write a new one, which fn.reload(path) goes on with.

    It is nowhere slower than the old one by more than 3 % at any counted shape: that is measured, in turns, at the end.
    """
    from tilewright.compiler.refinement.cpu_share import CpuShare
    from tilewright.compiler.refinement.slices import run_in_slices
    from tilewright.runtime.host.whole_timing import Whole
    from tilewright.search.runner.serving import end_with_parent

    begin, cpu = time.perf_counter(), CpuShare(cpu_share, whole=Whole(turns))  # before what takes seconds to be imported
    if turns is None and cpu.rest_for_each and os.name == "posix":
        line = [str(file), "--seconds", str(seconds), "--cpu-share", str(cpu_share), "--seed", str(seed)]
        given: dict[str, Sequence[object]] = {"--traffic": traffic, "--input": inputs or (), "--log": [log] if log else (),
                                              "--output": [output] if output else ()}
        line += [word for name, values in given.items() for v in values for word in (name, str(v))]
        _interrupt_nobody()
        line += [*["--json"] * json, *["--other-model"] * other_model, *["--debug"] * bool(context.obj)]
        raise typer.Exit(run_in_slices("tilewright", ["refine", *line, "--turns"], cpu.rest_for_each))
    if turns is not None:
        end_with_parent()
    _yield_to_others()
    from tilewright.compiler.refinement.refine import RefineOptions, refine
    from tilewright.runtime.program.traffic import Traffic

    out = Output(json)
    target = place_to_write(output or file.with_suffix(".refined.tw"))
    seen = Traffic(())
    for path in traffic:
        one = Traffic.read(path)
        seen = seen.merged(one.of_any_model() if other_model else one)
    fixed = load_inputs(inputs)
    cpu.rest()

    def arrays(fn: CompiledFunction) -> Arrays:
        def at(dims: Mapping[str, int]) -> Sequence[Any]:
            return random_inputs(fn.program, dims, seed, fixed)

        return at

    def compared(found: Compared) -> None:
        out.event("compared", dims=dict(found.dims), old_seconds=found.old_seconds, ratio=found.ratio, most=found.most,
                  rounds=found.rounds, wrong=found.wrong)

    view = TuneView(out)
    with view, out.skipped_lines():
        options = RefineOptions(seconds, cpu, True, seed, log, view.update, compared)
        found = refine(file, seen, target, arrays, options)
    taken = time.perf_counter() - begin
    for name, why in found.kept.items():
        out.text(f"{name}: keeps its kernels; the new ones: {why}")
    rows = [(dims_text(s.dims), calls, s.old_seconds * 1e6, s.ratio) for s, calls in zip(found.shapes, found.calls, strict=True)]
    out.table("Counted shapes, the new model beside the old one", ("dims", "calls", "old us", "new / old"), rows[:_SHOWN])
    out.event("refined", output=str(target), changed=list(found.changed), kept=dict(found.kept), faster=found.geomean,
              worst=found.worst, shapes=len(found.shapes), rested=cpu.rested, seconds=round(taken, 3))
    out.text(f"{target}: {found.geomean:.3f}x as fast over {len(found.shapes)} counted shapes, {found.worst:.3f}x where least; "
             f"{len(found.changed)} operators changed, in {taken:.0f} s of which {cpu.rested:.0f} s of rest")


def _yield_to_others() -> None:
    """This process and its workers come last."""
    from tilewright.compiler.refinement.cpu_share import yield_to_others

    yield_to_others()


def _interrupt_nobody() -> None:
    """This process takes no core from others when it wakes up to stop its work."""
    from tilewright.compiler.refinement.cpu_share import interrupt_nobody

    interrupt_nobody()
