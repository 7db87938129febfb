"""Writes into views, and operators that the table does not know, without a second trace of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402


def parts_of_a_new_tensor(x: Any) -> Any:
    y = x.new_empty(x.shape[0], 6)
    y[:, :4] = x
    y[:, 4:] = x[:, :2] * 2.0
    return y * 1.0


def one_row(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[:, 1] = x[:, 0]
    y[:, 2].fill_(3.0)
    return y


def read_between_writes(x: Any) -> Any:
    y = x * 2.0
    row = y[:, 1]
    before = row + 1.0
    row.mul_(3.0)
    whole = y.exp()
    y[:, 1:3] += 1.0
    return before, whole, row, y


def of_swapped_axes(x: Any) -> Any:
    y = x + 1.0
    z = y.t().unsqueeze(0)
    z[:, 1:3].copy_(x.t()[None, :2])
    z.permute(2, 0, 1)[:, 0, 3] = 7.0
    return y, z


def one_from_another(x: Any) -> Any:
    y, z = x * 2.0, x * 3.0
    y[:, 0] = z[:, 1]
    z[:, 1] = y[:, 0] + 1.0
    return y + z


def some_of_the_largest(x: Any) -> Any:
    values, at = torch.topk(x, 2)
    values /= values.sum(-1, keepdim=True)
    return torch.zeros_like(x).scatter_(1, at, values)


def through_a_reshape(x: Any) -> Any:
    y = x * 1.0
    y.reshape(-1)[0] = 5.0
    return y


def seen_through_a_reshape(x: Any) -> Any:
    y = x * 1.0
    z = y.reshape(-1)
    y[:, 0] = 5.0
    return z * 1.0


def the_same_element_twice(x: Any) -> Any:
    y = torch.chunk(x * 1.0, 2, dim=1)
    y[0].add_(1.0)
    return y[0] + y[1]


def composites(x: Any) -> Any:
    y = torch.einsum("tk,nk->tn", x, x.exp())
    return torch.max(y, y.t()), torch.nn.functional.mse_loss(x, x[:1].expand_as(x)), torch.aminmax(x)


@pytest.mark.parametrize(("function", "whole"), [
    (parts_of_a_new_tensor, False), (one_row, False), (read_between_writes, False), (of_swapped_axes, False),
    (one_from_another, False), (some_of_the_largest, False), (composites, False), (through_a_reshape, True),
    (seen_through_a_reshape, True), (the_same_element_twice, True)])  # fmt: skip
@pytest.mark.usefixtures("built_here")
def test_what_is_written_and_unknown_is_replaced_where_it_stands(function: Callable[[Any], Any], whole: bool,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    traced: list[Any] = []
    program = torch.export.ExportedProgram
    decompose = program.run_decompositions
    monkeypatch.setattr(program, "run_decompositions", lambda *a: (traced.append(a), decompose(*a))[1])
    shapes = ({0: torch.export.Dim("T", min=2, max=8)},)
    exported = torch.export.export(Model().eval(), (torch.zeros(3, 4),), dynamic_shapes=shapes)
    text = str(exported)
    compiled = tw.compile(exported)
    assert bool(traced) == whole
    assert str(exported) == text, "a user's program is left as it is"
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), function(x.clone()), rtol=1e-5, atol=1e-5)
