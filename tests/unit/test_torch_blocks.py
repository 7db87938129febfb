"""Results that become PyTorch's tensors lie in blocks of their own, behind what describes them."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.call.torch_blocks import ALIGN
from tilewright.runtime.host import host_caller

torch = pytest.importorskip("torch")


def saved(folder: Path, many: int = 0) -> Path:
    """A model of a matrix, a row and a single value; of so many more matrices, by which its arrays are walked over."""
    g = ops.Graph()
    x = g.input("x", ["T", 7])
    for result in (x * 2.0, ops.sum(x, [0]), ops.sum(x, [0, 1]), *(x + float(n) for n in range(many))):
        g.output(result)
    path = folder / f"model{many}.tw"
    tw.compile(g, {"T": (0, 100_000)}).save(path)
    return path


@pytest.mark.parametrize("many", [0, 20])
@pytest.mark.parametrize("own", [True, False])
def test_results_are_tensors_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool, many: int) -> None:
    if not own:
        monkeypatch.setattr(host_caller, "fill_blocks", lambda code: None)
    fn = tw.load(saved(tmp_path, many))
    for size in (0, 1, 5, 1000):
        x = torch.rand(size, 7)
        for _ in range(2):  # the first call with tensors comes from Python
            doubled, row, total, *others = fn(x)
        assert torch.equal(doubled, x * 2) and doubled.shape == (size, 7) and doubled.stride() == (7, 1)
        assert row.shape == (7,) and torch.allclose(row, x.sum(0), rtol=1e-4) and total.shape == ()
        assert all(torch.equal(other, x + n) for n, other in enumerate(others))
        assert doubled.data_ptr() % ALIGN == 0 and not doubled.requires_grad and doubled.is_leaf
        doubled.add_(1)
        assert torch.equal(doubled, x * 2 + 1)


def test_results_outlive_the_function_and_are_given_back(tmp_path: Path) -> None:
    fn, x = tw.load(saved(tmp_path)), torch.rand(50_000, 7)
    kept = [fn(x)[0] for _ in range(3)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(300):
        fn(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB; 300 results take 420,000
    part = kept.pop()[3:5].requires_grad_()
    del fn, kept
    gc.collect()
    (part * 3).sum().backward()
    assert torch.equal(part, x[3:5] * 2) and torch.equal(part.grad, torch.full((2, 7), 3.0))
