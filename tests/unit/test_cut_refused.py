"""Operators that a code generator refuses: the partition is cut there, and nothing fails that could be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.tuning.cut_refused import ROUNDS
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target
from tilewright.search.protocols import BuildResult

COLUMNS = 24


@dataclass
class Refusing:
    """A builder of this machine's kernels that does not build some. refuses: by workload and family. asked: how often it was."""

    refuses: Callable[[Workload, str], bool]
    asked: int = 0
    local: LocalBuilder = field(default_factory=lambda: LocalBuilder(Target.parse("host")))

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]]) -> list[BuildResult]:
        self.asked += 1
        refused = [self.refuses(w, c.family) for w, c in candidates]
        built = iter(self.local.build([c for c, no in zip(candidates, refused, strict=True) if not no]))
        return [BuildResult(None, error="planted") if no else next(built) for no in refused]


def softmax() -> ops.Graph:
    """Rows: maximum, exponentials, sum, quotient, then a tanh of them."""
    g = ops.Graph()
    x = g.input("x", ["T", COLUMNS])
    raised = ops.exp(x - ops.max(x, [1], keepdims=True))
    g.output(ops.tanh(raised / ops.sum(raised, [1], keepdims=True)), name="y")
    return g


def compiled(refuses: Callable[[Workload, str], bool]) -> tuple[CompiledFunction, Refusing]:
    builder = Refusing(refuses)
    return tw.compile(softmax(), {"T": (1, 64)}, options={"builder": builder}), builder


def check(fn: CompiledFunction) -> None:
    x = np.random.default_rng(0).standard_normal((7, COLUMNS)).astype(np.float32)
    raised = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(fn(x), np.tanh(raised / raised.sum(1, keepdims=True)), rtol=1e-5, atol=1e-6)


def families(fn: CompiledFunction) -> list[str]:
    return [k.family for table in fn.program.tables for k in table.kernels]


def test_nothing_is_cut_where_nothing_is_refused() -> None:
    fn, builder = compiled(lambda w, family: False)
    check(fn)
    assert builder.asked == 1 and len(fn.program.calls) == 1 and not fn.program.refused


def test_what_the_preferred_family_refuses_is_cut() -> None:
    fn, _ = compiled(lambda w, family: family == "host_rows" and "math.tanh" in w.ir and "math.exp" in w.ir)
    check(fn)
    assert len(fn.program.calls) == 2 and "host_rows" in families(fn)
    [(_, reason)] = fn.program.refused.items()
    assert reason.startswith("host_rows: planted") and reason.endswith("cut")


def test_what_no_family_builds_is_cut() -> None:
    fn, _ = compiled(lambda w, family: "math.tanh" in w.ir and "math.exp" in w.ir)
    check(fn)
    assert len(fn.program.calls) == 2


def test_a_cut_that_gains_nothing_is_not_taken() -> None:
    """Another family serves the whole where its parts are refused as well."""
    fn, builder = compiled(lambda w, family: family == "host_rows")
    check(fn)
    assert set(families(fn)) == {"generic"} and len(fn.program.calls) == 1
    assert 1 < builder.asked <= 2 * (ROUNDS + 1)


def test_what_cannot_be_built_in_any_parts_is_said() -> None:
    with pytest.raises(BuildError, match="no kernel family can build"):
        compiled(lambda w, family: "math.exp" in w.ir)
