"""The table of operator groups: JSON Lines, one group a line, and what its texts mean.

A group is a short sequence of ATen operators that exported models hold, cut where the compiler begins another kernel. All systems
run the same sequence. Its texts:

    dims     name -> (lo, hi)
    inputs   name -> "f32[B, S, 256]"; integers and booleans with the values below which they lie: "i64[B, S] < 1000"
    weights  name -> "f32[512, 256] 0.0 0.02": mean and deviation of its values; "positive" after them for one that is never
             negative; integers as the inputs
    code     "v0 = aten.linear.default(x0, w0, w1)": operators by torch's names; integers that depend on dims are sizes
             (tilewright.runtime.shape), which stand in braces where they are no argument by themselves
    outputs  names of values
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tilewright.runtime.shape import Expr

TABLE = Path(__file__).with_name("groups.jsonl")
LAYERS = Path(__file__).with_name("layers.jsonl")  # single layers at sizes of well-known models, written by hand
VIEWS = frozenset((
    "view", "reshape", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "getitem", "contiguous",
    "flatten", "unflatten", "alias", "detach", "clone", "split", "split_with_sizes", "chunk", "unbind", "t", "expand_as",
    "view_as", "_unsafe_view", "lift_fresh_copy", "dropout",
))  # fmt: skip
_NAME = re.compile(r"\b[xwv]\d+\b")
_NUMBER = re.compile(r"(?<![\w.])(?:[1-9]\d+|[89])(?![\w.])|-?\d+(?:\.\d*)?e-?\d+|-?\d+\.\d*|\{.*?\}|\[@[^\]]*\]")
_PADS = re.compile(r"^aten\.pad\.default.*")
_VALUE = re.compile(
    r"(?P<dtype>\w+)\[(?P<dims>.*?)\](?: < (?P<below>.+)| (?P<mean>\S+) (?P<deviation>\S+)(?P<sign> positive)?)?$"
)


@dataclass(frozen=True)
class Value:
    """An input or a weight. `below`: integers are 0 up to this size; None for floats."""

    dtype: str
    dims: tuple[Expr, ...]
    below: Expr | None = None
    mean: float = 0.0
    deviation: float = 1.0
    positive: bool = False

    @staticmethod
    def parse(text: str) -> Value:
        found = _VALUE.match(text)
        if not found:
            raise ValueError(f"{text!r} is no value of a group: wanted such as 'f32[B, 64]' or 'i64[B] < 1000'")
        dims = tuple(Expr.parse(d) for d in _split(found["dims"]))
        below = Expr.parse(found["below"]) if found["below"] else None
        return Value(found["dtype"], dims, below, float(found["mean"] or 0), float(found["deviation"] or 1), bool(found["sign"]))


class Group(msgspec.Struct, frozen=True):
    """One group; the module says what its texts mean. `models`: those that hold it. `points`: the shapes to measure."""

    name: str
    dims: dict[str, tuple[int, int]]
    inputs: dict[str, str]
    weights: dict[str, str]
    code: tuple[str, ...]
    outputs: tuple[str, ...]
    models: tuple[str, ...] = ()
    points: tuple[dict[str, int], ...] = ()

    def values(self) -> Mapping[str, Value]:
        """The inputs, read."""
        return {name: Value.parse(text) for name, text in self.inputs.items()}

    def form(self) -> str:
        """What tells it from other groups but for sizes: the operators that compute with their small integers, the kernels of
        windows, types and ranks of the inputs."""
        calls = [line.partition(" = ")[2] for line in self.code if operator_of(line) not in VIEWS]
        texts = [_PADS.sub("pad", _NUMBER.sub("#", _NAME.sub("@", c))) for c in calls]
        texts += sorted({f"{v.dtype} {len(v.dims)}" for v in self.values().values()})
        texts += [str([str(d) for d in v.dims[2:]]) for v in map(Value.parse, self.weights.values()) if len(v.dims) > 2]
        return "\n".join(texts)


def operator_of(line: str) -> str:
    """linear of "v0 = aten.linear.default(x0, w0)"."""
    return line.partition(" = ")[2].partition("(")[0].removeprefix("aten.").partition(".")[0]


def read(path: Path = TABLE) -> tuple[Group, ...]:
    """The groups of a table."""
    decoder = msgspec.json.Decoder(Group)
    return tuple(decoder.decode(line) for line in path.read_bytes().splitlines())


def write(path: Path, groups: Iterator[Group]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(g) + b"\n" for g in groups))


def spread(dims: Mapping[str, tuple[int, int]], count: int = 6) -> tuple[dict[str, int], ...]:
    """Shapes over the ranges: every dim in equal ratios from its least to its largest, the orders turned against each other."""
    orders = ((0, 1, 2, 3, 4, 5), (2, 0, 4, 1, 5, 3), (1, 3, 0, 5, 2, 4), (4, 2, 5, 0, 3, 1))
    found: list[dict[str, int]] = []
    for number in range(count):
        place = {name: orders[i % len(orders)][number % 6] / 5 for i, name in enumerate(dims)}
        point = {n: round(lo * (hi / lo) ** place[n]) for n, (lo, hi) in dims.items()}
        if point not in found:
            found.append(point)
    for name, (lo, hi) in dims.items():  # a dim of few values leaves shapes of its own to be had
        for value in range(lo, hi + 1):
            if len(found) < count and all(p[name] != value for p in found):
                found.append({**found[-1], name: value})
    return tuple(found)


def _split(text: str) -> list[str]:
    """Parts between the commas that stand in no parentheses."""
    return [p.strip() for p in re.split(r",(?![^(]*\))", text) if p.strip()]
