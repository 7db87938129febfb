"""Ragged dims: what is refused, how batches are passed, and that every sequence gets what it gets alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import dumps, loads
from typing import Any

import numpy as np
import pytest
import typer
from e2e import random_ragged

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.arguments import parse_dims
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.host.block_tables import equal_calls
from tilewright.compiler.ops import Tensor
from tilewright.compiler.reference import evaluate_ragged

pytestmark = pytest.mark.usefixtures("built_here")

DIMS = {"B": tw.Dim(0, 8), "S": tw.Ragged(0, 40, over="B")}
WIDTH = 8
LENGTHS = (5, 0, 17, 1, 40)


def layer() -> ops.Graph:
    """Attention among the tokens of a sequence, and its mean."""
    g = ops.Graph()
    x, w, scale = g.input("x", ["B", "S", WIDTH]), g.input("w", [WIDTH, WIDTH]), g.input("scale", ["B", WIDTH])
    b, s, _ = x.dims
    head = ops.reshape(ops.dense(x, w), (b, 1, s, WIDTH))
    mixed = ops.reshape(ops.attention(head, head, head), (b, s, WIDTH))
    y = ops.add(x, ops.multiply(mixed, ops.reshape(scale, (b, 1, WIDTH))))
    g.output(y, name="y")
    g.output(ops.max(y, 1), name="top")
    return g


def alone(x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    h = x.astype(np.float64) @ w
    p = np.exp(h @ h.T / np.sqrt(WIDTH))
    return x + (p / p.sum(1, keepdims=True)) @ h * scale


@pytest.fixture(scope="module")
def fn() -> tw.CompiledFunction:
    return tw.compile(layer(), DIMS)


@pytest.fixture
def batch() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    xs = [rng.standard_normal((n, WIDTH)).astype(np.float32) for n in LENGTHS]
    w, scale = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 3, rng.standard_normal((len(xs), WIDTH))
    return xs, w, scale.astype(np.float32)


def outlined(g: ops.Graph, dims: dict[str, Any] | None = None, **options: Any) -> OutlinedModel:
    return outline(Compilation(g, dims or DIMS, full_target(options.pop("target", "host")), tw.CompileOptions(**options)))


def model(function: Callable[..., Tensor], *dims: str | int) -> ops.Graph:
    g = ops.Graph()
    g.output(function(g.input("x", list(dims or ("B", "S", WIDTH)))))
    return g


@pytest.mark.parametrize(("function", "said"), [
    (lambda x: ops.subtract(x, ops.mean(x, 0)), "combines all entries"),
    (lambda x: ops.softmax(x, 0), "combines all entries"),
    (lambda x: ops.cumsum(x, 0), "B"),
    (lambda x: ops.flip(x, 0), "reads other entries of B than its own"),
    (lambda x: ops.add(x, ops.slice(x, (0, None, None), (1, None, None))), "takes some entries"),
    (lambda x: ops.softmax(ops.reshape(x, (x.dims[0] * x.dims[1], WIDTH)), 0), "combines all entries"),
    (lambda x: ops.multiply(x, x.dims[0]), "number of entries"),
    (lambda x: ops.add(x, ops.reshape(ops.iota(x.graph, (x.dims[0],), dtype="f32"), (x.dims[0], 1, 1))), "number of an entry"),
    (lambda x: ops.matmul(ops.sum(x, 1), ops.sum(x, 1), transpose_b=True), "pairs every entry"),
    (lambda x: ops.concat([x, x], 0), "joins along the entries"),
    (lambda x: ops.add(x, ops.reshape(ops.transpose(x, (1, 0, 2)), x.dims)), "they lie in another order"),
])  # fmt: skip
def test_mixing(function: Callable[..., Tensor], said: str) -> None:
    with pytest.raises(tw.errors.IngestError, match=said) as caught:
        outlined(model(function))
    assert "ragged over B" in str(caught.value)


@pytest.mark.parametrize(("g", "dims", "options", "said"), [
    (model(ops.relu), {"B": (1, 8), "S": tw.Ragged(1, 40, over="N")}, {}, "ragged over 'N', which is no dimension"),
    (model(ops.relu, "2*B", "S"), DIMS, {}, "B is no axis of its own"),
    (model(ops.relu), DIMS, {"out_of_range": "fallback"}, "ragged dims"),
    (model(lambda x: ops.full(x.graph, (3,), x.dims[1], "f32")), DIMS, {}, "has no axis for it"),
])  # fmt: skip
def test_declarations(g: ops.Graph, dims: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.errors.TilewrightError, match=said):
        outlined(g, dims, **options)


def test_no_outer_dim() -> None:
    with pytest.raises(tw.errors.OptionError, match='write over="B"'):
        tw.Ragged(1, 8)


def test_rows_run_at_once() -> None:
    """Dense layers, norms and what is elementwise run over all rows; the rest for each sequence, in one launch."""
    plan = outlined(layer()).plan
    found = [(c.workload.kind.value, c.segments is None) for c in plan.calls]
    assert ("contraction", True) in found
    assert ("attention", False) in found
    assert [str(c.dims[0]) for c in plan.calls if c.segments is None] == ["sum(S)"]
    assert {"sum(S)", "B"} >= plan.arena.total.symbols


def several() -> ops.Graph:
    """Independent results: two by element, one by row in parts of a sequence, one for each sequence."""
    g = ops.Graph()
    x, y, z = (g.input(name, ["B", "S", WIDTH]) for name in "xyz")
    for name, made in (("a", ops.relu(x)), ("b", ops.tanh(y)), ("c", ops.cumsum(x, 1)), ("d", ops.max(z, 1))):
        g.output(made, name=name)
    return g


def test_launched_together() -> None:
    """Calls over all rows share a launch; those for each sequence have their own."""
    plan = outlined(several()).plan
    assert [len(launch.calls) for launch in plan.launches()] == [2, 1, 1]
    together = plan.launches()[0].calls
    assert all(plan.calls[n].segments is None and "sum(S)" in str(plan.calls[n].dims[0]) for n in together)
    fn = tw.compile(several(), DIMS)
    rng = np.random.default_rng(5)
    x, y, z = (rng.standard_normal((sum(LENGTHS), WIDTH)).astype(np.float32) for _ in range(3))
    a, b, c, d = fn(x, y, z, S_lengths=LENGTHS)
    assert np.array_equal(a, np.maximum(x, 0))
    np.testing.assert_allclose(b, np.tanh(y), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c[5:22], np.cumsum(x[5:22], 0), rtol=1e-4, atol=1e-5)
    assert np.array_equal(d[4], z[23:].max(0))


def test_equal_layers_have_one_table() -> None:
    """What each sequence adds to a call is told once a call of the model, however many layers ask for it."""
    g = ops.Graph()
    x, w = g.input("x", ["B", "S", WIDTH]), g.input("w", [WIDTH, WIDTH])
    for _ in range(3):
        head = ops.reshape(ops.dense(x, w), (x.dims[0], 1, x.dims[1], WIDTH))
        x = ops.reshape(ops.attention(head, head, head), x.dims)
    g.output(ops.multiply(ops.cumsum(x, 1), 0.125))
    model = outlined(g)
    calls, keys = model.plan.calls, [w.key for w in model.workloads]
    tables = equal_calls(model.plan, [keys.index(c.workload.key) for c in calls])
    assert len(tables) == sum(c.segments is not None for c in calls) == 4
    assert len(set(tables.values())) == 2
    fn = tw.compile(g, DIMS)
    rows, weight = np.random.default_rng(3).standard_normal((sum(LENGTHS), WIDTH)).astype(np.float32), np.eye(WIDTH, dtype="f")
    (wanted,) = evaluate_ragged(fn.program.source, "B", [rows, weight], {"S": LENGTHS})
    np.testing.assert_allclose(fn(rows, weight, S_lengths=LENGTHS).reshape(-1), wanted, 1e-5, 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [(40, 40, 39, 40, 1, 0), (0, 0, 1, 1, 40, 40, 40, 40), (40,) * 8, (3,), (0,) * 8])
def test_threads(fn: tw.CompiledFunction, lengths: tuple[int, ...]) -> None:
    """Threads share the work of a batch, wherever its long sequences are: the same bits as one thread."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((sum(lengths), WIDTH)).astype(np.float32)
    w, scale = np.eye(WIDTH, dtype=np.float32), np.ones((len(lengths), WIDTH), np.float32)
    one, two = (fn(x, w, scale, S_lengths=lengths, threads=threads) for threads in (1, 2))
    assert np.array_equal(one[0], two[0])
    assert np.array_equal(one[1], two[1])


