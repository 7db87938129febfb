"""Kernel families by name: where the parts of each are, which workloads it is tried on, and its configurations as text.

MLIR-free. A new family is one more entry of `BUILT_IN` beside its own modules.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from tilewright.passes.spaces.numerics import PLAIN, Numerics
from tilewright.passes.spaces.option_text import from_options, parse_specs, spec_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits, Limits


@dataclass(frozen=True)
class Family:
    """A kernel family of the host or of GPUs. kinds: of the workloads that it serves.

    selective: does `takes(workload, limits, numerics)` of its space module say more, None or why a workload is not for it?
    spaces: the package of its MLIR-free modules, which are `<name>`: its TileConfig and `space`; `<name>_heuristics`: `default`;
    `<name>_cost`: `extents` and `kernel_cost`. code: the package of the module `<name>` with `tile(frame, config, tiler)` and
    `emit(kernel, config)`. Both are our own where nothing is said.
    """

    name: str
    gpu: bool
    kinds: frozenset[Kind]
    selective: bool = False
    spaces: str = ""
    code: str = ""

    def module(self, suffix: str = "") -> ModuleType:
        """The MLIR-free module `<name><suffix>`."""
        return importlib.import_module(f"{self.spaces or self._own('spaces')}.{self.name}{suffix}")

    def emitter(self) -> ModuleType:
        """The module that cuts workloads and emits their kernels; it imports MLIR."""
        return importlib.import_module(f"{self.code or self._own('families')}.{self.name}")

    def _own(self, room: str) -> str:
        return f"tilewright.passes.{room}.{'gpu' if self.gpu else 'host'}"

    def why_not(self, workload: Workload, limits: Limits, numerics: Numerics = PLAIN) -> str | None:
        """The rule by which the family does not take the workload, or None. What it takes, its default configurations build."""
        if self.gpu is not isinstance(limits, GpuLimits):
            return f"target: kernels of {self.name} are for {'GPUs' if self.gpu else 'the host'}"
        if workload.kind not in self.kinds:
            return f"kind: the workload is {workload.kind.value}"
        reason: str | None = self.module().takes(workload, limits, numerics) if self.selective else None
        return reason


@dataclass(frozen=True)
class Registry:
    """families: of those that take a workload the first is preferred; the last of each target takes anything."""

    families: tuple[Family, ...]

    def family(self, name: str) -> Family:
        """OptionError lists the known names."""
        for family in self.families:
            if family.name == name:
                return family
        raise OptionError(f"unknown kernel family {name!r}; known: {', '.join(f.name for f in self.families)}")

    def preferring(self, family: Family) -> Registry:
        """With one more family, which is preferred to all others."""
        return Registry((family, *self.families))


_ANY = frozenset(Kind)
_CONTRACTION, _ATTENTION, _PRODUCT_ROWS, _ROWS = (
    frozenset([kind]) for kind in (Kind.CONTRACTION, Kind.ATTENTION, Kind.PRODUCT_ROWS, Kind.ROWS))
BUILT_IN = Registry((
    Family("host_window", False, frozenset([Kind.CONTRACTION, Kind.GENERIC]), selective=True),
    Family("host_winograd", False, _CONTRACTION, selective=True),
    Family("host_codes", False, _CONTRACTION, selective=True),
    Family("host_pools", False, _CONTRACTION, selective=True),
    Family("host_matmul", False, _CONTRACTION),
    Family("host_attention", False, _ATTENTION),
    Family("host_rows", False, _ROWS),
    Family("generic", False, _ANY),
    Family("gpu_codes", True, _CONTRACTION, selective=True),
    Family("wgmma", True, _CONTRACTION, selective=True),
    Family("mma", True, _CONTRACTION, selective=True),
    Family("simt", True, _CONTRACTION),
    Family("gemv", True, _CONTRACTION, selective=True),
    Family("wgmma_attention", True, _ATTENTION, selective=True),
    Family("gpu_attention", True, _ATTENTION, selective=True),
    Family("mma_rows", True, _PRODUCT_ROWS, selective=True),
    Family("gpu_rows", True, _ROWS),
    Family("gpu_pointwise", True, _ANY),
))
_registry: ContextVar[Registry] = ContextVar("registry", default=BUILT_IN)


@contextmanager
def using(registry: Registry) -> Iterator[None]:
    """Within this block, and this thread, names of families mean those of `registry`."""
    before = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(before)


def family_of(name: str) -> Family:
    """The family of a name; OptionError lists the known ones."""
    return _registry.get().family(name)


def family_names(gpu: bool) -> tuple[str, ...]:
    """The families of GPUs, or of the host."""
    return tuple(f.name for f in _registry.get().families if f.gpu is gpu)


def families_of(workload: Workload, limits: Limits, numerics: Numerics = PLAIN) -> tuple[str, ...]:
    """The families that take a workload, best first; the last takes anything."""
    return tuple(f.name for f in _registry.get().families if f.why_not(workload, limits, numerics) is None)


def space_of(family: str) -> ModuleType:
    """The module with the configurations of a family, `space`, and its rules."""
    return family_of(family).module()


def heuristics_of(family: str) -> ModuleType:
    """The module with `default`, what a family runs untuned, and the `Thresholds` that it goes by."""
    return family_of(family).module("_heuristics")


def cost_of(family: str) -> ModuleType:
    """The module with `extents` and `kernel_cost`, what the search knows of a family's configurations."""
    return family_of(family).module("_cost")


def parse_config(text: str) -> TileConfig:
    """A tile configuration from `family{option=value ...}`; options may have their former names."""
    specs = parse_specs(text)
    if len(specs) != 1:
        raise OptionError(f"wanted one tile configuration, got {text!r}")
    family, options = specs[0]
    kind = _kind(family)
    config: TileConfig = from_options(kind, family, {kind.former.get(o, o): value for o, value in options.items()})
    return config


@lru_cache(1 << 14)
def config_text(config: TileConfig) -> str:
    """`family{option=value ...}`; searches ask for the same ones at every measurement."""
    return spec_of(config.family, config)


def current_text(text: str) -> str:
    """A configuration's text with the option names of today; a text that no family reads stays as it is."""
    try:
        return config_text(parse_config(text)) if has_former_names(text.partition("{")[0]) else text
    except OptionError:
        return text


def has_former_names(family: str) -> bool:
    """Had options of a family's configurations other names once? OptionError for a family that is not known."""
    return bool(_kind(family).former)


def _kind(family: str) -> type[TileConfig]:
    """The class of a family's configurations."""
    space = space_of(family)
    return next(v for v in vars(space).values() if isinstance(v, type) and issubclass(v, TileConfig) and v.family == family)
