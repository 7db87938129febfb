"""Recurrent layers over a dynamic length, as torch.export sees them: PyTorch's own tracing unrolls their steps, and so fixes the
length; during an export each is one operator instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tilewright.runtime.errors import IngestError

_TENSORS = {"lstm": "Tensor[] hx", "gru": "Tensor hx", "rnn_tanh": "Tensor hx", "rnn_relu": "Tensor hx"}
_PACKED = ("{}: packed sequences are not compiled, since how many rows a step has depends on data: give the layer the padded "
           "tensor and take the rows up to each length from its result, which in one direction do not depend on padding; in two "
           "directions call the model for each sequence")
_OPTIONS = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"


def recurrent(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What is called in place of torch.lstm, gru, rnn_tanh or rnn_relu on padded sequences whose length is a symbol: the operator
    of the same name in the namespace `tilewright`; None for all other calls.

    Raises:
        IngestError: sequences are packed.
    """
    if name == "_pack_padded_sequence" or (name in _TENSORS and len(args) > 3 and isinstance(args[3], list | tuple)):
        raise IngestError(_PACKED.format(name))
    if name in _TENSORS and not kwargs and len(args) == 9 and isinstance(args[3], bool):
        x, batch_first = args[0], args[8]
        if isinstance(x.shape[1 if batch_first else 0], torch.SymInt):
            return operators()[name]
    return None


@cache
def operators() -> Mapping[str, Callable[..., Any]]:
    """The operators by name; registered with PyTorch when they are first asked for."""
    return {name: _operator(name) for name in _TENSORS}


def _operator(name: str) -> Callable[..., Any]:
    several = name == "lstm"
    results = "(Tensor, Tensor, Tensor)" if several else "(Tensor, Tensor)"

    def run(*args: Any) -> Any:
        return getattr(torch, name)(*args)

    def shapes(x: torch.Tensor, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
               bidirectional: bool, batch_first: bool) -> Any:
        states = list(hx) if several else [hx]
        first = x.new_empty([*x.shape[:2], states[0].shape[-1] * (2 if bidirectional else 1)])
        return first, *(s.new_empty(s.shape) for s in states)

    schema = f"(Tensor x, {_TENSORS[name]}, Tensor[] params, {_OPTIONS}) -> {results}"
    made: Callable[..., Any] = torch.library.custom_op(f"tilewright::{name}", run, mutates_args=(), schema=schema)
    torch.library.register_fake(f"tilewright::{name}", shapes)
    return made