def test_kinds(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray]) -> None:
    """Lists, tw.Jagged, packed rows with lengths or offsets: the same bits, in the kind that came in."""
    xs, w, scale = batch
    packed, lengths = np.concatenate(xs), np.array(LENGTHS)
    offsets = np.append(0, np.cumsum(lengths))
    listed, top = fn(xs, w, scale)
    for got, x, s in zip(listed, xs, scale, strict=True):
        np.testing.assert_allclose(got, alone(x, w, s), rtol=2e-5, atol=2e-5)
    assert top.shape == (5, WIDTH)
    assert np.array_equal(top[2], listed[2].max(0))
    jagged = fn(tw.Jagged(packed, lengths=lengths), w, scale)[0]
    assert isinstance(jagged, tw.Jagged)
    assert [len(s) for s in jagged] == list(LENGTHS)
    rows = [fn(packed, w, scale, S_lengths=lengths)[0], fn(packed, w, scale, S_offsets=offsets)[0],
            fn(packed, w, scale, offsets)[0], fn(packed, w, scale, offsets, threads=1)[0],
            fn(x=packed, w=w, scale=scale, S_lengths=lengths)[0]]
    out = np.empty_like(packed), np.empty_like(scale)
    assert fn(packed, w, scale, offsets, out=out)[0] is out[0]
    for found in (jagged.values, np.concatenate(listed), out[0], *rows[1:]):
        assert np.array_equal(found, rows[0])


