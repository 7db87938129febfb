"""len() of a tensor while a model is traced: a size, where Python's own makes a number of the example of it."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tilewright.compiler.frontends.torch.function_module import FunctionModule


@contextmanager
def lengths_as_sizes(model: torch.nn.Module) -> Iterator[None]:
    """In the files of a model's classes, PyTorch's own left out, `len` keeps sizes symbolic.

    Python makes an int of what `__len__` gives, so that a tensor cannot give a symbol there; a name of the file goes before that
    of Python. It does what `len` does for all else, so that other threads may run the same code meanwhile.
    """
    classes = {type(m).__module__ for m in model.modules() if not isinstance(m, FunctionModule)}
    names = [sys.modules[c].__dict__ for c in sorted(classes) if c.partition(".")[0] != "torch" and c in sys.modules]
    if isinstance(model, FunctionModule):
        names.append(getattr(model.function, "__globals__", {}))
    changed = [n for i, n in enumerate(names) if "len" not in n and not any(n is other for other in names[:i])]
    for name in changed:
        name["len"] = _length
    try:
        yield
    finally:
        for name in changed:
            name.pop("len", None)


def _length(x: Any) -> Any:
    return x.shape[0] if isinstance(x, torch.Tensor) and x.dim() else builtins.len(x)
