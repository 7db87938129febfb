"""What users hand over beside plain modules: functions, methods, parametrised layers, torch.vmap, and a grid over volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import tilewright as tw
from tilewright.runtime.errors import IngestError

torch = pytest.importorskip("torch")
nn, Dim = torch.nn, torch.export.Dim
pytestmark = pytest.mark.usefixtures("built_here")
ROWS = Dim("rows", min=1, max=16)


def check(model: Any, *inputs: Any, **options: Any) -> None:
    """Compiles for the first inputs and any number of rows, and compares with all."""
    fn = tw.compile(model, args=inputs[0], dynamic_shapes=tuple({0: ROWS} for _ in inputs[0]), **options)
    with torch.no_grad():
        for given in inputs:
            torch.testing.assert_close(fn(*given), model(*given), rtol=1e-4, atol=1e-5)


def rows(*counts: int, width: int = 8) -> list[Any]:
    return [(torch.randn(count, width),) for count in counts]


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrised_layers_whose_input_has_the_name_of_a_builtin(name: str) -> None:
    """torch.fx calls a copy of `input` input_1."""
    changed = getattr(nn.utils.parametrizations, name)
    check(nn.Sequential(changed(nn.Linear(8, 6)), nn.ReLU()).eval(), *rows(3, 1, 16))


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return torch.vmap(lambda row: torch.vmap(lambda a: (a * row).sum())(row[:, None]) + self.layer(row).softmax(-1).sum())(x)

    def encode(self, x: Any, by: float = 2.0) -> Any:
        return self.layer(x) * by


def test_axes_that_vmap_hides() -> None:
    check(Batched().eval(), *rows(3, 1, 7))


def test_functions_and_methods() -> None:
    def both(x: Any, y: Any) -> Any:
        return {"sum": (x + y).relu(), "parts": (x, None)}

    check(both, *((x, torch.randn_like(x)) for (x,) in rows(3, 1, 7)))
    check(Batched().eval().encode, *rows(3, 1, 7))
    with pytest.raises(IngestError, match=r"Batched\.encode is in training mode"):
        tw.compile(Batched().encode, args=(torch.randn(3, 8),))


@dataclass
class Found:
    x: Any


def test_results_that_torch_does_not_know_are_refused_with_what_to_do() -> None:
    with pytest.raises(IngestError, match=r"returns a .*Found, which PyTorch.*register_dataclass\(Found\)"):
        tw.compile(lambda x: Found(x), args=(torch.randn(3),))


@dataclass
class Pair:
    x: Any
    y: Any = None
    z: Any = None


def test_dataclasses_that_torch_knows_are_arguments_and_give_dicts() -> None:
    torch.export.register_dataclass(Pair)
    fn = tw.compile(lambda p: Pair(p.x + p.z, z=[p.x * 2]), args=(Pair(torch.ones(3), z=torch.ones(3)),))
    x, z = torch.randn(3), torch.randn(3)
    got = fn(Pair(x, z=z))
    assert got.keys() == {"x", "z"} and torch.equal(got["x"], x + z) and torch.equal(got["z"][0], x * 2)
    assert torch.equal(fn({"x": x, "z": z})["x"], x + z)
    with pytest.raises(tw.errors.DTypeError, match="wanted a dict with x, z, got one with x, y"):
        fn(Pair(x, z))


class Counted(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x.reshape(len(x) * 2, -1) / len(x), x.new_ones(len(y), len([x, y])), y.sum()


def test_len_of_a_tensor_is_a_size() -> None:
    """And Python's own again behind the export."""
    check(Counted().eval(), *((x, torch.randn(len(x), 2)) for (x,) in rows(3, 1, 7)))
    check(lambda x: x.sum(0) / len(x), *rows(3, 1, 7))
    assert "len" not in globals()


def test_rows_of_bags_of_one_length() -> None:
    """Whose length is known when it runs: an offset is its number times that."""
    bags = nn.EmbeddingBag(20, 6, mode="sum").eval()
    sizes = ({0: Dim("b", min=1, max=8), 1: Dim("length", min=1, max=9)},)
    given = [torch.randint(0, 20, shape) for shape in ((3, 4), (1, 1), (8, 9))]
    fn = tw.compile(bags, args=(given[0],), dynamic_shapes=sizes)
    for indices in given:
        torch.testing.assert_close(fn(indices), bags(indices).detach(), rtol=1e-5, atol=1e-6)


class Halved(nn.Module):
    def forward(self, x: Any) -> Any:
        return nn.functional.interpolate(x, scale_factor=0.5, mode="area")


def test_means_over_what_may_be_nothing() -> None:
    """An image of one row has no half; the range, which PyTorch finds, does not leave it out."""
    model, given = Halved().eval(), [torch.randn(2, 3, *size) for size in ((8, 10), (9, 7))]
    fn = tw.compile(model, args=(given[0],), dynamic_shapes=(dict.fromkeys(range(4), Dim.AUTO),))
    for x in given:
        torch.testing.assert_close(fn(x), model(x))
    with pytest.raises(tw.errors.ShapeError, match="divides by"):
        fn(torch.randn(2, 3, 1, 7))


class Chunks(nn.Module):
    """Overlapping chunks of a sequence, as Longformer takes them: a number of them that goes through a tensor, and strides."""

    def forward(self, x: Any) -> Any:
        x = x.view(x.size(0), torch.div(x.size(1), 8, rounding_mode="trunc"), 8, x.size(2))
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
        return x.as_strided(size=size, stride=stride)


def test_strided_chunks_of_a_sequence() -> None:
    sizes = ({0: Dim("b", min=1, max=8), 1: 8 * Dim("n", min=2, max=20)},)
    model, given = Chunks().eval(), [torch.randn(*shape) for shape in ((2, 32, 6), (3, 48, 6), (1, 16, 6))]
    fn = tw.compile(model, args=(given[0],), dynamic_shapes=sizes)
    for x in given:
        torch.testing.assert_close(fn(x), model(x))


class Volumes(nn.Module):
    def forward(self, x: Any, grid: Any) -> Any:
        return nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=True)


def test_volumes_at_the_places_of_a_grid() -> None:
    check(Volumes().eval(), *((torch.randn(n, 2, 3, 4, 5), torch.rand(n, 2, 3, 1, 3) * 3 - 1.5) for n in (3, 1, 5)))


class Bags(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(20, 6, **options)

    def forward(self, indices: Any, offsets: Any) -> Any:
        return self.bags(indices, offsets)


@pytest.mark.parametrize("options", [{"mode": "sum", "padding_idx": 3}, {"mode": "mean", "include_last_offset": True},
                                     {"mode": "max"}, {"mode": "mean", "padding_idx": 0}])  # fmt: skip
def test_bags_of_rows_of_a_table(options: dict[str, Any]) -> None:
    """Empty ones among them."""
    model = Bags(**options).eval()
    sizes = ({0: Dim("n", min=1, max=64)}, {0: Dim("bags", min=2, max=9)})
    given = [[2, 3, 1], [1, 1], [0, 5, 1, 0]]
    inputs = [(torch.randint(0, 20, (sum(counts),)), torch.tensor([0, *counts]).cumsum(0)) for counts in given]
    if "include_last_offset" not in options:
        inputs = [(indices, offsets[:-1]) for indices, offsets in inputs]
    fn = tw.compile(model, args=inputs[0], dynamic_shapes=sizes)
    for indices, offsets in inputs:
        torch.testing.assert_close(fn(indices, offsets), model(indices, offsets).detach(), rtol=1e-5, atol=1e-6)
