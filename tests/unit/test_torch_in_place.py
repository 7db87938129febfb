"""In-place operators of PyTorch that are built as those that make a new tensor, and those that are left to torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.compiler.frontends.torch import exported  # noqa: E402
from tilewright.compiler.frontends.torch.in_place import functional_name  # noqa: E402


def chain(x: Any) -> Any:
    y = x * 2.0
    y += x
    return torch.nn.functional.relu_(y) + 1.0


def read_before(x: Any) -> Any:
    y = x * 2.0
    z = y + 1.0
    y.mul_(3.0)
    return y + z


def seen_by_a_view(x: Any) -> Any:
    y = x * 2.0
    row = y[:, 0]
    y.add_(1.0)
    return y + row[:, None]


def its_input(x: Any) -> Any:
    y = torch.nn.functional.dropout(x * 2.0, 0.5, training=False)
    z = y * 1.0
    y.add_(1.0)
    return y + z


def of_a_narrower_type(x: Any) -> Any:
    y = (x * 4.0).half() * 1.0
    y.add_(x)
    return y


@pytest.mark.parametrize(("function", "names", "whole"), [
    (chain, ["aten.add.Tensor", "aten.relu.default"], False), (read_before, ["aten.mul.Tensor"], False),
    (seen_by_a_view, [None], False), (its_input, [None], True), (of_a_narrower_type, [None], True)])  # fmt: skip
def test_what_nobody_sees_being_written_needs_no_second_trace(function: Callable[[Any], Any], names: list[str | None],
                                                              whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    shapes = ({0: torch.export.Dim("T", min=1, max=8)},)
    program = torch.export.export(Model().eval(), (torch.zeros(3, 4),), dynamic_shapes=shapes)
    written = [n for n in exported.nodes(program.graph_module) if "_." in str(n.target).replace("aten._", "")]
    assert [functional_name(n) for n in written] == names
    traced: list[Any] = []
    decomposed = exported._decomposed
    monkeypatch.setattr(exported, "_decomposed", lambda *a: (traced.append(a), decomposed(*a))[1])
    compiled = tw.compile(program)
    assert bool(traced) == whole
    for rows in (1, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
