"""What commands print: JSON Lines for programs, tables and progress for people."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.log import LOG

JSON_HELP = "Print JSON Lines instead of text."


@dataclass(frozen=True)
class Output:
    """Where the results of a command go; `as_json` prints every event as one JSON object a line."""

    as_json: bool

    def event(self, event: str, **fields: Any) -> None:
        """A line of JSON, in which what is not a finite number is null; nothing for people."""
        if self.as_json:
            print(json.dumps({"event": event, **_plain(fields)}, default=str, allow_nan=False), flush=True)

    def text(self, text: str) -> None:
        """A line for people; nothing with --json."""
        if not self.as_json:
            print(text, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table for people, of records where the terminal is narrow; nothing with --json. Numbers are aligned to the right."""
        if self.as_json:
            return
        from rich.console import Console

        from tilewright.compiler.cli.layout import Facts

        numeric = [bool(rows) and all(isinstance(r[i], int | float) for r in rows) for i in range(len(columns))]
        texts = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
        Console(soft_wrap=False).print(Facts(title, columns, texts, numeric))

    @contextmanager
    def skipped_lines(self) -> Iterator[None]:
        """Lines of a tuning log that are not read meanwhile are events, or warnings for people, of the command."""

        def tell(record: logging.LogRecord) -> bool:
            skipped = getattr(record, "skipped", None)
            if skipped is not None:
                self.event("skipped", path=skipped.path, line=skipped.line, reason=skipped.reason)
                self.text(f"warning: {skipped}")
            return skipped is None

        LOG.addFilter(tell)
        try:
            yield
        finally:
            LOG.removeFilter(tell)

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """A spinner on standard error while people wait; nothing where that is no terminal, or with --json."""
        if self.as_json:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield


def known(value: float, is_known: object = True) -> float | None:
    """A figure as an event has it: None, which is null, where it was not measured."""
    return value if is_known and math.isfinite(value) else None


def dims_text(dims: Mapping[str, int]) -> str:
    """`B=1 S=57`."""
    return " ".join(f"{n}={v}" for n, v in dims.items()) or "static"


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return known(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
