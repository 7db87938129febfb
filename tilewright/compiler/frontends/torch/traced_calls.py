"""The calls of PyTorch's functions while torch.export traces a model: some are made in a form that does not fix sizes, and of
each condition on sizes it is noted which line of the model made it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch.overrides import TorchFunctionMode

from tilewright.compiler.frontends.torch.recurrent_layers import recurrent

_SYMBOLS = (torch.SymInt, torch.SymFloat)
_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__)), "<")  # "<": code that torch made


class NarrowedError(Exception):
    """The trace was left: torch.export would refuse the ranges of the dims over a condition that it has met."""


class TracedCalls(TorchFunctionMode):  # type: ignore[misc]
    """`lines`: by the id of a condition (a guard of torch's ShapeEnv), the line of the model whose operator made it.

    Args:
        ranged: are all dynamic sizes held to ranges? torch.export then refuses the model, once it has traced all of it, over any
            condition on a single size that does not follow from its range. The trace ends there, by a NarrowedError.
    """

    def __init__(self, ranged: bool = False) -> None:
        super().__init__()
        self.lines: dict[int, str] = {}
        self._ranged = ranged
        self._seen = 0  # conditions

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        name, given = getattr(function, "__name__", ""), kwargs or {}
        other = _IN_OTHER_FORM.get(name)
        called: Callable[..., Any] = recurrent(name, args, given) or (other(function, args, given) if other else function)
        tracing = None if torch.compiler.is_dynamo_compiling() else active_fake_mode()  # Dynamo traces branches and loops
        if tracing is None or tracing.shape_env is None:
            return called(*args, **given)
        guards = tracing.shape_env.guards
        before = len(guards)
        try:
            result = called(*args, **given)
        finally:
            found = [g for g in guards[before:] if id(g) not in self.lines]
            line = _line_of_model() if found else ""
            self.lines.update((id(g), line) for g in found)
        if self._ranged and any(len(g.expr.free_symbols) == 1 for g in guards[self._seen:]):
            raise NarrowedError
        self._seen = len(guards)
        return result


def _line_of_model() -> str:
    """The innermost line that runs and is neither PyTorch's nor of this file; "" where there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    code = frame.f_code
    return "" if code.co_filename.startswith(_FOREIGN) else f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"


# -- calls in other forms: each function gives what is called in place of the one of its name


def _distances(function: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """torch.cdist asks whether there are more than 25 rows, for another way to the same distances."""

    def run(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str = "") -> torch.Tensor:
        return torch.ops.aten._cdist_forward(x1, x2, p, 2)  # 2: not by a matrix product

    return run


def _evenly_spaced(function: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """torch.linspace fixes ends that are sizes."""
    if len(args) != 3 or not any(isinstance(a, _SYMBOLS) for a in args[:2]) or "out" in given:
        return function

    def run(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
        kind = options.pop("dtype", None) or torch.get_default_dtype()
        gap = (end - start) / torch.sym_max(steps - 1, 1)
        return (torch.arange(steps, dtype=torch.float64, **options) * gap + start).to(kind)

    return run


def _affine_grid(function: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """Places of images under an affine map; torch fixes the sizes of the images."""

    def run(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> torch.Tensor:
        extents = list(size)[:1:-1]  # innermost first, as coordinates are
        rank = len(extents)
        places = []
        for axis, extent in enumerate(extents):
            steps = torch.arange(extent, dtype=torch.float64)
            place = steps * 2 / torch.sym_max(extent - 1, 1) - 1 if align_corners else (steps * 2 + 1) / extent - 1
            if align_corners:
                place = place * torch.clamp(torch.scalar_tensor(extent) - 1, max=1)  # one place is in the middle
            places.append(place.reshape([-1 if a == rank - 1 - axis else 1 for a in range(rank)]).expand(*extents[::-1]))
        base = torch.stack([*places, torch.ones_like(places[0])], -1).to(theta.dtype)
        return (base.reshape(1, -1, rank + 1) @ theta.transpose(1, 2)).reshape(-1, *extents[::-1], rank)

    return run if any(isinstance(e, torch.SymInt) for e in (args[1] if len(args) > 1 else given["size"])) else function


_IN_OTHER_FORM: Mapping[str, Callable[..., Callable[..., Any]]] = {
    "cdist": _distances,
    "linspace": _evenly_spaced,
    "affine_grid": _affine_grid,
}
