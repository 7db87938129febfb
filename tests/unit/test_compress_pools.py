"""compress with pools: k-means, what stays plain and why, the size of what is stored, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main
from tilewright.compiler.compress.cluster import cluster, nearest
from tilewright.compiler.compress.pooling import PoolOptions, pooled
from tilewright.runtime.errors import DTypeError, OptionError
from tilewright.runtime.program.artifact import Artifact

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(6)


def network() -> tuple[ops.Graph, dict[str, np.ndarray]]:
    """Convolutions of 3, then 16 and 32 channels, then a product."""
    g = ops.Graph()
    arrays = {"a": RNG.standard_normal((16, 3, 3, 3)), "b": RNG.standard_normal((32, 16, 3, 3)),
              "c": RNG.standard_normal((64, 32, 3, 3)), "d": RNG.standard_normal((64, 96))}
    arrays = {name: a.astype(np.float32) for name, a in arrays.items()}
    x = g.input("x", ["B", 3, 8, 8])
    for name in "abc":
        x = ops.relu(ops.conv2d(x, g.constant(arrays[name], name), padding=1, stride=2 if name == "c" else 1))
    g.output(ops.dense(ops.mean(x, (2, 3)), g.constant(arrays["d"], "d")))
    return g, arrays


def test_centres_follow_from_the_seed_and_vectors_that_repeat_are_found() -> None:
    few = RNG.standard_normal((12, 8)).astype(np.float32)
    many = few[RNG.integers(0, 12, 20_000)]
    centres = cluster(many, 16, 1)
    assert np.allclose(centres[nearest(many, centres)], many, atol=1e-5)
    vectors = RNG.standard_normal((6000, 8)).astype(np.float32)
    assert np.array_equal(cluster(vectors, 32, 3), cluster(vectors, 32, 3))
    assert len(cluster(vectors[:5], 8, 0)) == 8 and cluster(vectors[:0], 8, 0).shape == (8, 8)
    lost = [np.square(vectors - (c := cluster(vectors, n, 0))[nearest(vectors, c)]).sum() for n in (4, 32, 200)]
    assert lost[0] > lost[1] > lost[2]


@pytest.mark.parametrize("assign", ["distance", "cosine"])
def test_the_error_that_is_told_is_that_of_the_decoded_weight(assign: str) -> None:
    weight = (RNG.standard_normal((40, 3, 16)) * np.geomspace(0.1, 10, 40)[:, None, None]).astype(np.float32)
    (made,) = pooled([weight], PoolOptions(64, "layer", assign))
    found = made.pool.astype(np.float64)[made.index].reshape(weight.shape) * made.factor
    if made.scale is not None:
        found = found * made.scale[:, None, None]
    assert made.error == pytest.approx(np.linalg.norm(found - weight) / np.linalg.norm(weight), rel=1e-4)
    assert made.error < 0.75 and made.index.shape == (40, 3, 2) and (made.scale is None) is (assign == "distance")


def test_a_network_by_one_pool() -> None:
    g, arrays = network()
    found = tw.compress(g, {"B": (1, 4)}, pool=64, keep=["d"])
    assert [(x.name, x.reason) for x in found.layers] == [("a", "small"), ("b", ""), ("c", ""), ("d", "kept as asked")]
    pool = 64 * 8
    stored = sum(arrays[n].size // 8 * 6 // 8 for n in "bc") + pool
    assert found.after == stored + sum(arrays[n].nbytes for n in "ad")
    assert found.layers[2].bits == pytest.approx(8 * (6 / 64 + pool / (arrays["b"].size + arrays["c"].size)))
    fn, plain = (tw.compile(m, {"B": (1, 4)}) for m in (found.model, g))
    assert str(fn.explain(B=2)).count("host_pools") >= 2
    assert stored_bytes(fn) < found.after + 1500  # the first layer's filters lie in whole panels
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    got, want = fn(x), plain(x)
    assert 0 < np.linalg.norm(got - want) / np.linalg.norm(want) < 1.0


def test_one_model_for_all_bits_of_its_activations() -> None:
    g, _ = network()
    found = tw.compress(g, {"B": (1, 4)}, pool=32, activation_bits="A", keep=["d"])
    fn, plain = tw.compile(found.model, {"B": (1, 4)}), tw.compile(tw.compress(g, {"B": (1, 4)}, pool=32, keep=["d"]).model)
    assert fn.dims["A"].hi == 8 and str(fn.explain(B=2, A=4)).count("host_pools") >= 2
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    want = plain(x)
    lost = [np.linalg.norm(fn(x, bits) - want) / np.linalg.norm(want) for bits in (8, 6, 4, 2)]
    assert lost[0] < 0.02 and lost == sorted(lost)


def test_the_bits_are_a_parameter_of_a_torch_model() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    found = tw.compress(model, {"B": (1, 4)}, pool=16, activation_bits="A", max_error=2.0, args=(torch.zeros(2, 64),),
                        dynamic_shapes=({0: "B"},))
    fn = tw.compile(found.model)
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    assert found.layers[1].error > 0 and np.array_equal(fn(x, 8), fn(x, A=8)) and not np.array_equal(fn(x, 8), fn(x, 2))


def uneven() -> tuple[ops.Graph, np.ndarray, np.ndarray]:
    """Two products; what the second multiplies differs by a factor of 100 between its channels. Its weight, and samples."""
    rng = np.random.default_rng(4)
    sizes = np.geomspace(0.1, 10, 64)[rng.permutation(64)].astype(np.float32)
    g, weight = ops.Graph(), rng.standard_normal((64, 96)).astype(np.float32)
    x = ops.multiply(g.input("x", ["B", 64]), g.constant(sizes))
    g.output(ops.matmul(ops.matmul(x, g.constant(np.eye(64, dtype=np.float32), "one")), g.constant(weight, "two")))
    return g, weight, rng.standard_normal((500, 64)).astype(np.float32)


@pytest.mark.parametrize("options,gain", [({"pool": 16, "assign": "activations"}, 0.8), ({"bits": 2, "group": 64}, 0.98)])
def test_errors_weighted_by_activations_lose_less_of_results(options: dict[str, Any], gain: float) -> None:
    g, _, samples = uneven()
    limits: dict[str, Any] = {"max_error": 2.0, "keep": ["one"]}
    plain = tw.compress(g, {"B": (1, 500)}, **limits, **({**options, "assign": "distance"} if "pool" in options else options))
    found = tw.compress(g, {"B": (1, 500)}, samples=[samples, {"x": samples}, (samples,)], **limits, **options)
    want = tw.compile(g, {"B": (1, 500)})(samples)
    got = [tw.compile(c.model, {"B": (1, 500)})(samples) for c in (plain, found)]
    lost = [float(np.linalg.norm(y - want) / np.linalg.norm(want)) for y in got]
    assert lost[1] < gain * lost[0]
    assert found.layers[1].error == pytest.approx(lost[1], rel=0.05)  # channels of the samples have nothing in common


def test_mean_squares_of_images_and_of_samples_that_are_not_finite() -> None:
    g, _ = network()
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    assert tw.compress(g, {"B": (1, 4)}, pool=16, assign="activations", samples=[x]).layers[2].error > 0
    with pytest.raises(OptionError, match="samples is empty"):
        tw.compress(g, {"B": (1, 4)}, pool=16, assign="activations")
    with pytest.raises(DTypeError, match="wanted a dict with x, got one with y"):
        tw.compress(g, {"B": (1, 4)}, pool=16, assign="activations", samples=[{"y": x}])
    with pytest.raises(OptionError, match="NaN or infinite"):
        tw.compress(g, {"B": (1, 4)}, pool=16, assign="activations", samples=[x * np.nan])


def test_importance_moves_centres() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((9000, 8)).astype(np.float32)
    importance = np.tile(np.array([100, 100, 1, 1, 1, 1, 1, 1], np.float32), (9000, 1))
    off = [np.square(vectors - (c := cluster(vectors, 32, 0, h))[nearest(vectors, c, h)]) for h in (None, importance)]
    assert off[1][:, :2].sum() < 0.2 * off[0][:, :2].sum() and (off[1] * importance).sum() < (off[0] * importance).sum()


def stored_bytes(fn: tw.CompiledFunction) -> int:
    """Of all constants."""
    return sum(c.stored_size for c in fn.program.constants)


def test_what_stays_plain() -> None:
    g, _ = network()
    found = tw.compress(g, {"B": (1, 4)}, pool=16, pool_scope="layer", max_error=0.5)
    assert all(x.reason for x in found.layers) and found.after == found.before
    assert "would lose" in found.layers[1].reason
    odd = ops.Graph()
    x = ops.dense(odd.input("x", [2, 100]), odd.constant(RNG.standard_normal((100, 100)).astype(np.float32), "one"))
    odd.output(ops.dense(x, odd.constant(RNG.standard_normal((100, 64)).astype(np.float32), "two")))
    assert [x.reason for x in tw.compress(odd, pool=16).layers] == ["100 channels are no multiple of 8"] * 2


def test_mistakes_are_named() -> None:
    g, _ = network()
    for wrong, message in (({"pool": 300}, "pool=300"), ({"pool": "x"}, "pool='x'"), ({"pool": 8, "seed": -1}, "seed=-1"),
                           ({"pool": 8, "pool_scope": "model"}, "pool_scope='model'"),
                           ({"pool": 8, "assign": "near"}, "assign='near'"),
                           ({"activation_bits": 4}, "together with pool"),
                           ({"pool": 8, "activation_bits": 9}, "activation_bits=9")):
        with pytest.raises(OptionError, match=message):
            tw.compress(g, {"B": (1, 4)}, **wrong)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", [2, 128]), g.input("w", [64, 128]), transposed=True))
    (tmp_path / "m.mlir").write_text(g.module_text())
    weight = RNG.standard_normal((16, 8)).astype(np.float32)[RNG.integers(0, 16, (64, 16))].reshape(64, 128)
    np.savez(tmp_path / "w.npz", w=weight)
    code = main(["compress", str(tmp_path / "m.mlir"), "--constants", str(tmp_path / "w.npz"), "--pool", "16", "-o",
                 str(tmp_path / "m.tw"), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (layer,) = [x for x in lines if x["event"] == "layer"]
    assert code == 0 and layer["bits"] == 0.625 and layer["error"] < 0.01
    x = RNG.standard_normal((2, 128)).astype(np.float32)
    assert np.allclose(tw.load(tmp_path / "m.tw")(x), x @ weight.T, atol=0.5)


@pytest.mark.parametrize("channels", [(32, 64, 64), (32, 64, 128), (64, 128, 256)])
def test_layers_of_a_network_take_less_than_a_part_in_nine_of_their_bytes(channels: tuple[int, ...], tmp_path: Path) -> None:
    """Indices and the pool that they share, against a byte a value: the 3x3 layers of the network of digits, and of residual
    networks, from 16 channels on."""
    g, before = ops.Graph(), 16
    x = g.input("x", ["B", before, 8, 8])
    for number, after in enumerate(channels):
        weight = RNG.standard_normal((after, before, 3, 3)).astype(np.float32)
        x, before = ops.relu(ops.conv2d(x, g.constant(weight, f"w{number}"), padding=1)), after
    g.output(x)
    found = tw.compress(g, {"B": (1, 2)}, pool=64, max_error=1.0)
    made = [layer for layer in found.layers if not layer.reason]
    values = sum(int(np.prod(layer.shape)) for layer in made)
    assert len(made) == len(channels) - 1
    assert values / sum(layer.bits * np.prod(layer.shape) / 8 for layer in made) >= 9
    tw.compile(found.model, {"B": (1, 2)}).save(tmp_path / "m.tw")
    sections = Artifact(tmp_path / "m.tw").manifest.sections
    first = 16 * 9 * channels[0] * 4
    stored = sum(s.size for s in sections if s.name.startswith("constant/")) - first
    assert [s.entries for s in sections if s.entries] == [64] * len(made) and stored == found.after - first
    assert values / stored >= 9
