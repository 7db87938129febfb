"""One graph of PyTorch operators, exported with symbolic sizes and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from tilewright.compiler.api import compile as compile_model
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.frontends.torch.exported import with_known_operators
from tilewright.compiler.frontends.torch.signature import user_placeholders
from tilewright.runtime.call.interop import to_torch
from tilewright.runtime.errors import IngestError
from tilewright.runtime.load.function import CompiledFunction

_CHANGED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def export(module: torch.nn.Module, fakes: Sequence[Any]) -> ExportedProgram:
    """The program of a module for all the sizes that its inputs' symbols may have, without in-place operators.

    Args:
        fakes: tensors and integers whose sizes are symbols, as Dynamo and torch.export note them on their graphs.
    Raises:
        IngestError: torch.export refuses it.
    """
    examples = tuple(_example(f) for f in fakes)
    shapes = tuple(_dynamic(f) for f in fakes)
    try:
        with torch.no_grad():
            program = torch.export.export(_Positional(module), examples, dynamic_shapes=(shapes,), strict=False)
        return with_known_operators(program)
    except Exception as error:  # torch.export raises whatever the graph and its own checks raise
        raise IngestError(f"torch.export refuses the graph: {type(error).__name__}: {error}") from error


class _Positional(torch.nn.Module):  # type: ignore[misc]
    """A module called by position alone: the names that Dynamo gives inputs are no names of parameters."""

    def __init__(self, graph: torch.nn.Module) -> None:
        super().__init__()
        self.captured = graph

    def forward(self, *args: Any) -> Any:
        return self.captured(*args)


def _example(fake: Any) -> Any:
    if not isinstance(fake, torch.Tensor):
        return _hint(fake)
    return torch.zeros([_hint(n) for n in fake.shape], dtype=fake.dtype, device=fake.device)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _dynamic(fake: Any) -> Any:
    if isinstance(fake, torch.Tensor):
        return {axis: _range(n) for axis, n in enumerate(fake.shape) if isinstance(n, torch.SymInt)} or None
    return _range(fake) if isinstance(fake, torch.SymInt) else None


def _range(size: torch.SymInt) -> Any:
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    lower, upper = (int(b) if b.is_Integer else None for b in (bounds.lower, bounds.upper))
    return Dim.AUTO(min=lower, max=upper)


class Part:
    """A compiled graph, called with the inputs that it was exported with and giving a list of tensors.

    What the graph changes, buffers and inputs, is changed in place. `program` is of `export`.
    """

    def __init__(self, program: ExportedProgram, options: CompileOptions, target: str) -> None:
        self.fn: CompiledFunction = compile_model(program, None, target, options)
        placeholders = user_placeholders(program)
        dynamic = [isinstance(n.meta.get("val"), (torch.Tensor, torch.SymInt)) for n in placeholders]
        self._taken = [i for i, d in enumerate(dynamic) if d]
        self._fixed = {i: n.meta.get("val") for i, (n, d) in enumerate(zip(placeholders, dynamic, strict=True)) if not d}
        signature = program.graph_signature
        specs = signature.output_specs
        changed = {s.target: i for i, s in enumerate(specs) if s.kind in _CHANGED}
        held: Mapping[str, Any] = {**program.constants, **program.state_dict}
        names = [str(s.target) for s in signature.input_specs
                 if s.kind in (InputKind.BUFFER, InputKind.PARAMETER) and s.target in changed]
        self._state: list[torch.Tensor] = [held[name] for name in names]
        given = [n.name for n in placeholders]
        self._results = [i for i, s in enumerate(specs) if s.kind not in _CHANGED]
        self._new_state = [changed[name] for name in names]
        self._new_inputs = [(given.index(str(name)), i) for name, i in changed.items() if name in given]

    @property
    def changes_state(self) -> bool:
        """Does it change buffers or inputs?"""
        return bool(self._new_state or self._new_inputs)

    def takes(self, args: Sequence[Any]) -> bool:
        """Are the integers those that the graph was specialised for?"""
        return all(args[i] == value for i, value in self._fixed.items())

    def __call__(self, *args: Any) -> list[Any]:
        made = self.fn.call_flat(*(args[i] for i in self._taken), *self._state)
        found = [made] if len(self.fn.outputs) == 1 else list(made)
        found = [f if isinstance(f, torch.Tensor) else to_torch(f) for f in found]  # of a call without a tensor
        for held, i in zip(self._state, self._new_state, strict=True):
            _assign(held, found[i])
        for position, i in self._new_inputs:
            _assign(args[position], found[i])
        return [found[i] for i in self._results]


def _assign(into: torch.Tensor, value: torch.Tensor) -> None:
    """The new value of a tensor that the graph changes, where it has not been written in place."""
    if into.data_ptr() != value.data_ptr():
        into.copy_(value)
