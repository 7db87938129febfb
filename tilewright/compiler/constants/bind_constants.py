"""Bind arguments of a model at compile time: they leave its signature and travel with the compiled function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from tilewright.compiler.constants.dense_resources import resource_array, resource_name, resources_of
from tilewright.compiler.frontends.ingest import Ingested
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, RANGES, argument_attributes, write_dims, write_ranges
from tilewright.passes.mlir import functions, ir, new_context, operations, replace_all_uses
from tilewright.runtime.call.interop import view
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError, perhaps
from tilewright.runtime.tensor import DType


def bind_constants(ingested: Ingested, constants: Mapping[str, Any]) -> tuple[Ingested, dict[int, np.ndarray]]:
    """Mark the named arguments as constants, and turn the model's own dense constants into such arguments.

    Args:
        constants: argument name, "w" or "arg1" -> array of the argument's dtype and (static) shape.
    Returns:
        The model with `tw.constant` on those arguments, and argument number -> array. The numbers of the model's own constants
        follow those of its arguments. Arrays that were given are not copied: they are read until the compile ends.

    The dim that counts the sequences of a ragged model may be an axis of a constant, as of the weights of experts: it is then as
    long as the constant has entries. The array becomes [entries, *shape for one sequence], as `by_sequence` tells.
    Raises:
        OptionError: no such argument, or one with dynamic extents. DTypeError, ShapeError: the array does not fit. IngestError:
            the model leaves out the data of a constant.
    """
    outer = next((d.over for d in ingested.dims if d.over), "")
    entries: dict[str, int] = {}  # constant -> its extent along the outer dim
    names = [a.name for a in ingested.inputs]
    bound: dict[int, np.ndarray] = {}
    for name, value in constants.items():
        number = ingested.number(name)
        if number is None:
            raise OptionError(f"constants name {name!r}, which is no argument; name one of "
                              f"{', '.join(names)}{perhaps(name, names)}")
        if number in bound:
            raise OptionError(f"constants name argument {names[number]} twice, also as {name!r}; give it once")
        spec = ingested.inputs[number].spec()
        array = as_constant(name, value)
        counts = [a for a, d in enumerate(spec.dims) if outer and d.symbol == outer]
        shape = [d.constant for d in spec.dims]
        if len(counts) == 1 and len(array.shape) == len(shape):
            shape[counts[0]] = entries[name] = array.shape[counts[0]]
        if ingested.inputs[number].dims is None or None in shape:
            raise OptionError(f"constant {name}: only tensors of static shape can be bound, and {name} is {spec}; pass it in "
                              "each call")
        array = as_constant(name, value)
        if array.dtype != spec.dtype.numpy:
            raise DTypeError(f"constant {name}: wanted {spec.dtype.numpy}, got {array.dtype}; convert it with "
                             f".astype({spec.dtype.numpy.name!r})")
        if list(array.shape) != shape:
            raise ShapeError(f"constant {name}: wanted shape {tuple(shape)}, got {array.shape}; transpose or reshape it")
        bound[number] = array.view(spec.dtype.signless.numpy)
        if name in entries:
            bound[number] = np.expand_dims(np.moveaxis(bound[number], counts[0], 0), counts[0] + 1)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        main = next(functions(module))
        named = argument_attributes(main)
        for number in bound:
            named[number][CONSTANT] = ir.UnitAttr.get()
        block = main.regions[0].blocks[0]
        resources: dict[str, str] | None = None
        for op in operations(block):
            if op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType) and not _splat(op):
                resource = resource_name(op.attributes["value"])
                if resource is not None and resources is None:
                    resources = resources_of(ingested.text)
                bound[len(block.arguments)] = (constant_array(op) if resource is None
                                               else resource_array(op, resource, resources or {}))
                named.append({DIMS: write_dims(list(op.results[0].type.shape)), CONSTANT: ir.UnitAttr.get()})
                replace_all_uses(op.results[0], block.add_argument(op.results[0].type, op.location))
                op.erase()
        if not bound:
            return ingested, {}
        if entries:
            ingested = _counted(ingested, outer, entries)
            main.attributes[RANGES] = write_ranges(ingested.ranges())
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(n) for n in named])
        results = [v.type for v in operations(block)[-1].operands]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], results))
        return replace(ingested, text=str(module)), bound


def by_sequence(ingested: Ingested, bound: Mapping[int, np.ndarray]) -> set[int]:
    """Numbers of the bound arguments that have an entry for each sequence, along a first axis that the model does not have."""
    outer = next((d.over for d in ingested.dims if d.over), "")
    return {number for number, a in enumerate(ingested.inputs)
            if outer and number in bound and any(d.symbol == outer for d in a.spec().dims)}


def _counted(ingested: Ingested, outer: str, entries: Mapping[str, int]) -> Ingested:
    """The model, whose outer dim is as long as its constants along it. entries: constant -> that extent."""
    (name, count), *others = entries.items()
    if wrong := [f"{n} has {c}" for n, c in others if c != count]:
        raise ShapeError(f"constant {name} has {count} entries along {outer}, {', '.join(wrong)}; wanted as many of each")
    dim = next(d for d in ingested.dims if d.name == outer)
    if not max(dim.lo, 1) <= count <= dim.hi or count % dim.multiple_of:
        raise ShapeError(f"constant {name} has {count} entries along {outer}, and wanted one at least and what its "
                         f"range {dim.dim()} allows; widen it")
    fixed = msgspec.structs.replace(dim, lo=count, hi=count, multiple_of=1, samples=None)
    return replace(ingested, dims=tuple(fixed if d is dim else d for d in ingested.dims))


def as_constant(name: str, value: Any) -> np.ndarray:
    """An array of numbers, of any library or of Python's own; DTypeError for what is none."""
    if value is None or isinstance(value, str | os.PathLike):
        raise DTypeError(f"constant {name}: wanted an array of numbers, got {type(value).__name__} {str(value)[:40]!r}; load "
                         "or convert it to an array first")
    if getattr(value, "requires_grad", False):  # of a parameter, what it is now is bound
        value = value.detach()
    try:
        array = np.asarray(value) if isinstance(value, list | tuple | int | float) else view(value, name)[0]
    except ValueError as error:
        raise DTypeError(f"constant {name}: wanted an array, got {type(value).__name__} that is none: {error}; convert it with "
                         "numpy.asarray") from None
    if array.dtype.kind in "OUSM":
        raise DTypeError(f"constant {name}: wanted an array of numbers, got elements of {array.dtype}; convert them to numbers "
                         "first")
    return array


def _splat(op: ir.Operation) -> bool:
    attribute = op.attributes["value"]
    return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat


def constant_array(op: ir.Operation) -> np.ndarray:
    """The bytes of a dense tensor constant as a contiguous array."""
    attribute = op.attributes["value"]
    t = ir.RankedTensorType(op.results[0].type)
    dtype = DType(str(t.element_type))
    shape = tuple(t.shape)
    dense = ir.DenseElementsAttr(attribute)
    if dtype in (DType.BF16, DType.F8E4M3, DType.F8E5M2):
        values = [ir.FloatAttr(a).value for a in dense]
        return np.array(values, dtype=np.float64).astype(dtype.numpy).reshape(shape)
    return np.ascontiguousarray(np.broadcast_to(np.array(dense), shape).astype(dtype.numpy))
