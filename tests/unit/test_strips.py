"""Launches by strips of rows: which calls are cut, from how many rows on, and the same bits as without."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.build import kernel_symbol
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation import outlined_model
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import Cut, outline
from tilewright.compiler.compilation.partitions import alternatives_of
from tilewright.compiler.host import strip_launches, strips
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import Strips
from tilewright.compiler.tuning.cut_refused import built_with_cuts
from tilewright.compiler.tuning.dispatch_tables import untuned_tables
from tilewright.compiler.verification.keep_what_gains import function_of
from tilewright.passes.codegen.index import Index
from tilewright.passes.partition.cost import Machine
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.host_cpu import cpu_features, host_limits, machine
from tilewright.runtime.target import Target
from tilewright.search.protocols import BuildResult

Array = np.ndarray
Built = tuple[ops.Graph, dict[str, Array]]
RANDOM = np.random.default_rng(0)
CHAIN_ROWS = (1, 17, 64, 131)


class Model:
    """A graph whose weights are constants."""

    def __init__(self, rows: tuple[str, ...] = ("T",), columns: int = 48) -> None:
        self.graph, self.weights = ops.Graph(), dict[str, Array]()
        self.x = self.graph.input("x", [*rows, columns])

    def weight(self, *size: int) -> ops.Tensor:
        name = f"w{len(self.weights)}"
        self.weights[name] = (RANDOM.standard_normal(size) / np.sqrt(size[0])).astype(np.float32)
        return self.graph.input(name, list(size))

    def dense(self, x: ops.Tensor, columns: int, most: int) -> ops.Tensor:
        return ops.matmul(x, self.weight(columns, most)) + self.weight(most)

    def done(self, *results: ops.Tensor) -> Built:
        for result in results:
            self.graph.output(result)
        return self.graph, self.weights


def norm(x: ops.Tensor) -> ops.Tensor:
    centred = x - ops.mean(x, [-1], keepdims=True)
    return centred / ops.sqrt(ops.mean(centred * centred, [-1], keepdims=True) + 1e-5)


def softmax_behind_dense() -> Built:
    m = Model()
    return m.done(ops.softmax(m.dense(m.x, 48, 80), axis=1))


def norm_of_a_residual() -> Built:
    m = Model()
    return m.done(norm(m.dense(m.x, 48, 48) + m.x) * m.weight(48))


def norm_before_dense() -> Built:
    m = Model()
    return m.done(m.dense(norm(m.x), 48, 80))


def layers() -> Built:
    """Two, of which the first one's result is a result as well."""
    m = Model()
    first = norm(m.dense(ops.gelu(m.dense(m.x, 48, 80)), 80, 48) + m.x)
    return m.done(first, norm(m.dense(ops.gelu(m.dense(first, 48, 80)), 80, 48) + first))


def rows_of_two_dims() -> Built:
    m = Model(("B", "S"))
    return m.done(ops.softmax(m.dense(m.x, 48, 80), axis=2))


class Once(LocalBuilder):
    """Builds each kernel once for all models here: with strips and without, they have the same ones."""

    def __init__(self) -> None:
        super().__init__(Target.parse("host"))
        self.made: dict[str, BuildResult] = {}

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        keys = [kernel_symbol(w, c) + w.key for w, c in candidates]
        new = {k: c for k, c in zip(keys, candidates, strict=True) if k not in self.made}
        self.made |= zip(new, super().build(list(new.values()), seconds), strict=True)
        return [self.made[k] for k in keys]


BUILDER = Once()
MODELS = {m.__name__: m for m in (softmax_behind_dense, norm_of_a_residual, norm_before_dense, layers, rows_of_two_dims)}


def drawn(seed: int) -> Built:
    """A chain of products, of work on rows and on elements, some of it of other rows; values are read again later on."""
    chosen, m = random.Random(seed), Model()
    values = [(m.x, 48)]
    for _ in range(chosen.randrange(3, 9)):
        (x, columns), (other, others) = values[-1], chosen.choice(values)
        most = chosen.choice((16, 33, 48, 80))
        makes: tuple[Callable[[], ops.Tensor], ...] = (
            partial(m.dense, x, columns, most), partial(m.dense, x, columns, most), partial(ops.softmax, x, 1),
            partial(norm, x), partial(lambda a, b: ops.gelu(a) + b, x, other if others == columns else x),
            partial(lambda a, b: a * (ops.sum(b, [1], keepdims=True) + 1.0), x, other),  # what a norm made adds up to 0
            partial(ops.concat, [x, other], 1),
            partial(ops.tril, x), partial(lambda a: ops.flip(a, [0]) + a, x),
            partial(lambda a: a - ops.max(a, [0], keepdims=True), x))
        number = chosen.randrange(len(makes))
        values.append((makes[number](), most if number < 2 else columns + others if number == 6 else columns))
    middle = [v for v, _ in values[1:-1]]
    return m.done(values[-1][0], *(chosen.sample(middle, 1) if chosen.random() < 0.4 else ()))


