"""`tilewright calibrate`: speeds of this machine and the thresholds of the untuned choices, measured here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.compile_arguments import Json
from tilewright.compiler.cli.output import Output

if TYPE_CHECKING:
    from tilewright.search.calibration.calibrate import Tried


_SPEEDS = 0.5  # share of the time for the machine's speeds at most; they take some seconds


def calibrate_command(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to measure.")] = 60.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Most threads of a call; all cores by default.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Go back to the thresholds that ship.")] = False,
    json: Json = False,
) -> None:
    """Measure on this machine what a plain compile goes by, and keep it for this CPU.

    A compile that is not tuned chooses kernels by sizes from which one pays more than another. They ship as they were measured
    elsewhere; this measures them here, and later compiles use what was found, as they do the speeds of caches, memory and
    arithmetic, by which they choose which operations share a kernel. Wants a quiet machine.
    """
    from tilewright.compiler.builder.calibration_file import calibration_path
    from tilewright.compiler.builder.codegen import host_target, limits
    from tilewright.runtime.limits import HostLimits
    from tilewright.runtime.target import Target

    out, here = Output(json), Target.parse("host")
    found = limits(here)
    assert isinstance(found, HostLimits)
    path = calibration_path(host_target(here).cpu, found)
    if forget:
        there = path.exists()
        path.unlink(missing_ok=True)
        out.event("forgotten", path=str(path), was_there=there)
        out.text(f"{path} is gone; the thresholds that ship are used" if there else f"{path} was not there: nothing to forget")
        return
    from tilewright.compiler.tuning.calibration import calibrate_host
    from tilewright.compiler.verification.machine_speeds import machine_speeds

    rows: list[tuple[str, ...]] = []

    def told(tried: Tried) -> None:
        name = f"{tried.threshold.family}.{tried.threshold.name}"
        out.event("threshold", name=name, value=tried.threshold.value, best=tried.best, gain=tried.gain, shapes=tried.places)
        rows.append((name, str(tried.threshold.value), str(tried.best), f"{tried.gain:.1%}", str(tried.places)))

    begin = time.monotonic()
    speeds = machine_speeds(_SPEEDS * seconds)
    for name, value in speeds.items():
        out.event("speed", name=name, value=value)
    result = calibrate_host(max(1.0, seconds - (time.monotonic() - begin)), threads, told, speeds)
    changed = sum(ships != here for _, ships, here, *_ in rows)
    out.event("calibrated", path=str(path), changed=changed, measured=len(rows), unfinished=result.unfinished)
    out.table("what partitions are predicted by", ("speed", "here"), [
        (name, f"{value / 1000:g} ns" if name == "launch" else f"{value / 1e9:.3g} G/s") for name, value in speeds.items()])
    out.table(str(path), ("threshold", "ships as", "here", "gain", "shapes"), rows)
    out.text(f"{len(rows)} thresholds measured, {changed} have another value here"
             + ("; the time was over before all were: give more --seconds" if result.unfinished else ""))
