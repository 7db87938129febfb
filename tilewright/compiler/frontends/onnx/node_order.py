"""The order in which nodes are built, and what makes a graph of nodes unsound."""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx

from tilewright.runtime.errors import IngestError


def in_order(nodes: Sequence[onnx.NodeProto], known: Container[str]) -> list[onnx.NodeProto]:
    """The nodes with every value made before it is read.

    Raises:
        IngestError: a value is made twice, read but never made, or needs itself.
    """
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in makers or name in known:
                raise IngestError(
                    f"{_label(node)} makes the value {name!r}, which is there already: names are given once. "
                    "Export the model again"
                )
            makers[name] = i
    needs = [{makers[n] for n in _read(node) if n in makers} for node in nodes]
    for node in nodes:
        for name in filter(None, node.input):
            if name not in makers and name not in known:
                raise IngestError(
                    f"{_label(node)} reads the value {name!r}, which no node, input or initializer makes. Export the model again"
                )
    return [nodes[i] for i in _sorted(nodes, needs)]


def _sorted(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]]) -> list[int]:
    readers: list[list[int]] = [[] for _ in nodes]
    open_needs = [len(n) for n in needs]
    for i, wanted in enumerate(needs):
        for j in wanted:
            readers[j].append(i)
    ready = [i for i in reversed(range(len(nodes))) if not open_needs[i]]
    order: list[int] = []
    while ready:
        i = ready.pop()
        order.append(i)
        for reader in reversed(readers[i]):
            open_needs[reader] -= 1
            if not open_needs[reader]:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = [_label(nodes[i]) for i in range(len(nodes)) if open_needs[i]]
        raise IngestError(f"the graph has a cycle: {', '.join(stuck[:4])} need each other's results. Export the model again")
    return order


def _read(node: onnx.NodeProto) -> list[str]:
    """Values that a node reads, those of its branches too."""
    found = list(node.input)
    for a in node.attribute:
        for inner in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
            for n in inner.node:
                found += _read(n)
            found += [o.name for o in inner.output]
    return found


def _label(node: onnx.NodeProto) -> str:
    return f"node {node.name!r} ({node.op_type})" if node.name else f"a node {node.op_type}"