def test_torch_kinds(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    xs, w, scale = batch
    tensors = [torch.from_numpy(x) for x in xs]
    wanted = np.concatenate(fn(xs, w, scale)[0])
    nested = torch.nested.nested_tensor(tensors, layout=torch.jagged)
    found = fn(nested, torch.from_numpy(w), torch.from_numpy(scale))[0]
    assert found.is_nested
    assert found.layout == torch.jagged
    assert np.array_equal(found.values().numpy(), wanted)
    listed = fn(tensors, torch.from_numpy(w), torch.from_numpy(scale))[0]
    assert np.array_equal(torch.cat(listed).numpy(), wanted)


def test_nested_tensors_with_holes(fn: tw.CompiledFunction) -> None:
    """What torch.nested.narrow gives lies in rows that are not all of it; other lengths along a later axis are refused."""
    torch = pytest.importorskip("torch")
    rows = torch.arange(2 * 6 * WIDTH, dtype=torch.float32).reshape(2, 6, WIDTH) / 50
    starts, lengths = torch.tensor([1, 0]), torch.tensor([3, 5])
    nested = torch.nested.narrow(rows, 1, starts, lengths, layout=torch.jagged)
    w, scale = torch.eye(WIDTH), torch.ones(2, WIDTH)
    wanted = fn([rows[0, 1:4].contiguous(), rows[1, :5].contiguous()], w, scale)[0]
    for got, one in zip(fn(nested, w, scale)[0].unbind(), wanted, strict=True):
        assert torch.equal(got, one)
    with pytest.raises(tw.errors.ShapeError, match="sequences lie along axis 1"):
        fn(torch.nested.nested_tensor([torch.ones(WIDTH, WIDTH)] * 2, layout=torch.jagged).transpose(1, 2), w, scale)


@pytest.mark.parametrize(("given", "said"), [
    ([1, 2], "sequence 0 is int64 without axes"),
    ([None], "sequence 0 is object without axes"),
    ([[[1.0], [1.0, 2.0]]], "argument x: sequence 0: wanted an array, got list whose parts differ"),
])
def test_lists_of_what_is_no_sequence(fn: tw.CompiledFunction, given: list[Any], said: str) -> None:
    with pytest.raises(tw.errors.TilewrightError, match=said):
        fn(given, np.ones((WIDTH, WIDTH), np.float32), np.ones((len(given), WIDTH), np.float32))


def test_neighbours(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray]) -> None:
    """NaN in one sequence reaches no other, and a sequence's bits in attention do not depend on its neighbours."""
    xs, w, scale = batch
    clean = fn(xs, w, scale)[0]
    xs[2][:] = np.nan
    found = fn(xs, w, scale)[0]
    assert np.isnan(found[2]).all()
    for number in (0, 1, 3, 4):
        assert np.array_equal(found[number], clean[number])


@pytest.mark.parametrize("lengths", [(), (0, 0)])
def test_empty(fn: tw.CompiledFunction, lengths: tuple[int, ...]) -> None:
    y, top = fn(np.zeros((0, WIDTH), np.float32), np.ones((WIDTH, WIDTH), np.float32), np.ones((len(lengths), WIDTH), np.float32),
                S_lengths=np.array(lengths, np.int64))
    assert y.shape == (0, WIDTH)
    assert top.shape == (len(lengths), WIDTH)


