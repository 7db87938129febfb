"""How text fits the width of a terminal: names abbreviated in the middle, columns left out, rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2  # between columns
_LEAST = 12  # width of a name that can be told from others
_FOLDED = 24  # least width of a column whose text is folded


def abbreviated(text: str, width: int) -> str:
    """The text in at most so many characters, its middle left out: what it begins and ends with tells it from others."""
    if len(text) <= width:
        return text
    if width < 3:
        return text[: max(0, width)]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def arm_label(key: str, width: int) -> str:
    """`matmul_add_gelu-1a2b3c/small` in at most so many characters: the digest goes first, then the middle of the operator's
    name. The bucket of shapes stays.
    """
    if len(key) <= width:
        return key
    operator, slash, bucket = key.rpartition("/")
    name, dash, digest = operator.rpartition("-")
    plain = name if dash and len(digest) == 6 else operator
    return f"{abbreviated(plain, max(3, width - len(slash) - len(bucket)))}{slash}{bucket}"


@dataclass(frozen=True)
class Column:
    """rank: columns of a high rank are left out first; 0: never."""

    name: str
    right: bool = False
    rank: int = 0


@dataclass(frozen=True)
class FittedTable:
    """A rich renderable of rows that begin with a label. Where they are too wide, columns are left out, and then the labels are
    abbreviated.

    labels: whole, shortened by `shorten`.
    """

    columns: Sequence[Column]
    rows: Sequence[tuple[str, ...]]
    shorten: Any = abbreviated

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        if not self.rows:
            return
        kept, width = self._fit(options.max_width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
        for i in kept:
            column = self.columns[i]
            table.add_column(column.name, justify="right" if column.right else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(self.shorten(row[i], width) if i == 0 else row[i]) for i in kept))
        yield table

    def _fit(self, width: int) -> tuple[list[int], int]:
        """The columns that are kept, and what is left for the labels."""
        widths = [max([len(c.name), *(len(row[i]) for row in self.rows)]) for i, c in enumerate(self.columns)]
        kept = list(range(len(self.columns)))
        wanted = min(widths[0], max(_LEAST, width // 2))
        while True:
            left = width - sum(widths[i] + _GAP for i in kept[1:])
            loose = [i for i in kept[1:] if self.columns[i].rank]
            if left >= wanted or not loose:
                return kept, max(left, 3)
            kept.remove(max(loose, key=lambda i: self.columns[i].rank))


@dataclass(frozen=True)
class Facts:
    """A rich renderable of rows of texts: a table where it fits, else a record for each row, its first text as the heading."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        if not self._fits(options.max_width):
            yield Text(self.title, style="italic", overflow="fold")
            for row in self.rows:
                heading = f"{self.columns[0]} {row[0]}" if self.numeric[0] else row[0]
                yield Text(heading, style="bold", overflow="fold")
                for name, text in zip(self.columns[1:], row[1:], strict=True):
                    lines = text.splitlines() or [""]
                    yield Text(f"  {name}: {lines[0]}", overflow="fold")
                    for line in lines[1:]:
                        yield Text(f"    {line}", overflow="fold")
            return
        table = Table(title=self.title, title_justify="left")
        for name, numeric in zip(self.columns, self.numeric, strict=True):
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        yield table

    def _fits(self, width: int) -> bool:
        """Do all columns but the last one fit unfolded, and that one folded to a width that can be read?"""
        widths = [max([len(name), *(len(line) for row in self.rows for line in row[i].splitlines())])
                  for i, name in enumerate(self.columns)]
        return sum(widths[:-1]) + min(widths[-1], _FOLDED) + 3 * len(widths) + 1 <= width
