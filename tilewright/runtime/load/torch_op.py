"""A compiled model as an operator of PyTorch, for graphs that torch.compile and torch.export trace."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from tilewright.runtime.call.binder import Binder
from tilewright.runtime.errors import OptionError
from tilewright.runtime.load.function import CompiledFunction, load
from tilewright.runtime.program.program import Program
from tilewright.runtime.tensor import DType

_TORCH = {DType.I1: "bool", DType.I8: "int8", DType.I16: "int16", DType.I32: "int32", DType.I64: "int64", DType.U8: "uint8",
          DType.U16: "uint16", DType.U32: "uint32", DType.U64: "uint64", DType.F16: "float16", DType.BF16: "bfloat16",
          DType.F32: "float32", DType.F64: "float64", DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2"}  # fmt: skip


def torch_op(name: str, model: CompiledFunction | str | os.PathLike[str]) -> Any:
    """Register a compiled model as the operator `name` of PyTorch and return it.

    The operator takes the program's inputs in order, flat, and returns one tensor or several. It knows the shapes of its results,
    so that torch.compile and torch.export trace through it with symbolic sizes. It has no gradient: a backward pass through it
    raises.

        encoder = tw.torch_op("mylib::encoder", "encoder.tw")
        y = encoder(x)                                        # or torch.ops.mylib.encoder(x)

    Args:
        name: "namespace::operator", unused so far in this process.
        model: a compiled function, or the path of a saved one.
    Raises:
        OptionError: PyTorch is not installed, the name has another form, or the model writes into its arguments.
    """
    try:
        import torch
    except ImportError as error:
        raise OptionError("torch_op() needs PyTorch; install it with pip install torch") from error
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise OptionError(f"torch_op: wanted a name such as 'mylib::encoder', got {name!r}")
    fn = model if isinstance(model, CompiledFunction) else load(model)
    program = fn.program
    if program.donated:
        given = ", ".join(program.inputs[i].name for i, _ in program.donated)
        raise OptionError(f"torch_op {name}: the model writes its results into {given}; compile it without donate")
    sizes = _ResultSizes(program)
    dtypes = [getattr(torch, _TORCH[o.dtype]) for o in program.outputs]

    def run(*args: Any) -> Any:
        with torch.no_grad():  # PyTorch itself refuses a backward pass through the operator
            return fn.call_flat(*args)

    def fake(*args: Any) -> Any:
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        device = None if first is None else first.device
        made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in zip(sizes(args), dtypes, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    operator = torch.library.custom_op(name, run, mutates_args=(), schema=_schema(program))
    operator.register_fake(fake)
    return operator


def _schema(program: Program) -> str:
    kinds = [("Tensor" if a.dims is not None else "float" if a.dtype.is_float else "SymInt") for a in program.inputs]
    names = [re.sub(r"\W", "_", a.name) for a in program.inputs]
    names = [n if n.isidentifier() and names.count(n) == 1 else f"arg{i}" for i, n in enumerate(names)]
    results = "Tensor" if len(program.outputs) == 1 else f"({', '.join(['Tensor'] * len(program.outputs))})"
    return f"({', '.join(f'{k} {n}' for k, n in zip(kinds, names, strict=True))}) -> {results}"


class _ResultSizes:
    """Shapes of a program's results from arguments whose sizes may be symbols of PyTorch."""

    def __init__(self, program: Program) -> None:
        self._binder = Binder(program)
        self._shapes = [o.spec().dims for o in program.outputs]

    def __call__(self, args: Sequence[Any]) -> list[list[Any]]:
        shapes = [tuple(args[i].shape) for i, _, _, _ in self._binder.tensors]
        scalars = dict(enumerate(args))
        dims = {n: s.value(shapes, scalars) for n, s in zip(self._binder.names, self._binder.sources, strict=True)}
        return [[e.fold(int, dims.__getitem__, _apply) for e in shape] for shape in self._shapes]


def _apply(op: str, a: Any, b: Any) -> Any:
    import torch

    if op == "floordiv":
        return a // b
    if op == "mod":
        return a % b
    return torch.sym_min(a, b) if op == "min" else torch.sym_max(a, b)
