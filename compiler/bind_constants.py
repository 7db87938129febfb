"""Bind arguments of a model at compile time: they leave its signature and travel with the compiled function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.host_plan import CONSTANT
from compiler.ingest import Ingested
from passes.mlir import functions, ir
from passes.symbolic import argument_attributes
from runtime.errors import DTypeError, OptionError, ShapeError


def bind_constants(ingested: Ingested, constants: Mapping[str, Any]) -> tuple[Ingested, dict[int, np.ndarray]]:
    """Mark the named arguments as constants.

    Args:
        constants: argument name, "arg1" -> array of the argument's dtype and (static) shape.
    Returns:
        The model with `tw.constant` on those arguments, and argument number -> contiguous array.
    Raises:
        OptionError: no such argument, or one with dynamic extents. DTypeError, ShapeError: the array does not fit.
    """
    if not constants:
        return ingested, {}
    names = [a.name for a in ingested.inputs]
    bound: dict[int, np.ndarray] = {}
    for name, value in constants.items():
        if name not in names:
            raise OptionError(f"constants name {name!r}, which is no argument; arguments: {', '.join(names)}")
        number = names.index(name)
        spec = ingested.inputs[number].spec()
        shape = [d.constant for d in spec.dims]
        if ingested.inputs[number].dims is None or None in shape:
            raise OptionError(f"constant {name}: only tensors of static shape can be bound, and {name} is {spec}")
        array = np.asarray(value)
        if array.dtype != spec.dtype.numpy:
            raise DTypeError(f"constant {name}: wanted {spec.dtype.numpy}, got {array.dtype}; convert it with .astype()")
        if list(array.shape) != shape:
            raise ShapeError(f"constant {name}: wanted shape {tuple(shape)}, got {array.shape}")
        bound[number] = np.ascontiguousarray(array).reshape(array.shape)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        main = next(functions(module))
        named = argument_attributes(main)
        for number in bound:
            named[number][CONSTANT] = ir.UnitAttr.get()
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(n) for n in named])
        return replace(ingested, text=str(module)), bound