@pytest.mark.parametrize(("lengths", "said"), [
    ((5, 0, 17, 1, 41), "S = 41 of sequence 4 is outside its range 0..40"),
    ((5, 0, 17, 1, -1), "got -1 for sequence 4"),
    ((5, 0, 17, 1, 39), "argument x has 63 rows, and the lengths of S add up to 62"),
    ((5.0, 0.0), "wanted integers in one axis, got float64"),
    (np.array([5, 2**64 - 1], np.uint64), f"got {2**64 - 1}; no array has as many"),
    (None, "pass tw.Jagged"),
])
def test_wrong_lengths(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray],
                       lengths: Sequence[float] | None, said: str) -> None:
    xs, w, scale = batch
    with pytest.raises(tw.errors.TilewrightError, match=said):
        fn(np.concatenate(xs), w, scale, **({} if lengths is None else {"S_lengths": np.array(lengths)}))


@pytest.mark.parametrize(("offsets", "said"), [
    ((0, 5, 5, 22, 23, 62), r"S_offsets: the last sequence ends at 62, and the rows do not \(at .*sum\(S\) = 63"),
    ((1, 5, 5, 22, 23, 63), "S_offsets: wanted 0 and then the end of each sequence, got \\[1\\] first"),
    ((0, 5, 4, 22, 23, 63), "S_offsets: sequence 1 ends at 4, before it begins at 5"),
    ((0, 5, 5, 22, 22, 63), "dim S = 41 of sequence 4 is outside its range"),
])
def test_wrong_offsets_natively(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray],
                                offsets: tuple[int, ...], said: str) -> None:
    """The native host program looks at them too, before it runs anything."""
    xs, w, scale = batch
    with pytest.raises(tw.errors.ShapeError):
        fn(np.concatenate(xs), w, scale, np.array(offsets))
    with pytest.raises(tw.errors.ShapeError, match=said):
        fn.call_flat(np.concatenate(xs), w, scale, np.array(offsets))


def test_two_arguments_disagree() -> None:
    g = ops.Graph()
    g.output(ops.add(g.input("x", ["B", "S", 2]), g.input("y", ["B", "S", 2])))
    fn = tw.compile(g, DIMS)
    a, b = (tw.Jagged(np.ones((7, 2), np.float32), lengths=own) for own in ((3, 4), (4, 3)))
    with pytest.raises(tw.errors.ShapeError, match="argument y: sequence 0 has 4 rows, and 3 in argument x"):
        fn(a, b)


def test_saved(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray, np.ndarray], tmp_path: Path) -> None:
    fn.save(tmp_path / "ragged.tw")
    for again in (tw.load(tmp_path / "ragged.tw"), loads(dumps(fn))):
        for a, b in zip(again(*batch)[0], fn(*batch)[0], strict=True):
            assert np.array_equal(a, b)


def test_explain(fn: tw.CompiledFunction) -> None:
    found = fn.explain(S=LENGTHS)
    assert found.dims == {"B": 5, "sum(S)": 63}
    attention = next(c for c in found.calls if "sequences in one launch" in c.why)
    assert max(attention.dims.values()) == 40
    assert attention.executed > attention.useful > 0  # keys of whole vectors
    assert "padding" in str(found)
    whole = next(c for c in fn.explain(S=(16, 32)).calls if "sequences in one launch" in c.why)
    assert (whole.executed, whole.padding) == (whole.useful, 0.0)
    assert fn.memory(S=LENGTHS, threads=1).outputs == 4 * WIDTH * (63 + 5)
    assert fn.memory(S=LENGTHS, threads=1).arena < fn.memory(S=(40,) * 5, threads=1).arena
    with pytest.raises(tw.errors.OptionError, match="wanted the length of each sequence"):
        fn.explain(B=5)
    with pytest.raises(tw.errors.ShapeError, match="41 of sequence 1"):
        fn.explain(S=[3, 41])


def test_command_line() -> None:
    dims = parse_dims(["B=1:8", "S@x.1=ragged:1:512:B", "T=ragged:8:64:8:B"]).as_ranges()
    assert dims["S"] == tw.Ragged(1, 512, over="B", at="x.1")
    assert dims["T"] == tw.Ragged(8, 64, over="B", multiple_of=8)
    assert parse_dims(["S=5,90", "T=3"]).batches == {"S": [5, 90]}
    with pytest.raises(typer.BadParameter, match="'S' is given twice"):
        parse_dims(["S=5,90", "S=1,2"])


@pytest.mark.parametrize("seed", [1, 9])
def test_random_models(seed: int) -> None:
    """Sequence by sequence in float64, over random batches."""
    rng = random.Random(seed)
    drawn = random_ragged.draw(rng)
    fn = drawn.compile()
    for trial in range(5):
        lengths = drawn.lengths(rng)
        assert random_ragged.wrong(drawn, fn, lengths, drawn.inputs(lengths, np.random.default_rng(trial))) == ""
