"""Writes into tensors and views of them, taken out where they stand: `x[:, a:b] = y` becomes a new x.

torch.export takes them out by tracing the whole program again, which takes as long as the export, and several times as long where
sizes are long formulas of the dims. Here the operators on one tensor's memory are followed in the order of the program: a write
makes what was written to anew, and by the inverses of the views the tensor that owns the memory; who reads a view afterwards
reads it of that one.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.torch.in_place import functional_name, makes_its_own
from tilewright.compiler.frontends.torch.program_graphs import copied_graph, program_of

_LOG = logging.getLogger("tilewright")
_aten = torch.ops.aten
_COMPOSITE = "CompositeImplicitAutograd"
_HIDDEN_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias")  # views whose schemas do not say so


def without_writes(program: ExportedProgram) -> ExportedProgram | None:
    """The program with tensors made anew where operators write to them; None where that takes a trace of the whole program: it
    writes to its inputs, through other views than slices and swapped axes, or inside of a branch, a loop or a region."""
    graph, _ = copied_graph(program)
    for node in graph.find_nodes(op="get_attr"):
        inner = getattr(program.graph_module, str(node.target), None)
        if isinstance(inner, GraphModule) and any(_is_write(n) for n in inner.graph.nodes):
            return None
    memories = _written(graph)
    if memories is None or not all(memory.can_be_replaced() for memory in memories):
        return None
    try:
        for memory in memories:
            _Replacement(graph, memory).run()
    except Exception as error:  # whatever PyTorch's shape functions raise
        _LOG.debug("writes are not taken out by themselves: %s", error)
        return None
    return program_of(graph, program)


@dataclass(frozen=True)
class _Memory:
    """The tensor that owns memory which is written to, and the nodes that give it or a view of it, in order, each with the node
    that it is a view of."""

    owner: Node
    views: Mapping[Node, Node]

    def can_be_replaced(self) -> bool:
        """Is the memory the program's own, and every access to it up to the last write known?"""
        if not _is_owner(self.owner):
            return False
        last = max(n for n in self.views if _is_write(n))
        readers = {user for node in (self.owner, *self.views) for user in node.users if user not in self.views}
        return (all(user > last or _is_fresh(user) or (_is_write(user) and _twin(user) is not None) for user in readers)
                and all(_twin(n) is not None for n in self.views if _is_write(n))
                and all(_has_inverse(v) for n in self.views if _is_write(n) for v in self.above(n)))

    def above(self, node: Node) -> Iterable[Node]:
        """The views that a write's target is made by, innermost first."""
        at = self.views[node]
        while at is not self.owner:
            if not _is_write(at):
                yield at
            at = self.views[at]


def _written(graph: Graph) -> list[_Memory] | None:
    """The memory that is written to and cannot be left to `functional_name`; None where an owner is not found."""
    owners: dict[Node, Node] = {}
    views: dict[Node, dict[Node, Node]] = {}
    wanted: list[Node] = []
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if isinstance(source, Node) and (_is_write(node) or _is_view(node)):
            owners[node] = owner = owners.get(source, source)
            views.setdefault(owner, {})[node] = source
            if _is_write(node) and functional_name(node) is None and owner not in wanted:
                wanted.append(owner)
        elif _is_write(node):
            return None
    return [_Memory(owner, views[owner]) for owner in wanted]


