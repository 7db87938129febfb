"""Options declared once: commands whose parameters are the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

A = TypeVar("A")


def command_of(arguments: type[A], run: Callable[[A], None]) -> Callable[..., None]:
    """A function for typer: a parameter for each field, with its annotation and default; it calls `run` with their values."""
    hints = get_type_hints(arguments, include_extras=True)
    found = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[f.name],
                          default=inspect.Parameter.empty if f.default is MISSING else f.default)
        for f in fields(arguments)  # type: ignore[arg-type]
    ]

    def command(**values: Any) -> None:
        run(arguments(**values))

    command.__dict__["__signature__"] = inspect.Signature(found)
    command.__annotations__ = {p.name: p.annotation for p in found}
    command.__name__, command.__doc__ = run.__name__, run.__doc__
    return command
