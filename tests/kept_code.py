"""Machine code that LLVM made of a text before, kept beside what workers build: LLVM takes more of the tests' time than all else,
and gives the same for the same text, target and level. What fails is tried again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilewright.runtime.knobs import CACHE_BYTES, CACHE_DIR

_CODEGEN, _BUILD, _CACHE = (f"tilewright.compiler.builder.{name}" for name in ("codegen", "build", "cache"))
_MAKERS = ("runtime/host/llvm_module.py", "runtime/host/object_code.py", "runtime/host/soft_float.py", "compiler/builder/ptx.py")
PLAIN: dict[str, Callable[..., Any]] = {}


def keep(kept: bool) -> None:
    """Says so to what calls LLVM, where that is imported: a test that has not imported it by now lets LLVM make everything."""
    codegen, build = sys.modules.get(_CODEGEN), sys.modules.get(_BUILD)
    if codegen is None or build is None:
        return
    PLAIN.setdefault("object", codegen.emit_object)
    PLAIN.setdefault("ptx", build.to_ptx)
    codegen.emit_object = _object if kept else PLAIN["object"]
    build.to_ptx = _ptx if kept else PLAIN["ptx"]


@cache
def _makers() -> str:
    """What decides beside the text: the version of LLVM, and our code that calls it."""
    home, versions = Path(sys.modules[_CACHE].__file__ or "").parents[2], [version("llvmlite")]
    with suppress(PackageNotFoundError):
        versions.append(version("nvidia-nvvm"))
    return "\n".join([*versions, *((home / name).read_text() for name in _MAKERS)])


@cache
def place() -> tuple[Path | None, int]:
    """The folder and its size, as they are when this is first asked: tests set others for themselves."""
    return CACHE_DIR.get(), CACHE_BYTES.get()


@cache
def _folder() -> Any:
    return sys.modules[_CACHE].Cache(*place())


def _object(text: str, host: Any, opt_level: int = 3) -> bytes:
    return _kept("object", lambda: PLAIN["object"](text, host, opt_level), repr(host), str(opt_level), text)


def _ptx(text: str, arch: str) -> str:
    return _kept("ptx", lambda: PLAIN["ptx"](text, arch).encode(), arch, text).decode()


def _kept(what: str, make: Callable[[], bytes], *parts: str) -> bytes:
    key = sys.modules[_CACHE].cache_key(what, _makers(), *parts)
    found = _folder().get(key)
    if found is None:
        _folder().put(key, found := make())
    return found
