"""Operators that the table does not know, decomposed where they stand.

`ExportedProgram.run_decompositions` traces the whole program again, which takes as long as the export, and several times as long
where sizes are long formulas of the dims. Here the operator alone is traced, with the tensors that torch.export wrote on its
arguments, and what it is made of takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.torch.context import operator_name
from tilewright.compiler.frontends.torch.program_graphs import copied_graph, program_of

_LOG = logging.getLogger("tilewright")


def decomposed_in_place(program: ExportedProgram, unknown: Sequence[Any], table: Mapping[Any, Any]) -> ExportedProgram | None:
    """The program with these operators as `table` decomposes them; None where that takes a trace of the whole program.

    Args:
        unknown: what the nodes call that are to be decomposed, one for each node.
        table: operator -> what it is made of; also of what these are made of.
    """
    graph, copies = copied_graph(program)
    found = [copies[n] for n in program.graph.nodes if n.op == "call_function" and n.target in unknown]
    values = (n.meta.get("val") for n in program.graph.nodes)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if not found or mode is None or len(found) < len(unknown):
        return None  # within a branch, a loop or a region
    composite, others = _split_decomp_table_to_cia_and_python_decomp(dict(table))
    traced: dict[str, torch.fx.GraphModule | None] = {}  # equal layers have equal operators
    with torch.no_grad(), mode, _override_composite_implicit_decomp(composite):
        for node in found:
            call = _call(node)
            if call not in traced:
                traced[call] = _parts(node, others)
            if not _inline(graph, node, traced[call]):
                return None
    return program_of(graph, program)


def _call(node: torch.fx.Node) -> str:
    """What a trace of a node depends on: its operator, its arguments, and the sizes and strides of those that are tensors."""
    inputs = node.all_input_nodes

    def one(given: torch.fx.Node) -> str:
        value = given.meta.get("val")
        is_tensor = isinstance(value, torch.Tensor)
        return f"{inputs.index(given)}: {(value.dtype, value.device, value.shape, value.stride()) if is_tensor else value}"

    return f"{node.target} {pytree.tree_map_only(torch.fx.Node, one, (node.args, node.kwargs))}"


def _inline(graph: torch.fx.Graph, node: torch.fx.Node, parts: torch.fx.GraphModule | None) -> bool:
    """Puts what a node is made of in its place. False where that writes to tensors, or has tensors of its own."""
    if parts is None or any(n.op == "get_attr" or _writes(n) for n in parts.graph.nodes):
        return False
    known: dict[torch.fx.Node, Any] = dict(zip(parts.graph.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
    with graph.inserting_before(node):
        for part in parts.graph.nodes:
            if part.op == "call_function":
                known[part] = graph.node_copy(part, known.__getitem__)
                known[part].meta = {**{k: v for k, v in node.meta.items() if k != "val"}, "val": part.meta.get("val")}
    (last,) = parts.graph.find_nodes(op="output")
    results = pytree.tree_map_only(torch.fx.Node, known.__getitem__, last.args[0])
    return _replace(node, results)


def _parts(node: torch.fx.Node, table: Mapping[Any, Callable[..., Any]]) -> torch.fx.GraphModule | None:
    """A trace of one node, a placeholder for each node that it reads."""
    inputs = node.all_input_nodes
    if any("val" not in n.meta for n in inputs):
        return None

    def run(*values: Any) -> Any:
        given = dict(zip(inputs, values, strict=True))
        args, kwargs = pytree.tree_map_only(torch.fx.Node, given.__getitem__, (node.args, node.kwargs))
        return node.target(*args, **kwargs)

    try:
        return make_fx(run, decomposition_table=table, tracing_mode="symbolic")(*(n.meta["val"] for n in inputs))
    except Exception as error:  # whatever a decomposition raises
        _LOG.debug("%s is not decomposed by itself: %s", operator_name(node.target), error)
        return None


def _replace(node: torch.fx.Node, results: Any) -> bool:
    if isinstance(results, torch.fx.Node):
        node.replace_all_uses_with(results)
        node.graph.erase_node(node)
        return True
    for user in list(node.users):
        if operator_name(user.target) != "getitem" or not isinstance(results[user.args[1]], torch.fx.Node):
            return False
        user.replace_all_uses_with(results[user.args[1]])
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    return True


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
