"""Equal work on many tensors is one launch of a GPU, whatever their sizes: results, launches and races on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.gpu.gpu_caller import GpuCaller
from tilewright.runtime.program.kernel import PARAMETER_BYTES, MicroKernel
from tilewright.runtime.target import Target
from tools.bench.partition import optimizers
from tools.bench.partition.optimizers import DECAY, FIRST, RATE, SECOND

Size = tuple[int, ...]
MIXED: tuple[Size, ...] = ((7,), (1,), (0,), (33,), (129, 5), (3, 1), (64, 64), (1, 257), (0, 9), (2, 3, 5), (1000,), (12,))
TALL: tuple[Size, ...] = ((300, 48), (7,), (1, 48), (33, 48), (129, 80), (48,), (1,), (2, 17), (5,), (9,), (300,))


def moments(sizes: Sequence[Size]) -> ops.Graph:
    """A parameter and a moment of it for each size, moved along its gradient by a step that all share."""
    g = ops.Graph()
    rate = g.input("rate", [])
    for n, size in enumerate(sizes):
        value, gradient, moment = (g.input(f"{name}{n}", list(size)) for name in ("value", "gradient", "moment"))
        new = 0.9 * moment + 0.1 * gradient
        g.output(value - rate * new / (ops.sqrt(ops.absolute(new)) + 0.5), name=f"next{n}")
        g.output(new, name=f"kept{n}")
    return g


def clipped(sizes: Sequence[Size]) -> ops.Graph:
    """Gradients over their global norm."""
    g = ops.Graph()
    given = [g.input(f"gradient{n}", list(size)) for n, size in enumerate(sizes)]
    total = ops.sum(given[0] * given[0])
    for gradient in given[1:]:
        total = total + ops.sum(gradient * gradient)
    for n, gradient in enumerate(given):
        g.output(gradient / (ops.sqrt(total) + 1.0), name=f"clipped{n}")
    return g


def trusted(sizes: Sequence[Size]) -> ops.Graph:
    """Each tensor moved by another one, scaled by both their norms."""
    g = ops.Graph()
    for n, size in enumerate(sizes):
        value, update = g.input(f"value{n}", list(size)), g.input(f"update{n}", list(size))
        moved = update + 0.1 * value
        trust = ops.sqrt(ops.sum(value * value)) / (ops.sqrt(ops.sum(moved * moved)) + 1.0)
        g.output(value - trust * moved, name=f"next{n}")
    return g


def lamb(sizes: Sequence[Size]) -> ops.Graph:
    """As `python -m tools.bench optimizers` has it: new values and moments, each update scaled by two norms of whole tensors."""
    g = ops.Graph()
    first_by, second_by = g.input("first_by", []), g.input("second_by", [])
    for n, size in enumerate(sizes):
        value, gradient, first, second = (g.input(f"{name}{n}", list(size)) for name in ("value", "gradient", "first", "second"))
        first = FIRST * first + (1 - FIRST) * gradient
        second = SECOND * second + (1 - SECOND) * gradient * gradient
        update = first * first_by / (ops.sqrt(second * second_by) + 1e-6) + DECAY * value
        trust = ops.sqrt(ops.sum(value * value)) / (ops.sqrt(ops.sum(update * update)) + 1e-12)
        for name, made in (("value", value - RATE * trust * update), ("first", first), ("second", second)):
            g.output(made, name=f"new_{name}{n}")
    return g


MODELS = {"moments": moments, "clipped": clipped, "trusted": trusted, "lamb": lamb}


@cache
def compiled(name: str, sizes: tuple[Size, ...], target: str = "emulator:sm_90a") -> tw.CompiledFunction:
    return tw.compile(MODELS[name](sizes), target=target)


def arguments(fn: tw.CompiledFunction, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal([d.constant for d in a.spec().dims]), np.float32) for a in fn.inputs]


def serving_many(fn: tw.CompiledFunction) -> list[MicroKernel]:
    return [k for t in fn.program.tables for k in t.kernels if k.params[-1].kind == "entries"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["emulator:sm_90a", "emulator:sm_80"])
@pytest.mark.parametrize("name,sizes,launches", [("moments", MIXED, 3), ("clipped", TALL, 7), ("trusted", TALL, 7)])
def test_a_step_over_many_tensors(name: str, sizes: tuple[Size, ...], launches: int, target: str) -> None:
    """Warps and asynchronous copies in any order; every access is checked. What there is of single values is launched alone."""
    fn = compiled(name, sizes, target)
    host = tw.compile(MODELS[name](sizes), target="host")
    assert serving_many(fn)
    assert fn.explain().launches <= launches
    given = arguments(fn)
    wanted = host(*given)
    for seed in (None, 1):
        device = EmulatorDevice(target.partition(":")[2], seed=seed)
        got = GpuCaller(fn.program, fn._bundle.code, fn._bundle.constants, device)(*given)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, 2e-5, 1e-5)


@pytest.mark.parametrize("target", ["emulator:sm_90a", "emulator:sm_80"])
def test_a_step_of_lamb_over_parameters_of_bert(target: str) -> None:
    """All in place: whole tensors are summed by all blocks, then joined in a fixed order. No family refuses any of it."""
    own = tuple(optimizers.sizes(64, layers=1))
    given = [np.random.default_rng(n).random(size, np.float32) for n, size in enumerate(s for s in own for _ in range(4))]
    given = [np.asarray(1.2, np.float32), np.asarray(1.1, np.float32), *given]
    fn = tw.compile(lamb(own), target=target, donate=[f"{n}{i}" for i in range(len(own)) for n in ("value", "first", "second")])
    assert (fn.explain().launches, len(serving_many(fn)), fn.program.refused) == (4, 4, {})
    results = []
    for seed in (None, 1):
        device = EmulatorDevice(target.partition(":")[2], seed=seed)
        results.append(GpuCaller(fn.program, fn._bundle.code, fn._bundle.constants, device)(*(x.copy() for x in given)))
    for a, b, wanted in zip(*results, tw.compile(lamb(own))(*given), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, wanted, 2e-5, 1e-6)


@pytest.mark.parametrize("share", [1, 64])
def test_all_parameters_of_bert_are_four_launches(share: int) -> None:
    every = optimizers.sizes(share)
    names = [f"{n}{i}" for i in range(len(every)) for n in ("value", "first", "second")]
    plan = outline(Compilation(lamb(every), {}, full_target("cuda:sm_90a"), donate=names)).plan
    assert [len(every), len(plan.launches())] == [199, len(plan.steps)] == [199, 4]


@pytest.mark.parametrize("target", ["emulator:sm_90a", "emulator:sm_80"])
def test_elementwise_results_lie_where_donated_tensors_did(target: str) -> None:
    """Nothing is copied and nothing kept beside them; bits are those of a step that has memory of its own for its results."""
    plain = compiled("moments", MIXED, target)
    names = [name for n in range(len(MIXED)) for name in (f"value{n}", f"moment{n}")]
    fn = tw.compile(moments(MIXED), target=target, donate=names)
    assert (fn.memory().arena, fn.explain().launches) == (plain.memory().arena, plain.explain().launches)
    given = arguments(fn)
    wanted = plain(*given)
    for seed in (None, 1, 2):
        device = EmulatorDevice(target.partition(":")[2], seed=seed)
        taken = [x.copy() for x in given]
        got = GpuCaller(fn.program, fn._bundle.code, fn._bundle.constants, device)(*taken)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_sums_of_few_elements_have_no_parts() -> None:
    """Equal reductions of whole tensors have parts only where one of them does."""
    sizes = ((3, 8), (8,), (8,), (5, 8), (2, 4))
    fn, host = compiled("clipped", sizes), tw.compile(clipped(sizes), target="host")
    given = arguments(fn)
    for a, b in zip(fn(*given), host(*given), strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 1e-5)


def test_one_kernel_for_all_is_none_of_the_last_resort() -> None:
    """The tensor with most elements wants a kernel that does not hold the longest rows, another one does."""
    fn = compiled("clipped", ((300, 520), (4, 1032), (1, 1032), (2, 520), (8, 520)))
    [parts] = (k for k in serving_many(fn) if "part_add" in k.symbol)
    assert "vectors-in-registers=4" in parts.config and "index=64" not in parts.config
    assert "vec=1" not in parts.config.split("{")[1].split()


def test_equal_bits_whatever_else_is_in_the_launch() -> None:
    """The elements of a tensor do not depend on the tensors beside it."""
    sizes = ((64, 64), (3, 5), (257,), (33,), (8, 2))
    more = (*sizes, (1,), (1000,), (0,), (5, 5, 5))
    few, many = compiled("moments", sizes), compiled("moments", more)
    given = arguments(many)
    rate, rest = given[0], given[1:]
    all_of, some = many(*given), few(rate, *rest[: 3 * len(sizes)])
    for a, b in zip(some, all_of[: len(some)], strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_tensors_than_parameters_have_room_for_are_some_launches() -> None:
    sizes = tuple((5 + n % 3,) for n in range(450))
    fn = compiled("moments", sizes)
    made = serving_many(fn)
    assert 2 <= len(made) <= fn.explain().launches <= 3
    assert all(8 * len(k.params) + k.params[-1].bytes <= PARAMETER_BYTES for k in made)
    given = arguments(fn)
    new = [np.float32(0.9) * m + np.float32(0.1) * g for g, m in zip(given[2::3], given[3::3], strict=True)]
    for got, wanted in zip(fn(*given)[1::2], new, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)


def test_few_tensors_and_those_of_dynamic_extents_are_launches_of_their_own() -> None:
    assert not serving_many(compiled("moments", ((7,), (5, 3), (12,))))
    g = ops.Graph()
    for n in range(5):
        g.output(ops.exp(g.input(f"x{n}", ["N", 3 + n])), name=f"y{n}")
    fn = tw.compile(g, {"N": (1, 9)}, target="emulator:sm_90a")
    assert not serving_many(fn)
    given = [np.full((4, 3 + n), n, np.float32) for n in range(5)]
    for got, x in zip(fn(*given), given, strict=True):
        np.testing.assert_allclose(got, np.exp(x), 1e-6)


def test_where_no_kernel_serves_several_tensors_each_is_a_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> None:
        raise ValueError("refused")

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(GpuKernel, "_word_of_member", refused)
    fn = tw.compile(moments(MIXED[:5]), target="emulator:sm_90a",
                    options=tw.CompileOptions(builder=LocalBuilder(Target.parse("emulator:sm_90a"))))
    assert not serving_many(fn) and fn.explain().launches >= 4
    given = arguments(fn)
    np.testing.assert_allclose(fn(*given)[1], np.float32(0.9) * given[3] + np.float32(0.1) * given[2], 1e-5, 1e-6)


def test_wrong_arguments_are_named() -> None:
    fn = compiled("moments", MIXED)
    given = arguments(fn)
    given[4] = np.zeros(2, np.float32)
    with pytest.raises(tw.errors.ShapeError, match="value1"):
        fn(*given)
