"""What is installed: the wheel `tilewright` holds everything, `tilewright-runtime` only what loads and runs saved models."""

from __future__ import annotations

import importlib
from types import ModuleType


def import_part(path: str, what: str) -> ModuleType:
    """The module `tilewright.<path>`, which `what` needs.

    Raises:
        ImportError: it belongs to the compiler, which is not installed.
        DeviceError: in a subinterpreter, or without the interpreter's lock.
    """
    from tilewright.runtime.collector import collector_paused
    from tilewright.runtime.interpreter import check_interpreter

    check_interpreter()
    try:
        with collector_paused():
            return importlib.import_module(f"tilewright.{path}")
    except ModuleNotFoundError as error:
        if error.name not in ("tilewright.compiler", "tilewright.passes", "tilewright.search"):
            raise
        raise ImportError(f"{what} needs the compiler, and only tilewright-runtime is installed: pip install tilewright",
                          name=error.name) from None
