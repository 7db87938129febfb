"""Weights, buffers and lifted constants of a program as constants of the graph: memory shared, every tensor once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tilewright.compiler import ops
from tilewright.runtime.errors import IngestError

_VIEWED = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16), torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
           torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2)}  # fmt: skip
_Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass
class Constants:
    """Constants of one graph, by what they hold, so that tied weights become one."""

    graph: ops.Graph
    _made: dict[_Key, ops.Tensor] = field(default_factory=dict)

    def tensor(self, name: str, value: torch.Tensor) -> ops.Tensor:
        """The constant of a tensor; `name` is used when it is new."""
        key = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if key not in self._made or not value.numel():
            self._made[key] = self.graph.constant(array(name, value), name)
        return self._made[key]


def array(name: str, value: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor as an array; IngestError for one that lies elsewhere or has no element type of ours."""
    if value.device.type != "cpu" or value.layout is not torch.strided:
        raise IngestError(f"{name} is a {value.layout} tensor on {value.device}; import a dense model on the CPU: model.cpu()")
    plain = value.detach().resolve_conj().resolve_neg()
    if value.dtype in _VIEWED:
        stored, kind = _VIEWED[value.dtype]
        return np.asarray(plain.contiguous().view(stored).numpy().view(kind))
    return np.asarray(plain.numpy())
