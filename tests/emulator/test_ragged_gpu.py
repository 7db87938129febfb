"""Ragged models on the emulated GPU: every family gets what each sequence gets alone, with races and bounds checked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from e2e.gap_rows import GapRows

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate_ragged
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.gpu.mma import MmaConfig
from tilewright.passes.spaces.gpu.simt import SimtConfig
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig

pytestmark = pytest.mark.usefixtures("built_here")

WIDTH, HEADS = 32, 2
LENGTHS = (3, 0, 33, 17, 1)


def layer(dtype: str) -> ops.Graph:
    """Attention among the rows of a sequence, and the largest of each column."""
    g = ops.Graph()
    x, w = g.input("x", ["B", "S", WIDTH], dtype), g.input("w", [WIDTH, WIDTH], dtype)
    b, s, _ = x.dims
    heads = ops.transpose(ops.reshape(ops.dense(x, w), (b, s, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))
    mixed = ops.reshape(ops.transpose(ops.attention(heads, heads, heads), (0, 2, 1, 3)), (b, s, WIDTH))
    y = ops.add(x, mixed)
    g.output(y, ops.max(y, 1))
    return g


@pytest.mark.parametrize(("dtype", "lengths", "families", "tolerance"), [
    ("f32", LENGTHS, {"simt", "gpu_rows"}, 1e-5),
    ("f16", LENGTHS, {"wgmma", "gpu_attention"}, 1e-2),
    ("f16", (3, 0, 520, 17, 1), {"wgmma", "wgmma_attention"}, 1e-2),
])
def test_families(dtype: str, lengths: tuple[int, ...], families: set[str], tolerance: float) -> None:
    numpy, most = {"f32": np.float32, "f16": np.float16}[dtype], max(lengths) + 7
    fn = tw.compile(layer(dtype), {"B": (0, 8), "S": tw.Ragged(0, most, over="B")}, target="emulator:sm_90a")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((sum(lengths), WIDTH)).astype(numpy), (rng.standard_normal((WIDTH, WIDTH)) / 6).astype(numpy)
    found = fn(x, w, S_lengths=lengths)
    wanted = evaluate_ragged(fn.program.source, "B", [x, w], {"S": lengths})
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.reshape(-1), b, tolerance, tolerance)
    shown = fn.explain(S=lengths)
    assert families <= {c.family for c in shown.calls}
    assert "5 sequences by a block table" in str(shown)
    long = most + 1
    with pytest.raises(tw.errors.ShapeError, match=f"S = {long} of sequence 0"):
        fn(x, w, S_lengths=[long, sum(lengths) - long])
    with pytest.raises(tw.errors.ShapeError, match=f"S = {long} of sequence 0"):
        fn.call_flat(x, w, np.array([0, long, sum(lengths)]))
    assert fn(x[:0], w, S_lengths=[])[0].shape == (0, WIDTH)


def launches_of(fn: tw.CompiledFunction, *args: object, **named: object) -> tuple[object, int]:
    """A call's result and how many kernels it launched."""
    device = fn._caller.device
    before = len(device.launches)
    return fn(*args, **named), len(device.launches) - before


