"""Random loops that work element by element on what they carry: several carried tensors, rows before and after a step, sums of
them, sequences along any axis, both directions."""

from __future__ import annotations

from e2e.random_recurrence import RandomRecurrence

from tilewright import ops
from tilewright.runtime.shape import Expr


class RandomScan(RandomRecurrence):
    shapes = ((5,), ("N",), (3, 16), (4, "N"), ("N", 9), (33,), (), (2, 3, 5))
    dtypes = ("f32", "f32", "f32", "f64", "bf16", "i32", "i64")

    def build(self, steps: Expr) -> None:
        backward = self.rng.random() < 0.3
        count = self.rng.randint(1, 3)
        axes = [self.rng.randint(0, len(self.shape)) for _ in range(2)]
        sequences = [self.input(f"x{n}", (*self.shape[:a], "T", *self.shape[a:])) for n, a in enumerate(axes)]
        rows = self.input("r", ("T", *self.shape[-1:]))
        same = self.input("c", self.shape)
        states = [self.input(f"h{n}", self.shape) for n in range(count)]

        def body(i: Expr, *carried: ops.Tensor) -> tuple[ops.Tensor, ...]:
            at = steps - 1 - i if backward else i
            read = [ops.select(x, a, at) for x, a in zip(sequences, axes, strict=True)]
            read += [ops.broadcast_to(ops.select(rows, 0, at), self.shape), same]
            known = [*carried, *read]
            for _ in range(self.rng.randint(1, 4)):
                known.append(self.element(known))
            fresh = [self.damped(self.rng.choice(known), c) for c in carried]
            return (*fresh, *(self.row([*known, *fresh]) for _ in range(self.rng.randint(0, 2))))

        self.graph.output(*ops.scan(self.graph, steps, body, *states))

    def element(self, known: list[ops.Tensor]) -> ops.Tensor:
        a, b = (self.rng.choice(known) for _ in range(2))
        functions = [ops.add, ops.subtract, ops.maximum, ops.minimum]
        if self.floats and self.dtype != "bf16":  # whose reference is not rounded after each step
            functions.append(lambda a, b: ops.where(ops.compare(a, b, "lt"), a, b * 0.5))
        if self.floats:
            functions += [lambda a, b: ops.tanh(a) * b, lambda a, _: ops.sigmoid(a), lambda a, b: a * b * 0.25]
        return self.rng.choice(functions)(a, b)

    def damped(self, value: ops.Tensor, state: ops.Tensor) -> ops.Tensor:
        """So that no state grows without end."""
        if not self.floats:
            return ops.minimum(ops.maximum(value - state, ops.full_like(value, -99)), ops.full_like(value, 99))
        return ops.tanh(value) * 0.5 + state * self.rng.choice((0.0, 0.25, -0.5))

    def row(self, known: list[ops.Tensor]) -> ops.Tensor:
        value = self.element(known)
        kind = self.rng.randint(0, 3)
        if kind == 0 and value.rank:
            return ops.sum(value, self.rng.randrange(value.rank))
        if kind == 1 and value.rank and self.floats:
            return ops.max(value, -1)
        if kind == 2 and value.rank > 1:
            return ops.swap_axes(value, 0, -1)
        return value
