"""PyTorch models that branch and loop, and recurrent layers over a dynamic length, in one native call each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.steps import LoopStep

torch = pytest.importorskip("torch")
hop = pytest.importorskip("torch._higher_order_ops")
T = torch.export.Dim("T", min=1, max=24)


class Branch(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: self.dense(v), lambda v: v.sin(), (x,))


class BranchOnSize(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.cond(x.shape[0] > 4, lambda v: v + 1, lambda v: v.sin(), (x,))


class Until(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return hop.while_loop(lambda i, v: (i < 9) & (v.sum() < 100), lambda i, v: (i + 1, v * 1.5 + 1), (torch.tensor(0), x))


class Scan(torch.nn.Module):  # type: ignore[misc]
    """Mamba's selective scan."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Any, d: Any, b: Any, c: Any) -> Any:
        rate, steps = -torch.exp(self.a), torch.nn.functional.softplus(d)

        def step(state: Any, given: Any) -> Any:
            x, d, b, c = given
            state = torch.exp(d[..., None] * rate) * state + (d * x)[..., None] * b[:, None, :]
            return state, (state * c[:, None, :]).sum(-1)

        return hop.scan(step, torch.zeros(x.shape[1], 8, 4), (x, steps, b, c))[1]


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def _leaves(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else [leaf for v in value for leaf in _leaves(v)]


def _compared(model: Any, make: Callable[[int], tuple[Any, ...]], shapes: Any, lengths: tuple[int, ...]) -> tw.CompiledFunction:
    torch.manual_seed(0)
    fn = tw.compile(model.eval(), args=make(7), dynamic_shapes=shapes,
                    options={"builder": LocalBuilder(full_target("host"))})
    for length in lengths:
        given = make(length)
        with torch.no_grad():
            wanted = _leaves(model(*given))
        for got, want in zip(_leaves(fn(*given)), wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-5)
    return fn


@pytest.mark.parametrize("model", [Branch, BranchOnSize, Until])
def test_branches_and_loops(model: Any) -> None:
    _compared(model(), lambda t: (torch.randn(t, 4),), ({0: T},), (1, 4, 5, 24))


def test_a_scan_is_no_loop() -> None:
    fn = _compared(Scan(), lambda t: tuple(torch.randn(t, 3, n) for n in (8, 8, 4, 4)), ({0: T},) * 4, (1, 2, 24))
    assert not any(isinstance(step, LoopStep) for step in fn.program.tree)


@pytest.mark.parametrize(("layer", "axis"), [
    (lambda: torch.nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True), 1), (lambda: torch.nn.GRU(4, 8), 0),
    (lambda: torch.nn.RNN(4, 8, nonlinearity="relu"), 0), (lambda: torch.nn.LSTM(4, 8, 2, proj_size=3, bidirectional=True), 0)])
def test_recurrent_layers_over_a_dynamic_length(layer: Callable[[], Any], axis: int) -> None:
    _compared(Recurrent(layer()), lambda t: (torch.randn(*((3, t) if axis else (t, 3)), 4),), ({axis: T},), (1, 2, 24))


class Begun(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(4, 8, proj_size=3, bias=False, batch_first=True)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        return self.layer(x, (h, c))


def test_states_that_are_given_and_a_projection_without_biases() -> None:
    _compared(Begun(), lambda t: (torch.randn(2, t, 4), torch.randn(1, 2, 3), torch.randn(1, 2, 8)), ({1: T}, None, None), (1, 9))


class Packed(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]


def test_packed_sequences_are_refused_with_what_to_do() -> None:
    says = r"packed sequences are not compiled.*give the layer the padded tensor.*call the model for each sequence"
    with pytest.raises(IngestError, match=f"_pack_padded_sequence: {says}"):
        tw.compile(Packed(torch.nn.LSTM(4, 8)).eval(), args=(torch.randn(5, 2, 4), torch.tensor([5, 3])))

    class Given(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.GRU(4, 8)

        def forward(self, data: Any, counts: Any) -> Any:
            return torch.gru(data, counts, torch.zeros(1, 2, 8), list(self.layer.parameters()), True, 1, 0.0, False, False)[0]

    with pytest.raises(IngestError, match=f"gru: {says}"):
        tw.compile(Given().eval(), args=(torch.randn(8, 4), torch.tensor([2, 2, 2, 1, 1])))


def test_a_number_that_is_carried_is_refused() -> None:
    class Counted(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return hop.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 2), (0, x))

    with pytest.raises(IngestError, match=r"carry a tensor of rank 0|torch.export refuses"):
        tw.compile(Counted().eval(), args=(torch.randn(4),))
