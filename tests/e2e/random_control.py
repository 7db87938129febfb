"""Random structured programs: branches and loops in each other, on shapes and on data, as MLIR text.

Rounding decides no branch: what conditions read are eighths in [-8, 8), which every step brings back into that range, so that f32
and f64 agree in every bit. Other tensors are rounded at each step; conditions see nothing of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TENSOR = "tensor<?x3xf32>"
_MAP = "affine_map<(d0, d1) -> (d0, d1)>"


@dataclass
class Structured:
    """Writes one program over x[N, 3], s (rank 0) and the dim T; `text` is the module."""

    seed: int
    depth: int = 3
    lines: list[str] = field(default_factory=list)
    count: int = 0
    rounded: set[str] = field(default_factory=set)  # tensors that are; scalars never are

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def text(self) -> str:
        results = self.block(["%x"], ["%s"], ["%t"], self.depth, 3)
        tensors, scalars = results
        body = "\n".join(self.lines)
        return f"""func.func @main(%x: {TENSOR} {{tw.dims = ["N", 3]}}, %s0: tensor<f32>, %t: index {{tw.dims = ["T"]}})
    -> ({TENSOR}, tensor<f32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c5 = arith.constant 5 : index
  %half = arith.constant 0.5 : f32
  %share = arith.constant 0.3 : f32
  %range = arith.constant 16.0 : f32
  %part = arith.constant 0.0625 : f32
  %n = tensor.dim %x, %c0 : {TENSOR}
  %s = tensor.extract %s0[] : tensor<f32>
  %room = tensor.empty(%n) : {TENSOR}
  %word = tensor.empty() : tensor<f32>
{body}
  %out = linalg.fill ins({scalars[-1]} : f32) outs(%word : tensor<f32>) -> tensor<f32>
  return {tensors[-1]}, %out : {TENSOR}, tensor<f32>
}}
"""

    def arguments(self, n: int, t: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
        """x, s and T: eighths in [-8, 8)."""
        return self.eighths(rng, n, 3), self.eighths(rng), t

    @staticmethod
    def eighths(rng: np.random.Generator, *extents: int) -> NDArray[np.float32]:
        return np.asarray(np.clip(np.round(rng.standard_normal(extents) * 8) / 8, -8, 7.875), np.float32)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def add(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def block(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int, steps: int
              ) -> tuple[list[str], list[str]]:
        """A few statements; the values that are known behind them."""
        tensors, scalars = list(tensors), list(scalars)
        for _ in range(self.rng.randint(1, steps)):
            kinds = ["map", "map", "scalar"] + (["for", "if", "while", "switch"] if depth else [])
            kind = self.rng.choice(kinds)
            if kind == "map":
                tensors.append(self.map(tensors, scalars, counts))
            elif kind == "scalar":
                scalars.append(self.scalar(tensors, scalars, counts))
            else:
                made = getattr(self, f"{kind}_")(tensors, scalars, counts, depth - 1)
                tensors.append(made[0])
                scalars.append(made[1])
        return tensors, scalars

    def exact(self, tensors: list[str]) -> list[str]:
        return [t for t in tensors if t not in self.rounded]

    def carried(self, tensors: list[str]) -> tuple[bool, str]:
        """Whether a loop or a branch gives a tensor that may be rounded, and one to begin with."""
        free = self.rng.random() < 0.5
        return free, self.rng.choice(tensors if free else self.exact(tensors))

    def map(self, tensors: list[str], scalars: list[str], counts: list[str]) -> str:
        a, b, s = self.rng.choice(tensors), self.rng.choice(tensors), self.rng.choice(scalars)
        op = self.rng.choice(["arith.addf", "arith.subf", "arith.maximumf"])
        rounds = bool({a, b} & self.rounded) or self.rng.random() < 0.3
        if rounds:
            end = f"    %l = arith.mulf %k, %share : f32\n    %m = arith.addf %l, {s} : f32\n    linalg.yield %m : f32\n"
        else:
            end = f"    %m = arith.addf %k, {s} : f32\n" + _back("%m", "    ", "%m") + "    linalg.yield %my : f32\n"
        made = self.add(
            f"linalg.generic {{indexing_maps = [{_MAP}, {_MAP}, {_MAP}], iterator_types = [\"parallel\", \"parallel\"]}} "
            f"ins({a}, {b} : {TENSOR}, {TENSOR}) outs(%room : {TENSOR}) {{\n  ^bb0(%p: f32, %q: f32, %o: f32):\n"
            f"    %k = {op} %p, %q : f32\n{end}  }} -> {TENSOR}")
        if rounds:
            self.rounded.add(made)
        return made

    def scalar(self, tensors: list[str], scalars: list[str], counts: list[str]) -> str:
        kind = self.rng.randrange(3)
        if kind == 0:
            return self.back(self.add(f"arith.addf {self.rng.choice(scalars)}, {self.rng.choice(scalars)} : f32"))
        if kind == 1:
            word = self.add(f"arith.index_cast {self.rng.choice(counts)} : index to i64")
            value = self.add(f"arith.sitofp {word} : i64 to f32")
            return self.back(self.add(f"arith.subf {value}, {self.rng.choice(scalars)} : f32"))
        zero = self.add("arith.constant -8.0 : f32")
        start = self.add(f"linalg.fill ins({zero} : f32) outs(%word : tensor<f32>) -> tensor<f32>")
        folded = self.add(
            f"linalg.generic {{indexing_maps = [{_MAP}, affine_map<(d0, d1) -> ()>], iterator_types = [\"reduction\", "
            f"\"reduction\"]}} ins({self.rng.choice(self.exact(tensors))} : {TENSOR}) outs({start} : tensor<f32>) {{\n"
            "  ^bb0(%p: f32, %o: f32):\n    %k = arith.maximumf %p, %o : f32\n    linalg.yield %k : f32\n  } -> tensor<f32>")
        return self.add(f"tensor.extract {folded}[] : tensor<f32>")

    def back(self, value: str) -> str:
        """The scalar in [-8, 8) that differs from it by a multiple of 16."""
        self.lines.append(_back(value, "  ", name := self.name()).rstrip())
        return f"{name}y"

    def condition(self, scalars: list[str], counts: list[str]) -> str:
        if self.rng.random() < 0.5:
            return self.add(f"arith.cmpi {self.rng.choice(['slt', 'sge', 'eq', 'ne'])}, {self.rng.choice(counts)}, "
                            f"{self.rng.choice(['%c1', '%c2', '%n'])} : index")
        return self.add(f"arith.cmpf olt, {self.rng.choice(scalars)}, {self.rng.choice([*scalars, '%half'])} : f32")

    def inner(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int, free: bool) -> list[str]:
        """A nested block's lines; the last of them yields. free: a tensor that may be rounded."""
        outside, self.lines = self.lines, []
        a, b = self.block(tensors, scalars, counts, depth, 2)
        self.lines.append(f"  scf.yield {self.rng.choice(a if free else self.exact(a))}, {b[-1]} : {TENSOR}, f32")
        made, self.lines = self.lines, outside
        return made

    def pair(self, name: str, free: bool, first: int = 0) -> tuple[str, str]:
        if free:
            self.rounded.add(f"{name}#{first}")
        return f"{name}#{first}", f"{name}#{first + 1}"

    def if_(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int) -> tuple[str, str]:
        test, name, (free, _) = self.condition(scalars, counts), self.name(), self.carried(tensors)
        sides = ["\n".join(self.inner(tensors, scalars, counts, depth, free)) for _ in range(2)]
        self.lines.append(f"  {name}:2 = scf.if {test} -> ({TENSOR}, f32) {{\n{sides[0]}\n  }} else {{\n{sides[1]}\n  }}")
        return self.pair(name, free)

    def switch_(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int) -> tuple[str, str]:
        name, at, (free, _) = self.name(), self.rng.choice(counts), self.carried(tensors)
        sides = ["\n".join(self.inner(tensors, scalars, counts, depth, free)) for _ in range(3)]
        self.lines.append(f"  {name}:2 = scf.index_switch {at} -> {TENSOR}, f32\n  case 1 {{\n{sides[0]}\n  }}\n  case 3 {{\n"
                          f"{sides[1]}\n  }}\n  default {{\n{sides[2]}\n  }}")
        return self.pair(name, free)

    def for_(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int) -> tuple[str, str]:
        name, i, a, s = self.name(), self.name(), self.name(), self.name()
        end, step = self.rng.choice(["%t", "%n", "%c2", *counts]), self.rng.choice(["%c1", "%c1", "%c2"])
        (free, first_tensor), first_scalar = self.carried(tensors), self.rng.choice(scalars)
        self.rounded |= {a} if free else set()
        body = "\n".join(self.inner([*tensors, a], [*scalars, s], [*counts, i], depth, free))
        self.lines.append(f"  {name}:2 = scf.for {i} = %c0 to {end} step {step} iter_args({a} = {first_tensor}, {s} = "
                          f"{first_scalar}) -> ({TENSOR}, f32) {{\n{body}\n  }}")
        return self.pair(name, free)

    def while_(self, tensors: list[str], scalars: list[str], counts: list[str], depth: int) -> tuple[str, str]:
        """Ends by its counter, or earlier where data says so."""
        name, i, a, s, j, b, r = (self.name() for _ in range(7))
        (free, first_tensor), first_scalar = self.carried(tensors), self.rng.choice(scalars)
        self.rounded |= {b} if free else set()
        outside, self.lines = self.lines, []
        more = self.add(f"arith.cmpi slt, {i}, %c5 : index")
        if self.rng.random() < 0.6:
            small = self.add(f"arith.cmpf olt, {s}, {self.rng.choice(scalars)} : f32")
            more = self.add(f"arith.andi {more}, {small} : i1")
        test, self.lines = "\n".join(self.lines), outside
        body = self.inner([*tensors, b], [*scalars, r], [*counts, j], depth, free)
        add = self.name()
        body[-1] = f"  {add} = arith.addi {j}, %c1 : index\n" + body[-1].replace("scf.yield ", f"scf.yield {add}, ").replace(
            " : ", " : index, ")
        lines = "\n".join(body)
        self.lines.append(
            f"  {name}:3 = scf.while ({i} = %c0, {a} = {first_tensor}, {s} = {first_scalar}) : (index, {TENSOR}, f32) -> (index, "
            f"{TENSOR}, f32) {{\n{test}\n  scf.condition({more}) {i}, {a}, {s} : index, {TENSOR}, f32\n  }} do {{\n"
            f"  ^bb0({j}: index, {b}: {TENSOR}, {r}: f32):\n{lines}\n  }}")
        if self.rng.random() < 0.4:
            word = self.add(f"arith.index_cast {name}#0 : index to i64")
            value = self.add(f"arith.sitofp {word} : i64 to f32")
            return self.pair(name, free, 1)[0], self.back(self.add(f"arith.addf {value}, {name}#2 : f32"))
        return self.pair(name, free, 1)


def _back(value: str, indent: str, name: str) -> str:
    """`name`y: the value in [-8, 8) that differs from `value` by a multiple of 16; exact for eighths."""
    return "".join(f"{indent}{line} : f32\n" for line in (
        f"{name}u = arith.mulf {value}, %part", f"{name}v = arith.addf {name}u, %half", f"{name}w = math.floor {name}v",
        f"{name}x = arith.mulf {name}w, %range", f"{name}y = arith.subf {value}, {name}x"))
