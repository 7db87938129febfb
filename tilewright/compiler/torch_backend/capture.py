"""A graph that Dynamo captured, split for compiling: what is constant, what is dynamic, what only PyTorch can give back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from tilewright.compiler.torch_backend.fast_path import expand_fast_path

Call = Callable[..., Any]


@dataclass(frozen=True)
class Capture:
    """A captured graph over its true inputs.

    module: weights and numbers inside, one result for each of `made`. inputs: positions of its inputs among Dynamo's; fakes: one
    for each. weights: positions of those inside. made: positions of the results that it computes. rest: gives the other results,
    sizes and views of inputs, from all of Dynamo's inputs; None where there are none.
    """

    module: GraphModule
    inputs: tuple[int, ...]
    fakes: tuple[Any, ...]
    weights: tuple[int, ...]
    made: tuple[int, ...]
    results: int
    rest: Call | None


def capture(gm: GraphModule, values: Sequence[Any], numbers: Sequence[int], bind_weights: bool) -> Capture:
    """Sorts the inputs and results of a graph.

    Args:
        values: Dynamo's inputs; weights are these objects later, too.
        numbers: positions of `number_inputs`.
        bind_weights: parameters and buffers become part of the module.
    """
    places = gm.graph.find_nodes(op="placeholder")
    weights = tuple(i for i, v in enumerate(values) if bind_weights and _is_weight(v))
    inputs = tuple(i for i in range(len(places)) if i not in (*weights, *numbers))
    results = list(gm.graph.find_nodes(op="output")[0].args[0])
    made = tuple(i for i, r in enumerate(results) if _is_new(r, places))
    left = [i for i in range(len(results)) if i not in made]
    module = _with_results(gm, made)
    expand_fast_path(module)
    for i in (*weights, *numbers):
        _bind(module, module.graph.find_nodes(op="placeholder")[i], f"held_{i}", values[i])
    for node in module.graph.find_nodes(op="placeholder"):
        if not node.users and node.meta.get("held"):
            module.graph.erase_node(node)
    module.recompile()
    fakes = tuple(places[i].meta["example_value"] for i in inputs)
    rest = _with_results(gm, left) if left else None
    return Capture(module, inputs, fakes, weights, made, len(results), None if rest is None else rest.forward)


def _is_weight(value: Any) -> bool:
    """Parameters and buffers of the module, which Dynamo marks when it makes inputs of them."""
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def number_inputs(gm: GraphModule) -> tuple[int, ...]:
    """Positions of the Python numbers that Dynamo passes as tensors of rank 0; it tells so only while it compiles."""
    places = gm.graph.find_nodes(op="placeholder")
    return tuple(i for i, p in enumerate(places) if getattr(p.meta.get("grapharg"), "pass_arg_as_tensor", False))


def _is_new(result: Any, places: Sequence[Node]) -> bool:
    """A tensor that shares no memory with an input."""
    value = result.meta.get("example_value") if isinstance(result, Node) else None
    if not isinstance(value, torch.Tensor):
        return False
    own = value.untyped_storage()._cdata
    given = [p.meta.get("example_value") for p in places]
    return all(not isinstance(g, torch.Tensor) or g.untyped_storage()._cdata != own for g in given)


def _with_results(gm: GraphModule, kept: Sequence[int]) -> GraphModule:
    """The same graph with some of its results; what only the others need is left out."""
    graph: Graph = copy.deepcopy(gm.graph)
    output = graph.find_nodes(op="output")[0]
    output.args = (tuple(output.args[0][i] for i in kept),)
    made = GraphModule(gm, graph)
    graph.eliminate_dead_code()
    made.recompile()
    return made


def _bind(module: GraphModule, place: Node, name: str, value: Any) -> None:
    """Makes an input an attribute; of a number, its reads become the number itself."""
    for user in list(place.users):
        if user.op == "call_method" and user.target == "item":
            number = value.item()
            for reader in list(user.users):
                reader.args = torch.fx.map_arg(reader.args, lambda n, u=user, v=number: v if n is u else n)
                reader.kwargs = torch.fx.map_arg(reader.kwargs, lambda n, u=user, v=number: v if n is u else n)
            module.graph.erase_node(user)
    if place.users:
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        with module.graph.inserting_after(place):
            place.replace_all_uses_with(module.graph.get_attr(name))
    place.meta["held"] = True
