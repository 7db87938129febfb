"""`tilewright measure`: search among the kernels of an archive on the GPU that is here. Imports no MLIR and no llvmlite."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.compiler.cli.tuning_summary import certificate_fields

if TYPE_CHECKING:
    from tilewright.runtime.target import Target
    from tilewright.search.archive.kernel_archive import KernelArchive
    from tilewright.search.search_strategy.outcome import Tuned


def measure_command(
    archive: Annotated[Path, typer.Argument(help="What build-kernels wrote.", exists=True, dir_okay=False)],
    log: Annotated[Path, typer.Option(help="Tuning log (JSON Lines): read to resume, appended to.")] = Path("gpu.jsonl"),
    target: Annotated[
        str | None, typer.Option(help="emulator:sm_90a: times by a model of a GPU, to try the way; else the GPU that is here.")
    ] = None,
    ordinal: Annotated[int, typer.Option(help="Which of the GPUs that are here.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Time for all operators; 60 unless --trials is given.")] = None,
    trials: Annotated[int | None, typer.Option(help="Measurements for all operators.")] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Verify and measure kernels built elsewhere; the log goes back to `compile --log`. Ctrl-C keeps what was measured."""
    from tilewright.runtime.target import Target
    from tilewright.search.archive.archive_tuning import MeasurePlan, cases_of, measure_archive
    from tilewright.search.archive.kernel_archive import KernelArchive
    from tilewright.search.database.stored_log import open_log
    from tilewright.search.libraries import load_libraries
    from tilewright.search.prior.transfer import prior_from_log
    from tilewright.search.runner.gpu_environment import device_name, measured_limits
    from tilewright.search.runner.gpu_process import gpu_process
    from tilewright.search.runner.measurer import Environment
    from tilewright.search.time_left import steady_clock

    out = Output(json)
    found = KernelArchive(archive)
    where = Target.parse(target or found.manifest.target)
    check_target(found, where, ordinal)
    environment = Environment(device_name(where, ordinal), steady_clock(), dict(found.manifest.versions))
    with out.skipped_lines():
        records = open_log(log, writes=True)
    out.event("device", name=environment.device)
    out.text(f"measuring on {environment.device}")
    time_limit = 60.0 if seconds is None and trials is None else seconds
    plan = MeasurePlan(measured_limits(where, ordinal), environment, time_limit, trials,
                       lambda task: prior_from_log(records, task.families, environment.device))
    load_libraries()
    start = time.perf_counter()
    try:
        with TuneView(out) as view, gpu_process(where, cases_of(found), ordinal) as runner:
            tuned = measure_archive(found, plan, runner, records, view.update)
    except KeyboardInterrupt:
        out.text(f"interrupted; the measurements are in {log}, and the same command goes on from there")
        raise
    finally:
        records.finish()
    tell(out, tuned)
    out.event("saved", log=str(log), seconds=round(time.perf_counter() - start, 3))
    out.text(f"measured in {time.perf_counter() - start:.1f} s; next: tilewright compile MODEL --target {where} --log {log}")


def check_target(archive: KernelArchive, asked: Target, ordinal: int) -> None:
    """OptionError or DeviceError where the archive's kernels cannot run."""
    from tilewright.runtime.cuda.cuda_device import cannot_run
    from tilewright.runtime.errors import DeviceError, OptionError
    from tilewright.runtime.target import Target as TargetOf
    from tilewright.runtime.target import TargetKind

    built = TargetOf.parse(archive.manifest.target)
    if asked.kind is TargetKind.HOST or (asked.kind is TargetKind.EMULATOR and asked.arch != built.arch):
        raise OptionError(f"target {asked}: the kernels of {archive.path} are for {built.arch}; wanted emulator:{built.arch}, or "
                          "no --target for the GPU that is here")
    if asked.kind is TargetKind.CUDA:
        why = cannot_run(built.arch, ordinal)
        if why:
            raise DeviceError(f"{archive.path} cannot be measured here: {why}; build the kernels for this GPU")


def tell(out: Output, tuned: dict[str, Tuned]) -> None:
    """The certificates of a search, and how many kernels each keeps."""
    for name, found in tuned.items():
        c = found.certificate
        out.event("certificate", name=name, **certificate_fields(c), kernels=len(found.configs))
        out.text(f"{name}: {len(found.configs)} kernels; {c}" if c.expected else f"{name}: not measured")