def compiled(built: Built, most: int = 1000) -> tw.CompiledFunction:
    graph, weights = built
    dims = {name: (1, most if name == "T" else 30) for name in ("T", "B", "S") if f'"{name}"' in graph.module_text()}
    return tw.compile(graph, dims, constants=weights, options={"builder": BUILDER, "threads": 2})


def compilation(built: Built, most: int) -> Compilation:
    graph, weights = built
    return Compilation(graph, {"T": (1, most)}, full_target("host"), tw.CompileOptions(), weights)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Strips]:
    """The strips of the model that was compiled last."""
    found: list[Strips] = []

    def watched(plan: HostPlan, costs: strips.Costs) -> HostPlan:
        made = strips.with_strips(plan, costs)
        found[:] = made.strips
        return made

    monkeypatch.setattr(outlined_model, "with_strips", watched)
    return found


def force(patch: pytest.MonkeyPatch) -> None:
    """Strips of 8 rows from 8 on, whatever they cost."""
    patch.setattr(strips, "GAIN", -np.inf)
    patch.setattr(strips, "SIZES", (8,))
    patch.setattr(strips, "ROWS", (8,))
    patch.setattr(strips, "EACH", 1)
    patch.setattr(strips, "SHORT", 1)
    patch.setattr(strip_launches, "EACH", 1)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_strips_compute_the_same_with_the_same_bits_on_any_number_of_threads(
        name: str, planned: list[Strips], request: pytest.FixtureRequest) -> None:
    RANDOM.bit_generator.state = np.random.default_rng(1).bit_generator.state
    whole = compiled(MODELS[name]())
    assert not planned, "so narrow a model gains nothing"
    request.getfixturevalue("everywhere")
    RANDOM.bit_generator.state = np.random.default_rng(1).bit_generator.state
    cut = compiled(MODELS[name]())
    assert planned and all(s.local for s in planned)
    inside = [[n for launch in s.launches for n in launch.calls] for s in planned]
    assert inside == [list(s.cuts) for s in planned] and len({n for calls in inside for n in calls}) == sum(map(len, inside))
    two = name == "rows_of_two_dims"
    for rows in ((1, 1), (1, 9), (3, 7), (5, 13)) if two else ((1,), (7,), (8,), (9,), (64,), (333,)):
        x = np.random.default_rng(rows).standard_normal((*rows, 48)).astype(np.float32)
        calls = (whole(x), *(cut(x, threads=threads) for threads in (1, 2, 5)))
        for a, b, c, d in zip(*(v if isinstance(v, tuple) else (v,) for v in calls), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
            assert b.tobytes() == c.tobytes() == d.tobytes(), rows


def images(last: Callable[[ops.Tensor], ops.Tensor], *, stride: int = 2, padding: int = 1) -> ops.Graph:
    """A convolution of images whose padded copies take 270 KB each."""
    g = ops.Graph()
    x = g.input("x", ["B", 16, 64, 64])
    w = g.constant(np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32) / 12)
    g.output(last(ops.conv2d(x, w, stride=stride, padding=padding)))
    return g


def joined(y: ops.Tensor) -> ops.Tensor:
    """Twice as much of an image as the convolution makes, which is 130 KB."""
    return ops.concat([y, y], 1)


