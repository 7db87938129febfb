"""Cuts an exported program into groups: what one kernel of a compiler that fuses would compute. Needs torch.

A contraction, window, normalisation, copy or sort begins a group, but for a contraction of what was padded for it. Pointwise
operators join the group that makes their operand, reductions along rows join what is pointwise or such a reduction itself, and
the second product of attention joins the first. Views and what depends on sizes alone cost nothing by themselves: every group
that reads them has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from tilewright.compiler.frontends.torch.signature import ProgramDims, program_dims, user_placeholders
from tilewright.compiler.frontends.torch.sizes import Sizes
from tilewright.compiler.ops.graph import Graph
from tools.bench.zoo.group_table import VIEWS


class Kind(Enum):
    """How an operator joins others."""

    POINTWISE, ROWS, CONTRACTION, SOFTMAX, GATHER, OTHER, VIEW = range(7)


_ROWS = frozenset((
    "mean", "sum", "var", "std", "amax", "amin", "max", "min", "norm", "linalg_vector_norm", "logsumexp", "layer_norm",
    "rms_norm", "var_mean",
))  # fmt: skip
_SOFTMAX = frozenset(["softmax", "log_softmax", "_softmax", "_safe_softmax"])
_CONTRACTIONS = frozenset((
    "linear", "addmm", "mm", "bmm", "matmul", "einsum", "baddbmm", "conv1d", "conv2d", "convolution", "conv_transpose2d",
    "scaled_dot_product_attention",
))  # fmt: skip
_GATHERS = frozenset(["embedding"])
_OTHERS = frozenset((
    "cat", "stack", "pad", "constant_pad_nd", "roll", "index", "gather", "index_select", "scatter", "index_put", "masked_scatter",
    "repeat", "repeat_interleave", "cumsum", "cumprod", "topk", "sort", "argmax", "argmin", "argsort", "max_pool2d", "max_pool1d",
    "avg_pool2d", "avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_bicubic2d", "group_norm", "instance_norm", "lstm", "gru", "embedding_bag", "tril", "triu", "nonzero", "im2col",
    "col2im", "flip", "pixel_shuffle", "unfold", "diff", "any", "all",
))  # fmt: skip
_LIGHT = frozenset((Kind.POINTWISE, Kind.ROWS, Kind.SOFTMAX, Kind.GATHER))
BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
_FREE = 4  # operators on sizes alone that a group repeats; longer chains are inputs
_LONGEST = 40


def kind(node: Node) -> Kind:
    """The kind of a call that makes tensors."""
    name = str(node.target).split(".")[-2] if "." in str(node.target) else getattr(node.target, "__name__", "")
    for names, found in ((VIEWS, Kind.VIEW), (_SOFTMAX, Kind.SOFTMAX), (_CONTRACTIONS, Kind.CONTRACTION),
                         (_GATHERS, Kind.GATHER), (_OTHERS, Kind.OTHER)):
        if name in names:
            return found
    if name in _ROWS and (name not in ("max", "min") or len(node.args) != 2 or not isinstance(node.args[1], Node)):
        return Kind.ROWS
    return Kind.POINTWISE


@dataclass(eq=False)
class Segment:
    """Nodes that one group computes, in the order of the program; `before` are the segments it depends on."""

    number: int
    nodes: list[Node] = field(default_factory=list)
    before: set[int] = field(default_factory=set)

    @property
    def kinds(self) -> set[Kind]:
        return {kind(n) for n in self.nodes}

    def takes(self, node: Node) -> bool:
        """May the node be computed with these?"""
        wanted, own = kind(node), self.kinds
        several = any(not isinstance(tensor(n), torch.Tensor) for n in self.nodes)
        if len(self.nodes) >= _LONGEST or (Kind.OTHER in own and several):
            return False
        if wanted is Kind.POINTWISE:
            return True
        if wanted in (Kind.ROWS, Kind.SOFTMAX):
            return own <= _LIGHT or (wanted is Kind.SOFTMAX and own <= _LIGHT | {Kind.CONTRACTION})
        if wanted is Kind.CONTRACTION and own == {Kind.OTHER}:
            return all(".pad." in str(n.target) for n in self.nodes)
        return wanted is Kind.CONTRACTION and own >= {Kind.CONTRACTION, Kind.SOFTMAX} and _is_product(node)


class Cut:
    """The segments of one program."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.dims: ProgramDims = program_dims(program, (), {})
        self.sizes = Sizes(self.dims.names, Graph(ranges={n: (d.lo, d.hi) for n, d in self.dims.ranges.items()}))
        self.users = set(user_placeholders(program))
        self.given = {n for n in program.graph.nodes if n.op in ("placeholder", "get_attr")}
        self.weights = self.given - self.users
        self._on_data: set[Node] = set(self.users)
        self._work: dict[Node, int] = {}
        self.owner: dict[Node, Segment] = {}
        self.segments: list[Segment] = []
        for node in program.graph.nodes:
            if node.op == "call_function" and is_tensor(node):
                self._place(node)

    def is_free(self, node: Node) -> bool:
        """Does a group that reads this compute it itself?"""
        return node.op == "call_function" and node not in self.owner and is_tensor(node)

    def source(self, node: Node) -> Node:
        """What a chain of views begins with."""
        while node.op == "call_function" and node not in self.owner and kind(node) is Kind.VIEW:
            node = node.all_input_nodes[0]
        return node

    def _place(self, node: Node) -> None:
        operands = [n for n in node.all_input_nodes if is_tensor(n)]
        if any(n in self._on_data for n in operands):
            self._on_data.add(node)
        work = sum(self._work.get(n, 0) for n in operands) + (kind(node) is not Kind.VIEW)
        if kind(node) is Kind.VIEW or (node not in self._on_data and work <= _FREE):
            self._work[node] = work
            return
        producers = {self.owner[s] for s in map(self.source, operands) if s in self.owner}
        segment = self._joined(node, producers) or self._new()
        segment.nodes.append(node)
        self.owner[node] = segment
        for other in producers - {segment}:
            segment.before |= {other.number, *other.before}

    def _new(self) -> Segment:
        self.segments.append(Segment(len(self.segments)))
        return self.segments[-1]

    def _joined(self, node: Node, producers: set[Segment]) -> Segment | None:
        """The latest segment that may hold the node: all that it makes outside is for this node, and no circle arises."""
        for segment in sorted(producers, key=lambda s: -s.number):
            others = producers - {segment}
            circle = any(segment.number in other.before for other in others)
            if not circle and segment.takes(node) and self._feeds_only(segment, node):
                return segment
        return None

    def _feeds_only(self, segment: Segment, node: Node) -> bool:
        """Do no segments but this one depend on it, but for the values that it hands out anyway?"""
        read = [s for s in map(self.source, node.all_input_nodes) if s in self.owner and self.owner[s] is segment]
        return all(self._readers(s) <= {node, *segment.nodes} for s in read)

    def _readers(self, node: Node) -> set[Node]:
        """The users of a value through views, but for those that ask for its sizes."""
        found: set[Node] = set()
        for user in (u for u in node.users if u.op == "output" or is_tensor(u)):
            found |= self._readers(user) if user.op == "call_function" and kind(user) is Kind.VIEW else {user}
        return found

    def results(self, segment: Segment) -> Sequence[Node]:
        """What others than the segment read, or nobody."""
        return [n for n in segment.nodes if not self._readers(n) <= set(segment.nodes) or not n.users]


def is_tensor(node: Node) -> bool:
    """Does it make tensors?"""
    value = node.meta.get("val")
    parts: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(p, torch.Tensor) for p in parts)


def _is_product(node: Node) -> bool:
    return any(part in str(node.target) for part in ("matmul", "bmm", ".mm."))


def tensor(node: Node) -> torch.Tensor:
    """What is known of a node's value, of the first of a batch norm's."""
    value = node.meta["val"]
    found: torch.Tensor = value[0] if str(node.target) == BATCH_NORM else value
    return found


def state(cut: Cut) -> Mapping[str, torch.Tensor]:
    """The tensors of a program by the name of their placeholder."""
    signature, program = cut.program.graph_signature, cut.program
    stored = {**program.state_dict, **program.constants}
    return {s.arg.name: stored[str(s.target)] for s in signature.input_specs
            if s.target is not None and isinstance(stored.get(str(s.target)), torch.Tensor)}
