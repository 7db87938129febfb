"""The pass `kernelize`: one outlined region and a tile configuration become one kernel, in place, in the frame of its target."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from passes.base import Pass
from passes.gpu_kernel import GpuKernel
from passes.host_kernel import HostKernel
from passes.mlir import ir
from passes.spaces.gpu_config import GpuConfig
from passes.spaces.registry import config_text, family_of, parse_config
from runtime.kernel import MicroKernel

KERNEL = "tw.kernel"


def emitter(family: str) -> Callable[..., Any]:
    """`emit(kernel, config)` of the family's module."""
    emit: Callable[..., Any] = importlib.import_module(f"{family_of(family).code}.{family}").emit
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
        made = self._kernel(module)
        module.operation.attributes[KERNEL] = ir.StringAttr.get(msgspec.json.encode(made).decode())

    def _kernel(self, module: ir.Module) -> MicroKernel:
        config = parse_config(self.config)
        emit, text = emitter(config.family), config_text(config)
        if isinstance(config, GpuConfig):
            gpu = GpuKernel(module, self.symbol, config.index)
            emit(gpu, config)
            gpu.finish()
            return gpu.describe(self.workload, config.family, text)
        host = HostKernel(module, self.symbol)
        return host.describe(emit(host, config), self.workload, config.family, text)
