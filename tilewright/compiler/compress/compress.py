"""`compress`: the weights of a model's products in few bits, and what each of them loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.compilation.compilation import AnyModel
from tilewright.compiler.compress.quantise import Quantised, quantise
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.frontends.import_model import import_model
from tilewright.compiler.frontends.imported import ExampleInputs, ImportedModel
from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.compiler.ops.codes import WIDTHS, decode
from tilewright.compiler.ops.graph import Graph
from tilewright.passes.analysis.contraction import Groups, is_contraction
from tilewright.passes.base import PassPipeline
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.structured import users
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, UNSIGNED, argument_attributes, write_dims
from tilewright.passes.mlir import functions, ir, linalg, maps_of, new_context, operations, position, tensor
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import DimLike, ShapeRange

_SMALL = 1 << 12  # elements; smaller weights save nothing worth an error
_LEAST_GROUP = 16


@dataclass(frozen=True)
class Layer:
    """A weight: the argument it is bound to, [N, K]; its bits, scales included, and the norm of its error as a share of its own.

    share: of the bytes of all weights before. reason: why it stays as it is; empty where it is compressed.
    """

    name: str
    shape: tuple[int, int]
    bits: float
    error: float
    share: float
    reason: str = ""


@dataclass(frozen=True)
class Compressed:
    """model: what `tw.compile` takes. layers: every weight of a product. before, after: bytes of all constants."""

    model: ImportedModel
    layers: tuple[Layer, ...]
    before: int
    after: int

    def __str__(self) -> str:
        rows = [f"{'weight':24} {'shape':>14} {'bits':>6} {'error':>8} {'share':>6}"]
        rows += [f"{x.name:24} {'x'.join(map(str, x.shape)):>14} {x.bits:6.2f} {x.error:8.2%} {x.share:6.1%}  {x.reason}".rstrip()
                 for x in self.layers]
        return "\n".join([*rows, f"weights: {self.before} bytes before, {self.after} after"])


@dataclass(frozen=True)
class Format:
    """bits: 1, 2, 4 or 8. group: values along K that share a scale, 0 for all. most: error beyond which a weight stays plain.
    keep: names of weights that do."""

    bits: int
    group: int
    most: float
    keep: frozenset[str]

    def check(self) -> None:
        """OptionError names what is no format."""
        if self.bits not in WIDTHS:
            raise OptionError(f"compress: bits={self.bits}; wanted one of {', '.join(map(str, WIDTHS))}")
        if self.group and (self.group < _LEAST_GROUP or self.group % (32 // self.bits)):
            raise OptionError(f"compress: group={self.group}; wanted 0, one scale a row, or a multiple of {32 // self.bits} from "
                              f"{_LEAST_GROUP} on, so that groups are whole words of {self.bits}-bit codes")
        if not self.most > 0:
            raise OptionError(f"compress: max_error={self.most}; wanted a share above 0, such as 0.15")


def compress(
    model: AnyModel,
    dynamic_dims: Mapping[str, DimLike] | None = None,
    *,
    bits: int = 4,
    group: int = 32,
    max_error: float = 0.2,
    keep: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Compressed:
    """A model with the weights of its matrix products in few bits; compile `.model` with the same dynamic_dims.

    Each f32 weight [N, K] or [K, N] that is bound at compile time, and that products alone read, becomes codes with an f32 scale
    for each group along K, chosen for the least squared error. Activations stay f32.

    Args:
        model, dynamic_dims, constants, args, kwargs, dynamic_shapes: as of `compile`.
        bits: of a code: 1, 2, 4 or 8. group: values along K that share a scale; 0 for one scale a row.
        max_error: a weight stays plain where more than this share of its norm would be lost.
        keep: names of weights that stay plain, as the report calls them.
    Raises:
        OptionError: no such format; `keep` names no weight; a weight holds NaN or infinities. IngestError: as of `compile`.
    """
    form = Format(bits, group, max_error, frozenset(keep))
    form.check()
    ranges = ShapeRange.of({} if dynamic_dims is None else dynamic_dims)
    taken = import_model(model, dict(ranges), ExampleInputs(args, kwargs, dynamic_shapes), constants)
    imported = taken if isinstance(taken, ImportedModel) else ImportedModel("", constants=getattr(taken, "constants", {}))
    open_dims = {n: d for n, d in ranges.items() if n not in imported.consumed}
    ingested = ingest(taken.text if isinstance(taken, ImportedModel) else taken, open_dims, None, imported.dims)
    own = {n: v for n, v in (constants or {}).items() if n not in imported.consumed}
    bound_model, bound = bind_constants(ingested, {**imported.constants, **own})
    return _Rewriting(bound_model, bound, form, imported, ranges).run()


@dataclass(frozen=True)
class _Weight:
    """argument: of @main. value: [N, K], as the products see it; transposed: is it [K, N] there?"""

    argument: ir.Value
    number: int
    value: np.ndarray
    transposed: bool


@dataclass(frozen=True)
class _Rewriting:
    ingested: Ingested
    bound: Mapping[int, np.ndarray]
    form: Format
    imported: ImportedModel
    ranges: ShapeRange

    def run(self) -> Compressed:
        """Every weight in turn; then the text and what is bound to its arguments."""
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(self.ingested.text)
            PassPipeline(recover_passes()).run(module)
            main = next(functions(module))
            block = main.regions[0].blocks[0]
            arrays = {v: self.bound[i] for i, v in enumerate(block.arguments) if i in self.bound}
            before = sum(a.nbytes for a in arrays.values())
            found = self._weights(main, arrays)
            unknown = self.form.keep - {self._name(w.number) for w in found}
            if unknown:
                names = ", ".join(self._name(w.number) for w in found) or "none"
                raise OptionError(f"compress: keep names {', '.join(sorted(unknown))}; the weights of products are {names}")
            layers = []
            for weight in found:
                layers.append(self._layer(main, weight, arrays, before))
            text = _finished(module, main, arrays)
            numbers = {f"arg{i}": arrays[v] for i, v in enumerate(block.arguments) if v in arrays}
        model = ImportedModel(text, {d.name: d.dim() for d in self.ingested.dims}, numbers, self.imported.donate,
                              self.imported.input_structure, self.imported.output_structure, frozenset(dict(self.ranges)))
        return Compressed(model, tuple(layers), before, sum(a.nbytes for a in numbers.values()))

    def _name(self, number: int) -> str:
        inputs = self.ingested.inputs
        return inputs[number].name if number < len(inputs) else f"arg{number}"

    def _weights(self, main: ir.Operation, arrays: Mapping[ir.Value, np.ndarray]) -> list[_Weight]:
        """Constants of f32 that products alone read, all of them with the same axis along k."""
        found = []
        for number, argument in enumerate(main.regions[0].blocks[0].arguments):
            if argument not in arrays or not users(argument) or arrays[argument].dtype != np.float32 or \
                    arrays[argument].ndim != 2:
                continue
            axes = {_summed_axis(op, argument) for op in users(argument)}
            if len(axes) == 1 and (axis := axes.pop()) is not None:
                array = arrays[argument]
                found.append(_Weight(argument, number, array if axis == 1 else array.T, axis == 0))
        return found

    def _layer(self, main: ir.Operation, weight: _Weight, arrays: dict[ir.Value, np.ndarray], whole: int) -> Layer:
        """Compresses one weight, or says why it stays."""
        name, value = self._name(weight.number), weight.value
        shape = (int(value.shape[0]), int(value.shape[1]))
        share = value.nbytes / max(1, whole)
        if not np.isfinite(value).all():
            raise OptionError(f"compress: weight {name} {shape} holds NaN or infinities, which no code stands for; leave it out "
                              f"with keep=[{name!r}], or mend it")
        if name in self.form.keep or value.size < _SMALL:
            return Layer(name, shape, 32.0, 0.0, share, "kept as asked" if name in self.form.keep else "small")
        made = quantise(np.ascontiguousarray(value), self.form.bits, self.form.group)
        if made.error > self.form.most:
            return Layer(name, shape, 32.0, 0.0, share, f"would lose {made.error:.1%}, more than {self.form.most:.1%}")
        _put_codes(main, weight, made, arrays)
        return Layer(name, shape, made.bytes * 8 / value.size, made.error, share)


def _summed_axis(op: ir.Operation, argument: ir.Value) -> int | None:
    """The axis of an operand of a product of matrices that is summed over; None of anything else."""
    if not is_contraction(op) or [v == argument for v in op.operands].count(True) != 1:
        return None
    groups, which = Groups.of(op), next(i for i, v in enumerate(op.operands) if v == argument)
    if which > 1 or groups.batch or len(groups.k) != 1:
        return None
    loops = [position(e) for e in maps_of(op)[which].results]
    columns = (groups.m, groups.n)[which]
    if len(columns) != 1 or sorted(d for d in loops if d is not None) != sorted((columns[0], groups.k[0])):
        return None
    return loops.index(groups.k[0])


def _put_codes(main: ir.Operation, weight: _Weight, made: Quantised, arrays: dict[ir.Value, np.ndarray]) -> None:
    """The decoding of new constants in place of a weight."""
    block = main.regions[0].blocks[0]
    graph = Graph()
    codes = graph.input("codes", list(made.codes.shape), "ui8")
    scale = graph.input("scale", list(made.scale.shape))
    decoded = decode(codes, scale, bits=made.bits, group=made.group, depth=weight.value.shape[1])
    graph.output(decoded)
    source = ir.Module.parse(graph.module_text())
    inner = next(functions(source)).regions[0].blocks[0]
    known = dict[ir.Value, ir.Value]()
    attributes = argument_attributes(main)
    for argument, array in zip(inner.arguments, (made.codes, made.scale), strict=True):
        known[argument] = block.add_argument(argument.type, main.location)
        arrays[known[argument]] = array
        named = {DIMS: write_dims(list(array.shape)), CONSTANT: ir.UnitAttr.get()}
        attributes.append(named | ({UNSIGNED: ir.UnitAttr.get()} if array.dtype == np.uint8 else {}))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])
    with ir.InsertionPoint.at_block_begin(block):
        for op in operations(inner)[:-1]:
            new = clone(op, known.__getitem__)
            known.update(zip(op.results, new.results, strict=True))
    value = known[operations(inner)[-1].operands[0]]
    for op in users(weight.argument):
        which = next(i for i, v in enumerate(op.operands) if v == weight.argument)
        op.operands[which] = value if not weight.transposed else _swapped(op, value)


def _swapped(op: ir.Operation, value: ir.Value) -> ir.Value:
    """The decoded weight [N, K] for a product that reads [K, N]."""
    shape = list(ir.RankedTensorType(value.type).shape)
    with ir.InsertionPoint(op), op.location:
        into = tensor.empty(shape[::-1], ir.RankedTensorType(value.type).element_type)
        swapped: ir.Value = linalg.transpose(value, outs=[into], permutation=[1, 0]).results[0]
        return swapped


def _finished(module: ir.Module, main: ir.Operation, arrays: dict[ir.Value, np.ndarray]) -> str:
    """The module's text without arguments that nothing reads any more."""
    block = main.regions[0].blocks[0]
    attributes = argument_attributes(main)
    for number in reversed(range(len(block.arguments))):
        argument = block.arguments[number]
        if argument in arrays and not users(argument):
            del arrays[argument], attributes[number]
            block.erase_argument(number)
    for named in attributes:
        named.pop(CONSTANT, None)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])
    results = [v.type for v in operations(block)[-1].operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], results))
    module.operation.verify()
    return str(module)
