"""What commands print: JSON Lines for programs, tables and progress for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

JSON_HELP = "Print JSON Lines instead of text."


@dataclass(frozen=True)
class Output:
    """Where the results of a command go; `as_json` prints every event as one JSON object a line."""

    as_json: bool

    def event(self, event: str, **fields: Any) -> None:
        """A line of JSON; nothing for people."""
        if self.as_json:
            print(json.dumps({"event": event, **fields}, default=str), flush=True)

    def text(self, text: str) -> None:
        """A line for people; nothing with --json."""
        if not self.as_json:
            print(text, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table for people; nothing with --json. Columns of numbers are aligned to the right."""
        if self.as_json:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left")
        for i, name in enumerate(columns):
            numeric = bool(rows) and all(isinstance(r[i], int | float) for r in rows)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(f"{v:.3g}" if isinstance(v, float) else str(v)) for v in row))
        Console(soft_wrap=False).print(table)

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """A spinner on standard error while people wait; nothing where that is no terminal, or with --json."""
        if self.as_json:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield


def dims_text(dims: Mapping[str, int]) -> str:
    """`B=1 S=57`."""
    return " ".join(f"{n}={v}" for n, v in dims.items()) or "static"
