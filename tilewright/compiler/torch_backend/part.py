"""One graph of PyTorch operators, exported with symbolic sizes and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec, TensorArgument

from tilewright.compiler.api import compile as compile_model
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.frontends.torch.exported import with_known_operators
from tilewright.compiler.frontends.torch.signature import is_input, user_placeholders
from tilewright.runtime.call.interop import to_torch
from tilewright.runtime.errors import IngestError
from tilewright.runtime.load.function import CompiledFunction

_CHANGED = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def export(module: torch.nn.Module, fakes: Sequence[Any], fixed: frozenset[Any] = frozenset()) -> ExportedProgram:
    """The program of a module for all the sizes that its inputs' symbols may have, without in-place operators.

    Args:
        fakes: tensors and integers whose sizes are symbols, as Dynamo and torch.export note them on their graphs.
        fixed: symbols that keep the value that they have now.
    Raises:
        IngestError: torch.export refuses it.
    """
    examples = tuple(_example(f) for f in fakes)
    shapes = tuple(_dynamic(f, fixed) for f in fakes)
    try:
        with torch.no_grad():
            program = torch.export.export(_Positional(module, fakes), examples, dynamic_shapes=(shapes,), strict=False)
        return with_known_operators(program)
    except Exception as error:  # torch.export raises whatever the graph and its own checks raise
        raise IngestError(f"torch.export refuses the graph: {type(error).__name__}: {error}") from error


class _Positional(torch.nn.Module):  # type: ignore[misc]
    """A graph called by position alone, as Dynamo's names of inputs are no parameters, and told which sizes are equal."""

    def __init__(self, captured: torch.nn.Module, fakes: Sequence[Any]) -> None:
        super().__init__()
        self.captured = captured
        self._equal: dict[Any, list[tuple[int, int | None]]] = {}  # a size of Dynamo -> the inputs, and their axes, that have it
        for number, fake in enumerate(fakes):
            sizes = enumerate(fake.shape) if isinstance(fake, torch.Tensor) else [(None, fake)]
            for axis, size in sizes:
                if isinstance(size, torch.SymInt):
                    self._equal.setdefault(size.node.expr, []).append((number, axis))

    def forward(self, *args: Any) -> Any:
        for places in self._equal.values():
            first, *others = (args[n] if axis is None else args[n].shape[axis] for n, axis in places)
            for other in others:
                torch._check(other == first)
        return self.captured(*args)


def _example(fake: Any) -> Any:
    if not isinstance(fake, torch.Tensor):
        return _hint(fake)
    return torch.zeros([_hint(n) for n in fake.shape], dtype=fake.dtype, device=fake.device)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def tied_symbols(fakes: Sequence[Any]) -> frozenset[Any]:
    """Symbols in equations that hold by Dynamo's guards alone, such as (h // 16) * (w // 16) == 16."""
    sizes = [n for f in fakes for n in (f.shape if isinstance(f, torch.Tensor) else [f]) if isinstance(n, torch.SymInt)]
    if not sizes:
        return frozenset()
    equations = [g.expr for g in sizes[0].node.shape_env.guards if type(g.expr).__name__ == "Equality"]
    return frozenset(s for e in equations if not all(a.is_Symbol or a.is_number for a in e.args) for s in e.free_symbols)


def _dynamic(fake: Any, fixed: frozenset[Any]) -> Any:
    def is_dynamic(size: Any) -> bool:
        return isinstance(size, torch.SymInt) and not size.node.expr.free_symbols <= fixed

    if isinstance(fake, torch.Tensor):
        return {axis: _range(n) for axis, n in enumerate(fake.shape) if is_dynamic(n)} or None
    return _range(fake) if is_dynamic(fake) else None


def _range(size: torch.SymInt) -> Any:
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    lower, upper = (int(b) if b.is_Integer else None for b in (bounds.lower, bounds.upper))
    return Dim.AUTO(min=lower, max=upper)


class Part:
    """A compiled graph, called with the inputs that it was exported with and giving a list of tensors and numbers.

    What the graph changes, buffers and inputs, is changed in place. `program` is of `export`.
    """

    def __init__(self, program: ExportedProgram, options: CompileOptions, target: str) -> None:
        self.fn: CompiledFunction = compile_model(program, None, target, options)
        placeholders = user_placeholders(program)
        dynamic = [is_input(n) for n in placeholders]
        self._taken = [i for i, d in enumerate(dynamic) if d]
        self._fixed = {i: n.meta.get("val") for i, (n, d) in enumerate(zip(placeholders, dynamic, strict=True)) if not d}
        signature = program.graph_signature
        specs = signature.output_specs
        made = [s for s in specs if not isinstance(s.arg, ConstantArgument)]
        changed = {s.target: i for i, s in enumerate(made) if s.kind in _CHANGED}
        held: Mapping[str, Any] = {**program.constants, **program.state_dict}
        names = [str(s.target) for s in signature.input_specs
                 if s.kind in (InputKind.BUFFER, InputKind.PARAMETER) and s.target in changed]
        self._state: list[torch.Tensor] = [held[name] for name in names]
        given = [n.name for n in placeholders]
        places = {id(s): i for i, s in enumerate(made)}
        self._results = [(s, places.get(id(s), -1)) for s in specs if s.kind not in _CHANGED]
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
        return [_result(spec, found, i) for spec, i in self._results]


def _result(spec: OutputSpec, found: Sequence[torch.Tensor], place: int) -> Any:
    """A result of the graph: a tensor, or a number that is the same for every call, or that follows from sizes."""
    if isinstance(spec.arg, ConstantArgument):
        return spec.arg.value
    return found[place] if isinstance(spec.arg, TensorArgument) else found[place].item()


def _assign(into: torch.Tensor, value: torch.Tensor) -> None:
    """The new value of a tensor that the graph changes, where it has not been written in place."""
    if into.data_ptr() != value.data_ptr():
        into.copy_(value)
