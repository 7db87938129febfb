"""tw.torch_op: a saved model as an operator that torch.compile and torch.export trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright import ops

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    g = ops.Graph()
    x, w = g.input("x", ["B", 8]), g.input("w", [8, 16])
    g.output(ops.matmul(x, w), ops.concat([x, x], 0))
    path = tmp_path_factory.mktemp("models") / "model.tw"
    tw.compile(g, {"B": (1, 64)}).save(path)
    return tw.torch_op("tilewright_test::model", path)


def test_it_is_an_operator_of_pytorch(operator: Any) -> None:
    x, w = torch.randn(5, 8), torch.randn(8, 16)
    product, doubled = operator(x, w)
    torch.testing.assert_close(product, x @ w, rtol=1e-5, atol=1e-5)
    assert torch.equal(doubled, torch.cat([x, x])) and torch.equal(torch.ops.tilewright_test.model(x, w)[1], doubled)
    torch.library.opcheck(operator, (x, w))


def test_graphs_go_through_it_with_symbolic_sizes(operator: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return operator(x * 2, w)[1] + 1

    size = torch.export.Dim("B", min=1, max=64)
    program = torch.export.export(Model(), (torch.randn(5, 8), torch.randn(8, 16)), dynamic_shapes=({0: size}, None))
    x = torch.randn(9, 8)
    torch.testing.assert_close(program.module()(x, torch.randn(8, 16)), torch.cat([x, x]) * 2 + 1)


def test_a_backward_pass_raises(operator: Any) -> None:
    x = torch.randn(5, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="autograd"):
        operator(x, torch.randn(8, 16))[0].sum().backward()


def test_names_and_donations_are_checked(tmp_path: Path) -> None:
    g = ops.Graph()
    x = g.input("x", ["B", 8])
    g.output(ops.relu(x))
    with pytest.raises(tw.errors.OptionError, match="mylib::encoder"):
        tw.torch_op("model", tw.compile(g, {"B": (1, 4)}))
    with pytest.raises(tw.errors.OptionError, match="without donate"):
        tw.torch_op("tilewright_test::donated", tw.compile(g, {"B": (1, 4)}, donate=["x"]))