def test_one_launch_for_all_sequences(tmp_path: Path) -> None:
    """As many launches for two sequences as for five, of a saved model too."""
    g = ops.Graph()
    g.output(ops.softmax(g.input("x", ["B", "S", 8]), 1))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 40, over="B")}, target="emulator:sm_90a")
    x = np.random.default_rng(0).standard_normal((sum(LENGTHS), 8)).astype(np.float32)
    found, many = launches_of(fn, x, S_lengths=LENGTHS)
    _, few = launches_of(fn, x[:5], S_lengths=[2, 3])
    assert few == many == 1 + len(fn.program.tables[0].kernels)  # the prelude, and each kernel of the table
    (wanted,) = evaluate_ragged(fn.program.source, "B", [x], {"S": LENGTHS})
    np.testing.assert_allclose(found.reshape(-1), wanted, 1e-5, 1e-6)
    fn.save(tmp_path / "model.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "model.tw")(x, S_lengths=LENGTHS), found)


@pytest.mark.parametrize("most", [1300, 1400])
def test_more_sequences_than_the_prelude_has_threads(most: int) -> None:
    """Where shared memory holds what is chosen for all sequences that a model takes, and where it does not."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 4])
    g.output(ops.add(ops.softmax(x, 1), x), ops.max(x, 1))
    fn = tw.compile(g, {"B": (0, most), "S": tw.Ragged(1, 9, over="B")}, target="emulator:sm_90a")
    lengths = [1 + n * 7 % 9 for n in range(300)]
    given = np.random.default_rng(0).standard_normal((sum(lengths), 4)).astype(np.float32)
    for a, b in zip(fn(given, S_lengths=lengths), evaluate_ragged(fn.program.source, "B", [given], {"S": lengths}), strict=True):
        np.testing.assert_allclose(a.reshape(-1), b, 1e-5, 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "arch", "family", "inner", "columns"), [
    ("f32", "sm_80", "simt", 64, 128), ("f16", "sm_80", "mma", 72, 136), ("f16", "sm_90a", "wgmma", 64, 128),
    ("f16", "sm_90a", "wgmma", 72, 136)])
def test_whole_tiles_and_tails_in_one_launch(dtype: str, arch: str, family: str, inner: int, columns: int) -> None:
    """Tiles that lie inside of their sequence have no masks, those of its last rows and of the last columns do; where k is no
    multiple of a step, all mask it."""
    g, numpy = ops.Graph(), {"f32": np.float32, "f16": np.float16}[dtype]
    g.output(ops.matmul(g.input("x", ["E", "R", inner], dtype), g.input("w", ["E", inner, columns], dtype)))
    fn = tw.compile(g, {"E": (1, 8), "R": tw.Ragged(0, 512, over="E")}, target=f"emulator:{arch}")
    rng, lengths = np.random.default_rng(0), [129, 0, 128, 3]
    shown = fn.explain(R=lengths).calls[0]
    config = parse_config(shown.config)
    assert isinstance(config, SimtConfig | MmaConfig | WgmmaConfig) and config.bm <= 128 and config.bn <= 128
    assert shown.family == family
    x = rng.standard_normal((sum(lengths), inner)).astype(numpy)
    w = (rng.standard_normal((len(lengths), inner, columns)) / 8).astype(numpy)
    ends = np.cumsum([0, *lengths])
    wanted = np.concatenate([x[a:b].astype(float) @ w[e] for e, (a, b) in enumerate(pairwise(ends))])
    np.testing.assert_allclose(fn(x, w, R_lengths=lengths), wanted, 1e-2, 1e-2)


@pytest.mark.parametrize(("dtype", "arch", "family"), [
    ("f32", "sm_80", "simt"), ("f16", "sm_80", "mma"), ("f16", "sm_90a", "wgmma")])
def test_whole_tiles_of_all_rows_take_fewer_instructions(dtype: str, arch: str, family: str) -> None:
    """A product over the rows of all sequences, beside that of a dense model with as many rows: the same bits, masks in the last
    tile alone. Results that leave by copies of whole tiles have none anyway."""
    rng, lengths, numpy = np.random.default_rng(0), [129, 0, 128, 3], {"f32": np.float32, "f16": np.float16}[dtype]

    def model(dims: list[int | str]) -> ops.Graph:
        g = ops.Graph()
        g.output(ops.relu(ops.dense(g.input("x", dims, dtype), g.input("w", [64, 128], dtype))))
        return g

    fn = tw.compile(model(["B", "S", 64]), {"B": (1, 8), "S": tw.Ragged(0, 512, over="B")}, target=f"emulator:{arch}")
    dense = tw.compile(model(["N", 64]), {"N": (1, 4096)}, target=f"emulator:{arch}")
    x = rng.standard_normal((sum(lengths), 64)).astype(numpy)
    w = (rng.standard_normal((64, 128)) / 8).astype(numpy)
    shown, plain = fn.explain(S=lengths).calls[0], dense.explain(N=len(x)).calls[0]
    assert (shown.family, shown.config) == (family, plain.config)
    found, wanted = fn(x, w, S_lengths=lengths), dense(x, w)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, np.maximum(x.astype(float) @ w, 0), 1e-2, 1e-2)
    counts = [f._caller.device.launches[-1].warp_instructions for f in (fn, dense)]
    assert counts[0] <= counts[1] and (counts[0] < counts[1] or family == "wgmma")


def test_grouped_products_and_their_neighbours() -> None:
    """Rows by expert times the weights of each: NaN in one expert reaches no other, though tiles of its rows lie over theirs."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", 64], "f16"), g.input("w", ["E", 64, 64], "f16")))
    fn = tw.compile(g, {"E": (1, 8), "R": tw.Ragged(0, 256, over="E")}, target="emulator:sm_90a")
    rng, lengths = np.random.default_rng(0), [5, 0, 70, 3]
    x, w = rng.standard_normal((sum(lengths), 64)).astype(np.float16), (rng.standard_normal((4, 64, 64)) / 8).astype(np.float16)
    x[5:75], w[2] = np.nan, np.nan
    found = fn(x, w, R_lengths=lengths)
    assert {c.family for c in fn.explain(R=lengths).calls} == {"wgmma"}
    assert np.isnan(found[5:75]).all()
    wanted = np.concatenate([x[:5].astype(float) @ w[0], x[75:].astype(float) @ w[3]])
    np.testing.assert_allclose(np.concatenate([found[:5], found[75:]]), wanted, 1e-2, 1e-2)


