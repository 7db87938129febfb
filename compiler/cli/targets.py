"""`tilewright targets`: what code can be made for, and what this machine has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from compiler.cli.output import JSON_HELP, Output

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


def targets_command(json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False) -> None:
    """List the host targets and what this machine can run."""
    from runtime import host_cpu
    from runtime.features import missing_features

    out = Output(json)
    arch, features = host_cpu.machine(), host_cpu.cpu_features()
    limits = asdict(host_cpu.host_limits(features, arch))
    known = LEVELS if arch == "x86_64" else ()
    targets = {"host": True, **{f"host:{level}": not missing_features(level) for level in known}}
    for name, runs in targets.items():
        out.event("target", name=name, runs_here=runs)
    out.event("host", arch=arch, features=sorted(features), threads=host_cpu.thread_count(), **limits)
    out.table("Targets", ("target", "runs here"), [(n, "yes" if runs else "no") for n, runs in targets.items()])
    rows = [("architecture", arch), ("threads of a call", host_cpu.thread_count()), *limits.items()]
    out.table("This machine", ("property", "value"), [(name.replace("_", " "), str(value)) for name, value in rows])