class _Replacement:
    """One memory's writes taken out. `held`: what a node gives after so many writes, by the node."""

    def __init__(self, graph: Graph, memory: _Memory) -> None:
        self.graph, self.memory = graph, memory
        self.writes = 0
        self.held: dict[Node, tuple[Node, int]] = {memory.owner: (memory.owner, 0)}

    def run(self) -> None:
        views = self.memory.views
        users = {user for node in (self.memory.owner, *views) for user in node.users}
        for node in [n for n in self.graph.nodes if n in users or n in views]:
            if _is_write(node) and node in views:
                self._write(node)
                continue
            with self.graph.inserting_before(node):
                now = {a: self._now(a) for a in node.all_input_nodes if a is self.memory.owner or a in views}
            for old, new in now.items():
                node.replace_input_with(old, new)
            if node in views:
                self.held[node] = (node, self.writes)
        for node in reversed(views):
            if not node.users:
                self.graph.erase_node(node)

    def _now(self, node: Node) -> Node:
        """What a node gives after the writes so far."""
        value, seen = self.held[node]
        if seen != self.writes:
            source = self._now(self.memory.views[node])
            value = source if _is_write(node) else self._made(node, node.target, (source, *node.args[1:]), node.kwargs)
            self.held[node] = (value, self.writes)
        return value

    def _write(self, node: Node) -> None:
        """Makes what a node writes to anew, and all that it is a view of."""
        target = self.memory.views[node]
        with self.graph.inserting_before(node):
            args = [self._now(a) if isinstance(a, Node) and a in self.held else a for a in node.args]
            made = self._made(target, _twin(node), args, node.kwargs, of=node)
            before = target.meta["val"]
            after = made.meta["val"]
            if after.dtype != before.dtype or after.dim() != before.dim():
                raise TypeError(f"{node} writes {before.dtype}, and {made} is {after.dtype}")
            now = made
            for view in self.memory.above(node):
                source = self.memory.views[view]
                now = self._made(source, *_inverse(view, self._now(source), now), {}, of=node)
        self.writes += 1
        self.held[self.memory.owner] = (now, self.writes)
        self.held.setdefault(node, (made, 0))  # read as the owner's view, as torch.export does it

    def _made(self, like: Node, target: Any, args: Iterable[Any], kwargs: Mapping[str, Any], of: Node | None = None) -> Node:
        """A new node. like: whose place it takes. of: the node of the program that it comes from, where that is another one."""
        made = self.graph.call_function(target, tuple(args), dict(kwargs))
        given = pytree.tree_map_only(Node, lambda n: n.meta["val"], (made.args, made.kwargs))
        made.meta = {**(of or like).meta, "val": target(*given[0], **given[1])}
        return made


def _is_write(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_item(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _is_owner(node: Node) -> bool:
    """Is the node's memory its own, and not known by another name?"""
    if not _is_item(node):
        return _is_fresh(node)
    source = node.args[0]
    return isinstance(source, Node) and _is_fresh(source) and sum(u.args[1:] == node.args[1:] for u in source.users) == 1


def _is_view(node: Node) -> bool:
    """Does the node give a view of its first argument, or may it?"""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return len(returns) == 1 and returns[0].alias_info is not None and not _is_composite(node.target)


def _is_fresh(node: Node) -> bool:
    """Does the node make tensors of its own, whatever it reads?"""
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    if makes_its_own(op):
        return True
    return not (_is_composite(op) or op._schema.name in _HIDDEN_VIEWS or any(r.alias_info for r in op._schema.returns))


def _is_composite(op: torch._ops.OpOverload) -> bool:
    """Is it computed by other operators? Such ones may give what they are given, and not say so."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE))


def _twin(node: Node) -> Any:
    """The operator that makes what a node writes as a new tensor; None where there is none."""
    schema = node.target._schema
    written = [n for n, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    space, _, name = schema.name.partition("::")
    if written != [0] or space != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    return getattr(getattr(_aten, name[:-1], None), node.target._overloadname, None)


def _has_inverse(view: Node) -> bool:
    return view.target in _INVERSES and not view.kwargs


def _inverse(view: Node, whole: Node, part: Node) -> tuple[Any, tuple[Any, ...]]:
    """The operator and arguments that make what a view is of, with this in the view's place."""
    return _INVERSES[view.target](whole, part, *view.args[1:])


def _permuted(whole: Node, part: Node, dims: list[int]) -> tuple[Any, tuple[Any, ...]]:
    axes = [d % len(dims) for d in dims]
    return _aten.permute.default, (part, [axes.index(a) for a in range(len(axes))])


_INVERSES: Mapping[Any, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    _aten.slice.Tensor: lambda whole, part, *at: (_aten.slice_scatter.default, (whole, part, *at)),
    _aten.select.int: lambda whole, part, *at: (_aten.select_scatter.default, (whole, part, *at)),
    _aten.unsqueeze.default: lambda whole, part, dim: (_aten.squeeze.dim, (part, dim)),
    _aten.transpose.int: lambda whole, part, *axes: (_aten.transpose.int, (part, *axes)),
    _aten.t.default: lambda whole, part: (_aten.t.default, (part,)),
    _aten.permute.default: _permuted,
    _aten.alias.default: lambda whole, part: (_aten.alias.default, (part,)),
    _aten.detach.default: lambda whole, part: (_aten.detach.default, (part,)),
}
