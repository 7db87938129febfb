"""torch.compile with backend="tilewright": one compile for all sizes, nothing wrong where something cannot be compiled."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from tilewright.compiler.torch_backend.backend import tilewright  # noqa: E402
from tilewright.runtime.errors import OptionError  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=tilewright, dynamic=True, **options)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_one_compile_for_all_sizes() -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    run = compiled(model)
    for shape in ((2, 5, 32), (3, 17, 32), (7, 33, 32)):
        x = torch.randn(shape)
        close(run(x), model(x))
    assert graphs() == 1 and counters["tilewright"] == {"graphs": 1}


def test_a_mask_that_is_made_of_sizes() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()

    def causal(x: torch.Tensor) -> torch.Tensor:
        return layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)

    run = compiled(causal)
    for shape in ((2, 5, 32), (3, 17, 32)):
        x = torch.randn(shape)
        close(run(x), causal(x))
    assert counters["tilewright"] == {"graphs": 1}


def test_sizes_that_equations_tie_are_taken_as_they_are() -> None:
    weight = torch.randn(1, 17, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 4, 4, 8).sum(2) + weight

    run = compiled(function)
    for n in (3, 7):
        x = torch.randn(n, 17 * 4, 8)
        close(run(x), function(x))
    assert counters["tilewright"] == {"graphs": 1}


def test_tensors_come_from_sizes_alone() -> None:
    run = compiled(lambda n: torch.arange(n) * 2)
    for n in (3, 7):
        assert torch.equal(run(n), torch.arange(n) * 2)


def test_sizes_views_and_numbers_come_back_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()

    def function(x: torch.Tensor, k: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        return model(x).view(-1) * k, x.shape[0], x[1:]

    run = compiled(function)
    for n, k in ((5, 3), (6, 4), (9, 2)):
        x = torch.randn(n, 8)
        made, size, view = run(x, k)
        close(made, function(x, k)[0])
        assert size == n and torch.equal(view, x[1:]) and view.data_ptr() == x[1:].data_ptr()
    assert counters["tilewright"] == {"graphs": 1}


def test_weights_that_change_are_seen() -> None:
    model = nn.Linear(8, 4).eval()
    run = compiled(model)
    x = torch.randn(3, 8)
    close(run(x), model(x))
    model.weight.mul_(2)
    close(run(x), model(x))
    model.weight.data = torch.randn(4, 8)
    close(run(x), model(x))
    assert counters["tilewright"] == {"graphs": 2}, "the second compile takes weights as arguments"


def test_inputs_and_buffers_are_changed_in_place() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x.sum(0)
            x.mul_(2)
            return x + self.total

    model, run_on = Counter(), Counter()
    run = compiled(run_on)
    for n in (3, 5):
        x = torch.randn(n, 8)
        y = x.clone()
        close(run(x), model(y))
        close(x, y)
        close(run_on.total, model.total)


def test_unknown_operators_run_in_eager_mode_between_compiled_parts(caplog: pytest.LogCaptureFixture) -> None:
    @torch.library.custom_op("tilewright_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    first, second = nn.Linear(8, 8), nn.Linear(8, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return second(twice(first(x).relu()).tanh())

    run = compiled(function)
    with caplog.at_level(logging.WARNING, "tilewright"):
        for n in (3, 6):
            x = torch.randn(n, 8)
            close(run(x), function(x))
    assert counters["tilewright"] == {"graphs in parts": 1}
    assert "tilewright_test.twice.default run in eager mode between 2 compiled parts" in caplog.text
    assert len(caplog.records) == 1


def test_graphs_that_need_gradients_run_in_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(8, 4)
    run = compiled(model)
    with torch.enable_grad(), caplog.at_level(logging.WARNING, "tilewright"):
        run(torch.randn(3, 8)).sum().backward()
    assert model.weight.grad is not None
    assert "require gradients" in caplog.text and counters["tilewright"] == {"eager graphs": 1}


def test_graph_breaks_give_several_graphs() -> None:
    model = nn.Linear(8, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        x = model(x)
        torch._dynamo.graph_break()
        return model(x).relu()

    run = compiled(function)
    x = torch.randn(4, 8)
    close(run(x), function(x))
    assert counters["tilewright"] == {"graphs": 2}


def test_marked_sizes_and_automatic_ones() -> None:
    model = nn.Linear(8, 8)
    marked = torch.compile(model, backend=tilewright)
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    close(marked(x), model(x))
    close(marked(y := torch.randn(64, 8)), model(y))
    assert graphs() == 1
    torch._dynamo.reset()
    automatic = torch.compile(model, backend=tilewright)
    for n in (4, 5, 9):
        close(automatic(x := torch.randn(n, 8)), model(x))
    assert graphs() == 3, "the first size is taken as fixed, the second makes it dynamic"


def test_options() -> None:
    model = nn.Linear(8, 8)
    run = compiled(model, options={"threads": 1})
    close(run(x := torch.randn(4, 8)), model(x))
    with pytest.raises(Exception, match="secnds"):
        compiled(model, options={"secnds": 3})(torch.randn(3, 8))
    with pytest.raises(OptionError, match="mode"):
        tilewright(torch.fx.symbolic_trace(model), [torch.randn(2, 8)], mode="max-autotune")
