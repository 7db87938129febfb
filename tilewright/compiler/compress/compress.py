"""`compress`: the weights of a model's products in few bits or out of pools, and what each of them loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.compiler.compilation.compilation import AnyModel
from tilewright.compiler.compress.activations import mean_squares
from tilewright.compiler.compress.pooling import VECTOR, Pooled, PoolOptions, pooled
from tilewright.compiler.compress.quantise import quantise
from tilewright.compiler.compress.rewriting import Decoding, finish, put_decoding, round_rows
from tilewright.compiler.compress.weights import Weight, weights_of
from tilewright.compiler.constants.bind_constants import bind_constants, by_sequence
from tilewright.compiler.frontends.import_model import import_model
from tilewright.compiler.frontends.imported import ExampleInputs, ImportedModel
from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.compiler.ops.bits import MOST_BITS
from tilewright.compiler.ops.codes import decode, planes
from tilewright.compiler.ops.graph import Graph
from tilewright.compiler.ops.pools import decode_pool
from tilewright.passes.base import PassPipeline
from tilewright.passes.mlir import functions, ir, new_context
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.shape import Dim, DimLike, ShapeRange

_SMALL = 1 << 12  # elements; smaller weights save nothing worth an error
_LEAST_GROUP = 16
MAX_ERROR, MAX_POOL_ERROR = 0.2, 0.8  # shares of a weight's norm


@dataclass(frozen=True)
class Layer:
    """A weight: the argument it is bound to, its shape with the outputs first and the channels last; its bits, with scales and
    its part of the pool, and the norm of its error as a share of its own.

    share: of the bytes of all weights before. reason: why it stays as it is; empty where it is compressed.
    """

    name: str
    shape: tuple[int, ...]
    bits: float
    error: float
    share: float
    reason: str = ""


@dataclass(frozen=True)
class Compressed:
    """model: what `tw.compile` takes. layers: every weight of a product. before, after: bytes of all constants
    as they are stored."""

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
    """bits: 1 to 8. group: values along K that share a scale, 0 for all. pool: of weights that become indices in place of
    codes. most: error beyond which a weight stays plain. keep: names of weights that do."""

    bits: int
    group: int
    most: float
    keep: frozenset[str]
    pool: PoolOptions | None = None
    activation_bits: int | str | None = None

    def check(self) -> None:
        """OptionError names what is no format."""
        if not planes(self.bits):
            raise OptionError(f"compress: bits={self.bits}; wanted 1 to 8")
        least = min(planes(self.bits))
        if self.group and (self.group < _LEAST_GROUP or self.group % (32 // least)):
            raise OptionError(f"compress: group={self.group}; wanted 0, one scale a row, or a multiple of {32 // least} from "
                              f"{_LEAST_GROUP} on, so that groups are whole words of {least}-bit codes")
        rows = self.activation_bits
        if rows is not None and (self.pool is None or (isinstance(rows, int) and not 1 <= rows <= MOST_BITS)):
            raise OptionError(f"compress: activation_bits={rows!r}; wanted 1 to {MOST_BITS}, or the name of a dim, "
                              "together with pool")
        if self.pool is not None:
            self.pool.check()
        if not self.most > 0:
            raise OptionError(f"compress: max_error={self.most}; wanted a share above 0, such as 0.15")


def compress(
    model: AnyModel,
    dynamic_dims: Mapping[str, DimLike] | None = None,
    *,
    bits: int = 4,
    group: int = 32,
    pool: int | None = None,
    pool_scope: str = "network",
    assign: str = "distance",
    seed: int = 0,
    activation_bits: int | str | None = None,
    max_error: float | None = None,
    keep: Sequence[str] = (),
    samples: Sequence[Any] = (),
    constants: Mapping[str, Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Compressed:
    """A model with the weights of its matrix products in few bits; compile `.model` with the same dynamic_dims.

    Each f32 weight [N, K] or [K, N] that is bound at compile time, and that products alone read, becomes codes with an f32 scale
    for each group along K, chosen for the least squared error. Activations stay f32.

    With `pool`, these weights and the filters of convolutions become bytes instead, each of which stands for eight values along
    the input channels: the index of a vector of a pool that k-means makes of all of them. The first product of several stays
    plain, and so do weights whose channels are no multiple of 8. Networks should be trained on afterwards:
    examples/pooled_digits.py.

    Args:
        model, dynamic_dims, constants, args, kwargs, dynamic_shapes: as of `compile`.
        bits: of a code, 1 to 8. group: values along K that share a scale; 0 for one scale a row.
        pool: vectors of a pool, 2 to 256; bits and group then have no effect. pool_scope: "network", one pool for all weights, or
            "layer", one for each. assign: vectors are compared by "distance", or by "cosine", after each output was brought to
            one size, which then has a scale (4 bytes) of its own, or by the error that "activations" make of their distance,
            which needs `samples`. seed: of the k-means.
        activation_bits: with pools, what their weights are multiplied by is rounded to whole numbers of so many bits, 1 to 8,
            with a scale for each tensor, and multiplied as integers. A name is a dim of the range (1, 8), an argument of every
            call.
        max_error: a weight stays plain where more than this share of its norm would be lost; default 0.2, of pools 0.8.
        keep: names of weights that stay plain, as the report calls them.
        samples: arguments of some calls, each a tuple, a mapping by name, or one array. Where there are some, errors of bits, and
            of pools with assign="activations", are weighted by the mean squares of what each channel is multiplied by there.
    Raises:
        OptionError: no such format; `keep` names no weight; a weight, or an activation of the samples, holds NaN or infinities;
            assign="activations" without samples. IngestError: as of `compile`.
    """
    pools = None if pool is None else PoolOptions(pool, pool_scope, assign, seed)
    most = max_error if max_error is not None else MAX_ERROR if pools is None else MAX_POOL_ERROR
    form = Format(bits, group, most, frozenset(keep), pools, activation_bits)
    form.check()
    ranges = ShapeRange.of({} if dynamic_dims is None else dynamic_dims)
    taken = import_model(model, dict(ranges), ExampleInputs(args, kwargs, dynamic_shapes), constants)
    imported = taken if isinstance(taken, ImportedModel) else ImportedModel("", constants=getattr(taken, "constants", {}))
    open_dims = {n: d for n, d in ranges.items() if n not in imported.consumed}
    ingested = ingest(taken.text if isinstance(taken, ImportedModel) else taken, open_dims, None, imported.dims)
    own = {n: v for n, v in (constants or {}).items() if n not in imported.consumed}
    bound_model, bound = bind_constants(ingested, {**imported.constants, **own})
    if each := [bound_model.inputs[n].name for n in sorted(by_sequence(bound_model, bound))]:
        raise OptionError(f"compress: constant {each[0]} has an entry for each sequence, and wanted constants of all sequences; "
                          "give it to compile instead, where it stays plain")
    squares: Mapping[int, np.ndarray] = {}
    if assign == "activations" or len(samples):
        squares = mean_squares(bound_model, bound, imported.input_structure, samples)
    return _Rewriting(bound_model, bound, form, imported, ranges, squares).run()


@dataclass(frozen=True)
class _Rewriting:
    ingested: Ingested
    bound: Mapping[int, np.ndarray]
    form: Format
    imported: ImportedModel
    ranges: ShapeRange
    squares: Mapping[int, np.ndarray]

    def run(self) -> Compressed:
        """Every weight in turn; then the text and what is bound to its arguments."""
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(self.ingested.text)
            PassPipeline(recover_passes()).run(module)
            main = next(functions(module))
            block = main.regions[0].blocks[0]
            arrays = {v: self.bound[i] for i, v in enumerate(block.arguments) if i in self.bound}
            before = sum(a.nbytes for a in arrays.values())
            found = weights_of(main, arrays, images=self.form.pool is not None)
            unknown = self.form.keep - {self._name(w) for w in found}
            if unknown:
                names = ", ".join(self._name(w) for w in found) or "none"
                raise OptionError(f"compress: keep names {', '.join(sorted(unknown))}; the weights of products are {names}")
            made = self._of_pools(found, before) if self.form.pool is not None else [self._of_bits(w, before) for w in found]
            shared: dict[int, ir.Value] = {}
            for weight, (_, decoding) in zip(found, made, strict=True):
                if decoding is not None:
                    value = put_decoding(main, weight, decoding, arrays, shared)
                    if self.form.activation_bits is not None:
                        round_rows(main, value, self.form.activation_bits)
            text = finish(module, main, arrays)
            structure, name = self.imported.input_structure, self.form.activation_bits
            if structure is not None and isinstance(name, str):  # the dim is one more parameter
                place = max(i for i, v in enumerate(block.arguments) if isinstance(v.type, ir.IndexType))
                known = dict(zip(structure.keys, structure.items, strict=True))
                structure = Structure.mapping({**known, name: Structure.leaf(place)})
            numbers = {f"arg{i}": arrays[v] for i, v in enumerate(block.arguments) if v in arrays}
        dims = {d.name: d.dim() for d in self.ingested.dims}
        if isinstance(self.form.activation_bits, str):
            dims[self.form.activation_bits] = Dim(1, MOST_BITS)
        model = ImportedModel(text, dims, numbers, self.imported.donate,
                              structure, self.imported.output_structure, frozenset(dict(self.ranges)))
        saved = sum(d.saved for _, d in made if d is not None)
        return Compressed(model, tuple(layer for layer, _ in made), before, sum(a.nbytes for a in numbers.values()) - saved)

    def _name(self, weight: Weight) -> str:
        inputs = self.ingested.inputs
        return inputs[weight.number].name if weight.number < len(inputs) else f"arg{weight.number}"

    def _plain(self, weight: Weight, whole: int) -> Layer:
        """A weight as it is. OptionError where it holds what no code stands for."""
        name, shape = self._name(weight), tuple(map(int, weight.value.shape))
        if not np.isfinite(weight.value).all():
            raise OptionError(f"compress: weight {name} {shape} holds NaN or infinities, which no code stands for; leave it out "
                              f"with keep=[{name!r}], or mend it")
        kept = name in self.form.keep
        reason = "kept as asked" if kept else "small" if weight.value.size < _SMALL else ""
        return Layer(name, shape, 32.0, 0.0, weight.value.nbytes / max(1, whole), reason)

    def _of_bits(self, weight: Weight, whole: int) -> tuple[Layer, Decoding | None]:
        """One weight in codes, or why it stays."""
        layer, value, form = self._plain(weight, whole), weight.value, self.form
        if layer.reason:
            return layer, None
        made = quantise(np.ascontiguousarray(value), form.bits, form.group, self.squares.get(weight.number))
        if made.error > form.most:
            return replace(layer, reason=f"would lose {made.error:.1%}, more than {form.most:.1%}"), None
        graph = Graph()
        codes = [graph.input(f"codes{i}", list(c.shape), "ui8") for i, c in enumerate(made.codes)]
        scale = graph.input("scale", list(made.scale.shape))
        graph.output(decode(codes, scale, bits=made.bits, group=made.group, depth=value.shape[1]))
        return replace(layer, bits=made.bytes * 8 / value.size, error=made.error), Decoding(graph, (*made.codes, made.scale))

    def _of_pools(self, weights: Sequence[Weight], before: int) -> list[tuple[Layer, Decoding | None]]:
        """All weights by indices, or why some stay."""
        assert self.form.pool is not None
        layers = [self._plain(w, before) for w in weights]
        for n, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
            if not layer.reason and weight.value.shape[-1] % VECTOR:
                layers[n] = replace(layer, reason=f"{weight.value.shape[-1]} channels are no multiple of {VECTOR}")
            elif not layer.reason and n == 0 and len(weights) > 1:
                layers[n] = replace(layer, reason="the first product")
        taken = [n for n, layer in enumerate(layers) if not layer.reason]
        weighted = self.form.pool.assign == "activations"
        squares = [self.squares[weights[n].number] for n in taken] if weighted else []
        values = [np.ascontiguousarray(weights[n].value) for n in taken]
        made = dict(zip(taken, pooled(values, self.form.pool, squares), strict=True))
        kept = {n: m for n, m in made.items() if m.error <= self.form.most}
        whole = sum(weights[n].value.size for n, m in kept.items()) if self.form.pool.scope == "network" else 0
        found: list[tuple[Layer, Decoding | None]] = []
        for n, layer in enumerate(layers):
            if n in made and n not in kept:
                layer = replace(layer, reason=f"would lose {made[n].error:.1%}, more than {self.form.most:.1%}")
            elif n in kept:
                size, own = weights[n].value.size, kept[n]
                pool = own.pool.nbytes * (size / whole if whole else 1)
                layer = replace(layer, bits=(own.bytes + pool) * 8 / size, error=own.error)
            found.append((layer, _by_index(kept[n]) if n in kept else None))
        return found


def _by_index(made: Pooled) -> Decoding:
    graph = Graph()
    index, pool = graph.input("index", list(made.index.shape), "ui8"), graph.input("pool", list(made.pool.shape), "i8")
    scale = None if made.scale is None else graph.input("scale", list(made.scale.shape))
    if scale is None:
        graph.output(decode_pool(index, pool, made.factor))
        return Decoding(graph, (made.index, made.pool), made.saved)
    assert made.scale is not None
    graph.output(decode_pool(index, pool, scale))
    return Decoding(graph, (made.index, made.pool, (made.scale * np.float32(made.factor)).astype(np.float32)), made.saved)