@pytest.mark.parametrize(("longest", "family"), [(140, "gpu_attention"), (530, "wgmma_attention")])
def test_attention_and_its_neighbours(longest: int, family: str) -> None:
    """Copies of the last keys and values of a sequence bring rows of the next one, in one case more steps of them: NaN there
    reaches nothing, as their weights are 0."""
    g = ops.Graph()
    heads = [g.input(n, ["B", s, HEADS, 16], "f16") for n, s in (("q", "S"), ("k", "T"), ("v", "T"))]
    g.output(ops.transpose(ops.attention(*(ops.transpose(x, (0, 2, 1, 3)) for x in heads)), (0, 2, 1, 3)))
    dims = {"B": (0, 8), "S": tw.Ragged(0, 40, over="B"), "T": tw.Ragged(1, 600, over="B")}
    fn = tw.compile(g, dims, target="emulator:sm_90a")
    queries, keys, rng = (3, 0, 33, 5), (5, 9, longest, 64), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((sum(n), HEADS, 16)).astype(np.float16) for n in (queries, keys, keys))
    k[5:14] = v[5:14] = k[14 + longest:] = v[14 + longest:] = np.nan  # of the second and the last sequence
    found = fn(q, k, v, S_lengths=queries, T_lengths=keys)
    assert {c.family for c in fn.explain(S=queries, T=keys).calls} == {family}
    (wanted,) = evaluate_ragged(fn.program.source, "B", [q, k, v], {"S": queries, "T": keys})
    np.testing.assert_allclose(found[:36].reshape(-1), wanted[: 36 * HEADS * 16], 1e-2, 1e-2)
    assert np.isnan(found[36:]).all()


def test_attention_of_short_sequences_is_one_kernel() -> None:
    """A second one would be launched by every call, with nothing to do in most."""
    for longest, kernels in ((512, 1), (600, 2)):
        fn = tw.compile(layer("f16"), {"B": (0, 8), "S": tw.Ragged(0, longest, over="B")}, target="emulator:sm_90a")
        (call,) = [c for c in fn.explain(S=[3]).calls if c.family == "gpu_attention"]
        assert len(fn.program.tables[fn.program.calls[call.call].table].kernels) == kernels


