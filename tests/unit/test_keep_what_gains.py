"""What a search found stays where the whole model is faster by it, on batches of the declared lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.tuning.dispatch_tables import Tables, default_tables, tuned_table, untuned_tables
from tilewright.compiler.tuning.ragged_demand import is_held_to_batches, seconds_to_search
from tilewright.compiler.verification import keep_what_gains
from tilewright.compiler.verification.keep_what_gains import Verdict, in_rounds, kept
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.runtime.program.artifact import Bundle
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import Leaf, Split
from tilewright.search.search_strategy.outcome import Tuned


class Machine:
    """Calls that move a clock."""

    def __init__(self, seed: int = 0) -> None:
        self.now, self.calls, self.rng = 0.0, 0, np.random.default_rng(seed)

    def call(self, seconds: float, noise: float) -> object:
        def run() -> None:
            self.calls += 1
            self.now += seconds * float(np.exp(noise * self.rng.standard_normal()))

        return run

    def verdict(self, ratio: float, noise: float = 0.01, seconds: float = 10.0) -> Verdict:
        pairs = [(self.call(n, noise), self.call(n * ratio, noise)) for n in (0.01, 0.012)]
        return in_rounds(pairs, seconds, lambda: self.now)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ratio", "gains"), [(0.9, True), (0.97, True), (1.0, False), (1.1, False)])
def test_verdicts(ratio: float, gains: bool) -> None:
    found = [Machine(seed).verdict(ratio) for seed in range(20)]
    assert [v.gains for v in found].count(gains) >= 19
    assert all(v.rounds >= 8 for v in found)


def test_little_time_says_nothing() -> None:
    machine = Machine()
    assert not machine.verdict(0.5, seconds=0.05).gains and machine.calls <= 8
    clear = Machine()
    assert clear.verdict(0.5).gains and clear.calls <= 20  # no more rounds than it takes


def test_noise_is_no_gain() -> None:
    assert sum(Machine(seed).verdict(1.0, noise=0.1).gains for seed in range(40)) <= 2


@pytest.fixture(scope="module")
def model() -> OutlinedModel:
    """Two products by rows of different widths."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 16])
    for number, width in enumerate((32, 16)):
        x = ops.relu(ops.dense(x, g.input(f"w{number}", [x.dims[-1], width])))
    g.output(x)
    dims = {"B": tw.Dim(1, 8, samples=[4]), "S": tw.Ragged(0, 40, over="B", samples=[5, 9, 0, 31])}
    weights = {f"w{n}": np.ones(shape, np.float32) for n, shape in enumerate(((16, 32), (32, 16)))}
    return outline(Compilation(g, dims, full_target("host"), tw.CompileOptions(seconds=10, threads=1), weights))


def _certificate(workload: str, worst: float) -> Certificate:
    return Certificate(workload, "host", 0.0, worst, 0.0, worst, 0.9, 0.5, 1, 1)


@pytest.fixture(scope="module")
def found(model: OutlinedModel) -> Tables:
    """Other kernels for both products."""
    builder = LocalBuilder(full_target("host"))
    tables = default_tables(model.workloads, model.compilation.limits, builder)
    for workload in model.workloads:
        usual = next(t for t in tables.untuned if t.workload == workload.key)
        config = parse_config(usual.kernels[-1].config)
        other = replace(config, mr=1 if config.mr > 1 else 2)  # type: ignore[attr-defined,type-var]
        tuned = Tuned((other,), Leaf(0), _certificate(workload.key, 0.1), usual=_certificate(workload.key, 0.2))
        assert tuned_table(workload, tuned, builder, tables)
    assert len(tables.changed) == len(model.workloads) == 2
    return tables


def _kernels(bundle: Bundle) -> list[str]:
    return [k.config for t in bundle.program.tables for k in t.kernels]


