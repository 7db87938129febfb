"""`tilewright report`: one self-contained page about a tuning log or a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.arguments import DimArguments, parse_dims
from tilewright.compiler.cli.batches import batch_of
from tilewright.compiler.cli.model_files import place_to_write
from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.artifact import Artifact, LazyBundle

if TYPE_CHECKING:
    from tilewright.compiler.report.report_page import ReportSection


def report_command(
    file: Annotated[Path, typer.Argument(help="A tuning log (a file or folder) or a saved model (.tw).", exists=True)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    dim: Annotated[
        list[str] | None, typer.Option(help="Lengths of the batch that the page of a ragged model is about: S=5,90. Repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Show what a tuning did and how well a model runs, on a page that needs no network. Needs the extra `report` (plotly)."""
    from tilewright.compiler.report.report_page import page
    from tilewright.compiler.report.report_sources import from_log

    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise OptionError("report needs plotly: pip install 'tilewright[report]'") from error
    out = Output(json)
    place_to_write(output)
    with out.skipped_lines():
        sections = _of_model(file, parse_dims(dim)) if file.suffix == ".tw" else from_log(file)
    if not sections:
        raise OptionError(f"{file} holds neither slots nor measurements nor certificates; wanted a log of `tilewright tune`")
    output.write_text(page(file.name, sections), encoding="utf-8")
    out.event("report", output=str(output), sections=[s.title for s in sections])
    out.text(f"{output}: {', '.join(s.title.lower() for s in sections)}")


def _of_model(file: Path, dims: DimArguments) -> list[ReportSection]:
    from tilewright.compiler.builder.codegen import limits
    from tilewright.compiler.compilation.compilation import full_target
    from tilewright.compiler.compilation.partitions import partitions_of
    from tilewright.compiler.report.partition_section import partition_section
    from tilewright.compiler.report.report_sources import from_artifact

    opened = Artifact(file)
    program = LazyBundle(opened, opened.manifest.groups[0]).program()
    if not program.ragged and (dims.values or dims.batches):
        raise OptionError(f"{file} has no ragged dim: --dim gives the lengths of a batch; leave it out")
    of = limits(full_target(program.target), None)
    drawn = partition_section(partitions_of(program.source, of, program.asked), program)
    return [*from_artifact(program, batch_of(program, dims)), drawn]
