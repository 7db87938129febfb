"""The parser of a subcommand of `python -m tools.bench`."""

from __future__ import annotations

import argparse


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """An empty parser whose help names the command as it is typed and prints the module's text as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m tools.bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
