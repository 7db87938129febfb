"""From a workload and a tile configuration to a micro-kernel and its object code."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec

from tilewright.compiler.builder.codegen import compile_object, host_target
from tilewright.compiler.builder.llvm_bridge import to_llvm22
from tilewright.compiler.builder.lowering import lowering_passes, translate
from tilewright.compiler.builder.ptx import to_ptx
from tilewright.passes.base import Pass, PassPipeline
from tilewright.passes.codegen.emit_micro_kernel import KERNEL, EmitMicroKernel
from tilewright.passes.codegen.tile import Tile
from tilewright.passes.lowering.arithmetic import element_of
from tilewright.passes.lowering.expand_math import ExpandMath
from tilewright.passes.lowering.promote_bf16 import PromoteBf16
from tilewright.passes.lowering.split_masked_stores import SplitMaskedStores
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.pipeline.instruments import standard
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime import knobs
from tilewright.runtime.errors import BuildError, PassError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target, TargetKind

_NARROW = re.compile("f16|f8E")  # types of floats of less than 32 bits
_EARLY = 90  # the first version whose launches may begin before those in front of them end


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel with its code (a relocatable object on the host, else the text of PTX) and the LLVM IR before optimisation."""

    kernel: MicroKernel
    code: bytes
    llvm_ir: str


def kernel_passes(config: str, symbol: str, workload_key: str, target: Target, narrow: bool = True,
                  rounded: bool = False) -> list[Pass]:
    """The kernel pipeline of a target, into the LLVM dialect. narrow: are there floats of less than 32 bits? rounded: are all
    results such floats? What is divided on the way to them on a GPU may then be 2 ulp of f32 from the exact quotient."""
    gpu = target.kind is not TargetKind.HOST
    features = frozenset() if gpu else host_target(target).required()
    masks = gpu or {"avx512f", "avx512vl"} <= features
    expand = ExpandMath(keep_maximum=gpu, keep_library=gpu, scale=masks and not gpu, lookup="avx2" in features, ptx=gpu,
                        divide=gpu and rounded, reciprocals=not gpu)
    flushes = "avx512bf16" in features
    own = [expand, *([PromoteBf16(gpu or flushes, flushes)] if narrow else []), *([] if masks else [SplitMaskedStores()])]
    early = gpu and GpuLimits.of(target.arch).version >= _EARLY
    return [Tile(config), EmitMicroKernel(symbol, workload_key, early), *own, *lowering_passes(gpu)]


def _is_rounded(workload: ir.Module) -> bool:
    """Are all results floats of less than 32 bits?"""
    function = ir.FunctionType(ir.TypeAttr(workload.body.operations[0].operation.attributes["function_type"]).value)
    elements = [element_of(t) for t in function.results]
    return all(isinstance(t, ir.FloatType) and t.width < 32 for t in elements)


def kernel_symbol(workload: Workload, config: TileConfig) -> str:
    """Unique over all kernels: operator, workload key, configuration."""
    digest = hashlib.sha256(config_text(config).encode()).hexdigest()
    return f"{workload.name}_{workload.key[:12]}_{digest[:8]}"


def build_kernel(workload_ir: str, workload_key: str, symbol: str, config: str, target: Target) -> BuiltKernel:
    """Build one kernel in this process.

    Raises:
        BuildError: the family refuses the workload or configuration, or a pass or the code generator failed.
    """
    gpu = target.kind is not TargetKind.HOST
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(workload_ir)
        try:
            dump = knobs.DUMP.get()
            instruments = standard(dump=dump / symbol if dump else None)
            narrow = _NARROW.search(workload_ir) is not None
            passes = kernel_passes(config, symbol, workload_key, target, narrow, narrow and _is_rounded(module))
            PassPipeline(passes, instruments).run(module)
        except PassError as error:
            raise BuildError(f"{symbol}: {error}", error.log) from error
        kernel = msgspec.json.decode(ir.StringAttr(module.operation.attributes[KERNEL]).value, type=MicroKernel)
        del module.operation.attributes[KERNEL]
        text = translate(module, checked=True)
    code = to_ptx(text, target.arch).encode() if gpu else compile_object(text, target)
    digest = hashlib.sha256(code).hexdigest()
    return BuiltKernel(msgspec.structs.replace(kernel, object=digest), code, to_llvm22(text))
