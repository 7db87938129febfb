"""A program whose operators are not all known: the known ones compiled in parts, the others left to PyTorch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch import operators as _operators  # noqa: F401 - fills the table
from tilewright.compiler.frontends.torch.context import operator_name
from tilewright.compiler.frontends.torch.exported import nodes
from tilewright.compiler.torch_backend.part import Part, export
from tilewright.runtime.errors import IngestError, TilewrightError

_LOG = logging.getLogger("tilewright")
_SMALLEST = 2  # operators of a part that is worth a call


def in_parts(program: ExportedProgram, options: CompileOptions, target: str) -> Part | Callable[..., Any]:
    """A program of `export` as one compiled function, or as PyTorch's graph with compiled parts where operators are not known.

    Raises:
        IngestError: no part of it can be compiled.
    """
    unknown = sorted({operator_name(n.target) for n in nodes(program.graph_module) if not _is_known(n)})
    if not unknown:
        return Part(program, options, target)
    top = program.module(check_guards=False)
    partitioner = CapabilityBasedPartitioner(top, _Known(), allows_single_node_partition=False)
    proposed = [p for p in partitioner.propose_partitions() if _size(p.nodes) >= _SMALLEST]
    fused = partitioner.fuse_partitions(proposed)
    compiled = 0
    for node in list(fused.graph.find_nodes(op="call_module")):
        inner = fused.get_submodule(str(node.target))
        try:
            made = export(inner, [a.meta["val"] if isinstance(a, Node) else a for a in node.args])
            part = Part(made, options, target)
        except TilewrightError as error:
            _LOG.warning("torch.compile: a part of %d operators runs in eager mode: %s", _size(inner.graph.nodes), error)
            continue
        fused.add_submodule(str(node.target), _PartModule(part, inner))
        compiled += 1
    if not compiled:
        raise IngestError(f"operators that are not known: {', '.join(unknown)}, and no part without them can be compiled")
    fused.recompile()
    _LOG.warning("torch.compile: %s run in eager mode between %d compiled parts; @tw.frontends.register makes them known",
                 ", ".join(unknown), compiled)
    return lambda *args: list(fused(*args))


def _is_known(node: Node) -> bool:
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return not is_operator or operator_name(node.target) in lowerings("torch") or _is_size(node)


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, int, torch.SymBool)) or node.meta.get("val") is None


def _size(members: Any) -> int:
    return sum(n.op == "call_function" and n.target is not operator.getitem for n in members)


class _Known(OperatorSupport):  # type: ignore[misc]
    """Which nodes may be part of a compiled graph."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        if node.op != "call_function" or (isinstance(node.target, torch._ops.HigherOrderOperator)):
            return False
        return _is_known(node)


class _PartModule(torch.nn.Module):  # type: ignore[misc]
    """A compiled part in the place of the graph that it computes."""

    def __init__(self, part: Part, inner: GraphModule) -> None:
        super().__init__()
        self._part, self._inner = part, inner

    def forward(self, *args: Any) -> Any:
        if not self._part.takes(args):
            return self._inner(*args)
        made = self._part(*args)
        return made[0] if len(made) == 1 else tuple(made)
