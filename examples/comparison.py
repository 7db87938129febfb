"""What the examples share: arguments, and the comparison of a compiled model with PyTorch's own results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tilewright as tw

LARGEST_ERROR = 2e-5  # of the norm, f32


def arguments(about: str) -> argparse.Namespace:
    """--size small|real, --save PATH."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--size", choices=("small", "real"), default="real", help="small: two layers, for a quick look")
    parser.add_argument("--save", type=Path, help="write the compiled model there, for tilewright.load")
    return parser.parse_args()


def error(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was wanted."""
    return float((made.double() - wanted.double()).norm() / wanted.double().norm())


def compare(
    fn: tw.CompiledFunction,
    model: torch.nn.Module,
    inputs: Callable[..., Mapping[str, Any]],
    points: Sequence[Mapping[str, int]],
    read: Callable[[Any], torch.Tensor],
) -> None:
    """Runs both at every point and prints how far apart they are; raises where it is too far.

    Args:
        inputs: arguments by name for the sizes of a point.
        read: the tensor to compare of a result of the model.
    """
    for point in points:
        given = inputs(**point)
        with torch.no_grad():
            wanted = read(model(**given))
        made = read(fn(**given))
        far = error(made, wanted)
        print(f"  {', '.join(f'{k}={v}' for k, v in point.items())}: {tuple(made.shape)}, error {far:.1e}")
        if not far <= LARGEST_ERROR:
            raise SystemExit(f"too far from PyTorch: {far:.1e}")
