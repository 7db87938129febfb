"""From a workload and a tile configuration to a micro-kernel and its object code."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from compiler.codegen import compile_object
from compiler.llvm_bridge import to_llvm22
from compiler.lowering import to_llvm_text
from passes.base import Pass, PassPipeline
from passes.expand_math import ExpandMath
from passes.instruments import standard
from passes.kernelize import KERNEL, Kernelize, config_text
from passes.mlir import ir
from passes.promote_bf16 import PromoteBf16
from passes.tile_config import TileConfig
from passes.workload import Workload
from runtime import knobs
from runtime.errors import BuildError, PassError
from runtime.kernel import MicroKernel
from runtime.target import Target


@dataclass(frozen=True)
class Built:
    """A kernel with its relocatable object and the LLVM IR before optimisation."""

    kernel: MicroKernel
    code: bytes
    llvm_ir: str


def kernel_passes(config: str, symbol: str, workload_key: str) -> list[Pass]:
    """The kernel pipeline of the host, up to the LLVM dialect."""
    return [Kernelize(config, symbol, workload_key), ExpandMath(), PromoteBf16()]


def kernel_symbol(workload: Workload, config: TileConfig) -> str:
    """Unique over all kernels: operator, workload key, configuration."""
    digest = hashlib.sha256(config_text(config).encode()).hexdigest()
    return f"{workload.name}_{workload.key[:12]}_{digest[:8]}"


def build_kernel(workload_ir: str, workload_key: str, symbol: str, config: str, target: Target) -> Built:
    """Build one kernel in this process.

    Raises:
        BuildError: the family refuses the workload or configuration, or a pass or the code generator failed.
    """
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(workload_ir)
        try:
            dump = knobs.DUMP.get()
            instruments = standard(dump=dump / symbol if dump else None)
            PassPipeline(kernel_passes(config, symbol, workload_key), instruments).run(module)
        except PassError as error:
            raise BuildError(f"{symbol}: {error}", error.log) from error
        kernel = msgspec.json.decode(ir.StringAttr(module.operation.attributes[KERNEL]).value, type=MicroKernel)
        del module.operation.attributes[KERNEL]
        text = to_llvm_text(module)
    code = compile_object(text, target)
    digest = hashlib.sha256(code).hexdigest()
    return Built(msgspec.structs.replace(kernel, object=digest), code, to_llvm22(text))
