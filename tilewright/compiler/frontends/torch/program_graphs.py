"""The graph of an ExportedProgram, copied to be changed, and the program of a changed graph: a user's program stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree


def copied_graph(program: ExportedProgram) -> tuple[Graph, Mapping[Node, Node]]:
    """The outer graph of a program, and what each of the program's nodes is there."""
    graph = Graph(tracer_cls=program.graph._tracer_cls)
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(program.graph, copies)).meta.update(program.graph.output_node().meta)
    for node in program.graph.find_nodes(op="placeholder"):
        copies[node].name = node.name  # signatures go by names, and a copy of `input` would be called `input_1`
    return graph, copies


def program_of(graph: Graph, program: ExportedProgram) -> ExportedProgram:
    """A program with another graph, of the same inputs and the same number of results."""
    graph.eliminate_dead_code()
    graph.lint()
    module = GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    results = pytree.arg_tree_leaves(graph.output_node().args[0])
    given = program.graph_signature
    outputs = []
    for spec, result in zip(given.output_specs, results, strict=True):
        named = isinstance(spec.arg, TensorArgument) and isinstance(result, Node)
        outputs.append(type(spec)(spec.kind, TensorArgument(result.name) if named else spec.arg, spec.target))
    return program._update(module, ExportGraphSignature(given.input_specs, outputs))
