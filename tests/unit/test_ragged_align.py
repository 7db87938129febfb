"""Sequences that begin at multiples of some rows: every kind of argument, what lies between them, the command line, the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.arguments import parse_dims
from tilewright.compiler.cli.batches import batches_of
from tilewright.compiler.cli.main import main
from tools import guards

pytestmark = pytest.mark.usefixtures("built_here")

WIDTH = 8
LENGTHS = (5, 0, 17, 1, 40, 8)


@pytest.fixture(scope="module")
def fn() -> tw.CompiledFunction:
    """A product over all rows, and a softmax along each sequence."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", WIDTH])
    y = ops.softmax(ops.dense(x, g.input("w", [WIDTH, WIDTH])), 1)
    g.output(y, ops.sum(y, 1))
    return tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 40, over="B", align=8)})


@pytest.fixture(scope="module")
def saved(fn: tw.CompiledFunction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aligned") / "model.tw"
    fn.save(path)
    return path


@pytest.fixture
def batch() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((n, WIDTH), dtype=np.float32) for n in LENGTHS]
    return xs, rng.standard_normal((WIDTH, WIDTH), dtype=np.float32)


def alone(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    made = np.exp((x.astype(np.float64) @ w) - 4)
    return made / made.sum(0)


def test_kinds(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray]) -> None:
    """NaN between the sequences reaches none, and the kind that came in comes out, aligned as the dim is."""
    xs, w = batch
    listed, sums = fn(xs, w)
    for x, y in zip(xs, listed, strict=True):
        np.testing.assert_allclose(y, alone(x, w), 2e-5, 1e-6)
    assert np.allclose(sums, [[float(n > 0)] * WIDTH for n in LENGTHS], 1e-5)
    jagged = tw.Jagged.of(xs, align=8)
    starts = [0, 8, 8, 32, 40, 80, 88]
    assert (jagged.align, jagged.starts.tolist(), jagged.lengths.tolist()) == (8, starts, list(LENGTHS))
    for start, n, following in zip(starts, LENGTHS, starts[1:], strict=False):
        jagged.values[start + n : following] = np.nan
    found = fn(jagged, w)[0]
    assert isinstance(found, tw.Jagged) and found.align == 8
    rows = [fn(jagged.values, w, S_lengths=LENGTHS)[0], fn(jagged.values, w, jagged.offsets)[0]]
    for number, y in enumerate(listed):
        assert np.array_equal(found[number], y)
        for packed in rows:
            assert np.array_equal(packed[starts[number] : starts[number] + len(y)], y)
    again = tw.Jagged(jagged.values, offsets=jagged.offsets, align=8).aligned(1)
    assert type(again) is tw.Jagged and np.array_equal(again.values, np.concatenate(xs))


def test_torch(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    tensors, w = [torch.from_numpy(x) for x in batch[0]], torch.from_numpy(batch[1])
    wanted = fn(*batch)[0]
    nested = fn(torch.nested.nested_tensor(tensors, layout=torch.jagged), w)[0]
    for found in (nested.unbind(), fn(tensors, w)[0], fn(tw.Jagged.of(tensors, align=8), w)[0]):
        for a, b in zip(found, wanted, strict=True):
            assert np.array_equal(a.numpy(), b)


def test_refusals(fn: tw.CompiledFunction, batch: tuple[list[np.ndarray], np.ndarray]) -> None:
    xs, w = batch
    rows = tw.Jagged.of(xs, align=8)
    with pytest.raises(tw.errors.ShapeError, match=r"wanted sequences aligned to 8 rows, got 1; pass \.aligned\(8\)"):
        fn(tw.Jagged.of(xs), w)
    with pytest.raises(tw.errors.ShapeError, match="has 80 rows, and the lengths of S add up to 88, with S aligned to 8"):
        fn(rows.values[:80], w, S_lengths=LENGTHS)
    with pytest.raises(tw.errors.ShapeError, match="S_offsets: the last sequence ends at 88"):  # native code adds them up too
        fn.call_flat(rows.values[:80], w, rows.offsets)
    with pytest.raises(tw.errors.ShapeError, match="the rows that align=8 leaves between them"):
        tw.Jagged(rows.values[:80], lengths=LENGTHS, align=8)
    for wrong in (0, -8, 1.5, True):
        with pytest.raises(tw.errors.OptionError, match="align"):
            tw.Ragged(1, 8, over="B", align=wrong)  # type: ignore[arg-type]
        with pytest.raises(tw.errors.OptionError, match="align"):
            tw.Jagged(rows.values, lengths=LENGTHS, align=wrong)  # type: ignore[arg-type]


def test_lengths_that_are_multiples_leave_no_rows() -> None:
    """Nothing is summed then, and tw.Jagged takes the native path."""
    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["B", "S", 2])))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 16, over="B", multiple_of=8, align=4)})
    assert not fn.program.ragged[0].has_gaps
    x = tw.Jagged(np.arange(-16, 32, dtype=np.float32).reshape(24, 2), lengths=[8, 16])
    assert np.array_equal(fn(x).values, np.maximum(x.values, 0))


