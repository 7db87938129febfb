"""The pass `emit-micro-kernel`: a region that `tile` has cut becomes one kernel, in place, in the frame of its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from tilewright.passes.base import Pass
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.kernel_frame import CONFIG
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.family_registry import config_text, family_of, parse_config
from tilewright.passes.spaces.gpu.gpu_config import GpuConfig
from tilewright.runtime.program.kernel import MicroKernel

KERNEL = "tw.kernel"


@dataclass(frozen=True)
class EmitMicroKernel(Pass):
    """Options: the kernel's symbol, the workload's key, whether its launches may begin before those in front of them end. The
    module attribute `tw.kernel` holds the launch metadata as JSON (runtime/program/kernel.py)."""

    name: ClassVar[str] = "emit-micro-kernel"
    symbol: str = "kernel"
    workload: str = ""
    early: bool = False

    def run(self, module: ir.Module) -> None:
        made = self._kernel(module)
        module.operation.attributes[KERNEL] = ir.StringAttr.get(msgspec.json.encode(made).decode())

    def _kernel(self, module: ir.Module) -> MicroKernel:
        attributes = next(functions(module)).attributes
        if CONFIG not in attributes:
            raise ValueError(f"the function has no {CONFIG}: run `tile` before this pass")
        config = parse_config(ir.StringAttr(attributes[CONFIG]).value)
        emit, text = family_of(config.family).emitter().emit, config_text(config)
        if isinstance(config, GpuConfig):
            gpu = GpuKernel(module, self.symbol, config.index, self.early)
            emit(gpu, config)
            gpu.finish()
            return gpu.describe(self.workload, config.family, text)
        host = HostKernel(module, self.symbol)
        return host.describe(emit(host, config), self.workload, config.family, text)
