"""`tilewright targets`: what code can be made for, and what this machine has."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.compiler.cli.values import ARCHS, LEVELS


def targets_command(json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False) -> None:
    """List the targets, and what this machine has and can run."""
    from tilewright.runtime.cuda.cuda_device import cannot_run, properties_of
    from tilewright.runtime.cuda.driver import device_count, unavailable
    from tilewright.runtime.host import host_cpu
    from tilewright.runtime.host.required_features import missing_features

    out = Output(json)
    arch, features = host_cpu.machine(), host_cpu.cpu_features()
    limits = asdict(replace(host_cpu.host_limits(features, arch), threads=host_cpu.thread_count()))
    known = LEVELS if arch == "x86_64" else ()
    reason = unavailable()
    gpus = range(0 if reason else device_count())
    targets = {"host": True, **{f"host:{level}": not missing_features(level) for level in known}}
    targets |= {f"cuda:{a}": any(not cannot_run(a, g) for g in gpus) for a in ARCHS}
    targets |= {f"emulator:{a}": True for a in ARCHS}
    for name, runs in targets.items():
        out.event("target", name=name, runs_here=runs)
    out.event("host", arch=arch, features=sorted(features), **limits)
    out.table("Targets", ("target", "runs here"), [(n, "yes" if runs else "no") for n, runs in targets.items()])
    rows = [("architecture", arch), *limits.items()]
    out.table("This machine", ("property", "value"), [(name.replace("_", " "), str(value)) for name, value in rows])
    if reason:
        out.event("no_cuda", reason=reason)
        out.table("CUDA", ("property", "value"), [("no device", reason)])
    for number in gpus:
        found = properties_of(number)
        out.event("cuda", device=number, **found)
        out.table(f"CUDA device {number}", ("property", "value"), [(n.replace("_", " "), str(v)) for n, v in found.items()])
