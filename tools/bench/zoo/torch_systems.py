"""Modules by torch: eager (oneDNN and MKL inside) and torch.compile with dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError
from tools.bench.zoo.modules import KIND, flat, leaves, subject

_RECOMPILES = 64  # for extents of 0 and 1, which torch.compile takes as constants


class Eager:
    """The module as it is."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.torch: Any = torch
        self._call: Callable[..., Any] | None = None

    def version(self) -> str:
        return f"torch {self.torch.__version__} ({self.torch.backends.cpu.get_cpu_capability()})"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind != KIND:
            raise UnsupportedError(operator.name)
        self._call = self.compiled(subject(operator).module)

    def compiled(self, module: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = module
        return made

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        call, given = self._call, [self.torch.from_numpy(a) for a in arguments.values()]
        assert call is not None
        mode = self.torch.inference_mode

        def run() -> Any:
            with mode():
                return call(*given)

        return Bound(run, lambda: flat([np.asarray(t) for t in leaves(run())]))


class Inductor(Eager):
    """torch.compile with dynamic shapes; it compiles at the first shapes of their kind, which is not measured."""

    def compiled(self, module: Any) -> Callable[..., Any]:
        self.torch.compiler.reset()
        self.torch._dynamo.config.recompile_limit = _RECOMPILES
        made: Callable[..., Any] = self.torch.compile(module, dynamic=True)
        return made
