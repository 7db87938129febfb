"""ImportedModel: what a front end makes of a model of another library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.shape import Dim


@dataclass(frozen=True)
class ImportedModel:
    """A model as linalg text, with what the text does not hold. `tw.compile` takes it wherever it takes a model.

    Args:
        text: one public function @main; arguments with `tw.dims` and `tw.name`, results with `tw.name`.
        dims: range of each name in `tw.dims`; the caller's dynamic_dims count before them.
        constants: argument name -> its value, bound at compile time, beside those that the caller binds. Not copied here.
        donate: arguments whose buffer a result may take, beside those of the caller.
        input_structure: a "dict" of the parameters in the order of positional calls; a leaf's number is that of the argument of
            @main. Arguments that are constants have no leaf. None: the arguments are the parameters.
        output_structure: a leaf's number is that of the result of @main. None: one array, or a tuple of several.
        consumed: the caller's dims and constants that the front end has put in place already, and that the text does not name.
    """

    text: str
    dims: Mapping[str, Dim] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    donate: tuple[str, ...] = ()
    input_structure: Structure | None = None
    output_structure: Structure | None = None
    consumed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ExampleInputs:
    """What `torch.export.export` needs beside a module: a call of it, and what is dynamic there in torch.export's own forms."""

    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None

    @property
    def given(self) -> bool:
        return any(part is not None for part in (self.args, self.kwargs, self.dynamic_shapes))

    def check(self) -> None:
        """OptionError where the example is no call."""
        if self.args is not None and not isinstance(self.args, tuple | list):
            raise OptionError(f"args: wanted a tuple of example inputs, got {type(self.args).__name__}; write args=(x,)")
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            raise OptionError(f"kwargs: wanted a dict of example inputs, got {type(self.kwargs).__name__}; write "
                              'kwargs={"x": x}')
