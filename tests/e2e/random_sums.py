"""Random recurrences whose states are read where they are: sums over their axes at each step, with gates before and behind."""

from __future__ import annotations

from e2e.random_recurrence import RandomRecurrence

from tilewright import ops
from tilewright.runtime.shape import Expr

_EXACT = ("f32", "f64")  # whose rounding does not grow to what tests see over 40 steps of a state that hardly decays


class RandomSums(RandomRecurrence):
    shapes = ((5, 3), ("N", 4), (9, 16), (3, "N", 6), ("N", 2, 3), (7, 33), (2, 3, 5), (11, 1))
    dtypes = ("f32", "f32", "f32", "f64", "bf16", "i32")

    def build(self, steps: Expr) -> None:
        backward, count = self.rng.random() < 0.3, self.rng.randint(1, 2)
        axes = [a for a, d in enumerate(self.shape) if d != "N"]
        self.summed = sorted(self.rng.sample(axes, self.rng.choice((1, 1, 2)) if len(axes) > 2 else 1))
        rest = tuple(d for a, d in enumerate(self.shape) if a not in self.summed)
        whole = self.input("x", ("T", *self.shape))
        weight = self.input("c", ("T", *(self.shape[a] for a in self.summed)))
        gate, kept = self.input("z", ("T", *rest)), self.input("a", self.shape)
        states = [self.input(f"h{n}", self.shape) for n in range(count)]

        def body(i: Expr, *carried: ops.Tensor) -> tuple[ops.Tensor, ...]:
            at = steps - 1 - i if backward else i
            x, z = ops.select(whole, 0, at), ops.select(gate, 0, at)
            c = ops.broadcast_to(self.spread(ops.select(weight, 0, at)), self.shape)
            known = [*carried, x, kept]
            fresh = tuple(self.decayed(h, self.rng.choice((x, kept)), kept, c) if self.dtype in _EXACT and self.rng.random() < 0.4
                          else self.damped(h, self.rng.choice(known)) for h in carried)
            read = self.rng.choice((carried, fresh))
            y = self.row(self.rng.choice(read), c, z)
            return (*fresh, y, *([self.row(self.rng.choice(fresh), x, y)] if self.rng.random() < 0.3 else []))

        results = ops.scan(self.graph, steps, body, *states, backwards=backward)
        self.graph.output(*results[0 if self.rng.random() < 0.4 else count:])

    def spread(self, row: ops.Tensor) -> ops.Tensor:
        """A value for each summed place, with an axis of extent 1 for each other one."""
        return ops.reshape(row, [d if a in self.summed else 1 for a, d in enumerate(self.shape)])

    def damped(self, state: ops.Tensor, by: ops.Tensor) -> ops.Tensor:
        """So that no state grows without end."""
        if not self.floats:
            return ops.minimum(ops.maximum(state - by, ops.full_like(state, -99)), ops.full_like(state, 99))
        return ops.tanh(by) * 0.5 + state * self.rng.choice((0.5, 0.25, -0.5))

    def decayed(self, state: ops.Tensor, step: ops.Tensor, rate: ops.Tensor, new: ops.Tensor) -> ops.Tensor:
        """As in a selective scan: e^(d a) of a step d > 0 and a rate a < 0, in one of several forms."""
        d = self.rng.choice((lambda: ops.log(ops.exp(step) + 1), lambda: ops.exp(step), lambda: step * step))()
        a = -ops.exp(rate) if self.rng.random() < 0.7 else -ops.absolute(rate)
        return ops.exp(d * a if self.rng.random() < 0.7 else a * d) * state + ops.tanh(d * new)

    def row(self, state: ops.Tensor, weight: ops.Tensor, gate: ops.Tensor) -> ops.Tensor:
        """What is read off a state."""
        kind = self.rng.randint(0, 3)
        if kind == 0 or not self.floats:
            return ops.sum(state * weight, self.summed) + gate
        if kind == 1:
            return ops.sum(state * weight, self.summed) * ops.sigmoid(gate) + gate
        if kind == 2:
            return ops.max(state + weight, self.summed) - gate
        most = ops.max(state, self.summed, keepdims=True)  # a softmax over the summed places
        away = ops.exp(state - most)
        return ops.sum(away * weight, self.summed) / ops.sum(away, self.summed) + gate
