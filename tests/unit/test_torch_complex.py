"""Complex tensors of PyTorch, which are pairs of real ones here, compiled with a dynamic size and compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.compiler.frontends.torch.importer import import_torch  # noqa: E402
from tilewright.runtime.errors import IngestError  # noqa: E402


class Of(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A function of complex tensors that come in parts, and so go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        found = self.function(torch.view_as_complex(x), torch.view_as_complex(y))
        return [torch.view_as_real(f) if f.is_complex() else f for f in found]


def parts(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, 2, generator=torch.Generator().manual_seed(seed))


def check(function: Callable[..., Any], left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """left, right: shapes without the first axis, whose length is only known when it runs."""
    size, module = torch.export.Dim("n", min=2, max=9), Of(function)
    args = parts(4, *left, seed=0), parts(4, *right, seed=1)
    compiled = tw.compile(torch.export.export(module, args, dynamic_shapes=({0: size}, {0: size})))
    for n in (4, 2, 9):
        x, y = parts(n, *left, seed=2 + n), parts(n, *right, seed=3 + n)
        for found, wanted in zip(compiled(x, y), module(x, y), strict=True):
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_elements() -> None:
    check(lambda x, y: [torch.add(x, y, alpha=2) - torch.sub(y, x, alpha=0.5j), x / y + x.reciprocal(), x**2 - x**3, x**0.5,
                        x ** (1 + 0.5j), x.sqrt(), x.log(), x.angle(), torch.sgn(x - x[:1]), x.abs() ** 2 + 0j,
                        x.real * y[0] + 1j, 1 - x.conj(), torch.where(x.real > 0, x, y),
                        x.masked_fill(y.imag > 0, 2.0)], (3,), (3,))  # fmt: skip


def test_parts_of_tensors() -> None:
    def run(x: Any, y: Any) -> Any:
        held = torch.zeros(x.shape[0], 5, dtype=torch.cfloat)
        held[:, 1:3] = x[:, :2]
        held[:, -1] = y[:, 0]
        return [held, torch.ones_like(x) + torch.full((3,), 2j), x.cumsum(0), torch.nn.functional.pad(x, (1, 2)),
                torch.nn.functional.pad(x, (1, 2), value=1.5), x.index_copy(1, torch.tensor([2, 0]), y[:, :2]), x.roll(1, 1)]

    check(run, (3,), (3,))


def test_products_of_matrices() -> None:
    plain = torch.randn(3, 2)
    check(lambda x, y: [x @ y, torch.baddbmm(x @ y, x, y, beta=2, alpha=0.5j), x.mH @ y.mH, x @ (plain + 0j),
                        torch.nn.functional.linear(x, plain.T * 1j, torch.tensor([1j, 2])), torch.linalg.vector_norm(x, dim=1),
                        torch.einsum("nij,njk->nki", x, y)], (2, 3), (3, 2))  # fmt: skip


def test_a_layer_of_a_fourier_neural_operator() -> None:
    """Li et al., 2021: the lowest frequencies, of either sign along the first axis, each times a matrix of its own."""
    weights = torch.rand(2, 3, 4, 3, 3, dtype=torch.cfloat)

    class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            spectrum = torch.fft.rfft2(x)
            kept = torch.zeros(x.shape[0], 4, x.shape[2], x.shape[3] // 2 + 1, dtype=torch.cfloat)
            for part, weight in zip((slice(None, 3), slice(-3, None)), weights, strict=True):
                kept[:, :, part, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, part, :3], weight)
            return torch.fft.irfft2(kept, s=x.shape[2:])

    layer, size = Layer(), torch.export.Dim("b", min=2, max=5)
    compiled = tw.compile(torch.export.export(layer, (torch.randn(3, 3, 12, 10),), dynamic_shapes=({0: size},)))
    for batch in (2, 5):
        x = torch.randn(batch, 3, 12, 10, generator=torch.Generator().manual_seed(batch))
        torch.testing.assert_close(compiled(x), layer(x), rtol=2e-5, atol=2e-5)


def test_short_time_transforms_there_and_back() -> None:
    """Of a length that is not known, and of hundreds of windows of a known one."""
    window = torch.hann_window(64)

    class Gate(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            spectrum = torch.stft(x, 64, 16, window=window, return_complex=True)
            louder = torch.istft(spectrum * torch.sigmoid(spectrum.abs()), 64, 16, window=window)
            return louder, torch.istft(torch.stft(y, 64, 16, window=window, return_complex=True), 64, 16, window=window)

    gate, pieces = Gate().eval(), torch.export.Dim("k", min=4, max=90)
    shapes = ({0: torch.export.Dim("b", min=2, max=5), 1: 16 * pieces}, None)
    y = torch.randn(1, 6400)
    compiled = tw.compile(gate, args=(torch.randn(3, 320), y), dynamic_shapes=shapes)
    for shape in ((2, 64), (5, 1440), (3, 320)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[1]))
        for found, wanted in zip(compiled(x, y), gate(x, y), strict=True):
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_what_is_refused() -> None:
    class Plain(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return torch.complex(x, y)

    with pytest.raises(IngestError, match=r"a result of the model is complex; return torch\.view_as_real of it"):
        import_torch(Plain().eval(), (torch.rand(3), torch.rand(3)))
    with pytest.raises(IngestError, match=r"aten\.sin\.default .*not known for complex tensors"):
        import_torch(Of(lambda x, y: [x.sin()]).eval(), (parts(3, seed=0), parts(3, seed=1)))
