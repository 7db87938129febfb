"""The page of `tilewright report`: sections of figures and tables as one HTML file that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --ink: #1b1f24; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #16181b; } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem }
body { color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 2rem 0 .25rem }
p { margin: .25rem 0 .75rem; max-width: 46rem }
.figure { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .25rem; overflow: hidden }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
dl { display: flex; flex-wrap: wrap; gap: .25rem 2rem; margin: .5rem 0 }
dt { font-size: .8rem; opacity: .7 } dd { margin: 0; font-weight: 600 }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under column names."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ReportSection:
    """A heading, a sentence, named figures of the run, a plotly figure, a table; what is missing is left out."""

    title: str
    text: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    figures: tuple[Any, ...] = ()
    tables: tuple[Table, ...] = field(default=())


def page(title: str, sections: Sequence[ReportSection]) -> str:
    """The whole document; plotly's script comes once, inline."""
    parts, first = [], True
    for section in sections:
        parts.append(f"<section><h2>{html.escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{html.escape(section.text)}</p>")
        if section.facts:
            facts = "".join(f"<div><dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd></div>" for n, v in section.facts)
            parts.append(f"<dl>{facts}</dl>")
        for figure in section.figures:
            drawn = figure.to_html(
                full_html=False, include_plotlyjs="inline" if first else False, config={"responsive": True, "displaylogo": False}
            )
            parts.append(f'<div class="figure">{drawn}</div>')
            first = False
        parts.extend(_table(t) for t in section.tables)
        parts.append("</section>")
    name = html.escape(title)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body><h1>{name}</h1>{body}</body></html>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(v)}</td>" for v in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def figure(x: str, y: str, height: int = 360, log_x: bool = False, log_y: bool = False) -> Any:
    """An empty plotly figure with named axes that fits a phone: the legend lies below."""
    import plotly.graph_objects as go

    made = go.Figure()
    made.update_layout(
        height=height,
        margin={"l": 56, "r": 12, "t": 12, "b": 48},
        template="plotly_white",
        autosize=True,
        legend={"orientation": "h", "y": -0.25},
        xaxis_title=x,
        yaxis_title=y,
    )
    if log_x:
        made.update_xaxes(type="log")
    if log_y:
        made.update_yaxes(type="log")
    return made
