"""Models that torch.export by itself holds to a part of the range of their dims, or to the sizes of the example: compiled for all
of the range and compared with PyTorch, or refused where the example decides what is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.compiler.frontends.torch.importer import import_torch  # noqa: E402
from tilewright.runtime.errors import IngestError, ShapeError  # noqa: E402

Dim, F = torch.export.Dim, torch.nn.functional
ROWS = {0: Dim("rows", min=1, max=40)}


def model(function: Callable[..., Any]) -> Any:
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    return Model().eval()


def agrees(function: Callable[..., Any], shapes: Sequence[Sequence[int]], dims: Any) -> Any:
    """Compiles with the first shape as example and compares at all; the compiled function."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(tuple(s), generator=generator) for s in shapes]
    fn = tw.compile(model(function), args=(inputs[0],), dynamic_shapes=(dims,))
    for x in inputs:
        wanted, got = function(x), fn(x)
        for w, g in zip(*(v if isinstance(v, tuple) else (v,) for v in (wanted, got)), strict=True):
            assert g.shape == w.shape
            torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-6)
    return fn


def test_slices_that_an_axis_may_be_shorter_than() -> None:
    def run(x: Any) -> Any:
        y = x.clone()
        y[:10] = 1
        return x[:10] * 2, x[-10:].sum(0), x[3:9].exp(), torch.cat([x[2:], x[:2]]), y

    agrees(run, [(17, 3), (1, 3), (2, 3), (10, 3), (40, 3)], ROWS)


