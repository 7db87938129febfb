"""Tables for notebooks: what `_repr_html_` of functions and explanations gives."""

from __future__ import annotations

import html
from collections.abc import Sequence


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a title; all text is escaped."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<p><b>{html.escape(title)}</b></p><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
