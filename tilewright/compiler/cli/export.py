"""`tilewright export`: a saved model as a library for C and C++."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.compiler.cli.output import JSON_HELP, Output


def export_command(
    file: Annotated[Path, typer.Argument(help="A saved model (.tw).", exists=True, dir_okay=False)],
    c: Annotated[Path, typer.Option("--c", help="The folder for the shared library, its header and an example.")],
    name: Annotated[
        str | None, typer.Option(help="What the library and its functions are called; the name of the file if left out.")
    ] = None,
    cc: Annotated[str | None, typer.Option(help="The C compiler; the first of cc, gcc and clang if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Write a saved model as a shared library with a C header and an example in C++."""
    from tilewright.runtime.errors import ArtifactError
    from tilewright.runtime.export.c_library import write_c_library
    from tilewright.runtime.export.c_tables import c_name
    from tilewright.runtime.program.artifact import Artifact

    out = Output(json)
    stored = next(Artifact(file).bundles("host"), None)
    if stored is None:
        raise ArtifactError(f"{file} holds no code for a CPU; compile the model with --target host")
    made = write_c_library(stored.load(), c, name or c_name(file.stem), cc)
    size = made.library.stat().st_size
    out.event("exported", library=str(made.library), header=str(made.header), example=str(made.example), bytes=size)
    out.text(f"{made.library}: {size / 1024:.0f} KiB\n{made.header}\n{made.example}")
