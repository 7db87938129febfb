"""A function of tensors as a module, which is what torch.export takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class FunctionModule(torch.nn.Module):  # type: ignore[misc]
    """A module whose forward is a function; a method of a module brings its parameters along."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = self.function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self.owner = owner
        self.training = isinstance(owner, torch.nn.Module) and owner.training

    def _get_name(self) -> str:
        return str(getattr(self.function, "__qualname__", "the function"))
