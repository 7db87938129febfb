"""Groups of an exported program: every segment of its cut, or the program as a whole. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.runtime.errors import IngestError
from tools.bench.zoo.cut import Cut, is_tensor
from tools.bench.zoo.group_table import Group
from tools.bench.zoo.group_text import GroupText, UncutError


def groups(cut: Cut) -> Iterator[tuple[Group | None, str]]:
    """Every segment as a group, or None and why it cannot stand alone."""
    for segment in cut.segments:
        try:
            yield GroupText(cut, segment.nodes, cut.results(segment)).group(), ""
        except (UncutError, IngestError) as error:
            yield None, f"{[str(n.target) for n in segment.nodes]}: {error}"


def whole(cut: Cut, name: str) -> tuple[Group, Mapping[str, str]]:
    """The program as one group, and the placeholder of each of its weights."""
    output = next(n for n in cut.program.graph.nodes if n.op == "output")
    nodes = [n for n in cut.program.graph.nodes if n.op == "call_function" and is_tensor(n)]
    text = GroupText(cut, nodes, [n for n in output.all_input_nodes if is_tensor(n)])
    return text.group(name), text.names()
