"""compress: weights of products in few bits, what stays plain and why, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main
from tilewright.compiler.compress.quantise import quantise
from tilewright.compiler.ops.codes import planes
from tilewright.runtime.errors import OptionError

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(3)


def weights() -> list[np.ndarray]:
    return [RNG.standard_normal(s).astype(np.float32) for s in ((96, 128), (96, 64), (8, 64))]


def graph(arrays: list[np.ndarray]) -> ops.Graph:
    """[3, 128] -> [3, 96] by [N, K], -> [3, 64] by [K, N], -> [3, 8]."""
    g = ops.Graph()
    x = ops.dense(g.input("x", [3, 128]), g.constant(arrays[0], "first"), transposed=True, activation="relu")
    g.output(ops.dense(ops.dense(x, g.constant(arrays[1], "second")), g.constant(arrays[2], "third"), transposed=True))
    return g


def decoded(weight: np.ndarray, bits: int, group: int) -> np.ndarray:
    made = quantise(weight, bits, group)
    codes, place = np.zeros(weight.shape, np.int64), 0
    for part, width in zip(made.codes, planes(bits), strict=True):
        spread = np.stack([(part >> s) & ((1 << width) - 1) for s in range(0, 8, width)], -1).reshape(len(weight), -1)
        codes += spread[:, : weight.shape[1]].astype(np.int64) << place
        place += width
    scale = made.scale if made.scale.ndim > 1 else made.scale[:, None]
    k = weight.shape[1]
    return (codes - (1 << (bits - 1))) * scale[:, np.arange(k) // (group or k)]


@pytest.mark.parametrize("bits,least", [(8, 0.006), (5, 0.05), (4, 0.10), (3, 0.2), (2, 0.55), (1, 0.9)])
def test_codes_are_nearest_and_the_error_is_told(bits: int, least: float) -> None:
    weight = RNG.standard_normal((5, 70)).astype(np.float32)
    for group in (0, 32):
        found = decoded(weight, bits, group)
        error = np.linalg.norm(found - weight) / np.linalg.norm(weight)
        assert error == pytest.approx(quantise(weight, bits, group).error, rel=1e-4)
        assert error < least * (1.8 if group == 0 else 1)
    assert not decoded(np.zeros((2, 40), np.float32), bits, 0).any()


def test_a_model_of_codes() -> None:
    arrays = weights()
    found = tw.compress(graph(arrays), bits=4, group=32)
    assert [(x.name, x.shape, x.bits, x.reason) for x in found.layers] == [
        ("first", (96, 128), 5.0, ""), ("second", (64, 96), 5.0, ""), ("third", (8, 64), 32.0, "small")]
    assert found.before == 4 * sum(a.size for a in arrays) and found.after < found.before / 4.5 and "first" in str(found)
    fn = tw.compile(found.model)
    assert str(fn.explain()).count("host_codes") >= 2
    x = RNG.standard_normal((3, 128)).astype(np.float32)
    want = np.maximum(x @ decoded(arrays[0], 4, 32).T, 0) @ decoded(arrays[1].T.copy(), 4, 32).T @ arrays[2].T
    assert np.allclose(fn(x), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_stays_plain() -> None:
    found = tw.compress(graph(weights()), bits=2, group=64, max_error=0.3, keep=["second"])
    assert found.layers[0].reason.startswith("would lose ") and found.layers[1].reason == "kept as asked"
    assert found.after == found.before


def test_mistakes_are_named() -> None:
    wrongs = ({"bits": 9}, "bits=9; wanted 1 to 8"), ({"group": 20}, "group=20"), ({"max_error": 0}, "max_error=0"), (
        {"keep": ["nine"]}, "nine; the weights of products are first, second, third")
    for wrong, message in wrongs:
        with pytest.raises(OptionError, match=message):
            tw.compress(graph(weights()), **wrong)
    arrays = weights()
    arrays[0][3, 4] = np.nan
    with pytest.raises(OptionError, match=r"first.*NaN"):
        tw.compress(graph(arrays))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", [2, 128]), g.input("w", [64, 128]), transposed=True))
    (tmp_path / "m.mlir").write_text(g.module_text())
    weight = RNG.standard_normal((64, 128)).astype(np.float32)
    np.savez(tmp_path / "w.npz", w=weight)
    code = main(["compress", str(tmp_path / "m.mlir"), "--constants", str(tmp_path / "w.npz"), "--bits", "8", "-o",
                 str(tmp_path / "m.tw"), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0 and [(x["name"], x["bits"]) for x in lines if x["event"] == "layer"] == [("w", 9.0)]
    x = RNG.standard_normal((2, 128)).astype(np.float32)
    assert np.allclose(tw.load(tmp_path / "m.tw")(x), x @ weight.T, atol=0.2)