@pytest.mark.parametrize("last", [lambda y: y, ops.relu, joined])
def test_images_go_one_by_one_through_what_is_done_to_each(
        last: Callable[[ops.Tensor], ops.Tensor], planned: list[Strips], monkeypatch: pytest.MonkeyPatch) -> None:
    if last is joined and host_limits(cpu_features(), machine()).l2 < 1 << 20:
        pytest.skip("what is made of an image exceeds the second cache")
    monkeypatch.setattr(strips, "EACH", 1)
    monkeypatch.setattr(strip_launches, "EACH", 1)
    options = {"builder": BUILDER}
    cut = tw.compile(images(last), {"B": (1, 64)}, options=options)
    [strip] = planned
    assert strip.size == 1 and strip.local and all(c.each >= 1 for c in strip.cuts.values())
    assert "by images, which threads share evenly" in str(cut.explain(B=strip.least))
    monkeypatch.setattr(strips, "IMAGES", (1 << 20,))
    whole = tw.compile(images(last), {"B": (1, 64)}, options=options)
    for count in (1, strip.least - 1, strip.least, strip.least + 3):
        x = np.random.default_rng(count).standard_normal((count, 16, 64, 64)).astype(np.float32)
        one, *others = (cut(x, threads=threads) for threads in (1, 2, 5))
        np.testing.assert_allclose(one, whole(x), rtol=2e-5, atol=2e-5)
        assert all(one.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("last", [
    lambda y: ops.pad(y, [1, 0, 0, 0], [0, 0, 0, 0]),  # another number of images
    lambda y: ops.flip(y, [0]),  # of other images
    lambda y: ops.sum(y, [0]),
])
def test_what_asks_other_images_is_not_done_by_images(last: Callable[[ops.Tensor], ops.Tensor], planned: list[Strips]) -> None:
    outline(Compilation(images(last), {"B": (1, 64)}, full_target("host"), tw.CompileOptions()))
    assert not any(s.size == 1 for s in planned)


@pytest.mark.parametrize(("near", "last", "threads", "least"), [
    (1 << 20, 1 << 24, 1, 4),  # three of an image's 400 KB do not leave the second cache
    (1 << 18, 1 << 21, 1, 2),  # one leaves it, but not a quarter of the last one
    (1 << 18, 1 << 22, 1, 4),
    (1 << 18, 1 << 22, 2, 4),  # two cores count on as much together
    (1 << 19, 1 << 24, 2, 4),
    (1 << 18, 1 << 21, 2, None),  # which two cores share
    (1 << 18, 1 << 20, 1, None),
])
def test_an_image_stays_in_the_second_cache_or_in_part_of_the_last(near: int, last: int, threads: int, least: int | None) -> None:
    model = outline(Compilation(images(ops.relu), {"B": (1, 64)}, full_target("host"), tw.CompileOptions()))
    found = strips.strips_of(model.plan, strips.Costs(threads=threads, near=near, last=last))
    assert [s.least for s in found] == ([] if least is None else [least])


@pytest.mark.parametrize(("size", "rows", "threads", "evenly"), [
    (1, 1, 1, True),
    (1, 1, 2, False),
    (1, 4, 2, True),
    (1, 5, 2, False),  # one of two threads would have nothing to do for a third of the time
    (1, 7, 2, True),
    (1, 9, 2, True),
    (1, 17, 16, False),
    (1, 32, 16, True),
    (64, 1024, 2, True),  # eight strips for each of them
    (64, 1023, 2, False),
    (256, 2048, 2, True),  # of 128 rows
    (256, 2047, 2, False),
])
def test_there_are_strips_where_threads_share_them_evenly(size: int, rows: int, threads: int, evenly: bool) -> None:
    assert strips.margin(size, Index(rows), Index(threads)).ge(0) == evenly


@pytest.mark.parametrize("seed", range(3))
def test_random_chains(seed: int) -> None:
    right_at(seed)


def right_at(seed: int) -> int:
    """A random chain gives the same in strips, of all that can be done so, and unfused. A sweep of many: `python -m tools.bench
    cuts --chains 100`. Returns how many calls are done in strips."""
    RANDOM.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    unfused = built_with_cuts(compilation(drawn(seed), 1000), partial(untuned_tables, builder=BUILDER),
                              Cut("alone", strips=StripChoice.NEVER))
    whole = function_of(assemble(*unfused))
    with pytest.MonkeyPatch.context() as patch:
        force(patch)
        RANDOM.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        cut = compiled(drawn(seed))
    for rows in CHAIN_ROWS:
        x = np.random.default_rng(rows).standard_normal((rows, 48)).astype(np.float32)
        calls = whole(x), cut(x, threads=1), cut(x, threads=3)
        for a, b, c in zip(*(v if isinstance(v, tuple) else (v,) for v in calls), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(a).max())))
            assert b.tobytes() == c.tobytes()
    return sum(len(s.calls) for s in cut.program.strips)


def test_bits_of_a_row_are_the_same_in_any_batch(planned: list[Strips], everywhere: None) -> None:
    for build in (softmax_behind_dense, layers):
        graph, weights = build()
        fn = tw.compile(graph, {"T": (1, 1000)}, constants=weights,
                        options={"builder": BUILDER, "deterministic": "batch"})
        assert planned
        x = RANDOM.standard_normal((200, 48)).astype(np.float32)
        every = fn(x)
        for begin, end in ((0, 1), (3, 10), (8, 17), (100, 200)):
            for whole, part in zip(*(v if isinstance(v, tuple) else (v,) for v in (every, fn(x[begin:end].copy()))), strict=True):
                assert whole[begin:end].tobytes() == part.tobytes(), (build, begin, end)