def test_rows_that_no_tensor_map_takes() -> None:
    """Rows of 8 bytes: another family serves all sequences, and no map is made for the kernels that no sequence chooses."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", 4], "f16"), g.input("w", ["E", 4, 24], "f16")))
    fn = tw.compile(g, {"E": (1, 8), "R": tw.Ragged(0, 40, over="E")}, target="emulator:sm_90a")
    rng, lengths = np.random.default_rng(0), [2, 0, 33]
    x, w = rng.standard_normal((35, 4)).astype(np.float16), rng.standard_normal((3, 4, 24)).astype(np.float16)
    wanted = np.concatenate([x[:2].astype(float) @ w[0], x[2:].astype(float) @ w[2]])
    np.testing.assert_allclose(fn(x, w, R_lengths=lengths), wanted, 1e-2, 1e-2)


def test_several_lengths() -> None:
    """Products of own M, N and K: where a sequence begins is a sum over those before it."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("a", ["B", "M", "K"]), g.input("b", ["B", "K", "N"])))
    fn = tw.compile(g, {"B": (1, 8), **{n: tw.Ragged(0, 64, over="B") for n in "MNK"}}, target="emulator:sm_90a")
    sizes, rng = ((3, 5, 7), (17, 33, 1), (0, 4, 9), (40, 9, 36)), np.random.default_rng(0)
    a = [rng.standard_normal((m, k)).astype(np.float32) for m, _, k in sizes]
    b = [rng.standard_normal((k, n)).astype(np.float32) for _, n, k in sizes]
    for x, y, z in zip(a, b, fn(a, b), strict=True):
        np.testing.assert_allclose(z, x.astype(float) @ y, 1e-4, 1e-4)


def test_lengths_that_nobody_sees_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lengths are on the device alone, the prelude leaves out what is outside of the range or of the rows; no access leaves
    its array, and the other sequences are right."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 8])
    g.output(ops.add(ops.softmax(x, 1), 1.0))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(2, 40, over="B", multiple_of=2)}, target="emulator:sm_90a")
    monkeypatch.setattr(fn._caller, "_seen", lambda offsets: [0] * len(offsets))
    monkeypatch.setattr(fn._caller.device.memory, "read", written(fn._caller.device.memory.read))
    rows = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    for offsets in ([0, 4, 1, 60, 60], [0, 4, 400, 404, 60], [0, 4, 5, 8, 60], [-4, 4, 1 << 62, 50, 60], [0, 4, 20, 20, 60]):
        found = fn.call_flat(rows, np.array(offsets))
        for begin, end in pairwise(offsets):
            if begin >= 0 and end <= 60 and 2 <= end - begin <= 40 and (end - begin) % 2 == 0:
                wanted = np.exp(rows[begin:end]) / np.exp(rows[begin:end]).sum(0) + 1
                np.testing.assert_allclose(found[begin:end], wanted, 1e-5)


def written(read: object) -> object:
    """Device memory of which all counts as written: what is left out is not."""
    def reading(address: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        data, valid = read(address, size)  # type: ignore[operator]
        return data, np.ones_like(valid)

    return reading


def test_rows_between_aligned_sequences_are_the_only_unwritten_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With these set, the check for reads of what nobody wrote finds nothing; without those of temporaries it finds them."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 8])
    g.output(ops.dense(ops.softmax(x, 1), g.input("w", [8, 8])))  # of each sequence alone, then of all rows at once
    dims = {"B": tw.Dim(0, 8), "S": tw.Ragged(0, 40, over="B", align=4)}
    fn = tw.compile(g, dims, target="emulator:sm_90a")
    gaps, rng = GapRows(g, dims, fn), np.random.default_rng(0)
    rows, w = rng.standard_normal((sum(LENGTHS), 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    x_in = tw.Jagged(rows, lengths=LENGTHS).aligned(4)
    gaps.of({"S": LENGTHS})
    found = fn(x_in, w)
    (wanted,) = evaluate_ragged(fn.program.source, "B", [rows, w], {"S": LENGTHS})
    np.testing.assert_allclose(np.concatenate(list(found)).reshape(-1), wanted, 1e-5, 1e-5)
    assert len(gaps.plan.parts) == 1
    monkeypatch.setattr(gaps.plan, "parts", {})
    gaps.of({"S": LENGTHS})
    with pytest.raises(tw.errors.TilewrightError, match=r"uninitialised|never written|nobody wrote"):
        fn(x_in, w)
