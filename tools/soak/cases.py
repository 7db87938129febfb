"""Random models, arguments in many layouts, and calls that must be refused: all of them follow from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.tensor import DType
from tools.checkout import of_tests
from tools.soak.messages import Drawn

Array = np.ndarray[Any, Any]
DELICATE = 10**6  # no random model gets so far
_UNSIGNED = 0.08  # share of the models whose first input is u8


def judge() -> Any:
    """The module of the tests that fills arguments and compares results with the reference."""
    return of_tests("e2e.random_check")


@dataclass(frozen=True)
class Model:
    """A random model of a seed, by its number; DELICATE is a fixed one whose bits tell the floating-point mode that it ran in."""

    seed: int
    number: int

    @cached_property
    def program(self) -> Any:
        """Text, ranges, inputs and which of them are bound."""
        programs, order = of_tests("e2e.random_programs"), of_tests("e2e.random_order")
        if self.number == DELICATE:
            return programs.delicate()
        rng = random.Random(f"{self.seed}/{self.number}")
        if rng.random() < _UNSIGNED:
            return programs.draw(rng, order.UNSIGNED, dtypes=("ui8",))
        return programs.draw(rng, order.ALL)

    @property
    def file_name(self) -> str:
        return f"model-{self.number}.tw"

    @staticmethod
    def of_file(seed: int, name: str) -> Model:
        """The model that `file_name` names."""
        return Model(seed, int(name.partition(".")[0].split("-")[1]))

    def compile(self, **options: Any) -> CompiledFunction:
        p = self.program
        bound = judge().constants(p, self.number)
        return tw.compile(p.text, dict(p.ranges), options=options or None, constants=bound)

    def case(self, rng: random.Random) -> Case:
        """A shape of the ranges, their ends more often than others, and a layout."""
        dims = rng.choice(self.program.shapes(rng, 6))
        return Case(self, dims, rng.randrange(2**31))


@dataclass(frozen=True)
class Case:
    """One call of a model: its shape, and a number that its layout follows from."""

    model: Model
    dims: Mapping[str, int]
    salt: int

    @property
    def drawn(self) -> Drawn:
        return Drawn(self.model.number, dict(self.dims), self.salt)

    @staticmethod
    def of(seed: int, drawn: Drawn) -> Case:
        """The case that was drawn in a run of this seed."""
        return Case(Model(seed, drawn.number), drawn.dims, drawn.salt)

    @cached_property
    def given(self) -> list[Array]:
        """An array for every argument, bound ones too, as the reference takes them."""
        given: list[Array] = judge().arguments(self.model.program, self.dims, self.model.number)
        return given

    def arguments(self) -> list[Any]:
        """What the call takes, each array in a layout of its own."""
        rng = random.Random(self.salt)
        called = judge().free(self.model.program, self.given)
        return [laid_out(a, rng) if isinstance(a, np.ndarray) else a for a in called]

    def reason_wrong(self, results: Sequence[Array]) -> str | None:
        """What the reference says against these results."""
        reason: str | None = judge().reason_wrong(self.model.program, self.given, results)
        return reason


def as_tuple(results: Any) -> tuple[Array, ...]:
    return results if isinstance(results, tuple) else (results,)


def bits(results: Sequence[Array]) -> bytes:
    return b"".join(r.tobytes() for r in results)


def laid_out(array: Array, rng: random.Random) -> Array:
    """The same elements elsewhere: as they are, every second of a larger array, inside of one, backwards, by columns."""
    if not array.ndim or rng.random() < 0.4:
        return array
    way = rng.choice(("strided", "inside", "backwards", "columns"))
    if way == "columns":
        return np.asfortranarray(array)
    axis = rng.randrange(array.ndim)
    if way == "backwards":
        return np.flip(np.flip(array, axis).copy(), axis)
    step = 2 if way == "strided" else 1
    shape = [*array.shape]
    shape[axis] = step * shape[axis] + 3
    room = np.zeros(shape, array.dtype)
    place = (slice(None),) * axis + (slice(1, 1 + step * array.shape[axis], step),)
    room[place] = array
    return room[place]


@dataclass(frozen=True)
class BadCall:
    """A call that must end in an error of Tilewright."""

    what: str
    args: Sequence[Any]
    named: Mapping[str, Any]


def bad_calls(case: Case) -> Iterator[BadCall]:
    """Calls of a model that must be refused: shapes out of range, element types, ranks, counts, options, `out`."""
    args = case.arguments()
    yield from _out_of_range(case)
    yield BadCall("one argument too many", [*args, np.zeros(3, np.float32)], {})
    yield BadCall("a keyword that is no argument", args, {"nothing_like_it": 1})
    if args:
        yield BadCall("an argument too few", args[:-1], {})
    for threads in (0, -1, "2", 1.5, True):
        yield BadCall(f"threads={threads!r}", args, {"threads": threads})
    yield BadCall("out is a number", args, {"out": 3})
    yield BadCall("out of another shape", args, {"out": np.zeros((3, 1, 2, 1, 3, 1), np.float32)})
    for i, a in enumerate(args):
        if isinstance(a, np.ndarray):
            for name, other in (("a rank too much", a[None]), ("None", None), ("text", "x"), ("complex numbers", a.astype("c8")),
                                ("objects", a.astype(object)), ("another element type", a.astype(_other(a.dtype)))):
                yield BadCall(f"argument {i}: {name}", [*args[:i], other, *args[i + 1:]], {})


def _other(dtype: Any) -> str:
    return "i2" if DType.of(dtype) is not DType.I16 else "i4"


def _out_of_range(case: Case) -> Iterator[BadCall]:
    check, program = judge(), case.model.program
    for name, dim in program.ranges.items():
        for value in (dim.lo - dim.multiple_of, dim.hi + dim.multiple_of):
            dims = {**case.dims, name: value}
            extents = [e.evaluate(dims) for how in program.inputs for e in how.dims]
            if min(extents, default=0) < 0:
                continue
            given = check.free(program, check.arguments(program, dims, case.model.number))
            yield BadCall(f"{name} = {value}, outside {dim}", given, {})
