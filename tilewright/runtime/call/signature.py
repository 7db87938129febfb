"""Signature: the arguments of a call as its caller writes them, nested and by name, and as the program takes them, flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime.call.binder import describe
from tilewright.runtime.errors import DTypeError, perhaps
from tilewright.runtime.program.program import Program


class Signature:
    """The parameters of one program's calls.

    Attributes:
        parameters: names in the order of positional calls.
        is_flat: the parameters are the program's inputs, and its results come as they are.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._inputs, self._outputs = program.input_structure, program.output_structure
        self.parameters = self._inputs.keys if self._inputs is not None else tuple(a.name for a in program.inputs)
        self.is_flat = self._inputs is None and self._outputs is None

    def __str__(self) -> str:
        if self._inputs is None:
            return ", ".join(map(describe, self._program.inputs))
        shown = [item.describe(lambda i: describe(self._program.inputs[i])) for item in self._inputs.items]
        parts = zip(self.parameters, self._inputs.items, shown, strict=True)
        return ", ".join(text if item.kind == "leaf" else f"{name}: {text}" for name, item, text in parts)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The program's inputs in order.

        Raises:
            DTypeError: a parameter is missing, unknown or given twice, or its value is nested otherwise.
        """
        parameters = self.parameters
        if len(args) > len(parameters):
            raise DTypeError(f"wanted {len(parameters)} arguments ({self}), got {len(args) + len(named)}; leave the rest out")
        values = dict(zip(parameters, args, strict=False))
        for name, value in named.items():
            if name in values:
                raise DTypeError(f"argument {name}: wanted one value, got two, by position and by name; give it once")
            if name not in parameters:
                raise DTypeError(f"wanted the arguments ({self}), got {name}=; call each by its name{perhaps(name, parameters)}")
            values[name] = value
        if missing := [p for p in parameters if p not in values and not self._is_constant(p)]:
            raise DTypeError(f"wanted {len(parameters)} arguments ({self}), got {len(args) + len(named)}; "
                             f"pass {', '.join(missing)} too")
        if self._inputs is None:
            return [values[p] for p in parameters]
        found: list[Any] = [None] * len(self._program.inputs)
        for name, item in zip(self.parameters, self._inputs.items, strict=True):
            leaves = item.flatten(values.get(name), f"argument {name}")
            for number, leaf in zip(sorted(set(item.numbers())), leaves, strict=True):
                found[number] = leaf
        return found

    def flat_out(self, out: Any) -> Any:
        """The memory for the results, as a tuple."""
        if out is None or self._outputs is None:
            return out
        return tuple(self._outputs.flatten(out, "out"))

    def result(self, found: Any) -> Any:
        """What a call gives, from the program's result or tuple of results."""
        if self._outputs is None:
            return found
        return self._outputs.unflatten(found if len(self._program.outputs) != 1 else (found,))

    def _is_constant(self, name: str) -> bool:
        """Was the model compiled for None or a number here, so that the parameter may be left out?"""
        return self._inputs is not None and self._inputs.items[self.parameters.index(name)].kind == "none"
