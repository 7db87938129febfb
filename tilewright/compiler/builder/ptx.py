"""PTX from LLVM IR text, by llvmlite's NVPTX target. Imports no MLIR.

What MLIR leaves as calls of `__nv_*` comes from libdevice, of which only the needed functions are linked.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.llvm_bridge import to_llvm22
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.host.llvm_module import first_line, llvm_module, optimise
from tilewright.runtime.limits import BYTE_FLOATS, GpuLimits
from tilewright.runtime.program.kernel import PLAIN_PARAMETER_BYTES
from tilewright.runtime.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
_FEATURES = {"sm_100": "+ptx86", "sm_100a": "+ptx86", "sm_120": "+ptx87", "sm_120a": "+ptx87"}
_BYTE_PRODUCTS = re.compile(r"@llvm\.nvvm\.mma\.[\w.]*\.e[45]m[23]\.")  # from PTX 8.4 and sm_89 on
_BY_VALUE = re.compile(r"byval\(\[(\d+) x i8\]\)")
_OLDEST = 80


def check_arch(arch: str) -> str:
    """The architecture; OptionError when it is none that kernels are written for."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if found is None or int(found[1]) < _OLDEST:
        raise OptionError(f"architecture {arch!r}: wanted sm_{_OLDEST} or later, as in cuda:sm_90a")
    return arch


def gpu_limits(target: Target) -> GpuLimits:
    """What tile rules need to know of a GPU target."""
    return GpuLimits.of(check_arch(target.arch))


def to_ptx(llvm_text: str, arch: str) -> str:
    """The PTX of a module of kernels, in LLVM 24's or 22's spelling.

    Raises:
        BuildError: the text does not parse, calls a function that libdevice does not have, or uses an intrinsic that LLVM does
            not know for this architecture.
    """
    llvm = _llvm()
    text = to_llvm22(llvm_text)
    with llvm_module(llvm, text) as (module, context):
        machine = _machine(llvm, check_arch(arch), text)
        module.triple, module.data_layout = TRIPLE, str(machine.target_data)
        needed = frozenset(re.findall(r"@(__nv_\w+)", text))
        if needed:
            _link(llvm, module, machine, needed, context)
        module.verify()
        optimise(llvm, module, machine, 3)
        ptx = str(machine.emit_assembly(module))
    unknown = sorted({*re.findall(r"\bllvm\.[\w.]+", ptx), *re.findall(r"call\.uni[^;]*?\b(__nv_\w+)", ptx, re.DOTALL)})
    if unknown:
        raise BuildError(f"{arch} has no instruction for {', '.join(unknown)}", ptx)
    return ptx


def _machine(llvm: Any, arch: str, text: str = "") -> Any:
    """text: what is compiled, which may need a newer PTX than its architecture does; LLVM ends the process for want of it."""
    features = _FEATURES.get(arch, "+ptx80")
    if _BYTE_PRODUCTS.search(text):
        if GpuLimits.of(arch).version < BYTE_FLOATS:
            raise BuildError(f"{arch} has no products of 8-bit floats: wanted sm_{BYTE_FLOATS} or later")
        features = _FEATURES.get(arch, "+ptx84")
    elif any(int(size) > PLAIN_PARAMETER_BYTES // 2 for size in _BY_VALUE.findall(text)):
        features = _FEATURES.get(arch, "+ptx81")
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=arch, features=features, opt=3)


def _link(llvm: Any, module: Any, machine: Any, needed: frozenset[str], context: Any) -> None:
    with llvm.parse_bitcode(_libdevice(needed), context) as library:
        library.triple, library.data_layout = TRIPLE, str(machine.target_data)
        missing = needed - {f.name for f in library.functions if not f.is_declaration}
        if missing:
            raise BuildError(f"libdevice has no {', '.join(sorted(missing))}; expand the operation before code generation")
        module.link_in(library)
    for function in module.functions:
        if not function.is_declaration and function.name.startswith("__nv_"):
            function.linkage = "internal"


@functools.lru_cache(maxsize=64)
def _libdevice(needed: frozenset[str]) -> bytes:
    """Bitcode of the named functions and what they call."""
    llvm = _llvm()
    code = _libdevice_path().read_bytes()
    with llvm.create_context() as context, llvm.parse_bitcode(code, context) as library:
        for function in library.functions:
            if not function.is_declaration and function.name not in needed:
                function.linkage = "internal"
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        options = llvm.create_pipeline_tuning_options(speed_level=0)
        with llvm.create_pass_builder(_machine(llvm, f"sm_{_OLDEST}"), options) as builder:
            passes.run(library, builder)
        return bytes(library.as_bitcode())


def _libdevice_path() -> Path:
    from cuda.pathfinder import BitcodeLibNotFoundError, find_bitcode_lib

    try:
        return Path(find_bitcode_lib("device"))
    except BitcodeLibNotFoundError as error:
        raise BuildError("a math function of this kernel is in CUDA's libdevice, which is not installed: "
                         f"pip install nvidia-nvvm ({first_line(error)})") from error


def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm
