"""Numerics: what the options of a compile let kernels do to results, as far as it decides which families serve. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numerics:
    """tf32: f32 may be multiplied as tf32 on a GPU. winograd: convolutions may go through Winograd's transforms. ordered: sums
    have one order for every number of rows (passes/spaces/in_order.py)."""

    tf32: bool = False
    winograd: bool = True
    ordered: bool = False


PLAIN = Numerics()