def test_what_lies_between_takes_no_more_than_a_strip_of_each_thread(planned: list[Strips], everywhere: None) -> None:
    compiled(softmax_behind_dense())
    [strip] = planned
    assert strip.bytes == 8 * 80 * 4 and [len(launch.calls) for launch in strip.launches] == [1, 1]


def wide() -> Built:
    """Rows of 3,072 columns behind a product."""
    m = Model(columns=64)
    return m.done(ops.softmax(m.dense(m.x, 64, 3072), axis=1))


def test_strips_begin_where_they_are_predicted_to_pay(planned: list[Strips]) -> None:
    """They pay from some megabytes on; no more launches are joined than what reads them."""
    fn = compiled(wide(), 4096)
    [strip] = planned
    assert 1024 <= strip.least <= 4096 and strip.gain >= strips.GAIN
    assert f"calls 0, 1 by strips of up to {strip.size} rows" in str(fn.explain(T=4096))
    assert "strips" not in str(fn.explain(T=strip.least - 1))
    [told] = fn.program.strips
    assert (told.calls, told.each, told.least) == ((0, 1), 8, strip.least) and told.gain == pytest.approx(strip.gain, abs=1e-4)


def test_a_product_of_a_product_gains_nothing_and_loses_nothing(planned: list[Strips]) -> None:
    """It multiplies while its rows come, from wherever; what reads the rows of the last one is done with that alone."""
    def asked(last: Callable[[ops.Tensor], ops.Tensor]) -> Compilation:
        m = Model(columns=256)
        return compilation(m.done(last(m.dense(ops.gelu(m.dense(m.x, 256, 1024)), 1024, 256))), 8192)

    outline(asked(norm))
    assert [tuple(s.cuts) for s in planned] == [(1, 2)]
    products = asked(lambda x: x)
    outline(products)
    assert not planned
    outline(products, Cut(strips=StripChoice.WIDELY))
    assert planned and all(s.gain < strips.GAIN for s in planned)
    outline(products, Cut(strips=StripChoice.NEVER))
    assert not planned


def test_what_gains_most_is_taken_first(planned: list[Strips], monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips that share a launch with better ones are none."""
    monkeypatch.setattr(strips, "ROWS", (4096,))
    m = Model(columns=64)
    outline(compilation(m.done(ops.softmax(m.dense(norm(m.dense(m.x, 64, 64)), 64, 3072), axis=1)), 4096))
    taken = [n for s in planned for n in s.cuts]
    assert len(set(taken)) == len(taken) and any({2, 3} <= s.cuts.keys() for s in planned)


def test_a_slow_cache_makes_strips_useless() -> None:
    slow = strips.Costs(Machine(caches=((1 << 62, 1e10),), memory=1e10))
    for built in (softmax_behind_dense(), layers()):
        found: list[HostPlan] = []

        def watched(plan: HostPlan, _: strips.Costs, found: list[HostPlan] = found) -> HostPlan:
            found.append(strips.with_strips(plan, slow))
            return found[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outlined_model, "with_strips", watched)
            compiled(built)
        assert not found[0].strips


@pytest.mark.parametrize("build", [
    lambda m: ops.softmax(m.dense(m.x, 48, 80), axis=0),  # along the rows
    lambda m: ops.sum(m.dense(m.x, 48, 80), [0]),
    lambda m: ops.flip(m.dense(m.x, 48, 80), [0]),  # of other rows
    lambda m: ops.cumsum(m.dense(m.x, 48, 80), 0),
    lambda m: ops.tril(m.dense(m.x, 48, 80)),  # which row it is
])
def test_what_asks_other_rows_is_not_cut(build: Callable[[Model], ops.Tensor], planned: list[Strips], everywhere: None) -> None:
    m = Model()
    fn = compiled(m.done(build(m)))
    assert not planned
    x = RANDOM.standard_normal((33, 48)).astype(np.float32)
    assert np.asarray(fn(x)).tobytes() == np.asarray(fn(x, threads=1)).tobytes()


def test_a_donated_argument_is_written_whole(planned: list[Strips], everywhere: None) -> None:
    m = Model()
    graph, weights = m.done(norm(m.dense(m.x, 48, 48)))
    tw.compile(graph, {"T": (1, 4096)}, constants=weights, donate=("x",),
               options={"builder": BUILDER})
    assert not planned


def test_other_ways_are_found_where_no_context_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a search whose model comes from the cache, of whose workloads nobody asked yet whether they can be cut."""
    monkeypatch.setattr(strips, "EACH", 1)
    model = outline(Compilation(images(ops.relu), {"B": (1, 64)}, full_target("host"), tw.CompileOptions(), {}))
    want = alternatives_of(model, 8)
    for call in model.plan.calls:
        call.workload.__dict__.pop("_told", None)
    assert alternatives_of(model, 8) == want
