"""What random recurrences have in common: dims, inputs of one type, and their arguments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Shape = tuple[int | str, ...]


@dataclass
class RandomRecurrence:
    """One program over the dims T (steps) and N; `graph` holds it, `arrays` makes its arguments. shapes, dtypes: what a state is
    drawn from."""

    shapes: ClassVar[tuple[Shape, ...]]
    dtypes: ClassVar[tuple[str, ...]]
    seed: int
    graph: ops.Graph = field(default_factory=ops.Graph)
    sizes: list[tuple[Shape, DType]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.shape, self.dtype = self.rng.choice(self.shapes), self.rng.choice(self.dtypes)
        self.floats = DType(self.dtype).is_float
        self.lowest = self.rng.choice((0, 1))
        self.build(self.graph.dim("T"))

    def build(self, steps: Expr) -> None:
        """Fill `graph`."""
        raise AssertionError(f"{type(self).__name__} builds nothing")

    def input(self, name: str, dims: Shape) -> ops.Tensor:
        self.sizes.append((dims, DType(self.dtype)))
        return self.graph.input(name, list(dims), self.dtype)

    @property
    def dims(self) -> dict[str, tuple[int, int]]:
        return {"T": (self.lowest, 40), **({"N": (1, 40)} if "N" in self.shape else {})}

    def arrays(self, steps: int, n: int) -> list[np.ndarray]:
        rng, found = np.random.default_rng(self.seed), []
        for dims, dtype in self.sizes:
            shape = tuple({"T": steps, "N": n}.get(str(d), d) for d in dims)
            values = rng.standard_normal(shape) if dtype.is_float else rng.integers(-9, 10, shape)
            found.append(np.asarray(values).astype(dtype.numpy))
        return found