def test_blocks() -> None:
    """What is no rows, with two aligned dims: each sequence's elements lie together, and room is left behind them."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("a", ["B", "M", "K"]), g.input("b", ["B", "K", 4])))
    fn = tw.compile(g, {"B": (0, 8), "M": tw.Ragged(0, 9, over="B", align=4), "K": tw.Ragged(0, 9, over="B", align=2)})
    rng = np.random.default_rng(0)
    sizes = ((3, 5), (0, 9), (9, 1), (4, 0))
    a, b = ([rng.standard_normal(s, dtype=np.float32) for s in own] for own in (sizes, [(k, 4) for _, k in sizes]))
    for x, y, z in zip(a, b, fn(a, b), strict=True):
        np.testing.assert_allclose(z, x @ y, 1e-5, 1e-5)
    flat = np.full(24 + 0 + 24 + 0, np.nan, np.float32)
    flat[:15], flat[24:33] = a[0].reshape(-1), a[2].reshape(-1)
    packed = tw.Jagged.of(b, align=2).values
    found = fn(flat, packed, M_lengths=[m for m, _ in sizes], K_lengths=[k for _, k in sizes])
    assert found.shape == (4 + 0 + 12 + 4, 4)
    np.testing.assert_allclose(found[4:13], a[2] @ b[2], 1e-5, 1e-5)


def test_lengths_by_number() -> None:
    g = ops.Graph()
    g.output(ops.softmax(g.input("x", ["i", "S"])))
    fn = tw.compile(g, {"i": (0, 16), "S": tw.Ragged(of="i + 1", over="i", align=4)})
    rows = [np.arange(i + 1, dtype=np.float32) for i in range(6)]
    packed = tw.Jagged.of(rows, align=4)
    found = fn(packed.values)
    assert len(found) == 4 * 4 + 8 * 2
    for start, x in zip(packed.starts, rows, strict=False):
        np.testing.assert_allclose(found[start : start + len(x)], np.exp(x) / np.exp(x).sum(), 1e-5)


def test_figures(fn: tw.CompiledFunction) -> None:
    """Rows between sequences are executed and not useful, and their bytes are told."""
    product = next(c for c in fn.explain(S=LENGTHS).calls if c.dims.get("d0") == 88)
    assert product.useful * 88 <= product.executed * 71
    used = fn.memory(S=LENGTHS, threads=1)
    assert used.padding >= 4 * WIDTH * (88 - 71)
    assert fn.memory(S=(8, 40, 16), threads=1).padding == 0


def test_between_guard_pages(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert guards.main([str(saved), "--shapes", "12", "--here"]) == 0
    assert "12 shapes between guard pages, 0 wrong" in capfd.readouterr().out


def test_batches_that_are_tried(fn: tw.CompiledFunction) -> None:
    found = [b["S"] for b in batches_of(fn.program, 20, seed=0)]
    assert found[0] == [] and len(found[1]) == 1
    assert {0, 40} <= {n for own in found for n in own}
    assert any(own and set(own) == {40} for own in found)
    assert found == [b["S"] for b in batches_of(fn.program, 20, seed=0)]


def test_command_line(saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dims = parse_dims(["B=0:8", "S@x.1=ragged:0:40:B:align=8", "T=ragged:8:64:8:B", "R=ragged:of=i+1:i:align=4"]).as_ranges()
    assert dims["S"] == tw.Ragged(0, 40, over="B", at="x.1", align=8)
    assert dims["T"] == tw.Ragged(8, 64, over="B", multiple_of=8)
    assert dims["R"] == tw.Ragged(of="i + 1", over="i", align=4)
    wrong: list[tuple[str, str]] = [("S=1:8:align=8", "wanted NAME=LO:HI"), ("S=ragged:0:40:B:align=0", "align=0"),
                                    ("R=ragged:of=j+1:i", "wanted an expression")]
    for text, said in wrong:
        with pytest.raises(typer.BadParameter, match=said):
            parse_dims([text])
    assert main(["run", str(saved), "--dim", "S=5,0,9", "--check", "--json"]) == 0
    assert main(["run", str(saved), "--shapes", "5", "--check", "--json"]) == 0
    assert '"wrong":0' in capsys.readouterr().out.replace(" ", "")
    assert main(["run", str(saved), "--dim", "S=5,41", "--json"]) == 1
    assert "41 of sequence 1" in capsys.readouterr().err
    assert main(["explain", str(saved), "--dim", "S=5"]) == 0


def test_page(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    page = tmp_path / "page.html"
    for given, said in (([], "Lengths: S = 0, 2, 3, 5, 8, 14, 24, 40."), (["--dim", "S=5,9"], "Lengths: S = 5, 9.")):
        assert main(["report", str(saved), "-o", str(page), *given]) == 0
        text = page.read_text()
        assert said in text and "<dt>executed operations</dt>" in text
    assert main(["report", str(saved), "-o", str(page), "--dim", "S=5,41"]) == 1
    assert "41 of sequence 1" in capsys.readouterr().err


def emulated(lengths: tuple[int, ...], **more: Any) -> tuple[tw.CompiledFunction, list[np.ndarray], np.ndarray]:
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["E", "R", 64], "f16"), g.input("w", ["E", 64, 64], "f16")))
    fn = tw.compile(g, {"E": (1, 8), "R": tw.Ragged(0, 64, over="E", align=8)}, target="emulator:sm_90a", **more)
    rng = np.random.default_rng(0)
    return (fn, [rng.standard_normal((n, 64)).astype(np.float16) for n in lengths],
            (rng.standard_normal((len(lengths), 64, 64)) / 8).astype(np.float16))


def test_block_tables() -> None:
    """On a GPU tensor maps take aligned rows as they are."""
    fn, xs, w = emulated((5, 0, 33, 3))
    rows = tw.Jagged.of(xs, align=8)
    rows.values[5:8] = np.nan
    found = fn(rows, w)
    assert {c.family for c in fn.explain(R=(5, 0, 33, 3)).calls} == {"wgmma"}
    for x, y, own in zip(xs, found, w, strict=True):
        np.testing.assert_allclose(y, x.astype(float) @ own, 1e-2, 1e-2)
