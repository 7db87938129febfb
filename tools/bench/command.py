"""What subcommands of `python -m tools.bench` share: the parser, and the file that keeps records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """An empty parser whose help names the command as it is typed and prints the module's text as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m tools.bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def append(path: Path | None, records: Iterable[dict[str, Any]]) -> None:
    """Append records to a file, a line of JSON each; None for no file."""
    if path is not None:
        with path.open("a") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
