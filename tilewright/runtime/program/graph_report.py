"""GraphReport: what a compiled function says of its CUDA graphs."""

from __future__ import annotations

import msgspec

from tilewright.runtime.program.html_table import html_table
from tilewright.runtime.sizes import size_text

_HEAD = ("device", "stream", "state", "nodes", "bytes", "calls", "graphs", "launches", "updates a call", "switches", "hits")


class StreamReport(msgspec.Struct, frozen=True):
    """One stream. nodes, bytes: kernel nodes of its graph, and the GPU memory that instantiating it took. calls: all, with a
    graph or without. instantiated: graphs made. launches: calls that were one launch of a graph. updates, switches: how often
    parameters of a node were set, and nodes enabled or disabled, over all launches. hits: results that came from the ring. plain,
    through: seconds of a call without a graph and with one, medians, where they were measured.
    """

    device: int
    stream: int
    state: str
    nodes: int
    bytes: int
    calls: int
    instantiated: int
    launches: int
    updates: int
    switches: int
    hits: int
    plain: float = 0.0
    through: float = 0.0

    @property
    def updates_per_call(self) -> float:
        return self.updates / self.launches if self.launches else 0.0


class GraphReport(msgspec.Struct, frozen=True):
    """The streams that calls were made on. why: where no call has a graph, what speaks against it."""

    streams: tuple[StreamReport, ...]
    why: str = ""

    @property
    def bytes(self) -> int:
        """GPU memory of all graphs."""
        return sum(s.bytes for s in self.streams)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def _rows(self) -> list[tuple[str, ...]]:
        return [(str(s.device), hex(s.stream), s.state, str(s.nodes), size_text(s.bytes), str(s.calls), str(s.instantiated),
                 str(s.launches), f"{s.updates_per_call:.1f}", str(s.switches), str(s.hits)) for s in self.streams]

    def __str__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(["CUDA graphs" + (f": none, {self.why}" if self.why else ""), *(lines if self.streams else [])])

    def _repr_html_(self) -> str:
        return html_table("CUDA graphs" + (f": none, {self.why}" if self.why else ""), _HEAD, self._rows())
