"""`tilewright report`: one self-contained page about a tuning log or a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.compiler.cli.model_files import place_to_write
from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.runtime.errors import OptionError


def report_command(
    file: Annotated[Path, typer.Argument(help="A tuning log (a file or folder) or a saved model (.tw).", exists=True)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Show what a tuning did and how well a model runs, on a page that needs no network. Needs the extra `report` (plotly)."""
    from tilewright.compiler.report.report_page import page
    from tilewright.compiler.report.report_sources import from_artifact, from_log

    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise OptionError("report needs plotly: pip install 'tilewright[report]'") from error
    out = Output(json)
    place_to_write(output)
    with out.skipped_lines():
        sections = from_artifact(file) if file.suffix == ".tw" else from_log(file)
    if not sections:
        raise OptionError(f"{file} holds neither slots nor measurements nor certificates; wanted a log of `tilewright tune`")
    output.write_text(page(file.name, sections), encoding="utf-8")
    out.event("report", output=str(output), sections=[s.title for s in sections])
    out.text(f"{output}: {', '.join(s.title.lower() for s in sections)}")