def test_windows_of_padded_images() -> None:
    """As Swin cuts them; torch.export asks for the strides of each view."""

    def run(x: Any) -> Any:
        n, h, w, c = x.shape
        padded = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        tall, wide = padded.shape[1:3]
        cut = padded.view(n, tall // 4, 4, wide // 4, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, c).softmax(1)
        whole = cut.view(n, tall // 4, wide // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(n, tall, wide, -1)
        return torch.roll(whole, (-2, -2), (1, 2))[:, :h, :w]

    dims = {0: Dim("batch", min=1, max=4), 1: Dim("h", min=1, max=12), 2: Dim("w", min=1, max=12)}
    agrees(run, [(3, 7, 10, 2), (1, 1, 1, 2), (2, 4, 5, 2), (4, 12, 12, 2)], dims)


def test_halves_of_what_was_padded_to_even() -> None:
    """Their sizes are equal for all of the range, and written differently."""

    def run(x: Any) -> Any:
        y = F.pad(x, (0, 0, 0, x.shape[0] % 2))
        return torch.cat([y[0::2], y[1::2]], -1), y[0::2] - y[1::2]

    agrees(run, [(7, 3), (1, 3), (2, 3), (40, 3)], ROWS)


def test_halves_of_a_doubled_batch_of_images_of_a_multiple() -> None:
    """Guidance without a classifier; h is a dim of which the image has a multiple."""

    def run(x: Any) -> Any:
        first, second = torch.cat([x, x * 2]).chunk(2)
        return F.avg_pool2d(first - second, 2)

    dims = {0: Dim("batch", min=1, max=4), 2: 2 * Dim("h", min=1, max=8), 3: Dim("w", min=2, max=9)}
    fn = agrees(run, [(3, 2, 6, 5), (1, 2, 2, 2), (4, 2, 16, 9)], dims)
    assert set(fn.dims) == {"batch", "h", "w"}
    with pytest.raises(ShapeError):
        fn(torch.randn(1, 2, 3, 4))


@pytest.mark.parametrize("asks", [False, True])
def test_a_mask_as_long_as_a_cache_and_what_is_added(asks: bool) -> None:
    """torch.export keeps the size of the mask, and the past becomes a difference; or the model asks twice whether they fit."""

    class Step(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, mask: Any, past: Any) -> Any:
            whole = torch.cat([past, x], 1)
            if asks and (whole.shape[1] + max(0, past.shape[1] - 99) > mask.shape[1] or mask.shape[1] > whole.shape[1]):
                return whole
            return (whole + mask[..., None]).cumsum(1)

    def inputs(past: int, step: int) -> tuple[Any, ...]:
        return torch.randn(2, step, 3), torch.randn(2, past + step), torch.randn(2, past, 3)

    past, step = Dim("past", min=1, max=64), Dim("step", min=1, max=8)
    fn = tw.compile(Step().eval(), args=inputs(17, 3), dynamic_shapes=({1: step}, {1: Dim.AUTO}, {1: past}))
    assert set(fn.dims) == {"past", "step"}
    for given in (inputs(1, 1), inputs(64, 8), inputs(7, 1)):
        torch.testing.assert_close(fn(*given), Step()(*given), rtol=2e-5, atol=2e-6)


def test_a_dim_without_a_name_beside_an_input_that_is_called_so() -> None:
    class Two(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, x_0: Any) -> Any:
            return x * 2 + x_0

    fn = tw.compile(Two().eval(), args=(torch.randn(3, 2), torch.randn(2)), dynamic_shapes=({0: Dim.AUTO}, None))
    x, row = torch.randn(7, 2), torch.randn(2)
    torch.testing.assert_close(fn(x=x, x_0=row), x * 2 + row)
    assert list(fn.dims) == ["x_0_"]


def test_distances_of_any_number_of_points() -> None:
    agrees(lambda x: torch.cdist(x, x.flip(0) + 1), [(7, 3), (1, 3), (25, 3), (26, 3), (40, 3)], ROWS)


@pytest.mark.parametrize("corners", [False, True])
def test_places_that_follow_from_sizes(corners: bool) -> None:
    def run(x: Any) -> Any:
        n, _, h, w = x.shape
        turn = torch.tensor([[0.8, -0.5, 0.1], [0.4, 0.9, -0.2]]).expand(n, 2, 3)
        grid = F.affine_grid(turn, x.shape, align_corners=corners)
        return F.grid_sample(x, grid, align_corners=corners), torch.linspace(0.5, h - 0.5, h) / h, torch.linspace(0, w - 1, 5)

    dims = {0: Dim("batch", min=1, max=4), 2: Dim("h", min=1, max=9), 3: Dim("w", min=1, max=9)}
    agrees(run, [(3, 2, 7, 5), (1, 2, 1, 1), (2, 2, 9, 2), (4, 2, 2, 9)], dims)


def test_an_axis_that_goes_where_it_is_one() -> None:
    fn = tw.compile(model(lambda x: (x * 2).squeeze()), args=(torch.randn(3, 5, 1),), dynamic_shapes=(ROWS,))
    x = torch.randn(9, 5, 1)
    torch.testing.assert_close(fn(x), (x * 2).squeeze())
    with pytest.raises(ShapeError, match=r"squeeze: axis 0 is dropped where it is 1.*x\.squeeze\(2\)"):
        fn(torch.randn(1, 5, 1))


@pytest.mark.parametrize(("function", "said"), [
    (lambda x: torch.stack([p.sum(0) for p in x.chunk(4)]), "takes one path where"),
    (lambda x: torch.stack([p.sum(0) for p in x.split(8)]), "takes one path where"),
    (lambda x: torch.stack([p.sum(0) for p in x.tensor_split(3)]), "takes one path where .*Mod"),
    (lambda x: x * 2 if x.shape[0] > 10 else x, "takes one path where rows > 10"),
])  # fmt: skip
def test_what_the_example_decides_is_refused_with_its_line(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(IngestError, match=said + r".*test_torch_ranges.py:\d+ in .*and another at rows = \d+"):
        tw.compile(model(function), args=(torch.randn(17, 3),), dynamic_shapes=(ROWS,))


def test_a_condition_on_a_dim_without_a_largest_value() -> None:
    with pytest.raises(IngestError, match=r"takes one path where rows > 10 .* at rows = 1;"):
        tw.compile(model(lambda x: x * 2 if x.shape[0] > 10 else x), args=(torch.randn(17, 3),),
                   dynamic_shapes=({0: Dim("rows")},))


def test_ranges_that_torch_fails_to_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error over a range without a size stands in place of the one that says which dims it has narrowed (Swin v2, LongT5)."""
    from tilewright.compiler.frontends.torch import exported

    export, calls = exported._export, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise AssertionError("Cannot create Dim with inconsistent min=2, max=2")
        return export(*args)

    monkeypatch.setattr(exported, "_export", failing)
    agrees(lambda x: x * 2, [(17, 3), (1, 3), (40, 3)], ROWS)
    assert len(calls) == 2


def test_a_function_of_a_size_that_depends_on_data() -> None:
    import sympy

    from tilewright.compiler import ops
    from tilewright.compiler.frontends.torch.sizes import DataDependentSizeError, Sizes

    u0, s0 = sympy.Symbol("u0"), sympy.Symbol("s0")
    sizes = Sizes({s0: "rows"}, ops.Graph())
    with pytest.raises(DataDependentSizeError):
        sizes.expr(sympy.Piecewise((1, sympy.Eq(u0, 1)), (0, True)))
    with pytest.raises(IngestError, match="uses Piecewise"):
        sizes.expr(sympy.Piecewise((1, sympy.Eq(s0, 1)), (0, True)))


def test_writing_where_a_mask_along_some_axes_holds() -> None:
    def run(x: Any) -> Any:
        odd = torch.arange(x.shape[1]) % 2 == 1
        y, z = x.clone(), x.clone()
        y[:, odd] = -1.0
        y[..., x[0, 0] > 0] = torch.tensor([7.0])
        z[x[..., 0] > 0] = torch.arange(4.0)
        return y, z, torch.ops.aten.index_put(x, [None, odd], torch.tensor(0.5), True)

    agrees(run, [(5, 3, 4), (1, 3, 4), (9, 3, 4)], ROWS)
    with pytest.raises(IngestError, match=r"index_put.* as many values as the mask has places.*torch.where"):
        import_torch(model(lambda x: x.index_put([x > 0], torch.zeros(3))), (torch.randn(3, 3),))


def test_operators_on_weights_alone_are_computed_at_once() -> None:
    class Turned(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))

        def forward(self, x: Any) -> Any:
            q, _ = torch.linalg.qr(self.weight * 2)
            return x @ q * torch.hamming_window(5)

    module = Turned().eval()
    fn = tw.compile(module, args=(torch.randn(3, 5),), dynamic_shapes=(ROWS,))
    for rows in (1, 3, 40):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(fn(x), module(x).detach(), rtol=2e-5, atol=2e-6)


class Keywords(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A wrapper, as one writes it around a model of another library."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, **inputs: Any) -> Any:
        return self.function(**inputs)


@pytest.mark.parametrize("nested", [False, True])
def test_ranges_of_inputs_of_a_module_that_takes_any_keywords(nested: bool) -> None:
    def run(x: Any, mask: Any) -> Any:
        y = x[:10] * 2
        y[mask[:10] > 0] = 0
        return y

    shapes = {"x": ROWS, "mask": ROWS}
    given = {"x": torch.randn(17, 3), "mask": torch.ones(17)}
    fn = tw.compile(Keywords(run).eval(), args=(), kwargs=given, dynamic_shapes={"inputs": shapes} if nested else shapes)
    for rows in (1, 10, 40):
        x, mask = torch.randn(rows, 3), (torch.arange(rows) % 2).float()
        torch.testing.assert_close(fn(x=x, mask=mask), run(x, mask))


def test_a_size_that_becomes_a_number_is_refused_of_any_keywords_too() -> None:
    with pytest.raises(IngestError, match=r"takes rows = 17 of the example for a fixed number .* or len\(\)"):
        tw.compile(Keywords(lambda x: torch.stack([x[i] for i in range(len(x))]) * 2).eval(), args=(),
                   kwargs={"x": torch.randn(17, 3)}, dynamic_shapes={"x": ROWS})


def test_attention_of_transformers_over_lengths_that_are_computed() -> None:
    """Its function asks whether there is one query; torch takes more for granted where a length is a dim itself."""
    sdpa = pytest.importorskip("transformers.integrations.sdpa_attention").sdpa_attention_forward

    def run(x: Any) -> Any:
        y = x.reshape(1, x.shape[0], 2, 3).transpose(1, 2)[:, :, ::4].contiguous()
        return sdpa(torch.nn.Identity(), y, y, y, None, is_causal=False)[0]

    agrees(run, [(17, 6), (1, 6), (4, 6), (5, 6), (40, 6)], ROWS)


def test_a_branch_on_data_is_refused_with_its_line_and_what_to_do() -> None:
    def run(x: Any) -> Any:
        return x * 2 if int(x.sum()) > 3 else x

    words = r"decides by data, .*, at .*test_torch_ranges.py:\d+ in run .*torch.cond"
    with pytest.raises(IngestError, match=words) as found:
        agrees(run, [(17, 3)], ROWS)
    assert "TORCH_LOGS" not in str(found.value)
