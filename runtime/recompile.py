"""Makes object code for this machine from the LLVM IR that an artifact keeps; needs llvmlite only."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

from runtime.errors import BuildError
from runtime.host_cpu import machine

_TARGET_ATTRIBUTES = re.compile(r'"(target-cpu|target-features|tune-cpu)"="[^"]*"')


def can_recompile() -> bool:
    """Is llvmlite there? Does not import it."""
    return importlib.util.find_spec("llvmlite") is not None


def recompile(llvm_ir: Mapping[str, str]) -> dict[str, bytes]:
    """Object code for the host CPU, optimised at O3, from LLVM IR; keys are kept.

    Raises:
        BuildError: the IR does not parse or verify here, as when it names intrinsics of another CPU.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    tm = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features + (",-prefer-256-bit" if machine() == "x86_64" else ""),
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    objects: dict[str, bytes] = {}
    for key, text in llvm_ir.items():
        try:
            module = llvm.parse_assembly(_TARGET_ATTRIBUTES.sub("", text))
            module.triple = tm.triple
            module.data_layout = str(tm.target_data)
            module.verify()
        except RuntimeError as error:
            raise BuildError(f"the stored LLVM IR {key[:12]} cannot be compiled for this CPU", str(error)) from error
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = False
        options.loop_interleaving = options.loop_unrolling = False
        builder = llvm.create_pass_builder(tm, options)
        builder.getModulePassManager().run(module, builder)
        objects[key] = bytes(tm.emit_object(module))
    return objects
