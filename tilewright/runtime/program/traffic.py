"""Traffic: at which shapes a function was called and how often, and which kernels served the calls; as a file, JSON."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from tilewright.runtime.errors import ArtifactError, ShapeError
from tilewright.runtime.program.program import Program
from tilewright.runtime.program.replace_file import replaced
from tilewright.runtime.shape import Expr

SCHEMA = 1
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


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted of a function.

    shapes: the most frequent first. others: calls at further shapes, for which there was no room. leaves: launches of each leaf
    of dispatch by the calls in `shapes`; those of ragged calls and within loops are not among them.
    """

    shapes: tuple[SeenShape, ...]
    others: _Count = 0
    leaves: tuple[SeenLeaf, ...] = ()
    schema: Annotated[int, msgspec.Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA

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
            raise ArtifactError(f"{path} is no traffic of schema {SCHEMA}: {error}; give one of fn.traffic().save()") from error

    def merged(self, other: Traffic) -> Traffic:
        """Both together."""
        shapes: Counter[tuple[tuple[str, int], ...]] = Counter()
        leaves: Counter[tuple[str, str, int]] = Counter()
        for one in (self, other):
            shapes.update({tuple(s.dims.items()): s.calls for s in one.shapes})
            leaves.update({(x.operator, x.config, x.threads): x.launches for x in one.leaves})
        return Traffic(tuple(SeenShape(dict(d), n) for d, n in shapes.most_common()), self.others + other.others,
                       tuple(SeenLeaf(*key, n) for key, n in leaves.most_common()))


def traffic_of(program: Program, counted: Mapping[tuple[int, ...], int], others: int) -> Traffic:
    """From calls by dims, in the order of the program."""
    names = [d.name for d in program.dims]
    shapes = tuple(SeenShape(dict(zip(names, dims, strict=True)), calls) for dims, calls in counted.items())
    return Traffic(shapes, others, _leaves(program, shapes))


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
