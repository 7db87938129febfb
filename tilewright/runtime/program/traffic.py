"""Traffic: at which shapes a function was called and how often, and which kernels served the calls; as a file, JSON."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from tilewright.runtime.errors import ArtifactError, OptionError, ShapeError
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.program.replace_file import replaced
from tilewright.runtime.shape import Expr

SCHEMA = 2
_DIGITS = 16  # of a fingerprint
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Extent = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class SeenShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dims of calls and how many there were."""

    dims: dict[str, _Extent]
    calls: _Count


class SeenLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of an operator's dispatch: the kernel and the most threads it may use (0: all), and its launches."""

    operator: str
    config: str
    threads: int
    launches: _Count


class SeenModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which model was called. fingerprint: of the MLIR that it was compiled from, which its weights and its tuning leave as it
    is. entry: types of its arguments and results."""

    fingerprint: str
    entry: str

    def __str__(self) -> str:
        return f"{self.fingerprint} {self.entry}"


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted of a function.

    shapes: the most frequent first. others: calls at further shapes, for which there was no room. leaves: launches of each leaf
    of dispatch by the calls in `shapes`; those of ragged calls and within loops are not among them. model: None where that is
    not known, as of files of schema 1.
    """

    shapes: tuple[SeenShape, ...]
    others: _Count = 0
    leaves: tuple[SeenLeaf, ...] = ()
    model: SeenModel | None = None
    schema: Annotated[int, msgspec.Meta(ge=1, le=SCHEMA)] = SCHEMA

    @property
    def calls(self) -> int:
        """All that were counted."""
        return sum(s.calls for s in self.shapes) + self.others

    def weights(self) -> list[tuple[dict[str, int], float]]:
        """As the option `traffic` of a compile takes it: each shape with its share of the calls whose shapes are known."""
        total = sum(s.calls for s in self.shapes)
        return [(dict(s.dims), s.calls / total) for s in self.shapes if s.calls]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; a file that is there is replaced whole."""
        with replaced(Path(path)) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Traffic:
        """What `save` wrote; ArtifactError for any other file."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=Traffic)
        except OSError as error:
            raise ArtifactError(f"traffic {path} cannot be read: {error.strerror}; give a file of fn.traffic().save()") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ArtifactError(f"{path} is no traffic of schema {SCHEMA} or before: {error}; give one of "
                                "fn.traffic().save()") from error

    def of_any_model(self) -> Traffic:
        """The same, to be taken for another model whose dims have these names."""
        return Traffic(self.shapes, self.others, self.leaves)

    def refuse_other_model(self, model: SeenModel, name: str) -> None:
        """OptionError where it is known to be of another model."""
        if self.model is not None and self.model != model:
            raise OptionError(f"traffic: wanted calls of {name}, which is {model}; got those of {self.model}. Give traffic of "
                              "this model, or, where its shapes are meant all the same, of_any_model() (--other-model)")

    def merged(self, other: Traffic) -> Traffic:
        """Both together; OptionError where they are of two models."""
        if self.model is not None:
            other.refuse_other_model(self.model, "the same model as before")
        shapes: Counter[tuple[tuple[str, int], ...]] = Counter()
        leaves: Counter[tuple[str, str, int]] = Counter()
        for one in (self, other):
            shapes.update({tuple(s.dims.items()): s.calls for s in one.shapes})
            leaves.update({(x.operator, x.config, x.threads): x.launches for x in one.leaves})
        return Traffic(tuple(SeenShape(dict(d), n) for d, n in shapes.most_common()), self.others + other.others,
                       tuple(SeenLeaf(*key, n) for key, n in leaves.most_common()), self.model or other.model)


def model_of(program: Program) -> SeenModel:
    """As traffic names it."""
    results = ", ".join(map(_typed, program.outputs))
    entry = f"({', '.join(map(_typed, program.inputs))}) -> ({results})"
    return SeenModel(hashlib.sha256(program.source.encode()).hexdigest()[:_DIGITS], entry)


def _typed(argument: Argument) -> str:
    return f"{argument.dtype.value}[{', '.join(argument.dims or ())}]"


def traffic_of(program: Program, counted: Mapping[tuple[int, ...], int], others: int) -> Traffic:
    """From calls by dims, in the order of the program."""
    names = [d.name for d in program.dims]
    shapes = tuple(SeenShape(dict(zip(names, dims, strict=True)), calls) for dims, calls in counted.items())
    return Traffic(shapes, others, _leaves(program, shapes), model_of(program))


def _leaves(program: Program, shapes: Sequence[SeenShape]) -> tuple[SeenLeaf, ...]:
    found: Counter[tuple[str, str, int]] = Counter()
    for shape in shapes:
        for call in program.calls:
            table = program.tables[call.table]
            texts = {**dict(zip(table.dims, call.dims, strict=True)), **call.layout}
            exprs = {name: Expr.parse(text) for name, text in texts.items()}
            if call.over or any(not e.symbols <= shape.dims.keys() for e in exprs.values()):
                continue
            try:
                leaf = table.select({name: e.evaluate(shape.dims) for name, e in exprs.items()})
            except (ShapeError, ArithmeticError):
                continue  # outside the range a size may not be defined
            found[table.name, table.kernels[leaf.kernel].config, leaf.threads] += shape.calls
    return tuple(SeenLeaf(*key, launches) for key, launches in found.most_common())
