"""Modules as subjects of the harness: the groups of the table, and models. Torch is imported where a module is made.

Their kind is `module`; `params` say which: {"group": name} or {"model": name}. All results of a module are one flat array here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.runtime.shape import Expr
from tools.bench.operator_spec import Array, Input, Operator
from tools.bench.zoo import group_table
from tools.bench.zoo.group_table import Group
from tools.bench.zoo.zoo_models import MODELS

if TYPE_CHECKING:
    import torch

KIND, SUITE, MODELS_SUITE, LAYERS_SUITE = "module", "zoo", "zoo_models", "layers"


def groups() -> Iterator[Operator]:
    """The suite of operator groups."""
    for group in group_table.read():
        yield of_group(group)


def layers() -> Iterator[Operator]:
    """The suite of single layers at the sizes of well-known models."""
    for group in group_table.read(group_table.LAYERS):
        yield replace(of_group(group), name=group.name, suite=LAYERS_SUITE)


def of_group(group: Group) -> Operator:
    """A group as a subject."""
    inputs = {
        name: Input(tuple(map(str, v.dims)), False, v.deviation, v.dtype, "" if v.below is None else str(v.below))
        for name, v in group.values().items()
    }
    return Operator(f"group_{group.name}", KIND, SUITE, inputs, (), group.dims, group.points, params={"group": group.name})


def models() -> Iterator[Operator]:
    """The suite of models."""
    for name, model in MODELS.items():
        yield Operator(f"model_{name}", KIND, MODELS_SUITE, model.inputs, (), model.ranges, model.points, params={"model": name})


@dataclass(frozen=True)
class Subject:
    """A module with what torch.export needs to know of its inputs."""

    module: torch.nn.Module
    example: tuple[Any, ...]
    dynamic_shapes: Any


def subject(operator: Operator) -> Subject:
    """The module of an operator, with inputs of a shape whose dims are all different from 1."""
    import torch

    torch.manual_seed(zlib.crc32(operator.name.encode()))
    if "group" in operator.params:
        from tools.bench.zoo.group_module import module

        made: torch.nn.Module = module(table()[str(operator.params["group"])])
    else:
        made = MODELS[str(operator.params["model"])].make().eval()
    middle = {n: max(min(3 + 2 * i, hi), lo) for i, (n, (lo, hi)) in enumerate(operator.ranges.items())}
    example = tuple(torch.from_numpy(a) for a in operator.arguments(middle).values())
    return Subject(made, example, dynamic_shapes(operator))


def dynamic_shapes(operator: Operator) -> Any:
    """The dims of the inputs' axes as torch.export takes them."""
    from torch.export import Dim

    dims = {n: Dim(n, min=lo, max=hi) for n, (lo, hi) in operator.ranges.items()}
    found = []
    for given in operator.inputs.values():
        axes: dict[int, Any] = {}
        for axis, extent in enumerate(map(_expr, given.dims)):
            if extent.constant is None:
                assert extent.linear
                name, factor, offset = extent.linear
                axes[axis] = dims[name] if (factor, offset) == (1, 0) else factor * dims[name] + offset
        found.append(axes)
    return tuple(found)


def _expr(extent: int | str) -> Expr:
    return Expr.of(extent) if isinstance(extent, int) else Expr.parse(extent)


@cache
def table() -> Mapping[str, Group]:
    return {g.name: g for g in (*group_table.read(), *group_table.read(group_table.LAYERS))}


def flat(results: Sequence[Any]) -> Array:
    """All results of a module one after another, as floats."""
    return np.concatenate([np.asarray(r, np.float64).reshape(-1) for r in results])


def reference(operator: Operator, arrays: Mapping[str, Array]) -> Array:
    """The results by torch in float64. A number that the module rounds to an integer may lie at the edge of two, where the types
    of the module decide: where it gives a neighbour, that is the result."""
    import torch

    given = [torch.from_numpy(a) for a in arrays.values()]
    with torch.inference_mode():
        wide = leaves(_module(operator.name, True)(*(t.double() if t.is_floating_point() else t for t in given)))
        found = [t.numpy() for t in wide]
        if any(t.dtype.kind in "iu" for t in found) and any(t.is_floating_point() for t in given):
            own = [t.numpy() for t in leaves(_module(operator.name, False)(*given))]
            found = [_or_neighbour(a, b) if a.dtype.kind in "iu" else a for a, b in zip(found, own, strict=True)]
        return flat(found)


def _or_neighbour(wide: Array, own: Array) -> Array:
    """Integers by the types of a module where they are at most one from those of float64, else the latter."""
    return np.where(np.abs(wide.astype(np.float64) - own) <= 1, own, wide)


@lru_cache(2)
def _module(name: str, is_wide: bool) -> Any:
    """The module of this name, by its own types or in float64."""
    made = subject(next(o for o in (*groups(), *layers(), *models()) if o.name == name)).module
    return made.double() if is_wide else made


def leaves(results: Any) -> list[Any]:
    """The arrays or tensors that a module gives, in order, however it nests them."""
    if isinstance(results, Mapping):
        results = tuple(results.values())
    return [t for r in results for t in leaves(r)] if isinstance(results, (tuple, list)) else [results]
