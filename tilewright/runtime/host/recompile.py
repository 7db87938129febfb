"""Makes object code for this machine from the LLVM IR that an artifact keeps; needs llvmlite only."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping

from tilewright.runtime.errors import BuildError
from tilewright.runtime.float_environment import float_environment
from tilewright.runtime.target import Target, TargetKind

_TARGET_ATTRIBUTES = re.compile(r'"(target-cpu|target-features|tune-cpu)"="[^"]*"')


def can_recompile() -> bool:
    """Is llvmlite there? Does not import it."""
    return importlib.util.find_spec("llvmlite") is not None


@float_environment()
def recompile(llvm_ir: Mapping[str, str]) -> dict[str, bytes]:
    """Object code for the host CPU, optimised at O3, from LLVM IR; keys are kept.

    Raises:
        BuildError: the IR does not parse or verify here, as when it names intrinsics of another CPU.
    """
    from tilewright.runtime.host.host_target import host_target
    from tilewright.runtime.host.object_code import emit_object

    host = host_target(Target(TargetKind.HOST))
    objects: dict[str, bytes] = {}
    for key, text in llvm_ir.items():
        try:
            objects[key] = emit_object(_TARGET_ATTRIBUTES.sub("", text), host)
        except BuildError as error:
            raise BuildError(f"the stored LLVM IR {key[:12]} cannot be compiled for this CPU", str(error)) from error
    return objects
