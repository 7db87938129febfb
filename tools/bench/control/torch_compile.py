"""torch.compile on the cases of the suite `control`, with dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools.bench.control.torch_functions import COMPILED
from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError
from tools.bench.torch_peers import Eager


class Compiled(Eager):
    """It compiles at the first call, which is not measured."""

    _compiled: Callable[[Mapping[str, Any]], Any]

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind not in COMPILED:
            raise UnsupportedError(operator.name)
        torch, function = self.torch, COMPILED[operator.kind]
        torch.compiler.reset()
        self._compiled = torch.compile(lambda operands: function(torch, operands), dynamic=True)
        self._constants = {n: self.tensor(a) for n, a in constants.items()}

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        operands = {**{n: self.tensor(a) for n, a in arguments.items()}, **self._constants}
        call = self._compiled
        return Bound(lambda: call(operands), lambda: self.array(call(operands)))
