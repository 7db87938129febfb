"""Tilewright compiles tensor programs with dynamic shapes: one search serves every shape.

    import tilewright as tw

    fn = tw.compile("model.mlir", {"T": tw.Dim(1, 128)})
    y = fn(x, w)

Importing this package loads nothing heavy; each name below is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.distribution import import_part
from tilewright.version import VERSION

if TYPE_CHECKING:
    from tilewright.compiler import frontends as frontends
    from tilewright.compiler import ops as ops
    from tilewright.compiler.api import compile as compile  # noqa: A004 - the public name; written tw.compile
    from tilewright.compiler.api import tune as tune
    from tilewright.compiler.compilation.farm import Farm as Farm
    from tilewright.compiler.compilation.options import CompileOptions as CompileOptions
    from tilewright.compiler.compilation.options import Precision as Precision
    from tilewright.compiler.compress.compress import compress as compress
    from tilewright.passes import partition as partition
    from tilewright.runtime import errors as errors
    from tilewright.runtime.call.jagged import Jagged as Jagged
    from tilewright.runtime.load.function import CompiledFunction as CompiledFunction
    from tilewright.runtime.load.function import load as load
    from tilewright.runtime.load.torch_op import torch_op as torch_op
    from tilewright.runtime.ragged_dim import Ragged as Ragged
    from tilewright.runtime.shape import Dim as Dim
    from tilewright.runtime.target import Target as Target

__version__ = VERSION
__all__ = ["CompileOptions", "CompiledFunction", "Dim", "Farm", "Jagged", "Precision", "Ragged", "Target", "__version__",
           "compile", "compress", "errors", "frontends", "load", "ops", "partition", "torch_op", "tune"]

_HOMES = {
    "CompileOptions": "compiler.compilation.options",
    "CompiledFunction": "runtime.load.function",
    "Dim": "runtime.shape",
    "Farm": "compiler.compilation.farm",
    "Jagged": "runtime.call.jagged",
    "Precision": "compiler.compilation.options",
    "Ragged": "runtime.ragged_dim",
    "Target": "runtime.target",
    "compile": "compiler.api",
    "compress": "compiler.compress.compress",
    "load": "runtime.load.function",
    "torch_op": "runtime.load.torch_op",
    "tune": "compiler.api",
}
_MODULES = {"errors": "runtime.errors", "frontends": "compiler.frontends", "ops": "compiler.ops",
            "partition": "passes.partition"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_part(_MODULES[name], f"tilewright.{name}")
    elif name in _HOMES:
        value = getattr(import_part(_HOMES[name], f"tilewright.{name}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
