"""Segments: what differs from one sequence of a batch to the next, of an operator whose kernels serve all of them in one launch.

MLIR-free. Such kernels read it from a block table (runtime/program/kernel.py, Param.by_sequence), those of equal operators on
many tensors from entries among their arguments. They are those of one sequence otherwise, but for what a launch has only once:
workspaces, second launches and blocks that go on to further tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.kernel import Param

_PLAIN: dict[str, Any] = {"split_k": 1, "split_kv": 1, "cluster_k": 1, "cluster_m": 1, "cluster_n": 1, "copied": False,
                          "pingpong": False, "streamed": False}


@dataclass(frozen=True)
class Segments:
    """pointers: operands that begin elsewhere. strides: (operand, axis). dims: local ones.

    Of the pointers: rows, (operand, axis) of those whose sequences are rows along this axis, one after the other; outer,
    (operand, elements) of those that have as many elements for each. A tensor map of one of either kind serves all sequences.

    members: of equal operators on so many tensors, rather than on sequences: what differs comes by value with the launch.
    """

    pointers: tuple[int, ...]
    strides: tuple[tuple[int, int], ...] = ()
    dims: tuple[str, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    outer: tuple[tuple[int, int], ...] = ()
    members: int = 0

    def __str__(self) -> str:
        return ",".join([*(f"pointer {i}" for i in self.pointers), *(f"stride {i} {a}" for i, a in self.strides),
                         *(f"dim {n}" for n in self.dims), *(f"rows {i} {a}" for i, a in self.rows),
                         *(f"outer {i} {n}" for i, n in self.outer), *([f"members {self.members}"] if self.members else [])])

    @staticmethod
    def parse(text: str) -> Segments:
        """The inverse of `str`."""
        words = [part.split() for part in text.split(",") if part]

        def pairs(kind: str) -> tuple[tuple[int, int], ...]:
            return tuple((int(w[1]), int(w[2])) for w in words if w[0] == kind)

        return Segments(tuple(int(w[1]) for w in words if w[0] == "pointer"), pairs("stride"),
                        tuple(w[1] for w in words if w[0] == "dim"), pairs("rows"), pairs("outer"),
                        sum(int(w[1]) for w in words if w[0] == "members"))

    def has(self, param: Param) -> bool:
        """Does a slot differ between sequences?"""
        if param.kind == "pointer":
            return param.index in self.pointers
        if param.kind == "stride":
            return (param.index, param.axis) in self.strides
        return param.kind == "dim" and param.name in self.dims


def for_sequences(config: TileConfig) -> TileConfig:
    """The configuration without what a launch has only once."""
    known = {f.name for f in fields(config)}
    changes = {name: value for name, value in _PLAIN.items() if name in known}
    if "blocks" in known:
        changes["blocks"] = 1 if config.family == "gpu_rows" else 0
    if getattr(config, "pingpong", False) and "bm" in known:
        changes["consumers"] = 1  # as many rows of a tile as each of the two had
    return replace(config, **changes)
