"""Kernel families by name, and tile configurations as text. MLIR-free."""

from __future__ import annotations

import importlib
from types import ModuleType

from passes.option_text import from_options, parse_specs, spec_of
from passes.tile_config import TileConfig
from runtime.errors import OptionError

HOST_FAMILIES = ("generic", "host_rows", "host_matmul", "host_winograd", "host_attention")
GPU_FAMILIES = ("gpu_pointwise", "gpu_rows", "simt", "mma", "wgmma", "gpu_attention")


def space_of(family: str) -> ModuleType:
    """The module passes/spaces/<family>.py."""
    _check(family)
    return importlib.import_module(f"passes.spaces.{family}")


def heuristics_of(family: str) -> ModuleType:
    """The module with what a family runs untuned, `default`: passes/spaces/<family>_heuristics.py of a host family."""
    _check(family)
    return importlib.import_module(f"passes.spaces.{family}{'_heuristics' if family in HOST_FAMILIES else ''}")


def anatomy_of(family: str) -> ModuleType:
    """The module passes/spaces/<family>_anatomy.py."""
    _check(family)
    return importlib.import_module(f"passes.spaces.{family}_anatomy")


def parse_config(text: str) -> TileConfig:
    """A tile configuration from `family{option=value ...}`."""
    specs = parse_specs(text)
    if len(specs) != 1:
        raise OptionError(f"wanted one tile configuration, got {text!r}")
    family, options = specs[0]
    space = space_of(family)
    kind = next(v for v in vars(space).values() if isinstance(v, type) and issubclass(v, TileConfig) and v.family == family)
    config: TileConfig = from_options(kind, family, options)
    return config


def config_text(config: TileConfig) -> str:
    return spec_of(config.family, config)


def _check(family: str) -> None:
    known = (*HOST_FAMILIES, *GPU_FAMILIES)
    if family not in known:
        raise OptionError(f"unknown kernel family {family!r}; known: {', '.join(known)}")
