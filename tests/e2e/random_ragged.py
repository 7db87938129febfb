"""Random ragged models, built with tilewright.compiler.ops, and batches of random lengths for them.

A model begins with x [B, S, F] and does row work, attention, sums over a sequence, products with a matrix of each sequence,
values by the sequence alone or the position alone, scans and reshapes, in a random order; attention is causal, of a window, with
key masks, of a second length. Some have sequences that fill whole tiles of a GPU. Weights of some are constants, also those of
each sequence, whose number is then fixed; sequences of some are aligned, with NaN in the rows between them, and in some batches
one sequence is NaN.
`PYTHONPATH=.:tests python -m e2e.random_ragged CASES SEED [TARGET [BATCHES]]` runs many, 20 batches of each model where nothing
is said; on a GPU or the emulator some are of 16-bit floats.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt
from e2e.gap_rows import GapRows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.batches import parts_of, without_gaps
from tilewright.compiler.reference import evaluate_ragged
from tilewright.runtime.program.program import Argument, Program

LONGEST, TILES = 40, 150  # rows of a sequence; of one that fills tiles
TOLERANCE = {"f32": 2e-4, "f64": 1e-9, "bf16": 0.2, "f16": 0.02}


@dataclass
class RaggedModel:
    """A graph with its arguments: name -> extents of one sequence's part, the first of which is "S" or "T" where it has rows.
    count: of the sequences, where arguments by sequence are constants. bound: the arguments that are constants. longest: rows."""

    graph: ops.Graph
    dtype: str
    arguments: dict[str, tuple[str | int, ...]]
    steps: list[str] = field(default_factory=list)
    align: dict[str, int] = field(default_factory=dict)
    count: int | None = None
    bound: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    longest: int = LONGEST

    @property
    def dims(self) -> dict[str, tw.Dim]:
        used = {d for dims in self.arguments.values() for d in dims}
        ragged = {n: tw.Ragged(0, self.longest, over="B", align=self.align.get(n, 1)) for n in ("S", "T") if n in used}
        return {"B": tw.Dim(0, 64), **ragged}

    def compile(self, target: str = "host", **options: object) -> tw.CompiledFunction:
        return tw.compile(self.graph, self.dims, target=target, options=dict(options), constants=self.bound)

    def bind(self, names: Sequence[str], rng: np.random.Generator) -> None:
        """Make constants of arguments."""
        self.bound = {n: self._drawn(n, [self.count if d == "B" else int(d) for d in self.arguments[n]], rng) for n in names}

    def _drawn(self, name: str, shape: Sequence[int | None], rng: np.random.Generator) -> npt.NDArray[np.generic]:
        numpy = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[self.dtype]
        if name == "ids":
            return rng.integers(0, 11, shape).astype(np.int64)
        if name.startswith("seen"):
            return rng.random(shape) < 0.7
        return (rng.standard_normal(shape) * 0.5).astype(numpy)

    def lengths(self, rng: random.Random) -> dict[str, list[int]]:
        """Of a random batch: zeros, ones, equal ones, one long one."""
        count = self.count or rng.choice((1, 1, 2, 3, 5, 9, 17) if self.longest == LONGEST else (1, 2, 3))
        kind = rng.choice(("any", "equal", "small", "long", "zeros"))
        made = {}
        for name in self.dims:
            if name == "B":
                continue
            found = [rng.randint(0, self.longest) for _ in range(count)]
            if kind == "equal":
                found = [found[0]] * count
            elif kind == "small":
                found = [rng.randint(0, 2) for _ in range(count)]
            elif kind == "long":
                found = [rng.randint(0, 3) for _ in range(count)]
                found[rng.randrange(count)] = self.longest
            elif kind == "zeros":
                found = [0 if rng.random() < 0.5 else n for n in found]
            made[name] = found
        return made

    def inputs(self, lengths: dict[str, list[int]], rng: np.random.Generator) -> list[npt.NDArray[np.generic]]:
        """Of all arguments in order, also those that are constants."""
        count = len(next(iter(lengths.values())))
        return [self.bound[name] if name in self.bound else self._drawn(name, _packed_shape(dims, lengths, count), rng)
                for name, dims in self.arguments.items()]


class _Draw:
    def __init__(self, rng: random.Random, dtypes: Sequence[str]) -> None:
        self.rng = rng
        self.dtype = rng.choice(dtypes)
        self.model = RaggedModel(ops.Graph(), self.dtype, {}, longest=rng.choice((LONGEST, LONGEST, LONGEST, TILES)))
        self.width = rng.choice((1, 4, 8, 12, 24))
        self.model.align = {n: rng.choice((1, 1, 4, 8, 3)) for n in ("S", "T")}
        self.x = self.input("x", "B", "S", self.width)

    def input(self, name: str, *dims: str | int) -> ops.Tensor:
        if name not in self.model.arguments:
            self.model.arguments[name] = tuple(d for d in dims if d != "B") if "S" in dims or "T" in dims else dims
            self.made = getattr(self, "made", {})
            kind = "i64" if name == "ids" else "i1" if name.startswith("seen") else self.dtype
            self.made[name] = self.model.graph.input(name, list(dims), kind)
        return self.made[name]

    def weight(self, *dims: int) -> ops.Tensor:
        return self.input(f"w{len(self.model.arguments)}", *dims)

    # -- steps: each takes and gives [B, S, width]

    def dense(self) -> None:
        width = self.rng.choice((1, 4, 8, 24, 33))
        self.x = ops.multiply(ops.dense(self.x, self.weight(self.width, width)), 0.5)
        self.width = width

    def norm(self) -> None:
        self.x = ops.layernorm(self.x, self.weight(self.width), self.weight(self.width))

    def pointwise(self) -> None:
        self.x = self.rng.choice((ops.relu, ops.tanh, ops.sigmoid))(self.x)

    def softmax(self) -> None:
        self.x = ops.softmax(self.x, self.rng.choice((-1, 1)))

    def residual(self) -> None:
        self.x = ops.add(self.x, self.input(f"r{self.width}", "B", "S", self.width))

    def center(self) -> None:
        self.x = ops.subtract(self.x, ops.max(self.x, 1, keepdims=True))

    def gate(self) -> None:
        """A value by the sequence alone."""
        self.x = ops.multiply(self.x, ops.reshape(self.input(f"g{self.width}", "B", self.width), ("B", 1, self.width)))

    def expert(self) -> None:
        """A product with the matrix of the sequence."""
        width = self.rng.choice((4, 8, 24) if self.model.longest == LONGEST else (24, 128, 136))
        self.x = ops.matmul(self.x, ops.multiply(self.input(f"e{self.width}x{width}", "B", self.width, width), 0.5))
        self.width = width

    def pairs(self) -> None:
        """A product with a matrix of rows by rows, whose sequences are no rows of an array."""
        self.x = ops.matmul(ops.softmax(self.input("pairs", "B", "S", "S")), self.x)

    def position(self) -> None:
        """A value by the position alone, from a table."""
        table = self.weight(self.model.longest, self.width)
        self.x = ops.add(self.x, ops.gather(table, ops.iota(self.model.graph, (self.x.dims[1],), dtype="i64")))

    def table(self) -> None:
        """The first rows of a table that all sequences share."""
        table = self.weight(self.model.longest, self.width)
        self.x = ops.add(self.x, ops.slice(table, (0, None), (self.x.dims[1], None)))

    def entry(self) -> None:
        """Rows read by the number of the sequence, as masks of exported models do it."""
        b, s, _ = self.x.dims
        number = ops.reshape(ops.iota(self.model.graph, (b,), dtype="i64"), (b, 1))
        place = ops.reshape(ops.iota(self.model.graph, (s,), dtype="i64"), (1, s))
        self.x = ops.add(ops.index(self.x, [number, place]), 0.5)

    def scan(self) -> None:
        self.x = ops.multiply(ops.cumsum(self.x, 1), 0.125)

    def embed(self) -> None:
        self.x = ops.add(self.x, ops.gather(self.weight(11, self.width), self.input("ids", "B", "S")))

    def swapped(self) -> None:
        """The batch second, as some models have it."""
        turned = ops.tanh(ops.transpose(self.x, (1, 0, 2)))
        self.x = ops.transpose(ops.multiply(turned, 1.5), (1, 0, 2))

    def flattened(self) -> None:
        b, s, f = self.x.dims
        self.x = ops.reshape(ops.tanh(ops.reshape(self.x, (b * s, f))), (b, s, f))

    def attention(self) -> None:
        kind = self.rng.choice(("plain", "causal", "window", "keys", "cross"))
        heads = 2 if self.width % 2 == 0 else 1
        own = self.width // heads
        length = "T" if kind == "cross" else "S"
        other = self.x if length == "S" else self.input(f"memory{self.width}", "B", "T", self.width)
        parts = []
        for source in (self.x, other, other):
            made = ops.dense(source, self.weight(self.width, self.width))
            b, s, _ = made.dims
            parts.append(ops.transpose(ops.reshape(made, (b, s, heads, own)), (0, 2, 1, 3)))
        keys = self.rng.random() < 0.3 or kind == "keys"
        mask = self._seen_keys(length) if keys else self._window(parts[0]) if kind == "window" else None
        mixed = ops.attention(*parts, causal=kind == "causal", mask=mask, safe=True)
        b, _, s, _ = mixed.dims
        self.x = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (b, s, self.width))

    def _seen_keys(self, length: str) -> ops.Tensor:
        """A mask of keys, by data."""
        mask = self.input(f"seen{length}", "B", length)
        b, s = mask.dims
        return ops.reshape(mask, (b, 1, 1, s))

    def _window(self, q: ops.Tensor) -> ops.Tensor:
        """Keys of nearby positions: after the query too, or none of these."""
        graph, s, width = self.model.graph, q.dims[-2], self.rng.choice((1, 4, 17))
        rows, keys = ops.iota(graph, (s,), dtype="i64"), ops.reshape(ops.iota(graph, (s,), dtype="i64"), (1, s))
        apart = ops.subtract(ops.reshape(rows, (s, 1)), keys)
        near = ops.compare(apart, width, "lt")
        other = ops.compare(apart, self.rng.choice((0, -3)), "ge")
        return ops.where(near, other, near)

    def run(self) -> RaggedModel:
        steps: list[Callable[[], None]] = [
            self.dense, self.norm, self.pointwise, self.softmax, self.residual, self.center, self.gate, self.position, self.scan,
            self.embed, self.table, self.entry, self.swapped, self.flattened, self.attention, self.expert, self.pairs]
        for step in self.rng.choices(steps, k=self.rng.randint(1, 4)):
            step()
            self.model.steps.append(step.__name__)
        outputs = [self.x]
        if self.rng.random() < 0.3:
            outputs.append(ops.sum(self.x, 1))
        self.model.graph.output(*outputs)
        self._bind()
        return self.model

    def _bind(self) -> None:
        """Weights become constants, and what is given by sequence."""
        own = [n for n, dims in self.model.arguments.items() if not {"B", "S", "T"}.intersection(dims)]
        each = [n for n, dims in self.model.arguments.items() if "B" in dims and not {"S", "T"}.intersection(dims)]
        chosen = own if self.rng.random() < 0.4 else []
        if each and self.rng.random() < 0.5:
            self.model.count = self.rng.choice((1, 2, 5, 9))
            chosen = [*chosen, *each]
        self.model.bind(chosen, np.random.default_rng(self.rng.randrange(1 << 30)))


def draw(rng: random.Random, dtypes: Sequence[str] = ("f32", "f32", "f32", "f64")) -> RaggedModel:
    return _Draw(rng, dtypes).run()


def _packed_shape(dims: Sequence[str | int], lengths: dict[str, list[int]], count: int) -> list[int]:
    """Of an argument without rows between its sequences."""
    own = [lengths[d] for d in dims if isinstance(d, str) and d in lengths]
    if own:
        return [sum(map(prod, zip(*own, strict=True))), *(int(d) for d in dims if d not in lengths)]
    return [count if d == "B" else int(d) for d in dims]


def wrong(model: RaggedModel, fn: tw.CompiledFunction, lengths: dict[str, list[int]],
          inputs: list[npt.NDArray[np.generic]], nan: int | None = None, gaps: GapRows | None = None) -> str:
    """What differs from the model run sequence by sequence; "" where nothing does.

    nan: a sequence whose numbers are NaN and whose results are not looked at. gaps: of aligned sequences on the emulator.
    """
    program = fn.program
    if gaps is not None:
        gaps.of(lengths)
    named = {f"{name}_lengths": np.array(own, np.int64) for name, own in lengths.items()}
    called = [x for x, name in zip(inputs, model.arguments, strict=True) if name not in model.bound]
    given = [_planted(x, a, program, lengths, nan) for x, a in zip(called, program.inputs, strict=False)]
    found = fn(*given, **named)
    found = found if isinstance(found, tuple) else (found,)
    wanted = evaluate_ragged(program.source, "B", inputs, lengths)
    for number, (a, b, argument) in enumerate(zip(found, wanted, program.outputs, strict=True)):
        own = without_gaps(a, argument, program, lengths)
        with np.errstate(invalid="ignore"):
            close = np.isclose(own.reshape(-1), b, TOLERANCE[model.dtype], TOLERANCE[model.dtype], equal_nan=True)
        close = close.reshape(own.shape)
        if nan is not None:
            count = len(next(iter(lengths.values())))
            rows = [n for n, _ in parts_of(argument, program, lengths)] if argument.ragged else [1] * count
            start = sum(rows[:nan])
            close[start : start + rows[nan]] = True
        if not close.all():
            return f"{model.steps} {model.align} {lengths} {nan}: result {number} differs in {(~close).sum()} of {close.size}"
    return ""


def _planted(array: npt.NDArray[np.generic], argument: Argument, program: Program, lengths: dict[str, list[int]],
             nan: int | None) -> npt.NDArray[np.generic]:
    """An argument as the program has it: NaN, or a number far outside of tables, in the rows between sequences, and NaN in those
    of one sequence."""
    strange = np.nan if array.dtype.kind == "f" else 1 << 40
    if not argument.ragged:
        if nan is not None and argument.dims and argument.dims[0] == "B":
            array = array.copy()
            array[nan] = strange
        return array
    parts = parts_of(argument, program, lengths)
    made = np.full((sum(stored for _, stored in parts), *array.shape[1:]), strange, array.dtype)
    at = start = 0
    for number, (own, stored) in enumerate(parts):
        if number != nan or array.dtype.kind != "f":
            made[at : at + own] = array[start : start + own]
        at, start = at + stored, start + own
    return made


def main() -> None:
    cases, seed, target = int(sys.argv[1]), int(sys.argv[2]), (*sys.argv[3:4], "host")[0]
    batches = int((*sys.argv[4:], 20)[0])
    dtypes = ("f32", "f32", "f32", "f64") if target == "host" else ("f32", "f16")
    done = 0
    for number in range(cases):
        rng = random.Random(seed * 1_000_003 + number)
        model = draw(rng, dtypes)
        try:
            fn = model.compile(target)
        except tw.errors.TilewrightError as error:
            print("refused", seed, number, model.steps, error, flush=True)
            continue
        aligned = target.startswith("emulator") and fn.program.ragged[0].align > 1
        gaps = GapRows(model.graph, model.dims, fn, model.bound) if aligned else None
        for trial in range(batches):
            lengths = model.lengths(rng)
            count = len(next(iter(lengths.values())))
            nan = rng.randrange(count) if count > 1 and rng.random() < 0.25 else None
            found = wrong(model, fn, lengths, model.inputs(lengths, np.random.default_rng(trial)), nan, gaps)
            done += 1
            if found:
                print("WRONG", seed, number, found, flush=True)
                break
        print(done, "batches of", number + 1, "models", flush=True)


if __name__ == "__main__":
    main()
