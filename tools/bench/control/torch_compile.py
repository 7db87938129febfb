"""torch.compile on the cases of the suite `control`, with dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools.bench.control.decoding import KINDS, torch_decoded, torch_step
from tools.bench.control.torch_functions import COMPILED, scan_piece, selective_scan_in_pieces
from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError
from tools.bench.torch_peers import Eager


class Compiled(Eager):
    """It compiles at the first call, which is not measured; of decoding a step and of the selective scan some, which a loop of
    Python calls."""

    _compiled: Callable[[Mapping[str, Any]], Any]

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        torch = self.torch
        torch.compiler.reset()
        if operator.kind in KINDS:
            step, beams = torch.compile(torch_step, dynamic=True), KINDS[operator.kind]
            self._compiled = lambda operands: torch_decoded(torch, operands, beams, step)
        elif operator.kind == "selective_scan":
            piece = torch.compile(scan_piece, dynamic=False)
            self._compiled = lambda operands: selective_scan_in_pieces(torch, operands, piece)
        elif operator.kind in COMPILED:
            function = COMPILED[operator.kind]
            self._compiled = torch.compile(lambda operands: function(torch, operands), dynamic=True)
        else:
            raise UnsupportedError(operator.name)
        self._constants = {n: self.tensor(a) for n, a in constants.items()}

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        operands = {**{n: self.tensor(a) for n, a in arguments.items()}, **self._constants}
        call = self._compiled
        return Bound(lambda: call(operands), lambda: self.array(call(operands)))
