"""The level of LLVM at which a test's own process builds code.

LLVM takes more of the time than all else, and what code computes does not depend on its level. So seven of eight tests build
at level 0, and every eighth, always the same ones, as users do: there show the flags that promise LLVM what does not hold. Worker
processes always build as users do.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from zlib import crc32

import pytest

EVERY = 8
_BUILDER, _ASSEMBLE = "tilewright.compiler.builder", "tilewright.compiler.assemble"
_levels: list[Any] = []


def is_whole(config: pytest.Config) -> bool:
    """Are all parameters to run, or those that are named?"""
    return bool(config.getoption("--whole")) or any("::" in argument for argument in config.args)


def is_as_shipped(nodeid: str) -> bool:
    """Is it one of the tests whose code is optimised in any run?"""
    return crc32(nodeid.encode()) % EVERY == 0


def build_as_shipped(shipped: bool) -> None:
    """Says so to what builds kernels and the code around them, where that is imported: a test that has not imported it by now
    builds as shipped."""
    codegen, build = (sys.modules.get(f"{_BUILDER}.{name}") for name in ("codegen", "build"))
    if codegen is not None and build is not None:
        build.compile_object = codegen.compile_object if shipped else partial(codegen.compile_object, opt_level=0)
    assemble = sys.modules.get(_ASSEMBLE)
    if assemble is not None:
        _levels[:] = _levels or [assemble.LEVELS]
        assemble.LEVELS = _levels[0] if shipped else ((0, 0),)
