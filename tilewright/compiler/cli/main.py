"""The command line.

`tilewright compile|tune|compress|build-kernels|measure|refine|run|explain|export|verify|sign|report|opt|logs|calibrate|targets`.

Exit codes: 0 done, 1 an error or a failed check, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.compiler.cli.build_kernels import build_kernels_command
from tilewright.compiler.cli.calibrate import calibrate_command
from tilewright.compiler.cli.compile import compile_command
from tilewright.compiler.cli.compile_arguments import CompileArguments, TuneArguments
from tilewright.compiler.cli.compress import compress_command
from tilewright.compiler.cli.declared import command_of
from tilewright.compiler.cli.explain import explain_command
from tilewright.compiler.cli.export import export_command
from tilewright.compiler.cli.logs import logs_application
from tilewright.compiler.cli.measure import measure_command
from tilewright.compiler.cli.opt import opt_command
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.refine import refine_command
from tilewright.compiler.cli.report import report_command
from tilewright.compiler.cli.run import run_command
from tilewright.compiler.cli.targets import targets_command
from tilewright.compiler.cli.tune import tune_command
from tilewright.compiler.cli.verify import sign_command, verify_command
from tilewright.runtime import knobs
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.wording import command_text
from tilewright.version import VERSION

DEBUG = "--debug"
_WIDE = 72  # columns from which help is shown in boxes


def application() -> typer.Typer:
    """The commands, with their help."""
    wide = shutil.get_terminal_size().columns >= _WIDE
    app = typer.Typer(
        name="tilewright",
        help="Compile tensor programs with dynamic shapes, run them and look inside.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if wide else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_globals)
    app.command("compile")(command_of(CompileArguments, compile_command))
    app.command("tune")(command_of(TuneArguments, tune_command))
    app.command("compress")(compress_command)
    app.command("build-kernels")(build_kernels_command)
    app.command("measure")(measure_command)
    app.command("refine")(refine_command)
    app.command("run")(run_command)
    app.command("explain")(explain_command)
    app.command("export")(export_command)
    app.command("verify")(verify_command)
    app.command("sign")(sign_command)
    app.command("report")(report_command)
    app.command("opt")(opt_command)
    app.add_typer(logs_application(), name="logs")
    app.command("calibrate")(calibrate_command)
    app.command("targets")(targets_command)
    return app


def _globals(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Print the traceback of an error; legal anywhere.")] = False,
) -> None:
    if version:
        print(VERSION)
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Standard streams are looked up when they are written to."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = DEBUG in args
    try:
        debug = debug or knobs.DEBUG.get() > 0
        application()(args=[a for a in args if a != DEBUG], prog_name="tilewright", obj=debug)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TilewrightError, OSError) as error:
        if debug:
            traceback.print_exc()
        Output("--json" in args).event("error", kind=type(error).__name__, message=command_text(error))
        print(f"error: {command_text(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
