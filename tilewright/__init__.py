"""Tilewright compiles tensor programs with dynamic shapes: one search serves every shape.

    import tilewright as tw

    fn = tw.compile("model.mlir", {"T": tw.Dim(1, 128)})
    y = fn(x, w)

Importing this module loads nothing heavy; each name below is imported at its first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.compiler import ops
    from tilewright.compiler.api import compile  # noqa: A004 - the public name; written tw.compile
    from tilewright.compiler.compilation.options import CompileOptions
    from tilewright.runtime import errors
    from tilewright.runtime.load.function import load
    from tilewright.runtime.shape import Dim
    from tilewright.runtime.target import Target

__version__ = "0.1.0"
__all__ = ["CompileOptions", "Dim", "Target", "__version__", "compile", "errors", "load", "ops"]

_PACKAGES = ("compiler", "passes", "runtime", "search")
_HOMES = {
    "CompileOptions": "tilewright.compiler.compilation.options",
    "Dim": "tilewright.runtime.shape",
    "Target": "tilewright.runtime.target",
    "compile": "tilewright.compiler.api",
    "errors": "runtime",
    "load": "tilewright.runtime.load.function",
    "ops": "compiler",
}


def _check_packages() -> None:
    """ImportError when one of our packages is missing or another folder of the same name would be imported instead."""
    home = Path(__file__).resolve().parent
    for name in _PACKAGES:
        if not (home / name / "__init__.py").is_file():
            raise ImportError(f"tilewright: the package {name!r} is missing from {home}; reinstall tilewright")
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) if loaded else importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if origin != home / name:
            other = origin or (next(iter(spec.submodule_search_locations or ()), None) if spec else None)
            found = f"is shadowed by {other}" if other else "cannot be found"
            raise ImportError(
                f"tilewright: its package {name!r} in {home} {found}; rename or move that folder, start Python from "
                f"another directory, or keep the script's own folder off the path with `python -P` (PYTHONSAFEPATH=1)"
            )


_check_packages()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    module = importlib.import_module(f"{home}.{name}") if name in ("errors", "ops") else importlib.import_module(home)
    value = module if name in ("errors", "ops") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
