"""LLVM modules of llvmlite that are gone when they are no longer used, whatever becomes of an exception meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.runtime.errors import BuildError


@contextmanager
def llvm_module(llvm: Any, text: str) -> Iterator[tuple[Any, Any]]:
    """The module of an LLVM IR text, and its context: one of its own, so that types and constants are freed with it.

    The module is closed before its context. The garbage collector, when it meets both in the traceback of an exception, keeps to
    no order, and a module that outlives its context ends the process.

    Raises:
        BuildError: LLVM refuses the text, or refuses the module within the block.
    """
    with llvm.create_context() as context:
        try:
            module = llvm.parse_assembly(text, context)
        except RuntimeError as error:
            raise _refused(error, text) from error
        with module:
            try:
                yield module, context
            except RuntimeError as error:
                raise _refused(error, text) from error


def optimise(llvm: Any, module: Any, machine: Any, level: int) -> None:
    """Run the pipeline of O1 to O3 without vectorisation and unrolling: kernels arrive vectorised and unrolled."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    with llvm.create_pass_builder(machine, options) as builder:
        builder.getModulePassManager().run(module, builder)


def first_line(error: Exception) -> str:
    """The first line that says something."""
    lines = [line for line in str(error).splitlines() if line.strip() and not re.fullmatch(r"LLVM IR parsing error", line)]
    return lines[0] if lines else str(error)


def _refused(error: RuntimeError, text: str) -> BuildError:
    return BuildError(f"LLVM does not accept the module: {first_line(error)}", f"{error}\n{text}")