@pytest.mark.parametrize(("verdicts", "kept_ones"), [
    ([True], (True, True)), ([False, False, False], (False, False)), ([False, True, False], (True, False)),
    ([False, False, True], (False, True))])
def test_what_stays(model: OutlinedModel, found: Tables, verdicts: list[bool], kept_ones: tuple[bool, bool],
                    monkeypatch: pytest.MonkeyPatch) -> None:
    """All, none, or those that gain by themselves; what goes back has the certificate of what runs untuned."""
    given = iter(verdicts)
    monkeypatch.setattr(keep_what_gains, "in_rounds", lambda *_: Verdict(0.5 if next(given) else 1.0, 0.0, 8))
    bundle = kept(model, found, 100.0)
    assert next(given, None) is None
    back = {t.workload for t, stays in zip(found.tables, kept_ones, strict=True) if not stays}
    assert _kernels(bundle) == _kernels(assemble(model, found.with_untuned(back)))
    assert {c.workload: c.measured_worst for c in bundle.program.certificates} == {
        t.workload: 0.1 if stays else 0.2 for t, stays in zip(found.tables, kept_ones, strict=True)}
    assert set(bundle.code) >= {k.object for t in bundle.program.tables for k in t.kernels}


def test_other_results_are_no_gain(model: OutlinedModel, found: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_what_gains, "why_other", lambda *_: "y: NaN and inf are at other places")
    monkeypatch.setattr(keep_what_gains, "in_rounds", lambda *_: Verdict(0.5, 0.0, 8))
    every = {t.workload for t in found.tables}
    assert _kernels(kept(model, found, 100.0)) == _kernels(assemble(model, found.with_untuned(every)))


def test_time_is_kept_for_it(model: OutlinedModel) -> None:
    left = seconds_to_search(model)
    assert is_held_to_batches(model) and left is not None and left <= 8.0


def test_a_tuned_ragged_model() -> None:
    """The whole way, with a dim that has nothing to do with the sequences: it gives what the untuned one gives."""
    g = ops.Graph()
    g.output(ops.softmax(ops.dense(g.input("x", ["B", "S", 16]), g.input("w", [16, 24])), 1), g.input("v", ["F"]) * 2.0)
    dims = {"B": tw.Dim(1, 8, samples=[4]), "S": tw.Ragged(0, 40, over="B", samples=[5, 9, 0, 31]), "F": tw.Dim(1, 9)}
    w = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    fns = [tw.compile(g, dims, constants={"w": w}, options={"threads": 1, "seconds": s}) for s in (None, 3)]
    x = tw.Jagged(np.random.default_rng(1).standard_normal((19, 16)).astype(np.float32), lengths=[4, 0, 15])
    a, b = (fn(x, np.ones(3, np.float32))[0].values for fn in fns)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_guards_that_hold_over_the_whole_range_need_no_other_kernel() -> None:
    """Few keys of an attention stay in registers; kernels that no shape reaches are left out."""
    g = ops.Graph()
    q, k, v = (g.input(n, [1, 2, "T", 80]) for n in "qkv")
    g.output(ops.attention(q, k, v))
    model = outline(Compilation(g, {"T": tw.Dim(1, 64)}, full_target("host"), tw.CompileOptions(threads=1), {}))
    builder, [workload] = LocalBuilder(full_target("host")), model.workloads
    tables = untuned_tables(model, builder)
    [kernel] = tables.tables[0].kernels
    [dim] = [d for d in tables.reach[workload.key] if tables.reach[workload.key][d] == (1, 64)]
    config = parse_config(kernel.config)
    tuned = Tuned((config, config), Split(dim, 64, Leaf(0), Leaf(1)), _certificate(workload.key, 0.1))
    assert kernel.guards and tuned_table(workload, tuned, builder, tables)
    assert (tables.tables[0].kernels, tables.tables[0].root) == ((kernel,), Leaf(0))
    tables.reach = {}
    assert not tuned_table(workload, tuned, builder, tables)  # nothing serves shapes that break them
