"""The pass `kernelize`: one outlined region and a tile configuration become one host kernel, in place."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import msgspec

from passes.base import Pass, from_options, parse_specs, spec_of
from passes.host_kernel import Grid, HostKernel
from passes.mlir import ir
from passes.tile_config import TileConfig
from runtime.errors import OptionError

HOST_FAMILIES = ("generic", "host_rows", "host_matmul")
KERNEL = "tw.kernel"


def space_of(family: str) -> ModuleType:
    """The module passes/spaces/<family>.py."""
    if family not in HOST_FAMILIES:
        raise OptionError(f"unknown kernel family {family!r}; known: {', '.join(HOST_FAMILIES)}")
    return importlib.import_module(f"passes.spaces.{family}")


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


def emitter(family: str) -> Callable[[HostKernel, TileConfig], Grid]:
    emit: Callable[[HostKernel, TileConfig], Grid] = importlib.import_module(f"passes.families.{family}").emit
    return emit


@dataclass(frozen=True)
class Kernelize(Pass):
    """Options: the configuration as text, the kernel's symbol, the workload's key. The module attribute `tw.kernel` holds the
    launch metadata as JSON (runtime/kernel.py)."""

    name: ClassVar[str] = "kernelize"
    config: str = "generic"
    symbol: str = "kernel"
    workload: str = ""

    def run(self, module: ir.Module) -> None:
        config = parse_config(self.config)
        kernel = HostKernel(module, self.symbol)
        grid = emitter(config.family)(kernel, config)
        made = kernel.describe(grid, self.workload, config.family, config_text(config))
        module.operation.attributes[KERNEL] = ir.StringAttr.get(msgspec.json.encode(made).decode())
