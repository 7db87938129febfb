"""fold-broadcast: a tensor that only repeats another one is read through the indexing maps of its consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.data_movement import fold_movements
from tilewright.passes.linalg.structured import erase_unused, main_of
from tilewright.passes.mlir import ir


@dataclass(frozen=True)
class FoldBroadcast(Pass):
    """A batch_matmul of weights repeated over the batch becomes a contraction whose weights have no batch axis."""

    name: ClassVar[str] = "fold-broadcast"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            fold_movements(fn, lambda access: not access.is_permutation)
            erase_unused(fn)
